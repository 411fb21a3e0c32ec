//! The recorded disk: image, qemu's write log, FUSE export, loop device, file system; built in order, removed in reverse.
//!
//! Everything attached is also written to `active` in the work directory, so that [`clean`] can remove it after a
//! kill -9. The FUSE connection carries one request at a time: the export has been seen to mix up the data of writes that
//! were in flight together (requests still overlap at the block layer, where the times are taken).

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::json;

use super::image::copy_sparse;
use super::trace::Tracer;
use crate::real::wait_until;

/// A file system under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum FileSystem {
    /// ext4, data=ordered.
    Ext4,
    /// XFS.
    Xfs,
}

impl FileSystem {
    /// The name that `mount` knows.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Xfs => "xfs",
        }
    }

    fn make(self, image: &Path) -> Result<()> {
        let image = image.to_str().context("the work directory's path is not UTF-8")?;
        match self {
            FileSystem::Ext4 => {
                let extended = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
                command("mkfs.ext4", &["-q", "-F", "-m", "0", "-N", "8192", "-J", "size=16", "-E", extended, image])
            }
            FileSystem::Xfs => command("mkfs.xfs", &["-q", "-f", "-K", image]),
        }
        .map(drop)
    }

    fn options(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "noatime,nodiscard,errors=remount-ro",
            FileSystem::Xfs => "noatime,nodiscard,nouuid",
        }
    }

    fn repairs(self) -> &'static [&'static [&'static str]] {
        match self {
            FileSystem::Ext4 => &[&["e2fsck", "-fy"]],
            FileSystem::Xfs => &[&["xfs_repair"], &["xfs_repair", "-L"]],
        }
    }
}

/// Runs a program to its end and gives back what it printed.
///
/// # Errors
/// The program is missing, or failed; with what it said.
pub fn command(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| match error.kind() {
        ErrorKind::NotFound => anyhow!("{program} is not installed (deploy/scripts/setup.sh test installs it)"),
        _ => anyhow!("{program}: {error}"),
    })?;
    let said = String::from_utf8_lossy(if output.stderr.is_empty() { &output.stdout } else { &output.stderr }).trim().to_owned();
    ensure!(output.status.success(), "{program} {}: {}: {said}", arguments.join(" "), output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Something to undo.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Attached {
    Process(u32),
    Mount(PathBuf),
    Loop(String),
    Trace(PathBuf),
    File(PathBuf),
}

impl Attached {
    fn line(&self) -> String {
        match self {
            Attached::Process(id) => format!("process {id}"),
            Attached::Mount(path) => format!("mount {}", path.display()),
            Attached::Loop(device) => format!("loop {device}"),
            Attached::Trace(path) => format!("trace {}", path.display()),
            Attached::File(path) => format!("file {}", path.display()),
        }
    }

    fn parse(line: &str) -> Option<Attached> {
        let (kind, value) = line.split_once(' ')?;
        match kind {
            "process" => value.parse().ok().map(Attached::Process),
            "mount" => Some(Attached::Mount(value.into())),
            "loop" => Some(Attached::Loop(value.to_owned())),
            "trace" => Some(Attached::Trace(value.into())),
            "file" => Some(Attached::File(value.into())),
            _ => None,
        }
    }

    /// Undoes it; what is gone already is no error. `workdir` guards against numbers that belong to others by now.
    fn undo(&self, workdir: &Path) -> Result<()> {
        match self {
            Attached::Process(id) => end_process(*id, workdir),
            Attached::Mount(path) => unmount(path),
            Attached::Loop(device) => detach_loop(device, workdir),
            Attached::Trace(path) => match fs::remove_dir(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error).with_context(|| path.display().to_string()),
                _ => Ok(()),
            },
            Attached::File(path) => match fs::remove_file(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error).with_context(|| path.display().to_string()),
                _ => Ok(()),
            },
        }
    }
}

/// What is attached, newest last. Dropping it undoes the rest.
pub struct Stack {
    workdir: PathBuf,
    items: Vec<Attached>,
    children: Vec<Child>,
}

impl Stack {
    /// An empty stack that keeps its list in `workdir`.
    #[must_use]
    pub fn new(workdir: &Path) -> Stack {
        Stack { workdir: workdir.to_owned(), items: Vec::new(), children: Vec::new() }
    }

    fn push(&mut self, item: Attached) -> Result<()> {
        self.items.push(item);
        self.save()
    }

    fn save(&self) -> Result<()> {
        let lines: String = self.items.iter().map(|item| item.line() + "\n").collect();
        fs::write(self.workdir.join("active"), lines).context("the list of what is attached")
    }

    /// How much is attached; see [`Stack::unwind`].
    #[must_use]
    pub fn depth(&self) -> usize {
        self.items.len()
    }

    /// Undoes the newest until `depth` are left.
    ///
    /// # Errors
    /// The first that could not be undone; the others are all the same.
    pub fn unwind(&mut self, depth: usize) -> Result<()> {
        let mut first = None;
        while self.items.len() > depth {
            let Some(item) = self.items.pop() else { break };
            if let Attached::Process(id) = item
                && let Some(at) = self.children.iter().position(|child| child.id() == id)
            {
                let mut child = self.children.swap_remove(at);
                let _ = command("kill", &["-TERM", &id.to_string()]);
                if !wait_until(Duration::from_secs(10), || child.try_wait().is_ok_and(|status| status.is_some())) {
                    let _ = child.kill();
                    let _ = child.wait();
                }
            }
            if let Err(error) = item.undo(&self.workdir) {
                first = first.or(Some(error.context(format!("not cleaned up: {}", item.line()))));
            }
            self.save()?;
        }
        first.map_or(Ok(()), Err)
    }

    /// Attaches a file to a loop device.
    ///
    /// # Errors
    /// No free loop device, or no direct I/O on the file where it is asked for.
    pub fn attach(&mut self, file: &Path, direct: bool) -> Result<String> {
        let direct = if direct { "--direct-io=on" } else { "--direct-io=off" };
        let device = command("losetup", &["--find", "--show", direct, &file.to_string_lossy()])?;
        self.push(Attached::Loop(device.clone()))?;
        Ok(device)
    }

    /// Mounts a device (or a pseudo file system) at a directory that is created.
    ///
    /// # Errors
    /// As `mount` says.
    pub fn mount(&mut self, kind: &str, options: &str, device: &str, at: &Path) -> Result<()> {
        fs::create_dir_all(at)?;
        command("mount", &["-t", kind, "-o", options, device, &at.to_string_lossy()])?;
        self.push(Attached::Mount(at.to_owned()))
    }

    /// Notes a file to be removed.
    ///
    /// # Errors
    /// The list can't be written.
    pub fn temporary(&mut self, path: &Path) -> Result<()> {
        self.push(Attached::File(path.to_owned()))
    }

    /// Leaves everything attached, to be undone by [`clean`].
    pub fn leave(mut self) {
        self.items.clear();
    }

    /// Mounts the disk itself, unrecorded.
    ///
    /// # Errors
    /// As `losetup` and `mount` say.
    pub fn mount_disk(&mut self, file_system: FileSystem, image: &Path, at: &Path) -> Result<()> {
        let device = self.attach(image, true)?;
        self.mount(file_system.name(), file_system.options(), &device, at)
    }

    /// Mounts a replayed image; repairs its file system if the mount fails. Says whether it had to.
    ///
    /// # Errors
    /// It can't be mounted even after a repair.
    pub fn mount_replayed(&mut self, file_system: FileSystem, image: &Path, at: &Path) -> Result<bool> {
        let device = self.attach(image, false)?;
        let Err(first) = self.mount(file_system.name(), file_system.options(), &device, at) else { return Ok(false) };
        for repair in file_system.repairs() {
            let mut arguments = repair[1..].to_vec();
            arguments.push(&device);
            let _ = command(repair[0], &arguments);
            if self.mount(file_system.name(), file_system.options(), &device, at).is_ok() {
                return Ok(true);
            }
        }
        Err(first.context("unmountable, even after a repair"))
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if let Err(error) = self.unwind(0) {
            eprintln!("powercut: {error:#}");
        }
    }
}

/// Undoes what a killed run left attached, by the list in `workdir`.
///
/// # Errors
/// Something could not be undone.
pub fn clean(workdir: &Path) -> Result<usize> {
    let Ok(text) = fs::read_to_string(workdir.join("active")) else { return Ok(0) };
    let mut stack = Stack::new(workdir);
    stack.items = text.lines().filter_map(Attached::parse).collect();
    let count = stack.items.len();
    stack.unwind(0)?;
    Ok(count)
}

/// Names of the files in a work directory.
pub struct Files {
    /// The disk right after mkfs.
    pub base: PathBuf,
    /// The disk as the run left it.
    pub disk: PathBuf,
    /// Writes with their data, and flushes.
    pub log: PathBuf,
    /// The kernel's block events.
    pub trace: PathBuf,
    /// Where the file system is mounted.
    pub mount: PathBuf,
    export: PathBuf,
    daemon_output: PathBuf,
}

impl Files {
    /// The names below `workdir`.
    #[must_use]
    pub fn below(workdir: &Path) -> Files {
        let name = |name: &str| workdir.join(name);
        Files {
            base: name("base.img"),
            disk: name("disk.img"),
            log: name("log"),
            trace: name("trace.txt"),
            mount: name("mnt"),
            export: name("export"),
            daemon_output: name("storage-daemon.out"),
        }
    }
}

/// A recorded disk, mounted.
pub struct Rig {
    stack: Stack,
    tracer: Option<Tracer>,
    /// Its files.
    pub files: Files,
}

/// Makes a disk of `size` bytes in `workdir` with a fresh file system.
///
/// # Errors
/// A missing tool, by name, or what it said.
pub fn make_disk(workdir: &Path, file_system: FileSystem, size: u64) -> Result<()> {
    let files = Files::below(workdir);
    fs::create_dir_all(workdir)?;
    for path in [&files.base, &files.disk, &files.log, &files.trace, &files.export] {
        let _ = fs::remove_file(path);
    }
    fs::File::create(&files.disk)?.set_len(size)?;
    file_system.make(&files.disk)
}

impl Rig {
    /// Builds the whole stack on the disk that [`make_disk`] made, whatever has been written to it since.
    ///
    /// # Errors
    /// A missing tool, by name, or what it said.
    pub fn build(workdir: &Path, file_system: FileSystem) -> Result<Rig> {
        let files = Files::below(workdir);
        let size = fs::metadata(&files.disk).context("the disk has to be made first")?.len();
        copy_sparse(&files.disk, &files.base)?;
        let mut stack = Stack::new(workdir);
        start_export(&mut stack, &files, size)?;
        serialise_export(&mut stack, workdir, &files.export)?;
        let device = stack.attach(&files.export, true)?;
        let system = PathBuf::from(format!("/sys/block/{}", device.trim_start_matches("/dev/")));
        ensure!(fs::read_to_string(system.join("loop/dio"))?.trim() == "1", "the loop device did not accept direct I/O");
        // One request is one entry of the log; no discards, and zeroing arrives as writes of zeros.
        fs::write(system.join("queue/max_sectors_kb"), "512")?;
        fs::write(system.join("queue/discard_max_bytes"), "0")?;
        let tracer = start_trace(&mut stack, workdir, &device, &files.trace)?;
        stack.mount(file_system.name(), file_system.options(), &device, &files.mount)?;
        rustix::fs::syncfs(fs::File::open(&files.mount)?)?;
        Ok(Rig { stack, tracer: Some(tracer), files })
    }

    /// Unmounts and takes everything apart; the recording is complete after it.
    ///
    /// # Errors
    /// Something could not be undone, or the trace could not be written.
    pub fn finish(mut self) -> Result<Files> {
        // The mount is the newest: its last writes belong to the trace.
        let depth = self.stack.depth();
        self.stack.unwind(depth - 1)?;
        if let Some(tracer) = self.tracer.take() {
            tracer.finish()?;
        }
        self.stack.unwind(0)?;
        let mount = self.files.mount.clone();
        drop(fs::remove_dir(mount));
        Ok(Files::below(&self.stack.workdir))
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(tracer) = self.tracer.take() {
            let _ = tracer.finish();
        }
    }
}

fn start_export(stack: &mut Stack, files: &Files, size: u64) -> Result<()> {
    for path in [&files.log, &files.export] {
        fs::File::create(path)?;
    }
    stack.temporary(&files.export)?;
    let file = |name: &str, path: &Path| {
        json!({"driver": "file", "node-name": name, "filename": path, "discard": "unmap", "cache": {"direct": false, "no-flush": true}}).to_string()
    };
    let record = json!({"driver": "blklogwrites", "node-name": "record", "file": "disk", "log": "log", "log-sector-size": 512})
        .to_string();
    let export =
        json!({"type": "fuse", "id": "export", "node-name": "record", "mountpoint": files.export, "writable": true}).to_string();
    let output = fs::File::create(&files.daemon_output)?;
    let child = Command::new("qemu-storage-daemon")
        .args([
            "--blockdev",
            &file("disk", &files.disk),
            "--blockdev",
            &file("log", &files.log),
            "--blockdev",
            &record,
            "--export",
            &export,
        ])
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
        .map_err(|error| anyhow!("qemu-storage-daemon: {error} (deploy/scripts/setup.sh test installs it)"))?;
    let id = child.id();
    stack.children.push(child);
    stack.push(Attached::Process(id))?;
    stack.push(Attached::Mount(files.export.clone()))?;
    let ready = wait_until(Duration::from_secs(10), || {
        is_mounted(&files.export) && fs::metadata(&files.export).is_ok_and(|meta| meta.len() == size)
    });
    let said = || fs::read_to_string(&files.daemon_output).unwrap_or_default();
    ensure!(ready, "the FUSE export did not appear: {}", said().trim());
    Ok(())
}

/// Holds the FUSE connection of `export` to one request in flight.
fn serialise_export(stack: &mut Stack, workdir: &Path, export: &Path) -> Result<()> {
    let control = workdir.join("fusectl");
    let depth = stack.depth();
    stack.mount("fusectl", "rw", "none", &control)?;
    let minor = rustix::fs::minor(fs::metadata(export)?.dev());
    let knob = control.join(minor.to_string()).join("max_background");
    fs::write(&knob, "1").with_context(|| knob.display().to_string())?;
    ensure!(fs::read_to_string(&knob)?.trim() == "1", "the FUSE connection could not be held to one request");
    stack.unwind(depth)?;
    drop(fs::remove_dir(control));
    Ok(())
}

fn start_trace(stack: &mut Stack, workdir: &Path, device: &str, out: &Path) -> Result<Tracer> {
    let mut root = PathBuf::from("/sys/kernel/tracing");
    if !root.join("instances").exists() {
        root = workdir.join("tracefs");
        stack.mount("tracefs", "rw", "nodev", &root).context("block events need tracefs")?;
    }
    let instance = root.join("instances").join(format!("powercut-{}", std::process::id()));
    fs::create_dir(&instance).with_context(|| instance.display().to_string())?;
    stack.push(Attached::Trace(instance.clone()))?;
    let number = fs::metadata(device)?.rdev();
    Tracer::start(&instance, (rustix::fs::major(number), rustix::fs::minor(number)), out)
}

fn is_mounted(path: &Path) -> bool {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()).to_string_lossy().replace(' ', "\\040");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(4) == Some(path.as_str()))
}

fn unmount(path: &Path) -> Result<()> {
    let text = path.to_string_lossy();
    if wait_until(Duration::from_secs(5), || !is_mounted(path) || command("umount", &[&text]).is_ok()) {
        return Ok(());
    }
    command("umount", &["-l", &text])?;
    bail!("{text} was busy: detached lazily")
}

fn detach_loop(device: &str, workdir: &Path) -> Result<()> {
    let node = PathBuf::from(format!("/sys/block/{}/loop/backing_file", device.trim_start_matches("/dev/")));
    let ours = || fs::read_to_string(&node).is_ok_and(|file| file.starts_with(&*workdir.to_string_lossy()));
    let gone = wait_until(Duration::from_secs(5), || !ours() || command("losetup", &["-d", device]).is_ok() && !ours());
    ensure!(gone, "{device} is still attached");
    Ok(())
}

/// Ends a storage daemon that a killed run left behind; a number that belongs to another process by now is left alone.
fn end_process(id: u32, workdir: &Path) -> Result<()> {
    let ours = || {
        let line = fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
        line.starts_with("qemu-storage-daemon") && line.contains(&*workdir.to_string_lossy())
    };
    for signal in ["-TERM", "-KILL"] {
        if !ours() {
            return Ok(());
        }
        let _ = command("kill", &[signal, &id.to_string()]);
        wait_until(Duration::from_secs(5), || !ours());
    }
    ensure!(!ours(), "process {id} is still running");
    Ok(())
}
