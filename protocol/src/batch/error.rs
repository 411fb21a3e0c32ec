//! What can be wrong with a batch, with the numbers in it.

use crate::compression::{Codec, CompressionError};
use crate::limits::{BATCH_RECORDS_MAX, RECORD_HEADERS_MAX};

/// Why bytes are no batch, or none that may be appended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The bytes end before the batch does.
    #[error("batch is cut: {needed} bytes are needed, {found} are there")]
    Truncated {
        /// Bytes that the batch takes (its header, while the length isn't known).
        needed: usize,
        /// Bytes that are there.
        found: usize,
    },
    /// Not record batch version 2.
    #[error("batch magic is {found}, only 2 is spoken")]
    Magic {
        /// What was there.
        found: i8,
    },
    /// A length field that is negative or leaves no room for the header.
    #[error("batch length field is {length}, at least 49 is needed")]
    Length {
        /// The field.
        length: i32,
    },
    /// Larger than allowed.
    #[error("batch of {bytes} bytes, {allowed} are allowed")]
    TooLarge {
        /// Its size, in bytes.
        bytes: usize,
        /// The limit, in bytes.
        allowed: usize,
    },
    /// Something follows the one batch that was expected.
    #[error("{bytes} bytes behind the batch")]
    TrailingBytes {
        /// How many.
        bytes: usize,
    },
    /// The CRC doesn't match.
    #[error("batch CRC is {computed:#010x}, the header says {stored:#010x}")]
    Crc {
        /// The header's.
        stored: u32,
        /// Of what is there.
        computed: u32,
    },
    /// No codec has this number.
    #[error("batch codec number is {number}, 0 to 4 exist")]
    Codec {
        /// The number.
        number: u8,
    },
    /// The topic takes another codec only.
    #[error("batch is compressed with {found}, the topic's compression.type takes {allowed} only")]
    CodecNotAllowed {
        /// The batch's.
        found: Codec,
        /// The topic's.
        allowed: Codec,
    },
    /// Attribute bits that mean nothing, or that a producer may not set (the delete horizon).
    #[error("batch attributes are {attributes:#06x}: bits {refused:#06x} are not a producer's to set")]
    Attributes {
        /// All of them.
        attributes: i16,
        /// The bits that may not be set.
        refused: i16,
    },
    /// A client sent a control batch.
    #[error("control batch from a client")]
    Control,
    /// A transactional batch where none may be.
    #[error("transactional batch of producer id {producer_id} outside of a transaction")]
    Transactional {
        /// Its producer id.
        producer_id: i64,
    },
    /// A producer set the timestamp type that brokers set.
    #[error("batch says LogAppendTime, which only a broker may set")]
    AppendTimeFromProducer,
    /// No records, or more than a batch may have.
    #[error("batch says it has {found} records, 1 to {BATCH_RECORDS_MAX} are allowed")]
    RecordCount {
        /// The header's count.
        found: i32,
    },
    /// Count and last offset delta don't agree.
    #[error("batch of {count} records has last offset delta {last_offset_delta}, expected the count less 1")]
    LastOffsetDelta {
        /// The header's count.
        count: i32,
        /// The header's delta.
        last_offset_delta: i32,
    },
    /// Producer id, producer epoch and sequence don't go together.
    #[error(
        "batch has producer id {producer_id}, epoch {producer_epoch}, sequence {base_sequence}: all are 0 or above, or all -1"
    )]
    ProducerFields {
        /// The producer id.
        producer_id: i64,
        /// The producer epoch.
        producer_epoch: i16,
        /// The base sequence.
        base_sequence: i32,
    },
    /// A timestamp below zero that isn't -1.
    #[error("batch timestamp is {timestamp}; 0 and above, or -1 for none, are allowed")]
    Timestamp {
        /// The timestamp.
        timestamp: i64,
    },
    /// The header's max timestamp isn't the records'.
    #[error("batch says its max timestamp is {stated}, its records say {found}")]
    MaxTimestamp {
        /// The header's.
        stated: i64,
        /// The records'.
        found: i64,
    },
    /// A record is malformed.
    #[error("record {index} of the batch, at byte {at} of its records: {error}")]
    Record {
        /// Its index in the batch, from 0.
        index: u32,
        /// Where it starts behind the batch's header, in bytes.
        at: usize,
        /// What is wrong.
        error: RecordError,
    },
    /// Bytes behind the last record.
    #[error("{bytes} bytes behind the last record of the batch")]
    TrailingRecordBytes {
        /// How many.
        bytes: usize,
    },
    /// A compressed batch has no compressed bytes.
    #[error("batch of {count} records compressed with {codec} has no bytes behind its header")]
    NoRecordBytes {
        /// The codec.
        codec: Codec,
        /// The header's count.
        count: i32,
    },
    /// The compressed records can't be decompressed.
    #[error("records can't be decompressed: {reason}")]
    Decompress {
        /// The codec's words.
        reason: String,
    },
}

/// What can be wrong with one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A number of more than 5 (10) bytes, or the bytes end inside one.
    #[error("a variable-length number is cut or too long")]
    Varint,
    /// The record's length is negative or passes the batch's end.
    #[error("length {length}, {left} bytes are left")]
    Length {
        /// The field.
        length: i32,
        /// Bytes left in the batch.
        left: usize,
    },
    /// A key, value or header is longer than the record, or negative where it may not be.
    #[error("a key, value or header of length {length}, {left} bytes are left of the record")]
    FieldLength {
        /// The field.
        length: i32,
        /// Bytes left in the record.
        left: usize,
    },
    /// A negative number of headers, or more than a record may have.
    #[error("{found} headers, up to {RECORD_HEADERS_MAX} are allowed")]
    HeaderCount {
        /// The field.
        found: i32,
    },
    /// Bytes of the record behind its last field.
    #[error("{bytes} bytes behind its last header")]
    TrailingBytes {
        /// How many.
        bytes: usize,
    },
    /// Offset deltas must rise by one from 0.
    #[error("offset delta {found}, expected {expected}")]
    OffsetDelta {
        /// The field.
        found: i32,
        /// The record's index.
        expected: i32,
    },
    /// Base timestamp and delta make a timestamp that can't be.
    #[error("timestamp delta {delta} from base {base}; 0 and above, or -1 for none, are allowed")]
    Timestamp {
        /// The batch's base timestamp.
        base: i64,
        /// The record's delta.
        delta: i64,
    },
}

impl From<CompressionError> for BatchError {
    fn from(error: CompressionError) -> BatchError {
        BatchError::Decompress { reason: error.to_string() }
    }
}
