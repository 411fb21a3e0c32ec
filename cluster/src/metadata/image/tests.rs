use proptest::prelude::*;
use protocol::ids::DurabilityClass;

use super::*;

const HOST: HostId = HostId(1);

#[test]
fn what_cores_tell_each_other_can_cross_threads() {
    fn is_send<T: Send + 'static>() {}
    is_send::<Image>();
    is_send::<MetadataRecord>();
    is_send::<PartitionImage>();
    is_send::<crate::metadata::TopicConfig>();
}

fn created(id: u128, name: &str, partitions: u32) -> MetadataRecord {
    MetadataRecord::TopicCreated { id: TopicId(id), name: name.into(), partitions, configs: vec![] }
}

fn at(topic: u128, index: u32) -> TopicPartition {
    TopicPartition { topic: TopicId(topic), partition: PartitionIndex(index) }
}

fn placed(topic: u128, index: u32, host: u32, core: u16) -> MetadataRecord {
    let directory = DirectoryId(9);
    MetadataRecord::PartitionPlaced { partition: at(topic, index), host: HostId(host), core: CoreId(core), directory }
}

fn started(host: u32, epoch: i64) -> MetadataRecord {
    MetadataRecord::HostStarted { host: HostId(host), broker_epoch: BrokerEpoch(epoch) }
}

fn image(records: &[MetadataRecord]) -> Image {
    let mut image = Image::new();
    for record in records {
        image.apply(record).unwrap();
    }
    image
}

/// The record is refused, and the image is what it was.
fn refused(image: &Image, record: &MetadataRecord) -> ApplyError {
    let mut after = image.clone();
    let error = after.apply(record).unwrap_err();
    assert_eq!(&after, image);
    error
}

#[test]
fn the_leader_epoch_rises_at_each_start_and_each_move() {
    let mut image = image(&[started(1, 1), created(10, "a", 2), placed(10, 0, 1, 0)]);
    let epoch = |image: &Image, index| image.partition(at(10, index)).unwrap().leader_epoch;
    assert_eq!(epoch(&image, 0), LeaderEpoch(0));
    image.apply(&started(1, 2)).unwrap();
    assert_eq!(epoch(&image, 0), LeaderEpoch(1));
    assert_eq!(epoch(&image, 1), LeaderEpoch(0), "a partition that isn't placed has no leader");
    image.apply(&placed(10, 0, 1, 3)).unwrap();
    assert_eq!(epoch(&image, 0), LeaderEpoch(2));
    image.apply(&started(2, 1)).unwrap();
    assert_eq!(epoch(&image, 0), LeaderEpoch(2), "another host's start is none of its business");
    let own: Vec<_> = image.partitions_of(HOST).collect();
    let placement = Placement { host: HOST, core: CoreId(3), directory: DirectoryId(9) };
    assert_eq!(own, [(at(10, 0), PartitionImage { leader_epoch: LeaderEpoch(2), placement: Some(placement) })]);
}

#[test]
fn t17_a_topic_created_again_is_another_topic() {
    let mut image = image(&[started(1, 1), created(10, "a", 1), placed(10, 0, 1, 0)]);
    assert_eq!(refused(&image, &created(11, "a", 1)), ApplyError::TopicExists { name: "a".into() });
    assert_eq!(refused(&image, &created(10, "b", 1)), ApplyError::TopicIdTaken { id: TopicId(10) });
    image.apply(&MetadataRecord::TopicDeleted { id: TopicId(10) }).unwrap();
    assert!(image.topic_named("a").is_none() && image.topic(TopicId(10)).is_none());
    assert_eq!(image.partitions_of(HOST).count(), 0);
    image.apply(&created(11, "a", 1)).unwrap();
    assert_eq!(image.topic_named("a").unwrap().id, TopicId(11));
    assert!(image.partition(at(10, 0)).is_none());
}

#[test]
fn records_that_do_not_fit_are_refused_whole() {
    let image = image(&[started(1, 5), created(10, "a", 2)]);
    let stale = ApplyError::StaleBrokerEpoch { host: HOST, given: BrokerEpoch(5), known: BrokerEpoch(5) };
    assert_eq!(refused(&image, &started(1, 5)), stale);
    let last = ApplyError::LastBrokerEpoch { host: HOST, given: BrokerEpoch(i64::MAX) };
    assert_eq!(refused(&image, &started(1, i64::MAX)), last, "each start has a number of its own");
    let unknown = ApplyError::UnknownTopic { id: TopicId(11) };
    assert_eq!(refused(&image, &placed(11, 0, 1, 0)), unknown);
    assert_eq!(refused(&image, &MetadataRecord::TopicDeleted { id: TopicId(11) }), unknown);
    let no_partition = ApplyError::UnknownPartition { topic: TopicId(10), index: PartitionIndex(2), count: 2 };
    assert_eq!(refused(&image, &placed(10, 2, 1, 0)), no_partition);
    assert_eq!(refused(&image, &placed(10, 0, 7, 0)), ApplyError::UnknownHost { host: HostId(7) });
    assert_eq!(refused(&image, &created(12, "b", 0)), ApplyError::Partitions { given: 0 });
    assert_eq!(refused(&image, &created(12, "b", u32::MAX)), ApplyError::Partitions { given: u32::MAX });
    let bad = MetadataRecord::TopicCreated {
        id: TopicId(12),
        name: "b".into(),
        partitions: 1,
        configs: vec![("segment.byte".into(), "1".into())],
    };
    assert!(matches!(refused(&image, &bad), ApplyError::Config(ConfigError::Unknown { .. })));
}

#[test]
fn a_leader_epoch_never_wraps() {
    let mut image = image(&[started(1, 1), created(10, "a", 1), placed(10, 0, 1, 0)]);
    image.topics.get_mut(&TopicId(10)).unwrap().partitions[0].leader_epoch = LeaderEpoch(i32::MAX);
    assert_eq!(refused(&image, &started(1, 2)), ApplyError::EpochExhausted { partition: at(10, 0) });
    assert_eq!(refused(&image, &placed(10, 0, 1, 1)), ApplyError::EpochExhausted { partition: at(10, 0) });
}

#[test]
fn settings_change_and_return_to_their_defaults() {
    let mut image = image(&[created(10, "a", 1)]);
    let change = |name: &str, value: Option<&str>| MetadataRecord::TopicConfigChanged {
        id: TopicId(10),
        name: name.into(),
        value: value.map(str::to_owned),
    };
    image.apply(&change("durability", Some("written"))).unwrap();
    assert_eq!(image.topic(TopicId(10)).unwrap().config.durability, DurabilityClass::Written);
    let contradiction = refused(&image, &change("flush.ms", Some("5")));
    assert!(matches!(contradiction, ApplyError::Config(ConfigError::FlushUnderWritten { .. })));
    assert!(matches!(refused(&image, &change("durabilit", None)), ApplyError::Config(ConfigError::Unknown { .. })));
    image.apply(&change("durability", None)).unwrap();
    assert_eq!(image.topic(TopicId(10)).unwrap().config, TopicConfig::default());
    assert!(image.topic(TopicId(10)).unwrap().configs.is_empty());
    let long = "9".repeat(TEXT_BYTES_MAX + 1);
    assert_eq!(refused(&image, &change("segment.ms", Some(&long))), ApplyError::TooManyConfigs);
}

#[test]
fn producer_ids_are_taken_once() {
    let mut image = image(&[started(1, 1)]);
    let taken = |host: u32, next: i64| MetadataRecord::ProducerIdsTaken { host: HostId(host), next: ProducerId(next) };
    assert_eq!(image.producer_ids_next(), ProducerId(0));
    assert_eq!(refused(&image, &taken(2, 1000)), ApplyError::UnknownHost { host: HostId(2) });
    image.apply(&taken(1, 1000)).unwrap();
    assert_eq!(image.producer_ids_next(), ProducerId(1000));
    for given in [-1, 0, 999, 1000] {
        let again = ApplyError::ProducerIdsTaken { given: ProducerId(given), known: ProducerId(1000) };
        assert_eq!(refused(&image, &taken(1, given)), again);
    }
    image.apply(&taken(1, 1001)).unwrap();
}

#[test]
fn a_name_that_differs_in_dots_alone_is_refused() {
    let image = image(&[created(10, "eu.orders", 1)]);
    let collides = ApplyError::NameCollides { name: "eu_orders".into(), other: "eu.orders".into() };
    assert_eq!(refused(&image, &created(11, "eu_orders", 1)), collides);
    assert!(image.topic_named("eu_orders").is_none());
    let name = refused(&image, &created(11, "../etc", 1));
    assert_eq!(name.code(), ErrorCode::InvalidTopicException);
}

fn any_record() -> impl Strategy<Value = MetadataRecord> {
    let topic = 0_u128..4;
    let config = prop_oneof![Just("durability"), Just("segment.ms"), Just("flush.ms"), Just("nonsense")];
    let value = prop_oneof![Just("written"), Just("device"), Just("1"), Just("5000")];
    prop_oneof![
        (0_u32..3, 0_i64..20).prop_map(|(host, epoch)| started(host, epoch)),
        (topic.clone(), 0_u128..4, 0_u32..4).prop_map(|(id, name, partitions)| created(id, &format!("t{name}"), partitions)),
        (topic.clone(), 0_u32..4, 0_u32..3, 0_u16..2).prop_map(|(topic, index, host, core)| placed(topic, index, host, core)),
        topic.clone().prop_map(|id| MetadataRecord::TopicDeleted { id: TopicId(id) }),
        (topic, config, prop::option::of(value)).prop_map(|(id, name, value)| MetadataRecord::TopicConfigChanged {
            id: TopicId(id),
            name: name.into(),
            value: value.map(str::to_owned),
        }),
        (0_u32..3, -2_i64..9)
            .prop_map(|(host, next)| MetadataRecord::ProducerIdsTaken { host: HostId(host), next: ProducerId(next) }),
    ]
}

proptest! {
    /// Applied or refused, never half; the same records (through their byte form) give the same image; names and ids agree; no
    /// leader epoch of a living topic goes back.
    #[test]
    fn any_history_gives_one_image(records in prop::collection::vec(any_record(), 0..60)) {
        let mut image = Image::new();
        let mut again = Image::new();
        for record in &records {
            let before = image.clone();
            let allowed = image.check(record);
            prop_assert_eq!(image.apply(record), allowed.clone());
            match allowed {
                Ok(()) => again.apply(&MetadataRecord::decode(&record.encode()).unwrap()).unwrap(),
                Err(_) => prop_assert_eq!(&image, &before),
            }
            for topic in before.topics() {
                for (old, new) in topic.partitions.iter().zip(image.topic(topic.id).map_or(&[][..], |new| &new.partitions)) {
                    prop_assert!(new.leader_epoch >= old.leader_epoch || image.topic(topic.id).unwrap().name != topic.name);
                }
            }
            prop_assert_eq!(image.topics().count(), image.topic_count());
            for topic in image.topics() {
                prop_assert_eq!(image.topic_named(&topic.name).unwrap().id, topic.id);
            }
        }
        prop_assert_eq!(image, again);
    }
}
