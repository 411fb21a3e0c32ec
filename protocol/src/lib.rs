//! Bytes in, values out: ids, offsets, limits, error codes, record batches, native frames. No I/O, no `unsafe`.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod batch;
pub mod compression;
pub mod error;
pub mod frame;
pub mod ids;
pub mod limits;
pub mod native;
pub mod partitioner;
pub mod topic_name;

#[cfg(test)]
mod testing;
