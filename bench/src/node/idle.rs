//! The processor time of a host with a topic, a connection, and nothing to do.

use std::time::Duration;

use anyhow::Result;

use crate::machine::{self, CpuTicks};
use crate::node::Run;
use crate::node::throughput::flood_topic;
use crate::report::{Bars, Figure};

/// What the load before leaves behind is over by then.
const SETTLE: Duration = Duration::from_secs(2);

pub fn measure(run: &mut Run) -> Result<()> {
    let period = Duration::from_secs_f64(run.sizes.idle_seconds);
    let quiet = busy_share(run, period)?;
    let scratch = run.scratch("idle")?;
    let server = run.start(&scratch)?;
    flood_topic(run, server.connect()?, "idle", "device", 16 << 20)?;
    let connection = server.connect()?;
    machine::sleep(SETTLE);
    let process = machine::process_cpu_seconds(server.pid())?;
    let share = busy_share(run, period)?;
    let process = (machine::process_cpu_seconds(server.pid())? - process) / period.as_secs_f64();
    drop(connection);
    server.stop()?;
    run.report.add(
        Figure::plain(
            "idle",
            "busy share of the broker's processor, a topic and a connection and no requests",
            share * 100.0,
            "%",
            Bars::at_most(1.0, 0.3),
        )
        .note(format!("{:.2} % before the host was started; the process itself {:.2} %", quiet * 100.0, process * 100.0)),
    );
    Ok(())
}

fn busy_share(run: &Run, period: Duration) -> Result<f64> {
    let ticks = CpuTicks::read(run.args.broker_cpu)?;
    machine::sleep(period);
    Ok(CpuTicks::read(run.args.broker_cpu)?.busy_share_since(&ticks))
}
