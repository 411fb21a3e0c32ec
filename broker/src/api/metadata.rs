//! Metadata: version 1.
//!
//! Topics by name, or all of them: settings, and for each partition its leader epoch, owner core, offsets and size. Internal
//! topics are not shown. A reply that would pass what a frame's body may have is refused before it is built to its end, and so is
//! a name that comes twice.
//!
//! Where it differs from Kafka: it answers with offsets and sizes too, so that a list of topics with their sizes is one
//! request; asking for a topic never creates it.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use net::Call;
use protocol::error::{ErrorCode, WireError};
use protocol::frame::FrameHeader;
use protocol::ids::{CoreId, Offset, PartitionIndex, TopicId, TopicPartition};
use protocol::limits::FRAME_BODY_BYTES_MAX;
use protocol::native::{Kind, MetadataPartition, MetadataReply, MetadataRequest, MetadataTopic};
use runtime::Env;
use shard::PartitionDescription;
use thiserror::Error;

use super::Reply;
use super::reply::{refuse_with, reply};
use crate::crossing::{CoreReply, CoreRequest};
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
pub fn handle<E: Env>(dispatch: &Dispatch<E>, header: &FrameHeader, body: &[u8]) -> Call<Reply> {
    let request = match MetadataRequest::decode_body(body) {
        Ok(request) => request,
        Err(error) => return Call::Ready(refuse_with(header, &error)),
    };
    let mut topics = match topics(dispatch, request.names) {
        Ok(topics) => topics,
        Err(error) => return Call::Ready(refuse_with(header, &error)),
    };
    let elsewhere = elsewhere(dispatch, &topics);
    let header = *header;
    if elsewhere.is_empty() {
        return Call::Ready(reply(&header, Kind::Metadata, &MetadataReply { topics }.encode_body()));
    }
    let dispatch = dispatch.clone();
    let answer = async move {
        fill_in(&dispatch, elsewhere, &mut topics).await;
        reply(&header, Kind::Metadata, &MetadataReply { topics }.encode_body())
    };
    Call::Later { reply: Reply::Other(Box::pin(answer)), bytes_max: 0 }
}

/// A topic of the reply, and a partition of it.
type Place = (usize, usize);

/// The partitions of other cores.
fn elsewhere<E: Env>(dispatch: &Dispatch<E>, topics: &[MetadataTopic]) -> BTreeMap<CoreId, Vec<Place>> {
    let mut places: BTreeMap<CoreId, Vec<Place>> = BTreeMap::new();
    for (topic_at, topic) in topics.iter().enumerate() {
        for (partition_at, partition) in topic.partitions.iter().enumerate() {
            let name = TopicPartition { topic: topic.topic_id, partition: partition.index };
            if let Some(core) = dispatch.other_owner(name) {
                places.entry(core).or_default().push((topic_at, partition_at));
            }
        }
    }
    places
}

/// Asks each core for its offsets and sizes, all at once. Without an answer they stay unknown.
async fn fill_in<E: Env>(dispatch: &Dispatch<E>, elsewhere: BTreeMap<CoreId, Vec<Place>>, topics: &mut [MetadataTopic]) {
    let asked = elsewhere.into_iter().map(|(core, places)| {
        let name = |&(topic, partition): &Place| {
            let topic = &topics[topic];
            TopicPartition { topic: topic.topic_id, partition: topic.partitions[partition].index }
        };
        let wanted = places.iter().map(name).collect();
        dispatch.shard().count_crossing();
        let answer = dispatch.mesh().call(core, CoreRequest::Describe(wanted));
        async move { (places, answer.await) }
    });
    let answers = join_all(asked.collect::<Vec<_>>()).await;
    for (places, answer) in answers {
        let Some(CoreReply::Described(described)) = answer else { continue };
        for ((topic, partition), described) in places.into_iter().zip(described) {
            if let Some(described) = described {
                take(&mut topics[topic].partitions[partition], &described);
            }
        }
    }
}

fn topics<E: Env>(dispatch: &Dispatch<E>, names: Option<Vec<String>>) -> Result<Vec<MetadataTopic>, MetadataError> {
    let image = dispatch.image();
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
        let mut known = MetadataPartition {
            index: name.partition,
            leader_epoch: partition.leader_epoch,
            core: partition.placement.map_or_else(Default::default, |placement| placement.core),
            log_start: Offset(-1),
            high_watermark: Offset(-1),
            log_end: Offset(-1),
            size_bytes: 0,
        };
        if let Some(described) = dispatch.shard().describe(name) {
            take(&mut known, &described);
        }
        known
    });
    MetadataTopic {
        error: ErrorCode::None,
        name: topic.name.clone(),
        topic_id: topic.id,
        configs: topic.configs.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        partitions: partitions.collect(),
    }
}

fn take(partition: &mut MetadataPartition, described: &PartitionDescription) {
    partition.leader_epoch = described.leader_epoch;
    partition.log_start = described.log_start;
    partition.high_watermark = described.high_watermark;
    partition.log_end = described.log_end;
    partition.size_bytes = described.size_bytes;
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
