//! Metadata: what topics there are, their configs, and on which core and with which offsets each partition stands.
//!
//! Version 1. Topics asked for by name are answered in the order asked, unknown ones with an error; a name that comes twice
//! is refused. Without names all topics are described, in order of name.

use super::NativeError;
use super::fields::{access, bounded, encode, text};
use crate::error::ErrorCode;
use crate::ids::{CoreId, LeaderEpoch, Offset, PartitionIndex, TopicId};
use crate::limits::{PARTITIONS_PER_REQUEST_MAX, TOPIC_CONFIGS_MAX, TOPIC_NAME_BYTES_MAX};

/// Asks about topics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataRequest {
    /// Their names; `None` for all.
    pub names: Option<Vec<String>>,
}

/// The topics asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataReply {
    /// The topics.
    pub topics: Vec<MetadataTopic>,
}

/// One topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataTopic {
    /// `None`, or why the rest is empty.
    pub error: ErrorCode,
    /// Its name.
    pub name: String,
    /// Its identity.
    pub topic_id: TopicId,
    /// Names and values of the configs that differ from the defaults.
    pub configs: Vec<(String, String)>,
    /// Its partitions, by index.
    pub partitions: Vec<MetadataPartition>,
}

/// One partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetadataPartition {
    /// Its index in the topic.
    pub index: PartitionIndex,
    /// Its leader epoch.
    pub leader_epoch: LeaderEpoch,
    /// Its owner core on the leader's host.
    pub core: CoreId,
    /// Its log start offset.
    pub log_start: Offset,
    /// Its high watermark.
    pub high_watermark: Offset,
    /// Its log end offset.
    pub log_end: Offset,
    /// What its log takes on disk, in bytes.
    pub size_bytes: u64,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct MetadataRequestV1 {
    all_topics: u8,
    names: Vec<Vec<u8>>,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct MetadataReplyV1 {
    topics: Vec<MetadataTopicV1>,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct MetadataTopicV1 {
    error: i16,
    name: Vec<u8>,
    topic_id: [u8; 16],
    configs: Vec<MetadataConfigV1>,
    partitions: Vec<MetadataPartitionV1>,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct MetadataConfigV1 {
    name: Vec<u8>,
    value: Vec<u8>,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct MetadataPartitionV1 {
    index: u32,
    leader_epoch: i32,
    core: u16,
    log_start: i64,
    high_watermark: i64,
    log_end: i64,
    size_bytes: u64,
}

impl MetadataRequest {
    /// The body of a frame.
    #[must_use]
    pub fn encode_body(&self) -> Vec<u8> {
        let names = self.names.iter().flatten().map(|name| name.as_bytes().to_vec());
        encode(&MetadataRequestV1 { all_topics: u8::from(self.names.is_none()), names: names.collect() })
    }

    /// Reads a body.
    ///
    /// # Errors
    /// If it isn't laid out so, or a field can't be.
    pub fn decode_body(body: &[u8]) -> Result<MetadataRequest, NativeError> {
        let archived = access::<ArchivedMetadataRequestV1>(body, "a metadata request")?;
        super::fields::within(i64::from(archived.all_topics), 0, 1, "all_topics")?;
        if archived.all_topics == 1 {
            bounded(archived.names.len(), 0, "names beside all_topics")?;
            return Ok(MetadataRequest { names: None });
        }
        bounded(archived.names.len(), PARTITIONS_PER_REQUEST_MAX, "names")?;
        let mut names = Vec::with_capacity(archived.names.len());
        for name in archived.names.iter() {
            bounded(name.len(), TOPIC_NAME_BYTES_MAX, "name")?;
            names.push(text(name.as_slice(), "name")?);
        }
        Ok(MetadataRequest { names: Some(names) })
    }
}

impl MetadataReply {
    /// Bytes of a body without topics.
    pub const EMPTY_BODY_BYTES: usize = size_of::<ArchivedMetadataReplyV1>();

    /// The body of a frame.
    #[must_use]
    pub fn encode_body(&self) -> Vec<u8> {
        encode(&MetadataReplyV1 { topics: self.topics.iter().map(archive_topic).collect() })
    }

    /// Reads a body.
    ///
    /// # Errors
    /// If it isn't laid out so, or a field can't be.
    pub fn decode_body(body: &[u8]) -> Result<MetadataReply, NativeError> {
        let archived = access::<ArchivedMetadataReplyV1>(body, "a metadata reply")?;
        let topics = archived.topics.iter().map(read_topic).collect::<Result<_, _>>()?;
        Ok(MetadataReply { topics })
    }
}

impl MetadataTopic {
    /// Bytes that this topic adds to a reply's body.
    #[must_use]
    pub fn body_bytes(&self) -> usize {
        let configs = self.configs.iter().map(|(name, value)| size_of::<ArchivedMetadataConfigV1>() + name.len() + value.len());
        let partitions = self.partitions.len() * size_of::<ArchivedMetadataPartitionV1>();
        size_of::<ArchivedMetadataTopicV1>() + self.name.len() + configs.sum::<usize>() + partitions
    }
}

fn archive_topic(topic: &MetadataTopic) -> MetadataTopicV1 {
    let configs = topic
        .configs
        .iter()
        .map(|(name, value)| MetadataConfigV1 { name: name.as_bytes().to_vec(), value: value.as_bytes().to_vec() });
    let partitions = topic.partitions.iter().map(|partition| MetadataPartitionV1 {
        index: partition.index.0,
        leader_epoch: partition.leader_epoch.0,
        core: partition.core.0,
        log_start: partition.log_start.0,
        high_watermark: partition.high_watermark.0,
        log_end: partition.log_end.0,
        size_bytes: partition.size_bytes,
    });
    MetadataTopicV1 {
        error: topic.error.number(),
        name: topic.name.as_bytes().to_vec(),
        topic_id: topic.topic_id.0.to_be_bytes(),
        configs: configs.collect(),
        partitions: partitions.collect(),
    }
}

fn read_topic(topic: &ArchivedMetadataTopicV1) -> Result<MetadataTopic, NativeError> {
    bounded(topic.configs.len(), TOPIC_CONFIGS_MAX, "configs")?;
    let mut configs = Vec::with_capacity(topic.configs.len());
    for config in topic.configs.iter() {
        configs.push((text(config.name.as_slice(), "config name")?, text(config.value.as_slice(), "config value")?));
    }
    let partitions = topic.partitions.iter().map(|partition| MetadataPartition {
        index: PartitionIndex(partition.index.to_native()),
        leader_epoch: LeaderEpoch(partition.leader_epoch.to_native()),
        core: CoreId(partition.core.to_native()),
        log_start: Offset(partition.log_start.to_native()),
        high_watermark: Offset(partition.high_watermark.to_native()),
        log_end: Offset(partition.log_end.to_native()),
        size_bytes: partition.size_bytes.to_native(),
    });
    Ok(MetadataTopic {
        error: ErrorCode::from_number(topic.error.to_native()),
        name: text(topic.name.as_slice(), "name")?,
        topic_id: TopicId(u128::from_be_bytes(topic.topic_id)),
        configs,
        partitions: partitions.collect(),
    })
}
