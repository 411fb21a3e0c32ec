//! The sparse offset index of one segment: for every few KiB of log, the last offset of a batch and the batch's position.
//!
//! On disk it has Kafka's layout: entries of 8 bytes, relative offset and position, both `u32` big endian, ascending.
//! An entry says where a batch *starts* and names its *last* offset, so the greatest entry at or below an offset is a
//! safe place to start a scan from.

use protocol::ids::Offset;

/// Bytes of an entry on disk.
pub(crate) const INDEX_ENTRY_BYTES: usize = 8;

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    /// Last offset of a batch, from the segment's base offset.
    pub(crate) relative_offset: u32,
    /// Position of that batch's first byte.
    pub(crate) position: u32,
}

impl IndexEntry {
    pub(crate) fn to_bytes(self) -> [u8; INDEX_ENTRY_BYTES] {
        let mut bytes = [0; INDEX_ENTRY_BYTES];
        bytes[..4].copy_from_slice(&self.relative_offset.to_be_bytes());
        bytes[4..].copy_from_slice(&self.position.to_be_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: [u8; INDEX_ENTRY_BYTES]) -> IndexEntry {
        let [a, b, c, d, e, f, g, h] = bytes;
        IndexEntry { relative_offset: u32::from_be_bytes([a, b, c, d]), position: u32::from_be_bytes([e, f, g, h]) }
    }
}

/// The index of a segment that is still appended to (or was until just now), in memory.
#[derive(Clone, Debug)]
pub(crate) struct OffsetIndex {
    base: Offset,
    interval_bytes: u64,
    bytes_since_entry: u64,
    entries: Vec<IndexEntry>,
}

impl OffsetIndex {
    pub(crate) fn new(base: Offset, interval_bytes: u64) -> OffsetIndex {
        OffsetIndex { base, interval_bytes, bytes_since_entry: 0, entries: Vec::new() }
    }

    /// Notes a batch of `size` bytes at `position` and says whether it got an entry.
    pub(crate) fn note(&mut self, last_offset: Offset, position: u64, size: usize) -> bool {
        let entry = self.bytes_since_entry > self.interval_bytes;
        if entry {
            let relative_offset =
                u32::try_from(last_offset.0 - self.base.0).expect("a segment rolls before its offsets pass 31 bits");
            let position = u32::try_from(position).expect("a segment rolls before its positions pass 31 bits");
            self.entries.push(IndexEntry { relative_offset, position });
            self.bytes_since_entry = 0;
        }
        self.bytes_since_entry += size as u64;
        entry
    }

    /// Takes over entries that were read back.
    pub(crate) fn restore(&mut self, entries: Vec<IndexEntry>) {
        self.entries = entries;
    }

    /// Goes on behind the batch of the last entry, which has `size` bytes.
    pub(crate) fn resume(&mut self, size: usize) {
        self.bytes_since_entry = size as u64;
    }

    pub(crate) fn entries(&self) -> &[IndexEntry] {
        &self.entries
    }

    /// Where a scan for `offset` starts. With `one_behind` (a canary) it starts one entry too far.
    pub(crate) fn floor(&self, offset: Offset, one_behind: bool) -> u64 {
        floor_of(&self.entries, self.base, offset, one_behind)
    }
}

/// Where a scan for `offset` starts, by these entries of the segment at `base`.
pub(crate) fn floor_of(entries: &[IndexEntry], base: Offset, offset: Offset, one_behind: bool) -> u64 {
    let relative = offset.0.saturating_sub(base.0);
    let above = entries.partition_point(|entry| i64::from(entry.relative_offset) <= relative);
    let index = if one_behind { Some(above) } else { above.checked_sub(1) };
    index.and_then(|index| entries.get(index)).map_or(0, |entry| u64::from(entry.position))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_made_once_more_than_the_interval_lies_behind() {
        let mut index = OffsetIndex::new(Offset(100), 1000);
        assert!(!index.note(Offset(104), 0, 600));
        assert!(!index.note(Offset(109), 600, 600));
        assert!(index.note(Offset(114), 1200, 600));
        assert_eq!(index.entries(), [IndexEntry { relative_offset: 14, position: 1200 }]);
        assert_eq!(index.floor(Offset(113), false), 0);
        assert_eq!(index.floor(Offset(114), false), 1200);
        assert_eq!(index.floor(Offset(900), false), 1200);
    }

    #[test]
    fn entries_have_the_layout_of_kafka() {
        let entry = IndexEntry { relative_offset: 0x0102_0304, position: 0x0506_0708 };
        assert_eq!(entry.to_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(IndexEntry::from_bytes(entry.to_bytes()), entry);
    }
}
