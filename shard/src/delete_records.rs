//! DeleteRecords: a partition's log begins later from now on.
//!
//! The broker's handler calls it with what one request asks of this core. Order of events: each log is told where to begin; what isn't
//! on stable storage below that is flushed; a checkpoint says so; then the log's start moves, and only then the answer is given: what is
//! deleted doesn't come back after a crash. Whole segments below go as those do that retention removes.
//!
//! Where it differs from Kafka: there a deletion is answered before the disk knows of it.

use std::rc::Rc;

use futures_lite::future;
use protocol::error::{ErrorCode, WireError};
use protocol::ids::{Offset, TopicPartition};
use protocol::native::DeleteBefore;
use runtime::{Env, Monotonic};

use crate::fetch::FetchError;
use crate::shard::{PartitionCell, Shard};

/// Why records aren't deleted, or aren't known to be.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DeleteRecordsError {
    /// The partition doesn't serve.
    #[error(transparent)]
    Unavailable(#[from] FetchError),
    /// Consumers don't see that far.
    #[error("records up to {asked} can't be deleted: the high watermark is {high_watermark}")]
    OutOfRange {
        /// The offset asked for.
        asked: Offset,
        /// The largest that is allowed.
        high_watermark: Offset,
    },
    /// Not durable in time; it may still come to be.
    #[error("the log begins at {log_start}, and not yet at {asked}; it may still come to be")]
    TimedOut {
        /// The offset asked for.
        asked: Offset,
        /// Where the log begins now.
        log_start: Offset,
    },
}

impl WireError for DeleteRecordsError {
    fn code(&self) -> ErrorCode {
        match self {
            DeleteRecordsError::Unavailable(error) => error.code(),
            DeleteRecordsError::OutOfRange { .. } => ErrorCode::OffsetOutOfRange,
            DeleteRecordsError::TimedOut { .. } => ErrorCode::RequestTimedOut,
        }
    }
}

/// A log that was told to begin later, and where.
type Told<E> = (Rc<PartitionCell<E>>, Offset);

impl<E: Env> Shard<E> {
    /// Deletes the records below an offset in each of some partitions; where their logs begin then, in the same order. An offset below
    /// the log's start deletes nothing.
    ///
    /// Ends when all of it is on stable storage, at the latest at `deadline`.
    pub async fn delete_records(
        &self,
        wanted: &[(TopicPartition, DeleteBefore)],
        deadline: Monotonic,
    ) -> Vec<Result<Offset, DeleteRecordsError>> {
        let told: Vec<_> = wanted.iter().map(|(partition, before)| self.begin_later(*partition, *before)).collect();
        let mut results = Vec::with_capacity(told.len());
        for told in told {
            results.push(match told {
                Ok((cell, start)) => self.until_begun(&cell, start, deadline).await,
                Err(error) => Err(error),
            });
        }
        results
    }

    fn begin_later(&self, partition: TopicPartition, before: DeleteBefore) -> Result<Told<E>, DeleteRecordsError> {
        let cell = self.cell(partition).ok_or(FetchError::UnknownPartition { partition })?;
        let start = cell.partition.borrow_mut().begin_later(before)?;
        self.start_maintenance(&cell);
        Ok((cell, start))
    }

    async fn until_begun(
        &self,
        cell: &Rc<PartitionCell<E>>,
        start: Offset,
        deadline: Monotonic,
    ) -> Result<Offset, DeleteRecordsError> {
        loop {
            let seen = self.settled().count();
            cell.partition.borrow().check_serving()?;
            let log_start = cell.partition.borrow().replica().positions().log_start;
            if log_start >= start {
                return Ok(log_start);
            }
            let now = self.env().now();
            if now >= deadline {
                return Err(DeleteRecordsError::TimedOut { asked: start, log_start });
            }
            // Once more, as a checkpoint that failed isn't written again by itself.
            cell.partition.borrow_mut().want_start(start);
            future::or(self.settled().changed(seen), self.env().sleep(deadline - now)).await;
        }
    }
}
