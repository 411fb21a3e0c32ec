//! Cuts frames out of the bytes of one connection, in place.
//!
//! Lives on the connection core, one per connection; called by `connection` (receive, cut) and `server` (shrink).
//!
//! Invariants:
//! - A frame lies in one chunk. The chunk that collects a frame has at most `max(RECEIVE_CHUNK_BYTES, 4 x bytes that have arrived of it)`
//!   bytes: it grows with what came, never on the word of a length field (T79, T80).
//! - Without a partial frame the splitter holds no memory while the connection waits ([`Splitter::rest`]); one that waits
//!   long for the rest of a frame is shrunk to what has arrived ([`Splitter::shrink`], T82).
//! - Order of events: `chunk_to_receive`, the receive, `received`, then `next_frame` until it gives `None`.

use protocol::limits::{BLOCK_BYTES, RECEIVE_CHUNK_BYTES};
use runtime::{Chunk, Region};

use crate::framing::{Frame, FrameRefused, FrameShape, Framing};

#[cfg(test)]
mod tests;

/// A chunk whose frames live is appended to as long as this many bytes are left, else a new one is taken.
const APPEND_BYTES_MIN: usize = RECEIVE_CHUNK_BYTES / 4;

/// The region has no piece to receive into; try again when memory has come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory;

/// The bytes of one connection that are not cut yet.
pub struct Splitter<F: Framing> {
    /// Absent while a receive is under way, and while nothing waits.
    chunk: Option<Chunk>,
    /// First byte of the chunk that is not cut yet.
    start: usize,
    /// The head of the frame at `start`, once it is there.
    head: Option<(F::Header, FrameShape)>,
    /// Bytes of the last frame that was cut; 0 before the first.
    last_bytes: usize,
}

impl<F: Framing> Default for Splitter<F> {
    fn default() -> Splitter<F> {
        const { assert!(F::FRAME_BYTES_MAX <= protocol::limits::CHUNK_BYTES_MAX, "a frame fits one chunk") };
        const { assert!(F::HEAD_BYTES > 0 && F::HEAD_BYTES <= BLOCK_BYTES, "a head fits the smallest chunk") };
        Splitter { chunk: None, start: 0, head: None, last_bytes: 0 }
    }
}

impl<F: Framing> Splitter<F> {
    /// Bytes of the frame that has begun and not ended.
    #[must_use]
    pub fn partial_bytes(&self) -> usize {
        self.chunk.as_ref().map_or(0, |chunk| chunk.filled() - self.start)
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.chunk.as_ref().map_or(0, Chunk::capacity)
    }

    /// The chunk to receive into, with the partial frame in it and room behind.
    ///
    /// # Errors
    /// If the region is exhausted; the partial frame stays here.
    pub fn chunk_to_receive(&mut self, region: &Region) -> Result<Chunk, NoMemory> {
        let Some(chunk) = self.chunk.take() else {
            self.start = 0;
            return take_receive_chunk(region).ok_or(NoMemory);
        };
        if chunk.filled() == self.start {
            return self.reuse_empty(chunk, region);
        }
        self.room_for_partial(chunk, region)
    }

    /// How much to receive into `chunk`, which has just been given out: up to the end of a frame if the next ones are as long as the
    /// last one. A frame that the chunk's end cuts in two is copied into the next chunk; a stream of equal frames has none.
    #[must_use]
    pub fn receive_bytes_max(&self, chunk: &Chunk) -> usize {
        let room = chunk.remaining();
        let partial = chunk.filled() - self.start;
        let next_bytes = match &self.head {
            Some((_, shape)) => shape.total_bytes(F::HEAD_BYTES),
            None => self.last_bytes,
        };
        let rest = next_bytes.saturating_sub(partial);
        if rest == 0 || rest > room || self.last_bytes == 0 {
            return room;
        }
        rest + (room - rest) / self.last_bytes * self.last_bytes
    }

    /// Takes the chunk back after a receive, whatever its result.
    pub fn received(&mut self, chunk: Chunk) {
        assert!(self.chunk.is_none(), "one receive at a time");
        assert!(chunk.filled() >= self.start, "a receive only appends");
        self.chunk = Some(chunk);
    }

    /// Cuts the next complete frame.
    ///
    /// # Errors
    /// If the bytes are no frame of this dialect, or break a limit; the connection can't go on.
    pub fn next_frame(&mut self) -> Result<Option<Frame<F::Header>>, FrameRefused> {
        let Some(chunk) = &self.chunk else { return Ok(None) };
        let there = &chunk.as_bytes()[self.start..];
        if self.head.is_none() {
            let Some(head) = there.get(..F::HEAD_BYTES) else { return Ok(None) };
            let (header, shape) = F::parse_head(head)?;
            let total = shape.total_bytes(F::HEAD_BYTES);
            assert!(total <= F::FRAME_BYTES_MAX, "the framing let {total} bytes pass, {} are allowed", F::FRAME_BYTES_MAX);
            self.head = Some((header, shape));
        }
        let complete = self.head.as_ref().is_some_and(|(_, shape)| there.len() >= shape.total_bytes(F::HEAD_BYTES));
        if !complete {
            return Ok(None);
        }
        let Some((header, shape)) = self.head.take() else { return Ok(None) };
        let body_start = F::HEAD_BYTES;
        let payload_start = body_start + shape.body_bytes;
        F::verify(&header, &there[..body_start], &there[body_start..payload_start])?;
        let body = chunk.slice(self.start + body_start..self.start + payload_start);
        let end = self.start + payload_start + shape.payload_bytes;
        let payload = chunk.slice(self.start + payload_start..end);
        self.last_bytes = end - self.start;
        self.start = end;
        Ok(Some(Frame { header, body, payload }))
    }

    /// Gives the memory back if no partial frame needs it. Called before each wait.
    pub fn rest(&mut self) {
        if self.partial_bytes() == 0 {
            self.chunk = None;
            self.start = 0;
        }
    }

    /// Moves a partial frame into the smallest chunk that holds what has arrived, if that frees three quarters.
    pub fn shrink(&mut self, region: &Region) {
        let partial = self.partial_bytes();
        let Some(chunk) = &self.chunk else { return };
        if partial == 0 || chunk.capacity() < 4 * partial.max(BLOCK_BYTES) {
            return;
        }
        if let Some(mut smaller) = region.take(partial) {
            smaller.append(&chunk.as_bytes()[self.start..]);
            self.chunk = Some(smaller);
            self.start = 0;
        }
    }

    fn reuse_empty(&mut self, chunk: Chunk, region: &Region) -> Result<Chunk, NoMemory> {
        match chunk.restart() {
            Ok(chunk) if chunk.capacity() >= RECEIVE_CHUNK_BYTES => {
                self.start = 0;
                Ok(chunk)
            }
            Err(chunk) if chunk.remaining() >= APPEND_BYTES_MIN => Ok(chunk),
            Ok(_) | Err(_) => {
                self.start = 0;
                take_receive_chunk(region).ok_or(NoMemory)
            }
        }
    }

    fn room_for_partial(&mut self, chunk: Chunk, region: &Region) -> Result<Chunk, NoMemory> {
        let partial = chunk.filled() - self.start;
        let total = self.head.as_ref().map_or(F::HEAD_BYTES, |(_, shape)| shape.total_bytes(F::HEAD_BYTES));
        if chunk.capacity() - self.start >= total {
            return Ok(chunk);
        }
        let grown = total.next_power_of_two().min((2 * partial).next_power_of_two()).max(RECEIVE_CHUNK_BYTES);
        if self.start == 0 && chunk.remaining() > 0 && grown <= chunk.capacity() {
            return Ok(chunk);
        }
        // The smallest that makes progress will do when memory is short.
        let least = (partial + 1).next_power_of_two().max(BLOCK_BYTES);
        let Some(mut larger) = region.take(grown).or_else(|| region.take(least)) else {
            self.chunk = Some(chunk);
            return Err(NoMemory);
        };
        larger.append(&chunk.as_bytes()[self.start..]);
        self.start = 0;
        Ok(larger)
    }
}

/// A full receive chunk, or a smaller one if the region is nearly exhausted or in pieces.
fn take_receive_chunk(region: &Region) -> Option<Chunk> {
    region.take(RECEIVE_CHUNK_BYTES).or_else(|| region.take(RECEIVE_CHUNK_BYTES / 16)).or_else(|| region.take(BLOCK_BYTES))
}
