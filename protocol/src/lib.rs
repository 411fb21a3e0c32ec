//! Bytes in, values out: ids, offsets, limits, error codes, record batches, native frames. No I/O, no `unsafe`.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod error;
pub mod ids;
pub mod limits;
