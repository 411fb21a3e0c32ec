//! Appending: a batch is copied into the log's tail chunk, stamped there and given its offsets; nothing is written yet.
//!
//! Each batch lies contiguously in one chunk. A chunk's byte 0 is a block boundary of the file, so a new chunk begins with a
//! copy of the last, partial block. An append that needs space which isn't allocated is refused and notes its demand;
//! maintenance provides it.

use protocol::batch::{BatchView, stamp, stamp_append_time};
use protocol::ids::{LeaderEpoch, Offset, Timestamp};
use protocol::limits::{BATCH_BYTES_CEILING, SEGMENT_REACH_MAX, UNWRITTEN_BYTES_PER_PARTITION_MAX};
use runtime::{Env, Monotonic};

use crate::blocks::{block_floor, in_memory};
use crate::error::AppendError;
use crate::header::BatchHeader;
use crate::log::Log;
use crate::piece::Piece;
use crate::segment::{NotedBatch, OpenSegment};

/// Smallest and largest size of a tail chunk, in bytes; a large batch gets a larger one.
const TAIL_CHUNK_BYTES_MIN: usize = 64 << 10;
const TAIL_CHUNK_BYTES_MAX: usize = 2 << 20;
/// A chunk that filled up within this time is followed by one twice as large, in nanoseconds.
const CHUNK_GROWTH_NANOS: u64 = 100_000_000;
/// A segment takes at most this many bytes: positions in indexes are signed 32-bit numbers elsewhere.
pub(crate) const SEGMENT_BYTES_CEILING: u64 = SEGMENT_REACH_MAX.unsigned_abs();

/// What a leader stamps into a batch.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    /// The leader's epoch.
    pub leader_epoch: LeaderEpoch,
    /// The wall clock.
    pub wall: Timestamp,
    /// The monotonic clock.
    pub now: Monotonic,
    /// Whether the topic's timestamps are append times.
    pub log_append_time: bool,
}

/// What an append gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Offset of the first record.
    pub base: Offset,
    /// Offset of the last record.
    pub last: Offset,
    /// The append time, where the topic's timestamps are append times; else -1.
    pub timestamp: Timestamp,
}

impl<E: Env> Log<E> {
    /// Copies the batch behind the log's end, stamps it and assigns its offsets.
    ///
    /// # Errors
    /// Refused, with nothing changed: see [`AppendError`].
    ///
    /// # Panics
    /// If the batch's header wasn't checked before.
    pub fn begin_append(&mut self, batch: &BatchView<'_>, with: Stamp) -> Result<Appended, AppendError> {
        let header = BatchHeader::first_of(batch.bytes()).and_then(Result::ok).expect("a batch is checked before it is appended");
        let size = batch.bytes().len();
        let rolls = self.check_append(&header, size, with.wall).inspect_err(|_| self.metrics.refused_appends(1))?;
        let chunk = self.chunk_for(size, rolls).inspect_err(|_| self.metrics.refused_appends(1))?;
        if rolls {
            self.roll();
        }
        let position = self.active().appended;
        let base = self.offsets.log_end;
        if let Some(chunk) = chunk {
            self.tail.pieces.push_back(Piece::new(self.active().base, block_floor(position), base, chunk));
            self.tail.chunk_taken = with.now;
        }
        let timestamp = self.copy_and_stamp(batch, base, with);
        let last = base.plus(header.last_offset_delta);
        let next = last.plus(1);
        let max_timestamp = if with.log_append_time { with.wall } else { header.max_timestamp };
        let active = self.active_mut();
        active.first_append.get_or_insert(with.wall);
        active.last_append = Some(with.wall);
        active.note(
            NotedBatch { base_offset: base, last_offset: last, leader_epoch: with.leader_epoch, max_timestamp, size },
            position,
        );
        let (segment, end) = (active.base, active.appended);
        self.writer.appended(segment, end, next, size);
        self.offsets.log_end = next;
        self.last_epoch = with.leader_epoch;
        self.tail.last_append = with.now;
        self.rate.note(with.now, size, &self.storage);
        self.note_producer_of(&header);
        self.metrics.appended_batches(1);
        self.metrics.appended_bytes(size as u64);
        Ok(Appended { base, last, timestamp })
    }

    /// Whether the batch may be appended, and whether a new segment has to begin for it.
    fn check_append(&mut self, header: &BatchHeader, size: usize, wall: Timestamp) -> Result<bool, AppendError> {
        self.check_running().map_err(AppendError::Stopped)?;
        if size > BATCH_BYTES_CEILING || size != header.size {
            return Err(AppendError::TooLarge { bytes: size.max(header.size), allowed: BATCH_BYTES_CEILING });
        }
        let unwritten = self.writer.unwritten_bytes;
        if unwritten + size > UNWRITTEN_BYTES_PER_PARTITION_MAX {
            return Err(AppendError::TooManyUnwritten { unwritten, batch: size, allowed: UNWRITTEN_BYTES_PER_PARTITION_MAX });
        }
        let bytes = size as u64;
        let active = self.active();
        let position = active.appended;
        let segment_bytes = self.config.segment_bytes.min(SEGMENT_BYTES_CEILING);
        let last_relative = self.offsets.log_end.0 - active.base.0 + i64::from(header.last_offset_delta);
        let full = position + bytes > segment_bytes || last_relative > SEGMENT_REACH_MAX;
        if position > 0 && (full || self.is_too_old(wall)) {
            if self.prepared.as_ref().is_none_or(|prepared| prepared.allocated < bytes) {
                self.demand.next_segment = Some(self.demand.next_segment.unwrap_or(0).max(bytes));
                return Err(AppendError::NotReady { bytes: size, position: 0 });
            }
            return Ok(true);
        }
        if position + bytes > active.allocated {
            self.demand.allocated = self.demand.allocated.max(position + bytes);
            return Err(AppendError::NotReady { bytes: size, position });
        }
        Ok(false)
    }

    /// Whether the active segment's first append is `segment_ms` ago.
    pub(crate) fn is_too_old(&self, wall: Timestamp) -> bool {
        let age = self.active().first_append.map_or(0, |first| wall.0.saturating_sub(first.0));
        u64::try_from(age).is_ok_and(|age| age >= self.config.segment_ms)
    }

    /// A new chunk that starts with the last, partial block, if the batch doesn't fit the tail's last piece.
    fn chunk_for(&mut self, size: usize, rolls: bool) -> Result<Option<runtime::Chunk>, AppendError> {
        let active = self.active();
        let (segment, position) = (active.base, active.appended);
        let current = self.tail.pieces.back().filter(|piece| piece.segment == segment && !rolls);
        if current.is_some_and(|piece| piece.remaining() >= size) {
            return Ok(None);
        }
        let partial = if rolls { 0 } else { in_memory(position - block_floor(position)) };
        let filled_fast = self.tail.last_append.0.saturating_sub(self.tail.chunk_taken.0) < CHUNK_GROWTH_NANOS;
        let grown = if current.is_none() || !filled_fast { self.tail.chunk_bytes / 2 } else { self.tail.chunk_bytes * 2 };
        let wanted = grown.clamp(TAIL_CHUNK_BYTES_MIN, TAIL_CHUNK_BYTES_MAX);
        let needed = partial + size;
        let chunk = self.cache.take(needed.max(wanted)).or_else(|| self.cache.take(needed));
        let Some(mut chunk) = chunk else {
            return Err(AppendError::NoMemory { bytes: needed, free: self.cache.region().free_bytes() });
        };
        if partial > 0 {
            match current {
                Some(piece) => chunk.append(&piece.bytes()[piece.bytes().len() - partial..]),
                None => chunk.append(&self.tail.partial),
            }
            assert_eq!(chunk.filled(), partial, "a chunk begins with the partial block before it");
        }
        self.tail.chunk_bytes = wanted;
        Ok(Some(chunk))
    }

    fn copy_and_stamp(&mut self, batch: &BatchView<'_>, base: Offset, with: Stamp) -> Timestamp {
        let bytes = batch.bytes();
        let piece = self.tail.pieces.back_mut().expect("a piece was pushed for the batch");
        let chunk = piece.chunk_mut().expect("the tail's last piece is appended to");
        let at = chunk.filled();
        let copy = chunk.place(bytes);
        stamp(copy, base, with.leader_epoch);
        if with.log_append_time {
            stamp_append_time(copy, with.wall);
        }
        let next = BatchHeader::first_of(copy).and_then(Result::ok).expect("stamping keeps a batch whole").next_offset();
        chunk.publish(bytes.len());
        piece.note(base, at, next);
        if with.log_append_time { with.wall } else { Timestamp::NONE }
    }

    /// Begins the next segment at the log's end, in memory; its file is named by the first write.
    pub(crate) fn roll(&mut self) {
        let prepared = self.prepared.take().expect("a log rolls only once the next segment is prepared");
        let base = self.offsets.log_end;
        assert!(base > self.active().base, "an empty segment never rolls");
        // A snapshot of a state within the segment that ends here is overtaken by the one at its end.
        self.producers.pending = None;
        self.active_mut().producers_at_end = (!self.producers.present).then(Box::default);
        let next =
            OpenSegment::new(&self.env, &self.directory, base, Some(prepared), self.config.index_interval_bytes, &self.metrics);
        self.open.push_back(next);
        self.tail.partial = Box::default();
        self.demand = crate::log::Demand::default();
        self.metrics.rolls(1);
        self.settle_tail();
    }
}
