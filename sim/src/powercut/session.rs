//! Records a workload, and replays cuts of it; then the same with `corelane` as the workload.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::coverage::{self, Claim};
use super::image::{Master, copy_sparse};
use super::plan::{Cut, Mode, cuts};
use super::recording::Recording;
use super::rig::{FileSystem, Files, Rig, Stack, make_disk};
use super::trace::Interval;
use crate::real::audit::{self, Expected, Topic};
use crate::real::host::{Host, HostOptions};
use crate::real::load::{self, Ack, LoadOptions, Loaded, MARKER_BYTES};
use crate::real::monotonic_ns;
use crate::real::wire::Wire;

/// Size of the recorded disk, in bytes; sparse.
const DISK_BYTES: u64 = 2 << 30;

/// Records what `workload` does to a fresh file system at the path that it gets, and proves that the recording is whole.
///
/// # Errors
/// The rig, the workload, or a recording that can't be trusted.
pub fn record<W>(workdir: &Path, file_system: FileSystem, workload: impl FnOnce(&Path) -> Result<W>) -> Result<(Recording, W)> {
    make_disk(workdir, file_system, DISK_BYTES)?;
    let (recording, result) = record_here(workdir, file_system, workload)?;
    recording.verify(&Files::below(workdir), &workdir.join("verify.img"))?;
    Ok((recording, result))
}

/// Records what `workload` does to the file system on the disk that is there.
///
/// # Errors
/// The rig, the workload, or a recording whose log and trace differ.
pub fn record_here<W>(
    workdir: &Path,
    file_system: FileSystem,
    workload: impl FnOnce(&Path) -> Result<W>,
) -> Result<(Recording, W)> {
    let rig = Rig::build(workdir, file_system)?;
    let issue = monotonic_ns();
    let result = workload(&rig.files.mount)?;
    let span = Interval { issue, done: monotonic_ns() };
    let files = rig.finish()?;
    fs::write(workdir.join("span.json"), serde_json::to_string(&(span.issue, span.done))?)?;
    Ok((Recording::load(&files, span)?, result))
}

/// Reads a recording of an earlier run.
///
/// # Errors
/// There is none, or it can't be trusted.
pub fn load(workdir: &Path) -> Result<Recording> {
    let text = fs::read_to_string(workdir.join("span.json")).context("no finished recording here")?;
    let (issue, done) = serde_json::from_str(&text)?;
    Recording::load(&Files::below(workdir), Interval { issue, done })
}

/// What came of the cuts of one replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Points at which the check was content.
    pub passed: usize,
    /// Points at which it wasn't.
    pub failed: usize,
    /// Points whose file system had to be repaired before it could be mounted.
    pub repaired: usize,
    /// Points with writes that no flush covered, and with a torn one.
    pub loose: usize,
    /// See `loose`.
    pub torn: usize,
}

/// Makes the disk of each cut, mounts it and hands it to `check`.
///
/// # Errors
/// An image can't be made or removed; a failed check is counted, and said.
pub fn replay(
    workdir: &Path,
    file_system: FileSystem,
    recording: &Recording,
    cuts: &[Cut],
    mut check: impl FnMut(&Path, &Cut) -> Result<String>,
) -> Result<Replayed> {
    let mut result = Replayed::default();
    let mut master = Master::new(recording, &Files::below(workdir).base, &workdir.join("master.img"))?;
    let (image, mount) = (workdir.join("cut.img"), workdir.join("cut"));
    for cut in cuts {
        let mut stack = Stack::new(workdir);
        stack.temporary(&image)?;
        master.build(cut, &image)?;
        let outcome = stack.mount_replayed(file_system, &image, &mount).and_then(|repaired| {
            result.repaired += usize::from(repaired);
            check(&mount, cut)
        });
        result.loose += usize::from(cut.loose > 0);
        result.torn += usize::from(cut.torn > 0);
        let place = format!(
            "point {} at {:.3} ms ({}), {} of {} loose writes kept, {} torn",
            cut.point,
            milliseconds(cut.at.saturating_sub(recording.span.issue)),
            cut.reason,
            cut.kept,
            cut.loose,
            cut.torn
        );
        match outcome {
            Ok(_) => result.passed += 1,
            Err(error) => {
                result.failed += 1;
                println!("FAILED {place}: {error:#}");
                let copy = workdir.join(format!("failed-{}.img", cut.point));
                copy_sparse(&image, &copy).context("the image of a failed point")?;
            }
        }
        stack.unwind(0)?;
    }
    Ok(result)
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
fn milliseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}

/// How long, and how many points.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The `corelane` binary; beside this program if `None`.
    pub binary: Option<PathBuf>,
    /// File system under the data directory.
    pub file_system: FileSystem,
    /// How long each of the two loads runs, in milliseconds.
    pub load_ms: u64,
    /// Points of each mode.
    pub points: usize,
    /// Seeds load, cuts and what survives.
    pub seed: u64,
}

/// What a corelane session noted, kept beside the recording.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Noted {
    acks: Vec<Ack>,
    next_id: u64,
}

/// The topics under load: the first is `device`, the others may lose what was acknowledged.
fn topics() -> Vec<Topic> {
    vec![Topic { name: "cut-device".into(), partitions: 3 }, Topic { name: "cut-written".into(), partitions: 1 }]
}

/// Records `corelane` under load (killed and started again half way), judges the trace, and replays cuts of both modes.
///
/// # Errors
/// The harness failed; what corelane got wrong is counted in the result.
pub fn run(workdir: &Path, plan: &Plan) -> Result<Replayed> {
    let (recording, noted) = record(workdir, plan.file_system, |mount| workload(workdir, mount, plan))?;
    fs::write(workdir.join("acks.json"), serde_json::to_string(&noted)?)?;
    judge(workdir, plan, &recording, &noted)
}

/// Judges a recording of an earlier run again.
///
/// # Errors
/// See [`run`].
pub fn again(workdir: &Path, plan: &Plan) -> Result<Replayed> {
    let noted = serde_json::from_str(&fs::read_to_string(workdir.join("acks.json"))?)?;
    judge(workdir, plan, &load(workdir)?, &noted)
}

fn workload(workdir: &Path, mount: &Path, plan: &Plan) -> Result<Noted> {
    let options = HostOptions::new(plan.binary.as_deref(), &mount.join("data"), &workdir.join("corelane.log"))?;
    let mut host = Host::start(&options)?;
    let mut load = LoadOptions { duration: Duration::from_millis(plan.load_ms), seed: plan.seed, ..LoadOptions::default() };
    let mut wire = Wire::connect(host.address())?;
    for (topic, class) in topics().iter().zip(["device", "written"]) {
        let configs = [("durability", class), ("segment.bytes", "1048576")];
        load.topics.push((wire.create_topic(&topic.name, topic.partitions, &configs)?, topic.partitions));
    }
    let address = host.address();
    let mut noted = Noted { acks: Vec::new(), next_id: 1 };
    // Killed while requests are in flight, so that recovery's own writes are part of the recording.
    let loading = std::thread::spawn({
        let load = LoadOptions { duration: Duration::from_secs(3600), ..load.clone() };
        move || load::run(address, &load, 1)
    });
    crate::real::pause(Duration::from_millis(plan.load_ms));
    host.kill()?;
    let first: Loaded = loading.join().map_err(|_| anyhow::anyhow!("the load panicked"))??;
    ensure!(first.broken && !first.acks.is_empty(), "the first load acknowledged {} batches", first.acks.len());
    noted.acks.extend(first.acks);
    host = Host::start(&options)?;
    let second = load::run(host.address(), &load, first.next_id)?;
    ensure!(!second.broken && !second.acks.is_empty(), "the second load acknowledged {} batches", second.acks.len());
    noted.acks.extend(second.acks);
    noted.next_id = second.next_id;
    host.stop()?;
    Ok(noted)
}

/// One claim per acknowledged record.
fn claims_of<'a>(acks: impl IntoIterator<Item = &'a Ack>) -> Vec<Claim> {
    let claim = |ack: &'a Ack, index| Claim { id: ack.first_id + index, markers: ack.value_bytes / MARKER_BYTES, at: ack.at };
    acks.into_iter().flat_map(|ack| (0..u64::from(ack.records)).map(move |index| claim(ack, index))).collect()
}

fn judge(workdir: &Path, plan: &Plan, recording: &Recording, noted: &Noted) -> Result<Replayed> {
    let device: Vec<Ack> = noted.acks.iter().filter(|ack| ack.topic == 0).copied().collect();
    let flushes = recording.flushes.iter().filter(|flush| flush.done <= recording.span.done).count();
    println!(
        "{}: recorded {} writes, {flushes} flushes, {} acknowledged batches, {} of them device",
        plan.file_system.name(),
        recording.writes.len(),
        noted.acks.len(),
        device.len()
    );
    let mut all = Replayed::default();
    let claims = claims_of(&device);
    let uncovered = coverage::judge(recording, &claims)?;
    for one in uncovered.iter().take(5) {
        println!(
            "FAILED trace: record {} was acknowledged with {} of {} parts flushed ({:?} ns early)",
            one.id, one.covered, one.markers, one.late_by
        );
    }
    println!(
        "trace: {} of {} acknowledged device records follow a flush of their bytes",
        claims.len() - uncovered.len(),
        claims.len()
    );
    if uncovered.is_empty() {
        all.passed += 1
    } else {
        all.failed += 1
    }
    let options = HostOptions::new(plan.binary.as_deref(), &workdir.join("cut").join("data"), &workdir.join("replay.log"))?;
    let moments: Vec<u64> = device.iter().map(|ack| ack.at).collect();
    for mode in [Mode::Prefix, Mode::Torn] {
        let cuts = cuts(recording, mode, plan.points, plan.seed, &moments);
        let result = replay(workdir, plan.file_system, recording, &cuts, |_, cut| {
            let acks: Vec<Ack> = device.iter().filter(|ack| ack.at < cut.at).copied().collect();
            let host = Host::start(&options)?;
            let expected = Expected { topics: &topics(), acks: &acks, next_id: noted.next_id, topics_may_lack: true };
            let audited = audit::run(host.address(), expected)?;
            host.stop()?;
            Ok(format!("{audited:?}"))
        })?;
        println!(
            "{mode:?}: {} points, {} failed, {} mounted only after a repair, {} with uncovered writes, {} with torn ones",
            cuts.len(),
            result.failed,
            result.repaired,
            result.loose,
            result.torn
        );
        all.passed += result.passed;
        all.failed += result.failed;
        all.repaired += result.repaired;
        all.loose += result.loose;
        all.torn += result.torn;
    }
    Ok(all)
}
