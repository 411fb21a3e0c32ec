//! Seconds from the start of the process until a record is appended and read back, on a log that was cut off by kill -9, and on
//! one that a power cut left.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use protocol::ids::{Offset, TopicId};

use crate::load::{LogReader, ReadConfig};
use crate::machine;
use crate::node::Run;
use crate::node::throughput::flood_topic;
use crate::report::{Bars, Figure};
use crate::server::Server;
use crate::wire::{self, Wire};

const TOPIC: &str = "restart";

pub fn measure(run: &mut Run) -> Result<()> {
    let scratch = run.scratch("restart")?;
    let server = run.start(&scratch)?;
    let flood = flood_topic(run, server.connect()?, TOPIC, "device", run.sizes.log_bytes)?;
    server.kill()?;
    machine::settle(&run.args.dir)?;
    machine::drop_caches()?;
    let restart = restart(run, scratch.path.clone(), Some(flood.bytes))?;
    run.report.add(figure("restart_kill", "after kill -9", &restart));
    drop(scratch);

    if let Some(data) = run.args.power_cut_data.clone() {
        machine::settle(&run.args.dir)?;
        machine::drop_caches()?;
        let restart = self::restart(run, data, None)?;
        run.report.add(figure("restart_power_cut", "after a replayed power cut", &restart));
    } else {
        println!(
            "    restart after a power cut: give --power-cut-data DIR, a data directory as the power-cut harness replays it"
        );
    }
    Ok(())
}

struct Restart {
    seconds: f64,
    ready_seconds: f64,
    log_bytes: u64,
}

fn restart(run: &Run, data: PathBuf, acknowledged_bytes: Option<u64>) -> Result<Restart> {
    let server = Server::start(&run.server_config(data))?;
    let mut connection = server.connect()?;
    let (name, topic, end) = largest_topic(&mut connection)?;
    let (batch, records) = wire::full_batch()?;
    let base = connection.produce(topic, &batch)?;
    ensure!(base == end, "{name}: appended at {base}, the log ended at {end}");
    let config = ReadConfig { topic, from: base, fetch_bytes: 1 << 20, verify: true };
    let next = base.plus(records);
    LogReader::new(&mut connection, config).run(|reading| reading.next >= next.0)?;
    let seconds = machine::seconds_since(server.started_nanos);

    // Outside of the time: everything that was acknowledged is still there.
    let config = ReadConfig { topic, from: Offset(0), fetch_bytes: 8 << 20, verify: true };
    let mut connection = server.connect()?;
    let reading = LogReader::new(&mut connection, config).run(|reading| reading.next >= next.0)?;
    if let Some(bytes) = acknowledged_bytes {
        let found = reading.bytes - batch.len() as u64;
        ensure!(found >= bytes, "{found} bytes are there, {bytes} were acknowledged");
    }
    let ready_seconds = server.ready_seconds;
    server.stop()?;
    Ok(Restart { seconds, ready_seconds, log_bytes: reading.bytes })
}

/// The topic with most records.
fn largest_topic(connection: &mut Wire) -> Result<(String, TopicId, Offset)> {
    let topics = connection.topics()?;
    topics.into_iter().max_by_key(|(_, _, end)| *end).context("the data directory has no topics")
}

fn figure(name: &'static str, after: &str, restart: &Restart) -> Figure {
    let what = format!("from start to the first record appended and read back, {after}");
    let log = bytesize::ByteSize(restart.log_bytes);
    Figure::plain(name, &what, restart.seconds, "s", Bars::at_most(2.0, 1.0)).note(format!(
        "{after}: log of {log}, the ready line after {:.3} s; afterwards all of it read with CRCs checked",
        restart.ready_seconds
    ))
}
