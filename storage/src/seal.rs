//! Index files: appended to in steps while a segment is open, completed with its exact size and a manifest when it is sealed.
//!
//! A step covers entries whose batches are written, after a flush of the log file; the checkpoint names how many entries lie there and
//! their CRC, and recovery scans from the last of them on. A seal happens off the append path, once everything of a rolled
//! segment is written. Order: indexes, exact sizes, flushes, the manifest (unless a flush has failed meanwhile), the directory. A crash in between leaves an unsealed
//! segment, which recovery completes; a full disk leaves one too, and all is written again once there is space.

use std::io;
use std::path::PathBuf;

use protocol::ids::{Offset, Timestamp};
use runtime::{Disk, Durability, Env, File, Monotonic};

use crate::blocks::{block_ceiling, block_floor, in_file, in_memory};
use crate::cache::ChunkCache;
use crate::error::LogFailure;
use crate::failure::DirectoryFailure;
use crate::file::SegmentFile;
use crate::index::{INDEX_ENTRY_BYTES, IndexEntry};
use crate::log::Log;
use crate::manifest::{IndexSummary, Manifest, TAG_LAST_APPEND, TAG_PRODUCERS};
use crate::producers::Snapshot;
use crate::segment::{Name, OpenSegment, PersistedIndexes, SealedSegment, segment_path};
use crate::time_index::{TIME_ENTRY_BYTES, TimeEntry};

/// Index bytes written at once.
const INDEX_WRITE_BYTES_MAX: u64 = 256 << 10;

/// New entries of one index file.
struct IndexTail {
    path: PathBuf,
    /// The entries' bytes from the block on in which the first new one starts.
    bytes: Vec<u8>,
    position: u64,
}

/// Writes new entries of an open segment's indexes.
pub(crate) struct PersistPlan<E: Env> {
    base: Offset,
    file: SegmentFile<E>,
    directory: PathBuf,
    cache: ChunkCache,
    failure: DirectoryFailure,
    index: IndexTail,
    time_index: IndexTail,
    is_first: bool,
    is_flushed: bool,
    producers: Option<Snapshot>,
    persisted: PersistedIndexes,
    written: u64,
    written_offset: Offset,
}

/// What was persisted.
pub(crate) struct Persisted {
    base: Offset,
    /// Up to where the snapshot of the producers goes that was written; -1 for none.
    producers: Offset,
    persisted: PersistedIndexes,
    written: u64,
    written_offset: Offset,
}

/// Completes a rolled segment.
pub(crate) struct SealPlan<E: Env> {
    persist: PersistPlan<E>,
    manifest: Manifest,
}

/// What was sealed.
pub(crate) struct Sealed {
    base: Offset,
}

impl<E: Env> PersistPlan<E> {
    pub(crate) async fn execute(self, env: &E) -> (Persisted, io::Result<()>) {
        let persisted = Persisted {
            base: self.base,
            producers: self.producers.as_ref().map_or(Offset(-1), |snapshot| snapshot.at),
            persisted: self.persisted,
            written: self.written,
            written_offset: self.written_offset,
        };
        let result = self.run(env, false).await;
        (persisted, result)
    }

    async fn run(&self, env: &E, exact: bool) -> io::Result<()> {
        if !self.is_flushed {
            self.file.flush().await?;
        }
        // Before the entries that it allows: what is scanned may begin before the snapshot, never behind it.
        if let Some(snapshot) = &self.producers {
            snapshot.write(env, &self.directory).await?;
        }
        for tail in [&self.index, &self.time_index] {
            tail.write(env, &self.cache, exact).await?;
        }
        if self.is_first {
            env.disk().sync_directory(&self.directory).await?;
        }
        Ok(())
    }
}

impl<E: Env> SealPlan<E> {
    pub(crate) async fn execute(self, env: &E) -> (Sealed, io::Result<()>) {
        let sealed = Sealed { base: self.persist.base };
        let result = self.run(env).await;
        (sealed, result)
    }

    async fn run(self, env: &E) -> io::Result<()> {
        let log = &self.persist.file.file;
        self.persist.run(env, true).await?;
        log.set_length(self.manifest.log_bytes).await?;
        self.persist.file.flush().await?;
        self.persist.failure.check()?;
        let path = segment_path(&self.persist.directory, self.persist.base, "manifest");
        env.disk().replace_file(&path, self.manifest.encode()).await
    }
}

impl IndexTail {
    async fn write<E: Env>(&self, env: &E, cache: &ChunkCache, exact: bool) -> io::Result<()> {
        let end = self.position + in_file(self.bytes.len());
        if !exact && self.bytes.is_empty() {
            return Ok(());
        }
        let file = env.disk().file(self.path.clone(), true);
        let allocated = block_ceiling(end.max(1));
        file.allocate(self.position, allocated - self.position).await?;
        let mut position = self.position;
        while position < end {
            let length = block_ceiling(end - position).min(INDEX_WRITE_BYTES_MAX);
            let mut chunk = take_or_wait(env, cache, in_memory(length)).await;
            let from = in_memory(position - self.position);
            chunk.append(&self.bytes[from..self.bytes.len().min(from + in_memory(length))]);
            let padding = in_memory(length) - chunk.filled();
            chunk.writable()[..padding].fill(0);
            chunk.publish(padding);
            file.write(chunk.freeze(), position, Durability::Written).await?;
            position += length;
        }
        if exact {
            file.set_length(end).await?;
        }
        file.flush().await?;
        file.close();
        Ok(())
    }
}

pub(crate) async fn take_or_wait<E: Env>(env: &E, cache: &ChunkCache, bytes: usize) -> runtime::Chunk {
    loop {
        let freed = env.region().freed();
        let seen = freed.count();
        if let Some(chunk) = cache.take(bytes) {
            return chunk;
        }
        freed.changed(seen).await;
    }
}

/// Bytes of entries from the block in which entry `from` starts, and where that block is.
fn tail_of<const N: usize>(count: usize, from: usize, entry: impl Fn(usize) -> [u8; N]) -> (Vec<u8>, u64) {
    let position = block_floor(in_file(from * N));
    let first = in_memory(position) / N;
    let mut bytes: Vec<u8> = (first..count).flat_map(&entry).collect();
    bytes.drain(..(in_memory(position) - first * N).min(bytes.len()));
    (bytes, position)
}

fn crc_of<const N: usize>(crc: u32, entries: impl Iterator<Item = [u8; N]>) -> u32 {
    entries.fold(crc, |crc, bytes| crc32c::crc32c_append(crc, &bytes))
}

/// The state of both indexes with their first `entries` and `time_entries` entries on disk.
fn advanced(from: PersistedIndexes, index: &[IndexEntry], time_index: &[TimeEntry]) -> PersistedIndexes {
    PersistedIndexes {
        entries: index.len(),
        entries_crc: crc_of(from.entries_crc, index[from.entries..].iter().map(|entry| entry.to_bytes())),
        time_entries: time_index.len(),
        time_entries_crc: crc_of(from.time_entries_crc, time_index[from.time_entries..].iter().map(|entry| entry.to_bytes())),
    }
}

impl<E: Env> OpenSegment<E> {
    /// A plan that brings the index files up to these entries.
    fn persist(&self, log: &Log<E>, index: &[IndexEntry], time_index: &[TimeEntry]) -> PersistPlan<E> {
        let from = self.persisted;
        let (bytes, position) = tail_of::<INDEX_ENTRY_BYTES>(index.len(), from.entries, |at| index[at].to_bytes());
        let path = segment_path(&log.directory, self.base, "index");
        let index_tail = IndexTail { path, bytes, position };
        let (bytes, position) = tail_of::<TIME_ENTRY_BYTES>(time_index.len(), from.time_entries, |at| time_index[at].to_bytes());
        let path = segment_path(&log.directory, self.base, "timeindex");
        let time_tail = IndexTail { path, bytes, position };
        PersistPlan {
            base: self.base,
            file: self.file.clone(),
            directory: log.directory.clone(),
            cache: log.cache.clone(),
            failure: log.directory_failure.clone(),
            index: index_tail,
            time_index: time_tail,
            is_first: from.entries == 0,
            is_flushed: self.flushed == self.written,
            producers: None,
            persisted: advanced(from, index, time_index),
            written: self.written,
            written_offset: log.offsets.written,
        }
    }

    /// Bytes of the log that recovery would have to scan.
    pub(crate) fn unpersisted_bytes(&self) -> u64 {
        let last = self.persisted.entries.checked_sub(1).map_or(0, |last| u64::from(self.index.entries()[last].position));
        self.written - last.min(self.written)
    }
}

/// The parts of a manifest that say who the producers were at the segment's end, and when that was appended.
fn parts_of<E: Env>(segment: &OpenSegment<E>) -> Vec<(u16, Vec<u8>)> {
    let producers = segment.producers_at_end.iter().filter(|snapshot| !snapshot.is_empty());
    let producers = producers.map(|snapshot| (TAG_PRODUCERS, snapshot.to_vec()));
    let last_append = segment.last_append.map(|wall| (TAG_LAST_APPEND, wall.0.to_le_bytes().to_vec()));
    producers.chain(last_append).collect()
}

impl<E: Env> Log<E> {
    /// Persists index entries of the active segment, if recovery would have to scan at least `bytes`.
    pub(crate) fn begin_persist(&mut self, bytes: u64, now: Monotonic) -> Option<PersistPlan<E>> {
        let active = self.active();
        if active.name != Name::Own || active.unpersisted_bytes() < bytes || !self.may_write_indexes(now) {
            return None;
        }
        let snapshot = self.producers.pending.as_ref();
        // Without a snapshot that is of what is written, recovery would miss the producers of what it needn't scan.
        let usable = |snapshot: &Snapshot| snapshot.at <= self.offsets.written && self.open.len() == 1;
        if self.producers.present && !snapshot.is_some_and(usable) {
            return None;
        }
        let end = snapshot.map_or(self.offsets.written, |snapshot| snapshot.at);
        let written = i64::max(0, end.0 - active.base.0);
        let entries = active.index.entries();
        let entries = &entries[..entries.partition_point(|entry| i64::from(entry.relative_offset) < written)];
        let last = entries.last().filter(|_| entries.len() > active.persisted.entries)?;
        let times = active.time_index.entries();
        let times = &times[..times.partition_point(|entry| entry.relative_offset <= last.relative_offset)];
        let mut plan = active.persist(self, entries, times);
        plan.producers = self.producers.pending.take();
        Some(plan)
    }

    pub(crate) fn finish_persist(&mut self, persisted: Persisted, result: io::Result<()>) -> Result<(), LogFailure> {
        result.map_err(|cause| self.fail("persisting indexes", (persisted.base, 0), cause))?;
        self.check_running()?;
        self.producers.on_disk = self.producers.on_disk.max(persisted.producers);
        if let Some(segment) = self.open_segment(persisted.base) {
            segment.persisted = persisted.persisted;
            segment.flushed = segment.flushed.max(persisted.written);
        }
        self.wants_checkpoint.set(true);
        // The active segment is the only open one where this moves: what lies before it is sealed, so flushed.
        if self.open.len() == 1 {
            self.offsets.flushed = self.offsets.flushed.max(persisted.written_offset);
        }
        Ok(())
    }

    /// Seals the oldest segment, if it has rolled and all of it is written.
    pub(crate) fn begin_seal(&mut self, now: Monotonic) -> Option<SealPlan<E>> {
        if self.open.len() < 2 || !self.may_write_indexes(now) {
            return None;
        }
        let first = &self.open[0];
        let ready = first.name == Name::Own && first.written == first.appended && !self.writer.is_writing(first.base);
        if !ready || first.zeroing_to.is_some() || first.producers_at_end.is_none() {
            return None;
        }
        self.open[0].time_index.add_entry();
        let end = self.open[1].base;
        let first = &self.open[0];
        let persist = first.persist(self, first.index.entries(), first.time_index.entries());
        let manifest = Manifest {
            base: first.base,
            end,
            log_bytes: first.appended,
            index: IndexSummary { entries: in_file(persist.persisted.entries), crc: persist.persisted.entries_crc },
            time_index: IndexSummary {
                entries: in_file(persist.persisted.time_entries),
                crc: persist.persisted.time_entries_crc,
            },
            max_timestamp: first.time_index.max(),
            max_timestamp_offset: first.time_index.max_offset(),
            first_append: first.first_append.unwrap_or(Timestamp::NONE),
            epochs: first.epochs.clone(),
            others: parts_of(first),
        };
        Some(SealPlan { persist, manifest })
    }

    pub(crate) fn finish_seal(&mut self, sealed: Sealed, result: io::Result<()>) -> Result<(), LogFailure> {
        result.map_err(|cause| self.fail("sealing", (sealed.base, 0), cause))?;
        self.check_running()?;
        let segment = self.open.pop_front().expect("the sealed segment is the oldest open one");
        assert!(segment.base == sealed.base, "segments are sealed in order");
        let end = self.open.front().expect("the active segment stays").base;
        let max_timestamp = Some(segment.time_index.max());
        self.sealed.push_back(SealedSegment {
            base: segment.base,
            end,
            size: segment.appended,
            file: segment.file,
            max_timestamp,
            last_append: segment.last_append,
        });
        if self.offsets.flushed < end {
            self.offsets.flushed = end;
        }
        self.settle_tail();
        Ok(())
    }
}
