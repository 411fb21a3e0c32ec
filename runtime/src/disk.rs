//! The disk as a core sees it: direct, aligned file I/O on owned chunks, and a few operations on directories.
//!
//! Buffers are owned by the operation from submission to completion. Dropping a future abandons its result; the
//! operation still completes and only then frees what it holds.
//!
//! An error that may be a flush's (of a file or a directory, also as a part of another operation) is marked: see [`is_flush_error`].

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};

use crate::uring::memory::{Chunk, ChunkSlice};

/// What a completed write promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The device has the bytes; its volatile cache may lose them at a power cut, until a flush.
    Written,
    /// The bytes are on stable storage (O_DSYNC semantics for this one write).
    Device,
}

/// What is behind an [`io::Error`] that may be a flush's.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct FlushError(String);

/// Marks the error of a flush: what was written before, to any file of its drive, may be lost, whatever later flushes say. It has no kind, so
/// that it is never taken for a lack of space, after which one could try again.
#[must_use]
pub fn flush_error(error: &io::Error) -> io::Error {
    io::Error::other(FlushError(format!("flush: {error}")))
}

/// Marks the error of a durable write, which doesn't say whether its bytes or its flush failed.
#[must_use]
pub fn durable_write_error(error: &io::Error) -> io::Error {
    io::Error::other(FlushError(format!("durable write: {error}")))
}

/// Whether the error may be a flush's.
#[must_use]
pub fn is_flush_error(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<FlushError>())
}

/// Whether nothing but space was missing, and nothing flushed in vain.
#[must_use]
pub fn is_lack_of_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The same error in other words.
#[must_use]
pub fn reworded(error: &io::Error, words: String) -> io::Error {
    if is_flush_error(error) { io::Error::other(FlushError(words)) } else { io::Error::new(error.kind(), words) }
}

/// Space of the file system below a path, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Size of the file system.
    pub total: u64,
    /// What this process may still allocate.
    pub available: u64,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirectoryEntry {
    /// File name, without the directory.
    pub name: String,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Size in bytes (0 for directories).
    pub length: u64,
}

/// The disks of a host. Paths name the disk: each data directory lies on one drive.
pub trait Disk: Clone + 'static {
    /// A file for direct I/O.
    type File: File;

    /// A handle on the file at `path`; nothing is opened yet. The descriptor is opened when an operation first needs it,
    /// and may be closed and reopened between operations (bounded LRU).
    /// With `create`, the first operation creates the file; the caller makes its name durable with [`Disk::sync_directory`].
    fn file(&self, path: PathBuf, create: bool) -> Self::File;

    /// Reads a small file whole.
    ///
    /// # Errors
    /// `FileTooLarge` if it has more than `limit` bytes, and the system's own errors.
    fn read_file(&self, path: &Path, limit: usize) -> impl Future<Output = io::Result<Vec<u8>>>;
    /// Replaces a small file atomically and durably: a temporary file is written and synced, renamed over `path`, and
    /// the directory is synced. After a crash the file has its old content or `bytes`, never a mixture.
    fn replace_file(&self, path: &Path, bytes: Vec<u8>) -> impl Future<Output = io::Result<()>>;
    /// Overwrites a small existing file in place and syncs it, without a new name (A/B checkpoints).
    /// Creates it (durably) if absent.
    fn overwrite_file(&self, path: &Path, bytes: Vec<u8>) -> impl Future<Output = io::Result<()>>;
    /// Removes a file. Not durable until the directory is synced. Frees large files in bounded steps, off the core.
    fn remove_file(&self, path: &Path) -> impl Future<Output = io::Result<()>>;
    /// Removes an empty directory. Not durable until its parent is synced.
    fn remove_directory(&self, path: &Path) -> impl Future<Output = io::Result<()>>;
    /// Renames within one file system. Not durable until the directories are synced.
    fn rename(&self, from: &Path, to: &Path) -> impl Future<Output = io::Result<()>>;
    /// Creates a directory and its missing parents, durably.
    fn create_directory(&self, path: &Path) -> impl Future<Output = io::Result<()>>;
    /// The entries of a directory, sorted by name.
    fn list(&self, path: &Path) -> impl Future<Output = io::Result<Vec<DirectoryEntry>>>;
    /// Makes creations, removals and renames in `path` durable.
    fn sync_directory(&self, path: &Path) -> impl Future<Output = io::Result<()>>;
    /// Takes an exclusive advisory lock on the file at `path` (created if absent), writes `holder` into it, and holds it
    /// until the core stops, at the latest until the process ends.
    ///
    /// # Errors
    /// `WouldBlock` with the holder's text in the message if another process holds it.
    fn lock(&self, path: &Path, holder: String) -> impl Future<Output = io::Result<()>>;
    /// Space of the file system below `path`.
    fn space(&self, path: &Path) -> impl Future<Output = io::Result<Space>>;
}

/// A file for direct I/O: positions, lengths and memory are multiples of the block (4096 bytes).
///
/// A handle: clones are the same file. No operation retries an error. Short writes are continued, EINTR and EAGAIN are
/// submitted again; any other error is final.
pub trait File: Clone + 'static {
    /// The path given to [`Disk::file`].
    fn path(&self) -> &Path;
    /// Writes the whole of `data` at `position`. Never extends the file: the range is allocated before.
    fn write(&self, data: ChunkSlice, position: u64, durability: Durability) -> impl Future<Output = io::Result<()>>;
    /// Reads up to `length` bytes at `position` behind what `into` holds already; the chunk comes back with the bytes
    /// published, and the count says how many (fewer only at the end of the file).
    fn read(&self, into: Chunk, position: u64, length: usize) -> impl Future<Output = (io::Result<usize>, Chunk)>;
    /// Flushes data written before, and the metadata needed to read it back, to stable storage (fdatasync).
    fn flush(&self) -> impl Future<Output = io::Result<()>>;
    /// Reserves blocks for the range, unwritten (they read as zeros), and extends the file's size over it (fallocate mode 0).
    fn allocate(&self, position: u64, length: u64) -> impl Future<Output = io::Result<()>>;
    /// Makes the range read as zeros, keeping it allocated and unwritten (FALLOC_FL_ZERO_RANGE, or punch and allocate).
    fn zero_range(&self, position: u64, length: u64) -> impl Future<Output = io::Result<()>>;
    /// Sets the exact size (any byte), freeing what lies behind.
    fn set_length(&self, length: u64) -> impl Future<Output = io::Result<()>>;
    /// Size in bytes.
    fn length(&self) -> impl Future<Output = io::Result<u64>>;
    /// Closes the descriptor once no operation is in flight; a later operation opens it again.
    fn close(&self);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_a_flush_is_never_a_lack_of_space() {
        let full = io::Error::from_raw_os_error(libc::ENOSPC);
        assert!(
            is_lack_of_space(&full) && is_lack_of_space(&reworded(&full, "/data: full".to_owned())) && !is_flush_error(&full)
        );
        for marked in [flush_error(&full), durable_write_error(&full)] {
            let again = reworded(&marked, format!("/data: {marked}"));
            for error in [&marked, &again] {
                assert!(is_flush_error(error) && !is_lack_of_space(error), "{error}");
            }
            assert!(again.to_string().starts_with("/data: ") && again.to_string().contains("No space left"), "{again}");
        }
    }
}
