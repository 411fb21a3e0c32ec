//! A range of a file is written again, as it is read, and flushed.
//!
//! A drive shows what it has in its cache. After a flush that failed it may show bytes that no later flush makes durable, and a process that
//! is killed then takes the knowledge of it along. Only a new write puts such bytes under the next flush.

use std::io;

use futures_lite::future::zip;
use runtime::{Durability, Env, File};

use crate::blocks::{BLOCK, block_ceiling, in_memory};
use crate::cache::ChunkCache;
use crate::file::SegmentFile;
use crate::readahead::READ_BYTES_MAX;
use crate::seal::take_or_wait;

/// Pieces under way at once.
const LANES: u64 = 4;

/// Writes the blocks of `[from, to)` again, each at its place, and flushes. The file has them whole, and nobody else writes there meanwhile.
///
/// # Errors
/// What the disk says; the range is then as durable as it was, at most.
pub(crate) async fn write_again<E: Env>(
    env: &E,
    cache: &ChunkCache,
    file: &SegmentFile<E>,
    from: u64,
    to: u64,
) -> io::Result<()> {
    let range = Range { env, cache, file, from, to };
    let ((one, two), (three, four)) = zip(zip(range.lane(0), range.lane(1)), zip(range.lane(2), range.lane(3))).await;
    one.and(two).and(three).and(four)?;
    file.flush().await
}

struct Range<'a, E: Env> {
    env: &'a E,
    cache: &'a ChunkCache,
    file: &'a SegmentFile<E>,
    from: u64,
    to: u64,
}

impl<E: Env> Range<'_, E> {
    /// Every [`LANES`]th piece.
    async fn lane(&self, lane: u64) -> io::Result<()> {
        let mut position = self.from + lane * READ_BYTES_MAX;
        while position < self.to {
            let length = in_memory(READ_BYTES_MAX.min(block_ceiling(self.to) - position));
            let chunk = take_or_wait(self.env, self.cache, length).await;
            let (result, chunk) = self.file.file.read(chunk, position, length).await;
            if result? < length {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file got shorter"));
            }
            self.file.file.write(chunk.freeze(), position, Durability::Written).await?;
            position += LANES * READ_BYTES_MAX;
        }
        Ok(())
    }
}

const _: () = assert!(READ_BYTES_MAX.is_multiple_of(BLOCK));
