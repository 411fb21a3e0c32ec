//! The synchronous state of one replica's log, on the core that owns it.
//!
//! Its owner calls `begin_*`, awaits the plan elsewhere, and calls `finish_*` with the outcome. Order of events for a batch:
//! `begin_append` (in memory, offset assigned) -> `begin_write` -> `finish_write` (written, flushed).
//!
//! Invariants: `log_start <= flushed <= written <= log_end`; none goes back. Segments follow each other without a gap.
//! Everything not yet written lies in `tail`. A failure is final, and stops all logs of the directory, but for that of a write without a flush: a
//! drive whose flush has failed may have lost what others wrote before, and their own flushes succeed all the same.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use protocol::ids::{DurabilityClass, LeaderEpoch, Offset, TopicPartition};
use runtime::{Canary, Env};

use crate::cache::{CacheKey, ChunkCache};
use crate::config::{LogConfig, StorageConfig};
use crate::error::LogFailure;
use crate::failure::DirectoryFailure;
use crate::metrics::Metrics;
use crate::piece::Piece;
use crate::segment::{OpenSegment, Prepared, SealedSegment};
use crate::window::Rate;
use crate::write::Writer;

/// How far a log is, after writes completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// All below has been written.
    pub written: Offset,
    /// All below is on stable storage.
    pub flushed: Offset,
}

/// One replica's log.
pub struct Log<E: Env> {
    pub(crate) env: E,
    pub(crate) name: TopicPartition,
    pub(crate) directory: PathBuf,
    pub(crate) config: LogConfig,
    pub(crate) storage: StorageConfig,
    pub(crate) cache: ChunkCache,
    pub(crate) cache_key: CacheKey,
    pub(crate) metrics: Metrics,
    pub(crate) offsets: Offsets,
    pub(crate) last_epoch: LeaderEpoch,
    pub(crate) sealed: VecDeque<SealedSegment<E>>,
    pub(crate) retired: crate::retention::Retired<E>,
    /// Unsealed segments, oldest first; the last is the active one.
    pub(crate) open: VecDeque<OpenSegment<E>>,
    pub(crate) prepared: Option<Prepared>,
    pub(crate) tail: Tail,
    pub(crate) writer: Writer,
    pub(crate) rate: Rate,
    pub(crate) demand: Demand,
    pub(crate) maintenance: crate::maintenance::Maintenance,
    pub(crate) streams: crate::readahead::Streams<E>,
    pub(crate) producers: crate::producers::KeptProducers,
    /// Whether a checkpoint would shorten the next recovery by much.
    pub(crate) wants_checkpoint: Cell<bool>,
    pub(crate) failure: Option<LogFailure>,
    /// The first failure of any log of the directory, or of the directory itself.
    pub(crate) directory_failure: DirectoryFailure,
}

/// The offsets of a log.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Offsets {
    pub(crate) log_start: Offset,
    pub(crate) flushed: Offset,
    pub(crate) written: Offset,
    pub(crate) log_end: Offset,
}

/// What lies in memory from the oldest unwritten byte on.
#[derive(Default)]
pub(crate) struct Tail {
    /// Pieces of open segments, oldest first; the last may still be appended to.
    pub(crate) pieces: VecDeque<Piece>,
    /// The bytes of the active segment's last, partial block while no piece holds them.
    pub(crate) partial: Box<[u8]>,
    /// Size of the next chunk, in bytes.
    pub(crate) chunk_bytes: usize,
    /// When the last chunk was taken, and when the last batch was appended.
    pub(crate) chunk_taken: runtime::Monotonic,
    pub(crate) last_append: runtime::Monotonic,
}

/// What appends have asked for in vain.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Demand {
    /// The active segment must be allocated at least up to here.
    pub(crate) allocated: u64,
    /// A next segment with this much space is needed.
    pub(crate) next_segment: Option<u64>,
}

impl<E: Env> Log<E> {
    /// The partition.
    #[must_use]
    pub fn name(&self) -> TopicPartition {
        self.name
    }

    /// The first offset of the log.
    #[must_use]
    pub fn log_start(&self) -> Offset {
        self.offsets.log_start
    }

    /// The offset that the next record gets.
    #[must_use]
    pub fn log_end(&self) -> Offset {
        self.offsets.log_end
    }

    /// All below has been written.
    #[must_use]
    pub fn written(&self) -> Offset {
        self.offsets.written
    }

    /// All below is on stable storage.
    #[must_use]
    pub fn flushed(&self) -> Offset {
        self.offsets.flushed
    }

    /// The leader epoch of the last batch; -1 for an empty log.
    #[must_use]
    pub fn last_epoch(&self) -> LeaderEpoch {
        self.last_epoch
    }

    /// Bytes of batches in the log.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        let sealed: u64 = self.sealed.iter().map(|segment| segment.size).sum();
        let open: u64 = self.open.iter().map(|segment| segment.appended).sum();
        sealed + open
    }

    /// Segments of the log.
    #[must_use]
    pub fn segment_count(&self) -> usize {
        self.sealed.len() + self.open.len()
    }

    /// Bytes appended and not yet written.
    #[must_use]
    pub fn unwritten_bytes(&self) -> usize {
        self.writer.unwritten_bytes
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> LogConfig {
        self.config
    }

    /// Changes the configuration; it acts from the next append, write or maintenance on.
    pub fn set_config(&mut self, config: LogConfig) {
        self.config = config;
    }

    /// Whether the last attempt to get space for appends has failed: the file system is full.
    #[must_use]
    pub fn lacks_space(&self) -> bool {
        self.maintenance.shortage().is_some()
    }

    /// What the last attempt to get space for appends lacked, in words that name the drive.
    #[must_use]
    pub fn shortage(&self) -> Option<&str> {
        self.maintenance.shortage()
    }

    /// What stopped the log, if anything did.
    #[must_use]
    pub fn failure(&self) -> Option<&LogFailure> {
        self.failure.as_ref()
    }

    /// Whether index entries were persisted since the last [`Log::checkpoint_entry`]: a checkpoint soon keeps the next recovery short.
    #[must_use]
    pub fn wants_checkpoint(&self) -> bool {
        self.wants_checkpoint.get()
    }

    /// The counters of this core's storage.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    /// Gives up all memory that isn't needed for what is unwritten: cached pieces, readers' places, an idle tail.
    pub fn drop_cached(&mut self) {
        if self.writer.unwritten_bytes == 0 && self.writer.is_idle() {
            self.drop_tail();
        }
        self.cache.remove_log(self.cache_key);
        self.streams.clear();
    }

    pub(crate) fn class(&self) -> DurabilityClass {
        self.config.class
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn active(&self) -> &OpenSegment<E> {
        self.open.back().expect("a log has an active segment")
    }

    pub(crate) fn active_mut(&mut self) -> &mut OpenSegment<E> {
        self.open.back_mut().expect("a log has an active segment")
    }

    pub(crate) fn open_segment(&mut self, base: Offset) -> Option<&mut OpenSegment<E>> {
        self.open.iter_mut().find(|segment| segment.base == base)
    }

    pub(crate) fn index_one_behind(&self) -> bool {
        self.env.canary(Canary::IndexOneEntryBehind)
    }

    /// Stops the log, and all logs of its directory; the first failure stays.
    pub(crate) fn fail(&mut self, operation: &'static str, place: (Offset, u64), cause: io::Error) -> LogFailure {
        let failure = self.fail_alone(operation, place, cause);
        self.directory_failure.arise(|| io::Error::new(failure.cause.kind(), failure.to_string()));
        failure
    }

    /// Stops this log, where no flush was concerned; the first failure stays.
    pub(crate) fn fail_alone(&mut self, operation: &'static str, place: (Offset, u64), cause: io::Error) -> LogFailure {
        let failure = LogFailure { log: self.name, operation, segment: place.0, position: place.1, cause: Rc::new(cause) };
        tracing::error!(log = %self.name, %failure, "a log has stopped");
        self.failure.get_or_insert(failure).clone()
    }

    /// Ends with the failure of this log, of another one of its directory or of the directory itself, if there was any.
    ///
    /// # Errors
    /// Then: the log has stopped.
    pub fn check_running(&mut self) -> Result<(), LogFailure> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let Some(cause) = self.directory_failure.cause() else { return Ok(()) };
        let active = self.active();
        let failure = LogFailure {
            log: self.name,
            operation: "a flush elsewhere in its directory",
            segment: active.base,
            position: active.written,
            cause,
        };
        self.failure = Some(failure.clone());
        Err(failure)
    }
}

impl<E: Env> Drop for Log<E> {
    fn drop(&mut self) {
        self.cache.remove_log(self.cache_key);
        for segment in &self.open {
            runtime::File::close(&segment.file.file);
        }
        for file in self.sealed.iter().map(|segment| &segment.file).chain(self.retired_files()) {
            runtime::File::close(&file.file);
        }
    }
}
