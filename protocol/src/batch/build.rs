//! Makes record batches: for clients, the CLI and tests. Brokers don't make batches of data.
//!
//! Records are encoded into one buffer behind room for the header; without compression the buffer becomes the batch.

use super::{ATTRIBUTES_AT, BatchView, Header, LENGTH_BASE_BYTES, MAGIC, MAGIC_AT, TRANSACTIONAL_BIT, stamp, stamp_crc, varint};
use crate::compression::{Codec, CompressionError, compress_into};
use crate::ids::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};
use crate::limits::{
    BATCH_BYTES_CEILING, BATCH_DECOMPRESSED_BYTES_MAX, BATCH_HEADER_BYTES, BATCH_RECORDS_MAX, RECORD_HEADERS_MAX,
};

/// A record to be sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecordFields<'a> {
    /// Its timestamp, or -1.
    pub timestamp: Timestamp,
    /// Its key, if any.
    pub key: Option<&'a [u8]>,
    /// Its value; none for a tombstone.
    pub value: Option<&'a [u8]>,
    /// Its headers, in order.
    pub headers: &'a [Header<'a>],
}

/// Who sends, for idempotent producers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerFields {
    /// The producer id; -1 for none.
    pub producer_id: ProducerId,
    /// Its epoch; -1 for none.
    pub producer_epoch: ProducerEpoch,
    /// The number of the batch's first record; -1 for none.
    pub base_sequence: Sequence,
    /// Whether the batch belongs to a transaction.
    pub transactional: bool,
}

impl ProducerFields {
    /// No idempotent producer.
    pub const NONE: ProducerFields = ProducerFields {
        producer_id: ProducerId::NONE,
        producer_epoch: ProducerEpoch(-1),
        base_sequence: Sequence(-1),
        transactional: false,
    };
}

/// Why a record isn't taken, or a batch isn't made.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The batch has all the records that it may.
    #[error("batch is full at {BATCH_RECORDS_MAX} records")]
    Full,
    /// The batch would be larger than any batch may be.
    #[error("batch would have {bytes} bytes, {allowed} are allowed")]
    TooLarge {
        /// Its size with this record, in bytes.
        bytes: usize,
        /// The limit, in bytes.
        allowed: usize,
    },
    /// The record has more headers than it may.
    #[error("record has {found} headers, {RECORD_HEADERS_MAX} are allowed")]
    Headers {
        /// How many.
        found: usize,
    },
    /// A timestamp below -1, or so far from the first record's that the distance isn't a number.
    #[error("timestamp {timestamp} can't be in a batch that starts at {base}")]
    Timestamp {
        /// The record's.
        timestamp: i64,
        /// The first record's.
        base: i64,
    },
    /// No record was added.
    #[error("a batch without records")]
    Empty,
    /// The codec failed.
    #[error(transparent)]
    Compression(#[from] CompressionError),
}

/// A batch in the making.
#[derive(Clone, Debug)]
pub struct BatchBuilder {
    codec: Codec,
    producer: ProducerFields,
    buffer: Vec<u8>,
    count: u32,
    base_timestamp: Timestamp,
    max_timestamp: Timestamp,
}

impl BatchBuilder {
    /// An empty batch whose records will be compressed with `codec`.
    #[must_use]
    pub fn new(codec: Codec) -> BatchBuilder {
        BatchBuilder::with_capacity(codec, 0)
    }

    /// The same, with room for `bytes` of records, uncompressed.
    #[must_use]
    pub fn with_capacity(codec: Codec, bytes: usize) -> BatchBuilder {
        let mut buffer = Vec::with_capacity(BATCH_HEADER_BYTES + bytes.min(BATCH_DECOMPRESSED_BYTES_MAX));
        buffer.resize(BATCH_HEADER_BYTES, 0);
        BatchBuilder {
            codec,
            producer: ProducerFields::NONE,
            buffer,
            count: 0,
            base_timestamp: Timestamp::NONE,
            max_timestamp: Timestamp::NONE,
        }
    }

    /// Sets who sends.
    #[must_use]
    pub fn producer(mut self, producer: ProducerFields) -> BatchBuilder {
        self.producer = producer;
        self
    }

    /// Adds a record; its index in the batch is given back.
    ///
    /// # Errors
    /// What is too large or too many; the batch is as before then.
    pub fn push(&mut self, record: &RecordFields<'_>) -> Result<u32, BuildError> {
        if self.count == BATCH_RECORDS_MAX {
            return Err(BuildError::Full);
        }
        if record.headers.len() > RECORD_HEADERS_MAX {
            return Err(BuildError::Headers { found: record.headers.len() });
        }
        let base = if self.count == 0 { record.timestamp } else { self.base_timestamp };
        let bad_time = BuildError::Timestamp { timestamp: record.timestamp.0, base: base.0 };
        if record.timestamp < Timestamp::NONE {
            return Err(bad_time);
        }
        let Some(timestamp_delta) = record.timestamp.0.checked_sub(base.0) else { return Err(bad_time) };
        let offset_delta = i64::from(self.count);
        let length = record_length(record, timestamp_delta, offset_delta);
        let allowed = if self.codec == Codec::None { BATCH_BYTES_CEILING } else { BATCH_DECOMPRESSED_BYTES_MAX };
        let bytes = self.buffer.len().saturating_add(length).saturating_add(10);
        if bytes > allowed {
            return Err(BuildError::TooLarge { bytes, allowed });
        }
        write_record(record, length, timestamp_delta, offset_delta, &mut self.buffer);
        (self.base_timestamp, self.max_timestamp) = (base, self.max_timestamp.max(record.timestamp));
        self.count += 1;
        Ok(self.count - 1)
    }

    /// Records so far.
    #[must_use]
    pub fn record_count(&self) -> u32 {
        self.count
    }

    /// Size of the batch so far, uncompressed, in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// The finished batch: base offset 0, leader epoch -1, the CRC set.
    ///
    /// # Errors
    /// If there is no record, or what the codec makes of them is too large.
    pub fn finish(self) -> Result<Vec<u8>, BuildError> {
        let last_offset_delta = self.count.checked_sub(1).ok_or(BuildError::Empty)?;
        let (codec, producer, count) = (self.codec, self.producer, self.count);
        let (base_timestamp, max_timestamp) = (self.base_timestamp, self.max_timestamp);
        let mut batch = if codec == Codec::None { self.buffer } else { self.compressed()? };
        let too_large = BuildError::TooLarge { bytes: batch.len(), allowed: BATCH_BYTES_CEILING };
        if batch.len() > BATCH_BYTES_CEILING {
            return Err(too_large);
        }
        let Ok(length) = u32::try_from(batch.len() - LENGTH_BASE_BYTES) else { return Err(too_large) };
        let mut attributes = i16::from(codec.number());
        if producer.transactional {
            attributes |= TRANSACTIONAL_BIT;
        }
        stamp(&mut batch, Offset(0), LeaderEpoch(-1));
        batch[8..12].copy_from_slice(&length.to_be_bytes());
        batch[MAGIC_AT] = MAGIC.to_be_bytes()[0];
        batch[ATTRIBUTES_AT..23].copy_from_slice(&attributes.to_be_bytes());
        batch[23..27].copy_from_slice(&last_offset_delta.to_be_bytes());
        batch[27..35].copy_from_slice(&base_timestamp.0.to_be_bytes());
        batch[35..43].copy_from_slice(&max_timestamp.0.to_be_bytes());
        batch[43..51].copy_from_slice(&producer.producer_id.0.to_be_bytes());
        batch[51..53].copy_from_slice(&producer.producer_epoch.0.to_be_bytes());
        batch[53..57].copy_from_slice(&producer.base_sequence.0.to_be_bytes());
        batch[57..61].copy_from_slice(&count.to_be_bytes());
        stamp_crc(&mut batch);
        debug_assert!(BatchView::whole(&batch).is_ok(), "a finished batch reads as one");
        Ok(batch)
    }

    fn compressed(self) -> Result<Vec<u8>, CompressionError> {
        let mut batch = Vec::with_capacity(self.buffer.len());
        batch.resize(BATCH_HEADER_BYTES, 0);
        compress_into(self.codec, &self.buffer[BATCH_HEADER_BYTES..], &mut batch)?;
        Ok(batch)
    }
}

/// Length of a record, without the length field itself.
fn record_length(record: &RecordFields<'_>, timestamp_delta: i64, offset_delta: i64) -> usize {
    let headers = record.headers.iter().map(|header| field_size(Some(header.key)) + field_size(header.value));
    1 + varint::size(timestamp_delta)
        + varint::size(offset_delta)
        + field_size(record.key)
        + field_size(record.value)
        + varint::size(signed(record.headers.len()))
        + headers.sum::<usize>()
}

fn field_size(field: Option<&[u8]>) -> usize {
    match field {
        None => 1,
        Some(bytes) => varint::size(signed(bytes.len())) + bytes.len(),
    }
}

fn write_record(record: &RecordFields<'_>, length: usize, timestamp_delta: i64, offset_delta: i64, out: &mut Vec<u8>) {
    varint::write(signed(length), out);
    out.push(0);
    varint::write(timestamp_delta, out);
    varint::write(offset_delta, out);
    write_field(record.key, out);
    write_field(record.value, out);
    varint::write(signed(record.headers.len()), out);
    for header in record.headers {
        write_field(Some(header.key), out);
        write_field(header.value, out);
    }
}

fn write_field(field: Option<&[u8]>, out: &mut Vec<u8>) {
    match field {
        None => varint::write(-1, out),
        Some(bytes) => {
            varint::write(signed(bytes.len()), out);
            out.extend_from_slice(bytes);
        }
    }
}

/// Lengths of slices fit.
fn signed(length: usize) -> i64 {
    i64::try_from(length).expect("a slice has at most 2^63 - 1 bytes")
}
