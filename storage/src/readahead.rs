//! Bytes of a segment on their way from the disk, in order, and the readers that go through a log one after the other.
//!
//! A stream belongs to one reader: what it has read and not yet given stays with it until the reader comes back, and once
//! the reader has come back, further reads are started before they are asked for: twice as much each time that the reader
//! had to wait for the disk, so that a slow reader holds little and a fast one keeps a deep drive busy. Reads run as tasks of the core
//! and hand their chunk over, so a read that is given up frees its memory when the kernel is done with it.

use std::collections::VecDeque;
use std::io;

use protocol::ids::Offset;
use runtime::local::{OnceReceiver, once};
use runtime::{Chunk, ChunkSlice, Env, File};

use crate::blocks::{BLOCK, block_ceiling, block_floor, in_file, in_memory};
use crate::cache::ChunkCache;
use crate::disk_read::Source;

/// Largest single read, in bytes.
pub(crate) const READ_BYTES_MAX: u64 = 1 << 20;
/// What is read ahead of a reader that comes back, in bytes: at first, and
const READ_AHEAD_BYTES_MIN: u64 = 4 << 20;
/// at the most, for one that has waited for the disk again and again.
const READ_AHEAD_BYTES_MAX: u64 = 32 << 20;
/// What is taken off with each answer that a reader needn't wait for: one part in this many.
const READ_AHEAD_DECAY_DIVISOR: u64 = 16;
/// The part of the region that reading ahead leaves free: one in this many. It is less than what the cache of clean chunks keeps free, and
/// more than what receiving leaves to writing.
const READ_AHEAD_RESERVE_DIVISOR: usize = 16;
/// Readers of one log whose place is kept.
const STREAMS_MAX: usize = 8;

/// The readers of one log, the one used last at the end.
pub(crate) struct Streams<E: Env> {
    streams: Vec<Stream<E>>,
}

impl<E: Env> Default for Streams<E> {
    fn default() -> Self {
        Streams { streams: Vec::new() }
    }
}

impl<E: Env> Streams<E> {
    /// The stream of the reader that goes on at `offset` of a segment.
    pub(crate) fn take(&mut self, segment: Offset, offset: Offset) -> Option<Stream<E>> {
        let index = self.streams.iter().position(|stream| stream.source.base == segment && stream.next_offset == offset)?;
        Some(self.streams.remove(index))
    }

    /// The stream of a reader that has read the segment before up to `offset`, from where `source` goes on.
    pub(crate) fn arrive(&mut self, source: &Source<E>, offset: Offset) -> Option<Stream<E>> {
        let index =
            self.streams.iter().position(|stream| stream.next_offset == offset && stream.position >= stream.source.end)?;
        let before = self.streams.remove(index);
        Some(Stream { ahead: before.ahead, ..Stream::new(source.clone(), offset, 0) })
    }

    pub(crate) fn put(&mut self, stream: Stream<E>) {
        if self.streams.len() >= STREAMS_MAX {
            self.streams.remove(0);
        }
        self.streams.push(stream);
    }

    /// Drops the streams that weren't used since the last call.
    pub(crate) fn drop_idle(&mut self) {
        self.streams.retain_mut(|stream| std::mem::replace(&mut stream.used, false));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.streams.clear();
    }
}

/// One reader's place in a segment.
pub(crate) struct Stream<E: Env> {
    pub(crate) source: Source<E>,
    pub(crate) next_offset: Offset,
    /// Where the batch with `next_offset` starts.
    pub(crate) position: u64,
    used: bool,
    /// What is read ahead, in bytes.
    ahead: u64,
    buffers: VecDeque<Buffer>,
}

struct Buffer {
    position: u64,
    length: u64,
    state: State,
}

enum State {
    Reading(OnceReceiver<io::Result<ChunkSlice>>),
    Read(ChunkSlice),
}

impl<E: Env> Stream<E> {
    pub(crate) fn new(source: Source<E>, next_offset: Offset, position: u64) -> Stream<E> {
        let buffers = VecDeque::new();
        Stream { source, next_offset, position, used: true, ahead: READ_AHEAD_BYTES_MIN, buffers }
    }

    /// Takes the segment as it is now. What was read of a last block that has grown since is given up.
    pub(crate) fn update(&mut self, source: Source<E>) {
        if source.end != self.source.end {
            while self.buffers.back().is_some_and(|buffer| buffer.position + buffer.length > self.source.end) {
                self.buffers.pop_back();
            }
        }
        self.source = source;
    }

    /// Gives up what was read: it is read again.
    pub(crate) fn forget(&mut self) {
        self.buffers.clear();
    }

    /// Goes on from another place; what is buffered before it is given back.
    pub(crate) fn advance(&mut self, next_offset: Offset, position: u64) {
        self.next_offset = next_offset;
        self.position = position;
        self.used = true;
        while self.buffers.front().is_some_and(|buffer| buffer.position + buffer.length <= position) {
            self.buffers.pop_front();
        }
    }

    /// What [`Stream::advance`] to `position` gives back: whole reads, and where they start.
    pub(crate) fn passed(&self, position: u64) -> impl Iterator<Item = (u64, ChunkSlice)> + '_ {
        let passed = self.buffers.iter().take_while(move |buffer| buffer.position + buffer.length <= position);
        passed.filter_map(|buffer| match &buffer.state {
            State::Read(slice) => Some((buffer.position, slice.clone())),
            State::Reading(_) => None,
        })
    }

    /// Where what is buffered starts.
    pub(crate) fn buffered_from(&self) -> u64 {
        self.buffers.front().map_or_else(|| block_floor(self.position), |buffer| buffer.position)
    }

    /// Bytes asked for so far reach up to here.
    fn requested_to(&self) -> u64 {
        self.buffers.back().map_or(block_floor(self.position), |buffer| buffer.position + buffer.length)
    }

    /// After an answer: twice as much is read ahead from here on if the reader had to wait for it, and a little less if it
    /// hadn't.
    pub(crate) fn adapt(&mut self, waited: bool) {
        let ahead = if waited { 2 * self.ahead } else { self.ahead - self.ahead / READ_AHEAD_DECAY_DIVISOR };
        self.ahead = ahead.clamp(READ_AHEAD_BYTES_MIN, READ_AHEAD_BYTES_MAX);
    }

    /// Starts the reads of what will be wanted behind `position`, as far as memory is free.
    pub(crate) fn request_ahead(&mut self, env: &E, cache: &ChunkCache, position: u64) {
        let region = cache.region();
        let free = region.free_bytes().saturating_sub(region.bytes() / READ_AHEAD_RESERVE_DIVISOR);
        // Whole reads only, so that a slow reader doesn't cut them into small ones.
        let wanted = (position + self.ahead).next_multiple_of(READ_BYTES_MAX);
        let affordable = self.requested_to() + in_file(free) / READ_BYTES_MAX * READ_BYTES_MAX;
        self.request(env, cache, wanted.min(affordable), READ_BYTES_MAX);
    }

    /// Starts reads until those under way reach `to`, in steps of at most `step` bytes. `false` if memory is missing.
    pub(crate) fn request(&mut self, env: &E, cache: &ChunkCache, to: u64, step: u64) -> bool {
        let to = block_ceiling(to.min(self.source.end));
        loop {
            let from = self.requested_to();
            if from >= to {
                return true;
            }
            let length = (to - from).min(block_ceiling(step)).min(READ_BYTES_MAX);
            let Some(chunk) = cache.take(in_memory(length)) else { return false };
            self.buffers.push_back(Buffer {
                position: from,
                length,
                state: State::Reading(self.start(env, cache, chunk, from, length)),
            });
        }
    }

    fn start(
        &self,
        env: &E,
        cache: &ChunkCache,
        chunk: Chunk,
        position: u64,
        length: u64,
    ) -> OnceReceiver<io::Result<ChunkSlice>> {
        let (sender, receiver) = once();
        let file = self.source.file.file.clone();
        cache.metrics().disk_read_bytes(length);
        env.spawn(async move {
            let (result, chunk) = file.read(chunk, position, in_memory(length)).await;
            sender.send(result.map(|_| chunk.freeze()));
        });
        receiver
    }

    /// Whether bytes below `to` are still on their way.
    pub(crate) fn lacks(&self, to: u64) -> bool {
        let is_under_way = |state: &State| matches!(state, State::Reading(receiver) if !receiver.is_over());
        self.buffers.iter().take_while(|buffer| buffer.position < to).any(|buffer| is_under_way(&buffer.state))
    }

    /// Waits until all bytes below `to` (at most those requested) are in memory; how far they go.
    pub(crate) async fn wait(&mut self, to: u64) -> io::Result<u64> {
        let mut available = self.position;
        for buffer in &mut self.buffers {
            if buffer.position >= to {
                break;
            }
            if let State::Reading(receiver) = &mut buffer.state {
                let slice = receiver.await.unwrap_or_else(|| Err(io::Error::other("the read was given up")))?;
                buffer.state = State::Read(slice);
            }
            if let State::Read(slice) = &buffer.state {
                available = buffer.position + in_file(slice.len());
                if in_file(slice.len()) < buffer.length {
                    break;
                }
            }
        }
        Ok(available.min(self.source.end))
    }

    /// The parts of `[from, to)` in order; the range has been waited for.
    pub(crate) fn parts(&self, from: u64, to: u64) -> impl Iterator<Item = ChunkSlice> + '_ {
        self.buffers.iter().filter_map(move |buffer| {
            let State::Read(slice) = &buffer.state else { return None };
            let start = from.max(buffer.position);
            let end = to.min(buffer.position + in_file(slice.len()));
            (start < end).then(|| slice.slice(in_memory(start - buffer.position)..in_memory(end - buffer.position)))
        })
    }

    /// Copies bytes at `from`, which have been waited for, into `into`; how many there were.
    pub(crate) fn copy(&self, from: u64, into: &mut [u8]) -> usize {
        let mut copied = 0;
        for part in self.parts(from, from + in_file(into.len())) {
            into[copied..copied + part.len()].copy_from_slice(&part);
            copied += part.len();
        }
        copied
    }
}

/// Reads are whole blocks.
const _: () = assert!(READ_BYTES_MAX.is_multiple_of(BLOCK));
