//! Files of a core: direct I/O through the ring, on a descriptor from the bounded set.
//!
//! Called through the trait [`File`] by storage. Invariants: every operation pins its descriptor and owns its memory until its
//! completion; nothing is retried after an error (the state machine in [`super::operation`] continues short transfers only).

use std::future::Future;
use std::io;
use std::path::Path;
use std::rc::Rc;

use protocol::limits::BLOCK_BYTES;

use super::descriptors::{Descriptors, FileState};
use super::memory::{Chunk, ChunkSlice};
use super::operation::{Operation, Read, Write};
use super::pool::Pool;
use super::ring::Ring;
use crate::disk::{Durability, File, durable_write_error, flush_error};

/// A file of the ring. Clones are the same file; the descriptor is closed with the last of them.
#[derive(Clone)]
pub struct RingFile {
    state: Rc<FileState>,
    ring: Ring,
    descriptors: Descriptors,
    pool: Pool,
}

impl RingFile {
    pub(super) fn new(state: FileState, ring: &Ring, descriptors: &Descriptors, pool: &Pool) -> RingFile {
        RingFile { state: Rc::new(state), ring: ring.clone(), descriptors: descriptors.clone(), pool: pool.clone() }
    }

    async fn allocate_range(&self, mode: i32, position: u64, length: u64) -> io::Result<()> {
        let pin = self.descriptors.pin(&self.state, &self.ring).await?;
        self.ring.start(Operation::Allocate { pin, mode, position, length }).await.result.map(drop)
    }

    /// Runs a blocking call on the descriptor off the core; the descriptor stays open until the call has ended, even if
    /// nobody waits any more.
    async fn blocking<T: Send + 'static>(
        &self,
        call: impl FnOnce(std::os::fd::BorrowedFd<'_>) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let pin = self.descriptors.pin(&self.state, &self.ring).await?;
        let number = pin.as_raw_fd();
        let work = move || {
            // SAFETY: the pool keeps the pin until this has returned, so the number names this open file.
            call(unsafe { std::os::fd::BorrowedFd::borrow_raw(number) })
        };
        self.pool.run_keeping(pin, work).await
    }
}

impl File for RingFile {
    fn path(&self) -> &Path {
        &self.state.path
    }

    async fn write(&self, data: ChunkSlice, position: u64, durability: Durability) -> io::Result<()> {
        assert_aligned(data.offset_in_chunk(), data.len(), position);
        if data.is_empty() {
            return Ok(());
        }
        let pin = self.descriptors.pin(&self.state, &self.ring).await?;
        let durable = durability == Durability::Device;
        let write = Write { pin, data, position, durable, done: 0 };
        let result = self.ring.start(Operation::Write(write)).await.result.map(drop);
        if durable { result.map_err(|error| durable_write_error(&error)) } else { result }
    }

    async fn read(&self, into: Chunk, position: u64, length: usize) -> (io::Result<usize>, Chunk) {
        assert_aligned(into.filled(), length, position);
        assert!(length <= into.remaining(), "{length} bytes are read into {} free ones", into.remaining());
        if length == 0 {
            return (Ok(0), into);
        }
        let pin = match self.descriptors.pin(&self.state, &self.ring).await {
            Ok(pin) => pin,
            Err(error) => return (Err(error), into),
        };
        let outcome = self.ring.start(Operation::Read(Read { pin, chunk: into, position, length, done: 0 })).await;
        match outcome.operation {
            Some(Operation::Read(read)) => (outcome.result, read.chunk),
            _ => unreachable!("a read gives its chunk back"),
        }
    }

    async fn flush(&self) -> io::Result<()> {
        let pin = self.descriptors.pin(&self.state, &self.ring).await?;
        self.ring.start(Operation::Flush { pin }).await.result.map(drop).map_err(|error| flush_error(&error))
    }

    fn allocate(&self, position: u64, length: u64) -> impl Future<Output = io::Result<()>> {
        self.allocate_range(0, position, length)
    }

    async fn zero_range(&self, position: u64, length: u64) -> io::Result<()> {
        match self.allocate_range(libc::FALLOC_FL_ZERO_RANGE, position, length).await {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                self.allocate_range(punch, position, length).await?;
                self.allocate_range(0, position, length).await
            }
            result => result,
        }
    }

    fn set_length(&self, length: u64) -> impl Future<Output = io::Result<()>> {
        self.blocking(move |descriptor| Ok(rustix::fs::ftruncate(descriptor, length)?))
    }

    async fn length(&self) -> io::Result<u64> {
        let pin = self.descriptors.pin(&self.state, &self.ring).await?;
        // A look at the inode that the descriptor keeps in memory: no I/O, well under a microsecond.
        // SAFETY: the pin keeps the number open for the length of this call.
        let descriptor = unsafe { std::os::fd::BorrowedFd::borrow_raw(pin.as_raw_fd()) };
        let status = rustix::fs::fstat(descriptor)?;
        u64::try_from(status.st_size).map_err(|_| io::Error::other(format!("a file of {} bytes", status.st_size)))
    }

    fn close(&self) {
        self.state.close();
    }
}

fn assert_aligned(in_chunk: usize, length: usize, position: u64) {
    let block = u64::try_from(BLOCK_BYTES).expect("a block is small");
    assert!(
        in_chunk.is_multiple_of(BLOCK_BYTES) && length.is_multiple_of(BLOCK_BYTES) && position.is_multiple_of(block),
        "direct I/O of {length} bytes at {position}, from {in_chunk} in the chunk, is not in blocks of {BLOCK_BYTES}"
    );
}
