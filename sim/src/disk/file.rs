//! Direct I/O on one simulated file.

use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use runtime::disk::durable_write_error;
use runtime::local::once;
use runtime::{Chunk, ChunkSlice, Durability, File};

use super::content::BLOCK;
use super::filesystem::{ChangeKind, ENOSPC, tear};
use super::names::Inode;
use super::{SimDisk, Source, WriteInFlight, digest, down, eio};

/// A handle on one file; opened by its path when an operation needs it, closed again now and then between operations.
#[derive(Clone)]
pub struct SimFile(Rc<Handle>);

struct Handle {
    disk: SimDisk,
    path: PathBuf,
    create: Cell<bool>,
    opened: Cell<Option<Inode>>,
    busy: Cell<u32>,
}

/// Counts one operation on the handle while it lasts.
struct Busy(Rc<Handle>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.set(self.0.busy.get() - 1);
    }
}

fn is_aligned(position: u64, length: u64) -> bool {
    position.is_multiple_of(BLOCK) && length.is_multiple_of(BLOCK)
}

impl SimFile {
    pub(crate) fn new(disk: SimDisk, path: PathBuf, create: bool) -> SimFile {
        SimFile(Rc::new(Handle { disk, path, create: Cell::new(create), opened: Cell::new(None), busy: Cell::new(0) }))
    }

    /// The file behind the handle. A descriptor may have been closed for others' sake: then the path decides again.
    fn open(&self) -> io::Result<(Inode, Busy)> {
        let handle = &self.0;
        let disk = &handle.disk;
        if !disk.is_alive() {
            return Err(down());
        }
        if handle.busy.get() == 0 && disk.world.streams.disk.chance(1, 50) {
            handle.opened.set(None);
        }
        let inode = match handle.opened.get() {
            Some(inode) => inode,
            None => disk.state.files.borrow_mut().open(&handle.path, handle.create.get())?,
        };
        handle.opened.set(Some(inode));
        handle.create.set(false);
        handle.busy.set(handle.busy.get() + 1);
        Ok((inode, Busy(handle.clone())))
    }

    async fn change(&self, name: &'static str, kind: ChangeKind) -> io::Result<()> {
        let (inode, busy) = self.open()?;
        self.0.disk.world.note(|| format!("{name} {}", self.0.path.display()));
        self.0
            .disk
            .operate(name, 80, move |disk| {
                let needed = match &kind {
                    ChangeKind::Allocate { position, length } | ChangeKind::ZeroRange { position, length } => {
                        disk.state.files.borrow_mut().file(inode).current.missing_bytes(*position, *length)
                    }
                    _ => 0,
                };
                if needed > disk.state.space().available {
                    return Err(io::Error::from_raw_os_error(ENOSPC));
                }
                disk.state.files.borrow_mut().file(inode).change(disk.world.number(), kind);
                drop(busy);
                Ok(())
            })
            .await
    }

    fn complete_write(disk: &SimDisk, number: u64, fails: bool) -> io::Result<()> {
        let Some(write) = disk.state.in_flight.borrow_mut().remove(&number) else { return Err(down()) };
        let bytes = write.source.bytes();
        let mut files = disk.state.files.borrow_mut();
        let file = files.file(write.inode);
        disk.world.trace("write", &[write.inode, write.position, digest(&bytes), u64::from(fails)]);
        let length = bytes.len() as u64;
        if fails {
            for (start, piece) in tear(&bytes, disk.state.sectors, &disk.world.streams.disk) {
                file.change(disk.world.number(), ChangeKind::Write { position: write.position + start, bytes: piece.into() });
            }
            let durable = write.durability == Durability::Device;
            return Err(if durable { durable_write_error(&eio()) } else { eio() });
        }
        assert!(
            write.position + length <= file.current.length(),
            "a write of {length} bytes at {} ends behind the file's end at {}: the range must be allocated before",
            write.position,
            file.current.length()
        );
        let crosses = file.current.crosses(write.position, length);
        disk.state.count(|counters| {
            counters.writes += 1;
            counters.crossing_writes += u64::from(crosses);
        });
        match write.durability {
            Durability::Device => file.write_durably(write.position, &bytes),
            Durability::Written => {
                file.change(disk.world.number(), ChangeKind::Write { position: write.position, bytes });
            }
        }
        Ok(())
    }
}

impl File for SimFile {
    fn path(&self) -> &Path {
        &self.0.path
    }

    async fn write(&self, data: ChunkSlice, position: u64, durability: Durability) -> io::Result<()> {
        assert!(
            is_aligned(position, data.len() as u64) && (data.offset_in_chunk() as u64).is_multiple_of(BLOCK),
            "direct write of {} bytes from byte {} of a chunk, at {position}",
            data.len(),
            data.offset_in_chunk()
        );
        let (inode, busy) = self.open()?;
        let disk = self.0.disk.clone();
        let number = disk.world.number();
        let typical_us = 20 + data.len() as u64 / 2048 + if durability == Durability::Device { 60 } else { 0 };
        disk.world.note(|| format!("write {} {position}+{} {durability:?}", self.0.path.display(), data.len()));
        let source = if disk.releases_early { Source::Released(data.into_dangling()) } else { Source::Held(data) };
        disk.state.in_flight.borrow_mut().insert(number, WriteInFlight { inode, position, source, durability });
        let fails = disk.fails(disk.state.faults.get().write_errors_ppm);
        let (sender, receiver) = once();
        let delay = disk.latency(typical_us);
        let world = disk.world.clone();
        world.after(delay, move || {
            if disk.is_alive() {
                let result = SimFile::complete_write(&disk, number, fails);
                drop(busy);
                sender.send(result);
            }
        });
        receiver.await.unwrap_or_else(|| Err(down()))
    }

    async fn read(&self, mut into: Chunk, position: u64, length: usize) -> (io::Result<usize>, Chunk) {
        assert!(
            is_aligned(position, length as u64) && (into.filled() as u64).is_multiple_of(BLOCK) && length <= into.remaining(),
            "direct read of {length} bytes at {position} behind {} of {} bytes of a chunk",
            into.filled(),
            into.capacity()
        );
        let (inode, busy) = match self.open() {
            Ok(opened) => opened,
            Err(error) => return (Err(error), into),
        };
        let disk = self.0.disk.clone();
        let fails = disk.fails(disk.state.faults.get().read_errors_ppm);
        let (sender, receiver) = once();
        let delay = disk.latency(20 + length as u64 / 2048);
        let world = disk.world.clone();
        // The operation owns the chunk until it ends, whether or not anybody waits for it.
        world.after(delay, move || {
            let result = if !disk.is_alive() {
                Err(down())
            } else if fails {
                Err(eio())
            } else {
                let bytes = disk.state.files.borrow_mut().file(inode).current.read(position, length);
                disk.world.trace("read", &[inode, position, digest(&bytes)]);
                into.append(&bytes);
                Ok(bytes.len())
            };
            drop(busy);
            sender.send((result, into));
        });
        receiver.await.expect("a read is always answered")
    }

    async fn flush(&self) -> io::Result<()> {
        let (inode, busy) = self.open()?;
        let disk = &self.0.disk;
        disk.world.note(|| format!("flush {}", self.0.path.display()));
        let fails = disk.fails(disk.state.faults.get().flush_errors_ppm);
        // Only what completed before now is covered.
        let issued = disk.world.number();
        disk.operate("flush", 90, move |disk| {
            let mut files = disk.state.files.borrow_mut();
            drop(busy);
            if fails {
                files.fail_flush(issued, &disk.world.streams.disk);
                return Err(disk.failed_flush());
            }
            files.file(inode).flush(issued);
            disk.state.count(|counters| counters.flushes += 1);
            Ok(())
        })
        .await
    }

    async fn allocate(&self, position: u64, length: u64) -> io::Result<()> {
        self.change("allocate", ChangeKind::Allocate { position, length }).await
    }

    async fn zero_range(&self, position: u64, length: u64) -> io::Result<()> {
        self.change("zero_range", ChangeKind::ZeroRange { position, length }).await
    }

    async fn set_length(&self, length: u64) -> io::Result<()> {
        self.change("set_length", ChangeKind::SetLength { length }).await
    }

    async fn length(&self) -> io::Result<u64> {
        let (inode, busy) = self.open()?;
        self.0
            .disk
            .operate("length", 5, move |disk| {
                drop(busy);
                Ok(disk.state.files.borrow_mut().file(inode).current.length())
            })
            .await
    }

    fn close(&self) {
        if self.0.busy.get() == 0 {
            self.0.opened.set(None);
        }
    }
}
