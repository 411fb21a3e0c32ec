//! The log on disk: segments, appends, reads, indexes, recovery.
//!
//! A [`Log`] is the synchronous state of one replica's log; whoever owns it decides with `begin_*`, awaits the plan, and
//! settles with `finish_*`. A [`Directory`] is one data directory with the logs of one core in it; other cores of the process attach to
//! the same one. Nothing here knows requests, acknowledgements or topics' names.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod append;
mod blocks;
mod bytes;
mod cache;
mod checkpoint;
mod config;
mod directory;
mod disk_read;
mod error;
mod failure;
mod file;
pub mod flush;
mod header;
mod index;
mod index_file;
pub mod inspect;
mod log;
mod lookup;
mod maintenance;
mod manifest;
mod metrics;
mod piece;
mod producers;
mod read;
mod readahead;
mod recovery;
mod retention;
mod rewrite;
mod seal;
mod segment;
mod space;
mod superblock;
mod time_index;
mod window;
mod write;

pub use append::{Appended, Stamp};
pub use cache::ChunkCache;
pub use checkpoint::CheckpointEntry;
pub use config::{FlushPolicy, LogConfig, StorageConfig};
pub use directory::{Directory, OpenError, OpenRequest, SharedDirectory};
pub use disk_read::{DiskRead, DiskReadOutcome};
pub use error::{AppendError, Fault, Impossible, LogFailure, ReadError, RecoveryError};
pub use header::{BATCH_HEADER_BYTES, BatchHeader, HeaderFault};
pub use log::{Log, Progress};
pub use lookup::{LookupOutcome, LookupPlan, LookupStep};
pub use maintenance::{FlushOutcome, FlushPlan, MaintenanceOutcome, MaintenancePlan};
pub use metrics::{Metrics, MetricsSnapshot};
pub use producers::{ProducerReplay, ReplayedBatch};
pub use read::{ReadRequest, ReadResult, ReadStep};
pub use recovery::{Cut, Recovered, RecoveryProgress};
pub use retention::{RemovalOutcome, RemovalPlan};
pub use superblock::{FORMAT_VERSION, Seen, Superblock, SuperblockError, look};
pub use write::{WriteOutcome, WritePlan};
