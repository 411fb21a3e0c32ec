//! A reader from the start of a log that is in nobody's memory, at full rate, against the slower of disk and wire.

use anyhow::{Result, ensure};
use protocol::ids::Offset;

use crate::limits::fio;
use crate::limits::send::{self, SendLoad};
use crate::load::{LogReader, ReadConfig};
use crate::machine::{self, CpuTicks};
use crate::node::Run;
use crate::node::throughput::flood_topic;
use crate::report::{Bars, Figure};
use crate::server::Scratch;

const TOPIC: &str = "catch-up";
const GIB: f64 = (1u64 << 30) as f64;
const FETCH_BYTES: u32 = 8 << 20;
/// What the ring that only sends goes through.
const SENT_BYTES: usize = 64 << 20;

/// Reads of the whole log. A drive's speed swings within seconds, so fio reads before and behind each of them.
const ROUNDS: usize = 3;

/// One read of the whole log.
struct Round {
    seconds: f64,
    busy_share: f64,
    busy_seconds: f64,
}

pub fn measure(run: &mut Run) -> Result<()> {
    let load = SendLoad { sockets: 1, range_bytes: SENT_BYTES, seconds: run.sizes.send_seconds };
    let wire = send::run(run.args.broker_cpu, run.args.generator_cpu, load)?;
    let scratch = run.scratch("catch-up")?;
    let server = run.start(&scratch)?;
    let flood = flood_topic(run, server.connect()?, TOPIC, "device", run.sizes.log_bytes)?;
    server.stop()?;
    let mut disk = vec![fio_reads(run)?];
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push(read_once(run, &scratch, flood.bytes)?);
        disk.push(fio_reads(run)?);
    }

    let gib = flood.bytes as f64 / GIB;
    let sum = |value: fn(&Round) -> f64| rounds.iter().map(value).sum::<f64>();
    let mean_disk = disk.iter().sum::<f64>() / disk.len() as f64;
    let each: Vec<_> = rounds.iter().map(|round| format!("{:.3}", gib / round.seconds)).collect();
    let fio: Vec<_> = disk.iter().map(|rate| format!("{rate:.3}")).collect();
    run.report.add(
        Figure::against(
            "catch_up",
            "a cold log read from its start by one reader",
            gib * ROUNDS as f64 / sum(|round| round.seconds),
            mean_disk.min(wire),
            "GiB/s",
            Bars::at_least(0.7, 0.9),
        )
        .note(format!(
            "{gib:.1} GiB, {ROUNDS} times: {}; fio around them {}; the ring sends {wire:.3} GiB/s; processor {:.0} % busy, {:.2} CPU-s/GiB",
            each.join(", "),
            fio.join(", "),
            sum(|round| round.busy_share) / ROUNDS as f64 * 100.0,
            sum(|round| round.busy_seconds) / ROUNDS as f64 / gib
        )),
    );
    Ok(())
}

fn fio_reads(run: &Run) -> Result<f64> {
    Ok(fio::run(&run.args.dir, run.args.broker_cpu, fio::READ, run.sizes.fio)?.gib_per_second)
}

/// Reads the log by a process that has none of it in its memory; the page cache goes too.
fn read_once(run: &Run, scratch: &Scratch, bytes: u64) -> Result<Round> {
    machine::drop_caches()?;
    let server = run.start(scratch)?;
    let mut connection = server.connect()?;
    let (topic, high_watermark) = connection.describe(TOPIC)?;
    let config = ReadConfig { topic, from: Offset(0), fetch_bytes: FETCH_BYTES, verify: false };
    let ticks = CpuTicks::read(run.args.broker_cpu)?;
    let start_nanos = machine::now_nanos();
    let reader = machine::spawn_pinned(run.args.generator_cpu, move || {
        LogReader::new(&mut connection, config).run(|reading| reading.next >= high_watermark.0)
    });
    let reading = machine::joined(reader)?;
    let seconds = machine::seconds_since(start_nanos);
    let ticks_after = CpuTicks::read(run.args.broker_cpu)?;
    server.stop()?;
    ensure!(reading.bytes == bytes, "{} bytes read, {bytes} were written", reading.bytes);
    let (busy_share, busy_seconds) = (ticks_after.busy_share_since(&ticks), ticks_after.busy_seconds_since(&ticks));
    Ok(Round { seconds, busy_share, busy_seconds })
}
