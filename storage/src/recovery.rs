//! Recovery: a log is opened again after whatever ended it last.
//!
//! Sealed segments are trusted by their manifest; their batches are checked when they are read. Unsealed ones are scanned, from the last
//! index entry that the checkpoint vouches for, or from their start. A batch is accepted only if it is whole, its CRC is right, its base
//! offset is the expected one and its leader epoch isn't lower than the last; at the first that isn't, the log is cut.
//!
//! **No ghosts** (trap T88): segments behind the cut are removed and what lies behind it in its segment is zeroed, durably, before the log is
//! given out. What was accepted and no checkpoint vouches for is written again and flushed before it counts as flushed: the process
//! before may have been killed after a flush that failed, and a flush that follows such a one covers nothing of what it lost.

mod cut;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use protocol::ids::{LeaderEpoch, Offset, Timestamp, TopicPartition};
use protocol::limits::LOG_END_OFFSET_MAX;
use runtime::{Canary, Disk, Env};

use self::cut::{is_written_behind, partial_block};
use crate::blocks::{block_ceiling, block_floor, in_file};
use crate::checkpoint::{CheckpointEntry, SegmentCheckpoint};
use crate::config::LogConfig;
use crate::directory::Directory;
use crate::disk_read::{Scan, Source};
use crate::error::{Fault, Impossible, ReadError, RecoveryError};
use crate::header::{BATCH_HEADER_BYTES, BatchHeader, HeaderFault};
use crate::index::{INDEX_ENTRY_BYTES, IndexEntry};
use crate::log::Log;
use crate::maintenance::prepare;
use crate::manifest::{MANIFEST_BYTES_MAX, Manifest, ManifestError};
use crate::producers::{PRODUCERS_NAME, ProducerReplay, Replaying};
use crate::readahead::{READ_BYTES_MAX, Stream};
use crate::retention::is_leftover;
use crate::rewrite::Rewriter;
use crate::segment::{NotedBatch, OpenSegment, SealedSegment, parse_segment_name, segment_path};
use crate::time_index::{TIME_ENTRY_BYTES, TimeEntry};

/// An index file is at most this large, in bytes.
const INDEX_BYTES_MAX: usize = 1 << 30;
/// Progress is reported after this much, in bytes.
const REPORT_BYTES: u64 = 8 << 20;
/// Space of a new active segment, in bytes.
const NEW_SEGMENT_BYTES: u64 = 256 << 10;

/// Where nothing was written, there are zeros.
const UNWRITTEN: Fault = Fault::Header(HeaderFault::Zeros);

/// How far the recovery of one log is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryProgress {
    /// Bytes scanned.
    pub scanned: u64,
    /// Bytes to scan at most: a segment's end is found only by getting there.
    pub total: u64,
}

impl RecoveryProgress {
    /// The time still needed at most, after `elapsed` for what is scanned; `None` as long as nothing is.
    #[must_use]
    pub fn remaining(&self, elapsed: Duration) -> Option<Duration> {
        let left = self.total.saturating_sub(self.scanned);
        let nanos = elapsed.as_nanos().checked_mul(u128::from(left))?.checked_div(u128::from(self.scanned))?;
        u64::try_from(nanos).ok().map(Duration::from_nanos)
    }
}

impl std::ops::AddAssign for RecoveryProgress {
    fn add_assign(&mut self, other: RecoveryProgress) {
        self.scanned += other.scanned;
        self.total += other.total;
    }
}

/// A log that was opened again.
pub struct Recovered<E: Env> {
    /// The log.
    pub log: Log<E>,
    /// What was cut off its end, if anything but unwritten space was found there.
    pub cut: Option<Cut>,
    /// Bytes that were scanned.
    pub scanned: u64,
}

/// Where a log was cut, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Base offset of the segment.
    pub segment: Offset,
    /// The first byte that isn't part of the log any more.
    pub position: u64,
    /// What is wrong there.
    pub fault: Fault,
    /// Later segments that were removed.
    pub segments_removed: usize,
}

/// Where a scan is.
struct Place {
    expected: Offset,
    last_epoch: LeaderEpoch,
}

/// How the scan of a segment ended.
struct End<E: Env> {
    position: u64,
    /// Where the first batch starts that no checkpoint vouches for.
    unvouched: u64,
    fault: Option<Fault>,
    /// The fault is no space that nothing was written into.
    is_torn: bool,
    /// The bytes of the last, partial block.
    partial: Box<[u8]>,
    /// Writes the whole blocks again.
    again: Rewriter<E>,
}

struct Files {
    /// Base offset and size of each log file, ascending.
    logs: Vec<(Offset, u64)>,
    manifests: Vec<Offset>,
}

impl<E: Env> Directory<E> {
    /// Opens a log again. `producers` is told of idempotent producers; `progress` is called now and then. Neither may block.
    ///
    /// # Errors
    /// See [`RecoveryError`]. The log's files are as they were, or cut where they were torn. If a flush has failed, every log of the directory stops.
    pub async fn recover_log(
        &self,
        log: TopicPartition,
        config: LogConfig,
        producers: &mut dyn ProducerReplay,
        progress: impl FnMut(RecoveryProgress),
    ) -> Result<Recovered<E>, RecoveryError> {
        let recovered = self.recover(log, config, producers, progress).await;
        if let Err(error) = &recovered {
            self.note_failed_recovery(error);
        }
        recovered
    }

    async fn recover(
        &self,
        log: TopicPartition,
        config: LogConfig,
        producers: &mut dyn ProducerReplay,
        mut progress: impl FnMut(RecoveryProgress),
    ) -> Result<Recovered<E>, RecoveryError> {
        let state = self.state();
        let entry = self.checkpoint_entry(log);
        let mut recovery = Recovery {
            env: &state.env,
            directory: self.log_path(log),
            log: Log::assemble(state, log, self.log_path(log), config, Offset(0)),
            vouched: entry.as_ref().map_or(Offset(0), |entry| entry.flushed),
            replaying: Replaying { state: producers, from: Offset(0), present: false },
            progress: RecoveryProgress::default(),
            reported: 0,
        };
        recovery.log.open.clear();
        let files = recovery.list().await?;
        if files.logs.is_empty() {
            return Err(RecoveryError::Missing { log, directory: self.path().to_path_buf() });
        }
        let result = recovery.run(files, entry, &mut progress).await?;
        progress(recovery.progress);
        Ok(Recovered { log: recovery.log, cut: result, scanned: recovery.progress.scanned })
    }
}

struct Recovery<'a, E: Env> {
    env: &'a E,
    directory: PathBuf,
    log: Log<E>,
    /// A checkpoint vouches for all below: it was on stable storage.
    vouched: Offset,
    replaying: Replaying<'a>,
    progress: RecoveryProgress,
    reported: u64,
}

impl<E: Env> Recovery<'_, E> {
    async fn run(
        &mut self,
        files: Files,
        entry: Option<CheckpointEntry>,
        progress: &mut impl FnMut(RecoveryProgress),
    ) -> Result<Option<Cut>, RecoveryError> {
        let first = files.logs[0].0;
        let (sealed, mut place, known) = self.sealed_prefix(&files).await?;
        let unsealed = &files.logs[sealed..];
        self.log.producers.on_disk = self.replaying.begin(self.env, &self.directory, place.expected, known).await?;
        // All below a snapshot was on stable storage.
        self.vouched = self.vouched.max(self.replaying.from);
        let scans_whole = self.log.producers.is_behind(entry.as_ref(), &self.directory);
        let checkpoints = entry.as_ref().filter(|_| !scans_whole).map_or(&[][..], |entry| &entry.segments);
        self.progress.total = unsealed.iter().map(|(_, bytes)| bytes).sum();
        let mut cut = None;
        for (index, (base, bytes)) in unsealed.iter().copied().enumerate() {
            if base != place.expected {
                return Err(RecoveryError::Gap { directory: self.directory.clone(), expected: place.expected, found: base });
            }
            let next_base = unsealed.get(index + 1).map(|(base, _)| *base);
            let checkpoint = checkpoints.iter().find(|checkpoint| checkpoint.base == base);
            let (mut segment, end) = self.scan_segment(base, bytes, checkpoint, &mut place, next_base, progress).await?;
            segment.set_end(end.position, bytes);
            let complete = next_base == Some(place.expected);
            if complete {
                if end.unvouched < end.position {
                    self.end_with_a_block(&segment, bytes).await?;
                    self.write_partial(&segment, &end.partial).await?;
                }
                end.again.finish().await.map_err(self.log_error(base))?;
                segment.producers_at_end = Some(self.replaying.at(place.expected));
                self.log.open.push_back(segment);
                continue;
            }
            let later = &unsealed[index + 1..];
            let overlap = Fault::Offset { expected: place.expected, found: next_base.unwrap_or(place.expected) };
            let fault = end.fault.unwrap_or(overlap);
            let sealed_later = later.iter().any(|(base, _)| files.manifests.binary_search(base).is_ok());
            if sealed_later || place.expected < self.vouched {
                // A later segment was sealed, or a checkpoint was written: what is missing was whole and on stable storage then.
                return Err(RecoveryError::Damaged { path: self.log_file(base), position: end.position, fault });
            }
            self.remove_segments(later).await?;
            self.end_with_a_block(&segment, bytes).await?;
            self.clear_behind(&segment, &end.partial).await?;
            end.again.finish().await.map_err(self.log_error(base))?;
            self.log.open.push_back(segment);
            self.log.tail.partial = end.partial;
            let is_torn = end.is_torn || !later.is_empty();
            cut = is_torn.then_some(Cut { segment: base, position: end.position, fault, segments_removed: later.len() });
            break;
        }
        if place.expected < self.vouched {
            let (directory, expected, found) = (self.directory.clone(), place.expected, self.vouched);
            return Err(RecoveryError::Gap { directory, expected, found });
        }
        if self.log.open.is_empty() {
            self.begin_segment(place.expected).await?;
        }
        let end = place.expected;
        let log_start = entry.map_or(first, |entry| entry.log_start);
        if log_start < first || end < first {
            return Err(RecoveryError::Gap { directory: self.directory.clone(), expected: log_start.min(end), found: first });
        }
        let log_start = log_start.min(end);
        self.log.offsets = crate::log::Offsets { log_start, flushed: end, written: end, log_end: end };
        self.log.last_epoch = place.last_epoch;
        self.log.producers.present = self.replaying.present;
        self.log.start_is_durable(log_start);
        Ok(cut)
    }

    fn log_file(&self, base: Offset) -> PathBuf {
        segment_path(&self.directory, base, "log")
    }

    fn log_error(&self, base: Offset) -> impl FnOnce(io::Error) -> RecoveryError + use<E> {
        Self::io_error(&self.log_file(base))
    }

    fn shared_error(&self, base: Offset, cause: Rc<io::Error>) -> RecoveryError {
        RecoveryError::Io { path: self.log_file(base), cause }
    }

    fn io_error(path: &Path) -> impl FnOnce(io::Error) -> RecoveryError + use<E> {
        let path = path.to_path_buf();
        move |cause| RecoveryError::Io { path, cause: Rc::new(cause) }
    }

    /// What lies there; leftovers are removed.
    async fn list(&self) -> Result<Files, RecoveryError> {
        let disk = self.env.disk();
        let failed = || Self::io_error(&self.directory);
        let entries = match disk.list(&self.directory).await {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Files { logs: Vec::new(), manifests: Vec::new() });
            }
            Err(error) => return Err(failed()(error)),
        };
        let mut files = Files { logs: Vec::new(), manifests: Vec::new() };
        let bases =
            entries.iter().filter_map(|entry| parse_segment_name(&entry.name).filter(|(_, extension)| *extension == "log"));
        let bases: BTreeSet<Offset> = bases.map(|(base, _)| base).collect();
        for entry in &entries {
            match parse_segment_name(&entry.name) {
                Some((base, "log")) => files.logs.push((base, entry.length)),
                Some((base, extension)) if is_leftover(extension, bases.contains(&base)) => {
                    disk.remove_file(&self.directory.join(&entry.name)).await.map_err(failed())?;
                }
                Some((base, "manifest")) => files.manifests.push(base),
                Some((_, "index" | "timeindex")) => {}
                None if entry.name == PRODUCERS_NAME => {}
                _ => {
                    disk.remove_file(&self.directory.join(&entry.name)).await.map_err(failed())?;
                }
            }
        }
        // A process that was killed may have left names that only the kernel's memory holds: what is built upon from here on
        // must survive a power cut, down from the data directory.
        let topic = self.directory.parent().unwrap_or(&self.directory);
        for directory in [topic.parent().unwrap_or(topic), topic, &self.directory] {
            disk.sync_directory(directory).await.map_err(failed())?;
        }
        files.logs.sort_unstable();
        files.manifests.sort_unstable();
        if let Some((base, _)) = files.logs.last().filter(|(base, _)| base.0 > LOG_END_OFFSET_MAX) {
            let number = Impossible { what: "the base offset of a segment", found: base.0, allowed: LOG_END_OFFSET_MAX };
            return Err(RecoveryError::Impossible { path: self.log_file(*base), position: 0, number });
        }
        Ok(files)
    }

    /// How many segments at the front are sealed, where the log goes on behind them, and the snapshot of the producers there.
    async fn sealed_prefix(&mut self, files: &Files) -> Result<(usize, Place, Option<Box<[u8]>>), RecoveryError> {
        let mut sealed = files.logs.iter().take_while(|(base, _)| files.manifests.binary_search(base).is_ok()).count();
        let mut place = Place { expected: files.logs[0].0, last_epoch: LeaderEpoch(-1) };
        let mut producers = None;
        while let Some(last) = sealed.checked_sub(1) {
            let (base, bytes) = files.logs[last];
            let path = segment_path(&self.directory, base, "manifest");
            let read = self.env.disk().read_file(&path, MANIFEST_BYTES_MAX).await.map_err(Self::io_error(&path))?;
            match Manifest::decode(&read) {
                Ok(manifest) if manifest.fits(base, bytes) => {
                    let last_epoch = manifest.epochs.last().map_or(LeaderEpoch(-1), |(epoch, _)| *epoch);
                    place = Place { expected: manifest.end, last_epoch };
                    producers = manifest.producers().map(Box::from);
                    break;
                }
                Err(error @ ManifestError::Version(_)) => {
                    return Err(RecoveryError::Manifest { path, reason: error.to_string() });
                }
                // A manifest that can't be trusted makes its segment an unsealed one: it is scanned and sealed anew.
                Ok(manifest) => {
                    let (path, end) = (path.display(), manifest.end);
                    tracing::warn!(%path, base = %manifest.base, %end, bytes = manifest.log_bytes, "the manifest doesn't fit its log file; the segment is scanned");
                }
                Err(error) => tracing::warn!(path = %path.display(), %error, "the segment is scanned"),
            }
            sealed = last;
        }
        let metrics = self.log.metrics();
        for (index, (base, size)) in files.logs[..sealed].iter().copied().enumerate() {
            let end = if index + 1 < sealed { files.logs[index + 1].0 } else { place.expected };
            let file = self.env.disk().file(self.log_file(base), false);
            let file = crate::file::SegmentFile::new(file, metrics.clone());
            self.log.sealed.push_back(SealedSegment { base, end, size, file, max_timestamp: None, last_append: None });
        }
        Ok((sealed, place, producers))
    }

    /// Scans an unsealed segment up to its end, or up to the batch that the next segment starts with.
    async fn scan_segment(
        &mut self,
        base: Offset,
        bytes: u64,
        checkpoint: Option<&SegmentCheckpoint>,
        place: &mut Place,
        next_base: Option<Offset>,
        progress: &mut impl FnMut(RecoveryProgress),
    ) -> Result<(OpenSegment<E>, End<E>), RecoveryError> {
        let interval = self.log.config.index_interval_bytes;
        let mut segment = OpenSegment::new(self.env, &self.directory, base, None, interval, &self.log.metrics);
        let start = match checkpoint {
            Some(checkpoint) => self.restore_indexes(&mut segment, checkpoint).await?,
            None => None,
        };
        // The last entry that the checkpoint vouches for: its batch is there, or the log is damaged.
        let mut vouched = start.map(|entry| base.plus(entry.relative_offset));
        let mut position = start.map_or(0, |entry| u64::from(entry.position));
        let mut unvouched = position;
        let source = Source { base, end: bytes, file: segment.file.clone() };
        let stream = Stream::new(source, place.expected, position);
        let cache = self.log.cache.clone();
        let mut scan = Scan { env: self.env, cache: &cache, stream, ahead: true, waited: false, since_yield: 0 };
        let mut again = Rewriter::new(self.env, &segment.file);
        self.progress.total -= position.min(self.progress.total);
        let fault = loop {
            if next_base.is_some_and(|next| place.expected >= next) {
                break None;
            }
            let header = match batch_or_fault(&mut scan, position).await {
                Ok(Ok(header)) => header,
                Ok(Err(fault)) => break Some(fault),
                Err(cause) => return Err(self.shared_error(base, cause)),
            };
            if let Some(last_offset) = vouched {
                if header.last_offset() != last_offset {
                    break Some(Fault::Offset { expected: last_offset, found: header.last_offset() });
                }
                place.expected = header.base_offset;
            }
            if let Some(fault) = self.misplaced(&header, place) {
                break Some(fault);
            }
            if let Some(number) = header.impossible_in(base, position) {
                return Err(RecoveryError::Impossible { path: self.log_file(base), position, number });
            }
            if vouched.take().is_some() {
                segment.resume_behind(&header, position);
            } else {
                segment.note(NotedBatch::of(&header), position);
            }
            self.replaying.batch(&header);
            segment.found(header.max_timestamp, self.env.wall_clock());
            *place = Place { expected: header.next_offset(), last_epoch: place.last_epoch.max(header.leader_epoch) };
            position += in_file(header.size);
            if place.expected <= self.vouched {
                unvouched = position;
            }
            again.pass(&scan.stream, block_floor(unvouched), position).await.map_err(self.log_error(base))?;
            scan.stream.advance(place.expected, position);
            self.report(in_file(header.size), progress);
        };
        if let (Some(_), Some(fault)) = (vouched, fault) {
            return Err(RecoveryError::Damaged { path: self.log_file(base), position, fault });
        }
        again.rest(&scan.stream, block_floor(unvouched), block_floor(position)).await.map_err(self.log_error(base))?;
        let partial = partial_block(&scan, position);
        let is_torn = match fault {
            // The first sector of a write may be lost alone: then it begins with zeros, too.
            Some(UNWRITTEN) => is_written_behind(&mut scan, position).await.map_err(|cause| self.shared_error(base, cause))?,
            fault => fault.is_some(),
        };
        Ok((segment, End { position, unvouched, fault, is_torn, partial, again }))
    }

    fn misplaced(&self, header: &BatchHeader, place: &Place) -> Option<Fault> {
        if header.base_offset != place.expected {
            return Some(Fault::Offset { expected: place.expected, found: header.base_offset });
        }
        if header.leader_epoch < place.last_epoch && !self.env.canary(Canary::RecoveryWithoutEpochCheck) {
            return Some(Fault::Epoch { last: place.last_epoch, found: header.leader_epoch });
        }
        None
    }

    fn report(&mut self, bytes: u64, progress: &mut impl FnMut(RecoveryProgress)) {
        self.progress.scanned += bytes;
        if self.progress.scanned - self.reported >= REPORT_BYTES {
            self.reported = self.progress.scanned;
            progress(self.progress);
        }
    }

    /// Takes over the index entries that the checkpoint vouches for; the last of them. `None`: the segment is scanned whole.
    async fn restore_indexes(
        &self,
        segment: &mut OpenSegment<E>,
        checkpoint: &SegmentCheckpoint,
    ) -> Result<Option<IndexEntry>, RecoveryError> {
        segment.first_append = Some(checkpoint.first_append).filter(|first| *first != Timestamp::NONE);
        let persisted = checkpoint.persisted;
        if persisted.entries == 0 {
            return Ok(None);
        }
        let bytes = persisted.entries.checked_mul(INDEX_ENTRY_BYTES);
        let (Some(bytes), Some(time_bytes)) = (bytes, persisted.time_entries.checked_mul(TIME_ENTRY_BYTES)) else {
            return Ok(None);
        };
        let index = self.read_index("index", segment.base, bytes, persisted.entries_crc).await?;
        let times = self.read_index("timeindex", segment.base, time_bytes, persisted.time_entries_crc).await?;
        let (Some(index), Some(times)) = (index, times) else { return Ok(None) };
        let entries: Vec<IndexEntry> = index.as_chunks().0.iter().map(|bytes| IndexEntry::from_bytes(*bytes)).collect();
        let times: Vec<TimeEntry> = times.as_chunks().0.iter().map(|bytes| TimeEntry::from_bytes(*bytes)).collect();
        let Some(last) = entries.last().copied().filter(|last| rise(&entries) && rise_up_to(&times, last)) else {
            let path = segment_path(&self.directory, segment.base, "index");
            tracing::warn!(path = %path.display(), "the entries of an index don't rise; it is made anew from the log");
            return Ok(None);
        };
        segment.index.restore(entries);
        let max = times
            .last()
            .map_or((Timestamp::NONE, segment.base), |last| (last.timestamp, segment.base.plus(last.relative_offset)));
        segment.time_index.restore(times, max.0, max.1);
        segment.epochs = checkpoint.epochs.clone();
        segment.persisted = persisted;
        Ok(Some(last))
    }

    /// The first `bytes` of an index file, if it has them and their CRC is right. A missing index is no damage: it is made anew.
    async fn read_index(&self, extension: &str, base: Offset, bytes: usize, crc: u32) -> Result<Option<Vec<u8>>, RecoveryError> {
        let path = segment_path(&self.directory, base, extension);
        if bytes == 0 {
            return Ok(Some(Vec::new()));
        }
        let mut read = match self.env.disk().read_file(&path, INDEX_BYTES_MAX).await {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(Self::io_error(&path)(error)),
        };
        read.truncate(bytes);
        if read.len() < bytes || crc32c::crc32c(&read) != crc {
            tracing::warn!(path = %path.display(), "the index is missing or damaged; it is made anew from the log");
            return Ok(None);
        }
        Ok(Some(read))
    }

    /// A new active segment behind sealed ones.
    async fn begin_segment(&mut self, base: Offset) -> Result<(), RecoveryError> {
        let path = self.log_file(base);
        let metrics = self.log.metrics();
        prepare(self.env, &path, &self.directory, NEW_SEGMENT_BYTES, &metrics).await.map_err(Self::io_error(&path))?;
        let interval = self.log.config.index_interval_bytes;
        let mut segment = OpenSegment::new(self.env, &self.directory, base, None, interval, &metrics);
        segment.allocated = NEW_SEGMENT_BYTES;
        self.log.open = VecDeque::from([segment]);
        Ok(())
    }
}

impl<E: Env> OpenSegment<E> {
    /// All up to `position` was found on the disk.
    fn set_end(&mut self, position: u64, bytes: u64) {
        self.appended = position;
        self.submitted = position;
        self.written = position;
        self.flushed = position;
        self.allocated = block_ceiling(bytes);
        self.frontier = block_ceiling(position);
    }

    /// Goes on behind the batch of the last index entry, which is noted already.
    fn resume_behind(&mut self, header: &BatchHeader, position: u64) {
        self.index.resume(header.size);
        if self.epochs.last().is_none_or(|(epoch, _)| *epoch < header.leader_epoch) {
            self.epochs.push((header.leader_epoch, header.base_offset));
        }
        self.appended = position + in_file(header.size);
    }
}

impl NotedBatch {
    fn of(header: &BatchHeader) -> NotedBatch {
        NotedBatch {
            base_offset: header.base_offset,
            last_offset: header.last_offset(),
            leader_epoch: header.leader_epoch,
            max_timestamp: header.max_timestamp,
            size: header.size,
        }
    }
}

/// Whether offsets and positions rise from entry to entry.
fn rise(entries: &[IndexEntry]) -> bool {
    entries.is_sorted_by(|one, next| one.relative_offset < next.relative_offset && one.position < next.position)
}

/// Whether timestamps and offsets rise, and none names a batch behind the last entry's of the offset index.
fn rise_up_to(times: &[TimeEntry], last: &IndexEntry) -> bool {
    let rise = times.is_sorted_by(|one, next| one.timestamp < next.timestamp && one.relative_offset < next.relative_offset);
    rise && times.last().is_none_or(|time| time.relative_offset <= last.relative_offset)
}

/// The whole, checked batch at `position`, or what is wrong there; waits for memory.
async fn batch_or_fault<E: Env>(scan: &mut Scan<'_, E>, position: u64) -> Result<Result<BatchHeader, Fault>, Rc<io::Error>> {
    loop {
        // No batch begins where not even a header fits: nothing is appended beyond what is allocated.
        if position + in_file(BATCH_HEADER_BYTES) > scan.stream.source.end {
            return Ok(Err(UNWRITTEN));
        }
        let freed = scan.env.region().freed();
        let seen = freed.count();
        match scan.batch_at(position, READ_BYTES_MAX).await {
            Ok(header) => return Ok(Ok(header)),
            Err(ReadError::Corrupt { fault, .. }) => return Ok(Err(fault)),
            Err(ReadError::NoMemory { .. }) => freed.changed(seen).await,
            Err(ReadError::Io { cause, .. }) => return Err(cause),
            Err(ReadError::OutOfRange { asked, .. }) => unreachable!("a scan doesn't ask for offsets, not even {asked}"),
        }
    }
}
