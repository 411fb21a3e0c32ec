//! Indexes and manifest of one segment against the batches that were found in it.

use std::io;
use std::path::{Path, PathBuf};

use protocol::ids::{Offset, Timestamp};

use super::{BatchInfo, Problem};
use crate::blocks::in_file;
use crate::error::Impossible;
use crate::index::{INDEX_ENTRY_BYTES, IndexEntry};
use crate::manifest::{IndexSummary, Manifest};
use crate::segment::segment_path;
use crate::time_index::{TIME_ENTRY_BYTES, TimeEntry};

/// What is kept of a batch.
#[derive(Clone, Copy)]
struct Found {
    position: u64,
    last_offset: Offset,
    max_timestamp: Timestamp,
}

/// The batches of one segment.
pub(super) struct SegmentCheck {
    base: Offset,
    found: Vec<Found>,
}

impl SegmentCheck {
    pub(super) fn new(base: Offset) -> SegmentCheck {
        SegmentCheck { base, found: Vec::new() }
    }

    pub(super) fn note(&mut self, batch: &BatchInfo) {
        let (position, last_offset) = (batch.position, batch.header.last_offset());
        self.found.push(Found { position, last_offset, max_timestamp: batch.header.max_timestamp });
    }

    /// A number of a batch that can't be, which keeps its log from being opened.
    pub(super) fn impossible(&self, batch: &BatchInfo) -> Option<Impossible> {
        batch.header.impossible_in(self.base, batch.position)
    }

    /// What the manifest says and the log doesn't.
    pub(super) fn against(&self, manifest: &Manifest, bytes: u64, end: Option<Offset>) -> Vec<String> {
        let mut wrong = Vec::new();
        if manifest.base != self.base {
            wrong.push(format!("base offset {} of the manifest, {} of the file name", manifest.base, self.base));
        }
        if manifest.log_bytes != bytes {
            wrong.push(format!("the manifest says {} bytes, the log file has {bytes}", manifest.log_bytes));
        }
        if end != Some(manifest.end) {
            wrong.push(format!(
                "the manifest says that offset {} follows, by the log it is {}",
                manifest.end,
                end.unwrap_or(self.base)
            ));
        }
        let max = self.found.iter().map(|batch| batch.max_timestamp).max().unwrap_or(Timestamp::NONE);
        if manifest.max_timestamp != max {
            wrong.push(format!("the manifest's largest timestamp is {}, the log's {max}", manifest.max_timestamp));
        }
        wrong
    }

    /// What is wrong with the index files. Those of an unsealed segment may end anywhere: what counts of them is in the checkpoint.
    pub(super) fn indexes(&self, directory: &Path, manifest: Option<&Manifest>) -> io::Result<Vec<Problem>> {
        let Some(manifest) = manifest else { return Ok(Vec::new()) };
        let mut problems = Vec::new();
        let path = segment_path(directory, self.base, "index");
        if let Some(entries) = read_entries::<INDEX_ENTRY_BYTES>(&path, manifest.index, &mut problems)? {
            self.check_index(&path, entries.iter().map(|bytes| IndexEntry::from_bytes(*bytes)), &mut problems);
        }
        let path = segment_path(directory, self.base, "timeindex");
        if let Some(entries) = read_entries::<TIME_ENTRY_BYTES>(&path, manifest.time_index, &mut problems)? {
            self.check_time_index(&path, entries.iter().map(|bytes| TimeEntry::from_bytes(*bytes)), &mut problems);
        }
        Ok(problems)
    }

    fn check_index(&self, path: &Path, entries: impl Iterator<Item = IndexEntry>, problems: &mut Vec<Problem>) {
        let mut last = None;
        for (number, entry) in entries.enumerate() {
            let mut report = |what: String| {
                let position = in_file(number * INDEX_ENTRY_BYTES);
                problems.push(Problem { path: path.to_path_buf(), position, what: format!("entry {number}: {what}") });
            };
            let Some(offset) = self.base.checked_plus(entry.relative_offset) else {
                report(format!("no offset is {} behind base offset {}", entry.relative_offset, self.base));
                continue;
            };
            if last.is_some_and(|last| offset <= last) {
                report(format!("offset {offset} doesn't rise"));
            }
            last = Some(offset);
            let position = u64::from(entry.position);
            match self.found.binary_search_by_key(&position, |batch| batch.position) {
                Ok(index) if self.found[index].last_offset == offset => {}
                Ok(index) => {
                    let found = self.found[index].last_offset;
                    report(format!("the batch at byte {position} ends at offset {found}, not {offset}"));
                }
                Err(_) => report(format!("no batch starts at byte {position}")),
            }
        }
    }

    fn check_time_index(&self, path: &Path, entries: impl Iterator<Item = TimeEntry>, problems: &mut Vec<Problem>) {
        let mut last = None;
        for (number, entry) in entries.enumerate() {
            let mut report = |what: String| {
                let position = in_file(number * TIME_ENTRY_BYTES);
                problems.push(Problem { path: path.to_path_buf(), position, what: format!("entry {number}: {what}") });
            };
            let timestamp = entry.timestamp;
            let Some(offset) = self.base.checked_plus(entry.relative_offset) else {
                report(format!("no offset is {} behind base offset {}", entry.relative_offset, self.base));
                continue;
            };
            if last.is_some_and(|last| (timestamp, offset) <= last) {
                report(format!("timestamp {timestamp} at offset {offset} doesn't rise"));
            }
            last = Some((timestamp, offset));
            match self.found.binary_search_by_key(&offset, |batch| batch.last_offset) {
                Ok(index) if self.found[index].max_timestamp == timestamp => {}
                Ok(index) => {
                    let found = self.found[index].max_timestamp;
                    report(format!("the batch that ends at offset {offset} has largest timestamp {found}, not {timestamp}"));
                }
                Err(_) => report(format!("no batch ends at offset {offset}")),
            }
        }
    }
}

/// The entries of an index file, if it is there; size and CRC are checked against the manifest.
fn read_entries<const N: usize>(
    path: &PathBuf,
    summary: IndexSummary,
    problems: &mut Vec<Problem>,
) -> io::Result<Option<Vec<[u8; N]>>> {
    let mut report = |what: String| problems.push(Problem { path: path.clone(), position: 0, what });
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            report("the index of a sealed segment is missing".to_string());
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    if summary.entries.checked_mul(in_file(N)) != Some(in_file(bytes.len())) {
        report(format!("{} bytes, {} entries of {N} bytes are sealed", bytes.len(), summary.entries));
    } else if crc32c::crc32c(&bytes) != summary.crc {
        report(format!("CRC {:08x} is sealed, the bytes have {:08x}", summary.crc, crc32c::crc32c(&bytes)));
    }
    Ok(Some(bytes.as_chunks::<N>().0.to_vec()))
}
