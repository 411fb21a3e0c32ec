//! DeleteRecords: the records of a partition below an offset leave it for ever.
//!
//! Version 1. An offset of -1 means the high watermark.

use super::NativeError;
use super::fields::{access, bounded, encode, within};
use crate::error::ErrorCode;
use crate::ids::{Offset, PartitionIndex, TopicId, TopicPartition};
use crate::limits::PARTITIONS_PER_REQUEST_MAX;

const HIGH_WATERMARK: i64 = -1;

/// Up to where records are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteBefore {
    /// All that consumers see.
    HighWatermark,
    /// All below this offset.
    Offset(Offset),
}

/// Asks for records to be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteRecordsRequest {
    /// Where, and up to where.
    pub partitions: Vec<DeleteRecordsPartition>,
    /// How long the answer may take, in milliseconds.
    pub timeout_ms: u32,
}

/// Asks for one partition's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeleteRecordsPartition {
    /// The topic.
    pub topic_id: TopicId,
    /// The partition in it.
    pub partition: PartitionIndex,
    /// Up to where.
    pub before: DeleteBefore,
}

impl DeleteRecordsPartition {
    /// The partition, by its topic's identity.
    #[must_use]
    pub fn topic_partition(&self) -> TopicPartition {
        TopicPartition { topic: self.topic_id, partition: self.partition }
    }
}

/// Where the partitions begin now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteRecordsReply {
    /// By the request's order.
    pub partitions: Vec<DeleteRecordsPartitionReply>,
}

/// Where one partition begins now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeleteRecordsPartitionReply {
    /// `None`, or why nothing was deleted.
    pub error: ErrorCode,
    /// The first offset; -1 with an error.
    pub log_start: Offset,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct DeleteRecordsRequestV1 {
    partitions: Vec<DeleteRecordsPartitionV1>,
    timeout_ms: u32,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct DeleteRecordsPartitionV1 {
    topic_id: [u8; 16],
    partition: u32,
    before: i64,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct DeleteRecordsReplyV1 {
    partitions: Vec<DeleteRecordsPartitionReplyV1>,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct DeleteRecordsPartitionReplyV1 {
    error: i16,
    log_start: i64,
}

impl DeleteRecordsRequest {
    /// The body of a frame.
    #[must_use]
    pub fn encode_body(&self) -> Vec<u8> {
        let partitions = self.partitions.iter().map(|partition| DeleteRecordsPartitionV1 {
            topic_id: partition.topic_id.0.to_be_bytes(),
            partition: partition.partition.0,
            before: match partition.before {
                DeleteBefore::HighWatermark => HIGH_WATERMARK,
                DeleteBefore::Offset(offset) => offset.0,
            },
        });
        encode(&DeleteRecordsRequestV1 { partitions: partitions.collect(), timeout_ms: self.timeout_ms })
    }

    /// Reads a body.
    ///
    /// # Errors
    /// If it isn't laid out so, or an offset is below -1.
    pub fn decode_body(body: &[u8]) -> Result<DeleteRecordsRequest, NativeError> {
        let archived = access::<ArchivedDeleteRecordsRequestV1>(body, "a delete records request")?;
        bounded(archived.partitions.len(), PARTITIONS_PER_REQUEST_MAX, "partitions")?;
        let mut partitions = Vec::with_capacity(archived.partitions.len());
        for partition in archived.partitions.iter() {
            let before = partition.before.to_native();
            within(before, HIGH_WATERMARK, i64::MAX, "before")?;
            partitions.push(DeleteRecordsPartition {
                topic_id: TopicId(u128::from_be_bytes(partition.topic_id)),
                partition: PartitionIndex(partition.partition.to_native()),
                before: match before {
                    HIGH_WATERMARK => DeleteBefore::HighWatermark,
                    offset => DeleteBefore::Offset(Offset(offset)),
                },
            });
        }
        Ok(DeleteRecordsRequest { partitions, timeout_ms: archived.timeout_ms.to_native() })
    }
}

impl DeleteRecordsReply {
    /// The body of a frame.
    #[must_use]
    pub fn encode_body(&self) -> Vec<u8> {
        let partitions = self
            .partitions
            .iter()
            .map(|partition| DeleteRecordsPartitionReplyV1 { error: partition.error.number(), log_start: partition.log_start.0 });
        encode(&DeleteRecordsReplyV1 { partitions: partitions.collect() })
    }

    /// Reads a body.
    ///
    /// # Errors
    /// If it isn't laid out so.
    pub fn decode_body(body: &[u8]) -> Result<DeleteRecordsReply, NativeError> {
        let archived = access::<ArchivedDeleteRecordsReplyV1>(body, "a delete records reply")?;
        let partitions = archived.partitions.iter().map(|partition| DeleteRecordsPartitionReply {
            error: ErrorCode::from_number(partition.error.to_native()),
            log_start: Offset(partition.log_start.to_native()),
        });
        Ok(DeleteRecordsReply { partitions: partitions.collect() })
    }
}
