//! What recovery does where a log ends: what lies behind is looked at, removed and zeroed, and the last block is written again.
//!
//! Called by `recovery` only, before the log is given out. A flush follows all of it.

use std::io;
use std::rc::Rc;

use protocol::ids::Offset;
use protocol::limits::BLOCK_BYTES;
use runtime::{Canary, Disk, Durability, Env, File};

use super::Recovery;
use crate::blocks::{BLOCK, block_ceiling, block_floor, in_file, in_memory};
use crate::disk_read::Scan;
use crate::error::{ReadError, RecoveryError};
use crate::readahead::READ_BYTES_MAX;
use crate::segment::{OpenSegment, segment_path};

impl<E: Env> Recovery<'_, E> {
    /// Removes segments, the last first, durably.
    pub(super) async fn remove_segments(&self, segments: &[(Offset, u64)]) -> Result<(), RecoveryError> {
        let disk = self.env.disk();
        for (base, _) in segments.iter().rev() {
            for extension in ["manifest", "timeindex", "index", "log"] {
                let path = segment_path(&self.directory, *base, extension);
                match disk.remove_file(&path).await {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Self::io_error(&path)(error)),
                    _ => {}
                }
            }
            disk.sync_directory(&self.directory).await.map_err(Self::io_error(&self.directory))?;
        }
        Ok(())
    }

    /// A segment that was about to be sealed has its exact size already; blocks are written only where the file has them whole.
    pub(super) async fn end_with_a_block(&self, segment: &OpenSegment<E>, bytes: u64) -> Result<(), RecoveryError> {
        if bytes.is_multiple_of(BLOCK) {
            return Ok(());
        }
        segment.file.file.allocate(block_floor(bytes), BLOCK).await.map_err(self.log_error(segment.base))
    }

    /// Writes the last, partial block again, with zeros behind its bytes.
    pub(super) async fn write_partial(&self, segment: &OpenSegment<E>, partial: &[u8]) -> Result<(), RecoveryError> {
        if partial.is_empty() {
            return Ok(());
        }
        let mut block = crate::seal::take_or_wait(self.env, &self.log.cache, BLOCK_BYTES).await;
        block.append(partial);
        let padding = BLOCK_BYTES - partial.len();
        block.writable()[..padding].fill(0);
        block.publish(padding);
        let position = segment.appended - in_file(partial.len());
        segment.file.file.write(block.freeze(), position, Durability::Device).await.map_err(self.log_error(segment.base))
    }

    /// Zeroes what lies behind the segment's end; the flush that follows makes it durable.
    pub(super) async fn clear_behind(&self, segment: &OpenSegment<E>, partial: &[u8]) -> Result<(), RecoveryError> {
        if self.env.canary(Canary::RecoveryWithoutEpochCheck) {
            return Ok(());
        }
        self.write_partial(segment, partial).await?;
        let from = block_ceiling(segment.appended);
        if from < segment.allocated {
            let zeroed = segment.file.file.zero_range(from, segment.allocated - from).await;
            zeroed.map_err(self.log_error(segment.base))?;
        }
        Ok(())
    }
}

/// The bytes of the last block that belong to the log; batches end there, so they have been read and checked.
pub(super) fn partial_block<E: Env>(scan: &Scan<'_, E>, position: u64) -> Box<[u8]> {
    let block = block_floor(position);
    let mut bytes = vec![0; in_memory(position - block)].into_boxed_slice();
    let copied = scan.stream.copy(block, &mut bytes);
    assert!(copied == bytes.len(), "the block of a batch that was just checked is in memory");
    bytes
}

/// Whether anything but zeros lies behind `position`. What was read before it is given back.
pub(super) async fn is_written_behind<E: Env>(scan: &mut Scan<'_, E>, position: u64) -> Result<bool, Rc<io::Error>> {
    let end = scan.stream.source.end;
    let mut from = position;
    while from < end {
        let to = end.min(block_floor(from) + READ_BYTES_MAX);
        scan.stream.advance(scan.stream.next_offset, from);
        let available = fill(scan, from, to).await?;
        if scan.stream.parts(from, available).any(|part| !is_zero(&part)) {
            return Ok(true);
        }
        if available < to {
            // The file has become shorter than it was.
            break;
        }
        from = to;
        scan.env.yield_now().await;
    }
    Ok(false)
}

/// Brings the bytes of `[from, to)` into memory, and waits for memory; how far they go.
async fn fill<E: Env>(scan: &mut Scan<'_, E>, from: u64, to: u64) -> Result<u64, Rc<io::Error>> {
    loop {
        let freed = scan.env.region().freed();
        let seen = freed.count();
        match scan.fill(from, to, to - from).await {
            Ok(available) => return Ok(available),
            Err(ReadError::NoMemory { .. }) => freed.changed(seen).await,
            Err(ReadError::Io { cause, .. }) => return Err(cause),
            Err(error) => unreachable!("reading bytes asks neither for offsets nor for batches: {error}"),
        }
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    let (chunks, rest) = bytes.as_chunks::<64>();
    chunks.iter().all(|chunk| *chunk == [0; 64]) && rest.iter().all(|byte| *byte == 0)
}
