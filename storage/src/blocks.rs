//! Positions in files and the blocks of direct I/O: the few conversions that everything here needs.

use protocol::limits::BLOCK_BYTES;

/// The block, as a distance in a file.
pub(crate) const BLOCK: u64 = BLOCK_BYTES as u64;

/// The start of the block that `position` lies in.
pub(crate) fn block_floor(position: u64) -> u64 {
    position - position % BLOCK
}

/// The end of the block that the byte before `position` lies in.
pub(crate) fn block_ceiling(position: u64) -> u64 {
    position.next_multiple_of(BLOCK)
}

/// A distance inside memory; every distance that gets here is bounded by a chunk or a file that was just read.
pub(crate) fn in_memory(distance: u64) -> usize {
    usize::try_from(distance).expect("distances inside memory fit the address space")
}

/// A length in memory as a distance in a file.
pub(crate) fn in_file(length: usize) -> u64 {
    length as u64
}
