//! The real process killed with SIGKILL under load, over and over, and its history given to the checker.
//!
//! A producer loads two topics, one of each durability class: both promise to survive a kill. A tail reader polls all the
//! while. After each restart every partition is read whole and compared with what was acknowledged so far.

use std::fs::{self, File};
use std::io::BufWriter;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use protocol::batch::BatchView;
use protocol::ids::{LeaderEpoch, Offset, PartitionIndex, TopicId};
use protocol::native::{FetchPartition, FetchReply, FetchRequest, IsolationLevel, Kind};

use super::audit::{self, Expected, Topic};
use super::host::{Host, HostOptions};
use super::load::{self, Ack, LoadOptions, Loaded, id_of};
use super::wire::Wire;
use super::{monotonic_ns, pause};
use crate::checker::check;
use crate::checker::history::{self, Acks, Action, Class, Fault, Operation, Outcome, Seen};
use crate::checker::promise::Replication;
use crate::random::Stream;

/// Partition 0 of the first topic is the one that the tail reader follows.
const CLASSES: [(&str, Class); 2] = [("device", Class::Device), ("written", Class::Written)];
const PARTITIONS: u32 = 2;
/// Cores of a start, at most.
const CORES_MAX: u64 = 3;

/// How often, with what.
#[derive(Clone, Debug)]
pub struct CrashOptions {
    /// The `corelane` binary; beside this program if `None`.
    pub binary: Option<PathBuf>,
    /// Kills.
    pub kills: u32,
    /// Seeds load and moments.
    pub seed: u64,
}

/// Kills a host so many times; gives back what passed and what failed.
///
/// # Errors
/// The harness failed, or a host doesn't start again.
pub fn run(workdir: &Path, options: &CrashOptions) -> Result<(usize, usize)> {
    let data = workdir.join("data");
    let mut host_options = HostOptions::new(options.binary.as_deref(), &data, &workdir.join("corelane.log"))?;
    let topics: Vec<Topic> = CLASSES.iter().map(|(name, _)| Topic { name: (*name).to_owned(), partitions: PARTITIONS }).collect();
    let mut host = Host::start(&host_options)?;
    let mut load = LoadOptions { pace: Duration::from_micros(300), seed: options.seed, ..LoadOptions::default() };
    let mut wire = Wire::connect(host.address())?;
    for (name, _) in CLASSES {
        let configs = [("durability", name), ("segment.bytes", "1048576")];
        load.topics.push((wire.create_topic(name, PARTITIONS, &configs)?, PARTITIONS));
    }
    drop(wire);
    let random = Stream::new(options.seed, "kill");
    let mut history = Vec::new();
    let mut acks: Vec<Ack> = Vec::new();
    let mut next_id = 1;
    let (mut passed, mut failed) = (0, 0);
    let reader = Reader::start(load.topics[0].0)?;
    for number in 1..=options.kills {
        reader.follow(host.address());
        let loading = std::thread::spawn({
            let (load, address) = (load.clone(), host.address());
            move || load::run(address, &load, next_id)
        });
        pause(Duration::from_millis(200 + random.below(900)));
        let killed_at = monotonic_ns();
        host.kill()?;
        let loaded: Loaded = loading.join().map_err(|_| anyhow!("the load panicked"))??;
        history.push(operation(killed_at, monotonic_ns(), Outcome::Ok, Action::Down { fault: Fault::KillAll }));
        note(&loaded, &mut history);
        next_id = loaded.next_id;
        acks.extend(loaded.acks);
        let began = monotonic_ns();
        // Partitions move between starts, as cores come and go.
        host_options.cores = 1 + random.below(CORES_MAX);
        host = Host::start(&host_options)?;
        let start_ms = (monotonic_ns() - began) / 1_000_000;
        match audit::run(host.address(), Expected { topics: &topics, acks: &acks, next_id, topics_may_lack: false }) {
            Ok(audited) => {
                passed += 1;
                println!(
                    "kill {number}: served again with {} cores after {start_ms} ms, {} records, {} of them acknowledged",
                    host_options.cores, audited.records, audited.acknowledged
                );
            }
            Err(error) => {
                failed += 1;
                println!("FAILED kill {number}: {error:#}");
            }
        }
    }
    history.extend(reader.finish()?);
    history.push(operation(monotonic_ns(), monotonic_ns(), Outcome::Ok, Action::Heal));
    read_all(host.address(), &topics, &mut history)?;
    host.stop()?;
    let clean = judge(workdir, history)?;
    Ok((passed + usize::from(clean), failed + usize::from(!clean)))
}

/// Gives the history to the checker; keeps it if there is something to see. Whether it is clean.
fn judge(workdir: &Path, mut history: Vec<Operation>) -> Result<bool> {
    // What happened first stands first.
    history.sort_by_key(|operation| operation.start);
    let path = workdir.join("history.jsonl");
    history::write(BufWriter::new(File::create(&path)?), &history)?;
    let anomalies = check(&history, Replication::SINGLE);
    for anomaly in anomalies.iter().take(10) {
        println!("FAILED checker: {anomaly}");
    }
    println!("checker: {} operations, {} anomalies", history.len(), anomalies.len());
    if anomalies.is_empty() {
        let _ = fs::remove_file(path);
    }
    Ok(anomalies.is_empty())
}

fn operation(start: u64, end: u64, outcome: Outcome, action: Action) -> Operation {
    Operation { start, end, outcome, action }
}

fn name(topic: usize, partition: u32) -> String {
    format!("{}/{partition}", CLASSES[topic].0)
}

/// One send per record.
fn note(loaded: &Loaded, history: &mut Vec<Operation>) {
    let ended = monotonic_ns();
    let mut send = |ack: &Ack, outcome: Outcome| {
        for index in 0..u64::from(ack.records) {
            let offset = (outcome == Outcome::Ok).then(|| ack.base_offset + i64::try_from(index).unwrap_or(i64::MAX));
            let action = Action::Send {
                partition: name(ack.topic, ack.partition),
                value: ack.first_id + index,
                acks: Acks::All,
                class: CLASSES[ack.topic].1,
                producer: Some(1),
                offset,
            };
            let end = if outcome == Outcome::Ok { ack.at } else { ended };
            history.push(operation(ack.sent_at, end, outcome, action));
        }
    };
    loaded.acks.iter().for_each(|ack| send(ack, Outcome::Ok));
    loaded.unknown.iter().for_each(|ack| send(ack, Outcome::Unknown));
}

/// The final catch-up: every partition from its start.
fn read_all(address: SocketAddr, topics: &[Topic], history: &mut Vec<Operation>) -> Result<()> {
    let mut wire = Wire::connect(address)?;
    for (index, topic) in topics.iter().enumerate() {
        let id = wire.describe(&topic.name)?.context("a topic has gone")?.topic_id;
        for partition in 0..topic.partitions {
            let start = monotonic_ns();
            let ids = audit::read(&mut wire, id, partition, u64::MAX)?;
            let records = (0..).zip(ids).map(|(offset, value)| Seen { offset, value, timestamp: -1 }).collect();
            let consumer = 100 + u64::try_from(index)? * 10 + u64::from(partition);
            let action = Action::Poll { partition: name(index, partition), consumer, position: 0, records };
            history.push(operation(start, monotonic_ns(), Outcome::Ok, action));
        }
    }
    Ok(())
}

/// A consumer at the tail of one partition, which goes on after each restart.
struct Reader {
    port: Arc<AtomicU16>,
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Result<()>>,
    polls: Arc<Mutex<Vec<Operation>>>,
}

impl Reader {
    fn start(topic_id: TopicId) -> Result<Reader> {
        let (port, stop, polls) =
            (Arc::new(AtomicU16::new(0)), Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let thread = std::thread::Builder::new().name("reader".into()).spawn({
            let (port, stop, polls) = (Arc::clone(&port), Arc::clone(&stop), Arc::clone(&polls));
            move || follow(topic_id, &port, &stop, &polls)
        })?;
        Ok(Reader { port, stop, thread, polls })
    }

    fn follow(&self, address: SocketAddr) {
        self.port.store(address.port(), Ordering::Release);
    }

    fn finish(self) -> Result<Vec<Operation>> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().map_err(|_| anyhow!("the reader panicked"))??;
        Ok(std::mem::take(&mut *self.polls.lock().map_err(|_| anyhow!("the reader panicked"))?))
    }
}

fn follow(topic_id: TopicId, port: &AtomicU16, stop: &AtomicBool, polls: &Mutex<Vec<Operation>>) -> Result<()> {
    let mut position = 0;
    while !stop.load(Ordering::Acquire) {
        let address = SocketAddr::from(([127, 0, 0, 1], port.load(Ordering::Acquire)));
        let Ok(mut wire) = Wire::connect(address) else {
            pause(Duration::from_millis(20));
            continue;
        };
        // Ends with the connection: the host was killed.
        while !stop.load(Ordering::Acquire) {
            let start = monotonic_ns();
            match poll(&mut wire, topic_id, position) {
                Ok(records) => {
                    let next = records.last().map_or(position, |seen| seen.offset + 1);
                    let action = Action::Poll { partition: name(0, 0), consumer: 1, position, records };
                    let polled = operation(start, monotonic_ns(), Outcome::Ok, action);
                    polls.lock().map_err(|_| anyhow!("the reader's list"))?.push(polled);
                    position = next;
                }
                Err(error) if error.downcast_ref::<std::io::Error>().is_some() => break,
                Err(error) => return Err(error.context("the tail reader")),
            }
        }
    }
    Ok(())
}

fn poll(wire: &mut Wire, topic_id: TopicId, position: i64) -> Result<Vec<Seen>> {
    let place = FetchPartition {
        topic_id,
        partition: PartitionIndex(0),
        offset: Offset(position),
        max_bytes: 1 << 20,
        current_leader_epoch: LeaderEpoch(-1),
    };
    let request = FetchRequest {
        max_wait_ms: 100,
        min_bytes: 1,
        max_bytes: 1 << 20,
        isolation: IsolationLevel::ReadUncommitted,
        partitions: vec![place],
    };
    let reply = wire.call(Kind::Fetch, &request.encode_body(), &[])?;
    let found = *FetchReply::decode_body(&reply.body)?.partitions.first().context("a fetch reply without a partition")?;
    ensure!(found.error.is_none(), "fetch at {position}: {:?}", found.error);
    let mut bytes = reply.payload.as_slice();
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let (batch, rest) = BatchView::split(bytes)?;
        batch.verify_crc()?;
        for record in batch.records()? {
            let record = record?;
            if record.offset.0 >= position {
                let value = record.value.and_then(id_of).with_context(|| format!("a foreign value at {}", record.offset))?;
                records.push(Seen { offset: record.offset.0, value, timestamp: -1 });
            }
        }
        bytes = rest;
    }
    Ok(records)
}
