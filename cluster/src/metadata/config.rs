//! Settings of a topic: the table of what may be set, and what a set of them amounts to.
//!
//! Checked once, when a topic is created or altered; an image holds only settings that passed. An unknown name is refused with the
//! likely one, never ignored.
//!
//! `flush.messages` and `flush.ms` ask for a flush at least so often. Corelane flushes for each acknowledgement or doesn't promise it,
//! so they choose the class: any finite value is `device`, which is at least what was asked; Kafka's "never" (2^63 - 1)
//! in all that are given is `written`. A finite value beside `durability=written` contradicts it and is refused.

use protocol::batch::ProduceRules;
use protocol::compression::Codec;
use protocol::error::{ErrorCode, WireError};
use protocol::ids::DurabilityClass;
use protocol::limits::{BATCH_BYTES_CEILING, BATCH_BYTES_DEFAULT, INDEX_INTERVAL_BYTES, SEGMENT_BYTES_DEFAULT};
use protocol::limits::{RETENTION_MS_DEFAULT, SEGMENT_BYTES_MIN, SEGMENT_MS_DEFAULT};

#[cfg(test)]
mod tests;

/// Value of `flush.messages` and `flush.ms` that asks for no flush.
const NEVER: i64 = i64::MAX;
/// Value of `retention.bytes` and `retention.ms` that keeps everything.
const NO_RETENTION: i64 = -1;
/// Segments end below 2 GiB, so that a position fits the index's 32 bits.
const SEGMENT_BYTES_CEILING: i64 = i32::MAX as i64;
/// The header of a batch: no topic may refuse all batches.
const BATCH_BYTES_MIN: i64 = 61;

/// What values a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigType {
    /// A whole number in this range.
    Number {
        /// The smallest.
        min: i64,
        /// The largest.
        max: i64,
    },
    /// One of these words.
    Word(&'static [&'static str]),
}

/// A setting that a topic may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigKey {
    /// Its name.
    pub name: &'static str,
    /// What it takes.
    pub config_type: ConfigType,
    /// The value when it isn't set, as text.
    pub default: &'static str,
    /// What it does, in one sentence.
    pub description: &'static str,
}

const fn number(name: &'static str, min: i64, max: i64, default: &'static str, description: &'static str) -> ConfigKey {
    ConfigKey { name, config_type: ConfigType::Number { min, max }, default, description }
}

const fn word(name: &'static str, words: &'static [&'static str], description: &'static str) -> ConfigKey {
    ConfigKey { name, config_type: ConfigType::Word(words), default: words[0], description }
}

const COMPRESSION: &str = "compression.type";
const DURABILITY: &str = "durability";
const FLUSH_MESSAGES: &str = "flush.messages";
const FLUSH_MS: &str = "flush.ms";
const INDEX_INTERVAL: &str = "index.interval.bytes";
const BATCH_BYTES: &str = "max.message.bytes";
const TIMESTAMP_TYPE: &str = "message.timestamp.type";
const MIN_IN_SYNC: &str = "min.insync.replicas";
const RETENTION_BYTES: &str = "retention.bytes";
const RETENTION_MS: &str = "retention.ms";
const SEGMENT_BYTES: &str = "segment.bytes";
const SEGMENT_MS: &str = "segment.ms";

/// Every setting of a topic, by name.
pub const TOPIC_CONFIGS: &[ConfigKey] = &[
    word(
        COMPRESSION,
        &["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"],
        "The codec that batches must have; `producer` takes any. Batches are never compressed anew.",
    ),
    word(DURABILITY, &["device", "written"], "What an acknowledgement means: flushed to stable storage, or written."),
    number(FLUSH_MESSAGES, 1, NEVER, "9223372036854775807", "Any number below 2^63 - 1 chooses durability=device."),
    number(FLUSH_MS, 0, NEVER, "9223372036854775807", "Any number below 2^63 - 1 chooses durability=device."),
    number(INDEX_INTERVAL, 512, 1 << 30, "4096", "Log bytes between two entries of the offset index."),
    number(BATCH_BYTES, BATCH_BYTES_MIN, BATCH_BYTES_CEILING as i64, "1048588", "Largest record batch, as compressed."),
    word(TIMESTAMP_TYPE, &["CreateTime", "LogAppendTime"], "Who sets the timestamps: the producer or the leader."),
    number(MIN_IN_SYNC, 1, 1024, "1", "In-sync replicas that acks=all needs."),
    number(
        RETENTION_BYTES,
        NO_RETENTION,
        i64::MAX,
        "-1",
        "Size of a partition above which its oldest segments are deleted; -1 for none.",
    ),
    number(RETENTION_MS, NO_RETENTION, i64::MAX, "604800000", "Age from which on segments are deleted; -1 for none."),
    number(SEGMENT_BYTES, SEGMENT_BYTES_MIN as i64, SEGMENT_BYTES_CEILING, "1073741824", "Size at which a segment rolls."),
    number(SEGMENT_MS, 1, i64::MAX, "604800000", "Age at which a segment rolls."),
];

/// Who sets a batch's timestamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimestampSource {
    /// The producer (`CreateTime`).
    #[default]
    Producer,
    /// The leader, when it appends (`LogAppendTime`).
    Leader,
}

/// The effective settings of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicConfig {
    /// `durability`, or what the flush settings ask for.
    pub durability: DurabilityClass,
    /// `segment.bytes`.
    pub segment_bytes: u64,
    /// `segment.ms`.
    pub segment_ms: u64,
    /// `max.message.bytes`: of a batch, as compressed.
    pub batch_bytes_max: usize,
    /// `message.timestamp.type`.
    pub timestamp_source: TimestampSource,
    /// `min.insync.replicas`.
    pub min_in_sync_replicas: u32,
    /// `compression.type`: the only codec that batches may have; `None` takes any.
    pub compression: Option<Codec>,
    /// `index.interval.bytes`.
    pub index_interval_bytes: u64,
    /// `retention.bytes`: of one partition; `None` keeps everything.
    pub retention_bytes: Option<u64>,
    /// `retention.ms`; `None` keeps everything.
    pub retention_ms: Option<u64>,
}

impl Default for TopicConfig {
    fn default() -> TopicConfig {
        TopicConfig {
            durability: DurabilityClass::Device,
            segment_bytes: SEGMENT_BYTES_DEFAULT,
            segment_ms: SEGMENT_MS_DEFAULT,
            batch_bytes_max: BATCH_BYTES_DEFAULT,
            timestamp_source: TimestampSource::Producer,
            min_in_sync_replicas: 1,
            compression: None,
            index_interval_bytes: INDEX_INTERVAL_BYTES,
            retention_bytes: None,
            retention_ms: Some(RETENTION_MS_DEFAULT),
        }
    }
}

/// Why settings are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No topic has such a setting.
    #[error("{name} is not a setting of a topic{}", suggestion(*.likely))]
    Unknown {
        /// The name given.
        name: String,
        /// The setting that was probably meant.
        likely: Option<&'static str>,
    },
    /// The value isn't a whole number.
    #[error("{name}={value}: a whole number from {min} to {max} is needed")]
    NotANumber {
        /// The setting.
        name: &'static str,
        /// The value given.
        value: String,
        /// The smallest allowed.
        min: i64,
        /// The largest allowed.
        max: i64,
    },
    /// The value is outside the range.
    #[error("{name}={value}: must be from {min} to {max}")]
    OutOfRange {
        /// The setting.
        name: &'static str,
        /// The value given.
        value: i64,
        /// The smallest allowed.
        min: i64,
        /// The largest allowed.
        max: i64,
    },
    /// The value isn't one of the words.
    #[error("{name}={value}: must be one of {}", allowed.join(", "))]
    NotAWord {
        /// The setting.
        name: &'static str,
        /// The value given.
        value: String,
        /// The words allowed.
        allowed: &'static [&'static str],
    },
    /// A setting is given twice.
    #[error("{name} is given twice")]
    Twice {
        /// The setting.
        name: &'static str,
    },
    /// A flush is asked for and excluded at once.
    #[error("durability=written excludes {name}={value}, which asks for flushes: set durability=device, or leave {name} out")]
    FlushUnderWritten {
        /// The flush setting.
        name: &'static str,
        /// Its value.
        value: i64,
    },
}

impl WireError for ConfigError {
    fn code(&self) -> ErrorCode {
        ErrorCode::InvalidConfig
    }
}

fn suggestion(likely: Option<&'static str>) -> String {
    likely.map(|name| format!(" (did you mean {name}?)")).unwrap_or_default()
}

impl TopicConfig {
    /// What these settings amount to; those not given have their defaults.
    ///
    /// # Errors
    /// A name is unknown or given twice, a value is not allowed, or two settings contradict each other.
    pub fn parse<'a>(settings: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<TopicConfig, ConfigError> {
        let mut config = TopicConfig::default();
        let mut given: Vec<&'static str> = Vec::new();
        let mut durability = None;
        let mut flushes: Vec<(&'static str, i64)> = Vec::new();
        for (name, value) in settings {
            let key = find(name)?;
            if given.contains(&key.name) {
                return Err(ConfigError::Twice { name: key.name });
            }
            given.push(key.name);
            match check(key, value)? {
                Value::Number(number) => match key.name {
                    FLUSH_MESSAGES | FLUSH_MS => flushes.push((key.name, number)),
                    _ => config.set_number(key.name, number),
                },
                Value::Word(0) if key.name == DURABILITY => durability = Some(DurabilityClass::Device),
                Value::Word(_) if key.name == DURABILITY => durability = Some(DurabilityClass::Written),
                Value::Word(index) => config.set_word(key.name, index),
            }
        }
        config.durability = durability_class(durability, &flushes)?;
        Ok(config)
    }

    /// What a broker checks of batches for this topic.
    #[must_use]
    pub fn produce_rules(&self) -> ProduceRules {
        ProduceRules { batch_bytes_max: self.batch_bytes_max, codec: self.compression, transactional: false }
    }

    fn set_number(&mut self, name: &'static str, number: i64) {
        if let Some(retention) = self.retention_mut(name) {
            *retention = u64::try_from(number).ok();
            return;
        }
        let count = u64::try_from(number).expect("ranges start at 0 or above");
        match name {
            INDEX_INTERVAL => self.index_interval_bytes = count,
            BATCH_BYTES => self.batch_bytes_max = usize::try_from(count).expect("below the ceiling of a batch"),
            MIN_IN_SYNC => self.min_in_sync_replicas = u32::try_from(count).expect("at most 1024"),
            SEGMENT_BYTES => self.segment_bytes = count,
            SEGMENT_MS => self.segment_ms = count,
            _ => unreachable!("{name} is a number in the table"),
        }
    }

    /// A setting for which -1 means that there is none.
    fn retention_mut(&mut self, name: &'static str) -> Option<&mut Option<u64>> {
        match name {
            RETENTION_BYTES => Some(&mut self.retention_bytes),
            RETENTION_MS => Some(&mut self.retention_ms),
            _ => None,
        }
    }

    fn set_word(&mut self, name: &'static str, index: u8) {
        match name {
            // The words are `producer`, then the codecs by number.
            COMPRESSION => {
                self.compression = index.checked_sub(1).and_then(Codec::from_number);
            }
            TIMESTAMP_TYPE if index == 0 => self.timestamp_source = TimestampSource::Producer,
            TIMESTAMP_TYPE => self.timestamp_source = TimestampSource::Leader,
            _ => unreachable!("{name} is a word in the table"),
        }
    }
}

/// The class that the settings choose.
fn durability_class(explicit: Option<DurabilityClass>, flushes: &[(&'static str, i64)]) -> Result<DurabilityClass, ConfigError> {
    let finite = flushes.iter().find(|(_, value)| *value != NEVER);
    match (explicit, finite) {
        (Some(DurabilityClass::Written), Some(&(name, value))) => Err(ConfigError::FlushUnderWritten { name, value }),
        (Some(class), _) => Ok(class),
        (None, Some(_)) => Ok(DurabilityClass::Device),
        (None, None) if flushes.is_empty() => Ok(DurabilityClass::default()),
        (None, None) => Ok(DurabilityClass::Written),
    }
}

enum Value {
    Number(i64),
    /// Index of the word in the table.
    Word(u8),
}

fn check(key: &'static ConfigKey, value: &str) -> Result<Value, ConfigError> {
    let name = key.name;
    match key.config_type {
        ConfigType::Number { min, max } => {
            let number: i64 = value.parse().map_err(|_| ConfigError::NotANumber { name, value: shortened(value), min, max })?;
            if (min..=max).contains(&number) {
                Ok(Value::Number(number))
            } else {
                Err(ConfigError::OutOfRange { name, value: number, min, max })
            }
        }
        ConfigType::Word(allowed) => {
            let index = allowed.iter().position(|word| *word == value);
            let index = index.ok_or_else(|| ConfigError::NotAWord { name, value: shortened(value), allowed })?;
            Ok(Value::Word(u8::try_from(index).expect("few words")))
        }
    }
}

pub(super) fn find(name: &str) -> Result<&'static ConfigKey, ConfigError> {
    let known = TOPIC_CONFIGS.iter().find(|key| key.name == name);
    known.ok_or_else(|| ConfigError::Unknown { name: shortened(name), likely: likely(name) })
}

/// What goes into an error of text that came from outside.
fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

/// The setting whose name is nearest, if it is near at all.
fn likely(name: &str) -> Option<&'static str> {
    let name: Vec<char> = name.chars().take(64).flat_map(char::to_lowercase).map(dotted).collect();
    let distances = TOPIC_CONFIGS.iter().map(|key| (distance(&name, key.name), key.name));
    distances.min().filter(|(distance, nearest)| *distance <= nearest.len() / 3).map(|(_, nearest)| nearest)
}

fn dotted(letter: char) -> char {
    if matches!(letter, '_' | '-') { '.' } else { letter }
}

/// Insertions, deletions and replacements that lead from one to the other.
fn distance(from: &[char], to: &str) -> usize {
    let mut row: Vec<usize> = (0..=from.len()).collect();
    for (line, letter) in to.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for column in 1..row.len() {
            let replaced = diagonal + usize::from(from[column - 1] != letter);
            diagonal = row[column];
            row[column] = replaced.min(row[column - 1] + 1).min(diagonal + 1);
        }
    }
    row[from.len()]
}
