//! `corelane produce`: each line is a record.
//!
//! A thread reads the lines, so that a terminal or a slow pipe doesn't hold up what is under way; the channel between is
//! bounded. Records are counted by their delivery, and the first that fails ends it (what follows would be out of order).

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, stdin};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use corelane_client::{Acks, Delivery, DeliveryError, Producer, ProducerConfig, Record};
use protocol::compression::Codec;
use protocol::ids::PartitionIndex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::output::{print, size};
use super::topic::connect;
use super::{Failure, FailureKind, ServerArgs};
use crate::config::{DurationText, SizeText};

/// Longest line, in bytes.
const LINE_BYTES_MAX: usize = 1 << 20;
/// Lines are handed over in groups of about this many bytes.
const GROUP_BYTES: usize = 128 << 10;
/// One record in so many is timed, from its handing over to its delivery.
const TIMED_EVERY: u64 = 16;
/// So many are timed in one run; then what was seen must do.
const TIMED_RECORDS: usize = 1 << 20;
/// Groups between the reading thread and the producer.
const GROUPS_MAX: usize = 16;

/// Arguments of `produce`.
#[derive(Args, Debug)]
pub struct ProduceArgs {
    /// The topic
    topic: String,
    /// Read lines from this file [default: standard input]
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Split each line at the first SEPARATOR into key and value
    #[arg(long, value_name = "SEPARATOR")]
    key_separator: Option<String>,
    /// Send to this partition [default: by key, or in turn]
    #[arg(long, value_name = "N")]
    partition: Option<u32>,
    /// Which copies must hold a record before it counts as delivered
    #[arg(long, value_enum, default_value = "all")]
    acks: AcksArg,
    /// How long a batch waits for more records
    #[arg(long, value_name = "DURATION", default_value = "10ms")]
    linger: DurationText,
    /// How long a record is tried to be delivered, whatever is sent again for it
    #[arg(long, value_name = "DURATION", default_value = "120s")]
    delivery_timeout: DurationText,
    /// Size at which a batch is sent before its linger ends
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    batch_bytes: SizeText,
    /// Compression of batches
    #[arg(long, value_enum, default_value = "zstd")]
    compression: CodecArg,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum AcksArg {
    /// Every in-sync replica
    All,
    /// The leader
    #[value(name = "1")]
    Leader,
    /// None: records may be lost without a word
    #[value(name = "0")]
    None,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CodecArg {
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

/// Lines, without their ends; the first has this number.
struct Lines {
    first: u64,
    lines: Vec<Vec<u8>>,
}

#[derive(Default)]
struct Summary {
    sent: u64,
    delivered: u64,
    failed: u64,
    unknown: u64,
    bytes: u64,
    first_error: Option<String>,
    /// First and last offset, by partition.
    offsets: BTreeMap<u32, (i64, i64)>,
    /// From handing over to delivery, of some records, in microseconds.
    delays_us: Vec<u64>,
}

/// Runs `produce`.
pub async fn run(args: ProduceArgs) -> Result<(), Failure> {
    let lines = open(&args)?;
    let client = connect(&args.server).await?;
    // A topic that doesn't exist is said before anything is read.
    client.describe_topic(&args.topic).await?;
    let producer = Producer::new(&client, producer_config(&args)?)?;
    let began = now();
    let mut summary = Summary::default();
    let outcome = send_all(&args, &producer, lines, &mut summary).await;
    producer.close().await;
    let elapsed = began.elapsed();
    report(&args, &summary, elapsed)?;
    outcome?;
    match (summary.first_error, summary.unknown) {
        (None, _) => Ok(()),
        (Some(error), 0) => Err(Failure::failed(error)),
        (Some(error), _) => Err(Failure::new(FailureKind::Partial, error)),
    }
}

#[allow(clippy::disallowed_methods, reason = "a command line tool measures its own run")]
fn now() -> Instant {
    Instant::now()
}

fn producer_config(args: &ProduceArgs) -> Result<ProducerConfig, Failure> {
    let batch_bytes = usize::try_from(args.batch_bytes.0).map_err(|_| Failure::usage("--batch-bytes is too large"))?;
    Ok(ProducerConfig {
        acks: match args.acks {
            AcksArg::All => Acks::All,
            AcksArg::Leader => Acks::Leader,
            AcksArg::None => Acks::None,
        },
        linger: args.linger.0,
        delivery_timeout: args.delivery_timeout.0,
        batch_bytes,
        record_bytes_max: LINE_BYTES_MAX,
        codec: match args.compression {
            CodecArg::None => Codec::None,
            CodecArg::Gzip => Codec::Gzip,
            CodecArg::Snappy => Codec::Snappy,
            CodecArg::Lz4 => Codec::Lz4,
            CodecArg::Zstd => Codec::Zstd,
        },
        ..ProducerConfig::default()
    })
}

/// Starts the reading thread.
fn open(args: &ProduceArgs) -> Result<mpsc::Receiver<Result<Lines, String>>, Failure> {
    let input: Box<dyn Read + Send> = match &args.file {
        None => Box::new(stdin()),
        Some(path) => {
            let open = File::open(path);
            Box::new(open.map_err(|error| Failure::failed(format!("can't read {}: {error}", path.display())))?)
        }
    };
    let (sender, receiver) = mpsc::channel(GROUPS_MAX);
    std::thread::spawn(move || read_lines(BufReader::with_capacity(1 << 20, input), &sender));
    Ok(receiver)
}

fn read_lines(mut input: BufReader<Box<dyn Read + Send>>, sender: &mpsc::Sender<Result<Lines, String>>) {
    let mut number = 1;
    loop {
        let group = read_group(&mut input, number);
        let end = match &group {
            Ok(group) => {
                number += group.lines.len() as u64;
                group.lines.is_empty()
            }
            Err(_) => true,
        };
        if sender.blocking_send(group).is_err() || end {
            return;
        }
    }
}

/// The lines that are there, at least one; none at the end.
fn read_group(input: &mut BufReader<Box<dyn Read + Send>>, first: u64) -> Result<Lines, String> {
    let mut lines = Vec::new();
    let mut bytes = 0;
    while bytes < GROUP_BYTES && (lines.is_empty() || !input.buffer().is_empty()) {
        let mut line = Vec::new();
        let number = first + lines.len() as u64;
        let limit = LINE_BYTES_MAX as u64 + 1;
        let count = input.by_ref().take(limit).read_until(b'\n', &mut line).map_err(|error| format!("can't read: {error}"))?;
        if count == 0 {
            break;
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        if line.len() > LINE_BYTES_MAX {
            return Err(format!("line {number} has more than {LINE_BYTES_MAX} bytes, the most that a record may have here"));
        }
        bytes += line.len() + 1;
        lines.push(line);
    }
    Ok(Lines { first, lines })
}

async fn send_all(
    args: &ProduceArgs,
    producer: &Producer,
    mut groups: mpsc::Receiver<Result<Lines, String>>,
    summary: &mut Summary,
) -> Result<(), Failure> {
    let mut under_way: VecDeque<(Delivery, Option<Instant>)> = VecDeque::new();
    let mut outcome = Ok(());
    'groups: while let Some(group) = groups.recv().await {
        let group = match group {
            Ok(group) => group,
            Err(error) => {
                outcome = Err(Failure::failed(error));
                break;
            }
        };
        for (number, line) in (group.first..).zip(group.lines) {
            let record = match record(args, line) {
                Ok(record) => record,
                Err(error) => {
                    outcome = Err(Failure::failed(format!("line {number}: {error}")));
                    break 'groups;
                }
            };
            summary.bytes += record.content_bytes() as u64;
            let handed_over = summary.sent.is_multiple_of(TIMED_EVERY).then(now);
            match producer.send(&args.topic, record).await {
                Ok(delivery) => under_way.push_back((delivery, handed_over)),
                Err(error) => {
                    outcome = Err(error.into());
                    break 'groups;
                }
            }
            summary.sent += 1;
            while let Some(result) = under_way.front().and_then(|(delivery, _)| delivery.try_result()) {
                let handed_over = under_way.pop_front().and_then(|(_, handed_over)| handed_over);
                summary.count(result, handed_over);
            }
            if summary.first_error.is_some() {
                break 'groups;
            }
        }
    }
    producer.flush().await;
    for (delivery, handed_over) in under_way {
        summary.count(delivery.await, handed_over);
    }
    outcome
}

fn record(args: &ProduceArgs, line: Vec<u8>) -> Result<Record, String> {
    let mut record = match &args.key_separator {
        None => Record::value(line),
        Some(separator) => {
            let at =
                find(&line, separator.as_bytes()).ok_or_else(|| format!("there is no {separator:?} between key and value"))?;
            Record::value(line[at + separator.len()..].to_vec()).with_key(line[..at].to_vec())
        }
    };
    record.partition = args.partition.map(PartitionIndex);
    Ok(record)
}

fn find(line: &[u8], separator: &[u8]) -> Option<usize> {
    if separator.is_empty() {
        return None;
    }
    line.windows(separator.len()).position(|window| window == separator)
}

impl Summary {
    fn count(&mut self, result: Result<corelane_client::Delivered, DeliveryError>, handed_over: Option<Instant>) {
        match result {
            Ok(delivered) => {
                self.delivered += 1;
                if let Some(at) = handed_over.filter(|_| self.delays_us.len() < TIMED_RECORDS) {
                    self.delays_us.push(u64::try_from(at.elapsed().as_micros()).unwrap_or(u64::MAX));
                }
                if let Some(offset) = delivered.offset {
                    let range = self.offsets.entry(delivered.partition.0).or_insert((offset.0, offset.0));
                    *range = (range.0.min(offset.0), range.1.max(offset.0));
                }
            }
            Err(error) => {
                if error.is_unknown() {
                    self.unknown += 1;
                } else {
                    self.failed += 1;
                }
                self.first_error.get_or_insert_with(|| error.to_string());
            }
        }
    }
}

/// The delay that `percent` of the timed records didn't exceed, in milliseconds.
#[allow(clippy::cast_precision_loss, reason = "a delay for people")]
fn delay_ms(sorted_us: &[u64], percent: usize) -> Option<f64> {
    let index = (sorted_us.len() * percent / 100).min(sorted_us.len().saturating_sub(1));
    sorted_us.get(index).map(|delay| *delay as f64 / 1e3)
}

fn report(args: &ProduceArgs, summary: &Summary, elapsed: Duration) -> Result<(), Failure> {
    let mut delays_us = summary.delays_us.clone();
    delays_us.sort_unstable();
    let (p50_ms, p99_ms) = (delay_ms(&delays_us, 50), delay_ms(&delays_us, 99));
    let seconds = elapsed.as_secs_f64().max(1e-9);
    if args.server.json {
        let partitions: Vec<Value> = summary
            .offsets
            .iter()
            .map(|(partition, (first, last))| json!({ "partition": partition, "first_offset": first, "last_offset": last }))
            .collect();
        return print(&json!({
            "topic": args.topic, "sent": summary.sent, "delivered": summary.delivered, "failed": summary.failed,
            "unknown": summary.unknown, "bytes": summary.bytes, "seconds": elapsed.as_secs_f64(), "partitions": partitions,
            "delivered_p50_ms": p50_ms, "delivered_p99_ms": p99_ms,
        }));
    }
    #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
    let (records_rate, bytes_rate) = (summary.delivered as f64 / seconds, summary.bytes as f64 / seconds / f64::from(1 << 20));
    let word = if matches!(args.acks, AcksArg::None) { "handed to the network" } else { "delivered" };
    print(&format_args!(
        "{} of {} records {word}, {} in {seconds:.2} s: {records_rate:.0} records/s, {bytes_rate:.1} MiB/s",
        summary.delivered,
        summary.sent,
        size(summary.bytes),
    ))?;
    if let (Some(p50_ms), Some(p99_ms)) = (p50_ms, p99_ms) {
        let linger = args.linger.0.as_millis();
        print(&format_args!(
            "  from handing over to {word}: p50 {p50_ms:.1} ms, p99 {p99_ms:.1} ms (linger {linger} ms included)"
        ))?;
    }
    for (partition, (first, last)) in &summary.offsets {
        print(&format_args!("  partition {partition}: offsets {first} to {last}"))?;
    }
    if summary.failed + summary.unknown > 0 {
        print(&format_args!("  {} failed, {} unknown", summary.failed, summary.unknown))?;
    }
    Ok(())
}
