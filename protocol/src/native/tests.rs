//! Golden bytes of every (kind, version), the page that describes them, and hostile bytes.

mod golden;
mod hostile;
mod page;
mod samples;

use super::*;
use crate::frame::{FrameFields, encode_frame};
use samples::Sample;

/// What is on the wire for a sample, without payload.
fn frame_of(sample: &Sample) -> Box<[u8]> {
    let fields = FrameFields {
        kind: sample.kind,
        kind_version: 1,
        flags: sample.flags,
        correlation: sample.correlation,
        payload_bytes: sample.payload_bytes,
    };
    encode_frame(&fields, &sample.body).unwrap()
}

#[test]
fn kinds_are_numbered_without_gaps() {
    for (number, kind) in (0..).zip(Kind::ALL) {
        assert_eq!((kind.number(), Kind::from_number(number)), (number, Some(kind)));
        assert!(kind.speaks(1) && !kind.speaks(0) && !kind.speaks(2), "{}", kind.name());
    }
    assert_eq!(Kind::from_number(10), None);
}

#[test]
fn a_topic_says_what_it_adds_to_a_metadata_reply() {
    let reply = samples::metadata_reply();
    assert!(reply.topics.iter().any(|topic| !topic.configs.is_empty() && !topic.partitions.is_empty()));
    let mut bytes = MetadataReply::EMPTY_BODY_BYTES;
    for count in 0..=reply.topics.len() {
        assert_eq!(MetadataReply { topics: reply.topics[..count].to_vec() }.encode_body().len(), bytes, "{count} topics");
        bytes += reply.topics.get(count).map_or(0, MetadataTopic::body_bytes);
    }
}

#[test]
fn every_sample_reads_back() {
    for sample in samples::all() {
        (sample.check)(&sample.body);
    }
}
