//! What a file holds: written blocks, allocated ranges, a length. Blocks are shared between copies until one changes.

use std::collections::BTreeMap;
use std::rc::Rc;

/// The file system's block, in bytes.
pub(crate) const BLOCK: u64 = 4096;
const BLOCK_SIZE: usize = 4096;

/// Bytes of a file, sparse. Blocks that are allocated and not in `blocks` are unwritten and read as zeros.
#[derive(Clone, Default)]
pub(crate) struct Content {
    length: u64,
    blocks: BTreeMap<u64, Rc<[u8; BLOCK_SIZE]>>,
    allocated: Ranges,
}

/// Disjoint ranges of block numbers: start to end, exclusive.
#[derive(Clone, Default)]
pub(crate) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn insert(&mut self, mut start: u64, mut end: u64) {
        if start >= end {
            return;
        }
        let touching: Vec<(u64, u64)> =
            self.0.range(..=end).rev().take_while(|&(_, &e)| e >= start).map(|(&s, &e)| (s, e)).collect();
        for (s, e) in touching {
            start = start.min(s);
            end = end.max(e);
            self.0.remove(&s);
        }
        self.0.insert(start, end);
    }

    fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let touching: Vec<(u64, u64)> =
            self.0.range(..end).rev().take_while(|&(_, &e)| e > start).map(|(&s, &e)| (s, e)).collect();
        for (s, e) in touching {
            self.0.remove(&s);
            if s < start {
                self.0.insert(s, start);
            }
            if e > end {
                self.0.insert(end, e);
            }
        }
    }

    fn contains(&self, block: u64) -> bool {
        self.0.range(..=block).next_back().is_some_and(|(_, &end)| end > block)
    }

    fn total(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    fn missing(&self, start: u64, end: u64) -> u64 {
        let mut covered = 0;
        for (&s, &e) in self.0.range(..end).rev() {
            if e <= start {
                break;
            }
            covered += e.min(end) - s.max(start);
        }
        end.saturating_sub(start) - covered
    }
}

fn usize_of(value: u64) -> usize {
    usize::try_from(value).expect("a 64-bit machine")
}

impl Content {
    pub fn length(&self) -> u64 {
        self.length
    }

    pub fn allocated_bytes(&self) -> u64 {
        self.allocated.total() * BLOCK
    }

    /// Bytes that allocating the range would take from the disk.
    pub fn missing_bytes(&self, position: u64, length: u64) -> u64 {
        self.allocated.missing(position / BLOCK, (position + length).div_ceil(BLOCK)) * BLOCK
    }

    pub fn allocate(&mut self, position: u64, length: u64) {
        self.allocated.insert(position / BLOCK, (position + length).div_ceil(BLOCK));
        self.length = self.length.max(position + length);
    }

    pub fn zero_range(&mut self, position: u64, length: u64) {
        let end = position + length;
        self.allocate(position, length);
        let whole = position.div_ceil(BLOCK)..end / BLOCK;
        let gone: Vec<u64> = self.blocks.range(whole.start..whole.end.max(whole.start)).map(|(&block, _)| block).collect();
        for block in gone {
            self.blocks.remove(&block);
        }
        if !position.is_multiple_of(BLOCK) {
            self.fill_zero(position, end.min(position.next_multiple_of(BLOCK)));
        }
        if !end.is_multiple_of(BLOCK) && end / BLOCK >= position.div_ceil(BLOCK) {
            self.fill_zero((end / BLOCK) * BLOCK, end);
        }
    }

    fn fill_zero(&mut self, start: u64, end: u64) {
        if let Some(bytes) = self.blocks.get_mut(&(start / BLOCK)) {
            let base = (start / BLOCK) * BLOCK;
            Rc::make_mut(bytes)[usize_of(start - base)..usize_of(end - base)].fill(0);
        }
    }

    pub fn set_length(&mut self, length: u64) {
        if length < self.length {
            let first = length.div_ceil(BLOCK);
            drop(self.blocks.split_off(&first));
            self.allocated.remove(first, u64::MAX);
            if !length.is_multiple_of(BLOCK) {
                self.fill_zero(length, (length / BLOCK + 1) * BLOCK);
            }
        }
        self.length = length;
    }

    /// Writes at any position; blocks that aren't allocated become so; the length grows if needed.
    pub fn write(&mut self, position: u64, bytes: &[u8]) {
        self.allocate(position, bytes.len() as u64);
        self.overlay(position, bytes);
    }

    /// Writes only where blocks are allocated and below the length.
    pub fn overlay(&mut self, position: u64, bytes: &[u8]) {
        let mut at = position;
        let end = (position + bytes.len() as u64).min(self.length);
        while at < end {
            let block = at / BLOCK;
            let next = end.min((block + 1) * BLOCK);
            if self.allocated.contains(block) {
                let target = self.blocks.entry(block).or_insert_with(|| Rc::new([0; BLOCK_SIZE]));
                let within = usize_of(at % BLOCK);
                let source = &bytes[usize_of(at - position)..usize_of(next - position)];
                Rc::make_mut(target)[within..within + source.len()].copy_from_slice(source);
            }
            at = next;
        }
    }

    /// Bytes from `position`, fewer at the end of the file.
    pub fn read(&self, position: u64, length: usize) -> Vec<u8> {
        let end = self.length.min(position + length as u64);
        let mut bytes = vec![0; usize_of(end.saturating_sub(position))];
        let mut at = position;
        while at < end {
            let block = at / BLOCK;
            let next = end.min((block + 1) * BLOCK);
            if let Some(source) = self.blocks.get(&block) {
                let within = usize_of(at % BLOCK);
                let count = usize_of(next - at);
                let to = usize_of(at - position);
                bytes[to..to + count].copy_from_slice(&source[within..within + count]);
            }
            at = next;
        }
        bytes
    }

    /// Whether a write of this range touches both written and unwritten blocks.
    pub fn crosses(&self, position: u64, length: u64) -> bool {
        let (first, last) = (position / BLOCK, (position + length).div_ceil(BLOCK));
        let written = self.blocks.range(first..last).count() as u64;
        written != 0 && written != last - first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_and_split() {
        let mut ranges = Ranges::default();
        ranges.insert(10, 20);
        ranges.insert(30, 40);
        ranges.insert(20, 30);
        assert_eq!(ranges.total(), 30);
        assert_eq!(ranges.0.len(), 1);
        ranges.remove(15, 35);
        assert_eq!(ranges.total(), 10);
        assert!(ranges.contains(14) && !ranges.contains(15) && !ranges.contains(34) && ranges.contains(35));
        assert_eq!(ranges.missing(10, 40), 20);
    }

    #[test]
    fn zeroed_and_cut_bytes_read_as_zeros() {
        let mut content = Content::default();
        content.write(0, &[7; 3 * BLOCK_SIZE]);
        content.zero_range(BLOCK, BLOCK);
        assert!(content.crosses(0, 2 * BLOCK) && !content.crosses(0, BLOCK));
        assert_eq!(content.read(BLOCK - 1, 3), [7, 0, 0]);
        content.set_length(BLOCK / 2);
        content.set_length(2 * BLOCK);
        assert_eq!(content.read(BLOCK / 2 - 1, 2), [7, 0]);
        assert_eq!(content.read(2 * BLOCK - 1, 10).len(), 1);
    }

    #[test]
    fn a_shared_block_is_copied_before_it_changes() {
        let mut content = Content::default();
        content.write(0, &[1; BLOCK_SIZE]);
        let durable = content.clone();
        content.write(0, &[2; 512]);
        assert_eq!(durable.read(0, 1), [1]);
        assert_eq!(content.read(511, 2), [2, 1]);
    }
}
