//! What of a region is free: a buddy allocator of block numbers, without the memory.
//!
//! Called by [`super::memory`] only. A piece is 2^order blocks, aligned to its size, of at most the largest chunk.

use std::ops::Range;

use super::memory::{BLOCK_BYTES, CHUNK_BYTES_MAX, small, small_order};

/// Sizes of pieces.
const ORDERS: usize = (CHUNK_BYTES_MAX / BLOCK_BYTES).trailing_zeros() as usize + 1;
/// No block.
pub(super) const NONE: u32 = u32::MAX;

/// Free blocks by order, with doubly linked lists in arrays; all of one size at first.
pub(super) struct Buddy {
    heads: [u32; ORDERS],
    next: Vec<u32>,
    previous: Vec<u32>,
    /// For the first block of a free piece: its order; else `LENT`.
    order: Vec<u8>,
    pub(super) free_blocks: usize,
}

const LENT: u8 = u8::MAX;

impl Buddy {
    /// For memory of `bytes`, of which nothing is free yet.
    pub(super) fn new(bytes: usize) -> Buddy {
        let blocks = bytes / BLOCK_BYTES;
        Buddy {
            heads: [NONE; ORDERS],
            next: vec![NONE; blocks],
            previous: vec![NONE; blocks],
            order: vec![LENT; blocks],
            free_blocks: 0,
        }
    }

    /// Frees a range of blocks that was never free. It begins and ends at a multiple of the largest piece.
    pub(super) fn add(&mut self, blocks: Range<usize>) {
        let step = CHUNK_BYTES_MAX / BLOCK_BYTES;
        assert!(blocks.start.is_multiple_of(step) && blocks.end.is_multiple_of(step), "{blocks:?} is not in pieces of {step}");
        self.free_blocks += blocks.len();
        for block in blocks.step_by(step).rev() {
            self.push(small(block), ORDERS - 1);
        }
    }

    pub(super) fn take(&mut self, order: usize) -> Option<u32> {
        let from = (order..ORDERS).find(|&larger| self.heads[larger] != NONE)?;
        let block = self.heads[from];
        self.unlink(block, from);
        for half in (order..from).rev() {
            self.push(block + (1 << half), half);
        }
        self.free_blocks -= 1 << order;
        Some(block)
    }

    pub(super) fn give(&mut self, mut block: u32, mut order: usize) {
        assert!(self.order[block as usize] == LENT, "block {block} was freed twice");
        self.free_blocks += 1 << order;
        while order + 1 < ORDERS {
            let buddy = block ^ (1 << order);
            if usize::from(self.order[buddy as usize]) != order {
                break;
            }
            self.unlink(buddy, order);
            block = block.min(buddy);
            order += 1;
        }
        self.push(block, order);
    }

    fn push(&mut self, block: u32, order: usize) {
        let head = self.heads[order];
        self.next[block as usize] = head;
        self.previous[block as usize] = NONE;
        if head != NONE {
            self.previous[head as usize] = block;
        }
        self.heads[order] = block;
        self.order[block as usize] = small_order(order);
    }

    fn unlink(&mut self, block: u32, order: usize) {
        let (next, previous) = (self.next[block as usize], self.previous[block as usize]);
        if previous == NONE {
            self.heads[order] = next;
        } else {
            self.next[previous as usize] = next;
        }
        if next != NONE {
            self.previous[next as usize] = previous;
        }
        self.order[block as usize] = LENT;
    }
}
