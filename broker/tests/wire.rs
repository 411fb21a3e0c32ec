//! The native protocol as a hostile or clumsy client speaks it, against the real process.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests run a process in real time")]

mod support;

use std::io::Write;
use std::time::{Duration, Instant};

use protocol::batch::{BatchBuilder, BatchView, ProducerFields, RecordFields, stamp, stamp_producer};
use protocol::compression::Codec;
use protocol::error::ErrorCode;
use protocol::frame::{FrameFields, encode_frame};
use protocol::ids::{
    LeaderEpoch, METADATA_TOPIC, Offset, PartitionIndex, ProducerEpoch, ProducerId, Sequence, Timestamp, TopicId,
};
use protocol::limits::TOPIC_CHANGES_WAITING_MAX;
use protocol::native::{
    CreateTopicRequest, DeleteTopicRequest, ErrorReply, FetchPartition, FetchReply, FetchRequest, HelloRequest,
    InitProducerReply, InitProducerRequest, IsolationLevel, Kind, ListOffsetsPartition, ListOffsetsReply, ListOffsetsRequest,
    MetadataReply, MetadataRequest, OffsetSpec, ProduceBatch, ProduceReply, ProduceRequest,
};
use support::{Host, Raw, Scratch};

fn batch(values: &[&str], timestamp: i64) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Codec::None);
    for value in values {
        let value = Some(value.as_bytes());
        builder.push(&RecordFields { timestamp: Timestamp(timestamp), key: None, value, headers: &[] }).unwrap();
    }
    builder.finish().unwrap()
}

fn topic(host: &Host, arguments: &[&str]) -> TopicId {
    host.text(&[&["topic", "create", "t"], arguments].concat());
    host.json(&["topic", "describe", "t"])["topic_id"].as_str().unwrap().parse().unwrap()
}

fn produce(raw: &mut Raw, acks: i8, batches: &[(TopicId, u32, Vec<u8>)]) {
    let request = ProduceRequest {
        acks,
        timeout_ms: 10_000,
        batches: batches
            .iter()
            .map(|(topic_id, partition, bytes)| ProduceBatch {
                topic_id: *topic_id,
                partition: PartitionIndex(*partition),
                bytes: u32::try_from(bytes.len()).unwrap(),
            })
            .collect(),
    };
    let payload: Vec<u8> = batches.iter().flat_map(|(_, _, bytes)| bytes.clone()).collect();
    raw.send(Kind::Produce, 1, &request.encode_body(), &payload);
}

fn produced(raw: &mut Raw) -> ProduceReply {
    let (header, body, _) = raw.reply().unwrap();
    assert!(!header.is_error());
    ProduceReply::decode_body(&body).unwrap()
}

fn fetch(raw: &mut Raw, topic_id: TopicId, offset: i64, max_bytes: u32) -> (FetchReply, Vec<u8>) {
    let request = FetchRequest {
        max_wait_ms: 0,
        min_bytes: 1,
        max_bytes,
        isolation: IsolationLevel::ReadUncommitted,
        partitions: vec![FetchPartition {
            topic_id,
            partition: PartitionIndex(0),
            offset: Offset(offset),
            max_bytes,
            current_leader_epoch: LeaderEpoch(-1),
        }],
    };
    raw.send(Kind::Fetch, 2, &request.encode_body(), b"");
    let (header, body, payload) = raw.reply().unwrap();
    assert!(!header.is_error());
    (FetchReply::decode_body(&body).unwrap(), payload)
}

#[test]
fn t36_bad_batches_are_refused_each_for_itself() {
    let scratch = Scratch::new();
    let host = Host::start(&scratch.join("data"));
    let id = topic(&host, &["--config", "max.message.bytes=2000", "--config", "compression.type=uncompressed"]);
    let good = batch(&["good"], 5);
    let mut crc = good.clone();
    *crc.last_mut().unwrap() ^= 1;
    let trailing = [good.clone(), vec![0; 3]].concat();
    let two = [good.clone(), good.clone()].concat();
    let large = batch(&[&"x".repeat(3000)], 5);
    let mut zstd = BatchBuilder::new(Codec::Zstd);
    zstd.push(&RecordFields { timestamp: Timestamp(5), key: None, value: Some(b"z"), headers: &[] }).unwrap();
    let zstd = zstd.finish().unwrap();
    // Attributes at byte 21: the control bit; the CRC is made anew by a stamp of the append time.
    let mut control = good.clone();
    control[22] |= 1 << 5;
    protocol::batch::stamp_append_time(&mut control, Timestamp(5));
    control[22] &= !(1 << 3);
    let cases = [
        (good.clone(), ErrorCode::None),
        (crc, ErrorCode::CorruptMessage),
        (trailing, ErrorCode::CorruptMessage),
        (two, ErrorCode::CorruptMessage),
        (good[..20].to_vec(), ErrorCode::CorruptMessage),
        (Vec::new(), ErrorCode::CorruptMessage),
        (large, ErrorCode::MessageTooLarge),
        (zstd, ErrorCode::UnsupportedCompressionType),
        (good, ErrorCode::None),
    ];
    let mut raw = Raw::greeted(&host);
    let all: Vec<_> = cases.iter().map(|(bytes, _)| (id, 0, bytes.clone())).collect();
    produce(&mut raw, -1, &all);
    let reply = produced(&mut raw);
    for (result, (_, expected)) in reply.results.iter().zip(&cases) {
        assert_eq!(result.error, *expected, "{result:?}");
        assert_eq!(result.error == ErrorCode::None, result.message.is_empty(), "{result:?}");
    }
    assert_eq!((reply.results[0].base_offset, reply.results[8].base_offset), (Offset(0), Offset(1)));
    produce(&mut raw, -1, &[(id, 0, control)]);
    assert_ne!(produced(&mut raw).results[0].error, ErrorCode::None);
    assert_eq!(host.text(&["consume", "t"]), "good\ngood\n");
}

#[test]
fn unknown_places_say_what_is_wrong() {
    let scratch = Scratch::new();
    let host = Host::start(&scratch.join("data"));
    let id = topic(&host, &[]);
    let mut raw = Raw::greeted(&host);
    let good = batch(&["x"], 5);
    produce(
        &mut raw,
        -1,
        &[(id, 9, good.clone()), (TopicId(77), 0, good.clone()), (METADATA_TOPIC, 0, good.clone()), (id, 0, good)],
    );
    let results = produced(&mut raw).results;
    assert_eq!(results[0].error, ErrorCode::UnknownTopicOrPartition);
    assert!(results[0].message.contains("topic t has 1 partitions, not 9"), "{}", results[0].message);
    assert_eq!(results[1].error, ErrorCode::UnknownTopicId);
    // The metadata log isn't a client's to write or to read.
    assert_eq!(results[2].error, ErrorCode::UnknownTopicId);
    assert_eq!(results[3].error, ErrorCode::None);
    assert_eq!(fetch(&mut raw, METADATA_TOPIC, 0, 1000).0.partitions[0].error, ErrorCode::UnknownTopicId);
    let request = ListOffsetsRequest {
        partitions: vec![ListOffsetsPartition { topic_id: METADATA_TOPIC, partition: PartitionIndex(0), at: OffsetSpec::Latest }],
    };
    raw.send(Kind::ListOffsets, 1, &request.encode_body(), b"");
    let (_, body, _) = raw.reply().unwrap();
    assert_eq!(ListOffsetsReply::decode_body(&body).unwrap().partitions[0].error, ErrorCode::UnknownTopicId);
    let (reply, _) = fetch(&mut raw, id, 50, 1000);
    assert_eq!(reply.partitions[0].error, ErrorCode::OffsetOutOfRange);
    assert_eq!((reply.partitions[0].log_start, reply.partitions[0].high_watermark), (Offset(0), Offset(1)));
}

#[test]
fn t30_t72_the_first_batch_comes_whole() {
    let scratch = Scratch::new();
    let host = Host::start(&scratch.join("data"));
    let id = topic(&host, &[]);
    let mut raw = Raw::greeted(&host);
    let first = batch(&["a", "b", "c", "d"], 5);
    let second = batch(&[&"e".repeat(5000)], 5);
    produce(&mut raw, -1, &[(id, 0, first.clone()), (id, 0, second.clone())]);
    assert!(produced(&mut raw).results.iter().all(|result| result.error == ErrorCode::None));
    for (offset, expected, base) in [(0, &first, 0), (2, &first, 0), (3, &first, 0), (4, &second, 4)] {
        let (_, payload) = fetch(&mut raw, id, offset, 1);
        let mut expected = expected.clone();
        let (view, rest) = BatchView::split(&payload).unwrap();
        assert!(rest.is_empty(), "one batch at {offset}");
        stamp(&mut expected, Offset(base), view.leader_epoch());
        assert_eq!(payload, expected, "at {offset}");
    }
}

#[test]
fn t76_a_refused_batch_without_acks_closes_the_connection() {
    let scratch = Scratch::new();
    let mut host = Host::start(&scratch.join("data"));
    let id = topic(&host, &[]);
    let mut raw = Raw::greeted(&host);
    produce(&mut raw, 0, &[(id, 0, batch(&["kept"], 5))]);
    // No reply to it: the next one is Metadata's.
    raw.send(Kind::Metadata, 7, &MetadataRequest { names: None }.encode_body(), b"");
    assert_eq!(raw.reply().unwrap().0.correlation, 7);
    produce(&mut raw, 0, &[(id, 1, batch(&["nowhere"], 5))]);
    assert!(raw.is_closed());
    // Nobody has said when it is flushed.
    let began = Instant::now();
    while host.json(&["topic", "describe", "t"])["records"] != 1 && began.elapsed() < Duration::from_secs(10) {}
    assert_eq!(host.text(&["consume", "t"]), "kept\n");
    assert!(host.is_running());
}

#[test]
fn t79_t80_hostile_bytes_end_their_connection_and_nothing_else() {
    let scratch = Scratch::new();
    let mut host = Host::start(&scratch.join("data"));
    let id = topic(&host, &[]);
    let mut frame =
        protocol::frame::encode_frame(&protocol::frame::FrameFields::request(Kind::Produce, 1, 1).with_payload(1 << 20), b"body")
            .unwrap()
            .to_vec();
    let promised = frame.clone();
    frame[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut payload = promised.clone();
    payload[16..20].copy_from_slice(&i32::MAX.to_le_bytes());
    let mut random = Vec::new();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..20_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        random.push(state.to_le_bytes()[7]);
    }
    for bytes in [frame, payload, random, b"GET / HTTP/1.1\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n".to_vec(), vec![0; 64], vec![255; 64]]
    {
        let mut raw = Raw::connect(&host);
        let _ = raw.0.write_all(&bytes);
        assert!(raw.is_closed());
    }
    // Frames that are whole and bodies that are not.
    for kind in Kind::ALL {
        for body in [b"".as_slice(), b"\xff\xff\xff\xff\xff\xff\xff\xff", &[0x80; 100], &[0; 5000]] {
            let mut raw = Raw::greeted(&host);
            raw.send(kind, 1, body, b"payload");
            let Some((header, ..)) = raw.reply() else { continue };
            let may_succeed = matches!(
                kind,
                Kind::Metadata | Kind::ListOffsets | Kind::Fetch | Kind::Produce | Kind::InitProducer | Kind::DeleteRecords
            );
            assert!(header.is_error() || may_succeed);
        }
    }
    // Promises that are not kept.
    let held: Vec<Raw> = (0..200)
        .map(|_| {
            let mut raw = Raw::connect(&host);
            raw.0.write_all(&promised).unwrap();
            raw
        })
        .collect();
    let mut raw = Raw::greeted(&host);
    produce(&mut raw, -1, &[(id, 0, batch(&["still here"], 5))]);
    assert_eq!(produced(&mut raw).results[0].error, ErrorCode::None);
    drop(held);
    assert!(host.is_running());
    assert_eq!(host.text(&["consume", "t"]), "still here\n");
}

#[test]
fn a_topic_is_described_once_and_a_reply_keeps_to_a_frame() {
    let scratch = Scratch::new();
    let host = Host::start(&scratch.join("data"));
    topic(&host, &["--partitions", "3"]);
    let mut raw = Raw::greeted(&host);
    raw.send(Kind::Metadata, 1, &MetadataRequest { names: Some(vec!["t".into(); 10_000]) }.encode_body(), b"");
    let error = raw.error();
    assert_eq!((error.code, error.message.as_str()), (ErrorCode::InvalidRequest, "topic \"t\" is asked for twice"));
    // The request fits a frame, the reply wouldn't.
    let names: Vec<String> = (0..3_900).map(|n| format!("{n:0249}")).collect();
    raw.send(Kind::Metadata, 2, &MetadataRequest { names: Some(names) }.encode_body(), b"");
    let error = raw.error();
    assert_eq!(error.code, ErrorCode::InvalidRequest);
    assert!(error.message.contains("the reply would pass 1048576 bytes behind 3603 topics"), "{}", error.message);
    raw.send(Kind::Metadata, 3, &MetadataRequest { names: Some(vec!["u".into(), "t".into()]) }.encode_body(), b"");
    let (_, body, _) = raw.reply().unwrap();
    let topics = MetadataReply::decode_body(&body).unwrap().topics;
    assert_eq!(
        topics.iter().map(|topic| (topic.name.as_str(), topic.partitions.len())).collect::<Vec<_>>(),
        [("u", 0), ("t", 3)]
    );
}

fn producer_id(raw: &mut Raw) -> ProducerId {
    raw.send(Kind::InitProducer, 1, &InitProducerRequest { timeout_ms: 10_000 }.encode_body(), b"");
    let (header, body, _) = raw.reply().unwrap();
    assert!(!header.is_error());
    let reply = InitProducerReply::decode_body(&body).unwrap();
    assert_eq!(reply.producer_epoch, ProducerEpoch(0));
    reply.producer_id
}

#[test]
fn an_idempotent_batch_lands_once_also_across_a_kill() {
    let scratch = Scratch::new();
    let host = Host::start(&scratch.join("data"));
    let id = topic(&host, &[]);
    let mut raw = Raw::greeted(&host);
    let mut ids: Vec<ProducerId> = (0..1100).map(|_| producer_id(&mut raw)).collect();
    let stamped = |producer: ProducerId, sequence: i32| {
        let mut batch = batch(&["a", "b"], 1);
        stamp_producer(
            &mut batch,
            ProducerFields {
                producer_id: producer,
                producer_epoch: ProducerEpoch(0),
                base_sequence: Sequence(sequence),
                transactional: false,
            },
        );
        batch
    };
    let offset_of = |raw: &mut Raw, producer: usize, sequence: i32| {
        produce(raw, -1, &[(id, 0, stamped(ids[producer], sequence))]);
        let result = produced(raw).results.remove(0);
        if result.error.is_none() { Ok(result.base_offset.0) } else { Err(result.error) }
    };
    assert_eq!(offset_of(&mut raw, 0, 0), Ok(0));
    assert_eq!(offset_of(&mut raw, 1, 0), Ok(2));
    assert_eq!(offset_of(&mut raw, 0, 2), Ok(4));
    assert_eq!(offset_of(&mut raw, 0, 0), Ok(0));
    assert_eq!(offset_of(&mut raw, 0, 6), Err(ErrorCode::OutOfOrderSequenceNumber));
    host.kill();

    let host = Host::start(&scratch.join("data"));
    let mut raw = Raw::greeted(&host);
    assert_eq!(offset_of(&mut raw, 0, 2), Ok(4));
    assert_eq!(offset_of(&mut raw, 1, 0), Ok(2));
    assert_eq!(offset_of(&mut raw, 1, 2), Ok(6));
    assert_eq!(offset_of(&mut raw, 1, 6), Err(ErrorCode::OutOfOrderSequenceNumber));
    ids.extend((0..5).map(|_| producer_id(&mut raw)));
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 1105, "an id was given twice");
}

#[test]
fn changes_of_topics_wait_in_line_and_the_line_is_bounded() {
    const REQUESTS: usize = 128;
    let create = |name: &str| CreateTopicRequest { name: name.into(), partitions: 1, configs: Vec::new(), timeout_ms: 60_000 };
    let scratch = Scratch::new();
    let host = Host::start(&scratch.join("data"));
    let mut raw = Raw::greeted(&host);
    // Each removal fits only behind its creation, and each creation behind the removal before.
    let mut frames = Vec::new();
    for n in 0..REQUESTS {
        let (kind, body) = match n % 2 {
            0 => (Kind::CreateTopic, create("t").encode_body()),
            _ => (Kind::DeleteTopic, DeleteTopicRequest { name: "t".into() }.encode_body()),
        };
        frames.extend(encode_frame(&FrameFields::request(kind, 1, n as u64), &body).unwrap());
    }
    raw.0.write_all(&frames).unwrap();
    let errors: Vec<_> = (0..REQUESTS)
        .map(|_| {
            let (header, body, _) = raw.reply().unwrap();
            header.is_error().then(|| ErrorReply::decode_body(&body).unwrap())
        })
        .collect();
    let made = errors.iter().take_while(|error| error.is_none()).count();
    assert!((TOPIC_CHANGES_WAITING_MAX..REQUESTS).contains(&made), "{made} changes were made: {errors:?}");
    let refused = errors[made].as_ref().unwrap();
    assert_eq!(refused.code, ErrorCode::ThrottlingQuotaExceeded);
    assert!(refused.message.starts_with("64 changes of topics wait already"), "{}", refused.message);
    // The line moves on.
    raw.send(Kind::CreateTopic, 1, &create("after").encode_body(), b"");
    assert!(!raw.reply().unwrap().0.is_error());
}

#[test]
fn t82_a_fetch_that_names_a_partition_twice_is_refused() {
    let scratch = Scratch::new();
    let host = Host::start(&scratch.join("data"));
    let id = topic(&host, &["--partitions", "2"]);
    let mut raw = Raw::greeted(&host);
    let mut fetch = |partitions: &[u32]| {
        let partition = |&index| FetchPartition {
            topic_id: id,
            partition: PartitionIndex(index),
            offset: Offset(0),
            max_bytes: 1000,
            current_leader_epoch: LeaderEpoch(-1),
        };
        let request = FetchRequest {
            max_wait_ms: 10,
            min_bytes: 1,
            max_bytes: 1000,
            isolation: IsolationLevel::ReadUncommitted,
            partitions: partitions.iter().map(partition).collect(),
        };
        raw.send(Kind::Fetch, 1, &request.encode_body(), b"");
        let (header, body, _) = raw.reply().unwrap();
        match header.is_error() {
            true => Err(ErrorReply::decode_body(&body).unwrap()),
            false => Ok(FetchReply::decode_body(&body).unwrap().partitions.len()),
        }
    };
    let refused = fetch(&[1, 0, 1]).unwrap_err();
    assert_eq!((refused.code, refused.message), (ErrorCode::InvalidRequest, format!("partition 1 of topic {id} comes twice")));
    let refused = fetch(&[0; 10_000]).unwrap_err();
    assert_eq!((refused.code, refused.message), (ErrorCode::InvalidRequest, format!("partition 0 of topic {id} comes twice")));
    assert_eq!(fetch(&[1, 0]), Ok(2));
}

#[test]
fn hello_comes_first_and_agrees_on_a_version() {
    let scratch = Scratch::new();
    let host = Host::start(&scratch.join("data"));
    let mut raw = Raw::connect(&host);
    raw.send(Kind::Metadata, 1, &MetadataRequest { names: None }.encode_body(), b"");
    let error = raw.error();
    assert_eq!(error.code, ErrorCode::InvalidRequest);
    assert!(error.message.contains("metadata came before hello"));
    assert!(raw.is_closed());

    let mut raw = Raw::connect(&host);
    let future = HelloRequest { client_id: "c".into(), client_software: "s".into(), version_min: 7, version_max: 9, features: 0 };
    raw.send(Kind::Hello, 1, &future.encode_body(), b"");
    let error = raw.error();
    assert_eq!(error.code, ErrorCode::UnsupportedVersion);
    assert!(error.message.contains("7 to 9"), "{}", error.message);

    let mut raw = Raw::greeted(&host);
    let fields = protocol::frame::FrameFields { kind_version: 40, ..protocol::frame::FrameFields::request(Kind::Fetch, 1, 3) };
    raw.0.write_all(&protocol::frame::encode_frame(&fields, b"").unwrap()).unwrap();
    assert_eq!(raw.error().code, ErrorCode::UnsupportedVersion);
    raw.send(Kind::Metadata, 4, &MetadataRequest { names: None }.encode_body(), b"");
    assert_eq!(raw.reply().unwrap().0.correlation, 4, "the connection stays");
}
