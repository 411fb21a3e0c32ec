//! Bytes that no client of ours sends: every parser refuses them or gives a value, never panics, and takes no memory on
//! the word of a length.

use proptest::prelude::*;

use super::*;

/// Every decoder over the same bytes, whatever they were meant to be. The largest capacity that one took is given back.
fn decode_all(body: &[u8]) -> usize {
    let mut capacity = 0;
    let mut took = |bytes: usize| capacity = capacity.max(bytes);
    if let Ok(hello) = HelloRequest::decode_body(body) {
        took(hello.client_id.capacity() + hello.client_software.capacity());
    }
    if let Ok(hello) = HelloReply::decode_body(body) {
        took(hello.kinds.capacity() * size_of::<KindVersions>() + hello.core_ports.capacity() * 2);
    }
    if let Ok(request) = CreateTopicRequest::decode_body(body) {
        took(request.name.capacity() + request.configs.capacity() * size_of::<(String, String)>());
    }
    if let Ok(request) = DeleteTopicRequest::decode_body(body) {
        took(request.name.capacity());
    }
    if let Ok(request) = AlterTopicRequest::decode_body(body) {
        took(request.name.capacity() + request.configs.capacity() * size_of::<(String, Option<String>)>());
    }
    if let Ok(MetadataRequest { names: Some(names) }) = MetadataRequest::decode_body(body) {
        took(names.capacity() * size_of::<String>());
    }
    if let Ok(reply) = MetadataReply::decode_body(body) {
        took(reply.topics.capacity() * size_of::<MetadataTopic>());
    }
    if let Ok(view) = ProduceRequestView::parse(body) {
        took(view.batches().map(|batch| size_of_val(&batch)).sum());
        let _ = view.payload_bytes();
    }
    if let Ok(reply) = ProduceReply::decode_body(body) {
        took(reply.results.capacity() * size_of::<ProduceResult>());
    }
    if let Ok(request) = FetchRequest::decode_body(body) {
        took(request.partitions.capacity() * size_of::<FetchPartition>());
    }
    if let Ok(reply) = FetchReply::decode_body(body) {
        took(reply.partitions.capacity() * size_of::<FetchPartitionReply>());
    }
    if let Ok(request) = ListOffsetsRequest::decode_body(body) {
        took(request.partitions.capacity() * size_of::<ListOffsetsPartition>());
    }
    if let Ok(reply) = ListOffsetsReply::decode_body(body) {
        took(reply.partitions.capacity() * size_of::<ListOffsetsPartitionReply>());
    }
    if let Ok(request) = DeleteRecordsRequest::decode_body(body) {
        took(request.partitions.capacity() * size_of::<DeleteRecordsPartition>());
    }
    if let Ok(reply) = DeleteRecordsReply::decode_body(body) {
        took(reply.partitions.capacity() * size_of::<DeleteRecordsPartitionReply>());
    }
    if let Ok(reply) = ErrorReply::decode_body(body) {
        took(reply.message.capacity());
    }
    let _ = CreateTopicReply::decode_body(body);
    let _ = DeleteTopicReply::decode_body(body);
    let _ = AlterTopicReply::decode_body(body);
    capacity
}

/// Sixteen bytes for each one that came, and a little: structs in memory are wider than on the wire.
fn allowed(body: &[u8]) -> usize {
    body.len() * 16 + 256
}

#[test]
fn t79_t80_a_list_longer_than_the_body_is_refused() {
    for count in [2_u32, 1000, 1 << 16, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
        for offset in [0_i32, -4, -8, 4, i32::MIN, i32::MAX] {
            // A produce request whose batches are said to be there.
            let mut body = ProduceRequest { acks: 1, timeout_ms: 1, batches: vec![] }.encode_body();
            body[5..9].copy_from_slice(&offset.to_le_bytes());
            body[9..13].copy_from_slice(&count.to_le_bytes());
            assert!(ProduceRequestView::parse(&body).is_err(), "{count} batches at {offset}");
            // A text.
            let mut body = DeleteTopicRequest { name: String::new() }.encode_body();
            body[..4].copy_from_slice(&offset.to_le_bytes());
            body[4..].copy_from_slice(&count.to_le_bytes());
            assert!(DeleteTopicRequest::decode_body(&body).is_err(), "{count} bytes at {offset}");
        }
    }
}

#[test]
fn t79_a_body_shorter_than_its_struct_is_refused() {
    for sample in samples::all() {
        for cut in 0..sample.body.len() {
            // The struct is at the end: what is left of the body's tail is another body, and mostly none.
            decode_all(&sample.body[..cut]);
            decode_all(&sample.body[cut..]);
        }
    }
    assert!(ProduceRequestView::parse(&[]).is_err());
    assert!(HelloRequest::decode_body(&[0; 27]).is_err());
}

#[test]
fn lists_that_share_bytes_are_refused() {
    let mut body =
        HelloRequest { client_id: "app".into(), client_software: "lib".into(), version_min: 1, version_max: 1, features: 0 }
            .encode_body();
    // client_software is made to point at client_id's bytes.
    let root = body.len() - 28;
    let offset = -i32::try_from(root + 8).unwrap();
    body[root + 8..root + 12].copy_from_slice(&offset.to_le_bytes());
    assert!(matches!(HelloRequest::decode_body(&body), Err(NativeError::Layout { .. })));
}

#[test]
fn values_that_cannot_be_are_refused_with_their_numbers() {
    let body = ProduceRequest { acks: 2, timeout_ms: 0, batches: vec![] }.encode_body();
    let refused = Err(NativeError::Range { field: "acks", found: 2, first: -1, last: 1 });
    assert_eq!(ProduceRequestView::parse(&body).map(|view| view.acks()), refused);
    let body = ListOffsetsRequest {
        partitions: vec![ListOffsetsPartition {
            topic_id: samples::topic(),
            partition: crate::ids::PartitionIndex(0),
            at: OffsetSpec::AtOrAfter(crate::ids::Timestamp(-3)),
        }],
    }
    .encode_body();
    let refused = Err(NativeError::Range { field: "at", found: -3, first: -2, last: i64::MAX });
    assert_eq!(ListOffsetsRequest::decode_body(&body), refused);
    let body = DeleteRecordsRequest {
        partitions: vec![DeleteRecordsPartition {
            topic_id: samples::topic(),
            partition: crate::ids::PartitionIndex(0),
            before: DeleteBefore::Offset(crate::ids::Offset(-2)),
        }],
        timeout_ms: 0,
    }
    .encode_body();
    let refused = Err(NativeError::Range { field: "before", found: -2, first: -1, last: i64::MAX });
    assert_eq!(DeleteRecordsRequest::decode_body(&body), refused);
    let mut body = MetadataRequest { names: None }.encode_body();
    body[0] = 2;
    assert!(matches!(MetadataRequest::decode_body(&body), Err(NativeError::Range { field: "all_topics", found: 2, .. })));
    let body = DeleteTopicRequest { name: "x".repeat(250) }.encode_body();
    let refused = Err(NativeError::TooMany { field: "name", found: 250, allowed: 249 });
    assert_eq!(DeleteTopicRequest::decode_body(&body), refused);
}

#[test]
fn text_that_is_not_utf8_is_refused() {
    let mut body = DeleteTopicRequest { name: "abc".into() }.encode_body();
    body[1] = 0xff;
    assert_eq!(DeleteTopicRequest::decode_body(&body), Err(NativeError::Text { field: "name", valid_bytes: 1 }));
}

#[test]
fn a_request_for_too_many_partitions_is_refused() {
    let batch = ProduceBatch { topic_id: samples::topic(), partition: crate::ids::PartitionIndex(0), bytes: 100 };
    let body = ProduceRequest { acks: 1, timeout_ms: 1, batches: vec![batch; 10_001] }.encode_body();
    let refused = NativeError::TooMany { field: "batches", found: 10_001, allowed: 10_000 };
    assert_eq!(ProduceRequestView::parse(&body).map(|view| view.acks()), Err(refused));
}

#[test]
fn a_code_from_a_later_version_is_an_unknown_error() {
    let mut body = ErrorReply { code: crate::error::ErrorCode::InvalidRequest, message: String::new() }.encode_body();
    body[..2].copy_from_slice(&1234_i16.to_le_bytes());
    assert_eq!(ErrorReply::decode_body(&body).unwrap().code, crate::error::ErrorCode::UnknownServerError);
}

proptest! {
    #![proptest_config(crate::testing::at_least(3000))]

    #[test]
    fn t79_any_bytes_are_refused_or_bounded(body in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(decode_all(&body) <= allowed(&body));
    }

    #[test]
    fn t79_changed_bodies_are_refused_or_bounded(
        sample in any::<prop::sample::Index>(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let samples = samples::all();
        let mut body = samples[sample.index(samples.len())].body.clone();
        for (at, byte) in changes {
            let at = at.index(body.len());
            body[at] = byte;
        }
        prop_assert!(decode_all(&body) <= allowed(&body));
    }

    #[test]
    fn t79_small_numbers_in_every_field_are_refused_or_bounded(
        body in proptest::collection::vec(prop_oneof![4 => Just(0_u8), 2 => 0_u8..40, 1 => 0xd0_u8..=0xff], 0..200),
    ) {
        // Offsets and counts that nearly hold: most of these are laid out soundly.
        prop_assert!(decode_all(&body) <= allowed(&body));
    }
}
