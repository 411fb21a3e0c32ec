//! What the machine allows, measured in the same run: the disk by fio, the wire by an echo and by a ring that only sends, durable
//! commits under an open-loop load by a ring that only writes, the processor time of taking bytes in by a ring that does only that.

pub mod commit;
pub mod echo;
pub mod fio;
pub mod intake;
pub mod send;
