//! Looking an offset up in the index file of a sealed segment, one block at a time: no page fault, little memory.

use std::io;

use protocol::ids::Offset;
use protocol::limits::BLOCK_BYTES;
use runtime::{Env, File};

use crate::blocks::{BLOCK, in_file, in_memory};
use crate::cache::ChunkCache;
use crate::file::DiskFile;
use crate::index::{INDEX_ENTRY_BYTES, IndexEntry, floor_of};

/// Where a scan for `offset` starts in the segment at `base`. A missing or empty index means: at the segment's start.
/// The error is `None` if the region has no memory.
pub(crate) async fn search_index_file<E: Env>(
    file: &DiskFile<E>,
    cache: &ChunkCache,
    base: Offset,
    offset: Offset,
    one_behind: bool,
) -> Result<u64, Option<io::Error>> {
    let length = match file.length().await {
        Ok(length) => length,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(Some(error)),
    };
    let relative = offset.0.saturating_sub(base.0);
    let (mut low, mut high) = (0, length.div_ceil(BLOCK));
    let mut floor = Vec::new();
    // Invariant: the blocks before `low` start at or below the offset, those from `high` on start above it.
    while low < high {
        let middle = low.midpoint(high);
        let entries = read_entries::<E>(file, cache, middle, length).await?;
        if entries.first().is_some_and(|entry| i64::from(entry.relative_offset) <= relative) {
            floor = entries;
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(floor_of(&floor, base, offset, one_behind))
}

async fn read_entries<E: Env>(
    file: &DiskFile<E>,
    cache: &ChunkCache,
    block: u64,
    length: u64,
) -> Result<Vec<IndexEntry>, Option<io::Error>> {
    let chunk = cache.take(BLOCK_BYTES).ok_or(None)?;
    let (result, chunk) = file.read(chunk, block * BLOCK, BLOCK_BYTES).await;
    result.map_err(Some)?;
    let valid = in_memory((length - block * BLOCK).min(in_file(chunk.filled())));
    let (entries, _) = chunk.as_bytes()[..valid].as_chunks::<INDEX_ENTRY_BYTES>();
    Ok(entries.iter().map(|entry| IndexEntry::from_bytes(*entry)).collect())
}
