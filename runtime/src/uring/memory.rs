//! A core's region of memory and the chunks it is lent out in.
//!
//! What it is: one anonymous mapping per core, registered with the ring in entries of at most 64 MiB, divided by a buddy
//! allocator into chunks of 4 KiB to 16 MiB (powers of two, aligned to their size up to 16 MiB, never across two entries). A core begins with
//! the first entry; [`super::growth`] adds the others.
//! Who calls it: everything that receives, appends, reads or sends, on the owning core only (`Rc`, not `Send`).
//!
//! Invariants:
//! - A chunk has one owner, [`Chunk`], that may write behind `filled`; bytes below `filled` are published and never change
//!   while any [`ChunkSlice`] of the chunk lives.
//! - Memory returns to the region when the owner, the last slice and the last loan of one ([`super::lending`]) are gone. An operation of the kernel holds a slice (or the
//!   chunk) until its completion, so memory in flight is never free.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::io;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use super::buddy::{Buddy, NONE};
use super::lending::Lending;
use crate::local::Notify;
use crate::mesh::bell::Bell;

/// Smallest chunk, and the alignment of every chunk, in bytes: the block of direct I/O.
pub const BLOCK_BYTES: usize = 4096;
/// Largest chunk, in bytes.
pub const CHUNK_BYTES_MAX: usize = 16 << 20;
/// Largest registered entry, in bytes, and the step in which a region grows: the kernel takes 16,384 entries, of 1 GiB at most.
pub const ENTRY_BYTES_MAX: usize = 64 << 20;

/// All memory that a core's disk and network operations read from and write to. A handle: clones are the same region.
#[derive(Clone)]
pub struct Region(pub(super) Rc<RegionInner>);

pub(super) struct RegionInner {
    base: NonNull<u8>,
    /// Bytes of the mapping.
    mapped_bytes: usize,
    /// Bytes from the start that may be used.
    bytes: Cell<usize>,
    /// The same, at the end of the growth.
    full_bytes: Cell<usize>,
    buddy: RefCell<Buddy>,
    /// Chunks that are not free: each keeps the mapping.
    chunks: Cell<usize>,
    /// What other cores have of it, since the first time.
    pub(super) lending: OnceCell<Lending>,
    /// What wakes the region's core.
    pub(super) bell: OnceCell<Arc<Bell>>,
    pub(super) freed: Notify,
    /// Bytes of the chunks that unfinished sends hold, each chunk counted once.
    held_bytes: Cell<usize>,
}

/// A piece of the region with one owner, who may append to it.
pub struct Chunk {
    memory: Rc<Allocation>,
    filled: usize,
}

/// A range of published bytes of a chunk; keeps the chunk's memory from being freed.
#[derive(Clone)]
pub struct ChunkSlice {
    pub(super) memory: Rc<Allocation>,
    start: u32,
    length: u32,
}

pub(super) struct Allocation {
    pub(super) region: Rc<RegionInner>,
    block: u32,
    order: u8,
    /// Unfinished sends that read this chunk.
    holds: Cell<u32>,
}

/// A part of the region that is registered as one.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegionEntry {
    /// Its place in the ring's table.
    pub(super) index: u16,
    /// Of its first byte.
    pub(super) address: usize,
    pub(super) bytes: usize,
}

/// A slice that an unfinished send reads, counted in [`Region::held_bytes`] until it is dropped.
pub(crate) struct Hold(ChunkSlice);

impl Region {
    /// Maps a region of `bytes`, rounded up to a multiple of the largest chunk (16 MiB).
    ///
    /// # Errors
    /// What `mmap` says.
    pub fn map(bytes: usize) -> io::Result<Region> {
        let region = Region::reserve(bytes)?;
        while region.next_entry().is_some() {
            region.extend();
        }
        Ok(region)
    }

    /// The same, with nothing to be had from it yet.
    pub(super) fn reserve(bytes: usize) -> io::Result<Region> {
        let bytes = bytes.max(1).next_multiple_of(CHUNK_BYTES_MAX);
        assert!(bytes / BLOCK_BYTES < NONE as usize, "a region is below 16 TiB");
        // One largest chunk more, so that the base can be aligned to it.
        let span = bytes + CHUNK_BYTES_MAX;
        // SAFETY: an anonymous private mapping at no fixed address has no precondition; the result is checked below.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                span,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = mapped as usize;
        let aligned = start.next_multiple_of(CHUNK_BYTES_MAX);
        // SAFETY: both ranges lie inside the mapping made above and outside [aligned, aligned + bytes).
        unsafe {
            if aligned > start {
                libc::munmap(mapped, aligned - start);
            }
            let tail = start + span - (aligned + bytes);
            if tail > 0 {
                libc::munmap((aligned + bytes) as *mut libc::c_void, tail);
            }
        }
        // Huge pages make registering and direct I/O cheaper; where there are none, nothing changes.
        // SAFETY: the range is the mapping made above; the advice changes no content.
        unsafe {
            libc::madvise(aligned as *mut libc::c_void, bytes, libc::MADV_HUGEPAGE);
        }
        let base = NonNull::new(aligned as *mut u8).ok_or_else(|| io::Error::other("mmap gave address zero"))?;
        Ok(Region(Rc::new(RegionInner {
            base,
            mapped_bytes: bytes,
            bytes: Cell::new(0),
            full_bytes: Cell::new(bytes),
            buddy: RefCell::new(Buddy::new(bytes)),
            chunks: Cell::new(0),
            lending: OnceCell::new(),
            bell: OnceCell::new(),
            freed: Notify::new(),
            held_bytes: Cell::new(0),
        })))
    }

    /// A chunk of at least `bytes` (rounded up to a power of two, 4 KiB at least), or `None` if no free piece is large enough.
    ///
    /// # Panics
    /// If `bytes` is over [`CHUNK_BYTES_MAX`].
    #[must_use]
    pub fn take(&self, bytes: usize) -> Option<Chunk> {
        assert!(bytes <= CHUNK_BYTES_MAX, "a chunk of {bytes} bytes was asked for, {CHUNK_BYTES_MAX} is the largest");
        self.collect();
        let order = order_of(bytes);
        let block = self.0.buddy.borrow_mut().take(order)?;
        self.0.chunks.set(self.0.chunks.get() + 1);
        let memory = Allocation { region: self.0.clone(), block, order: small_order(order), holds: Cell::new(0) };
        Some(Chunk { memory: Rc::new(memory), filled: 0 })
    }

    /// Bytes of the region that may be used: all, once it has grown.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes.get()
    }

    /// Bytes of the region when it has grown: what was asked for, or what it has, if no more can be registered.
    #[must_use]
    pub fn full_bytes(&self) -> usize {
        self.0.full_bytes.get()
    }

    /// Bytes not lent out.
    #[must_use]
    pub fn free_bytes(&self) -> usize {
        self.collect();
        self.0.buddy.borrow().free_blocks * BLOCK_BYTES
    }

    /// Bytes of the chunks that unfinished sends read (each chunk counted once). What is held can't be evicted.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.0.held_bytes.get()
    }

    /// A signal for each chunk that returns.
    #[must_use]
    pub fn freed(&self) -> Notify {
        self.0.freed.clone()
    }

    /// How many entries it has when it has grown.
    pub(super) fn entries(&self) -> usize {
        self.0.full_bytes.get().div_ceil(ENTRY_BYTES_MAX)
    }

    /// The entry by which it grows next.
    pub(super) fn next_entry(&self) -> Option<RegionEntry> {
        let start = self.0.bytes.get();
        let bytes = ENTRY_BYTES_MAX.min(self.0.full_bytes.get() - start);
        let address = self.0.base.as_ptr().wrapping_add(start);
        (bytes > 0).then(|| RegionEntry { index: entry_at(start), address: address as usize, bytes })
    }

    /// It grows no further.
    pub(super) fn stop_growing(&self) {
        self.0.full_bytes.set(self.0.bytes.get());
        self.0.freed.notify();
    }

    /// Lets the next entry be used.
    pub(super) fn extend(&self) {
        let Some(entry) = self.next_entry() else { return };
        let start = self.0.bytes.get();
        let end = start + entry.bytes;
        self.0.buddy.borrow_mut().add(start / BLOCK_BYTES..end / BLOCK_BYTES);
        self.0.bytes.set(end);
        self.0.freed.notify();
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("bytes", &self.bytes()).field("free_bytes", &self.free_bytes()).finish()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // The last handle: all others are of chunks.
        if Rc::strong_count(&self.0) == self.0.chunks.get() + 1 {
            self.collect();
            let loans = self.loans();
            if loans > 0 {
                tracing::warn!(
                    loans,
                    bytes = self.0.mapped_bytes,
                    "other cores still have memory of a region that has gone; its mapping is kept"
                );
            }
        }
    }
}

impl Drop for RegionInner {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `map` with this base and length; every chunk holds an Rc of the region, so none is left. What is
        // lent out is a chunk's slice, held by the region itself: as long as a loan is out, this doesn't run.
        unsafe {
            libc::munmap(self.base.as_ptr().cast(), self.mapped_bytes);
        }
    }
}

impl Allocation {
    fn capacity(&self) -> usize {
        BLOCK_BYTES << self.order
    }

    fn pointer(&self) -> *mut u8 {
        self.region.base.as_ptr().wrapping_add(self.block as usize * BLOCK_BYTES)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.region.buddy.borrow_mut().give(self.block, self.order as usize);
        self.region.chunks.set(self.region.chunks.get() - 1);
        self.region.freed.notify();
    }
}

impl Chunk {
    /// Bytes that the chunk can hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.memory.capacity()
    }

    /// Bytes published.
    #[must_use]
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Bytes that can still be appended.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.capacity() - self.filled
    }

    /// The published bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: [pointer, pointer + filled) lies in this allocation, was initialised (the mapping is zeroed at birth), and is only
        // written through `writable`, which starts at `filled`, or by `restart`, which needs the only handle.
        unsafe { std::slice::from_raw_parts(self.memory.pointer(), self.filled) }
    }

    /// The bytes behind the published ones. What is written there becomes visible with [`Chunk::publish`].
    pub fn writable(&mut self) -> &mut [u8] {
        // SAFETY: slices reach only below `filled`; this is the chunk's one owner, borrowed mutably; the range is in the allocation.
        unsafe { std::slice::from_raw_parts_mut(self.memory.pointer().wrapping_add(self.filled), self.capacity() - self.filled) }
    }

    /// Publishes `count` bytes written into [`Chunk::writable`].
    ///
    /// # Panics
    /// If they don't fit.
    pub fn publish(&mut self, count: usize) {
        assert!(count <= self.remaining(), "{count} bytes published with {} left", self.remaining());
        self.filled += count;
    }

    /// Copies `bytes` behind the published ones and publishes them.
    ///
    /// # Panics
    /// If they don't fit.
    pub fn append(&mut self, bytes: &[u8]) {
        self.writable()[..bytes.len()].copy_from_slice(bytes);
        self.publish(bytes.len());
    }

    /// Copies `bytes` behind the published ones; the copy, which [`Chunk::publish`] makes visible. A large copy goes past the caches:
    /// it is read again by a device, or much later, and without it the memory below it would be fetched first.
    ///
    /// # Panics
    /// If they don't fit.
    pub fn place(&mut self, bytes: &[u8]) -> &mut [u8] {
        let copy = &mut self.writable()[..bytes.len()];
        if bytes.len() < PAST_CACHE_BYTES_MIN {
            copy.copy_from_slice(bytes);
        } else {
            copy_past_cache(copy, bytes);
        }
        copy
    }

    /// A slice of published bytes.
    ///
    /// # Panics
    /// If `range` is not below [`Chunk::filled`].
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> ChunkSlice {
        assert!(range.start <= range.end && range.end <= self.filled, "{range:?} of {} bytes", self.filled);
        ChunkSlice { memory: self.memory.clone(), start: small(range.start), length: small(range.end - range.start) }
    }

    /// The published bytes as a slice; gives up ownership.
    #[must_use]
    pub fn freeze(self) -> ChunkSlice {
        self.slice(0..self.filled)
    }

    /// Empties the chunk for reuse, if no slice of it lives.
    ///
    /// # Errors
    /// The chunk unchanged, if a slice lives.
    pub fn restart(mut self) -> Result<Chunk, Chunk> {
        if Rc::strong_count(&self.memory) == 1 {
            self.filled = 0;
            Ok(self)
        } else {
            Err(self)
        }
    }

    /// The address of byte 0, for the ring.
    pub(crate) fn pointer(&self) -> *mut u8 {
        self.memory.pointer()
    }

    /// The index of the registered entry, for the ring.
    pub(crate) fn entry(&self) -> u16 {
        entry_of(&self.memory)
    }
}

/// Copies of at least this many bytes go past the caches.
const PAST_CACHE_BYTES_MIN: usize = 16 << 10;
/// A line of the cache, in bytes: what is written past it must be whole lines.
#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

/// A copy by non-temporal stores, but for the broken lines at its ends and the first whole line: a batch's header is stamped next.
#[cfg(target_arch = "x86_64")]
fn copy_past_cache(to: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const PART_BYTES: usize = 16;
    assert_eq!(to.len(), from.len(), "a copy has its original's size");
    let broken = (to.as_ptr().align_offset(LINE_BYTES) + LINE_BYTES).min(to.len());
    let (to_head, to) = to.split_at_mut(broken);
    let (from_head, from) = from.split_at(broken);
    to_head.copy_from_slice(from_head);
    let (mut to_lines, mut from_lines) = (to.chunks_exact_mut(LINE_BYTES), from.chunks_exact(LINE_BYTES));
    for (to, from) in to_lines.by_ref().zip(from_lines.by_ref()) {
        for at in (0..LINE_BYTES).step_by(PART_BYTES) {
            // SAFETY: `at + PART_BYTES` is within both lines; loads need no alignment, and `to` begins at a line, so stores are aligned.
            unsafe {
                let part = _mm_loadu_si128(from.as_ptr().wrapping_add(at).cast());
                _mm_stream_si128(to.as_mut_ptr().wrapping_add(at).cast(), part);
            }
        }
    }
    to_lines.into_remainder().copy_from_slice(from_lines.remainder());
    // SAFETY: the instruction is part of every x86-64 processor. It orders the stores above before whatever hands the memory on.
    unsafe { _mm_sfence() };
}

#[cfg(not(target_arch = "x86_64"))]
fn copy_past_cache(to: &mut [u8], from: &[u8]) {
    to.copy_from_slice(from);
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({}/{} at block {})", self.filled, self.capacity(), self.memory.block)
    }
}

impl ChunkSlice {
    /// A part of this slice.
    ///
    /// # Panics
    /// If `range` is not inside.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> ChunkSlice {
        assert!(range.start <= range.end && range.end <= self.length as usize, "{range:?} of {} bytes", self.length);
        ChunkSlice { memory: self.memory.clone(), start: self.start + small(range.start), length: small(range.end - range.start) }
    }

    /// Whether both are ranges of one chunk.
    #[must_use]
    pub fn same_chunk(&self, other: &ChunkSlice) -> bool {
        Rc::ptr_eq(&self.memory, &other.memory)
    }

    /// Position of the first byte in its chunk.
    #[must_use]
    pub fn offset_in_chunk(&self) -> usize {
        self.start as usize
    }

    /// Bytes of the whole chunk that this slice keeps alive.
    #[must_use]
    pub fn chunk_capacity(&self) -> usize {
        self.memory.capacity()
    }

    /// The index of the registered entry, for the ring.
    pub(crate) fn entry(&self) -> u16 {
        entry_of(&self.memory)
    }

    /// Gives the memory back and keeps its address: the fault of a kernel that still reads a freed chunk, for the simulator only.
    #[doc(hidden)]
    #[must_use]
    pub fn into_dangling(self) -> DanglingSlice {
        let start = self.memory.block as usize * BLOCK_BYTES + self.start as usize;
        DanglingSlice { region: self.memory.region.clone(), start, length: self.length as usize }
    }
}

/// Where a slice lay whose memory may have another owner by now. Made by [`ChunkSlice::into_dangling`].
#[doc(hidden)]
pub struct DanglingSlice {
    region: Rc<RegionInner>,
    start: usize,
    length: usize,
}

impl DanglingSlice {
    /// What lies there now, whoever wrote it.
    #[must_use]
    pub fn copy_out(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        // SAFETY: the mapping lives as long as the region handle, and the range was inside it; every byte of the mapping is initialised.
        // The region belongs to one thread, and the caller runs between tasks, when no task writes through a reference.
        unsafe {
            std::ptr::copy_nonoverlapping(self.region.base.as_ptr().wrapping_add(self.start), bytes.as_mut_ptr(), self.length);
        }
        bytes
    }
}

impl ChunkSlice {
    /// Bytes that unfinished sends hold of the region that this slice lies in.
    pub(crate) fn region_held_bytes(&self) -> usize {
        self.memory.region.held_bytes.get()
    }

    /// Bytes of the region that this slice lies in.
    pub(crate) fn region_bytes(&self) -> usize {
        self.memory.region.bytes.get()
    }
}

impl Hold {
    /// Counts the chunk of `slice` as held.
    pub(crate) fn new(slice: ChunkSlice) -> Hold {
        let memory = &slice.memory;
        let holds = memory.holds.get();
        memory.holds.set(holds + 1);
        if holds == 0 {
            let held_bytes = &memory.region.held_bytes;
            held_bytes.set(held_bytes.get() + memory.capacity());
        }
        Hold(slice)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let memory = &self.0.memory;
        let holds = memory.holds.get() - 1;
        memory.holds.set(holds);
        if holds == 0 {
            let held_bytes = &memory.region.held_bytes;
            held_bytes.set(held_bytes.get() - memory.capacity());
        }
    }
}

impl Deref for ChunkSlice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range was published when the slice was made, and published bytes don't change while a slice lives.
        unsafe { std::slice::from_raw_parts(self.memory.pointer().wrapping_add(self.start as usize), self.length as usize) }
    }
}

impl fmt::Debug for ChunkSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChunkSlice({}+{} at block {})", self.start, self.length, self.memory.block)
    }
}

pub(super) fn small(value: usize) -> u32 {
    u32::try_from(value).expect("a chunk is at most 16 MiB")
}

pub(super) fn small_order(order: usize) -> u8 {
    u8::try_from(order).expect("orders are few")
}

fn entry_of(memory: &Allocation) -> u16 {
    entry_at(memory.block as usize * BLOCK_BYTES)
}

fn entry_at(position: usize) -> u16 {
    u16::try_from(position / ENTRY_BYTES_MAX).expect("a region has few entries")
}

fn order_of(bytes: usize) -> usize {
    let blocks = bytes.max(1).div_ceil(BLOCK_BYTES).next_power_of_two();
    blocks.trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_split_and_join_again() {
        let region = Region::map(32 << 20).unwrap();
        let all = region.free_bytes();
        let chunks: Vec<Chunk> = (0..100).map(|n| region.take(1 << (n % 20)).unwrap()).collect();
        assert!(region.free_bytes() < all);
        drop(chunks);
        assert_eq!(region.free_bytes(), all);
        assert!(region.take(CHUNK_BYTES_MAX).is_some());
    }

    #[test]
    fn a_region_grows_by_whole_entries() {
        let bytes = ENTRY_BYTES_MAX + 2 * CHUNK_BYTES_MAX;
        let region = Region::reserve(bytes).unwrap();
        assert_eq!((region.bytes(), region.full_bytes(), region.entries()), (0, bytes, 2));
        assert!(region.take(1).is_none(), "nothing can be had before the first entry");
        let first = region.next_entry().unwrap();
        region.extend();
        assert_eq!((first.index, first.bytes, region.bytes()), (0, ENTRY_BYTES_MAX, ENTRY_BYTES_MAX));
        let chunks: Vec<Chunk> = std::iter::from_fn(|| region.take(CHUNK_BYTES_MAX)).collect();
        assert_eq!(chunks.len(), ENTRY_BYTES_MAX / CHUNK_BYTES_MAX);
        assert!(chunks.iter().all(|chunk| chunk.entry() == 0));
        let second = region.next_entry().unwrap();
        assert_eq!((second.index, second.address, second.bytes), (1, first.address + ENTRY_BYTES_MAX, 2 * CHUNK_BYTES_MAX));
        region.extend();
        assert!(region.next_entry().is_none());
        let last: Vec<Chunk> = std::iter::from_fn(|| region.take(CHUNK_BYTES_MAX)).collect();
        assert_eq!(last.iter().map(Chunk::entry).collect::<Vec<_>>(), [1, 1]);
        drop((chunks, last));
        assert_eq!((region.free_bytes(), region.bytes()), (bytes, bytes));
    }

    #[test]
    fn memory_is_free_only_when_the_last_slice_is_gone() {
        let region = Region::map(16 << 20).unwrap();
        let mut chunk = region.take(CHUNK_BYTES_MAX).unwrap();
        chunk.append(b"abcdef");
        let slice = chunk.slice(2..5);
        drop(chunk);
        assert!(region.take(1).is_none());
        assert_eq!(&*slice, b"cde");
        drop(slice);
        assert!(region.take(1).is_some());
    }

    #[test]
    fn a_large_copy_is_the_same_wherever_it_lies() {
        let region = Region::map(16 << 20).unwrap();
        let bytes: Vec<u8> = (0..PAST_CACHE_BYTES_MIN + 300).map(|n| u8::try_from(n * 7 % 251).unwrap()).collect();
        for (before, from, length) in [(0, 0, 16_384), (1, 0, 16_384), (63, 5, 16_500), (64, 64, 16_447), (100, 1, 16_385)] {
            let mut chunk = region.take(64 << 10).unwrap();
            chunk.append(&vec![9; before]);
            let part = &bytes[from..from + length];
            chunk.writable()[length] = 77;
            assert_eq!(chunk.place(part), part);
            assert_eq!(
                (chunk.filled(), chunk.writable()[length]),
                (before, 77),
                "nothing is published, nothing behind is touched"
            );
            chunk.publish(length);
            assert_eq!((&chunk.as_bytes()[..before], &chunk.as_bytes()[before..]), (&vec![9; before][..], part));
        }
    }

    #[test]
    fn a_held_chunk_is_counted_once() {
        let region = Region::map(16 << 20).unwrap();
        let mut chunk = region.take(8192).unwrap();
        chunk.append(b"first");
        let first = Hold::new(chunk.slice(0..5));
        let second = Hold::new(chunk.slice(1..3));
        assert_eq!(region.held_bytes(), 8192);
        drop(first);
        assert_eq!(region.held_bytes(), 8192);
        drop(second);
        assert_eq!(region.held_bytes(), 0);
    }

    #[test]
    fn published_bytes_stay_while_the_owner_appends() {
        let region = Region::map(16 << 20).unwrap();
        let mut chunk = region.take(8192).unwrap();
        chunk.append(b"first");
        let slice = chunk.slice(0..5);
        chunk.append(b"second");
        assert_eq!(&*slice, b"first");
        assert!(chunk.restart().is_err());
    }
}
