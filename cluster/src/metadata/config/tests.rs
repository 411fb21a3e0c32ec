use proptest::prelude::*;

use super::*;

fn parse(settings: &[(&str, &str)]) -> Result<TopicConfig, ConfigError> {
    TopicConfig::parse(settings.iter().copied())
}

#[test]
fn the_table_is_sorted_and_its_defaults_are_the_defaults() {
    assert!(TOPIC_CONFIGS.is_sorted_by(|a, b| a.name < b.name));
    assert_eq!(parse(&[]), Ok(TopicConfig::default()));
    for key in TOPIC_CONFIGS {
        let only = parse(&[(key.name, key.default)]).unwrap();
        // Giving Kafka's "never" for the flushes chooses its class.
        let flush = key.name.starts_with("flush.");
        let expected = if flush { DurabilityClass::Written } else { DurabilityClass::Device };
        assert_eq!(only, TopicConfig { durability: expected, ..TopicConfig::default() }, "{}", key.name);
        assert!(!key.description.is_empty());
    }
}

#[test]
fn each_setting_reaches_its_field() {
    let config = parse(&[
        ("durability", "written"),
        ("segment.bytes", "1048576"),
        ("segment.ms", "5"),
        ("max.message.bytes", "2000"),
        ("message.timestamp.type", "LogAppendTime"),
        ("min.insync.replicas", "2"),
        ("compression.type", "zstd"),
        ("index.interval.bytes", "8192"),
        ("retention.bytes", "123"),
        ("retention.ms", "-1"),
    ]);
    let expected = TopicConfig {
        durability: DurabilityClass::Written,
        segment_bytes: 1 << 20,
        segment_ms: 5,
        batch_bytes_max: 2000,
        timestamp_source: TimestampSource::Leader,
        min_in_sync_replicas: 2,
        compression: Some(Codec::Zstd),
        index_interval_bytes: 8192,
        retention_bytes: Some(123),
        retention_ms: None,
    };
    assert_eq!(config, Ok(expected));
}

#[test]
fn flush_settings_choose_a_class_and_are_never_ignored() {
    let class = |settings: &[(&str, &str)]| parse(settings).map(|config| config.durability);
    let never = "9223372036854775807";
    assert_eq!(class(&[("flush.messages", "1")]), Ok(DurabilityClass::Device));
    assert_eq!(class(&[("flush.ms", "1000")]), Ok(DurabilityClass::Device));
    assert_eq!(class(&[("flush.messages", never)]), Ok(DurabilityClass::Written));
    assert_eq!(class(&[("flush.messages", never), ("flush.ms", never)]), Ok(DurabilityClass::Written));
    assert_eq!(class(&[("flush.messages", never), ("flush.ms", "0")]), Ok(DurabilityClass::Device));
    assert_eq!(class(&[("flush.messages", never), ("durability", "device")]), Ok(DurabilityClass::Device));
    assert_eq!(class(&[("flush.messages", never), ("durability", "written")]), Ok(DurabilityClass::Written));
    let contradiction = class(&[("durability", "written"), ("flush.messages", "1")]);
    assert_eq!(contradiction, Err(ConfigError::FlushUnderWritten { name: "flush.messages", value: 1 }));
}

#[test]
fn an_unknown_name_is_refused_with_the_likely_one() {
    let likely = |name: &str| match parse(&[(name, "1")]) {
        Err(ConfigError::Unknown { likely, .. }) => likely,
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!(likely("segment.byte"), Some("segment.bytes"));
    assert_eq!(likely("segment_ms"), Some("segment.ms"));
    assert_eq!(likely("Min.InSync.Replicas"), Some("min.insync.replicas"));
    assert_eq!(likely("durabilty"), Some("durability"));
    assert_eq!(likely("cleanup.policy"), None);
    assert_eq!(likely(""), None);
    let message = parse(&[("segment.byte", "1")]).unwrap_err().to_string();
    assert_eq!(message, "segment.byte is not a setting of a topic (did you mean segment.bytes?)");
}

#[test]
fn values_outside_the_table_are_refused() {
    let cases = [
        ("segment.bytes", "1048575"),
        ("segment.bytes", "2147483648"),
        ("segment.bytes", "1e9"),
        ("segment.bytes", "-1"),
        ("segment.bytes", ""),
        ("segment.bytes", "99999999999999999999"),
        ("max.message.bytes", "8388609"),
        ("min.insync.replicas", "0"),
        ("durability", "Device"),
        ("compression.type", "none"),
        ("compression.type", "brotli"),
        ("flush.messages", "0"),
    ];
    for (name, value) in cases {
        let error = parse(&[(name, value)]).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with(&format!("{name}={value}")), "{text}");
    }
    assert_eq!(parse(&[("segment.ms", "1"), ("segment.ms", "1")]), Err(ConfigError::Twice { name: "segment.ms" }));
}

#[test]
fn a_topic_can_demand_a_codec() {
    let only = parse(&[("compression.type", "uncompressed")]).unwrap().compression;
    assert_eq!(only, Some(Codec::None));
    assert_eq!(parse(&[("compression.type", "snappy")]).unwrap().produce_rules().codec, Some(Codec::Snappy));
    assert_eq!(parse(&[]).unwrap().produce_rules(), ProduceRules::default());
}

proptest! {
    #[test]
    fn any_text_is_taken_or_refused(name in "\\PC{0,300}", value in "\\PC{0,300}") {
        if let Err(error) = parse(&[(&name, &value)]) {
            prop_assert!(error.to_string().len() < 1000);
        }
    }

    #[test]
    fn numbers_are_taken_exactly_in_their_range(value in any::<i64>(), pick in any::<prop::sample::Index>()) {
        let numbers: Vec<_> = TOPIC_CONFIGS.iter().filter(|key| matches!(key.config_type, ConfigType::Number { .. })).collect();
        let key = pick.get(&numbers);
        let ConfigType::Number { min, max } = key.config_type else { unreachable!() };
        prop_assert_eq!(parse(&[(key.name, &value.to_string())]).is_ok(), (min..=max).contains(&value));
    }
}
