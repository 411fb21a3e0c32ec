//! Produce, on the owner core: from a batch to its ticket.
//!
//! The broker's handler of a produce request calls [`Shard::produce`] once per batch, in the order of the request, with the batch as
//! the client sent it: here it is checked against its topic's rules (one look at the routing table, one CRC), appended and stamped, all
//! before the call returns, so that order on a connection is order in the partition. Then the handler awaits the tickets one after
//! the other.
//!
//! A batch that finds no room in its log (space that is being allocated, memory) waits, with those behind it, and the core calls no
//! more requests meanwhile ([`Shard::ready`]); it is refused if the disk is full or too much waits.

use std::time::Duration;

use cluster::producer::ProducerRefused;
use cluster::replica::{Acks, AppendRefused};
use protocol::batch::{BatchError, BatchView};
use protocol::error::{ErrorCode, WireError};
use protocol::ids::{LeaderEpoch, TopicPartition};
use runtime::Env;
use storage::LogFailure;

use crate::shard::Shard;
use crate::tickets::Ticket;

/// What a producer asks for one batch.
#[derive(Clone, Copy, Debug)]
pub struct ProduceRequest {
    /// Where to.
    pub partition: TopicPartition,
    /// When it counts as acknowledged.
    pub acks: Acks,
    /// The leader epoch that the client knows; -1 for none.
    pub leader_epoch: LeaderEpoch,
    /// How long it waits for the acknowledgement.
    pub timeout: Duration,
}

/// Why a batch was not appended, or not acknowledged.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ProduceError {
    /// No such partition on this core.
    #[error("partition {partition} is not here")]
    UnknownPartition {
        /// The one asked for.
        partition: TopicPartition,
    },
    /// The batch breaks a rule (trap T36).
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// Another leader epoch, or too few in-sync replicas.
    #[error(transparent)]
    Refused(#[from] AppendRefused),
    /// Its idempotent producer has sent it before, or not all that comes before it; or it isn't allowed to send any more.
    #[error(transparent)]
    Producer(#[from] ProducerRefused),
    /// More batches wait for room than may.
    #[error("{waiting} bytes wait for room in the log, {batch} more would pass {allowed}")]
    TooMuchWaits {
        /// Bytes that wait.
        waiting: usize,
        /// Bytes of the batch.
        batch: usize,
        /// Bytes allowed.
        allowed: usize,
    },
    /// The file system has no space for the log to grow.
    #[error("no space for the log of {partition}: {shortage}")]
    NoSpace {
        /// The partition.
        partition: TopicPartition,
        /// Of which drive, and how much is missing.
        shortage: String,
    },
    /// A failed disk has stopped the partition's log.
    #[error(transparent)]
    Stopped(#[from] LogFailure),
    /// The acknowledgement didn't come in time: the batch may be in the log or not.
    #[error("not acknowledged within {} ms", timeout.as_millis())]
    TimedOut {
        /// The time given.
        timeout: Duration,
    },
    /// The partition was deleted before the acknowledgement.
    #[error("partition {partition} was deleted")]
    Deleted {
        /// The partition.
        partition: TopicPartition,
    },
    /// The host stops.
    #[error("the host is stopping")]
    Stopping,
}

impl WireError for ProduceError {
    fn code(&self) -> ErrorCode {
        match self {
            ProduceError::UnknownPartition { .. } | ProduceError::Deleted { .. } => ErrorCode::UnknownTopicOrPartition,
            ProduceError::Batch(error) => error.code(),
            ProduceError::Refused(error) => error.code(),
            ProduceError::Producer(error) => error.code(),
            ProduceError::TooMuchWaits { .. } => ErrorCode::ThrottlingQuotaExceeded,
            ProduceError::NoSpace { .. } | ProduceError::Stopped(_) => ErrorCode::KafkaStorageError,
            ProduceError::TimedOut { .. } => ErrorCode::RequestTimedOut,
            ProduceError::Stopping => ErrorCode::NotLeaderOrFollower,
        }
    }
}

impl<E: Env> Shard<E> {
    /// Appends a batch: its place in the log is fixed when this returns. The ticket ends when it is acknowledged.
    ///
    /// # Errors
    /// If it is not appended.
    pub fn produce(&self, request: ProduceRequest, batch: &BatchView<'_>) -> Result<Ticket, ProduceError> {
        let partition = request.partition;
        let result = match self.cell(partition) {
            Some(cell) => self.append(&cell, &request, batch),
            None => Err(ProduceError::UnknownPartition { partition }),
        };
        self.counters().count_produce(batch.size(), result.is_ok());
        result
    }
}
