//! Batches with values that the checker knows, made and read back.

use protocol::batch::{BatchBuilder, BatchView, RecordFields};
use protocol::compression::Codec;
use protocol::ids::Timestamp;

use crate::checker::history::Seen;

/// A batch of records whose values begin with these numbers, padded to `value_bytes` each.
pub(super) fn make(values: &[u64], value_bytes: usize, timestamps: &[i64]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Codec::None);
    for (value, timestamp) in values.iter().zip(timestamps) {
        let mut bytes = value.to_le_bytes().to_vec();
        // Padding that depends on the value: a block of another batch never looks right.
        let mut word = crate::random::mix(*value);
        while bytes.len() < value_bytes {
            bytes.extend(word.to_le_bytes());
            word = crate::random::mix(word);
        }
        bytes.truncate(value_bytes.max(8));
        let record = RecordFields { timestamp: Timestamp(*timestamp), value: Some(&bytes), ..RecordFields::default() };
        builder.push(&record).expect("a small batch");
    }
    builder.finish().expect("a batch with records")
}

/// The records of whole batches, in order.
///
/// # Panics
/// If the bytes aren't whole, sound batches of ours.
pub(super) fn read(bytes: &[u8]) -> Vec<Seen> {
    let mut seen = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (batch, behind) = BatchView::split(rest).expect("whole batches");
        batch.verify_crc().expect("batches with good checksums");
        for record in batch.records().expect("uncompressed records") {
            let record = record.expect("sound records");
            let value = record.value.and_then(|value| value.first_chunk::<8>()).expect("a value with its number");
            seen.push(Seen { offset: record.offset.0, value: u64::from_le_bytes(*value), timestamp: record.timestamp.0 });
        }
        rest = behind;
    }
    seen
}
