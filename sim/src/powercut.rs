//! Power cuts on the real path: the data disk of a real `corelane` is recorded block by block, then cut and replayed.
//!
//! Recording: file system > loop device (direct) > FUSE export > qemu's `blklogwrites` > image. [`rig`] builds and removes that
//! stack, [`trace`] takes issue and completion times of each block request from the kernel, [`recording`] joins the two.
//! Replay: [`plan`] chooses a moment and what survives it, [`image`] makes the disk of that moment, [`session`] mounts it,
//! starts `corelane` on it and compares with the acknowledgements that were noted.
//! [`coverage`] needs no replay: in the trace itself, each acknowledgement must come after a flush of its bytes.
//!
//! Model of the disk: a volatile write cache, sectors of 512 bytes that are atomic, any order between flushes. A write is
//! *covered* once a flush has completed that was **issued after** the write completed; a write in flight beside a flush
//! is not. `prefix` keeps all that had completed; `torn` keeps what is covered and a random subset of the rest, some cut
//! at a sector: only torn replays can show a missing flush.
//! Runs on a test machine as root, on ordinary threads.

pub mod coverage;
pub mod image;
pub mod plan;
pub mod prefilled;
pub mod recording;
pub mod rig;
pub mod selftest;
pub mod session;
pub mod trace;
