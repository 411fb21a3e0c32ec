//! What a log needs besides appends, writes and reads: space ahead, a zeroed window, the next segment, seals, flushes.
//!
//! One plan at a time. Its owner asks after writes and at least each second; a plan may take as long as the disk likes, and
//! appends and writes go on meanwhile. While the window is being zeroed, no write starts behind the frontier.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use protocol::ids::{DurabilityClass, Offset, Timestamp};
use runtime::disk::is_lack_of_space;
use runtime::{Chunk, Disk, Durability, Env, File, Monotonic};

use crate::append::SEGMENT_BYTES_CEILING;
use crate::blocks::{BLOCK, block_ceiling, block_floor, in_memory};
use crate::error::LogFailure;
use crate::file::SegmentFile;
use crate::log::Log;
use crate::metrics::Metrics;
use crate::producers::Snapshot;
use crate::retention::{LearnPlan, Learned};
use crate::seal::{PersistPlan, Persisted, SealPlan, Sealed};
use crate::segment::{Name, Prepared};
use crate::space::{Allowance, Wanted, name_drive};
use crate::write::Rename;

/// Largest piece zeroed at once, in bytes: writes that reach behind the frontier wait for it.
const ZERO_BYTES_MAX: u64 = 512 << 10;
/// Unflushed bytes of a log of class `written` are flushed from this many on.
const UNFLUSHED_BYTES_MAX: u64 = 64 << 20;
/// Log bytes behind the last persisted index entry, at most: what recovery has to scan.
const UNPERSISTED_BYTES_MAX: u64 = 64 << 20;
/// After this time without a flush or a persisted index, both are done, in nanoseconds.
const PERSIST_INTERVAL_NANOS: u64 = 30_000_000_000;
/// Readers that don't come back lose their place after this, in nanoseconds.
const READER_IDLE_NANOS: u64 = 5_000_000_000;
/// What lacked space is tried again after this.
const SPACE_RETRY: Duration = Duration::from_secs(1);

/// The state of a log's maintenance.
#[derive(Default)]
pub(crate) struct Maintenance {
    running: bool,
    /// Space couldn't be had.
    shortage: Option<LackOfSpace>,
    /// The same for index files and manifests, which appends don't wait for.
    retry_index_at: Option<Monotonic>,
    last_persist: Monotonic,
    last_reader_check: Monotonic,
    last_flush: Monotonic,
}

/// Space that couldn't be had.
struct LackOfSpace {
    /// What was said of it.
    words: String,
    /// When it is tried again.
    retry_at: Monotonic,
}

impl Maintenance {
    pub(crate) fn shortage(&self) -> Option<&str> {
        self.shortage.as_ref().map(|lack| lack.words.as_str())
    }
}

/// One piece of maintenance.
pub struct MaintenancePlan<E: Env> {
    env: E,
    work: Work<E>,
}

enum Work<E: Env> {
    /// Allocate more of the active segment.
    Extend {
        base: Offset,
        file: SegmentFile<E>,
        wanted: Wanted,
        allowance: Allowance,
        directory: PathBuf,
    },
    /// Create and allocate the file of the next segment.
    Prepare {
        path: PathBuf,
        directory: PathBuf,
        wanted: Wanted,
        allowance: Allowance,
        metrics: Metrics,
    },
    /// Write zeros.
    Zero {
        base: Offset,
        file: SegmentFile<E>,
        zeros: Chunk,
        position: u64,
        bytes: u64,
    },
    /// Give a segment that has no writes yet its own name.
    Rename {
        base: Offset,
        rename: Rename,
    },
    Flush(FlushPlan<E>),
    Seal(SealPlan<E>),
    Persist(PersistPlan<E>),
    /// Write the producers' state beside the log.
    KeepProducers {
        snapshot: Snapshot,
        directory: PathBuf,
    },
    /// Ask sealed segments how old they are.
    Learn(LearnPlan),
}

/// What became of it.
pub struct MaintenanceOutcome {
    done: Done,
    result: io::Result<()>,
}

enum Done {
    Extend { base: Offset, to: u64 },
    Prepare { path: PathBuf, bytes: u64 },
    Zero { base: Offset, to: u64 },
    Rename { base: Offset },
    Flush(Flushed),
    Seal(Sealed),
    Persist(Persisted),
    KeepProducers { at: Offset },
    Learn(Learned),
}

/// A flush of everything that a log has written.
pub struct FlushPlan<E: Env> {
    files: Vec<(Offset, u64, SegmentFile<E>)>,
    written: Offset,
}

/// What a flush covers.
pub(crate) struct Flushed {
    positions: Vec<(Offset, u64)>,
    written: Offset,
}

/// What became of a flush.
pub struct FlushOutcome {
    flushed: Flushed,
    result: io::Result<()>,
}

impl<E: Env> FlushPlan<E> {
    /// Flushes. Touches no state of the log.
    pub async fn execute(self) -> FlushOutcome {
        let mut result = Ok(());
        for (_, _, file) in &self.files {
            result = file.flush().await;
            if result.is_err() {
                // Told at once: until it is, other logs acknowledge what this failure may have lost.
                break;
            }
        }
        let positions = self.files.iter().map(|(base, position, _)| (*base, *position)).collect();
        FlushOutcome { flushed: Flushed { positions, written: self.written }, result }
    }
}

impl<E: Env> MaintenancePlan<E> {
    /// Does it. Touches no state of the log.
    pub async fn execute(self) -> MaintenanceOutcome {
        let env = self.env;
        match self.work {
            Work::Extend { base, file, wanted, allowance, directory } => {
                let (to, result) = match allowance.end(&env, &directory, wanted).await {
                    Ok(to) => (to, extend(&file, wanted.from, to).await),
                    Err(error) => (wanted.from, Err(error)),
                };
                let result = result.map_err(|error| name_drive(error, &directory));
                MaintenanceOutcome { done: Done::Extend { base, to }, result }
            }
            Work::Prepare { path, directory, wanted, allowance, metrics } => {
                let (bytes, result) = match allowance.end(&env, &directory, wanted).await {
                    Ok(bytes) => (bytes, prepare(&env, &path, &directory, bytes, &metrics).await),
                    Err(error) => (0, Err(error)),
                };
                let result = result.map_err(|error| name_drive(error, &directory));
                MaintenanceOutcome { done: Done::Prepare { path, bytes }, result }
            }
            Work::Zero { base, file, mut zeros, position, bytes } => {
                let length = in_memory(bytes);
                zeros.writable()[..length].fill(0);
                zeros.publish(length);
                let mut result = file.file.write(zeros.freeze(), position, Durability::Written).await;
                if result.is_ok() {
                    // Durable writes into the window then find nothing to commit but their own bytes.
                    result = file.flush().await;
                }
                MaintenanceOutcome { done: Done::Zero { base, to: position + bytes }, result }
            }
            Work::Rename { base, rename } => {
                let result = rename.execute(&env).await;
                MaintenanceOutcome { done: Done::Rename { base }, result }
            }
            Work::Flush(plan) => {
                let outcome = plan.execute().await;
                MaintenanceOutcome { done: Done::Flush(outcome.flushed), result: outcome.result }
            }
            Work::Seal(plan) => {
                let (sealed, result) = plan.execute(&env).await;
                MaintenanceOutcome { done: Done::Seal(sealed), result }
            }
            Work::Persist(plan) => {
                let (persisted, result) = plan.execute(&env).await;
                MaintenanceOutcome { done: Done::Persist(persisted), result }
            }
            Work::KeepProducers { snapshot, directory } => {
                let result = snapshot.write(&env, &directory).await;
                MaintenanceOutcome { done: Done::KeepProducers { at: snapshot.at }, result }
            }
            Work::Learn(plan) => MaintenanceOutcome { done: Done::Learn(plan.execute(&env).await), result: Ok(()) },
        }
    }
}

/// Allocates more blocks of a file, durably.
async fn extend<E: Env>(file: &SegmentFile<E>, from: u64, to: u64) -> io::Result<()> {
    file.file.allocate(from, to - from).await?;
    file.flush().await
}

/// Creates a file of allocated, unwritten blocks, durably.
pub(crate) async fn prepare<E: Env>(
    env: &E,
    path: &std::path::Path,
    directory: &std::path::Path,
    bytes: u64,
    metrics: &Metrics,
) -> io::Result<()> {
    let file = SegmentFile::<E>::new(env.disk().file(path.to_path_buf(), true), metrics.clone());
    file.file.allocate(0, bytes).await?;
    file.flush().await?;
    file.file.close();
    env.disk().sync_directory(directory).await
}

impl<E: Env> Log<E> {
    /// The next piece of maintenance, if one is due and none is under way.
    pub fn begin_maintenance(&mut self, now: Monotonic, wall: Timestamp) -> Option<MaintenancePlan<E>> {
        if self.check_running().is_err() {
            return None;
        }
        self.rate.advance(now, &self.storage);
        self.drop_idle(now);
        if self.maintenance.running {
            return None;
        }
        self.roll_by_time(wall);
        let work = self.space_work(now, wall).or_else(|| self.zero_work()).or_else(|| self.rename_work());
        let work = work.or_else(|| self.begin_seal(now).map(Work::Seal)).or_else(|| self.safety_work(now));
        let work = work.or_else(|| self.retention_work(now, wall))?;
        self.maintenance.running = true;
        Some(MaintenancePlan { env: self.env.clone(), work })
    }

    /// Settles a piece of maintenance.
    ///
    /// # Errors
    /// If it failed in a way that stops the log. Missing space doesn't: appends that need it are refused, and it is tried again.
    pub fn finish_maintenance(&mut self, outcome: MaintenanceOutcome, now: Monotonic) -> Result<(), LogFailure> {
        self.maintenance.running = false;
        match (outcome.done, outcome.result) {
            (Done::Extend { base, to }, result) => self.finish_space(base, result, now, |log| {
                let segment = log.open_segment(base).expect("the active segment stays open while it is extended");
                segment.allocated = segment.allocated.max(to);
            }),
            (Done::Prepare { path, bytes }, result) => {
                let base = self.active().base;
                self.finish_space(base, result, now, |log| log.prepared = Some(Prepared { path, allocated: bytes }))
            }
            (Done::Zero { base, to }, result) => {
                let segment = self.open_segment(base).expect("a segment stays open while it is zeroed");
                let from = segment.frontier;
                segment.zeroing_to = None;
                segment.frontier = to;
                self.metrics.zeroed_bytes(to - from);
                result.map_err(|cause| self.fail("zeroing ahead", (base, from), cause))
            }
            (Done::Rename { base }, result) => {
                result.map_err(|cause| self.fail("naming a segment", (base, 0), cause))?;
                let segment = self.open_segment(base).expect("a segment stays open while it is named");
                segment.name = Name::Own;
                segment.prepared_path = None;
                Ok(())
            }
            (Done::Flush(flushed), result) => self.settle_flush(flushed, result, now),
            (Done::Learn(learned), _) => {
                self.finish_learn(learned);
                Ok(())
            }
            (Done::Seal(_) | Done::Persist(_) | Done::KeepProducers { .. }, result) if self.waits_for_space(&result, now) => {
                self.check_running()
            }
            (Done::Seal(sealed), result) => self.finish_seal(sealed, result),
            (Done::Persist(persisted), result) => {
                self.maintenance.last_persist = now;
                self.finish_persist(persisted, result)
            }
            (Done::KeepProducers { at }, result) => {
                result.map_err(|cause| self.fail("keeping the producers", (self.active().base, 0), cause))?;
                self.producers.on_disk = self.producers.on_disk.max(at);
                Ok(())
            }
        }
    }

    /// A flush of everything written so far, for class `written` and for a clean stop.
    pub fn begin_flush(&self) -> FlushPlan<E> {
        let unflushed = self.open.iter().filter(|segment| segment.flushed < segment.written);
        let files = unflushed.map(|segment| (segment.base, segment.written, segment.file.clone())).collect();
        FlushPlan { files, written: self.offsets.written }
    }

    /// Settles a flush.
    ///
    /// # Errors
    /// If it failed: the log has stopped.
    pub fn finish_flush(&mut self, outcome: FlushOutcome, now: Monotonic) -> Result<crate::log::Progress, LogFailure> {
        self.settle_flush(outcome.flushed, outcome.result, now)?;
        Ok(self.progress())
    }

    fn settle_flush(&mut self, flushed: Flushed, result: io::Result<()>, now: Monotonic) -> Result<(), LogFailure> {
        self.maintenance.last_flush = now;
        let place = flushed.positions.first().copied().unwrap_or((self.active().base, 0));
        result.map_err(|cause| self.fail("flush", place, cause))?;
        self.check_running()?;
        for (base, position) in flushed.positions {
            if let Some(segment) = self.open_segment(base) {
                segment.flushed = segment.flushed.max(position);
            }
        }
        self.offsets.flushed = self.offsets.flushed.max(flushed.written);
        Ok(())
    }

    /// Missing space isn't a failure of the log; anything else is.
    fn finish_space(
        &mut self,
        base: Offset,
        result: io::Result<()>,
        now: Monotonic,
        settle: impl FnOnce(&mut Self),
    ) -> Result<(), LogFailure> {
        match result {
            Ok(()) => {
                if self.maintenance.shortage.take().is_some() {
                    tracing::info!(log = %self.name, "there is space again");
                }
                settle(self);
                Ok(())
            }
            Err(error) if is_lack_of_space(&error) => {
                if self.maintenance.shortage.is_none() {
                    tracing::warn!(log = %self.name, %error, "no space for a segment; appends that need it are refused until there is");
                }
                self.maintenance.shortage = Some(LackOfSpace { words: error.to_string(), retry_at: now + SPACE_RETRY });
                Ok(())
            }
            Err(error) => Err(self.fail("allocate", (base, 0), error)),
        }
    }

    /// Whether an index or a manifest lacked space. Nobody trusts what was written of it: a checkpoint names the entries before, and a segment
    /// without a manifest isn't sealed. It is written again from the same place.
    fn waits_for_space(&mut self, result: &io::Result<()>, now: Monotonic) -> bool {
        let Some(error) = result.as_ref().err().filter(|error| is_lack_of_space(error)) else {
            self.maintenance.retry_index_at = None;
            return false;
        };
        if self.maintenance.retry_index_at.replace(now + SPACE_RETRY).is_none() {
            tracing::warn!(log = %self.name, %error, "no space for an index; tried again each second, and recovery scans more meanwhile");
        }
        true
    }

    /// Whether index files and manifests may be written: no lack of space was seen just now.
    pub(crate) fn may_write_indexes(&self, now: Monotonic) -> bool {
        self.maintenance.retry_index_at.is_none_or(|at| now >= at)
    }

    fn roll_by_time(&mut self, wall: Timestamp) {
        if self.active().appended == 0 || !(self.is_too_old(wall) || self.is_active_expired(wall)) {
            return;
        }
        if self.prepared.is_some() {
            self.roll();
        } else {
            self.demand.next_segment.get_or_insert(0);
        }
    }

    /// Allocation of the active segment, or preparation of the next.
    fn space_work(&mut self, now: Monotonic, wall: Timestamp) -> Option<Work<E>> {
        if self.maintenance.shortage.as_ref().is_some_and(|lack| now < lack.retry_at) {
            return None;
        }
        let limit = self.config.segment_bytes.min(SEGMENT_BYTES_CEILING);
        let ahead = self.rate.allocation_bytes(&self.storage);
        let active = self.active();
        // A batch larger than a segment has one for itself.
        let limit = limit.max(self.demand.allocated);
        let wanted = if active.allocated - active.appended < ahead / 2 { active.allocated + ahead } else { 0 };
        let to = block_ceiling(wanted.min(limit).max(self.demand.allocated));
        if active.name == Name::Own && to > active.allocated {
            let work = Work::Extend {
                base: active.base,
                file: active.file.clone(),
                wanted: Wanted { from: active.allocated, to, needed_to: block_ceiling(self.demand.allocated) },
                allowance: Allowance::of(self.name, &self.storage),
                directory: self.directory.clone(),
            };
            return Some(work);
        }
        let near = active.appended > 0 && (active.appended + ahead.max(limit / 8) >= limit || self.is_too_old(wall));
        let needed = self.demand.next_segment.unwrap_or(0);
        // The name of a prepared file is free again once the last one has its own.
        let named = self.open.iter().all(|segment| segment.name == Name::Own);
        let lacking = named && self.prepared.as_ref().is_none_or(|prepared| prepared.allocated < needed);
        if lacking && (near || self.demand.next_segment.is_some()) {
            let bytes = block_ceiling(ahead.min(limit).max(needed));
            let path = self.directory.join(PREPARED_NAME);
            // A smaller one under the same name is made larger: nothing may roll into it meanwhile.
            self.prepared = None;
            let (directory, metrics) = (self.directory.clone(), self.metrics.clone());
            let wanted = Wanted { from: 0, to: bytes, needed_to: block_ceiling(needed) };
            let allowance = Allowance::of(self.name, &self.storage);
            return Some(Work::Prepare { path, directory, wanted, allowance, metrics });
        }
        None
    }

    /// Zeros ahead of the active segment's end.
    fn zero_work(&mut self) -> Option<Work<E>> {
        let window = self.rate.window_bytes(&self.storage);
        let cache = self.cache.clone();
        let active = self.active_mut();
        let end = block_ceiling(active.appended);
        // Unwritten data behind the frontier goes out first: it moves the frontier itself.
        if window == 0 || active.name != Name::Own || active.frontier < end || active.frontier - end >= window.div_ceil(2) {
            return None;
        }
        let to = (end + window).min(block_floor(active.allocated)).min(active.frontier + ZERO_BYTES_MAX);
        let bytes = to.checked_sub(active.frontier).filter(|bytes| *bytes > 0)?;
        let zeros = cache.take(in_memory(bytes))?;
        active.zeroing_to = Some(to);
        Some(Work::Zero { base: active.base, file: active.file.clone(), zeros, position: active.frontier, bytes })
    }

    /// A segment without unwritten batches gets its own name before it is sealed or zeroed.
    fn rename_work(&mut self) -> Option<Work<E>> {
        let directory = self.directory.clone();
        let segment =
            self.open.iter_mut().find(|segment| segment.name == Name::Prepared && segment.submitted == segment.appended)?;
        segment.name = Name::Renaming;
        let to = crate::segment::segment_path(&directory, segment.base, "log");
        let from = segment.prepared_path.clone().expect("a prepared segment has a path");
        Some(Work::Rename { base: segment.base, rename: Rename { from, to, directory } })
    }

    /// Flushes and persisted indexes, so that recovery has little to scan.
    fn safety_work(&mut self, now: Monotonic) -> Option<Work<E>> {
        let due = |last: Monotonic| now.0.saturating_sub(last.0) >= PERSIST_INTERVAL_NANOS;
        let unflushed: u64 = self.open.iter().map(|segment| segment.written - segment.flushed).sum();
        let waits = self.class() == DurabilityClass::Device && self.writer.is_idle();
        let waits = waits || self.start_awaits_flush();
        if unflushed > 0 && (waits || unflushed >= UNFLUSHED_BYTES_MAX || due(self.maintenance.last_flush)) {
            return Some(Work::Flush(self.begin_flush()));
        }
        let overdue = due(self.maintenance.last_persist);
        self.begin_persist(if overdue { 1 } else { UNPERSISTED_BYTES_MAX }, now).map(Work::Persist)
    }

    /// What has to be known or written before a segment may leave the log.
    fn retention_work(&mut self, now: Monotonic, wall: Timestamp) -> Option<Work<E>> {
        if let Some(plan) = self.begin_learn(wall) {
            return Some(Work::Learn(plan));
        }
        if !self.may_write_indexes(now) {
            return None;
        }
        let snapshot = self.begin_keep_producers(wall)?;
        Some(Work::KeepProducers { snapshot, directory: self.directory.clone() })
    }

    /// Gives up memory that idle readers and an idle tail hold.
    fn drop_idle(&mut self, now: Monotonic) {
        if !self.streams.is_empty() && now.0.saturating_sub(self.maintenance.last_reader_check.0) >= READER_IDLE_NANOS {
            self.maintenance.last_reader_check = now;
            self.streams.drop_idle();
        }
        let idle = now.since(self.tail.last_append).as_millis() >= u128::from(self.storage.idle_tail_ms);
        if idle && self.writer.unwritten_bytes == 0 && self.writer.is_idle() {
            self.drop_tail();
        }
    }

    /// Moves the last piece to the cache and keeps the partial block's bytes.
    pub(crate) fn drop_tail(&mut self) {
        let Some(piece) = self.tail.pieces.pop_back() else { return };
        assert!(self.tail.pieces.is_empty(), "what is written and complete was moved before");
        let active = self.active();
        if piece.segment == active.base {
            let partial = in_memory(active.appended - block_floor(active.appended));
            let bytes = piece.bytes();
            self.tail.partial = bytes[bytes.len() - partial..].into();
        }
        self.cache.insert(self.cache_key, piece);
    }
}

/// The name under which the next segment's space waits.
pub(crate) const PREPARED_NAME: &str = "next.prepared";

const _: () = assert!(ZERO_BYTES_MAX.is_multiple_of(BLOCK));
