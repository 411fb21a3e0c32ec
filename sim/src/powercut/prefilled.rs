//! A large log that a power cut ended: for measuring how long a start takes after one.
//!
//! The log is written without a recording; then the disk is recorded under load, the host is killed, and one torn cut is
//! applied to the disk in place. It stays mounted until `clean`.

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::plan::{Mode, cuts};
use super::rig::{Files, Stack, make_disk};
use super::session::{Plan, record_here};
use crate::real::host::{Host, HostOptions};
use crate::real::load::{self, Ack, LoadOptions, Shape};
use crate::real::pause;
use crate::real::wire::Wire;

const TOPIC: &str = "prefilled";

/// Makes the disk and mounts it at `mount`; the data directory is `data` in it.
///
/// # Errors
/// The harness failed, or corelane did.
pub fn make(workdir: &Path, plan: &Plan, bytes: u64, mount: &Path) -> Result<()> {
    make_disk(workdir, plan.file_system, bytes + bytes / 4 + (4 << 30))?;
    let files = Files::below(workdir);
    let next_id = prefill(workdir, plan, bytes)?;
    let (recording, acks) = record_here(workdir, plan.file_system, |mount| load_and_kill(workdir, mount, plan, next_id))?;
    fs::remove_file(&files.disk)?;
    let moments: Vec<u64> = acks.iter().map(|ack| ack.at).collect();
    let cuts = cuts(&recording, Mode::Torn, 16, plan.seed, &moments);
    let cut = cuts.iter().rfind(|cut| cut.loose > 0 && cut.reason != "end").or(cuts.last()).context("no cut")?;
    println!("cut at {} ({} of {} uncovered writes survive, {} of them torn)", cut.reason, cut.kept, cut.loose, cut.torn);
    let image = File::options().write(true).open(&files.base)?;
    for write in &recording.writes[..cut.common] {
        recording.apply(&image, write, 0, write.sectors)?;
    }
    for piece in &cut.late {
        recording.apply(&image, &recording.writes[piece.write], piece.from, piece.to)?;
    }
    image.sync_all()?;
    fs::remove_file(&files.log)?;
    let mut stack = Stack::new(workdir);
    let repaired = stack.mount_replayed(plan.file_system, &files.base, mount)?;
    stack.leave();
    println!("mounted at {}{}", mount.display(), if repaired { ", after a repair of the file system" } else { "" });
    Ok(())
}

fn options(workdir: &Path, mount: &Path, plan: &Plan) -> Result<HostOptions> {
    HostOptions::new(plan.binary.as_deref(), &mount.join("data"), &workdir.join("corelane.log"))
}

/// Writes the log, unrecorded; gives back the next id.
fn prefill(workdir: &Path, plan: &Plan, bytes: u64) -> Result<u64> {
    let files = Files::below(workdir);
    let mut stack = Stack::new(workdir);
    stack.mount_disk(plan.file_system, &files.disk, &files.mount)?;
    let host = Host::start(&options(workdir, &files.mount, plan)?)?;
    let topic = Wire::connect(host.address())?.create_topic(TOPIC, 1, &[("durability", "device")])?;
    let shape = Shape { records: (48, 48), markers: (1024, 1024) };
    let flood = LoadOptions { topics: vec![(topic, 1)], in_flight: 8, bytes, shape, seed: plan.seed, ..LoadOptions::default() };
    let loaded = load::run(host.address(), &flood, 1)?;
    ensure!(!loaded.broken && loaded.unknown.is_empty(), "the log was not written whole");
    host.stop()?;
    stack.unwind(0)?;
    Ok(loaded.next_id)
}

fn load_and_kill(workdir: &Path, mount: &Path, plan: &Plan, next_id: u64) -> Result<Vec<Ack>> {
    let host = Host::start(&options(workdir, mount, plan)?)?;
    let topic = Wire::connect(host.address())?.describe(TOPIC)?.context("the topic has gone")?.topic_id;
    let load = LoadOptions { topics: vec![(topic, 1)], seed: plan.seed, ..LoadOptions::default() };
    let address = host.address();
    let loading = std::thread::spawn(move || load::run(address, &load, next_id));
    pause(Duration::from_millis(plan.load_ms));
    host.kill()?;
    let loaded = loading.join().map_err(|_| anyhow::anyhow!("the load panicked"))??;
    ensure!(!loaded.acks.is_empty(), "nothing was acknowledged under the recording");
    Ok(loaded.acks)
}
