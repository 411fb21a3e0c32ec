//! Produce: appends record batches. The payload holds them as they are, one after the other, in the body's order.
//!
//! Version 1. Each entry names its partition and the length of its one batch. Entries are answered in order, each with
//! its own error; one that fails leaves the others alone. With acks 0 there is no reply at all. The host reads the body
//! through [`ProduceRequestView`], which allocates nothing.

use super::NativeError;
use super::fields::{access, bounded, encode, text, within};
use crate::error::ErrorCode;
use crate::ids::{Offset, PartitionIndex, Timestamp, TopicId, TopicPartition};
use crate::limits::PARTITIONS_PER_REQUEST_MAX;

/// Asks for batches to be appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProduceRequest {
    /// -1: all in-sync replicas; 1: the leader; 0: no answer.
    pub acks: i8,
    /// Longest wait for the acknowledgement, in milliseconds.
    pub timeout_ms: u32,
    /// Where each batch of the payload goes, in order.
    pub batches: Vec<ProduceBatch>,
}

/// Where one batch goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProduceBatch {
    /// The topic.
    pub topic_id: TopicId,
    /// The partition in it.
    pub partition: PartitionIndex,
    /// Length of the batch in the payload, in bytes.
    pub bytes: u32,
}

impl ProduceBatch {
    /// The partition, by its topic's identity.
    #[must_use]
    pub fn topic_partition(&self) -> TopicPartition {
        TopicPartition { topic: self.topic_id, partition: self.partition }
    }
}

/// What became of each batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProduceReply {
    /// By the request's order.
    pub results: Vec<ProduceResult>,
}

/// What became of one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProduceResult {
    /// `None`, or why it wasn't appended.
    pub error: ErrorCode,
    /// For people, with the numbers in it; empty without an error.
    pub message: String,
    /// Offset of its first record; -1 with an error.
    pub base_offset: Offset,
    /// When it was appended, on topics that stamp that; else -1.
    pub log_append_time: Timestamp,
    /// The partition's log start offset; -1 if unknown.
    pub log_start: Offset,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct ProduceRequestV1 {
    acks: i8,
    timeout_ms: u32,
    batches: Vec<ProduceBatchV1>,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct ProduceBatchV1 {
    topic_id: [u8; 16],
    partition: u32,
    bytes: u32,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct ProduceReplyV1 {
    results: Vec<ProduceResultV1>,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct ProduceResultV1 {
    error: i16,
    message: Vec<u8>,
    base_offset: i64,
    log_append_time: i64,
    log_start: i64,
}

impl ProduceRequest {
    /// The body of a frame.
    #[must_use]
    pub fn encode_body(&self) -> Vec<u8> {
        let batches = self.batches.iter().map(|batch| ProduceBatchV1 {
            topic_id: batch.topic_id.0.to_be_bytes(),
            partition: batch.partition.0,
            bytes: batch.bytes,
        });
        encode(&ProduceRequestV1 { acks: self.acks, timeout_ms: self.timeout_ms, batches: batches.collect() })
    }

    /// Reads a body. Hosts use [`ProduceRequestView::parse`].
    ///
    /// # Errors
    /// If it isn't laid out so, or a field can't be.
    pub fn decode_body(body: &[u8]) -> Result<ProduceRequest, NativeError> {
        let view = ProduceRequestView::parse(body)?;
        Ok(ProduceRequest { acks: view.acks(), timeout_ms: view.timeout_ms(), batches: view.batches().collect() })
    }
}

/// A produce request's body, read in place.
#[derive(Clone, Copy)]
pub struct ProduceRequestView<'a> {
    archived: &'a ArchivedProduceRequestV1,
}

impl<'a> ProduceRequestView<'a> {
    /// Checks a body and views it.
    ///
    /// # Errors
    /// If it isn't laid out so, or a field can't be.
    pub fn parse(body: &'a [u8]) -> Result<ProduceRequestView<'a>, NativeError> {
        let archived = access::<ArchivedProduceRequestV1>(body, "a produce request")?;
        within(i64::from(archived.acks), -1, 1, "acks")?;
        bounded(archived.batches.len(), PARTITIONS_PER_REQUEST_MAX, "batches")?;
        Ok(ProduceRequestView { archived })
    }

    /// -1, 0 or 1; see [`ProduceRequest::acks`].
    #[must_use]
    pub fn acks(&self) -> i8 {
        self.archived.acks
    }

    /// Longest wait for the acknowledgement, in milliseconds.
    #[must_use]
    pub fn timeout_ms(&self) -> u32 {
        self.archived.timeout_ms.to_native()
    }

    /// Where each batch of the payload goes, in order.
    pub fn batches(&self) -> impl ExactSizeIterator<Item = ProduceBatch> + use<'a> {
        self.archived.batches.as_slice().iter().map(|batch| ProduceBatch {
            topic_id: TopicId(u128::from_be_bytes(batch.topic_id)),
            partition: PartitionIndex(batch.partition.to_native()),
            bytes: batch.bytes.to_native(),
        })
    }

    /// What the batches take together, in bytes: the payload's length, if the request is sound.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.batches().map(|batch| u64::from(batch.bytes)).sum()
    }
}

impl std::fmt::Debug for ProduceRequestView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProduceRequestView")
            .field("acks", &self.acks())
            .field("timeout_ms", &self.timeout_ms())
            .field("batches", &self.batches().len())
            .finish()
    }
}

impl ProduceReply {
    /// The body of a frame.
    #[must_use]
    pub fn encode_body(&self) -> Vec<u8> {
        let results = self.results.iter().map(|result| ProduceResultV1 {
            error: result.error.number(),
            message: result.message.as_bytes().to_vec(),
            base_offset: result.base_offset.0,
            log_append_time: result.log_append_time.0,
            log_start: result.log_start.0,
        });
        encode(&ProduceReplyV1 { results: results.collect() })
    }

    /// Reads a body.
    ///
    /// # Errors
    /// If it isn't laid out so, or a field can't be.
    pub fn decode_body(body: &[u8]) -> Result<ProduceReply, NativeError> {
        let archived = access::<ArchivedProduceReplyV1>(body, "a produce reply")?;
        let mut results = Vec::with_capacity(archived.results.len());
        for result in archived.results.iter() {
            results.push(ProduceResult {
                error: ErrorCode::from_number(result.error.to_native()),
                message: text(result.message.as_slice(), "message")?,
                base_offset: Offset(result.base_offset.to_native()),
                log_append_time: Timestamp(result.log_append_time.to_native()),
                log_start: Offset(result.log_start.to_native()),
            });
        }
        Ok(ProduceReply { results })
    }
}
