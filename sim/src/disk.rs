//! The simulated disk of one host: `runtime::Disk` and `runtime::File` over [`filesystem::FileSystem`], with latencies and faults.
//!
//! An operation is submitted when its future is first polled and goes on when the future is dropped, as on the ring: it takes effect
//! at a random moment before it is answered, so that a crash falls between the two. A write's bytes are read from its chunk
//! when it completes, never before: a chunk reused too early shows.

mod content;
mod file;
pub(crate) mod filesystem;
mod names;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use runtime::disk::flush_error;
use runtime::local::once;
use runtime::uring::memory::DanglingSlice;
use runtime::{ChunkSlice, DirectoryEntry, Disk, Durability, Space};

pub use file::SimFile;
pub use filesystem::Sectors;
use filesystem::{ChangeKind, EIO, ENOSPC, FileSystem, tear};
use names::{Inode, NameChange};

use crate::random::mix;
use crate::world::World;

/// Faults of a disk that can be switched on and off; chances are in a million operations.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskFaults {
    /// A write fails with EIO; any part of it may have reached the disk.
    pub write_errors_ppm: u64,
    /// A read fails with EIO.
    pub read_errors_ppm: u64,
    /// A flush of a file or a directory fails with EIO; what it should have covered may be lost for good, and so may what other files of the
    /// disk have written.
    pub flush_errors_ppm: u64,
    /// A flush that fails says ENOSPC instead, as with delayed allocation and quotas.
    pub flush_errors_are_full: bool,
    /// An operation on names or small files fails with EIO, before it flushes.
    pub name_errors_ppm: u64,
    /// Bytes that something else has taken from the disk.
    pub bytes_taken: u64,
    /// Latencies are multiplied by this, if not 0.
    pub slowness: u64,
}

/// What a disk has been asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskCounters {
    /// Writes completed.
    pub writes: u64,
    /// Flushes completed.
    pub flushes: u64,
    /// Writes that touched written and unwritten blocks at once (punted by a real kernel).
    pub crossing_writes: u64,
    /// Errors injected.
    pub errors: u64,
}

/// The disk's state, which outlives the processes that use it.
pub(crate) struct DiskState {
    pub(crate) files: RefCell<FileSystem>,
    in_flight: RefCell<BTreeMap<u64, WriteInFlight>>,
    pub(crate) incarnation: Cell<u64>,
    pub(crate) faults: Cell<DiskFaults>,
    pub(crate) counters: Cell<DiskCounters>,
    sectors: Sectors,
    capacity_bytes: u64,
}

enum Source {
    Held(ChunkSlice),
    Released(DanglingSlice),
}

impl Source {
    fn bytes(&self) -> Rc<[u8]> {
        match self {
            Source::Held(slice) => Rc::from(&slice[..]),
            Source::Released(slice) => slice.copy_out().into(),
        }
    }
}

struct WriteInFlight {
    inode: Inode,
    position: u64,
    source: Source,
    durability: Durability,
}

/// How a host goes down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Crash {
    /// The process is killed: completed operations stay, those in flight have happened in part or not at all.
    Kill,
    /// Power fails: what isn't on stable storage survives in part or not at all.
    PowerCut,
}

/// A process's handle on the disk.
#[derive(Clone)]
pub struct SimDisk {
    pub(crate) state: Rc<DiskState>,
    pub(crate) world: Rc<World>,
    pub(crate) incarnation: u64,
    /// The canary: memory returns to the region at submission.
    pub(crate) releases_early: bool,
}

const MICROSECOND: u64 = 1_000;

fn eio() -> io::Error {
    io::Error::from_raw_os_error(EIO)
}

fn down() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the simulated host is down")
}

impl DiskState {
    pub(crate) fn new(sectors: Sectors, capacity_bytes: u64) -> DiskState {
        DiskState {
            files: RefCell::default(),
            in_flight: RefCell::default(),
            incarnation: Cell::new(0),
            faults: Cell::default(),
            counters: Cell::default(),
            sectors,
            capacity_bytes,
        }
    }

    /// The process that used the disk is gone; what it leaves depends on how.
    pub(crate) fn crash(&self, how: Crash, world: &World) {
        self.incarnation.set(self.incarnation.get() + 1);
        let stream = &world.streams.crash;
        let mut files = self.files.borrow_mut();
        for (number, write) in std::mem::take(&mut *self.in_flight.borrow_mut()) {
            let bytes = write.source.bytes();
            let pieces = match (how, stream.below(3)) {
                (_, 0) => Vec::new(),
                (_, 1) => vec![(0, bytes.to_vec())],
                _ => tear(&bytes, self.sectors, stream),
            };
            world.trace("in-flight", &[number, write.inode, write.position, pieces.len() as u64]);
            let file = files.file(write.inode);
            for (start, piece) in pieces {
                file.change(world.number(), ChangeKind::Write { position: write.position + start, bytes: piece.into() });
            }
        }
        let unsynced = files.unsynced_changes() as u64;
        match how {
            Crash::Kill => files.drop_unnamed(),
            Crash::PowerCut => files.cut_power(self.sectors, stream),
        }
        world.trace("crash", &[u64::from(how == Crash::PowerCut), unsynced]);
    }

    fn count(&self, change: impl FnOnce(&mut DiskCounters)) {
        let mut counters = self.counters.get();
        change(&mut counters);
        self.counters.set(counters);
    }

    fn space(&self) -> Space {
        let taken = self.faults.get().bytes_taken + self.files.borrow().used_bytes();
        Space { total: self.capacity_bytes, available: self.capacity_bytes.saturating_sub(taken) }
    }
}

impl SimDisk {
    fn is_alive(&self) -> bool {
        self.state.incarnation.get() == self.incarnation
    }

    fn fails(&self, chance_ppm: u64) -> bool {
        let failed = chance_ppm > 0 && self.world.streams.disk.chance(chance_ppm, 1_000_000);
        if failed {
            self.state.count(|counters| counters.errors += 1);
        }
        failed
    }

    fn latency(&self, typical_us: u64) -> u64 {
        self.world.streams.disk.latency(typical_us * MICROSECOND) * self.state.faults.get().slowness.max(1)
    }

    /// Submits an operation: `apply` happens at a moment before the answer, unless a crash comes first.
    async fn operate<T: 'static>(
        &self,
        kind: &'static str,
        typical_us: u64,
        apply: impl FnOnce(&SimDisk) -> io::Result<T> + 'static,
    ) -> io::Result<T> {
        if !self.is_alive() {
            return Err(down());
        }
        let (sender, receiver) = once();
        let delay = self.latency(typical_us);
        let effect_after = self.world.streams.disk.below(delay + 1);
        let disk = self.clone();
        self.world.after(effect_after, move || {
            if !disk.is_alive() {
                return;
            }
            let result = apply(&disk);
            disk.world.trace(kind, &[u64::from(result.is_ok())]);
            let world = disk.world.clone();
            world.after(delay - effect_after, move || {
                if disk.is_alive() {
                    sender.send(result);
                }
            });
        });
        receiver.await.unwrap_or_else(|| Err(down()))
    }

    /// The same for names and small files, which can fail.
    async fn operate_names<T: 'static>(
        &self,
        kind: &'static str,
        path: &Path,
        apply: impl FnOnce(&SimDisk) -> io::Result<T> + 'static,
    ) -> io::Result<T> {
        self.world.note(|| format!("{kind} {}", path.display()));
        let fails = self.fails(self.state.faults.get().name_errors_ppm);
        self.operate(kind, 60, move |disk| if fails { Err(eio()) } else { apply(disk) }).await
    }

    /// The same where it is a flush, of a file or of a directory.
    async fn operate_flushing(
        &self,
        kind: &'static str,
        path: &Path,
        apply: impl FnOnce(&SimDisk) -> io::Result<()> + 'static,
    ) -> io::Result<()> {
        self.world.note(|| format!("{kind} {}", path.display()));
        let fails = self.fails(self.state.faults.get().flush_errors_ppm);
        let issued = self.world.number();
        self.operate(kind, 60, move |disk| {
            if fails {
                disk.state.files.borrow_mut().fail_flush(issued, &disk.world.streams.disk);
                return Err(disk.failed_flush());
            }
            apply(disk)
        })
        .await
    }

    pub(crate) fn failed_flush(&self) -> io::Error {
        let full = self.state.faults.get().flush_errors_are_full;
        flush_error(&io::Error::from_raw_os_error(if full { ENOSPC } else { EIO }))
    }

    /// Ends with ENOSPC if the file's first `length` bytes don't fit the disk.
    fn check_room(&self, inode: Inode, length: usize) -> io::Result<()> {
        let needed = self.state.files.borrow_mut().file(inode).current.missing_bytes(0, length as u64);
        if needed > self.state.space().available { Err(io::Error::from_raw_os_error(ENOSPC)) } else { Ok(()) }
    }

    /// Overwrites a file in place, or, if that `fails`, some sectors of it.
    fn overwrite_small(&self, inode: Inode, bytes: &[u8], fails: bool) {
        let mut files = self.state.files.borrow_mut();
        let file = files.file(inode);
        let before = file.current.length();
        let length = if fails { before } else { bytes.len() as u64 };
        // The length changes last when it shrinks, first when it grows: never to zero in between.
        if before != length {
            file.change(self.world.number(), ChangeKind::SetLength { length });
        }
        if file.current.missing_bytes(0, length) > 0 {
            file.change(self.world.number(), ChangeKind::Allocate { position: 0, length });
        }
        let kept = &bytes[..usize::try_from(length).map_or(bytes.len(), |length| length.min(bytes.len()))];
        let pieces = if fails { tear(kept, self.state.sectors, &self.world.streams.disk) } else { vec![(0, kept.to_vec())] };
        for (position, piece) in pieces {
            file.change(self.world.number(), ChangeKind::Write { position, bytes: piece.into() });
        }
    }

    fn write_small(&self, inode: Inode, bytes: &[u8]) {
        let mut files = self.state.files.borrow_mut();
        let file = files.file(inode);
        file.change(self.world.number(), ChangeKind::SetLength { length: bytes.len() as u64 });
        if !bytes.is_empty() {
            file.change(self.world.number(), ChangeKind::Write { position: 0, bytes: bytes.into() });
        }
    }
}

fn directory_of(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("/")).to_path_buf()
}

fn not_found(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{} doesn't exist", path.display()))
}

impl Disk for SimDisk {
    type File = SimFile;

    fn file(&self, path: PathBuf, create: bool) -> SimFile {
        SimFile::new(self.clone(), path, create)
    }

    async fn read_file(&self, path: &Path, limit: usize) -> io::Result<Vec<u8>> {
        let wanted = path.to_path_buf();
        let fails = self.fails(self.state.faults.get().read_errors_ppm);
        self.operate_names("read_file", path, move |disk| {
            let mut files = disk.state.files.borrow_mut();
            let inode = files.open(&wanted, false)?;
            let content = &files.file(inode).current;
            if content.length() > limit as u64 {
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("{} bytes, {limit} allowed", content.length())));
            }
            if fails { Err(eio()) } else { Ok(content.read(0, limit)) }
        })
        .await
    }

    async fn replace_file(&self, path: &Path, bytes: Vec<u8>) -> io::Result<()> {
        let temporary = PathBuf::from(format!("{}.tmp", path.display()));
        let (name, target) = (temporary.clone(), path.to_path_buf());
        self.operate_names("replace_file 1", path, move |disk| {
            let inode = disk.state.files.borrow_mut().open(&name, true)?;
            let room = disk.check_room(inode, bytes.len());
            // Where it doesn't fit, a file without content stays behind.
            disk.write_small(inode, if room.is_ok() { &bytes } else { &[] });
            room
        })
        .await?;
        let (name, to) = (temporary.clone(), target.clone());
        self.operate_flushing("replace_file 2", path, move |disk| {
            let mut files = disk.state.files.borrow_mut();
            let inode = files.open(&name, false)?;
            let number = disk.world.number();
            files.file(inode).flush(number);
            files.change_names(NameChange::Rename { from: name, to });
            Ok(())
        })
        .await?;
        self.operate_flushing("replace_file 3", path, move |disk| {
            disk.state.files.borrow_mut().sync_directory(&directory_of(&target));
            Ok(())
        })
        .await
    }

    async fn overwrite_file(&self, path: &Path, bytes: Vec<u8>) -> io::Result<()> {
        let target = path.to_path_buf();
        self.world.note(|| format!("overwrite_file 1 {}", path.display()));
        let fails = self.fails(self.state.faults.get().name_errors_ppm);
        let inode = self
            .operate("overwrite_file 1", 60, move |disk| {
                let mut files = disk.state.files.borrow_mut();
                let is_new = !files.current.files.contains_key(&target);
                let inode = files.open(&target, true)?;
                if is_new {
                    files.sync_directory(&directory_of(&target));
                }
                drop(files);
                let room = disk.check_room(inode, bytes.len());
                disk.overwrite_small(inode, &bytes, fails || room.is_err());
                room.and(if fails { Err(eio()) } else { Ok(inode) })
            })
            .await?;
        self.operate_flushing("overwrite_file 2", path, move |disk| {
            let number = disk.world.number();
            disk.state.files.borrow_mut().file(inode).flush(number);
            Ok(())
        })
        .await
    }

    async fn remove_file(&self, path: &Path) -> io::Result<()> {
        let target = path.to_path_buf();
        self.operate_names("remove_file", path, move |disk| {
            let mut files = disk.state.files.borrow_mut();
            if !files.current.files.contains_key(&target) {
                return Err(not_found(&target));
            }
            files.change_names(NameChange::Remove { path: target });
            Ok(())
        })
        .await
    }

    async fn remove_directory(&self, path: &Path) -> io::Result<()> {
        let target = path.to_path_buf();
        self.operate_names("remove_directory", path, move |disk| {
            let mut files = disk.state.files.borrow_mut();
            if !files.current.directories.contains(&target) {
                return Err(not_found(&target));
            }
            if !files.current.is_empty_directory(&target) {
                return Err(io::Error::new(io::ErrorKind::DirectoryNotEmpty, format!("{} isn't empty", target.display())));
            }
            files.change_names(NameChange::RemoveDirectory { path: target });
            Ok(())
        })
        .await
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (source, target) = (from.to_path_buf(), to.to_path_buf());
        self.operate_names("rename", from, move |disk| {
            let mut files = disk.state.files.borrow_mut();
            let exists = files.current.files.contains_key(&source) || files.current.directories.contains(&source);
            if !exists || !files.current.is_directory(&directory_of(&target)) {
                return Err(not_found(&source));
            }
            files.change_names(NameChange::Rename { from: source, to: target });
            Ok(())
        })
        .await
    }

    async fn create_directory(&self, path: &Path) -> io::Result<()> {
        let target = path.to_path_buf();
        self.operate_names("create_directory", path, move |disk| {
            disk.state.files.borrow_mut().create_directories(&target);
            Ok(())
        })
        .await
    }

    async fn list(&self, path: &Path) -> io::Result<Vec<DirectoryEntry>> {
        let target = path.to_path_buf();
        self.operate_names("list", path, move |disk| {
            let files = disk.state.files.borrow();
            if !files.current.is_directory(&target) {
                return Err(not_found(&target));
            }
            let name = |path: &PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let inside = |path: &&PathBuf| path.parent() == Some(target.as_path());
            let mut entries: Vec<DirectoryEntry> = files
                .current
                .directories
                .iter()
                .filter(inside)
                .map(|path| DirectoryEntry { name: name(path), is_directory: true, length: 0 })
                .collect();
            for (path, inode) in files.current.files.iter().filter(|(path, _)| inside(path)) {
                let length = files.files.get(inode).map_or(0, |file| file.current.length());
                entries.push(DirectoryEntry { name: name(path), is_directory: false, length });
            }
            entries.sort();
            Ok(entries)
        })
        .await
    }

    async fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let target = path.to_path_buf();
        self.operate_flushing("sync_directory", path, move |disk| {
            let mut files = disk.state.files.borrow_mut();
            if !files.current.is_directory(&target) {
                return Err(not_found(&target));
            }
            files.sync_directory(&target);
            Ok(())
        })
        .await
    }

    async fn lock(&self, path: &Path, holder: String) -> io::Result<()> {
        let target = path.to_path_buf();
        self.operate_names("lock", path, move |disk| {
            let mut files = disk.state.files.borrow_mut();
            if let Some(other) = files.locks.get(&target) {
                return Err(io::Error::new(io::ErrorKind::WouldBlock, other.clone()));
            }
            let inode = files.open(&target, true)?;
            files.locks.insert(target, holder.clone());
            drop(files);
            disk.write_small(inode, holder.as_bytes());
            Ok(())
        })
        .await
    }

    async fn space(&self, path: &Path) -> io::Result<Space> {
        self.operate_names("space", path, |disk| Ok(disk.state.space())).await
    }
}

/// A short hash of written bytes, for the trace.
fn digest(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(bytes.len() as u64, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        mix(hash ^ u64::from_le_bytes(word))
    })
}
