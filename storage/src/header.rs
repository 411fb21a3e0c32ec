//! The fixed part of a record batch v2, read from any 61 bytes: where walking a log needs no more than lengths and offsets.

use std::fmt;

use protocol::ids::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};
use protocol::limits::{BATCH_BYTES_CEILING, LOG_END_OFFSET_MAX, SEGMENT_REACH_MAX};

use crate::error::Impossible;

/// Bytes of a batch before its records.
pub const BATCH_HEADER_BYTES: usize = 61;
/// Bytes before the part that the batch's length field counts.
const LENGTH_OVERHEAD: usize = 12;
/// Where the CRC-covered part starts.
pub(crate) const CRC_START: usize = 21;

/// The fields of a batch's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Offset of the first record.
    pub base_offset: Offset,
    /// Bytes of the whole batch.
    pub size: usize,
    /// Leader epoch that the batch was appended in.
    pub leader_epoch: LeaderEpoch,
    /// CRC-32C of everything from the attributes on.
    pub crc: u32,
    /// Codec (bits 0 to 2), timestamp type (3), transactional (4), control (5).
    pub attributes: i16,
    /// Offset of the last record, from the base offset.
    pub last_offset_delta: u32,
    /// Timestamp of the first record.
    pub base_timestamp: Timestamp,
    /// Largest timestamp of the batch.
    pub max_timestamp: Timestamp,
    /// The producer, or none.
    pub producer_id: ProducerId,
    /// The producer's epoch.
    pub producer_epoch: ProducerEpoch,
    /// Sequence of the first record.
    pub base_sequence: Sequence,
    /// Records in the batch.
    pub record_count: u32,
}

/// Why bytes aren't the start of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderFault {
    /// All bytes are zero: space that nothing was written into.
    Zeros,
    /// The batch length is below a header's or above the largest batch's.
    Length(i32),
    /// The magic byte isn't 2.
    Magic(i8),
    /// The base offset is negative.
    BaseOffset(i64),
    /// The last offset delta is negative.
    LastOffsetDelta(i32),
    /// The record count is negative.
    RecordCount(i32),
}

impl fmt::Display for HeaderFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HeaderFault::Zeros => write!(f, "only zeros"),
            HeaderFault::Length(length) => {
                write!(f, "batch length {length} is outside 49 to {}", BATCH_BYTES_CEILING - LENGTH_OVERHEAD)
            }
            HeaderFault::Magic(magic) => write!(f, "magic {magic} is not 2"),
            HeaderFault::BaseOffset(offset) => write!(f, "base offset {offset} is negative"),
            HeaderFault::LastOffsetDelta(delta) => write!(f, "last offset delta {delta} is negative"),
            HeaderFault::RecordCount(count) => write!(f, "record count {count} is negative"),
        }
    }
}

impl BatchHeader {
    /// Reads the fields and checks what can be checked without the rest of the batch.
    ///
    /// # Errors
    /// What is wrong, for bytes that can't be a batch.
    pub fn parse(bytes: &[u8; BATCH_HEADER_BYTES]) -> Result<BatchHeader, HeaderFault> {
        let length = i32::from_be_bytes(field(bytes, 8));
        let magic = i8::from_be_bytes(field(bytes, 16));
        let size = usize::try_from(length).ok().and_then(|length| length.checked_add(LENGTH_OVERHEAD));
        let Some(size) = size.filter(|size| (BATCH_HEADER_BYTES..=BATCH_BYTES_CEILING).contains(size)) else {
            return Err(if bytes.iter().all(|&byte| byte == 0) { HeaderFault::Zeros } else { HeaderFault::Length(length) });
        };
        if magic != 2 {
            return Err(HeaderFault::Magic(magic));
        }
        let base_offset = i64::from_be_bytes(field(bytes, 0));
        let last_offset_delta = i32::from_be_bytes(field(bytes, 23));
        let record_count = i32::from_be_bytes(field(bytes, 57));
        if base_offset < 0 {
            return Err(HeaderFault::BaseOffset(base_offset));
        }
        Ok(BatchHeader {
            base_offset: Offset(base_offset),
            size,
            leader_epoch: LeaderEpoch(i32::from_be_bytes(field(bytes, 12))),
            crc: u32::from_be_bytes(field(bytes, 17)),
            attributes: i16::from_be_bytes(field(bytes, 21)),
            last_offset_delta: u32::try_from(last_offset_delta).map_err(|_| HeaderFault::LastOffsetDelta(last_offset_delta))?,
            base_timestamp: Timestamp(i64::from_be_bytes(field(bytes, 27))),
            max_timestamp: Timestamp(i64::from_be_bytes(field(bytes, 35))),
            producer_id: ProducerId(i64::from_be_bytes(field(bytes, 43))),
            producer_epoch: ProducerEpoch(i16::from_be_bytes(field(bytes, 51))),
            base_sequence: Sequence(i32::from_be_bytes(field(bytes, 53))),
            record_count: u32::try_from(record_count).map_err(|_| HeaderFault::RecordCount(record_count))?,
        })
    }

    /// A number of this batch that can't be, in the segment at `base`: indexes and the next appends count on it.
    pub(crate) fn impossible_in(&self, base: Offset, position: u64) -> Option<Impossible> {
        let last = self.last_offset().0;
        let numbers = [
            ("the last offset of a batch", last, LOG_END_OFFSET_MAX),
            ("the last offset of a batch, from its segment's base offset,", last.saturating_sub(base.0), SEGMENT_REACH_MAX),
            ("the position of a batch", i64::try_from(position).unwrap_or(i64::MAX), SEGMENT_REACH_MAX),
        ];
        let impossible = numbers.into_iter().find(|(_, found, allowed)| found > allowed);
        impossible.map(|(what, found, allowed)| Impossible { what, found, allowed })
    }

    /// The header of the batch that `bytes` starts with, if a header's worth of bytes is there.
    pub(crate) fn first_of(bytes: &[u8]) -> Option<Result<BatchHeader, HeaderFault>> {
        bytes.first_chunk::<BATCH_HEADER_BYTES>().map(BatchHeader::parse)
    }

    /// Offset of the last record.
    #[must_use]
    pub fn last_offset(&self) -> Offset {
        Offset(self.base_offset.0.saturating_add(i64::from(self.last_offset_delta)))
    }

    /// The offset that follows the batch.
    #[must_use]
    pub fn next_offset(&self) -> Offset {
        Offset(self.last_offset().0.saturating_add(1))
    }
}

fn field<const N: usize>(bytes: &[u8; BATCH_HEADER_BYTES], at: usize) -> [u8; N] {
    let mut value = [0; N];
    value.copy_from_slice(&bytes[at..at + N]);
    value
}
