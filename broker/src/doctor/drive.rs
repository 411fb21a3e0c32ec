//! A data directory: its file system and mount options, direct I/O, the drive under it and what that drive is.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::measure::{self, Measured};
use super::system::System;
use super::{Finding, Level};

/// What keeps acknowledged bytes when the power goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriveClass {
    /// No volatile write cache, or one protected against power loss: a completed write stays.
    Protected,
    /// A volatile write cache and FUA: single writes can bypass it.
    CachedWithFua,
    /// A volatile write cache without FUA: a durable write is a write and a flush.
    Cached,
    /// No block device to ask (tmpfs, overlay, network).
    Unknown,
}

impl DriveClass {
    fn text(self) -> &'static str {
        match self {
            DriveClass::Protected => "write cache protected or absent",
            DriveClass::CachedWithFua => "volatile write cache, FUA",
            DriveClass::Cached => "volatile write cache, no FUA: durable is write and flush",
            DriveClass::Unknown => "unknown: no block device",
        }
    }
}

/// The drive under a data directory.
#[derive(Clone, Debug, Serialize)]
pub struct Drive {
    /// The data directory.
    pub directory: PathBuf,
    /// The kernel's name for the device, such as nvme0n1.
    pub device: Option<String>,
    /// The file system.
    pub file_system: String,
    /// What it is.
    pub class: DriveClass,
    /// The unit that the drive writes whole, in bytes: what it says, or its physical block.
    pub atomic_write_bytes: Option<u64>,
    /// Its physical block, in bytes.
    pub physical_block_bytes: Option<u64>,
    /// What was measured, if it was asked for and possible.
    pub measured: Option<Measured>,
}

impl Drive {
    pub(super) fn text(&self) -> String {
        let bytes = |value: Option<u64>| value.map_or("unknown".to_owned(), |bytes| format!("{bytes} B"));
        let mut text = format!(
            "\n{}\n  {} on {}: {}; physical block {}, written whole {}\n",
            self.directory.display(),
            self.file_system,
            self.device.as_deref().unwrap_or("no block device"),
            self.class.text(),
            bytes(self.physical_block_bytes),
            bytes(self.atomic_write_bytes)
        );
        if let Some(measured) = &self.measured {
            text.push_str(&measured.text());
        }
        text
    }
}

/// The mount that a path lies on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    device: String,
    point: String,
    options: String,
    file_system: String,
}

/// Looks at one data directory.
pub(super) fn examine(system: &System, directory: &Path, measure: bool) -> (Option<Drive>, Vec<Finding>) {
    let name = format!("data {}", directory.display());
    // A directory that doesn't exist yet is judged by where it would be made.
    let Some(there) = directory.ancestors().find(|path| path.is_dir()).map(Path::to_owned) else {
        return (
            None,
            vec![Finding::bad(&name, Level::Failure, "no part of the path exists", format!("mkdir -p {}", directory.display()))],
        );
    };
    let there = fs::canonicalize(&there).unwrap_or(there);
    let Ok(meta) = fs::metadata(&there) else {
        return (
            None,
            vec![Finding::bad(&name, Level::Failure, "can't be read", format!("chown corelane: {}", there.display()))],
        );
    };
    let number = format!("{}:{}", rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    let Some(mount) = mount_of(&system.text("/proc/self/mountinfo").unwrap_or_default(), &there, &number) else {
        return (None, vec![Finding::bad(&name, Level::Warning, "its mount isn't in /proc/self/mountinfo", "mount /proc")]);
    };
    let mut findings = vec![file_system(&name, &mount), mount_options(&name, &mount)];
    let queue = queue_of(system, &mount.device);
    let class = class_of(system, queue.as_ref());
    findings.extend(queue.as_ref().map(|queue| queue_settings(system, &name, queue)).unwrap_or_default());
    findings.extend(spinning(&name, class));
    let measured = match measure::direct_io(&there) {
        Ok(()) => {
            findings.push(Finding::good(&name, "O_DIRECT works"));
            measure.then(|| measure::measure(&there))
        }
        Err(error) => {
            let remedy =
                "put the data directory on XFS or ext4 on a local drive (deploy/xfs.md), writable for the service's user";
            findings.push(Finding::bad(&name, Level::Failure, format!("O_DIRECT: {error}"), remedy));
            None
        }
    };
    let measured = match measured {
        Some(Err(error)) => {
            findings.push(Finding::bad(
                &name,
                Level::Failure,
                format!("could not be measured: {error}"),
                "look at the kernel's log: dmesg --level=err,warn",
            ));
            None
        }
        Some(Ok(measured)) => Some(measured),
        None => None,
    };
    let of_queue = |file: &str| queue.as_ref().and_then(|queue| system.number(&format!("{}/queue/{file}", queue.folder)));
    let physical_block_bytes = of_queue("physical_block_size");
    let drive = Drive {
        directory: directory.to_owned(),
        device: queue.as_ref().map(|queue| queue.device.clone()),
        file_system: mount.file_system,
        class,
        atomic_write_bytes: of_queue("atomic_write_unit_max_bytes").filter(|bytes| *bytes > 0).or(physical_block_bytes),
        physical_block_bytes,
        measured,
    };
    (Some(drive), findings)
}

/// The last mount whose device number fits, with the longest mount point above the path.
fn mount_of(mountinfo: &str, path: &Path, number: &str) -> Option<Mount> {
    let mut best: Option<Mount> = None;
    for line in mountinfo.lines() {
        let (head, tail) = line.split_once(" - ")?;
        let head: Vec<&str> = head.split(' ').collect();
        let tail: Vec<&str> = tail.split(' ').collect();
        let (&device, point, &options) = (head.get(2)?, head.get(4)?.replace("\\040", " "), head.get(5)?);
        if !path.starts_with(&point) || best.as_ref().is_some_and(|best| best.point.len() > point.len()) {
            continue;
        }
        let options = [options, tail.get(2).copied().unwrap_or("")].join(",");
        best = Some(Mount { device: device.to_owned(), point, options, file_system: (*tail.first()?).to_owned() });
    }
    // On file systems with several devices (btrfs) the numbers differ; the mount point decides.
    best.map(|mount| if mount.device.starts_with("0:") { Mount { device: number.to_owned(), ..mount } } else { mount })
}

fn file_system(name: &str, mount: &Mount) -> Finding {
    let advice = "use XFS or ext4 on a local drive: deploy/xfs.md";
    let found = format!("{} at {}", mount.file_system, mount.point);
    match mount.file_system.as_str() {
        "xfs" | "ext4" => Finding::good(name, found),
        "tmpfs" | "ramfs" => Finding::bad(name, Level::Warning, format!("{found}: in memory, nothing survives"), advice),
        "nfs" | "nfs4" | "cifs" | "9p" | "fuse" | "virtiofs" => {
            Finding::bad(name, Level::Failure, format!("{found}: flushes aren't ours to promise"), advice)
        }
        _ => Finding::bad(
            name,
            Level::Warning,
            format!("{found}: not tested here; copy-on-write and overlays punt direct writes"),
            advice,
        ),
    }
}

fn mount_options(name: &str, mount: &Mount) -> Finding {
    let has = |option: &str| mount.options.split(',').any(|one| one == option);
    let remount = |options: &str| format!("mount -o remount,{options} {} (and in /etc/fstab)", mount.point);
    if has("ro") {
        return Finding::bad(name, Level::Failure, "mounted read-only", remount("rw"));
    }
    if has("nobarrier") || has("barrier=0") {
        return Finding::bad(name, Level::Failure, "barriers are off: a flush promises nothing", remount("barrier=1"));
    }
    if has("sync") || has("dirsync") {
        return Finding::bad(name, Level::Warning, "mounted with sync: every metadata change waits", remount("async"));
    }
    let missing: Vec<&str> = ["noatime", "lazytime"].into_iter().filter(|option| !has(option)).collect();
    let discards = has("discard") && mount.file_system == "ext4";
    if missing.is_empty() && !discards {
        return Finding::good(name, "mount options: noatime, lazytime");
    }
    let mut options = missing.join(",");
    let mut found = format!("mount options without {}: time stamps are journaled between writes", missing.join(", "));
    if discards {
        options = [options.as_str(), "nodiscard"].iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join(",");
        found = "mounted with discard: freeing a segment stalls appends; use fstrim.timer".to_owned();
    }
    Finding::bad(name, Level::Note, found, remount(&options))
}

/// A block device and its folder below /sys.
struct Queue {
    device: String,
    folder: String,
}

/// The whole device of a partition's number.
fn queue_of(system: &System, number: &str) -> Option<Queue> {
    let link = fs::canonicalize(system.path(&format!("/sys/dev/block/{number}"))).ok()?;
    let whole = if link.join("partition").exists() { link.parent()?.to_owned() } else { link };
    let device = whole.file_name()?.to_str()?.to_owned();
    whole.join("queue").is_dir().then(|| Queue { folder: whole.to_string_lossy().into_owned(), device })
}

impl System {
    fn queue_text(&self, queue: &Queue, file: &str) -> Option<String> {
        // The folder was resolved already: it is absolute, whatever the root.
        fs::read_to_string(Path::new(&queue.folder).join("queue").join(file)).ok().map(|text| text.trim().to_owned())
    }
}

fn class_of(system: &System, queue: Option<&Queue>) -> DriveClass {
    let Some(queue) = queue else { return DriveClass::Unknown };
    let fua = system.queue_text(queue, "fua").as_deref() == Some("1");
    match system.queue_text(queue, "write_cache").as_deref() {
        Some("write through") => DriveClass::Protected,
        Some("write back") if fua => DriveClass::CachedWithFua,
        Some("write back") => DriveClass::Cached,
        _ => DriveClass::Unknown,
    }
}

fn queue_settings(system: &System, name: &str, queue: &Queue) -> Vec<Finding> {
    let mut findings = Vec::new();
    let at = format!("/sys/block/{}/queue", queue.device);
    if system.queue_text(queue, "rotational").as_deref() == Some("1")
        && !queue.device.starts_with("vd")
        && !queue.device.starts_with("loop")
    {
        findings.push(Finding::bad(
            name,
            Level::Warning,
            format!("{} turns: every flush costs milliseconds", queue.device),
            "use an NVMe or SSD drive",
        ));
    }
    if let Some(scheduler) = system.queue_text(queue, "scheduler") {
        let current = scheduler
            .split_once('[')
            .and_then(|(_, rest)| rest.split_once(']'))
            .map_or(scheduler.as_str(), |(current, _)| current);
        findings.push(if current == "none" || current == "mq-deadline" {
            Finding::good(name, format!("{}: scheduler {current}", queue.device))
        } else {
            Finding::bad(
                name,
                Level::Note,
                format!("{}: scheduler {current} costs time per request", queue.device),
                format!("echo none > {at}/scheduler"),
            )
        });
    }
    if queue.device.starts_with("nvme") {
        findings.push(interrupts(system, name, queue));
    }
    findings
}

/// An NVMe drive has a queue, and so an interrupt, per processor: else completions arrive on other cores.
fn interrupts(system: &System, name: &str, queue: &Queue) -> Finding {
    let folder = Path::new(&queue.folder).join("device/device/msi_irqs");
    let count = fs::read_dir(folder).map_or(0, Iterator::count);
    let processors = system.text("/sys/devices/system/cpu/online").unwrap_or_default();
    if count > 1 {
        return Finding::good(name, format!("{}: {count} interrupts for processors {processors}", queue.device));
    }
    let found = format!("{}: {count} interrupt for processors {processors}: completions arrive on one of them", queue.device);
    Finding::bad(
        name,
        Level::Note,
        found,
        "see deploy/tuning.md, interrupts: one queue per processor (nvme.poll_queues, irqaffinity)",
    )
}

/// A core that always polls starves the kernel worker that finishes synchronous writes on drives without FUA.
fn spinning(name: &str, class: DriveClass) -> Option<Finding> {
    let found = "no FUA: `--spin always` starves the kernel's workers that finish durable writes (milliseconds)";
    (class == DriveClass::Cached).then(|| Finding::bad(name, Level::Note, found, "leave --spin off (the default) on this drive"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 259:2 / /data rw,noatime,lazytime shared:2 - xfs /dev/nvme0n1p2 rw,attr2
31 22 0:40 / /data/my\\040tmp rw - tmpfs tmpfs rw
32 22 8:1 / /old rw,relatime - ext4 /dev/sda1 rw,barrier=0,discard";

    fn mount(path: &str) -> Mount {
        mount_of(MOUNTS, Path::new(path), "9:9").unwrap()
    }

    #[test]
    fn the_mount_is_the_deepest_above_the_path() {
        assert_eq!(mount("/data/x/y").file_system, "xfs");
        assert_eq!(mount("/data/my tmp/x").file_system, "tmpfs");
        assert_eq!(mount("/datax").point, "/");
    }

    #[test]
    fn file_systems_and_options_are_judged() {
        assert_eq!(file_system("d", &mount("/data")).level, Level::Good);
        assert_eq!(mount_options("d", &mount("/data")).level, Level::Good);
        assert_eq!(mount_options("d", &mount("/")).level, Level::Note);
        assert!(mount_options("d", &mount("/")).remedy.unwrap().contains("noatime,lazytime /"));
        assert_eq!(file_system("d", &mount("/data/my tmp")).level, Level::Warning);
        assert_eq!(mount_options("d", &mount("/old")).level, Level::Failure);
    }

    #[test]
    fn the_class_follows_from_cache_and_fua() {
        for (cache, fua, class) in [
            ("write through", "0", DriveClass::Protected),
            ("write back", "1", DriveClass::CachedWithFua),
            ("write back", "0", DriveClass::Cached),
        ] {
            let folder = super::super::tests::Folder::with(&[
                ("dev/queue/write_cache", cache),
                ("dev/queue/fua", fua),
                ("dev/queue/scheduler", "none [bfq]"),
            ]);
            let queue = Queue { device: "sda".into(), folder: folder.path().join("dev").to_string_lossy().into_owned() };
            let system = System::at(folder.path());
            assert_eq!(class_of(&system, Some(&queue)), class);
            assert_eq!(spinning("d", class).is_some(), class == DriveClass::Cached);
            assert!(queue_settings(&system, "d", &queue)[0].remedy.as_ref().unwrap().contains("/sys/block/sda/queue/scheduler"));
        }
    }

    #[test]
    fn a_directory_that_isn_t_there_yet_is_judged_by_its_parent() {
        let folder = super::super::tests::Folder::with(&[]);
        let (drive, findings) = examine(&System::real(), &folder.path().join("new/data"), false);
        assert!(drive.is_some());
        assert!(!findings.is_empty());
        assert!(!folder.path().join("new").exists());
    }
}
