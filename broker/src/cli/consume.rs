//! `corelane consume`: from the start, the end, an offset or a time, to what is there now or for ever.

use std::collections::BTreeMap;
use std::io::{BufWriter, Stdout, Write, stdout};
use std::pin::pin;
use std::str::FromStr;
use std::time::SystemTime;

use clap::{Args, ValueEnum};
use corelane_client::{Client, ConsumedRecord, Consumer, ConsumerConfig, Position};
use futures_lite::future::poll_once;
use protocol::ids::{Offset, PartitionIndex, Timestamp};
use serde_json::{Map, Value, json};

use super::output::hex;
use super::topic::connect;
use super::{Failure, ServerArgs};

/// Arguments of `consume`.
#[derive(Args, Debug)]
pub struct ConsumeArgs {
    /// The topic
    topic: String,
    /// Only this partition; repeatable [default: all]
    #[arg(long, value_name = "N")]
    partition: Vec<u32>,
    /// Where to begin: start, end, an offset, a time like 2026-01-31T12:00:00Z, or a time ago like 10m
    #[arg(long, value_name = "PLACE", default_value = "start", allow_hyphen_values = true)]
    from: Place,
    /// Stop after this many records
    #[arg(long, short = 'n', value_name = "N")]
    count: Option<u64>,
    /// Go on when all that was there at the start is read
    #[arg(long, short = 'F')]
    follow: bool,
    /// What is printed of a record
    #[arg(long, value_enum, default_value = "value")]
    format: Format,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The value and a line end
    Value,
    /// Key, tab, value and a line end
    KeyValue,
    /// A JSON object a line, with offset, timestamp, key and headers; bytes that aren't UTF-8 come as hexadecimal in key_hex, value_hex
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Start,
    End,
    Offset(i64),
    Time(i64),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        if let Ok(number) = text.parse::<i64>() {
            if number < 0 {
                return Err(format!("{number} is below zero, offsets begin at 0"));
            }
            return Ok(Place::Offset(number));
        }
        match text {
            "start" => return Ok(Place::Start),
            "end" => return Ok(Place::End),
            _ => {}
        }
        let time = humantime::parse_rfc3339_weak(text).ok().or_else(|| {
            let ago = humantime::parse_duration(text).ok()?;
            wall_clock().checked_sub(ago)
        });
        let since_epoch = time.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
        match since_epoch.and_then(|duration| i64::try_from(duration.as_millis()).ok()) {
            Some(milliseconds) => Ok(Place::Time(milliseconds)),
            None => Err("allowed are start, end, an offset, a time like 2026-01-31T12:00:00Z, or a time ago like 10m".into()),
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "a time ago is meant from now")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}

/// Runs `consume`.
pub async fn run(args: ConsumeArgs) -> Result<(), Failure> {
    let client = connect(&args.server).await?;
    let topic = client.describe_topic(&args.topic).await?;
    let partitions = chosen(&args, topic.partitions.len())?;
    let mut ends = ends(&client, &args, &partitions).await?;
    let begins = begins(&client, &args, &partitions).await?;
    let mut consumer = Consumer::new(&client, ConsumerConfig::default())?;
    let mut places = Vec::new();
    for (partition, begin) in &begins {
        if !args.follow && ends.get(partition).is_none_or(|end| begin >= end) {
            ends.remove(partition);
        } else {
            places.push((PartitionIndex(*partition), Position::Offset(Offset(*begin))));
        }
    }
    consumer.assign(&args.topic, &places).await?;
    let mut out = BufWriter::with_capacity(1 << 16, stdout());
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 && (args.follow || !ends.is_empty()) {
        let record = next(&mut consumer, &mut out).await?;
        let partition = record.partition.0;
        if !args.follow {
            let Some(&end) = ends.get(&partition) else { continue };
            if record.offset.0 + 1 >= end {
                ends.remove(&partition);
            }
            if record.offset.0 >= end {
                continue;
            }
        }
        write_record(&mut out, &args, &record)?;
        left -= 1;
    }
    out.flush()?;
    Ok(())
}

fn chosen(args: &ConsumeArgs, count: usize) -> Result<Vec<u32>, Failure> {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    if args.partition.is_empty() {
        return Ok((0..count).collect());
    }
    match args.partition.iter().find(|partition| **partition >= count) {
        Some(partition) => {
            Err(Failure::failed(format!("topic {} has no partition {partition}; it has {count}, numbered from 0", args.topic)))
        }
        None => Ok(args.partition.clone()),
    }
}

/// Where each partition ends now; nothing matters but what was there at the start, unless it follows.
async fn ends(client: &Client, args: &ConsumeArgs, partitions: &[u32]) -> Result<BTreeMap<u32, i64>, Failure> {
    listed(client, args, partitions, Position::End).await
}

async fn begins(client: &Client, args: &ConsumeArgs, partitions: &[u32]) -> Result<BTreeMap<u32, i64>, Failure> {
    let position = match args.from {
        Place::Start => Position::Start,
        Place::End => Position::End,
        Place::Time(milliseconds) => Position::Time(Timestamp(milliseconds)),
        Place::Offset(offset) => return Ok(partitions.iter().map(|partition| (*partition, offset)).collect()),
    };
    let mut begins = listed(client, args, partitions, position).await?;
    if begins.len() < partitions.len() {
        // Nothing is as late as the time asked for: from the end, then.
        for (partition, end) in ends(client, args, partitions).await? {
            begins.entry(partition).or_insert(end);
        }
    }
    Ok(begins)
}

async fn listed(
    client: &Client,
    args: &ConsumeArgs,
    partitions: &[u32],
    position: Position,
) -> Result<BTreeMap<u32, i64>, Failure> {
    let places: Vec<_> = partitions.iter().map(|partition| (PartitionIndex(*partition), position)).collect();
    let listed = client.list_offsets(&args.topic, &places).await?;
    Ok(listed.into_iter().filter_map(|listed| Some((listed.partition.0, listed.offset?.0))).collect())
}

/// The next record; what is written goes out before a wait.
async fn next(consumer: &mut Consumer, out: &mut BufWriter<Stdout>) -> Result<ConsumedRecord, Failure> {
    let mut record = pin!(consumer.next());
    let ready = poll_once(record.as_mut()).await;
    match ready {
        Some(record) => Ok(record?),
        None => {
            out.flush()?;
            Ok(record.await?)
        }
    }
}

fn write_record(out: &mut impl Write, args: &ConsumeArgs, record: &ConsumedRecord) -> Result<(), Failure> {
    let format = if args.server.json { Format::Json } else { args.format };
    if format == Format::Json {
        writeln!(out, "{}", record_json(record))?;
        return Ok(());
    }
    if format == Format::KeyValue {
        out.write_all(record.key.as_deref().unwrap_or_default())?;
        out.write_all(b"\t")?;
    }
    out.write_all(record.value.as_deref().unwrap_or_default())?;
    out.write_all(b"\n")?;
    Ok(())
}

fn record_json(record: &ConsumedRecord) -> Value {
    let mut fields = Map::new();
    fields.insert("partition".into(), record.partition.0.into());
    fields.insert("offset".into(), record.offset.0.into());
    fields.insert("timestamp".into(), record.timestamp.0.into());
    insert_bytes(&mut fields, "key", record.key.as_deref());
    insert_bytes(&mut fields, "value", record.value.as_deref());
    let headers: Vec<Value> = record
        .headers
        .iter()
        .map(|header| {
            let mut fields = Map::from_iter([("name".to_owned(), json!(header.key))]);
            insert_bytes(&mut fields, "value", header.value.as_deref());
            Value::Object(fields)
        })
        .collect();
    if !headers.is_empty() {
        fields.insert("headers".into(), headers.into());
    }
    Value::Object(fields)
}

fn insert_bytes(fields: &mut Map<String, Value>, name: &str, bytes: Option<&[u8]>) {
    match bytes.map(std::str::from_utf8) {
        None => fields.insert(name.into(), Value::Null),
        Some(Ok(text)) => fields.insert(name.into(), text.into()),
        Some(Err(_)) => fields.insert(format!("{name}_hex"), hex(bytes.unwrap_or_default()).into()),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_people_write_them() {
        assert_eq!("start".parse(), Ok(Place::Start));
        assert_eq!("end".parse(), Ok(Place::End));
        assert_eq!("17".parse(), Ok(Place::Offset(17)));
        assert_eq!("1970-01-01T00:00:01Z".parse(), Ok(Place::Time(1000)));
        assert!(matches!("10m".parse(), Ok(Place::Time(_))));
        assert!("-1".parse::<Place>().unwrap_err().contains("below zero"));
        assert!("yesterday".parse::<Place>().unwrap_err().contains("allowed are"));
    }
}
