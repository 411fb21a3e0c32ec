//! Metadata: version 1.
//!
//! Topics by name, or all of them: settings, and for each partition its leader epoch, owner core, offsets and size. Internal
//! topics are not shown. A reply that would pass what a frame's body may have is refused before it is built to its end, and so is
//! a name that comes twice.
//!
//! Where it differs from Kafka: it answers with offsets and sizes too, so that a list of topics with their sizes is one
//! request; asking for a topic never creates it.

use std::collections::BTreeSet;

use net::Response;
use protocol::error::{ErrorCode, WireError};
use protocol::frame::FrameHeader;
use protocol::ids::{Offset, PartitionIndex, TopicId, TopicPartition};
use protocol::limits::FRAME_BODY_BYTES_MAX;
use protocol::native::{Kind, MetadataPartition, MetadataReply, MetadataRequest, MetadataTopic};
use runtime::Env;
use thiserror::Error;

use super::reply::{refuse_with, reply};
use crate::dispatch::Dispatch;

/// Why topics aren't described.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
enum MetadataError {
    /// A name comes twice.
    #[error("topic {name:?} is asked for twice")]
    AskedTwice {
        /// The name.
        name: String,
    },
    /// The reply's body would be larger than a frame's may be.
    #[error("the reply would pass {FRAME_BODY_BYTES_MAX} bytes behind {topics_described} topics; ask for fewer, by name")]
    TooLarge {
        /// Topics described before.
        topics_described: usize,
    },
}

impl WireError for MetadataError {
    fn code(&self) -> ErrorCode {
        match self {
            MetadataError::AskedTwice { .. } | MetadataError::TooLarge { .. } => ErrorCode::InvalidRequest,
        }
    }
}

/// Answers Metadata.
pub fn handle<E: Env>(dispatch: &Dispatch<E>, header: &FrameHeader, body: &[u8]) -> Response {
    let request = match MetadataRequest::decode_body(body) {
        Ok(request) => request,
        Err(error) => return refuse_with(header, &error),
    };
    match topics(dispatch, request.names) {
        Ok(topics) => reply(header, Kind::Metadata, &MetadataReply { topics }.encode_body()),
        Err(error) => refuse_with(header, &error),
    }
}

fn topics<E: Env>(dispatch: &Dispatch<E>, names: Option<Vec<String>>) -> Result<Vec<MetadataTopic>, MetadataError> {
    let image = dispatch.controller().image();
    let Some(names) = names else { return within_a_body(image.topics().map(|topic| describe(dispatch, topic))) };
    if let Some(name) = first_twice(&names) {
        return Err(MetadataError::AskedTwice { name: name.into() });
    }
    within_a_body(names.into_iter().map(|name| match image.topic_named(&name) {
        Some(topic) => describe(dispatch, topic),
        None => unknown(name),
    }))
}

/// The first name that came before.
fn first_twice(names: &[String]) -> Option<&str> {
    let mut seen = BTreeSet::new();
    names.iter().map(String::as_str).find(|name| !seen.insert(*name))
}

/// The topics, described one by one for as long as they fit a reply's body.
fn within_a_body(described: impl Iterator<Item = MetadataTopic>) -> Result<Vec<MetadataTopic>, MetadataError> {
    let mut topics = Vec::new();
    let mut bytes = MetadataReply::EMPTY_BODY_BYTES;
    for topic in described {
        bytes += topic.body_bytes();
        if bytes > FRAME_BODY_BYTES_MAX {
            return Err(MetadataError::TooLarge { topics_described: topics.len() });
        }
        topics.push(topic);
    }
    Ok(topics)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_takes_what_fits_and_nothing_is_described_behind_it() {
        let topic = unknown("x".repeat(249));
        let fit = (FRAME_BODY_BYTES_MAX - MetadataReply::EMPTY_BODY_BYTES) / topic.body_bytes();
        assert_eq!(within_a_body(vec![topic.clone(); fit].into_iter()).unwrap().len(), fit);
        let mut described = 0;
        let endless = std::iter::repeat_with(|| {
            described += 1;
            topic.clone()
        });
        assert_eq!(within_a_body(endless), Err(MetadataError::TooLarge { topics_described: fit }));
        assert_eq!(described, fit + 1);
    }
}
