//! Record batch, version 2: Kafka's layout byte for byte, as a view over borrowed bytes.
//!
//! Pure. Owner cores stamp and read batches, connection cores check produced ones, clients build and iterate.
//!
//! ```text
//!  0 base offset i64      12 leader epoch i32   21 attributes i16         35 max timestamp i64    53 base sequence i32
//!  8 batch length i32     16 magic i8 (2)       23 last offset delta i32  43 producer id i64      57 record count i32
//!                         17 crc32c u32         27 base timestamp i64     51 producer epoch i16   61 records
//! ```
//!
//! Big endian. The batch length counts from byte 12 on. The CRC covers bytes 21 to the end: base offset and leader epoch are
//! stamped by the broker without touching it (trap T35).
//!
//! Invariant: a [`BatchView`] has magic 2, is exactly as long as its length field says, and has its whole header. Nothing
//! else is promised until it is verified or validated.

mod build;
mod error;
mod records;
mod validate;
mod varint;

use crate::compression::Codec;
use crate::ids::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};
use crate::limits::{BATCH_BYTES_CEILING, BATCH_HEADER_BYTES};

pub use build::{BatchBuilder, BuildError, ProducerFields, RecordFields};
pub use error::{BatchError, RecordError};
pub use records::{Header, HeaderIter, Record, RecordIter};
pub use validate::ProduceRules;

/// The only magic that is read and written.
pub const MAGIC: i8 = 2;
/// Bytes before those that the length field counts.
pub const LENGTH_BASE_BYTES: usize = 12;

const LEADER_EPOCH_AT: usize = 12;
const MAGIC_AT: usize = 16;
const CRC_AT: usize = 17;
const ATTRIBUTES_AT: usize = 21;
const MAX_TIMESTAMP_AT: usize = 35;

const CODEC_BITS: i16 = 0b111;
const TIMESTAMP_TYPE_BIT: i16 = 1 << 3;
const TRANSACTIONAL_BIT: i16 = 1 << 4;
const CONTROL_BIT: i16 = 1 << 5;
const DELETE_HORIZON_BIT: i16 = 1 << 6;
const KNOWN_BITS: i16 = CODEC_BITS | TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT | DELETE_HORIZON_BIT;

/// What a batch's timestamps mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimestampType {
    /// Set by the producer, record by record.
    CreateTime,
    /// Set by the broker: the max timestamp is that of every record.
    LogAppendTime,
}

/// A batch's attribute bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes(pub i16);

impl Attributes {
    /// How the records are compressed.
    ///
    /// # Errors
    /// The number, if no codec has it.
    pub fn codec(self) -> Result<Codec, BatchError> {
        let number = self.0.to_be_bytes()[1] & CODEC_BITS.to_be_bytes()[1];
        Codec::from_number(number).ok_or(BatchError::Codec { number })
    }

    /// What the timestamps mean.
    #[must_use]
    pub fn timestamp_type(self) -> TimestampType {
        if self.0 & TIMESTAMP_TYPE_BIT == 0 { TimestampType::CreateTime } else { TimestampType::LogAppendTime }
    }

    /// Whether the records belong to a transaction.
    #[must_use]
    pub fn is_transactional(self) -> bool {
        self.0 & TRANSACTIONAL_BIT != 0
    }

    /// Whether the records are markers of a broker, not data.
    #[must_use]
    pub fn is_control(self) -> bool {
        self.0 & CONTROL_BIT != 0
    }

    /// Whether the base timestamp is a delete horizon, set by compaction.
    #[must_use]
    pub fn has_delete_horizon(self) -> bool {
        self.0 & DELETE_HORIZON_BIT != 0
    }

    /// The bits that mean nothing.
    #[must_use]
    pub fn unknown_bits(self) -> i16 {
        self.0 & !KNOWN_BITS
    }
}

/// A record batch in borrowed bytes.
#[derive(Clone, Copy)]
pub struct BatchView<'a> {
    header: &'a [u8; BATCH_HEADER_BYTES],
    bytes: &'a [u8],
}

impl<'a> BatchView<'a> {
    /// Cuts the first batch off `bytes`, by its length field, and gives the rest with it. No CRC yet.
    ///
    /// # Errors
    /// [`BatchError::Truncated`] if the bytes end before the batch does; otherwise what can't be in its length or magic.
    pub fn split(bytes: &'a [u8]) -> Result<(BatchView<'a>, &'a [u8]), BatchError> {
        let Some(start) = bytes.first_chunk::<{ MAGIC_AT + 1 }>() else {
            return Err(BatchError::Truncated { needed: BATCH_HEADER_BYTES, found: bytes.len() });
        };
        let magic = i8::from_be_bytes([start[MAGIC_AT]]);
        if magic != MAGIC {
            return Err(BatchError::Magic { found: magic });
        }
        let length = i32::from_be_bytes([start[8], start[9], start[10], start[11]]);
        let size = usize::try_from(length).map_err(|_| BatchError::Length { length })?.saturating_add(LENGTH_BASE_BYTES);
        if size < BATCH_HEADER_BYTES {
            return Err(BatchError::Length { length });
        }
        if size > BATCH_BYTES_CEILING {
            return Err(BatchError::TooLarge { bytes: size, allowed: BATCH_BYTES_CEILING });
        }
        let Some((batch, rest)) = bytes.split_at_checked(size) else {
            return Err(BatchError::Truncated { needed: size, found: bytes.len() });
        };
        let Some(header) = batch.first_chunk::<BATCH_HEADER_BYTES>() else {
            return Err(BatchError::Length { length });
        };
        Ok((BatchView { header, bytes: batch }, rest))
    }

    /// The batch that takes all of `bytes`.
    ///
    /// # Errors
    /// As [`BatchView::split`], and [`BatchError::TrailingBytes`] if something follows.
    pub fn whole(bytes: &'a [u8]) -> Result<BatchView<'a>, BatchError> {
        let (batch, rest) = BatchView::split(bytes)?;
        if rest.is_empty() { Ok(batch) } else { Err(BatchError::TrailingBytes { bytes: rest.len() }) }
    }

    /// Checks the CRC.
    ///
    /// # Errors
    /// Both CRCs, if they differ.
    pub fn verify_crc(&self) -> Result<(), BatchError> {
        let (stored, computed) = (self.crc(), crc_of(self.bytes));
        if stored == computed { Ok(()) } else { Err(BatchError::Crc { stored, computed }) }
    }

    /// Offset of the first record; 0 as a producer sends it.
    #[must_use]
    pub fn base_offset(&self) -> Offset {
        Offset(self.i64_at(0))
    }

    /// Offset of the last record. Offsets end at 2^63 - 1: bytes that claim more saturate.
    #[must_use]
    pub fn last_offset(&self) -> Offset {
        Offset(self.base_offset().0.saturating_add(i64::from(self.last_offset_delta())))
    }

    /// The offset after the last record's. Saturates like [`BatchView::last_offset`].
    #[must_use]
    pub fn next_offset(&self) -> Offset {
        Offset(self.last_offset().0.saturating_add(1))
    }

    /// Epoch of the leader that appended the batch; -1 as a producer sends it.
    #[must_use]
    pub fn leader_epoch(&self) -> LeaderEpoch {
        LeaderEpoch(self.i32_at(LEADER_EPOCH_AT))
    }

    /// The layout's version: always 2.
    #[must_use]
    pub fn magic(&self) -> i8 {
        i8::from_be_bytes([self.header[MAGIC_AT]])
    }

    /// The CRC that the batch carries.
    #[must_use]
    pub fn crc(&self) -> u32 {
        u32::from_be_bytes(self.array_at(CRC_AT))
    }

    /// Codec, timestamp type and flags.
    #[must_use]
    pub fn attributes(&self) -> Attributes {
        Attributes(i16::from_be_bytes(self.array_at(ATTRIBUTES_AT)))
    }

    /// Last offset less base offset.
    #[must_use]
    pub fn last_offset_delta(&self) -> i32 {
        self.i32_at(23)
    }

    /// What the records' timestamp deltas count from.
    #[must_use]
    pub fn base_timestamp(&self) -> Timestamp {
        Timestamp(self.i64_at(27))
    }

    /// The youngest record's timestamp; of all records under `LogAppendTime`.
    #[must_use]
    pub fn max_timestamp(&self) -> Timestamp {
        Timestamp(self.i64_at(MAX_TIMESTAMP_AT))
    }

    /// The idempotent producer; -1 for none.
    #[must_use]
    pub fn producer_id(&self) -> ProducerId {
        ProducerId(self.i64_at(43))
    }

    /// Its epoch; -1 for none.
    #[must_use]
    pub fn producer_epoch(&self) -> ProducerEpoch {
        ProducerEpoch(i16::from_be_bytes(self.array_at(51)))
    }

    /// The producer's number of the first record; -1 for none.
    #[must_use]
    pub fn base_sequence(&self) -> Sequence {
        Sequence(self.i32_at(53))
    }

    /// Records in the batch, as its header says: any number, until the batch is validated.
    #[must_use]
    pub fn record_count(&self) -> i32 {
        self.i32_at(57)
    }

    /// The whole batch.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Length of the whole batch, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// What follows the header: the records, compressed or not.
    #[must_use]
    pub fn records_bytes(&self) -> &'a [u8] {
        &self.bytes[BATCH_HEADER_BYTES..]
    }

    fn array_at<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut array = [0; N];
        array.copy_from_slice(&self.header[at..at + N]);
        array
    }

    fn i32_at(&self, at: usize) -> i32 {
        i32::from_be_bytes(self.array_at(at))
    }

    fn i64_at(&self, at: usize) -> i64 {
        i64::from_be_bytes(self.array_at(at))
    }
}

impl std::fmt::Debug for BatchView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BatchView")
            .field("base_offset", &self.base_offset().0)
            .field("size", &self.size())
            .field("leader_epoch", &self.leader_epoch().0)
            .field("attributes", &self.attributes().0)
            .field("last_offset_delta", &self.last_offset_delta())
            .field("max_timestamp", &self.max_timestamp().0)
            .field("record_count", &self.record_count())
            .finish_non_exhaustive()
    }
}

/// Writes base offset and leader epoch into a batch, in place. The CRC doesn't cover them.
///
/// # Panics
/// If `batch` is shorter than a batch's header.
pub fn stamp(batch: &mut [u8], base_offset: Offset, leader_epoch: LeaderEpoch) {
    assert!(batch.len() >= BATCH_HEADER_BYTES, "{} bytes are no batch", batch.len());
    batch[..8].copy_from_slice(&base_offset.0.to_be_bytes());
    batch[LEADER_EPOCH_AT..MAGIC_AT].copy_from_slice(&leader_epoch.0.to_be_bytes());
}

/// Makes `timestamp` the append time of all records of a batch, in place, and its CRC anew. `batch` is the whole batch and
/// nothing else.
///
/// # Panics
/// If `batch` is shorter than a batch's header.
pub fn stamp_append_time(batch: &mut [u8], timestamp: Timestamp) {
    assert!(batch.len() >= BATCH_HEADER_BYTES, "{} bytes are no batch", batch.len());
    let attributes = i16::from_be_bytes([batch[ATTRIBUTES_AT], batch[ATTRIBUTES_AT + 1]]) | TIMESTAMP_TYPE_BIT;
    batch[ATTRIBUTES_AT..ATTRIBUTES_AT + 2].copy_from_slice(&attributes.to_be_bytes());
    batch[MAX_TIMESTAMP_AT..MAX_TIMESTAMP_AT + 8].copy_from_slice(&timestamp.0.to_be_bytes());
    stamp_crc(batch);
}

/// Sets who sends a batch, in place, and its CRC anew. `batch` is the whole batch and nothing else; whether it is transactional stays as it is.
///
/// # Panics
/// If `batch` is shorter than a batch's header.
pub fn stamp_producer(batch: &mut [u8], producer: ProducerFields) {
    assert!(batch.len() >= BATCH_HEADER_BYTES, "{} bytes are no batch", batch.len());
    batch[43..51].copy_from_slice(&producer.producer_id.0.to_be_bytes());
    batch[51..53].copy_from_slice(&producer.producer_epoch.0.to_be_bytes());
    batch[53..57].copy_from_slice(&producer.base_sequence.0.to_be_bytes());
    stamp_crc(batch);
}

/// Makes the CRC anew, in place.
fn stamp_crc(batch: &mut [u8]) {
    let crc = crc_of(batch);
    batch[CRC_AT..ATTRIBUTES_AT].copy_from_slice(&crc.to_be_bytes());
}

/// CRC-32C of what a batch's CRC covers.
fn crc_of(batch: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(&batch[ATTRIBUTES_AT..])
}

#[cfg(test)]
mod tests;
