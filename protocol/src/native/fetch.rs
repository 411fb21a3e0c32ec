//! Fetch: reads record batches. The reply's payload holds them as they are in the log, in the body's order.
//!
//! Version 1. The answer waits until `min_bytes` are there or `max_wait_ms` have passed. Byte limits are soft: the first
//! batch of the first partition that has one is returned whole. A batch that contains the offset asked for is returned
//! whole too, so that records below the offset may come and are to be passed over.

use super::NativeError;
use super::fields::{access, bounded, encode, within};
use crate::error::ErrorCode;
use crate::ids::{LeaderEpoch, Offset, PartitionIndex, TopicId, TopicPartition};
use crate::limits::PARTITIONS_PER_REQUEST_MAX;

/// Which records a reader sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum IsolationLevel {
    /// All below the high watermark.
    #[default]
    ReadUncommitted = 0,
    /// All below the last stable offset.
    ReadCommitted = 1,
}

/// Asks for batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchRequest {
    /// Longest wait for `min_bytes`, in milliseconds.
    pub max_wait_ms: u32,
    /// Answer at once when so many bytes are there.
    pub min_bytes: u32,
    /// Soft limit of the whole answer, in bytes.
    pub max_bytes: u32,
    /// Which records are seen.
    pub isolation: IsolationLevel,
    /// Where to read.
    pub partitions: Vec<FetchPartition>,
}

/// Where to read in one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchPartition {
    /// The topic.
    pub topic_id: TopicId,
    /// The partition in it.
    pub partition: PartitionIndex,
    /// The first record wanted.
    pub offset: Offset,
    /// Soft limit for this partition, in bytes.
    pub max_bytes: u32,
    /// The leader epoch that the reader knows; -1 if none. Another one is refused.
    pub current_leader_epoch: LeaderEpoch,
}

impl FetchPartition {
    /// The partition, by its topic's identity.
    #[must_use]
    pub fn topic_partition(&self) -> TopicPartition {
        TopicPartition { topic: self.topic_id, partition: self.partition }
    }
}

/// What was there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchReply {
    /// By the request's order.
    pub partitions: Vec<FetchPartitionReply>,
}

/// What was there in one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchPartitionReply {
    /// `None`, or why nothing was read.
    pub error: ErrorCode,
    /// The high watermark; -1 with most errors.
    pub high_watermark: Offset,
    /// The last stable offset; -1 with most errors.
    pub last_stable: Offset,
    /// The log start offset; -1 with most errors.
    pub log_start: Offset,
    /// Length of this partition's batches in the payload, in bytes.
    pub bytes: u32,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct FetchRequestV1 {
    max_wait_ms: u32,
    min_bytes: u32,
    max_bytes: u32,
    isolation: u8,
    partitions: Vec<FetchPartitionV1>,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct FetchPartitionV1 {
    topic_id: [u8; 16],
    partition: u32,
    offset: i64,
    max_bytes: u32,
    current_leader_epoch: i32,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct FetchReplyV1 {
    partitions: Vec<FetchPartitionReplyV1>,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct FetchPartitionReplyV1 {
    error: i16,
    high_watermark: i64,
    last_stable: i64,
    log_start: i64,
    bytes: u32,
}

impl FetchRequest {
    /// The body of a frame.
    #[must_use]
    pub fn encode_body(&self) -> Vec<u8> {
        let partitions = self.partitions.iter().map(|partition| FetchPartitionV1 {
            topic_id: partition.topic_id.0.to_be_bytes(),
            partition: partition.partition.0,
            offset: partition.offset.0,
            max_bytes: partition.max_bytes,
            current_leader_epoch: partition.current_leader_epoch.0,
        });
        encode(&FetchRequestV1 {
            max_wait_ms: self.max_wait_ms,
            min_bytes: self.min_bytes,
            max_bytes: self.max_bytes,
            isolation: self.isolation as u8,
            partitions: partitions.collect(),
        })
    }

    /// Reads a body.
    ///
    /// # Errors
    /// If it isn't laid out so, or a field can't be.
    pub fn decode_body(body: &[u8]) -> Result<FetchRequest, NativeError> {
        let archived = access::<ArchivedFetchRequestV1>(body, "a fetch request")?;
        within(i64::from(archived.isolation), 0, 1, "isolation")?;
        bounded(archived.partitions.len(), PARTITIONS_PER_REQUEST_MAX, "partitions")?;
        let partitions = archived.partitions.iter().map(|partition| FetchPartition {
            topic_id: TopicId(u128::from_be_bytes(partition.topic_id)),
            partition: PartitionIndex(partition.partition.to_native()),
            offset: Offset(partition.offset.to_native()),
            max_bytes: partition.max_bytes.to_native(),
            current_leader_epoch: LeaderEpoch(partition.current_leader_epoch.to_native()),
        });
        Ok(FetchRequest {
            max_wait_ms: archived.max_wait_ms.to_native(),
            min_bytes: archived.min_bytes.to_native(),
            max_bytes: archived.max_bytes.to_native(),
            isolation: if archived.isolation == 0 { IsolationLevel::ReadUncommitted } else { IsolationLevel::ReadCommitted },
            partitions: partitions.collect(),
        })
    }
}

impl FetchReply {
    /// The body of a frame.
    #[must_use]
    pub fn encode_body(&self) -> Vec<u8> {
        let partitions = self.partitions.iter().map(|partition| FetchPartitionReplyV1 {
            error: partition.error.number(),
            high_watermark: partition.high_watermark.0,
            last_stable: partition.last_stable.0,
            log_start: partition.log_start.0,
            bytes: partition.bytes,
        });
        encode(&FetchReplyV1 { partitions: partitions.collect() })
    }

    /// Reads a body.
    ///
    /// # Errors
    /// If it isn't laid out so.
    pub fn decode_body(body: &[u8]) -> Result<FetchReply, NativeError> {
        let archived = access::<ArchivedFetchReplyV1>(body, "a fetch reply")?;
        let partitions = archived.partitions.iter().map(|partition| FetchPartitionReply {
            error: ErrorCode::from_number(partition.error.to_native()),
            high_watermark: Offset(partition.high_watermark.to_native()),
            last_stable: Offset(partition.last_stable.to_native()),
            log_start: Offset(partition.log_start.to_native()),
            bytes: partition.bytes.to_native(),
        });
        Ok(FetchReply { partitions: partitions.collect() })
    }
}
