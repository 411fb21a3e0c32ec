//! Metadata: version 1.
//!
//! Topics by name, or all of them: settings, and for each partition its leader epoch, owner core, offsets and size. Internal
//! topics are not shown.
//!
//! Where it differs from Kafka: it answers with offsets and sizes too, so that a list of topics with their sizes is one
//! request; asking for a topic never creates it.

use net::Response;
use protocol::error::ErrorCode;
use protocol::frame::FrameHeader;
use protocol::ids::{Offset, PartitionIndex, TopicId, TopicPartition};
use protocol::native::{Kind, MetadataPartition, MetadataReply, MetadataRequest, MetadataTopic};
use runtime::Env;

use super::reply::{refuse_with, reply};
use crate::dispatch::Dispatch;

/// Answers Metadata.
pub fn handle<E: Env>(dispatch: &Dispatch<E>, header: &FrameHeader, body: &[u8]) -> Response {
    let request = match MetadataRequest::decode_body(body) {
        Ok(request) => request,
        Err(error) => return refuse_with(header, &error),
    };
    let image = dispatch.controller().image();
    let topics = match request.names {
        None => image.topics().map(|topic| describe(dispatch, topic)).collect(),
        Some(names) => names
            .into_iter()
            .map(|name| match image.topic_named(&name) {
                Some(topic) => describe(dispatch, topic),
                None => unknown(name),
            })
            .collect(),
    };
    reply(header, Kind::Metadata, &MetadataReply { topics }.encode_body())
}

fn describe<E: Env>(dispatch: &Dispatch<E>, topic: &cluster::metadata::TopicImage) -> MetadataTopic {
    let partitions = (0..).zip(&topic.partitions).map(|(index, partition)| {
        let name = TopicPartition { topic: topic.id, partition: PartitionIndex(index) };
        let core = partition.placement.map_or_else(Default::default, |placement| placement.core);
        match dispatch.shard().describe(name) {
            Some(described) => MetadataPartition {
                index: name.partition,
                leader_epoch: described.leader_epoch,
                core,
                log_start: described.log_start,
                high_watermark: described.high_watermark,
                log_end: described.log_end,
                size_bytes: described.size_bytes,
            },
            None => MetadataPartition {
                index: name.partition,
                leader_epoch: partition.leader_epoch,
                core,
                log_start: Offset(-1),
                high_watermark: Offset(-1),
                log_end: Offset(-1),
                size_bytes: 0,
            },
        }
    });
    MetadataTopic {
        error: ErrorCode::None,
        name: topic.name.clone(),
        topic_id: topic.id,
        configs: topic.configs.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        partitions: partitions.collect(),
    }
}

fn unknown(name: String) -> MetadataTopic {
    MetadataTopic {
        error: ErrorCode::UnknownTopicOrPartition,
        name,
        topic_id: TopicId(0),
        configs: Vec::new(),
        partitions: Vec::new(),
    }
}
