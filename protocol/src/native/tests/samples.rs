//! One request and one reply of each kind, with lists of none, one and several entries.

use super::*;
use crate::error::ErrorCode;
use crate::frame::{FLAG_ERROR, FLAG_REPLY};
use crate::ids::{ClusterId, CoreId, HostId, LeaderEpoch, Offset, PartitionIndex, ProducerEpoch, ProducerId, Timestamp, TopicId};
use crate::limits::FRAME_BYTES_MAX;

type Check = Box<dyn Fn(&[u8])>;

pub(super) struct Sample {
    /// Its name in `PROTOCOL.md`.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) flags: u8,
    pub(super) correlation: u64,
    pub(super) payload_bytes: usize,
    pub(super) body: Vec<u8>,
    /// Decodes a body and compares it with the sample.
    pub(super) check: Check,
}

macro_rules! sample {
    ($name:literal, $kind:ident, $flags:expr, $correlation:literal, $payload:literal, $type:ident, $value:expr) => {{
        let value: $type = $value;
        let body = value.encode_body();
        Sample {
            name: $name,
            kind: Kind::$kind,
            flags: $flags,
            correlation: $correlation,
            payload_bytes: $payload,
            body,
            check: Box::new(move |body| assert_eq!($type::decode_body(body).as_ref(), Ok(&value), "{}", $name)),
        }
    }};
}

pub(super) fn topic() -> TopicId {
    TopicId(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff)
}

pub(super) fn all() -> Vec<Sample> {
    let mut samples = topics();
    samples.extend(records());
    samples
}

fn topics() -> Vec<Sample> {
    vec![
        sample!("HelloRequest", Hello, 0, 1, 0, HelloRequest, hello_request()),
        sample!("HelloReply", Hello, FLAG_REPLY, 1, 0, HelloReply, hello_reply()),
        sample!("CreateTopicRequest", CreateTopic, 0, 2, 0, CreateTopicRequest, create_topic_request()),
        sample!("CreateTopicReply", CreateTopic, FLAG_REPLY, 2, 0, CreateTopicReply, CreateTopicReply { topic_id: topic() }),
        sample!("DeleteTopicRequest", DeleteTopic, 0, 3, 0, DeleteTopicRequest, DeleteTopicRequest { name: "events".into() }),
        sample!("DeleteTopicReply", DeleteTopic, FLAG_REPLY, 3, 0, DeleteTopicReply, DeleteTopicReply { topic_id: topic() }),
        sample!("MetadataRequest", Metadata, 0, 4, 0, MetadataRequest, metadata_request()),
        sample!("MetadataReply", Metadata, FLAG_REPLY, 4, 0, MetadataReply, metadata_reply()),
        sample!("InitProducerRequest", InitProducer, 0, 9, 0, InitProducerRequest, InitProducerRequest { timeout_ms: 30_000 }),
        sample!("InitProducerReply", InitProducer, FLAG_REPLY, 9, 0, InitProducerReply, init_producer_reply()),
        sample!("AlterTopicRequest", AlterTopic, 0, 10, 0, AlterTopicRequest, alter_topic_request()),
        sample!("AlterTopicReply", AlterTopic, FLAG_REPLY, 10, 0, AlterTopicReply, AlterTopicReply { topic_id: topic() }),
        sample!("ErrorReply", CreateTopic, FLAG_REPLY | FLAG_ERROR, 8, 0, ErrorReply, error_reply()),
    ]
}

fn records() -> Vec<Sample> {
    vec![
        sample!("ProduceRequest", Produce, 0, 5, 200, ProduceRequest, produce_request()),
        sample!("ProduceReply", Produce, FLAG_REPLY, 5, 0, ProduceReply, produce_reply()),
        sample!("FetchRequest", Fetch, 0, 6, 0, FetchRequest, fetch_request()),
        sample!("FetchReply", Fetch, FLAG_REPLY, 6, 200, FetchReply, fetch_reply()),
        sample!("ListOffsetsRequest", ListOffsets, 0, 7, 0, ListOffsetsRequest, list_offsets_request()),
        sample!("ListOffsetsReply", ListOffsets, FLAG_REPLY, 7, 0, ListOffsetsReply, list_offsets_reply()),
        sample!("DeleteRecordsRequest", DeleteRecords, 0, 11, 0, DeleteRecordsRequest, delete_records_request()),
        sample!("DeleteRecordsReply", DeleteRecords, FLAG_REPLY, 11, 0, DeleteRecordsReply, delete_records_reply()),
    ]
}

fn hello_request() -> HelloRequest {
    HelloRequest { client_id: "app-1".into(), client_software: "example 0.1".into(), version_min: 1, version_max: 1, features: 0 }
}

fn hello_reply() -> HelloReply {
    // Those of the day when the golden bytes were taken.
    let kinds = Kind::ALL[..7].iter().map(|kind| {
        let (version_min, version_max) = kind.versions();
        KindVersions { kind_number: kind.number(), version_min, version_max }
    });
    HelloReply {
        cluster_id: ClusterId(0xc0de_0000_0000_0000_0000_0000_0000_0001),
        host_id: HostId(1),
        host_name: "node-1".into(),
        version: 1,
        features: 0,
        kinds: kinds.collect(),
        core_ports: vec![9100, 9101],
        frame_bytes_max: u32::try_from(FRAME_BYTES_MAX).unwrap(),
    }
}

fn init_producer_reply() -> InitProducerReply {
    InitProducerReply { producer_id: ProducerId(4711), producer_epoch: ProducerEpoch(0) }
}

fn alter_topic_request() -> AlterTopicRequest {
    AlterTopicRequest {
        name: "events".into(),
        configs: vec![("retention.ms".into(), Some("60000".into())), ("retention.bytes".into(), None)],
        timeout_ms: 30_000,
    }
}

fn create_topic_request() -> CreateTopicRequest {
    CreateTopicRequest {
        name: "events".into(),
        partitions: 4,
        configs: vec![("durability".into(), "device".into()), ("segment.bytes".into(), "1073741824".into())],
        timeout_ms: 30_000,
    }
}

fn metadata_request() -> MetadataRequest {
    MetadataRequest { names: Some(vec!["events".into(), "none".into()]) }
}

pub(super) fn metadata_reply() -> MetadataReply {
    let known = MetadataTopic {
        error: ErrorCode::None,
        name: "events".into(),
        topic_id: topic(),
        configs: vec![("durability".into(), "device".into())],
        partitions: (0..2)
            .map(|index| MetadataPartition {
                index: PartitionIndex(index),
                leader_epoch: LeaderEpoch(3),
                core: CoreId(0),
                log_start: Offset(0),
                high_watermark: Offset(90 + i64::from(index)),
                log_end: Offset(100),
                size_bytes: 65_536,
            })
            .collect(),
    };
    let unknown = MetadataTopic {
        error: ErrorCode::UnknownTopicOrPartition,
        name: "none".into(),
        topic_id: TopicId(0),
        configs: vec![],
        partitions: vec![],
    };
    MetadataReply { topics: vec![known, unknown] }
}

fn produce_request() -> ProduceRequest {
    let batch = |partition, bytes| ProduceBatch { topic_id: topic(), partition: PartitionIndex(partition), bytes };
    ProduceRequest { acks: -1, timeout_ms: 30_000, batches: vec![batch(0, 80), batch(3, 120)] }
}

fn produce_reply() -> ProduceReply {
    let appended = ProduceResult {
        error: ErrorCode::None,
        message: String::new(),
        base_offset: Offset(100),
        log_append_time: Timestamp::NONE,
        log_start: Offset(0),
    };
    let refused = ProduceResult {
        error: ErrorCode::CorruptMessage,
        message: "batch CRC is wrong".into(),
        base_offset: Offset(-1),
        log_append_time: Timestamp::NONE,
        log_start: Offset(-1),
    };
    ProduceReply { results: vec![appended, refused] }
}

fn fetch_request() -> FetchRequest {
    FetchRequest {
        max_wait_ms: 500,
        min_bytes: 1,
        max_bytes: 1_048_576,
        isolation: IsolationLevel::ReadCommitted,
        partitions: vec![FetchPartition {
            topic_id: topic(),
            partition: PartitionIndex(3),
            offset: Offset(42),
            max_bytes: 1_048_576,
            current_leader_epoch: LeaderEpoch(-1),
        }],
    }
}

fn fetch_reply() -> FetchReply {
    FetchReply {
        partitions: vec![FetchPartitionReply {
            error: ErrorCode::None,
            high_watermark: Offset(100),
            last_stable: Offset(99),
            log_start: Offset(0),
            bytes: 200,
        }],
    }
}

fn list_offsets_request() -> ListOffsetsRequest {
    let ask = |partition, at| ListOffsetsPartition { topic_id: topic(), partition: PartitionIndex(partition), at };
    ListOffsetsRequest {
        partitions: vec![ask(0, OffsetSpec::Latest), ask(1, OffsetSpec::AtOrAfter(Timestamp(1_700_000_000_000)))],
    }
}

fn delete_records_request() -> DeleteRecordsRequest {
    let ask = |partition, before| DeleteRecordsPartition { topic_id: topic(), partition: PartitionIndex(partition), before };
    DeleteRecordsRequest {
        partitions: vec![ask(0, DeleteBefore::HighWatermark), ask(1, DeleteBefore::Offset(Offset(42)))],
        timeout_ms: 30_000,
    }
}

fn delete_records_reply() -> DeleteRecordsReply {
    let began = |error, log_start| DeleteRecordsPartitionReply { error, log_start: Offset(log_start) };
    DeleteRecordsReply { partitions: vec![began(ErrorCode::None, 100), began(ErrorCode::OffsetOutOfRange, -1)] }
}

fn list_offsets_reply() -> ListOffsetsReply {
    let found = |offset, timestamp| ListOffsetsPartitionReply {
        error: ErrorCode::None,
        offset: Offset(offset),
        timestamp: Timestamp(timestamp),
    };
    ListOffsetsReply { partitions: vec![found(100, -1), found(57, 1_700_000_000_123)] }
}

fn error_reply() -> ErrorReply {
    ErrorReply { code: ErrorCode::TopicAlreadyExists, message: "topic events exists".into() }
}
