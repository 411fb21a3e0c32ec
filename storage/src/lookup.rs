//! Offsets by time: the first record at or after a timestamp.
//!
//! Timestamps come in any order. A segment whose largest timestamp is too small is passed over; in the first that isn't, the time index
//! says where no earlier record can match, and the batches from there on are looked into. Only what lies below the bound is found
//! (trap T34). Batches are looked into off the core, by so many lookups of the core at once as `limits` says, in their order; one that waits
//! for its turn holds no memory.

use std::io;

use protocol::batch::BatchView;
use protocol::ids::{Offset, Timestamp};
use protocol::limits::BATCH_DECOMPRESSED_BYTES_MAX;
use runtime::local::{Place, once};
use runtime::{Disk, Env};

use crate::blocks::in_file;
use crate::cache::ChunkCache;
use crate::disk_read::{Scan, Source};
use crate::error::ReadError;
use crate::file::DiskFile;
use crate::index_file::{IndexFile, SearchError};
use crate::log::Log;
use crate::manifest::{MANIFEST_BYTES_MAX, Manifest};
use crate::readahead::Stream;
use crate::segment::segment_path;

/// Log bytes read at once while looking for a record.
const LOOKUP_READ_BYTES: u64 = 64 << 10;

/// Where a lookup stands.
pub enum LookupStep<E: Env> {
    /// It is done: the record's offset and timestamp, or none.
    Ready(Option<(Offset, Timestamp)>),
    /// The disk is needed.
    Disk(LookupPlan<E>),
}

/// The plan of a lookup.
pub struct LookupPlan<E: Env> {
    env: E,
    cache: ChunkCache,
    directory: std::path::PathBuf,
    candidates: Vec<Candidate<E>>,
    timestamp: Timestamp,
    from: Offset,
    bound: Offset,
    one_behind: bool,
}

/// A segment that may hold the record.
struct Candidate<E: Env> {
    source: Source<E>,
    start: Start,
}

enum Start {
    /// Its largest timestamp is large enough; the scan starts here.
    Position(u64),
    /// Sealed; its largest timestamp is large enough.
    Files,
    /// Sealed; its manifest has to be asked.
    Manifest,
}

/// What became of a lookup.
pub struct LookupOutcome {
    result: Result<Option<(Offset, Timestamp)>, ReadError>,
    /// Largest timestamps of segments, by base offset, as their manifests say.
    learned: Vec<(Offset, Timestamp)>,
}

impl<E: Env> Log<E> {
    /// Looks for the first record at or after `timestamp` below `bound`.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn begin_lookup(&mut self, timestamp: Timestamp, bound: Offset) -> Result<LookupStep<E>, ReadError> {
        let bound = bound.min(self.offsets.written);
        let from = self.offsets.log_start;
        let may_match = |max: Timestamp| max >= timestamp && max >= Timestamp(0);
        let mut candidates = Vec::new();
        for segment in self.sealed.iter().filter(|segment| segment.base < bound && segment.end > from) {
            let start = match segment.max_timestamp {
                Some(max) if !may_match(max) => continue,
                Some(_) => Start::Files,
                None => Start::Manifest,
            };
            let source = Source { base: segment.base, end: segment.size, file: segment.file.clone() };
            candidates.push(Candidate { source, start });
        }
        for segment in self.open.iter().filter(|segment| segment.base < bound && may_match(segment.time_index.max())) {
            let start = segment.time_index.floor(timestamp).max(from);
            let position = segment.index.floor(start, self.index_one_behind());
            let source = Source { base: segment.base, end: segment.written, file: segment.file.clone() };
            candidates.push(Candidate { source, start: Start::Position(position) });
        }
        if candidates.is_empty() || from >= bound {
            return Ok(LookupStep::Ready(None));
        }
        self.metrics.disk_reads(1);
        Ok(LookupStep::Disk(LookupPlan {
            env: self.env.clone(),
            cache: self.cache.clone(),
            directory: self.directory.clone(),
            candidates,
            timestamp,
            from,
            bound,
            one_behind: self.index_one_behind(),
        }))
    }

    /// Settles a lookup.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn finish_lookup(&mut self, outcome: LookupOutcome) -> Result<LookupStep<E>, ReadError> {
        for (base, max) in outcome.learned {
            let index = self.sealed.binary_search_by_key(&base, |segment| segment.base);
            if let Ok(index) = index {
                self.sealed[index].max_timestamp = Some(max);
            }
        }
        outcome.result.map(LookupStep::Ready)
    }
}

impl<E: Env> LookupPlan<E> {
    /// Looks. Touches no state of the log.
    pub async fn execute(mut self) -> LookupOutcome {
        let mut learned = Vec::new();
        let candidates = std::mem::take(&mut self.candidates);
        for candidate in candidates {
            match self.look_into(candidate, &mut learned).await {
                Ok(None) => {}
                result => return LookupOutcome { result, learned },
            }
        }
        LookupOutcome { result: Ok(None), learned }
    }

    async fn look_into(
        &self,
        candidate: Candidate<E>,
        learned: &mut Vec<(Offset, Timestamp)>,
    ) -> Result<Option<(Offset, Timestamp)>, ReadError> {
        let source = candidate.source;
        if matches!(candidate.start, Start::Manifest) {
            let path = segment_path(&self.directory, source.base, "manifest");
            let bytes = self.env.disk().read_file(&path, MANIFEST_BYTES_MAX).await.map_err(|cause| source.io_error(0, cause))?;
            // A manifest that can't be read decides nothing; the segment is looked into.
            if let Ok(manifest) = Manifest::decode(&bytes) {
                learned.push((source.base, manifest.max_timestamp));
                if manifest.max_timestamp < self.timestamp {
                    return Ok(None);
                }
            }
        }
        let position = match candidate.start {
            Start::Position(position) => position,
            Start::Files | Start::Manifest => self.search_files(&source).await?,
        };
        let stream = Stream::new(source, self.from, position);
        let mut scan = Scan { env: &self.env, cache: &self.cache, stream, ahead: false, waited: false, since_yield: 0 };
        self.scan(&mut scan, position).await
    }

    async fn search_files(&self, source: &Source<E>) -> Result<u64, ReadError> {
        let failed = |error| match error {
            SearchError::NoMemory => ReadError::NoMemory { bytes: protocol::limits::BLOCK_BYTES },
            SearchError::Io(cause) => source.io_error(0, cause),
        };
        let times = self.file(source.base, "timeindex");
        let times = IndexFile::<E> { file: &times, cache: &self.cache, base: source.base };
        let offset = times.offset_of(self.timestamp).await.map_err(failed)?.max(self.from);
        let index = self.file(source.base, "index");
        let index = IndexFile::<E> { file: &index, cache: &self.cache, base: source.base };
        index.position_of(offset, self.one_behind).await.map_err(failed)
    }

    fn file(&self, base: Offset, extension: &str) -> DiskFile<E> {
        self.env.disk().file(segment_path(&self.directory, base, extension), false)
    }

    async fn scan(&self, scan: &mut Scan<'_, E>, from: u64) -> Result<Option<(Offset, Timestamp)>, ReadError> {
        let mut position = from;
        while position < scan.stream.source.end {
            let header = scan.batch_at(position, LOOKUP_READ_BYTES).await?;
            if header.next_offset() > self.bound {
                return Ok(None);
            }
            if header.max_timestamp >= self.timestamp && header.last_offset() >= self.from {
                let place = self.place(scan, position).await?;
                let mut bytes = vec![0; header.size];
                scan.stream.copy(position, &mut bytes);
                let found = self.record_in(place, bytes).await;
                if let Some(found) = found.map_err(|cause| scan.stream.source.io_error(position, cause))? {
                    return Ok(Some(found));
                }
            }
            // Behind the bound a batch may be written in part only.
            if header.next_offset() >= self.bound {
                return Ok(None);
            }
            position += in_file(header.size);
            scan.stream.advance(header.next_offset(), position);
        }
        Ok(None)
    }

    /// A place to look into the batch at `position`. Nothing is held while it is waited for: the batch is read again then.
    async fn place(&self, scan: &mut Scan<'_, E>, position: u64) -> Result<Place, ReadError> {
        let places = self.cache.inflations();
        if let Some(place) = places.try_take() {
            return Ok(place);
        }
        scan.stream.forget();
        let place = places.take().await;
        scan.batch_at(position, LOOKUP_READ_BYTES).await?;
        Ok(place)
    }

    /// The first matching record of a batch. A batch whose records can't be read holds none: its CRC is right, so that is how it was sent.
    async fn record_in(&self, place: Place, bytes: Vec<u8>) -> io::Result<Option<(Offset, Timestamp)>> {
        let (timestamp, from) = (self.timestamp, self.from);
        let find = move || {
            let (batch, _) = BatchView::split(&bytes).ok()?;
            batch.find_timestamp(timestamp, from, BATCH_DECOMPRESSED_BYTES_MAX).ok()?
        };
        let (sender, receiver) = once();
        let env = self.env.clone();
        // A job goes on when nobody waits for it any more, and so does the task that keeps its place.
        self.env.spawn(async move {
            let found = env.offload(find).await;
            drop(place);
            sender.send(found);
        });
        receiver.await.ok_or_else(|| io::Error::other("the lookup was given up"))
    }
}
