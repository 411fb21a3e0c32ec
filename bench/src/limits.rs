//! What the machine allows, measured in the same run: the disk by fio, the wire by an echo and by a ring that only sends.

pub mod echo;
pub mod fio;
pub mod send;
