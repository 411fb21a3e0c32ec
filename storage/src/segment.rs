//! The segments of one log: the open ones (the active one, and those that rolled and aren't sealed yet) and the sealed ones.
//!
//! Positions of an open segment, in bytes from its start, in this order:
//! `flushed <= written <= submitted <= appended <= allocated`; blocks below `frontier` have been written (or are being
//! written); from it on they are allocated and unwritten, and read as zeros.

use std::path::{Path, PathBuf};

use protocol::ids::{LeaderEpoch, Offset, Timestamp};
use runtime::{Disk, Env};
use smallvec::SmallVec;

use crate::checkpoint::SegmentCheckpoint;
use crate::file::SegmentFile;
use crate::index::OffsetIndex;
use crate::metrics::Metrics;
use crate::time_index::TimeIndex;

/// The name of a segment's file, by its base offset.
pub(crate) fn segment_path(directory: &Path, base: Offset, extension: &str) -> PathBuf {
    directory.join(format!("{:020}.{extension}", base.0))
}

/// The base offset in a file name such as `00000000000000000000.log`, with its extension.
pub(crate) fn parse_segment_name(name: &str) -> Option<(Offset, &str)> {
    let (digits, extension) = name.split_once('.')?;
    if digits.len() != 20 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some((Offset(digits.parse().ok()?), extension))
}

/// Whether a segment's file has its own name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// It has, durably.
    Own,
    /// It still has the name of a prepared file; the first write renames it.
    Prepared,
    /// Being renamed.
    Renaming,
}

/// Space made ready for the next segment, under a name of its own.
pub(crate) struct Prepared {
    /// Where it lies now.
    pub(crate) path: PathBuf,
    /// Bytes allocated.
    pub(crate) allocated: u64,
}

/// Where each leader epoch of a segment starts.
pub(crate) type EpochStarts = SmallVec<[(LeaderEpoch, Offset); 2]>;

/// A segment that isn't sealed.
pub(crate) struct OpenSegment<E: Env> {
    pub(crate) base: Offset,
    pub(crate) file: SegmentFile<E>,
    pub(crate) name: Name,
    pub(crate) prepared_path: Option<PathBuf>,
    pub(crate) appended: u64,
    pub(crate) submitted: u64,
    pub(crate) written: u64,
    pub(crate) flushed: u64,
    pub(crate) allocated: u64,
    pub(crate) frontier: u64,
    /// While blocks ahead are being zeroed: where that ends. No write starts or ends behind the frontier meanwhile.
    pub(crate) zeroing_to: Option<u64>,
    pub(crate) index: OffsetIndex,
    pub(crate) time_index: TimeIndex,
    pub(crate) epochs: EpochStarts,
    /// Wall clock at the first append.
    pub(crate) first_append: Option<Timestamp>,
    /// Wall clock at the last append, or at the recovery that found it.
    pub(crate) last_append: Option<Timestamp>,
    /// Entries of both indexes that lie in their files, and the log position up to which they reach.
    pub(crate) persisted: PersistedIndexes,
    /// Once it has rolled: its owner's snapshot of the producers as of its end, empty for nobody; `None` until it was given.
    pub(crate) producers_at_end: Option<Box<[u8]>>,
}

/// What the index files of an open segment hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PersistedIndexes {
    pub(crate) entries: usize,
    pub(crate) entries_crc: u32,
    pub(crate) time_entries: usize,
    pub(crate) time_entries_crc: u32,
}

impl<E: Env> OpenSegment<E> {
    /// A segment without batches whose file exists at `path`.
    pub(crate) fn new(
        env: &E,
        directory: &Path,
        base: Offset,
        prepared: Option<Prepared>,
        interval_bytes: u64,
        metrics: &Metrics,
    ) -> OpenSegment<E> {
        let file = env.disk().file(segment_path(directory, base, "log"), false);
        let (name, prepared_path, allocated) = match prepared {
            Some(prepared) => (Name::Prepared, Some(prepared.path), prepared.allocated),
            None => (Name::Own, None, 0),
        };
        OpenSegment {
            base,
            file: SegmentFile::new(file, metrics.clone()),
            name,
            prepared_path,
            appended: 0,
            submitted: 0,
            written: 0,
            flushed: 0,
            allocated,
            frontier: 0,
            zeroing_to: None,
            index: OffsetIndex::new(base, interval_bytes),
            time_index: TimeIndex::new(base),
            epochs: SmallVec::new(),
            first_append: None,
            last_append: None,
            persisted: PersistedIndexes::default(),
            producers_at_end: None,
        }
    }

    /// What a checkpoint says of it.
    pub(crate) fn checkpoint(&self) -> SegmentCheckpoint {
        let last = self.persisted.entries.checked_sub(1).map(|last| self.index.entries()[last].relative_offset);
        let last = last.map_or(self.base, |relative| self.base.plus(relative));
        SegmentCheckpoint {
            base: self.base,
            persisted: self.persisted,
            first_append: self.first_append.unwrap_or(Timestamp::NONE),
            epochs: self.epochs.iter().filter(|(_, start)| *start <= last).copied().collect(),
        }
    }

    /// Notes that a recovery has found a batch: when it was appended is as good as its timestamp, and not after now.
    pub(crate) fn found(&mut self, max_timestamp: Timestamp, wall: Timestamp) {
        let appended = if max_timestamp.0 > 0 { max_timestamp.min(wall) } else { wall };
        self.first_append.get_or_insert(appended);
        self.last_append = Some(wall);
    }

    /// Notes a batch that lies at `position`.
    pub(crate) fn note(&mut self, batch: NotedBatch, position: u64) {
        self.time_index.note(batch.max_timestamp, batch.last_offset);
        if self.index.note(batch.last_offset, position, batch.size) {
            self.time_index.add_entry();
        }
        if self.epochs.last().is_none_or(|(epoch, _)| *epoch < batch.leader_epoch) {
            self.epochs.push((batch.leader_epoch, batch.base_offset));
        }
        self.appended = position + batch.size as u64;
    }
}

/// What a segment keeps of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NotedBatch {
    pub(crate) base_offset: Offset,
    pub(crate) last_offset: Offset,
    pub(crate) leader_epoch: LeaderEpoch,
    pub(crate) max_timestamp: Timestamp,
    pub(crate) size: usize,
}

/// A segment that is complete and never changes.
pub(crate) struct SealedSegment<E: Env> {
    pub(crate) base: Offset,
    /// The offset behind its last record.
    pub(crate) end: Offset,
    /// Exact size of the log file.
    pub(crate) size: u64,
    pub(crate) file: SegmentFile<E>,
    /// The largest timestamp, once it is known.
    pub(crate) max_timestamp: Option<Timestamp>,
    /// Wall clock at the last append, once it is known.
    pub(crate) last_append: Option<Timestamp>,
}
