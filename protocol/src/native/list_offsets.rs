//! ListOffsets: finds the first record at or after a timestamp, the first offset, and the offset after the last record
//! that a reader sees.
//!
//! Version 1. Timestamps below zero are refused, but for the two numbers that mean "latest" and "earliest".

use super::NativeError;
use super::fields::{access, bounded, encode, within};
use crate::error::ErrorCode;
use crate::ids::{Offset, PartitionIndex, Timestamp, TopicId, TopicPartition};
use crate::limits::PARTITIONS_PER_REQUEST_MAX;

const LATEST: i64 = -1;
const EARLIEST: i64 = -2;

/// Which offset is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetSpec {
    /// The log start offset.
    Earliest,
    /// The high watermark.
    Latest,
    /// That of the first record whose timestamp isn't below this one.
    AtOrAfter(Timestamp),
}

/// Asks for offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListOffsetsRequest {
    /// Where, and which.
    pub partitions: Vec<ListOffsetsPartition>,
}

/// Asks for one partition's offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListOffsetsPartition {
    /// The topic.
    pub topic_id: TopicId,
    /// The partition in it.
    pub partition: PartitionIndex,
    /// Which offset.
    pub at: OffsetSpec,
}

impl ListOffsetsPartition {
    /// The partition, by its topic's identity.
    #[must_use]
    pub fn topic_partition(&self) -> TopicPartition {
        TopicPartition { topic: self.topic_id, partition: self.partition }
    }
}

/// The offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListOffsetsReply {
    /// By the request's order.
    pub partitions: Vec<ListOffsetsPartitionReply>,
}

/// One partition's offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListOffsetsPartitionReply {
    /// `None`, or why there is no answer.
    pub error: ErrorCode,
    /// The offset; -1: no record is that young.
    pub offset: Offset,
    /// The found record's timestamp; -1 for earliest and latest, and where none was found.
    pub timestamp: Timestamp,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct ListOffsetsRequestV1 {
    partitions: Vec<ListOffsetsPartitionV1>,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct ListOffsetsPartitionV1 {
    topic_id: [u8; 16],
    partition: u32,
    at: i64,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct ListOffsetsReplyV1 {
    partitions: Vec<ListOffsetsPartitionReplyV1>,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct ListOffsetsPartitionReplyV1 {
    error: i16,
    offset: i64,
    timestamp: i64,
}

impl ListOffsetsRequest {
    /// The body of a frame.
    #[must_use]
    pub fn encode_body(&self) -> Vec<u8> {
        let partitions = self.partitions.iter().map(|partition| ListOffsetsPartitionV1 {
            topic_id: partition.topic_id.0.to_be_bytes(),
            partition: partition.partition.0,
            at: match partition.at {
                OffsetSpec::Latest => LATEST,
                OffsetSpec::Earliest => EARLIEST,
                OffsetSpec::AtOrAfter(timestamp) => timestamp.0,
            },
        });
        encode(&ListOffsetsRequestV1 { partitions: partitions.collect() })
    }

    /// Reads a body.
    ///
    /// # Errors
    /// If it isn't laid out so, or a timestamp is below -2.
    pub fn decode_body(body: &[u8]) -> Result<ListOffsetsRequest, NativeError> {
        let archived = access::<ArchivedListOffsetsRequestV1>(body, "a list offsets request")?;
        bounded(archived.partitions.len(), PARTITIONS_PER_REQUEST_MAX, "partitions")?;
        let mut partitions = Vec::with_capacity(archived.partitions.len());
        for partition in archived.partitions.iter() {
            let at = partition.at.to_native();
            within(at, EARLIEST, i64::MAX, "at")?;
            partitions.push(ListOffsetsPartition {
                topic_id: TopicId(u128::from_be_bytes(partition.topic_id)),
                partition: PartitionIndex(partition.partition.to_native()),
                at: match at {
                    LATEST => OffsetSpec::Latest,
                    EARLIEST => OffsetSpec::Earliest,
                    timestamp => OffsetSpec::AtOrAfter(Timestamp(timestamp)),
                },
            });
        }
        Ok(ListOffsetsRequest { partitions })
    }
}

impl ListOffsetsReply {
    /// The body of a frame.
    #[must_use]
    pub fn encode_body(&self) -> Vec<u8> {
        let partitions = self.partitions.iter().map(|partition| ListOffsetsPartitionReplyV1 {
            error: partition.error.number(),
            offset: partition.offset.0,
            timestamp: partition.timestamp.0,
        });
        encode(&ListOffsetsReplyV1 { partitions: partitions.collect() })
    }

    /// Reads a body.
    ///
    /// # Errors
    /// If it isn't laid out so.
    pub fn decode_body(body: &[u8]) -> Result<ListOffsetsReply, NativeError> {
        let archived = access::<ArchivedListOffsetsReplyV1>(body, "a list offsets reply")?;
        let partitions = archived.partitions.iter().map(|partition| ListOffsetsPartitionReply {
            error: ErrorCode::from_number(partition.error.to_native()),
            offset: Offset(partition.offset.to_native()),
            timestamp: Timestamp(partition.timestamp.to_native()),
        });
        Ok(ListOffsetsReply { partitions: partitions.collect() })
    }
}
