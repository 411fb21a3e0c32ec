//! Why appends, reads and logs fail, with the numbers.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;

use protocol::ids::{Offset, TopicPartition};

/// Why an append was refused. Nothing has changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AppendError {
    /// The region has no piece of memory that the batch fits into.
    #[error("no memory for a batch of {bytes} bytes: {free} bytes of the region are free")]
    NoMemory {
        /// Bytes asked for.
        bytes: usize,
        /// Bytes free, in pieces.
        free: usize,
    },
    /// Too much is appended and not yet written.
    #[error("{unwritten} bytes wait to be written, {batch} more would pass {allowed}")]
    TooManyUnwritten {
        /// Bytes that wait.
        unwritten: usize,
        /// Bytes of the batch.
        batch: usize,
        /// Bytes allowed.
        allowed: usize,
    },
    /// Space for the batch, or the next segment, isn't allocated yet; maintenance does that.
    #[error("space for {bytes} bytes at position {position} is not allocated yet")]
    NotReady {
        /// Bytes of the batch.
        bytes: usize,
        /// Position in the segment where they would go.
        position: u64,
    },
    /// The batch is larger than any batch may be.
    #[error("a batch of {bytes} bytes is larger than {allowed}")]
    TooLarge {
        /// Bytes of the batch.
        bytes: usize,
        /// Bytes allowed.
        allowed: usize,
    },
    /// A write error or a failed flush has stopped the log.
    #[error(transparent)]
    Stopped(LogFailure),
}

/// What stopped a log for good: nothing is appended to it, and nothing acknowledged, until recovery has read it again.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the log {log} stopped: {operation} at position {position} of segment {segment}: {cause}")]
pub struct LogFailure {
    /// The log.
    pub log: TopicPartition,
    /// What failed.
    pub operation: &'static str,
    /// Base offset of the segment.
    pub segment: Offset,
    /// Where in the segment.
    pub position: u64,
    /// What the system said.
    pub cause: Rc<io::Error>,
}

/// Why a read failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReadError {
    /// The offset isn't in the log.
    #[error("offset {asked} is not between {log_start} and {log_end}")]
    OutOfRange {
        /// The offset asked for.
        asked: Offset,
        /// Where the log starts.
        log_start: Offset,
        /// Where the log ends.
        log_end: Offset,
    },
    /// The region has no memory to read into.
    #[error("no memory to read {bytes} bytes into")]
    NoMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// What came back from the disk isn't what was appended.
    #[error("segment {segment} is damaged at byte {position}: {fault}")]
    Corrupt {
        /// Base offset of the segment.
        segment: Offset,
        /// The first byte of the bad batch.
        position: u64,
        /// What is wrong there.
        fault: Fault,
    },
    /// The disk failed.
    #[error("reading segment {segment} at byte {position}: {cause}")]
    Io {
        /// Base offset of the segment.
        segment: Offset,
        /// Where.
        position: u64,
        /// What the system said.
        cause: Rc<io::Error>,
    },
}

/// What is wrong with bytes that should be a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The header can't be one.
    Header(crate::header::HeaderFault),
    /// The CRC is another.
    Crc {
        /// In the header.
        stored: u32,
        /// Over the bytes.
        computed: u32,
    },
    /// The batch has another base offset than the one that follows its predecessor.
    Offset {
        /// What had to follow.
        expected: Offset,
        /// What is there.
        found: Offset,
    },
    /// The leader epoch is lower than the predecessor's.
    Epoch {
        /// The predecessor's.
        last: protocol::ids::LeaderEpoch,
        /// This batch's.
        found: protocol::ids::LeaderEpoch,
    },
    /// The segment ends inside the batch.
    Truncated {
        /// Bytes that the batch has.
        size: usize,
        /// Bytes that are there.
        available: u64,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Header(fault) => write!(f, "{fault}"),
            Fault::Crc { stored, computed } => write!(f, "CRC {stored:08x} is stored, the bytes have {computed:08x}"),
            Fault::Offset { expected, found } => write!(f, "base offset {found} where {expected} must follow"),
            Fault::Epoch { last, found } => write!(f, "leader epoch {found} follows {last}"),
            Fault::Truncated { size, available } => write!(f, "a batch of {size} bytes with {available} left"),
        }
    }
}

/// A number that no log has: a checksum says that it was written like this, and not that it can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is {found}, and can be {allowed} at most")]
pub struct Impossible {
    /// Which number.
    pub what: &'static str,
    /// What it is.
    pub found: i64,
    /// What it can be at most.
    pub allowed: i64,
}

/// Why a log can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// It isn't here.
    #[error("there is no log {log} in {directory}")]
    Missing {
        /// The log.
        log: TopicPartition,
        /// The data directory.
        directory: PathBuf,
    },
    /// A segment is missing.
    #[error("{directory}: a segment is missing: offset {expected} must follow, the next that is known is {found}")]
    Gap {
        /// The log's directory.
        directory: PathBuf,
        /// The offset that must follow.
        expected: Offset,
        /// The next base offset that is there, or the end that a checkpoint vouches for.
        found: Offset,
    },
    /// Bytes that were on stable storage, and vouched for, have changed.
    #[error("{path} is damaged at byte {position}, which a checkpoint or a seal vouches for: {fault}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        position: u64,
        /// What is wrong there.
        fault: Fault,
    },
    /// A snapshot of the log's idempotent producers that this version can't read.
    #[error("the producers of the log in {path}: {reason}")]
    Producers {
        /// The file, or the directory whose last manifest has it.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A number in it can't be.
    #[error("{path} at byte {position}: {number}")]
    Impossible {
        /// The file.
        path: PathBuf,
        /// Where.
        position: u64,
        /// The number.
        number: Impossible,
    },
    /// A file that this version can't read.
    #[error("{path}: {reason}")]
    Manifest {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The disk failed.
    #[error("{path}: {cause}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        cause: Rc<io::Error>,
    },
}
