//! Reading: whole batches from an offset on, out of memory where they are, else from the disk.
//!
//! A batch that contains the asked offset is given whole. The bound is exclusive; a batch that reaches over it isn't given.

use protocol::ids::Offset;
use runtime::{ChunkSlice, Env};
use smallvec::SmallVec;

use crate::disk_read::{DiskRead, DiskReadOutcome, Source, Start};
use crate::error::ReadError;
use crate::log::Log;
use crate::piece::{Budget, Found};
use crate::segment::segment_path;

/// What to read.
#[derive(Clone, Copy, Debug)]
pub struct ReadRequest {
    /// The first record wanted.
    pub offset: Offset,
    /// Exclusive bound: the high watermark, the last stable offset, or the log end.
    pub bound: Offset,
    /// Bytes wanted at most.
    pub bytes_max: usize,
    /// Whether the first batch is given even if it alone has more bytes.
    pub first_batch_whole: bool,
}

/// Whole batches.
#[derive(Clone, Debug)]
pub struct ReadResult {
    /// Their bytes, in order.
    pub slices: SmallVec<[ChunkSlice; 4]>,
    /// Bytes in all.
    pub bytes: usize,
    /// The offset to go on with.
    pub next_offset: Offset,
}

impl ReadResult {
    pub(crate) fn empty(next_offset: Offset) -> ReadResult {
        ReadResult { slices: SmallVec::new(), bytes: 0, next_offset }
    }
}

/// Where a read stands.
pub enum ReadStep<E: Env> {
    /// It is done.
    Ready(ReadResult),
    /// The disk is needed.
    Disk(DiskRead<E>),
}

impl<E: Env> Log<E> {
    /// Reads from memory, or plans the read from the disk.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn begin_read(&mut self, request: ReadRequest) -> Result<ReadStep<E>, ReadError> {
        let (log_start, log_end) = (self.offsets.log_start, self.offsets.log_end);
        if request.offset < log_start || request.offset > log_end {
            return Err(ReadError::OutOfRange { asked: request.offset, log_start, log_end });
        }
        let request = ReadRequest { bound: request.bound.min(log_end), ..request };
        if request.offset >= request.bound {
            return Ok(ReadStep::Ready(ReadResult::empty(request.offset)));
        }
        if let Some(result) = self.read_memory(request) {
            self.metrics.cache_hits(1);
            return Ok(ReadStep::Ready(result));
        }
        self.metrics.disk_reads(1);
        Ok(ReadStep::Disk(self.plan_disk_read(request)))
    }

    /// Settles a read from the disk.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn finish_read(&mut self, outcome: DiskReadOutcome<E>) -> Result<ReadStep<E>, ReadError> {
        let (result, stream) = outcome.into_parts();
        if let Some(stream) = stream {
            self.streams.put(stream);
        }
        result.map(ReadStep::Ready)
    }

    fn read_memory(&self, request: ReadRequest) -> Option<ReadResult> {
        let budget = Budget { bound: request.bound, bytes: request.bytes_max, first_whole: request.first_batch_whole };
        let first = self.find_in_memory(request.offset, budget)?;
        let mut result = ReadResult::empty(first.next_offset);
        let mut found = first;
        loop {
            result.next_offset = found.next_offset;
            if !found.slice.is_empty() {
                result.bytes += found.slice.len();
                result.slices.push(found.slice);
            }
            let left = request.bytes_max.saturating_sub(result.bytes);
            if !found.to_the_end || left == 0 || result.next_offset >= request.bound {
                return Some(result);
            }
            let budget = Budget { bytes: left, first_whole: false, ..budget };
            match self.find_in_memory(result.next_offset, budget) {
                Some(next) => found = next,
                None => return Some(result),
            }
        }
    }

    fn find_in_memory(&self, offset: Offset, budget: Budget) -> Option<Found> {
        let pieces = &self.tail.pieces;
        let above = pieces.partition_point(|piece| piece.first_offset <= offset);
        let in_tail = above.checked_sub(1).and_then(|index| pieces[index].find(offset, budget));
        in_tail.or_else(|| self.cache.find(self.cache_key, offset, budget))
    }

    pub(crate) fn plan_disk_read(&mut self, request: ReadRequest) -> DiskRead<E> {
        let (source, position) = self.source_of(request.offset);
        let mut stream = self.streams.take(source.base, request.offset);
        if request.offset == source.base && stream.is_none() {
            stream = self.streams.arrive(&source, request.offset);
        }
        let start = match position {
            Some(position) => Start::Position(position),
            None => Start::IndexFile(self.env.disk_file(segment_path(self.directory(), source.base, "index"))),
        };
        DiskRead::new(self.env.clone(), self.cache.clone(), source, start, stream, request, self.index_one_behind())
    }

    /// The segment that holds an offset of the log, and where to start in it, if that is known without reading.
    fn source_of(&self, offset: Offset) -> (Source<E>, Option<u64>) {
        let sealed = self.sealed.partition_point(|segment| segment.base <= offset);
        let in_sealed = sealed.checked_sub(1).map(|index| &self.sealed[index]).filter(|segment| offset < segment.end);
        if let Some(segment) = in_sealed {
            let source = Source { base: segment.base, end: segment.size, file: segment.file.clone() };
            return (source, (offset == segment.base).then_some(0));
        }
        let open = self.open.partition_point(|segment| segment.base <= offset);
        let segment = &self.open[open.checked_sub(1).expect("an offset of the log lies in a segment")];
        let source = Source { base: segment.base, end: segment.written, file: segment.file.clone() };
        (source, Some(segment.index.floor(offset, self.index_one_behind())))
    }
}

/// A short way to a file handle.
trait DiskFileOf: Env {
    fn disk_file(&self, path: std::path::PathBuf) -> crate::file::DiskFile<Self>;
}

impl<E: Env> DiskFileOf for E {
    fn disk_file(&self, path: std::path::PathBuf) -> crate::file::DiskFile<E> {
        runtime::Disk::file(self.disk(), path, false)
    }
}
