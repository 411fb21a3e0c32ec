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

const TOPIC: &str = "catch-up";
const GIB: f64 = (1u64 << 30) as f64;
const FETCH_BYTES: u32 = 8 << 20;
/// What the ring that only sends goes through.
const SENT_BYTES: usize = 64 << 20;

pub fn measure(run: &mut Run) -> Result<()> {
    let disk = fio::run(&run.args.dir, run.args.broker_cpu, fio::READ, run.sizes.fio)?.gib_per_second;
    let load = SendLoad { sockets: 1, range_bytes: SENT_BYTES, seconds: run.sizes.send_seconds };
    let wire = send::run(run.args.broker_cpu, run.args.generator_cpu, load)?;
    let scratch = run.scratch("catch-up")?;
    let server = run.start(&scratch)?;
    let flood = flood_topic(run, server.connect()?, TOPIC, "device", run.sizes.log_bytes)?;
    // Another process has none of it in its memory; the page cache goes too.
    server.stop()?;
    machine::drop_caches()?;
    let server = run.start(&scratch)?;
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
    ensure!(reading.bytes == flood.bytes, "{} bytes read, {} were written", reading.bytes, flood.bytes);

    let gib = reading.bytes as f64 / GIB;
    run.report.add(
        Figure::against(
            "catch_up",
            "a cold log read from its start by one reader",
            gib / seconds,
            disk.min(wire),
            "GiB/s",
            Bars::at_least(0.7, 0.9),
        )
        .note(format!(
            "{gib:.1} GiB; fio reads {disk:.3}, the ring sends {wire:.3} GiB/s; processor {:.0} % busy, {:.2} CPU-s/GiB",
            ticks_after.busy_share_since(&ticks) * 100.0,
            ticks_after.busy_seconds_since(&ticks) / gib
        )),
    );
    Ok(())
}
