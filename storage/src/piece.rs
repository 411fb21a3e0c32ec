//! A run of whole batches of one segment that lies in one chunk of memory, and how offsets are found in it.
//!
//! Byte 0 of the chunk is a block boundary of the file; what lies before `start` is the end of the batches before.

use protocol::ids::Offset;
use runtime::{Chunk, ChunkSlice};

use crate::header::BatchHeader;

/// Log bytes between two marks.
const MARK_INTERVAL_BYTES: usize = 8192;

/// A batch's place in a piece.
#[derive(Clone, Copy, Debug)]
struct Mark {
    base_offset: Offset,
    at: usize,
}

/// Memory of a piece.
#[derive(Debug)]
pub(crate) enum Memory {
    /// Still appended to.
    Owned(Chunk),
    /// Complete.
    Frozen(ChunkSlice),
}

/// Where in its chunk, and which offsets.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Base offset of the segment.
    pub(crate) segment: Offset,
    /// Position in the segment of the chunk's byte 0.
    pub(crate) position: u64,
    /// Where the first batch starts in the chunk.
    pub(crate) start: usize,
    /// Offset of the first batch.
    pub(crate) first_offset: Offset,
    /// The offset behind the last batch.
    pub(crate) end_offset: Offset,
    marks: Vec<Mark>,
    memory: Memory,
}

/// Whole batches found in a piece.
pub(crate) struct Found {
    pub(crate) slice: ChunkSlice,
    pub(crate) next_offset: Offset,
    /// Whether the piece ended, rather than the bytes or the bound.
    pub(crate) to_the_end: bool,
}

/// What a walk over batches may take.
#[derive(Clone, Copy)]
pub(crate) struct Budget {
    /// Exclusive bound of offsets.
    pub(crate) bound: Offset,
    /// Bytes left.
    pub(crate) bytes: usize,
    /// Whether one batch is taken even if it has more bytes.
    pub(crate) first_whole: bool,
}

impl Piece {
    pub(crate) fn new(segment: Offset, position: u64, first_offset: Offset, chunk: Chunk) -> Piece {
        let start = chunk.filled();
        Piece {
            segment,
            position,
            start,
            first_offset,
            end_offset: first_offset,
            marks: Vec::new(),
            memory: Memory::Owned(chunk),
        }
    }

    pub(crate) fn chunk_mut(&mut self) -> Option<&mut Chunk> {
        match &mut self.memory {
            Memory::Owned(chunk) => Some(chunk),
            Memory::Frozen(_) => None,
        }
    }

    /// Bytes that can still be appended.
    pub(crate) fn remaining(&self) -> usize {
        match &self.memory {
            Memory::Owned(chunk) => chunk.remaining(),
            Memory::Frozen(_) => 0,
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        match &self.memory {
            Memory::Owned(chunk) => chunk.capacity(),
            Memory::Frozen(slice) => slice.chunk_capacity(),
        }
    }

    /// All bytes from the chunk's start.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.memory {
            Memory::Owned(chunk) => chunk.as_bytes(),
            Memory::Frozen(slice) => slice,
        }
    }

    pub(crate) fn slice(&self, from: usize, to: usize) -> ChunkSlice {
        match &self.memory {
            Memory::Owned(chunk) => chunk.slice(from..to),
            Memory::Frozen(slice) => slice.slice(from..to),
        }
    }

    /// Position in the segment behind the last byte.
    pub(crate) fn end_position(&self) -> u64 {
        self.position + self.bytes().len() as u64
    }

    /// No more is appended.
    pub(crate) fn freeze(self) -> Piece {
        let memory = match self.memory {
            Memory::Owned(chunk) => Memory::Frozen(chunk.freeze()),
            frozen @ Memory::Frozen(_) => frozen,
        };
        Piece { memory, ..self }
    }

    /// Notes a batch that was just published at `at`.
    pub(crate) fn note(&mut self, base_offset: Offset, at: usize, next_offset: Offset) {
        if self.marks.last().is_none_or(|mark| at - mark.at >= MARK_INTERVAL_BYTES) {
            self.marks.push(Mark { base_offset, at });
        }
        self.end_offset = next_offset;
    }

    /// Whole batches from the one that contains `offset` on; `None` if it isn't here.
    pub(crate) fn find(&self, offset: Offset, budget: Budget) -> Option<Found> {
        if offset < self.first_offset || offset >= self.end_offset {
            return None;
        }
        let bytes = self.bytes();
        let above = self.marks.partition_point(|mark| mark.base_offset <= offset);
        let mut at = above.checked_sub(1).map_or(self.start, |index| self.marks[index].at);
        let mut from = None;
        let mut next_offset = offset;
        let mut to_the_end = false;
        loop {
            let Some(Ok(header)) = BatchHeader::first_of(&bytes[at..]) else {
                to_the_end = true;
                break;
            };
            if header.last_offset() < offset {
                at += header.size;
                continue;
            }
            let first = *from.get_or_insert(at);
            let taken = at - first;
            let fits = taken + header.size <= budget.bytes || (taken == 0 && budget.first_whole);
            if header.next_offset() > budget.bound || !fits {
                break;
            }
            next_offset = header.next_offset();
            at += header.size;
            // The rest of the piece at once, where nothing can stop the walk inside it.
            if self.end_offset <= budget.bound && bytes.len() - first <= budget.bytes {
                at = bytes.len();
                next_offset = self.end_offset;
            }
        }
        let from = from?;
        Some(Found { slice: self.slice(from, at), next_offset, to_the_end })
    }
}
