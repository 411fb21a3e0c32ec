//! Looking an offset or a timestamp up in an index file of a sealed segment: a few blocks are read, nothing is mapped.
//!
//! A file is searched in units of whole blocks that hold whole entries: one block of 8-byte entries, three of 12-byte ones.

use std::io;

use protocol::ids::{Offset, Timestamp};
use runtime::{Env, File};

use crate::blocks::{BLOCK, block_ceiling, in_file, in_memory};
use crate::cache::ChunkCache;
use crate::file::DiskFile;
use crate::index::{INDEX_ENTRY_BYTES, IndexEntry, floor_of};
use crate::time_index::{self, TIME_ENTRY_BYTES, TimeEntry};

/// An index file and what is needed to read it.
pub(crate) struct IndexFile<'a, E: Env> {
    pub(crate) file: &'a DiskFile<E>,
    pub(crate) cache: &'a ChunkCache,
    /// Base offset of the segment.
    pub(crate) base: Offset,
}

/// Why a search failed.
pub(crate) enum SearchError {
    /// The region has no memory.
    NoMemory,
    /// The disk failed.
    Io(io::Error),
}

impl<E: Env> IndexFile<'_, E> {
    /// Where a scan for `offset` starts, by an offset index. A missing or empty one means: at the segment's start.
    pub(crate) async fn position_of(&self, offset: Offset, one_behind: bool) -> Result<u64, SearchError> {
        let relative = offset.0.saturating_sub(self.base.0);
        let at_or_below = |bytes: [u8; INDEX_ENTRY_BYTES]| i64::from(IndexEntry::from_bytes(bytes).relative_offset) <= relative;
        let unit: Vec<IndexEntry> = self.unit_of(at_or_below).await?.into_iter().map(IndexEntry::from_bytes).collect();
        Ok(floor_of(&unit, self.base, offset, one_behind))
    }

    /// The offset where a scan for `timestamp` starts, by a time index.
    pub(crate) async fn offset_of(&self, timestamp: Timestamp) -> Result<Offset, SearchError> {
        let at_or_below = |bytes: [u8; TIME_ENTRY_BYTES]| TimeEntry::from_bytes(bytes).timestamp <= timestamp;
        let unit: Vec<TimeEntry> = self.unit_of(at_or_below).await?.into_iter().map(TimeEntry::from_bytes).collect();
        Ok(time_index::floor_of(&unit, self.base, timestamp))
    }

    /// The last unit whose first entry is at or below what is looked for; empty if there is none.
    async fn unit_of<const N: usize>(&self, at_or_below: impl Fn([u8; N]) -> bool) -> Result<Vec<[u8; N]>, SearchError> {
        let length = match self.file.length().await {
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(SearchError::Io(error)),
        };
        // The smallest multiple of the block that holds whole entries.
        let unit = if BLOCK.is_multiple_of(in_file(N)) { BLOCK } else { 3 * BLOCK };
        let (mut low, mut high) = (0, length.div_ceil(unit));
        let mut found = Vec::new();
        // The units before `low` start at or below what is looked for, those from `high` on start above it.
        while low < high {
            let middle = low.midpoint(high);
            let entries = self.read_unit::<N>(middle * unit, unit.min(length - middle * unit)).await?;
            if entries.first().is_some_and(|first| at_or_below(*first)) {
                found = entries;
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(found)
    }

    async fn read_unit<const N: usize>(&self, position: u64, length: u64) -> Result<Vec<[u8; N]>, SearchError> {
        let bytes = in_memory(block_ceiling(length));
        let chunk = self.cache.take(bytes).ok_or(SearchError::NoMemory)?;
        let (result, chunk) = self.file.read(chunk, position, bytes).await;
        result.map_err(SearchError::Io)?;
        let valid = in_memory(length).min(chunk.filled());
        Ok(chunk.as_bytes()[..valid].as_chunks::<N>().0.to_vec())
    }
}

const _: () = assert!((3 * BLOCK).is_multiple_of(TIME_ENTRY_BYTES as u64));
