//! What a broker checks of a batch that a producer sent (trap T36), before anything is appended.
//!
//! Runs on the connection's core, once per batch. Uncompressed records are walked over the received bytes without
//! allocation; compressed ones are opaque here (their header, codec and bounds are checked), as brokers never decompress on
//! the produce path.
//!
//! Order of events: size, CRC, attributes, counts, producer fields, timestamps, records, max timestamp. The max timestamp
//! comes last, so that a dialect whose clients leave it to the broker can tell that all else is sound.

use super::records::{read_fields, read_header, read_header_count, take_record};
use super::{Attributes, BatchError, BatchView, DELETE_HORIZON_BIT, RecordError, TimestampType};
use crate::compression::Codec;
use crate::ids::Timestamp;
use crate::limits::{BATCH_BYTES_DEFAULT, BATCH_RECORDS_MAX};

/// What a topic and a request allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProduceRules {
    /// Largest batch, compressed, in bytes (`max.message.bytes`).
    pub batch_bytes_max: usize,
    /// The only codec that is taken (`compression.type`); `None` takes any.
    pub codec: Option<Codec>,
    /// Whether a transactional batch may come.
    pub transactional: bool,
}

impl Default for ProduceRules {
    fn default() -> ProduceRules {
        ProduceRules { batch_bytes_max: BATCH_BYTES_DEFAULT, codec: None, transactional: false }
    }
}

impl BatchView<'_> {
    /// Checks all that a broker must know before it appends this batch from a producer.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn validate_produced(&self, rules: &ProduceRules) -> Result<(), BatchError> {
        if self.size() > rules.batch_bytes_max {
            return Err(BatchError::TooLarge { bytes: self.size(), allowed: rules.batch_bytes_max });
        }
        self.verify_crc()?;
        let codec = check_attributes(self.attributes(), rules)?;
        let count = self.check_counts()?;
        self.check_producer_fields(rules)?;
        let (base, max) = (self.base_timestamp(), self.max_timestamp());
        for timestamp in [base, max] {
            if timestamp < Timestamp::NONE {
                return Err(BatchError::Timestamp { timestamp: timestamp.0 });
            }
        }
        let found = if codec == Codec::None {
            walk(self.records_bytes(), count, base)?
        } else if self.records_bytes().is_empty() {
            return Err(BatchError::NoRecordBytes { codec, count: self.record_count() });
        } else {
            // All that can be known without decompressing: the base timestamp is the first record's.
            max.max(base)
        };
        if found != max {
            return Err(BatchError::MaxTimestamp { stated: max.0, found: found.0 });
        }
        Ok(())
    }

    fn check_counts(&self) -> Result<u32, BatchError> {
        let (found, last_offset_delta) = (self.record_count(), self.last_offset_delta());
        let count = match u32::try_from(found) {
            Ok(count @ 1..=BATCH_RECORDS_MAX) => count,
            _ => return Err(BatchError::RecordCount { found }),
        };
        if last_offset_delta == found - 1 {
            Ok(count)
        } else {
            Err(BatchError::LastOffsetDelta { count: found, last_offset_delta })
        }
    }

    fn check_producer_fields(&self, rules: &ProduceRules) -> Result<(), BatchError> {
        let (producer_id, producer_epoch) = (self.producer_id().0, self.producer_epoch().0);
        let base_sequence = self.base_sequence().0;
        let is_idempotent = producer_id >= 0 && producer_epoch >= 0 && base_sequence >= 0;
        let is_plain = producer_id == -1 && producer_epoch == -1 && base_sequence == -1;
        let is_transactional = self.attributes().is_transactional();
        if !is_idempotent && (!is_plain || is_transactional) {
            return Err(BatchError::ProducerFields { producer_id, producer_epoch, base_sequence });
        }
        if is_transactional && !rules.transactional {
            return Err(BatchError::Transactional { producer_id });
        }
        Ok(())
    }
}

fn check_attributes(attributes: Attributes, rules: &ProduceRules) -> Result<Codec, BatchError> {
    let codec = attributes.codec()?;
    if attributes.is_control() {
        return Err(BatchError::Control);
    }
    let refused = attributes.unknown_bits() | (attributes.0 & DELETE_HORIZON_BIT);
    if refused != 0 {
        return Err(BatchError::Attributes { attributes: attributes.0, refused });
    }
    if attributes.timestamp_type() == TimestampType::LogAppendTime {
        return Err(BatchError::AppendTimeFromProducer);
    }
    match rules.codec {
        Some(allowed) if allowed != codec => Err(BatchError::CodecNotAllowed { found: codec, allowed }),
        _ => Ok(codec),
    }
}

/// Walks uncompressed records and gives the largest timestamp.
fn walk(records: &[u8], count: u32, base: Timestamp) -> Result<Timestamp, BatchError> {
    let mut left = records;
    let mut max = i64::MIN;
    for index in 0..count {
        let at = records.len() - left.len();
        match walk_record(&mut left, index, base.0) {
            Ok(timestamp) => max = max.max(timestamp),
            Err(error) => return Err(BatchError::Record { index, at, error }),
        }
    }
    if left.is_empty() { Ok(Timestamp(max)) } else { Err(BatchError::TrailingRecordBytes { bytes: left.len() }) }
}

#[inline]
fn walk_record(left: &mut &[u8], index: u32, base: i64) -> Result<i64, RecordError> {
    let mut body = take_record(left)?;
    let fields = read_fields(&mut body)?;
    if u32::try_from(fields.offset_delta) != Ok(index) {
        let expected = i32::try_from(index).unwrap_or(i32::MAX);
        return Err(RecordError::OffsetDelta { found: fields.offset_delta, expected });
    }
    for _ in 0..read_header_count(&mut body)? {
        read_header(&mut body)?;
    }
    if !body.is_empty() {
        return Err(RecordError::TrailingBytes { bytes: body.len() });
    }
    match base.checked_add(fields.timestamp_delta) {
        Some(timestamp) if timestamp >= Timestamp::NONE.0 => Ok(timestamp),
        _ => Err(RecordError::Timestamp { base, delta: fields.timestamp_delta }),
    }
}
