//! Sizes, durations and words as people write them, in flags and in the file.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Deserializer, Visitor};

/// A size: `1GiB`, `64MiB`, `500MB`, or a number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeText(pub u64);

/// A duration: `500ms`, `30s`, `10m`, `1h 30m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurationText(pub Duration);

/// How long a core polls its ring before it sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spin {
    /// It sleeps at once.
    #[default]
    Off,
    /// It polls for so long.
    For(Duration),
    /// It never sleeps.
    Always,
}

/// Processors, by number: `0,2` or `0-3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(pub Vec<usize>);

/// Processors are numbered below this.
const CPUS_MAX: usize = 4096;

impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<CpuList, String> {
        let refused =
            || format!("{text:?} is not a list of processors; write it like 0, 0,2 or 0-3, each once and below {CPUS_MAX}");
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.trim().parse::<usize>().ok().filter(|cpu| *cpu < CPUS_MAX);
            let (Some(first), Some(last)) = (number(first), number(last)) else { return Err(refused()) };
            if first > last || (first..=last).any(|cpu| cpus.contains(&cpu)) {
                return Err(refused());
            }
            cpus.extend(first..=last);
        }
        Ok(CpuList(cpus))
    }
}

impl FromStr for SizeText {
    type Err = String;

    fn from_str(text: &str) -> Result<SizeText, String> {
        text.parse::<bytesize::ByteSize>()
            .map(|size| SizeText(size.as_u64()))
            .map_err(|_| format!("{text:?} is not a size; write it like 64MiB, 1GiB or a number of bytes"))
    }
}

impl FromStr for DurationText {
    type Err = String;

    fn from_str(text: &str) -> Result<DurationText, String> {
        humantime::parse_duration(text)
            .map(DurationText)
            .map_err(|_| format!("{text:?} is not a duration; write it like 500ms, 30s, 10m or 1h"))
    }
}

impl FromStr for Spin {
    type Err = String;

    fn from_str(text: &str) -> Result<Spin, String> {
        match text {
            "off" => Ok(Spin::Off),
            "always" => Ok(Spin::Always),
            other => match humantime::parse_duration(other) {
                Ok(duration) if duration <= Duration::from_millis(1) => Ok(Spin::For(duration)),
                Ok(_) => Err(format!("spin {other:?} is too long; at most 1ms, or always")),
                Err(_) => Err(format!("spin is {other:?}; allowed are off, always, or a duration up to 1ms like 50us")),
            },
        }
    }
}

/// Reads a value that is written as text, and for sizes also as a number.
struct TextVisitor<T>(std::marker::PhantomData<T>, &'static str);

impl<T: FromStr<Err = String>> Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.1)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        number.to_string().parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        number.to_string().parse().map_err(E::custom)
    }
}

impl<'de> de::Deserialize<'de> for SizeText {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<SizeText, D::Error> {
        input.deserialize_any(TextVisitor(std::marker::PhantomData, "a size like \"1GiB\" or a number of bytes"))
    }
}

impl<'de> de::Deserialize<'de> for CpuList {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<CpuList, D::Error> {
        input.deserialize_any(TextVisitor(std::marker::PhantomData, "processors like \"0-3\" or one number"))
    }
}

impl<'de> de::Deserialize<'de> for DurationText {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<DurationText, D::Error> {
        input.deserialize_str(TextVisitor(std::marker::PhantomData, "a duration like \"30s\""))
    }
}

impl<'de> de::Deserialize<'de> for Spin {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Spin, D::Error> {
        input.deserialize_str(TextVisitor(std::marker::PhantomData, "\"off\", \"always\" or a duration like \"50us\""))
    }
}
