//! A read from the disk: finds where to start, reads ahead of a reader that comes back, checks every batch.
//!
//! Every batch that comes from a disk has its CRC, its place in the order of offsets and its length checked before it is given.

use std::io;
use std::rc::Rc;

use protocol::ids::Offset;
use runtime::Env;
use smallvec::SmallVec;

use crate::blocks::{in_file, in_memory};
use crate::cache::ChunkCache;
use crate::error::{Fault, ReadError};
use crate::file::{DiskFile, SegmentFile};
use crate::header::{BATCH_HEADER_BYTES, BatchHeader, CRC_START};
use crate::index_file::{IndexFile, SearchError};
use crate::read::{ReadRequest, ReadResult};
use crate::readahead::{READ_BYTES_MAX, Stream};

/// Read at least, in bytes.
const READ_BYTES_MIN: u64 = 32 << 10;
/// The core is given to others after checking this much, in bytes.
const YIELD_BYTES: u64 = 2 << 20;

/// The file to read, as it is at the time of the decision.
pub(crate) struct Source<E: Env> {
    pub(crate) base: Offset,
    /// Bytes of batches in it.
    pub(crate) end: u64,
    pub(crate) file: SegmentFile<E>,
}

impl<E: Env> Clone for Source<E> {
    fn clone(&self) -> Self {
        Source { base: self.base, end: self.end, file: self.file.clone() }
    }
}

/// Where a scan starts.
pub(crate) enum Start<E: Env> {
    /// At this batch.
    Position(u64),
    /// Where the index file says.
    IndexFile(DiskFile<E>),
}

/// The plan of a read.
pub struct DiskRead<E: Env> {
    env: E,
    cache: ChunkCache,
    source: Source<E>,
    start: Start<E>,
    stream: Option<Stream<E>>,
    request: ReadRequest,
    one_behind: bool,
}

/// What became of it.
pub struct DiskReadOutcome<E: Env> {
    result: Result<ReadResult, ReadError>,
    stream: Option<Stream<E>>,
}

impl<E: Env> DiskReadOutcome<E> {
    pub(crate) fn into_parts(self) -> (Result<ReadResult, ReadError>, Option<Stream<E>>) {
        (self.result, self.stream)
    }
}

impl<E: Env> DiskRead<E> {
    pub(crate) fn new(
        env: E,
        cache: ChunkCache,
        source: Source<E>,
        start: Start<E>,
        stream: Option<Stream<E>>,
        request: ReadRequest,
        one_behind: bool,
    ) -> DiskRead<E> {
        DiskRead { env, cache, source, start, stream, request, one_behind }
    }

    /// Reads. Touches no state of the log.
    pub async fn execute(mut self) -> DiskReadOutcome<E> {
        match self.run().await {
            Ok((result, stream)) => DiskReadOutcome { result: Ok(result), stream: Some(stream) },
            Err(error) => DiskReadOutcome { result: Err(error), stream: None },
        }
    }

    async fn run(&mut self) -> Result<(ReadResult, Stream<E>), ReadError> {
        let sequential = self.stream.is_some();
        let stream = match self.stream.take() {
            Some(mut stream) => {
                stream.update(self.source.clone());
                stream
            }
            None => {
                let position = self.start_position().await?;
                Stream::new(self.source.clone(), self.request.offset, position)
            }
        };
        let from_index = !sequential && stream.position > 0;
        let mut scan = Scan { env: &self.env, cache: &self.cache, stream, ahead: sequential, waited: false, since_yield: 0 };
        match scan.collect(self.request).await {
            Err(ReadError::Corrupt { segment, position, fault })
                if from_index && position == scan.stream.position && !self.one_behind =>
            {
                // The index may point beside a batch; the log itself is asked before it is called damaged.
                tracing::warn!(%segment, position, %fault, "the index led to no batch; scanning the segment from its start");
                scan.stream = Stream::new(self.source.clone(), self.request.offset, 0);
                scan.collect(self.request).await.map(|result| (result, scan.stream))
            }
            result => result.map(|result| (result, scan.stream)),
        }
    }

    async fn start_position(&self) -> Result<u64, ReadError> {
        match &self.start {
            Start::Position(position) => Ok(*position),
            Start::IndexFile(file) => {
                let index = IndexFile::<E> { file, cache: &self.cache, base: self.source.base };
                index.position_of(self.request.offset, self.one_behind).await.map_err(|error| match error {
                    SearchError::NoMemory => ReadError::NoMemory { bytes: protocol::limits::BLOCK_BYTES },
                    SearchError::Io(cause) => self.source.io_error(0, cause),
                })
            }
        }
    }
}

impl<E: Env> Source<E> {
    pub(crate) fn io_error(&self, position: u64, cause: io::Error) -> ReadError {
        ReadError::Io { segment: self.base, position, cause: Rc::new(cause) }
    }

    pub(crate) fn corrupt(&self, position: u64, fault: Fault) -> ReadError {
        ReadError::Corrupt { segment: self.base, position, fault }
    }
}

/// A walk over the batches of a segment.
pub(crate) struct Scan<'a, E: Env> {
    pub(crate) env: &'a E,
    pub(crate) cache: &'a ChunkCache,
    pub(crate) stream: Stream<E>,
    /// Whether to read ahead.
    pub(crate) ahead: bool,
    /// Whether bytes had to be waited for.
    pub(crate) waited: bool,
    pub(crate) since_yield: u64,
}

impl<E: Env> Scan<'_, E> {
    /// Whole batches from the one with the offset on.
    async fn collect(&mut self, request: ReadRequest) -> Result<ReadResult, ReadError> {
        let mut position = self.stream.position;
        let mut first = None;
        let mut expected = None;
        let mut next_offset = request.offset;
        let mut failed = false;
        loop {
            let taken = first.map_or(0, |first| position - first);
            let budget = in_file(request.bytes_max).saturating_sub(taken);
            // Behind the bound a batch may be written in part only.
            let at_bound = expected.is_some_and(|expected| expected >= request.bound);
            if at_bound || position >= self.stream.source.end || (budget == 0 && first.is_some()) {
                break;
            }
            let hint = budget.max(READ_BYTES_MIN);
            let header = match self.batch_at(position, hint).await {
                // What lies before it is given; who goes on from there gets the error.
                Err(_) if taken > 0 => {
                    failed = true;
                    break;
                }
                header => header?,
            };
            let fault = expected.filter(|expected| *expected != header.base_offset);
            let fault = fault.or_else(|| (first.is_none() && header.base_offset > request.offset).then_some(request.offset));
            if let Some(expected) = fault {
                return Err(self.stream.source.corrupt(position, Fault::Offset { expected, found: header.base_offset }));
            }
            expected = Some(header.next_offset());
            let size = in_file(header.size);
            if header.last_offset() >= request.offset {
                let fits = size <= budget || (first.is_none() && request.first_batch_whole);
                first.get_or_insert(position);
                if header.next_offset() > request.bound || !fits {
                    break;
                }
                next_offset = header.next_offset();
            }
            position += size;
            if first.is_none() {
                self.stream.advance(header.next_offset(), position);
            }
        }
        let Some(first) = first else {
            return Err(self.stream.source.corrupt(position, Fault::Truncated { size: BATCH_HEADER_BYTES, available: 0 }));
        };
        let slices: SmallVec<_> = self.stream.parts(first, position).collect();
        self.stream.advance(next_offset, position);
        if self.ahead {
            self.stream.adapt(self.waited);
        }
        if failed {
            self.stream.forget();
        }
        Ok(ReadResult { slices, bytes: in_memory(position - first), next_offset })
    }

    /// The header of the whole, checked batch at `position`; its bytes are in memory then.
    pub(crate) async fn batch_at(&mut self, position: u64, hint: u64) -> Result<BatchHeader, ReadError> {
        let header_end = position + in_file(BATCH_HEADER_BYTES);
        let available = self.fill(position, header_end, hint).await?;
        let source_end = self.stream.source.end;
        if available < header_end {
            let fault = Fault::Truncated { size: BATCH_HEADER_BYTES, available: available.saturating_sub(position) };
            return Err(self.stream.source.corrupt(position, fault));
        }
        let mut bytes = [0; BATCH_HEADER_BYTES];
        self.stream.copy(position, &mut bytes);
        let header = BatchHeader::parse(&bytes).map_err(|fault| self.stream.source.corrupt(position, Fault::Header(fault)))?;
        let end = position + in_file(header.size);
        let available = if end > source_end { available } else { self.fill(position, end, hint).await? };
        if end > source_end || available < end {
            let fault = Fault::Truncated { size: header.size, available: source_end.min(available).saturating_sub(position) };
            return Err(self.stream.source.corrupt(position, fault));
        }
        let computed =
            self.stream.parts(position + in_file(CRC_START), end).fold(0, |crc, part| crc32c::crc32c_append(crc, &part));
        if computed != header.crc {
            return Err(self.stream.source.corrupt(position, Fault::Crc { stored: header.crc, computed }));
        }
        self.since_yield += in_file(header.size);
        if self.since_yield >= YIELD_BYTES {
            self.since_yield = 0;
            self.env.yield_now().await;
        }
        Ok(header)
    }

    /// Brings the bytes below `to` into memory; further ones that will be wanted are requested.
    pub(crate) async fn fill(&mut self, position: u64, to: u64, hint: u64) -> Result<u64, ReadError> {
        if !self.stream.request(self.env, self.cache, to.max(position + hint), READ_BYTES_MAX)
            && !self.stream.request(self.env, self.cache, to, READ_BYTES_MIN)
        {
            return Err(ReadError::NoMemory { bytes: in_memory(to - position) });
        }
        if self.ahead {
            self.stream.request_ahead(self.env, self.cache, position + hint);
        }
        self.waited |= self.stream.lacks(to);
        self.stream.wait(to).await.map_err(|cause| self.stream.source.io_error(position, cause))
    }
}
