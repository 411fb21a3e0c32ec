//! A batch that takes records (under the producer's lock), until the sender task finishes it.

use std::sync::Arc;

use bytes::Bytes;
use protocol::batch::{self, BatchBuilder, BuildError, ProducerFields, RecordFields};
use protocol::ids::Timestamp;
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::config::ProducerConfig;
use crate::delivery::BatchOutcome;
use crate::producer::queue::Batch;
use crate::record::Record;

/// Most bytes that a record takes in a batch beside its content: lengths, deltas, and those of each header.
const RECORD_FRAMING_BYTES: usize = 32;
const HEADER_FRAMING_BYTES: usize = 10;

/// A batch in the making, and the promises made for its records.
pub(super) struct OpenBatch {
    builder: BatchBuilder,
    memory_bytes: usize,
    pub outcome: Arc<BatchOutcome>,
    /// When it leaves at the latest.
    pub due: Instant,
    pub deadline: Instant,
}

impl OpenBatch {
    pub fn new(config: &ProducerConfig, outcome: Arc<BatchOutcome>, now: Instant) -> OpenBatch {
        OpenBatch {
            builder: BatchBuilder::new(config.codec),
            memory_bytes: 0,
            outcome,
            due: now + config.linger,
            deadline: now + config.delivery_timeout,
        }
    }

    /// Whether a further record keeps the batch within its size.
    pub fn has_room_for(&self, record: &Record, batch_bytes: usize) -> bool {
        self.builder.size_bytes() + framed_bytes(record) <= batch_bytes
    }

    pub fn is_full(&self, batch_bytes: usize) -> bool {
        self.builder.size_bytes() + RECORD_FRAMING_BYTES >= batch_bytes
    }

    /// Adds a record; its index in the batch. On an error the batch is as before.
    pub fn push(&mut self, record: &Record, timestamp: Timestamp, memory_bytes: usize) -> Result<u32, BuildError> {
        let headers: SmallVec<[batch::Header<'_>; 4]> = record
            .headers
            .iter()
            .map(|header| batch::Header { key: header.key.as_bytes(), value: header.value.as_deref() })
            .collect();
        let fields = RecordFields { timestamp, key: record.key.as_deref(), value: record.value.as_deref(), headers: &headers };
        let index = self.builder.push(&fields)?;
        self.memory_bytes += memory_bytes;
        Ok(index)
    }

    /// Compresses it, says who sends it and sets its CRC. If that fails, the batch that comes with the error has no bytes: it can only be
    /// settled.
    pub fn finish(self, producer: Option<ProducerFields>) -> Result<Batch, (Batch, BuildError)> {
        let (builder, mut batch) = self.split();
        match builder.producer(producer.unwrap_or(ProducerFields::NONE)).finish() {
            Ok(bytes) => {
                batch.has_sequence = producer.is_some();
                batch.bytes = Bytes::from(bytes);
                Ok(batch)
            }
            Err(error) => Err((batch, error)),
        }
    }

    /// A batch without bytes, to be settled only.
    pub fn abandon(self) -> Batch {
        self.split().1
    }

    fn split(self) -> (BatchBuilder, Batch) {
        let batch = Batch {
            bytes: Bytes::new(),
            memory_bytes: self.memory_bytes,
            records: self.builder.record_count(),
            deadline: self.deadline,
            outcome: self.outcome,
            has_sequence: false,
            maybe_appended: false,
            last_failure: None,
        };
        (self.builder, batch)
    }
}

/// Bytes that a record takes in a batch, at most.
pub(super) fn framed_bytes(record: &Record) -> usize {
    record.content_bytes() + RECORD_FRAMING_BYTES + HEADER_FRAMING_BYTES * record.headers.len()
}
