//! Produce at full rate into one partition, for both durability classes, against fio's writes of 1 MiB to a new file.

use std::sync::Arc;

use anyhow::Result;

use crate::limits::{fio, intake};
use crate::load::{self, Flood, FloodConfig};
use crate::machine::{self, CpuTicks};
use crate::node::Run;
use crate::report::{BEYOND_MACHINE_MAX, Bars, Figure, MachineLimit};
use crate::wire::{self, Wire};

/// Batches without a reply: 4 MiB under way.
pub const WINDOW: usize = 64;
const GIB: f64 = (1u64 << 30) as f64;

pub fn measure(run: &mut Run) -> Result<()> {
    let device = measure_class(run, "device", "produce_device", fio::WRITE_DEVICE)?;
    measure_class(run, "written", "produce_written", fio::WRITE_WRITTEN)?;
    let (what, unit) = ("busy seconds of the broker's processor per GiB in, class device", "CPU-s/GiB");
    let figure = Figure::plain("produce_cpu", what, device.cpu_seconds_per_gib, unit, Bars::at_most(0.7, 0.5))
        .note(format!("processor {:.0} % busy", device.busy_share * 100.0));
    run.report.add(figure.allowed_by(MachineLimit {
        what: "a ring that only receives, sums, copies, writes and answers, before and after",
        value: device.bare_cpu_seconds_per_gib,
        factor: BEYOND_MACHINE_MAX,
    }));
    Ok(())
}

struct Measured {
    bare_cpu_seconds_per_gib: f64,
    cpu_seconds_per_gib: f64,
    busy_share: f64,
}

fn measure_class(run: &mut Run, class: &str, name: &'static str, line: &[&str]) -> Result<Measured> {
    let before = fio::run(&run.args.dir, run.args.broker_cpu, line, run.sizes.fio)?.gib_per_second;
    let bare = |run: &Run| {
        let (broker_cpu, generator_cpu) = (run.args.broker_cpu, run.args.generator_cpu);
        intake::run(&run.args.dir, broker_cpu, generator_cpu, run.sizes.intake_bytes, WINDOW)
    };
    let bare_before = bare(run)?;
    let scratch = run.scratch(name)?;
    let server = run.start(&scratch)?;
    let bytes = run.sizes.produce_bytes;
    // A twentieth first: segments, windows and connections are as they will be.
    flood_topic(run, server.connect()?, "warm-up", class, bytes / 20)?;
    let ticks = CpuTicks::read(run.args.broker_cpu)?;
    let flood = flood_topic(run, server.connect()?, "figure", class, bytes)?;
    let ticks_after = CpuTicks::read(run.args.broker_cpu)?;
    server.stop()?;
    drop(scratch);
    let bare_after = bare(run)?;
    let after = fio::run(&run.args.dir, run.args.broker_cpu, line, run.sizes.fio)?.gib_per_second;

    let gib = flood.bytes as f64 / GIB;
    let what = format!("{gib:.1} GiB produced, class {class}, one partition, 1 KiB records in 64 KiB batches");
    let limit = f64::midpoint(before, after);
    let figure = Figure::against(name, &what, gib / flood.seconds, limit, "GiB/s", Bars::at_least(0.7, 0.9))
        .note(format!("fio before {before:.3}, after {after:.3} GiB/s; one connection, {WINDOW} batches under way"));
    run.report.add(figure);
    Ok(Measured {
        bare_cpu_seconds_per_gib: f64::midpoint(bare_before, bare_after),
        cpu_seconds_per_gib: ticks_after.busy_seconds_since(&ticks) / gib,
        busy_share: ticks_after.busy_share_since(&ticks),
    })
}

/// Makes a topic and floods it from the generator's processor.
pub fn flood_topic(run: &Run, mut wire: Wire, topic: &str, class: &str, bytes: u64) -> Result<Flood> {
    let topic = wire.create_topic(topic, &[("durability", class)])?;
    let (batch, records) = wire::full_batch()?;
    let batches = (bytes / batch.len() as u64).max(1);
    let config = FloodConfig { topic, batch: Arc::new(batch), records, batches, window: WINDOW };
    machine::joined(machine::spawn_pinned(run.args.generator_cpu, move || load::flood(&mut wire, &config, None)))
}
