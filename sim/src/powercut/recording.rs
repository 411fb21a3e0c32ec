//! A recording read back: each write with its data and its times, each flush with its times.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::rig::Files;
use super::trace::{Interval, Requests};

/// Bytes of a sector, the atomic unit of the modelled disk.
pub const SECTOR_BYTES: u64 = 512;

const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLAG_DISCARD: u64 = 4;
const FLAG_MARK: u64 = 8;

/// One write of the log, in the order in which the disk got it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// First sector on the disk.
    pub sector: u64,
    /// Sectors.
    pub sectors: u64,
    /// Where its data begins in the log.
    pub data: u64,
    /// When it was under way.
    pub time: Interval,
}

/// What the disk was told, and when.
pub struct Recording {
    /// Writes in log order.
    pub writes: Vec<Write>,
    /// Flushes in order of completion.
    pub flushes: Vec<Interval>,
    /// When the workload began and ended.
    pub span: Interval,
    /// Of flushes by issue: when it began, and the first end of it and all later ones.
    covering: Vec<(u64, u64)>,
    log: File,
}

/// An entry's header in the log of `blklogwrites` (the layout of dm-log-writes): four little-endian words.
struct Entry {
    sector: u64,
    sectors: u64,
    flags: u64,
    data_bytes: u64,
}

impl Entry {
    fn read(log: &File, at: u64) -> Result<Entry> {
        let mut bytes = [0; 32];
        log.read_exact_at(&mut bytes, at)?;
        let word = |index: usize| u64::from_le_bytes(bytes[index * 8..][..8].try_into().expect("eight bytes"));
        Ok(Entry { sector: word(0), sectors: word(1), flags: word(2), data_bytes: word(3) })
    }
}

impl Recording {
    /// Reads log and trace and joins them.
    ///
    /// # Errors
    /// The log can't be read, or log and trace don't name the same writes: nothing can be judged then.
    pub fn load(files: &Files, span: Interval) -> Result<Recording> {
        let log = File::open(&files.log).context("the write log")?;
        let disk_sectors = fs::metadata(&files.disk)?.len() / SECTOR_BYTES;
        let mut writes = read_log(&log, disk_sectors)?;
        let mut requests = Requests::parse(&fs::read_to_string(&files.trace).context("the block trace")?)?;
        ensure!(requests.failed == 0, "{} writes failed on the recorded device", requests.failed);
        for (number, write) in writes.iter_mut().enumerate() {
            let extent = (write.sector, write.sectors);
            let time = requests.writes.get_mut(&extent).and_then(|times| times.pop_front());
            write.time = time.with_context(|| format!("write {number} of the log ({extent:?}) is not in the trace"))?;
        }
        let left: usize = requests.writes.values().map(|times| times.len()).sum();
        ensure!(left == 0, "{left} writes of the trace are not in the log");
        ensure!(!writes.is_empty(), "the recording holds no write");
        let covering = covering(&requests.flushes);
        Ok(Recording { writes, flushes: requests.flushes, span, covering, log })
    }

    /// Reads the data of a write.
    ///
    /// # Errors
    /// The log can't be read.
    pub fn data(&self, write: &Write) -> Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(write.sectors * SECTOR_BYTES)?];
        self.log.read_exact_at(&mut bytes, write.data)?;
        Ok(bytes)
    }

    /// Applies sectors `from..to` (of the write) to an image.
    ///
    /// # Errors
    /// Log or image fail.
    pub fn apply(&self, image: &File, write: &Write, from: u64, to: u64) -> Result<()> {
        let bytes = self.data(write)?;
        let range = usize::try_from(from * SECTOR_BYTES)?..usize::try_from(to * SECTOR_BYTES)?;
        Ok(image.write_all_at(&bytes[range], (write.sector + from) * SECTOR_BYTES)?)
    }

    /// When everything that was complete at `done` had been flushed: the end of the first flush issued at or after it.
    #[must_use]
    pub fn covered_at(&self, done: u64) -> Option<u64> {
        let first = self.covering.partition_point(|(issue, _)| *issue < done);
        self.covering.get(first).map(|(_, done)| *done)
    }

    /// Replays the whole log on the base image and compares it with the disk.
    ///
    /// # Errors
    /// They differ: the recording can't be trusted.
    pub fn verify(&self, files: &Files, scratch: &Path) -> Result<()> {
        super::image::copy_sparse(&files.base, scratch)?;
        let image = File::options().read(true).write(true).open(scratch)?;
        for write in &self.writes {
            self.apply(&image, write, 0, write.sectors)?;
        }
        let difference = super::image::first_difference(scratch, &files.disk)?;
        fs::remove_file(scratch)?;
        if let Some(at) = difference {
            bail!("a replay of the whole log differs from the disk at byte {at}: this recording can't be trusted");
        }
        Ok(())
    }
}

fn covering(flushes: &[Interval]) -> Vec<(u64, u64)> {
    let mut by_issue: Vec<(u64, u64)> = flushes.iter().map(|flush| (flush.issue, flush.done)).collect();
    by_issue.sort_unstable();
    let mut first = u64::MAX;
    for (_, done) in by_issue.iter_mut().rev() {
        first = first.min(*done);
        *done = first;
    }
    by_issue
}

fn read_log(log: &File, disk_sectors: u64) -> Result<Vec<Write>> {
    let length = log.metadata()?.len();
    let mut header = [0; 28];
    log.read_exact_at(&mut header, 0).context("the write log is empty")?;
    let magic = u64::from_le_bytes(header[..8].try_into().expect("eight bytes"));
    // The head of the log is only written with the first flush.
    ensure!(magic == MAGIC || magic == 0, "this is no log of blklogwrites");
    let mut writes = Vec::new();
    let mut at = SECTOR_BYTES;
    while at + SECTOR_BYTES <= length {
        let entry = Entry::read(log, at)?;
        let data = at + SECTOR_BYTES;
        let sane =
            entry.flags & !15 == 0 && entry.sector + entry.sectors <= disk_sectors && (entry.sectors != 0 || entry.flags != 0);
        ensure!(sane, "the entry at byte {at} of the log makes no sense");
        ensure!(
            entry.flags & FLAG_DISCARD == 0 || entry.sectors == 0,
            "the log holds a discard: they are switched off on the device"
        );
        let data_sectors = if entry.flags & FLAG_MARK != 0 { entry.data_bytes.div_ceil(SECTOR_BYTES) } else { entry.sectors };
        ensure!(data + data_sectors * SECTOR_BYTES <= length, "the last entry of the log is cut short");
        if entry.flags & FLAG_MARK == 0 && entry.sectors != 0 {
            let time = Interval { issue: 0, done: 0 };
            writes.push(Write { sector: entry.sector, sectors: entry.sectors, data, time });
        }
        at = data + data_sectors * SECTOR_BYTES;
    }
    Ok(writes)
}
