//! Four readers at the tail of one partition while it is written at full rate, against a ring that only sends to four sockets.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, ensure};
use protocol::ids::Offset;

use crate::limits::send;
use crate::load::{self, FloodConfig, Followers, LogReader, ReadConfig, Reading};
use crate::machine::{self, CpuTicks};
use crate::node::Run;
use crate::node::throughput::WINDOW;
use crate::report::{Bars, Figure};
use crate::wire;

const READERS: usize = 4;
/// Records that the slowest reader may be behind before the producer waits for it: 32 MiB, so that readers are at the tail.
const LAG_RECORDS_MAX: i64 = 32 << 10;
const FETCH_BYTES: u32 = 1 << 20;
const GIB: f64 = (1u64 << 30) as f64;

pub fn measure(run: &mut Run) -> Result<()> {
    let limit = send::run(run.args.broker_cpu, run.args.generator_cpu, READERS, run.sizes.send_seconds)?;
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
    server.stop()?;

    let rate = bytes as f64 / GIB / seconds;
    run.report.add(
        Figure::against(
            "fan_out",
            "four tail readers of one partition under a full-rate producer, in all",
            rate,
            limit,
            "GiB/s",
            Bars::at_least(0.7, 0.85),
        )
        .note(format!(
            "{:.3} GiB/s in beside it, class device; processor {:.0} % busy; offsets and counts checked, CRCs not",
            flood.bytes as f64 / GIB / seconds,
            ticks_after.busy_share_since(&ticks) * 100.0
        )),
    );
    Ok(())
}
