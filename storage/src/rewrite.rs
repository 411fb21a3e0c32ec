//! What a recovery has read and checked is written again, at its place, and flushed.
//!
//! A drive shows what it has in its cache. After a flush that failed it may show bytes that no later flush makes durable, and a process that
//! is killed then takes the knowledge of it along. Only a new write puts such bytes under the next flush. The bytes written are the
//! ones that were checked: they aren't read a second time.

use std::collections::VecDeque;
use std::io;

use runtime::local::{OnceReceiver, once};
use runtime::{ChunkSlice, Durability, Env, File};
use smallvec::SmallVec;

use crate::blocks::{in_file, in_memory};
use crate::file::SegmentFile;
use crate::readahead::Stream;

/// Writes under way at once; each holds what was read in one piece.
const WRITES_MAX: usize = 4;

/// Writes again what a scan of a segment has passed. Dropped early, writes under way end by themselves: they change nothing.
pub(crate) struct Rewriter<E: Env> {
    env: E,
    file: SegmentFile<E>,
    under_way: VecDeque<OnceReceiver<io::Result<()>>>,
}

impl<E: Env> Rewriter<E> {
    pub(crate) fn new(env: &E, file: &SegmentFile<E>) -> Rewriter<E> {
        Rewriter { env: env.clone(), file: file.clone(), under_way: VecDeque::new() }
    }

    /// Writes what the stream gives back when it goes on to `position`: all from the block at `from` on.
    pub(crate) async fn pass(&mut self, stream: &Stream<E>, from: u64, position: u64) -> io::Result<()> {
        let passed: SmallVec<[(u64, ChunkSlice); 2]> = stream.passed(position).collect();
        for (start, slice) in passed {
            let skipped = in_memory(from.saturating_sub(start)).min(slice.len());
            if skipped < slice.len() {
                self.write(slice.slice(skipped..slice.len()), start.max(from)).await?;
            }
        }
        Ok(())
    }

    /// Writes what the stream still has of `[from, to)`, whole blocks.
    pub(crate) async fn rest(&mut self, stream: &Stream<E>, from: u64, to: u64) -> io::Result<()> {
        let mut position = from.max(stream.buffered_from());
        let parts: SmallVec<[ChunkSlice; 2]> = stream.parts(position, to).collect();
        for part in parts {
            let length = in_file(part.len());
            self.write(part, position).await?;
            position += length;
        }
        Ok(())
    }

    /// Ends once all of it is on stable storage.
    pub(crate) async fn finish(mut self) -> io::Result<()> {
        self.settle(0).await?;
        self.file.flush().await
    }

    async fn write(&mut self, data: ChunkSlice, position: u64) -> io::Result<()> {
        self.settle(WRITES_MAX - 1).await?;
        let (sender, receiver) = once();
        let file = self.file.file.clone();
        self.env.spawn(async move { sender.send(file.write(data, position, Durability::Written).await) });
        self.under_way.push_back(receiver);
        Ok(())
    }

    /// Waits until at most so many writes are under way.
    async fn settle(&mut self, writes_max: usize) -> io::Result<()> {
        while self.under_way.len() > writes_max {
            let Some(first) = self.under_way.pop_front() else { break };
            first.await.unwrap_or_else(|| Err(io::Error::other("the write was given up")))?;
        }
        Ok(())
    }
}
