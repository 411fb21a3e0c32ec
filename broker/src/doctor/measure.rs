//! What a drive does: latency of a write, of a durable write (O_DSYNC), and of a write with a flush behind it.
//!
//! Runs on a thread of its own with a bound: a drive that doesn't answer is a finding, not a hang. Writes a file of 8 MiB
//! in the data directory and removes it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use protocol::limits::BLOCK_BYTES;
use rustix::fs::OFlags;
use serde::Serialize;

/// Bytes of the measured file.
const FILE_BYTES: u64 = 8 << 20;
/// Operations of each kind, unless the time is over.
const OPERATIONS: usize = 400;
/// Time for each kind of operation, in nanoseconds.
const KIND_TIME_NS: u64 = 500_000_000;
/// After so long a drive counts as hung.
const HUNG_AFTER: Duration = Duration::from_secs(20);

/// A latency, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Half are faster.
    pub p50_us: f64,
    /// One in a hundred is slower.
    pub p99_us: f64,
}

/// What a drive did with 4 KiB blocks of a pre-written file, one in flight.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// A direct write that promises nothing.
    pub write: Latency,
    /// A direct write with O_DSYNC: FUA, or write and flush, as the kernel does it here.
    pub durable_write: Latency,
    /// A direct write and fdatasync.
    pub write_and_flush: Latency,
    /// Durable acknowledgements a second, one in flight; group commits multiply them.
    pub durable_acks_per_second: f64,
}

impl Measured {
    pub(super) fn text(&self) -> String {
        let line = |name: &str, latency: &Latency| {
            format!("  {name:<28} p50 {:>8.1} us   p99 {:>8.1} us\n", latency.p50_us, latency.p99_us)
        };
        let mut text = line("write 4 KiB", &self.write);
        text.push_str(&line("durable write (O_DSYNC)", &self.durable_write));
        text.push_str(&line("write and flush (fdatasync)", &self.write_and_flush));
        text.push_str(&format!(
            "  durable acknowledgements: {:.0} a second with one in flight; batches that wait share a write\n",
            self.durable_acks_per_second
        ));
        text
    }
}

/// One block at an address that direct I/O takes.
struct Block {
    memory: Vec<u8>,
    start: usize,
}

impl Block {
    fn new() -> Block {
        let memory = vec![0x5a; 2 * BLOCK_BYTES];
        let start = memory.as_ptr().align_offset(BLOCK_BYTES);
        Block { memory, start }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + BLOCK_BYTES]
    }
}

/// A file that goes when this goes.
struct Temporary(PathBuf);

impl Temporary {
    fn new(directory: &Path) -> Temporary {
        Temporary(directory.join(format!(".corelane-doctor-{}-{:?}", std::process::id(), std::thread::current().id())))
    }

    fn open(&self, flags: OFlags) -> io::Result<File> {
        let flags = i32::try_from((OFlags::DIRECT | flags).bits()).map_err(io::Error::other)?;
        File::options().create(true).truncate(false).read(true).write(true).custom_flags(flags).open(&self.0)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Runs `work` on a thread, for so long at most.
fn bounded<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new().name("doctor".into()).spawn(move || {
        let _ = sender.send(work());
    })?;
    let hung = || io::Error::new(io::ErrorKind::TimedOut, format!("the drive didn't answer within {} s", HUNG_AFTER.as_secs()));
    receiver.recv_timeout(HUNG_AFTER).unwrap_or_else(|_| Err(hung()))
}

/// Whether a direct write works in the directory.
pub(super) fn direct_io(directory: &Path) -> io::Result<()> {
    let directory = directory.to_owned();
    bounded(move || {
        let temporary = Temporary::new(&directory);
        temporary.open(OFlags::empty())?.write_all_at(Block::new().bytes(), 0)
    })
}

/// Measures the drive under the directory.
pub(super) fn measure(directory: &Path) -> io::Result<Measured> {
    let directory = directory.to_owned();
    bounded(move || {
        let temporary = Temporary::new(&directory);
        let plain = temporary.open(OFlags::empty())?;
        let durable = temporary.open(OFlags::DSYNC)?;
        let block = Block::new();
        let blocks = FILE_BYTES / u64::try_from(BLOCK_BYTES).map_err(io::Error::other)?;
        for number in 0..blocks {
            plain.write_all_at(block.bytes(), number * 4096)?;
        }
        plain.sync_all()?;
        let write = latency(blocks, |position| plain.write_all_at(block.bytes(), position))?;
        plain.sync_data()?;
        let durable_write = latency(blocks, |position| durable.write_all_at(block.bytes(), position))?;
        let write_and_flush =
            latency(blocks, |position| plain.write_all_at(block.bytes(), position).and_then(|()| plain.sync_data()))?;
        let fastest_us = durable_write.p50_us.min(write_and_flush.p50_us).max(0.1);
        Ok(Measured { write, durable_write, write_and_flush, durable_acks_per_second: 1e6 / fastest_us })
    })
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

fn latency(blocks: u64, mut operation: impl FnMut(u64) -> io::Result<()>) -> io::Result<Latency> {
    let mut times = Vec::with_capacity(OPERATIONS);
    let begin = now_ns();
    for number in (0..blocks).cycle().take(OPERATIONS) {
        let start = now_ns();
        operation(number * 4096)?;
        let end = now_ns();
        times.push(end - start);
        if end - begin > KIND_TIME_NS && times.len() >= 8 {
            break;
        }
    }
    times.sort_unstable();
    Ok(Latency { p50_us: microseconds(times[times.len() / 2]), p99_us: microseconds(times[times.len() * 99 / 100]) })
}

#[allow(clippy::cast_precision_loss, reason = "a latency for people")]
fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_is_measured_and_nothing_is_left_behind() {
        let folder = super::super::tests::Folder::with(&[]);
        let measured = measure(folder.path()).unwrap();
        assert!(measured.write.p50_us > 0.0 && measured.durable_acks_per_second > 0.0, "{measured:?}");
        assert!(measured.durable_write.p50_us <= measured.durable_write.p99_us);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_can_t_be_written_is_an_error() {
        assert!(direct_io(Path::new("/proc/self")).is_err());
    }
}
