//! The time index of one segment: how the largest timestamp so far grew, at the same places as the offset index.
//!
//! On disk it has Kafka's layout: entries of 12 bytes, timestamp `i64` and relative offset `u32`, both big endian, both
//! ascending. An entry says that no record before the batch that ends at its offset has a timestamp as large as its own; so the greatest
//! entry at or below a timestamp is a safe place to start a scan from, whatever order the timestamps came in.

use protocol::ids::{Offset, Timestamp};

/// Bytes of an entry on disk.
pub(crate) const TIME_ENTRY_BYTES: usize = 12;

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeEntry {
    /// The largest timestamp so far.
    pub(crate) timestamp: Timestamp,
    /// Last offset of the batch that brought it, from the segment's base offset.
    pub(crate) relative_offset: u32,
}

impl TimeEntry {
    pub(crate) fn to_bytes(self) -> [u8; TIME_ENTRY_BYTES] {
        let mut bytes = [0; TIME_ENTRY_BYTES];
        bytes[..8].copy_from_slice(&self.timestamp.0.to_be_bytes());
        bytes[8..].copy_from_slice(&self.relative_offset.to_be_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: [u8; TIME_ENTRY_BYTES]) -> TimeEntry {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
        TimeEntry {
            timestamp: Timestamp(i64::from_be_bytes([a, b, c, d, e, f, g, h])),
            relative_offset: u32::from_be_bytes([i, j, k, l]),
        }
    }
}

/// The time index of a segment that is still appended to, in memory.
#[derive(Clone, Debug)]
pub(crate) struct TimeIndex {
    base: Offset,
    max: Timestamp,
    max_offset: Offset,
    entries: Vec<TimeEntry>,
}

impl TimeIndex {
    pub(crate) fn new(base: Offset) -> TimeIndex {
        TimeIndex { base, max: Timestamp::NONE, max_offset: base, entries: Vec::new() }
    }

    /// Notes a batch's largest timestamp.
    pub(crate) fn note(&mut self, timestamp: Timestamp, last_offset: Offset) {
        if timestamp > self.max {
            self.max = timestamp;
            self.max_offset = last_offset;
        }
    }

    /// Adds an entry for the largest timestamp so far, if it has grown since the last one.
    pub(crate) fn add_entry(&mut self) {
        let last = self.entries.last().map_or(Timestamp::NONE, |entry| entry.timestamp);
        if self.max > last {
            let relative_offset =
                u32::try_from(self.max_offset.0 - self.base.0).expect("a segment rolls before its offsets pass 31 bits");
            self.entries.push(TimeEntry { timestamp: self.max, relative_offset });
        }
    }

    /// Takes over entries that were read back, and the largest timestamp with its offset.
    pub(crate) fn restore(&mut self, entries: Vec<TimeEntry>, max: Timestamp, max_offset: Offset) {
        self.entries = entries;
        self.max = max;
        self.max_offset = max_offset;
    }

    /// The largest timestamp, or none.
    pub(crate) fn max(&self) -> Timestamp {
        self.max
    }

    /// Last offset of the batch with the largest timestamp.
    pub(crate) fn max_offset(&self) -> Offset {
        self.max_offset
    }

    pub(crate) fn entries(&self) -> &[TimeEntry] {
        &self.entries
    }

    /// The offset from which on a scan for `timestamp` finds the first record at or after it.
    pub(crate) fn floor(&self, timestamp: Timestamp) -> Offset {
        floor_of(&self.entries, self.base, timestamp)
    }
}

/// The offset where a scan for `timestamp` starts, by these entries of the segment at `base`.
pub(crate) fn floor_of(entries: &[TimeEntry], base: Offset, timestamp: Timestamp) -> Offset {
    let above = entries.partition_point(|entry| entry.timestamp <= timestamp);
    above.checked_sub(1).map_or(base, |index| base.plus(entries[index].relative_offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_rise_although_timestamps_do_not() {
        let mut index = TimeIndex::new(Offset(50));
        for (timestamp, last) in [(100, 52), (40, 55), (90, 58)] {
            index.note(Timestamp(timestamp), Offset(last));
            index.add_entry();
        }
        index.note(Timestamp(101), Offset(60));
        index.add_entry();
        let seen: Vec<(i64, u32)> = index.entries().iter().map(|entry| (entry.timestamp.0, entry.relative_offset)).collect();
        assert_eq!(seen, [(100, 2), (101, 10)]);
        assert_eq!(index.floor(Timestamp(99)), Offset(50));
        assert_eq!(index.floor(Timestamp(100)), Offset(52));
        assert_eq!(index.floor(Timestamp(500)), Offset(60));
    }

    #[test]
    fn entries_have_the_layout_of_kafka() {
        let entry = TimeEntry { timestamp: Timestamp(0x0102_0304_0506_0708), relative_offset: 0x090a_0b0c };
        assert_eq!(entry.to_bytes(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        assert_eq!(TimeEntry::from_bytes(entry.to_bytes()), entry);
    }
}
