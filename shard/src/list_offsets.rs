//! Offsets by name or time: the log start, the bound of the reader, or the first record at or after a timestamp.
//!
//! The broker's handler of a list offsets request calls it per partition. Only what the reader may see is found (trap T34): a record at or
//! above its bound is none.

use cluster::replica::Reader;
use protocol::ids::{LeaderEpoch, Offset, Timestamp, TopicPartition};
use protocol::native::OffsetSpec;
use runtime::Env;
use storage::LookupStep;

use crate::fetch::FetchError;
use crate::shard::{PartitionCell, Shard};

impl<E: Env> Shard<E> {
    /// The offset that is asked for, with the record's timestamp where a time was asked for (else -1). `None` if no visible record is
    /// as young.
    ///
    /// # Errors
    /// If the partition isn't here, isn't at that leader epoch, or can't be read.
    pub async fn list_offsets(
        &self,
        partition: TopicPartition,
        at: OffsetSpec,
        reader: Reader,
        leader_epoch: LeaderEpoch,
    ) -> Result<Option<(Offset, Timestamp)>, FetchError> {
        let cell = self.cell(partition).ok_or(FetchError::UnknownPartition { partition })?;
        loop {
            let log_start = cell.partition.borrow().replica().positions().log_start;
            let found = self.look(&cell, at, reader, leader_epoch).await;
            // Segments have left the log meanwhile, and their files with them: what is there now answers.
            if found.is_ok() || cell.partition.borrow().replica().positions().log_start == log_start {
                return found;
            }
        }
    }

    async fn look(
        &self,
        cell: &PartitionCell<E>,
        at: OffsetSpec,
        reader: Reader,
        leader_epoch: LeaderEpoch,
    ) -> Result<Option<(Offset, Timestamp)>, FetchError> {
        let mut step = {
            let mut state = cell.partition.borrow_mut();
            state.check_serving()?;
            state.replica().check_epoch(leader_epoch)?;
            match at {
                OffsetSpec::Earliest => return Ok(Some((state.replica().positions().log_start, Timestamp::NONE))),
                OffsetSpec::Latest => {
                    let latest = state.replica().latest_offset(reader).ok_or(FetchError::NotYet { partition: cell.name })?;
                    return Ok(Some((latest, Timestamp::NONE)));
                }
                OffsetSpec::AtOrAfter(timestamp) => {
                    let bound = state.replica().read_bound(reader);
                    state.log_mut().begin_lookup(timestamp, bound)?
                }
            }
        };
        loop {
            match step {
                LookupStep::Ready(found) => return Ok(found),
                LookupStep::Disk(plan) => {
                    let outcome = plan.execute().await;
                    step = cell.partition.borrow_mut().log_mut().finish_lookup(outcome)?;
                }
            }
        }
    }
}
