//! One core: its partitions, their waiters, and the joining of storage and cluster.
//!
//! [`Shard`] is the handle that a core's request handlers use. Decisions are synchronous (`partition`); tasks execute plans (`writer`,
//! `maintenance`, `fetch`) and settle them.
#![forbid(unsafe_code)]

mod clock;
mod delete_records;
mod fetch;
mod lifecycle;
mod list_offsets;
mod maintenance;
mod metrics;
mod partition;
mod produce;
mod producers;
mod purgatory;
mod shard;
mod signal;
mod tickets;
mod writer;

pub use delete_records::DeleteRecordsError;
pub use fetch::{FetchError, FetchPartition, FetchRequest, FetchResult, Fetched};
pub use lifecycle::{OpenPartitionError, OpenedPartition, PartitionPlace, StopReport};
pub use metrics::ShardMetrics;
pub use partition::Bounds;
pub use produce::{ProduceError, ProduceRequest};
pub use shard::{PartitionDescription, Shard};
pub use tickets::{Produced, Ticket};
