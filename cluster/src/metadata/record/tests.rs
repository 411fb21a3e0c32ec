use proptest::prelude::*;

use super::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn partition() -> TopicPartition {
    TopicPartition { topic: TopicId(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10), partition: PartitionIndex(7) }
}

/// One record of each type and its bytes, written out by hand from the layout. They never change: logs on disk hold them.
fn golden() -> Vec<(MetadataRecord, &'static str)> {
    let id = partition().topic;
    vec![
        (
            MetadataRecord::HostStarted { host: HostId(3), broker_epoch: BrokerEpoch(258) },
            concat!("010101", "03000000", "0201000000000000"),
        ),
        (
            MetadataRecord::TopicCreated {
                id,
                name: "orders".into(),
                partitions: 12,
                configs: vec![("durability".into(), "written".into())],
            },
            concat!(
                "010201",
                "100f0e0d0c0b0a090807060504030201",
                "0600",
                "6f7264657273",
                "0c000000",
                "01000000",
                "0a00",
                "6475726162696c697479",
                "0700",
                "7772697474656e"
            ),
        ),
        (
            MetadataRecord::PartitionPlaced {
                partition: partition(),
                host: HostId(3),
                core: CoreId(1),
                directory: DirectoryId(0xff),
            },
            concat!(
                "010301",
                "100f0e0d0c0b0a090807060504030201",
                "07000000",
                "03000000",
                "0100",
                "ff000000000000000000000000000000"
            ),
        ),
        (MetadataRecord::TopicDeleted { id }, concat!("010401", "100f0e0d0c0b0a090807060504030201")),
        (
            MetadataRecord::TopicConfigChanged { id, name: "segment.ms".into(), value: Some("9".into()) },
            concat!("010501", "100f0e0d0c0b0a090807060504030201", "0a00", "7365676d656e742e6d73", "01", "0100", "39"),
        ),
        (
            MetadataRecord::TopicConfigChanged { id, name: "segment.ms".into(), value: None },
            concat!("010501", "100f0e0d0c0b0a090807060504030201", "0a00", "7365676d656e742e6d73", "00"),
        ),
        (
            MetadataRecord::ProducerIdsTaken { host: HostId(7), next: ProducerId(2000) },
            concat!("010601", "07000000", "d007000000000000"),
        ),
    ]
}

#[test]
fn the_bytes_of_each_type_are_frozen() {
    for (record, bytes) in golden() {
        assert_eq!(hex(&record.encode()), bytes, "{record:?}");
        assert_eq!(MetadataRecord::decode(&record.encode()).unwrap(), record);
    }
}

#[test]
fn a_record_cut_anywhere_is_refused() {
    for (record, _) in golden() {
        let bytes = record.encode();
        for length in 0..bytes.len() {
            assert!(MetadataRecord::decode(&bytes[..length]).is_err(), "{length} bytes of {record:?}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert_eq!(MetadataRecord::decode(&longer), Err(DecodeError::Trailing { count: 1 }));
    }
}

#[test]
fn unknown_formats_types_and_versions_are_refused_with_their_numbers() {
    let bytes = MetadataRecord::TopicDeleted { id: TopicId(1) }.encode();
    for (position, value) in [(0, 2), (1, 99), (1, 0), (2, 2)] {
        let mut other = bytes.clone();
        other[position] = value;
        let expected = DecodeError::Unsupported { format: other[0], kind: other[1], version: other[2] };
        assert_eq!(MetadataRecord::decode(&other), Err(expected));
    }
}

#[test]
fn t79_counts_and_lengths_are_checked_before_anything_is_taken() {
    // A topic without settings, whose count is then forged.
    let topic = MetadataRecord::TopicCreated { id: TopicId(1), name: "t".into(), partitions: 1, configs: vec![] };
    let mut bytes = topic.encode();
    let at = bytes.len() - 4;
    bytes[at..].copy_from_slice(&u32::MAX.to_le_bytes());
    let limit = CONFIGS_MAX;
    assert!(matches!(MetadataRecord::decode(&bytes), Err(DecodeError::TooLarge { limit: l, .. }) if l == limit));
    bytes[at..].copy_from_slice(&200_u32.to_le_bytes());
    assert!(matches!(MetadataRecord::decode(&bytes), Err(DecodeError::Short { .. })));
    // The name's length, above the limit and beyond the bytes.
    let mut bytes = topic.encode();
    bytes[19..21].copy_from_slice(&u16::MAX.to_le_bytes());
    assert!(matches!(MetadataRecord::decode(&bytes), Err(DecodeError::TooLarge { .. })));
    bytes[19..21].copy_from_slice(&4000_u16.to_le_bytes());
    assert!(matches!(MetadataRecord::decode(&bytes), Err(DecodeError::Short { needed: 4000, .. })));
    // Not UTF-8; a flag of 2.
    let mut bytes = topic.encode();
    bytes[21] = 0xff;
    assert_eq!(MetadataRecord::decode(&bytes), Err(DecodeError::NotText { field: "topic name" }));
    let mut bytes = MetadataRecord::TopicConfigChanged { id: TopicId(1), name: "a".into(), value: None }.encode();
    *bytes.last_mut().unwrap() = 2;
    assert_eq!(MetadataRecord::decode(&bytes), Err(DecodeError::BadFlag { field: "value present", value: 2 }));
}

fn any_record() -> impl Strategy<Value = MetadataRecord> {
    let text = "\\PC{0,20}";
    prop_oneof![
        (any::<u32>(), any::<i64>())
            .prop_map(|(host, epoch)| MetadataRecord::HostStarted { host: HostId(host), broker_epoch: BrokerEpoch(epoch) }),
        (any::<u128>(), text, any::<u32>(), prop::collection::vec((text, text), 0..5)).prop_map(
            |(id, name, partitions, configs)| MetadataRecord::TopicCreated { id: TopicId(id), name, partitions, configs }
        ),
        (any::<u128>(), any::<u32>(), any::<u32>(), any::<u16>(), any::<u128>()).prop_map(
            |(id, partition, host, core, directory)| MetadataRecord::PartitionPlaced {
                partition: TopicPartition { topic: TopicId(id), partition: PartitionIndex(partition) },
                host: HostId(host),
                core: CoreId(core),
                directory: DirectoryId(directory),
            }
        ),
        any::<u128>().prop_map(|id| MetadataRecord::TopicDeleted { id: TopicId(id) }),
        (any::<u128>(), text, prop::option::of(text)).prop_map(|(id, name, value)| MetadataRecord::TopicConfigChanged {
            id: TopicId(id),
            name,
            value
        }),
        (any::<u32>(), any::<i64>())
            .prop_map(|(host, next)| MetadataRecord::ProducerIdsTaken { host: HostId(host), next: ProducerId(next) }),
    ]
}

proptest! {
    #[test]
    fn every_record_comes_back_as_it_was(record in any_record()) {
        prop_assert_eq!(MetadataRecord::decode(&record.encode()), Ok(record));
    }

    #[test]
    fn hostile_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = MetadataRecord::decode(&bytes);
    }

    /// What decodes at all is what encodes to the same bytes: no two byte forms of one record.
    #[test]
    fn mutated_records_decode_to_what_they_say(record in any_record(), at in any::<prop::sample::Index>(), value in any::<u8>()) {
        let mut bytes = record.encode();
        let at = at.index(bytes.len());
        bytes[at] = value;
        if let Ok(other) = MetadataRecord::decode(&bytes) {
            prop_assert_eq!(other.encode(), bytes);
        }
    }
}
