//! Retention: whole segments leave the log at its start, by age and by size.
//!
//! Order of events: [`Log::retention_start`] says from where on the log is kept, and [`Log::plan_start`] has the next checkpoint say it. Once that
//! is on stable storage, [`Log::start_is_durable`] moves the log's start: readers below are told so from then on, and never the
//! opposite after a crash. Then the files go, oldest first. A log file is renamed before it is removed, durably: a crash leaves a whole segment or none. A whole one that lies
//! below the log's start goes the same way in the next process.
//!
//! What is kept for its age counts from a segment's largest timestamp. A timestamp is the producer's word (trap T32): one in the future would keep
//! its segment for ever, and one that was too old when it came would be gone at once. Both count from the segment's last append.
//!
//! Invariants: the log start never passes the limit given, which is not above the high watermark (trap T31); the active segment stays.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;

use protocol::ids::{Offset, Timestamp};
use runtime::disk::is_flush_error;
use runtime::{Disk, Env, File};

use crate::error::LogFailure;
use crate::file::SegmentFile;
use crate::log::Log;
use crate::manifest::{MANIFEST_BYTES_MAX, Manifest};
use crate::producers::Snapshot;
use crate::segment::{Name, SealedSegment, segment_path};

/// Manifests read in one piece of maintenance.
const MANIFESTS_AT_ONCE: usize = 16;
/// Extension of a log file that is being removed.
const REMOVED: &str = "deleted";

/// Segments that have left the log and still have files.
pub(crate) struct Retired<E: Env> {
    segments: VecDeque<SealedSegment<E>>,
    /// Where the log is to begin, once all below is on stable storage and a checkpoint there says so.
    planned_start: Offset,
    running: bool,
}

impl<E: Env> Default for Retired<E> {
    fn default() -> Retired<E> {
        Retired { segments: VecDeque::new(), planned_start: Offset(0), running: false }
    }
}

/// Removes the files of one segment.
pub struct RemovalPlan<E: Env> {
    env: E,
    directory: PathBuf,
    base: Offset,
    file: SegmentFile<E>,
}

/// What became of it.
pub struct RemovalOutcome {
    base: Offset,
    result: io::Result<()>,
}

impl RemovalOutcome {
    /// Whether the segment is gone; if not, the next attempt is to be made later, not at once.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.result.is_ok()
    }
}

impl<E: Env> RemovalPlan<E> {
    /// Removes. Touches no state of the log.
    pub async fn execute(self) -> RemovalOutcome {
        RemovalOutcome { base: self.base, result: self.remove().await }
    }

    async fn remove(&self) -> io::Result<()> {
        let disk = self.env.disk();
        let path = |extension| segment_path(&self.directory, self.base, extension);
        self.file.file.close();
        // It has the other name already if an attempt before came so far.
        unless_gone(disk.rename(&path("log"), &path(REMOVED)).await)?;
        disk.sync_directory(&self.directory).await?;
        for extension in ["manifest", "index", "timeindex", REMOVED] {
            unless_gone(disk.remove_file(&path(extension)).await)?;
        }
        Ok(())
    }
}

fn unless_gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// The timestamp from which on records with this largest one are kept.
fn counts_from(largest: Timestamp, last_append: Timestamp, retention_ms: u64) -> Timestamp {
    let was_too_old = is_past(largest, last_append, retention_ms);
    if was_too_old || largest > last_append { last_append } else { largest }
}

fn is_past(from: Timestamp, wall: Timestamp, retention_ms: u64) -> bool {
    u64::try_from(wall.0.saturating_sub(from.0)).is_ok_and(|age| age > retention_ms)
}

/// Reads of sealed segments how old they are.
pub(crate) struct LearnPlan {
    directory: PathBuf,
    bases: Vec<Offset>,
    wall: Timestamp,
}

/// A segment's base, largest timestamp and last append.
pub(crate) type Learned = Vec<(Offset, Timestamp, Timestamp)>;

impl LearnPlan {
    pub(crate) async fn execute<E: Env>(self, env: &E) -> Learned {
        let mut learned = Vec::with_capacity(self.bases.len());
        for base in self.bases {
            let path = segment_path(&self.directory, base, "manifest");
            let read = env.disk().read_file(&path, MANIFEST_BYTES_MAX).await;
            let manifest = read.map_err(|error| error.to_string());
            match manifest.and_then(|bytes| Manifest::decode(&bytes).map_err(|error| error.to_string())) {
                Ok(manifest) => learned.push((base, manifest.max_timestamp, manifest.last_append())),
                Err(error) => {
                    tracing::warn!(path = %path.display(), error, "the age of a segment is unknown; it counts from now");
                    learned.push((base, self.wall, self.wall));
                }
            }
        }
        learned
    }
}

impl<E: Env> Log<E> {
    /// From where on the log has to be kept, at most `limit`; `None` if nothing has to go.
    #[must_use]
    pub fn retention_start(&self, wall: Timestamp, limit: Offset) -> Option<Offset> {
        let start = self.kept_from(wall, limit, |segment| self.may_go(segment));
        (start > self.offsets.log_start || self.has_left(start)).then_some(start)
    }

    /// Whether the oldest segment has left a log that begins at `start`.
    fn has_left(&self, start: Offset) -> bool {
        self.sealed.front().is_some_and(|segment| segment.end <= start && self.may_go(segment))
    }

    fn kept_from(&self, wall: Timestamp, limit: Offset, may_go: impl Fn(&SealedSegment<E>) -> bool) -> Offset {
        let mut excess = self.config.retention_bytes.map_or(0, |kept| self.size_bytes().saturating_sub(kept));
        let mut start = self.offsets.log_start;
        for segment in &self.sealed {
            let goes = segment.end <= start || excess >= segment.size || self.is_expired(segment, wall);
            if !goes || segment.end > limit || !may_go(segment) {
                break;
            }
            excess = excess.saturating_sub(segment.size);
            start = start.max(segment.end);
        }
        start
    }

    fn is_expired(&self, segment: &SealedSegment<E>, wall: Timestamp) -> bool {
        match (self.config.retention_ms, segment.max_timestamp, segment.last_append) {
            (Some(ms), Some(largest), Some(last_append)) => is_past(counts_from(largest, last_append, ms), wall, ms),
            _ => false,
        }
    }

    /// Whether the active segment has outlived its retention: it rolls then, as nothing else would ever end it.
    pub(crate) fn is_active_expired(&self, wall: Timestamp) -> bool {
        let active = self.active();
        match (self.config.retention_ms, active.last_append) {
            (Some(ms), Some(last_append)) => is_past(counts_from(active.time_index.max(), last_append, ms), wall, ms),
            _ => false,
        }
    }

    /// Whether nothing hangs on the segment: behind the last sealed one, the log's name and its producers must stand elsewhere.
    fn may_go(&self, segment: &SealedSegment<E>) -> bool {
        let is_last = self.sealed.back().is_some_and(|last| last.base == segment.base);
        let producers_stand = !self.producers.present || self.producers.on_disk >= segment.end;
        !is_last || (self.open[0].name == Name::Own && producers_stand)
    }

    /// Has the log begin at `to` from the next checkpoint on. What isn't on stable storage below it is flushed first: maintenance has
    /// that to do now.
    ///
    /// # Panics
    /// If it goes back, or passes what is written.
    pub fn plan_start(&mut self, to: Offset) {
        assert!(to >= self.offsets.log_start && to <= self.offsets.written, "{to} is no start for {:?}", self.offsets);
        self.retired.planned_start = self.retired.planned_start.max(to);
        self.wants_checkpoint.set(true);
    }

    /// Where a checkpoint says now that the log begins.
    #[must_use]
    pub fn planned_start(&self) -> Offset {
        self.offsets.log_start.max(self.retired.planned_start.min(self.offsets.flushed))
    }

    /// Whether the log is to begin behind what is on stable storage.
    pub(crate) fn start_awaits_flush(&self) -> bool {
        self.retired.planned_start > self.offsets.flushed
    }

    /// A checkpoint on stable storage says that the log begins at `start`: nothing below is read any more, and whole segments below leave
    /// the log.
    pub fn start_is_durable(&mut self, start: Offset) {
        self.offsets.log_start = self.offsets.log_start.max(start);
        while self.has_left(self.offsets.log_start) {
            self.retired.segments.extend(self.sealed.pop_front());
        }
    }

    /// The removal of the oldest segment that has left the log durably, if there is one and none is under way.
    pub fn begin_removal(&mut self) -> Option<RemovalPlan<E>> {
        if self.retired.running || self.check_running().is_err() {
            return None;
        }
        let first = self.retired.segments.front()?;
        let (env, directory) = (self.env.clone(), self.directory.clone());
        let plan = RemovalPlan { env, directory, base: first.base, file: first.file.clone() };
        self.retired.running = true;
        Some(plan)
    }

    /// Settles a removal. One that failed is tried again by the next.
    ///
    /// # Errors
    /// If a flush has failed: the log has stopped.
    pub fn finish_removal(&mut self, outcome: RemovalOutcome) -> Result<(), LogFailure> {
        self.retired.running = false;
        match outcome.result {
            Ok(()) => {
                let segment = self.retired.segments.pop_front().expect("what was removed had retired");
                assert_eq!(segment.base, outcome.base, "segments are removed in order");
                self.metrics.removed_segments(1);
                self.metrics.removed_bytes(segment.size);
                Ok(())
            }
            Err(cause) if is_flush_error(&cause) => Err(self.fail("removing a segment", (outcome.base, 0), cause)),
            Err(error) => {
                tracing::warn!(log = %self.name, segment = %outcome.base, %error, "a segment can't be removed; tried again");
                Ok(())
            }
        }
    }

    /// Files of segments that have left the log, to be closed with it.
    pub(crate) fn retired_files(&self) -> impl Iterator<Item = &SegmentFile<E>> {
        self.retired.segments.iter().map(|segment| &segment.file)
    }

    /// Asks the manifests of the oldest segments how old they are, if it isn't known.
    pub(crate) fn begin_learn(&mut self, wall: Timestamp) -> Option<LearnPlan> {
        let is_unknown = |segment: &&SealedSegment<E>| segment.last_append.is_none();
        if self.config.retention_ms.is_none() || !self.sealed.front().as_ref().is_some_and(is_unknown) {
            return None;
        }
        let bases = self.sealed.iter().take(MANIFESTS_AT_ONCE).filter(is_unknown).map(|segment| segment.base);
        Some(LearnPlan { directory: self.directory.clone(), bases: bases.collect(), wall })
    }

    pub(crate) fn finish_learn(&mut self, learned: Learned) {
        for (base, largest, last_append) in learned {
            if let Ok(index) = self.sealed.binary_search_by_key(&base, |segment| segment.base) {
                let segment = &mut self.sealed[index];
                (segment.max_timestamp, segment.last_append) = (Some(largest), Some(last_append));
            }
        }
    }

    /// The state of the producers, if the last sealed segment has to go and is the only one that says it.
    pub(crate) fn begin_keep_producers(&mut self, wall: Timestamp) -> Option<Snapshot> {
        let last = self.sealed.back().filter(|last| !self.may_go(last))?;
        let has_to_go = self.kept_from(wall, self.offsets.flushed, |_| true) >= last.end;
        let flushed = self.offsets.flushed;
        self.producers.pending.take_if(|snapshot| has_to_go && snapshot.at <= flushed)
    }
}

/// The log files that a removal had renamed are none of a log's any more; neither are files without a log file.
pub(crate) fn is_leftover(extension: &str, has_log: bool) -> bool {
    extension == REMOVED || !has_log
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t32_timestamps_far_from_the_append_count_from_the_append() {
        let from = |largest| counts_from(Timestamp(largest), Timestamp(10_000), 1_000).0;
        assert_eq!(from(9_500), 9_500);
        assert_eq!(from(9_000), 9_000);
        assert_eq!(from(8_999), 10_000);
        assert_eq!(from(i64::MIN), 10_000);
        assert_eq!(from(-1), 10_000);
        assert_eq!(from(10_001), 10_000);
        assert_eq!(from(i64::MAX), 10_000);
        assert_eq!(counts_from(Timestamp(5), Timestamp(5), 0), Timestamp(5));
    }

    #[test]
    fn an_age_ends_after_its_last_millisecond() {
        assert!(!is_past(Timestamp(100), Timestamp(200), 100));
        assert!(is_past(Timestamp(100), Timestamp(201), 100));
        assert!(!is_past(Timestamp(100), Timestamp(0), 0));
        assert!(is_past(Timestamp(i64::MIN), Timestamp(i64::MAX), 0));
        assert!(!is_past(Timestamp(0), Timestamp(i64::MAX), u64::MAX));
    }
}
