//! Four tail readers of one partition, against a ring that only sends to four sockets.
//!
//! Twice: live, while the partition is written at full rate, where the drive may be what limits (nothing is read before it is
//! durable, so the limit is the lower of the sends and four times fio's durable writes); and from memory, where the readers
//! take what was written last again and again, and the sends alone are the limit.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, ensure};
use protocol::ids::{Offset, TopicId};

use crate::limits::fio;
use crate::limits::send::{self, SendLoad};
use crate::load::{self, FloodConfig, Followers, LogReader, ReadConfig, Reading};
use crate::machine::{self, CpuTicks};
use crate::node::Run;
use crate::node::throughput::WINDOW;
use crate::report::{Bars, Figure};
use crate::server::Server;
use crate::wire;

const READERS: usize = 4;
/// Records that the slowest reader may be behind before the producer waits for it: 32 MiB, so that readers are at the tail.
const LAG_RECORDS_MAX: i64 = 32 << 10;
const FETCH_BYTES: u32 = 1 << 20;
/// Records of the log's end that the readers from memory take, and their bytes: as near to the end as tail readers are.
const CACHED_RECORDS: i64 = 16 << 10;
const CACHED_BYTES: usize = 16 << 20;
const GIB: f64 = (1u64 << 30) as f64;

pub fn measure(run: &mut Run) -> Result<()> {
    let load = SendLoad { sockets: READERS, range_bytes: CACHED_BYTES, seconds: run.sizes.send_seconds };
    let sends = send::run(run.args.broker_cpu, run.args.generator_cpu, load)?;
    let disk = fio::run(&run.args.dir, run.args.broker_cpu, fio::WRITE_DEVICE, run.sizes.fio)?.gib_per_second;
    let scratch = run.scratch("fan-out")?;
    let server = run.start(&scratch)?;
    let mut wire = server.connect()?;
    let topic = wire.create_topic("fan-out", &[("durability", "device")])?;
    let (batch, records) = wire::full_batch()?;
    let batches = (run.sizes.fan_out_bytes / batch.len() as u64).max(1);
    let target = i64::try_from(batches)? * i64::from(records);
    let config = FloodConfig { topic, batch: Arc::new(batch), records, batches, window: WINDOW };

    let followers = Followers::new(READERS, LAG_RECORDS_MAX);
    let ticks = CpuTicks::read(run.args.broker_cpu)?;
    let start_nanos = machine::now_nanos();
    let readers: Vec<_> = (0..READERS)
        .map(|index| {
            let (connection, followers) = (server.connect(), followers.clone());
            let read = ReadConfig { topic, from: Offset(0), fetch_bytes: FETCH_BYTES, verify: false };
            machine::spawn_pinned(run.args.generator_cpu, move || -> Result<Reading> {
                let mut connection = connection?;
                LogReader::new(&mut connection, read).run(|reading| {
                    followers.positions[index].store(reading.next, Ordering::Relaxed);
                    reading.next >= target || followers.ended.load(Ordering::Relaxed)
                })
            })
        })
        .collect();
    let flooding = followers.clone();
    let producer = machine::spawn_pinned(run.args.generator_cpu, move || {
        let result = load::flood(&mut wire, &config, Some(&flooding));
        if result.is_err() {
            flooding.ended.store(true, Ordering::Relaxed);
        }
        result
    });
    let flood = machine::joined(producer).context("the producer")?;
    let mut bytes = 0;
    for reader in readers {
        let reading = machine::joined(reader).context("a reader")?;
        ensure!(reading.next == target && reading.records == u64::try_from(target)?, "a reader stopped at {}", reading.next);
        bytes += reading.bytes;
    }
    let seconds = machine::seconds_since(start_nanos);
    let ticks_after = CpuTicks::read(run.args.broker_cpu)?;
    let rate = bytes as f64 / GIB / seconds;
    let live = Figure::against(
        "fan_out_live",
        "four tail readers of one partition under a full-rate producer, in all",
        rate,
        sends.min(disk * READERS as f64),
        "GiB/s",
        Bars::at_least(0.7, 0.85),
    );
    run.report.add(live.note(format!(
        "fio writes {disk:.3}, the ring sends {sends:.3} GiB/s; {:.3} GiB/s in beside it, class device; processor {:.0} % busy; \
         offsets and counts checked, CRCs not",
        flood.bytes as f64 / GIB / seconds,
        ticks_after.busy_share_since(&ticks) * 100.0
    )));

    measure_from_memory(run, &server, topic, target)?;
    server.stop()?;
    Ok(())
}

/// The sends are measured once more, right before and right after.
fn measure_from_memory(run: &mut Run, server: &Server, topic: TopicId, end: i64) -> Result<()> {
    let load = SendLoad { sockets: READERS, range_bytes: CACHED_BYTES, seconds: run.sizes.send_seconds };
    let before = send::run(run.args.broker_cpu, run.args.generator_cpu, load)?;
    let broker = CpuTicks::read(run.args.broker_cpu)?;
    let generator = CpuTicks::read(run.args.generator_cpu)?;
    let rate = read_from_memory(run, server, topic, end)?;
    let broker_share = CpuTicks::read(run.args.broker_cpu)?.busy_share_since(&broker) * 100.0;
    let generator_share = CpuTicks::read(run.args.generator_cpu)?.busy_share_since(&generator) * 100.0;
    let after = send::run(run.args.broker_cpu, run.args.generator_cpu, load)?;
    run.report.add(
        Figure::against(
            "fan_out",
            "four readers of what was written last, from memory, in all",
            rate,
            f64::midpoint(before, after),
            "GiB/s",
            Bars::at_least(0.7, 0.85),
        )
        .note(format!(
            "the ring sends {before:.3} before, {after:.3} after; broker's processor {broker_share:.0} % busy, generator's {generator_share:.0} %"
        )),
    );
    Ok(())
}

/// Four readers, each over and over from the same offset to the log's end; GiB/s in all. As with the ring that only sends, the first fifth
/// isn't counted: a new socket's buffer is small, what overruns it is dropped, and TCP sends it again 0.2 s later.
fn read_from_memory(run: &Run, server: &Server, topic: TopicId, end: i64) -> Result<f64> {
    let from = Offset((end - CACHED_RECORDS).max(0));
    let seconds = run.sizes.send_seconds;
    let start_nanos = machine::now_nanos();
    let readers: Vec<_> = (0..READERS)
        .map(|_| {
            let connection = server.connect();
            let read = ReadConfig { topic, from, fetch_bytes: FETCH_BYTES, verify: false };
            machine::spawn_pinned(run.args.generator_cpu, move || -> Result<f64> {
                let mut connection = connection?;
                let mut reader = LogReader::new(&mut connection, read);
                while machine::seconds_since(start_nanos) < seconds / 5.0 {
                    reader.run(|reading| reading.next >= end)?;
                }
                let (mut bytes, counted_from_nanos) = (0, machine::now_nanos());
                while machine::seconds_since(start_nanos) < seconds * 1.2 {
                    bytes += reader.run(|reading| reading.next >= end)?.bytes;
                }
                Ok(bytes as f64 / GIB / machine::seconds_since(counted_from_nanos))
            })
        })
        .collect();
    let mut rate = 0.0;
    for reader in readers {
        rate += machine::joined(reader).context("a reader from memory")?;
    }
    Ok(rate)
}
