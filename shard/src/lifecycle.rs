//! How partitions come to a core and leave it, and how the core stops.
//!
//! Called by the controller's side of the broker. A partition is listed in the routing table from the moment that its log is whole and
//! durable until its deletion begins; what waits at it is answered first, its files go when its last plan has ended (traps T92, T94).
//!
//! A stop refuses new requests, writes and flushes everything, leaves checkpoints, and then says whether all of it is on stable storage:
//! only then the caller may leave the marker of a clean stop.

use std::io;
use std::rc::Rc;

use cluster::metadata::TopicConfig;
use cluster::producer::Producers;
use cluster::replica::NO_EPOCH;
use protocol::error::{ErrorCode, WireError};
use protocol::ids::{DirectoryId, LeaderEpoch, TopicPartition};
use runtime::Env;
use storage::{Cut, Log, Recovered, RecoveryError, RecoveryProgress};

use crate::partition::{Condition, Identity, Partition, log_config};
use crate::producers::RecoveredProducers;
use crate::shard::{PartitionCell, Shard};

/// Partitions that are flushed at once when the core stops.
const FLUSHES_AT_ONCE: usize = 64;

/// Where a partition lives and in which leadership.
#[derive(Clone, Copy, Debug)]
pub struct PartitionPlace {
    /// The partition.
    pub partition: TopicPartition,
    /// Its data directory.
    pub directory: DirectoryId,
    /// Its leader epoch from now on: higher than in any earlier start or place. `NO_EPOCH` when it is opened: one above the log's
    /// last, for the metadata log, whose epochs stand nowhere else.
    pub leader_epoch: LeaderEpoch,
}

/// What recovery did to a partition's log.
#[derive(Clone, Copy, Debug)]
pub struct OpenedPartition {
    /// Where it was cut, if it was.
    pub cut: Option<Cut>,
    /// Bytes that were scanned.
    pub scanned_bytes: u64,
}

/// Why a partition can't be opened or deleted.
#[derive(Debug, thiserror::Error)]
pub enum OpenPartitionError {
    /// The directory isn't one of this core.
    #[error("data directory {directory} of partition {partition} is not here")]
    UnknownDirectory {
        /// The partition.
        partition: TopicPartition,
        /// The directory.
        directory: DirectoryId,
    },
    /// It is open already.
    #[error("partition {partition} is open already")]
    Open {
        /// The partition.
        partition: TopicPartition,
    },
    /// It isn't here.
    #[error("partition {partition} is not here")]
    Unknown {
        /// The partition.
        partition: TopicPartition,
    },
    /// Its log can't be recovered.
    #[error("recovery of partition {partition}: {cause}")]
    Recovery {
        /// The partition.
        partition: TopicPartition,
        /// Why.
        cause: RecoveryError,
    },
    /// Its log holds batches of a leader epoch that the partition hasn't reached: the metadata log is older than the log.
    #[error(
        "the log of partition {partition} ends in leader epoch {found}, the partition is in {allowed}; was an older metadata log restored?"
    )]
    EpochAhead {
        /// The partition.
        partition: TopicPartition,
        /// The epoch of the log's last batch.
        found: LeaderEpoch,
        /// The partition's epoch; the log's may be up to it.
        allowed: LeaderEpoch,
    },
    /// The disk failed.
    #[error("partition {partition}: {cause}")]
    Io {
        /// The partition.
        partition: TopicPartition,
        /// What the system said.
        cause: io::Error,
    },
    /// The host stops.
    #[error("the host is stopping")]
    Stopping,
}

impl WireError for OpenPartitionError {
    fn code(&self) -> ErrorCode {
        match self {
            OpenPartitionError::UnknownDirectory { .. }
            | OpenPartitionError::Recovery { .. }
            | OpenPartitionError::EpochAhead { .. }
            | OpenPartitionError::Io { .. } => ErrorCode::KafkaStorageError,
            OpenPartitionError::Open { .. } => ErrorCode::TopicAlreadyExists,
            OpenPartitionError::Unknown { .. } => ErrorCode::UnknownTopicOrPartition,
            OpenPartitionError::Stopping => ErrorCode::NotLeaderOrFollower,
        }
    }
}

/// How a stop went.
#[derive(Debug, Default)]
pub struct StopReport {
    /// Partitions whose log is whole on stable storage.
    pub flushed: usize,
    /// Those that aren't, and why: after them no marker of a clean stop may be left in their directory.
    pub failed: Vec<(TopicPartition, DirectoryId, String)>,
}

impl<E: Env> Shard<E> {
    /// Makes a new, empty partition and serves it.
    ///
    /// # Errors
    /// If it exists, its directory isn't here, or the disk fails.
    pub async fn create_partition(&self, place: PartitionPlace, config: TopicConfig) -> Result<(), OpenPartitionError> {
        let partition = place.partition;
        let directory = self.check_place(place)?;
        let log = directory.create_log(partition, log_config(&config)).await;
        let log = log.map_err(|cause| OpenPartitionError::Io { partition, cause })?;
        self.serve(place, config, log, Producers::new())
    }

    /// Recovers a partition that is on disk and serves it. `progress` is called now and then; it must not block.
    ///
    /// # Errors
    /// If it is open already, its directory isn't here, or its log can't be recovered.
    pub async fn open_partition(
        &self,
        place: PartitionPlace,
        config: TopicConfig,
        progress: impl FnMut(RecoveryProgress),
    ) -> Result<OpenedPartition, OpenPartitionError> {
        let partition = place.partition;
        let directory = self.check_place(place)?;
        let mut producers = RecoveredProducers { state: Producers::new(), now: self.env().wall_clock() };
        let recovered = directory.recover_log(partition, log_config(&config), &mut producers, progress).await;
        let Recovered { log, cut, scanned } = recovered.map_err(|cause| OpenPartitionError::Recovery { partition, cause })?;
        let found = log.last_epoch();
        let leader_epoch = match place.leader_epoch {
            NO_EPOCH => found.0.checked_add(1).map(LeaderEpoch),
            // What is appended under a lower epoch than the log's last would be cut by the next recovery.
            leader_epoch => (leader_epoch >= found).then_some(leader_epoch),
        };
        let leader_epoch =
            leader_epoch.ok_or(OpenPartitionError::EpochAhead { partition, found, allowed: place.leader_epoch })?;
        self.serve(PartitionPlace { leader_epoch, ..place }, config, log, producers.state)?;
        Ok(OpenedPartition { cut, scanned_bytes: scanned })
    }

    /// Answers everything that waits at a partition, and removes it with its files.
    ///
    /// # Errors
    /// If it isn't here, or the disk fails: the files that are left are removed at the next start.
    pub async fn delete_partition(&self, partition: TopicPartition) -> Result<(), OpenPartitionError> {
        let cell = self.remove(partition).ok_or(OpenPartitionError::Unknown { partition })?;
        self.settle(&cell, |state, purgatory, woken| state.close(Condition::Deleted, purgatory, woken));
        self.watch_crowding(&cell);
        self.await_quiet(&cell).await;
        // Reads that are under way end with an error once the files are gone.
        let directory = self.directory(cell.directory).expect("a partition's directory is one of its core");
        directory.delete_log(partition).await.map_err(|cause| OpenPartitionError::Io { partition, cause })
    }

    /// Stops the core: refuses requests, writes and flushes everything, leaves checkpoints, ends the tasks.
    pub async fn stop(&self) -> StopReport {
        self.refuse_all();
        let mut report = StopReport::default();
        for cells in self.cells().chunks(FLUSHES_AT_ONCE) {
            let flushes: Vec<_> = cells.iter().map(|cell| self.start_flush(cell)).collect();
            for (cell, flush) in cells.iter().zip(flushes) {
                match flush.await {
                    Some(None) => report.flushed += 1,
                    Some(Some(reason)) => report.failed.push((cell.name, cell.directory, reason)),
                    None => report.failed.push((cell.name, cell.directory, "its flush was dropped".to_owned())),
                }
            }
        }
        self.write_checkpoints().await;
        self.end_tasks();
        report
    }

    /// Writes the checkpoint of each directory.
    pub(crate) async fn write_checkpoints(&self) {
        for directory in self.directories() {
            let cells = self.cells();
            let here = || cells.iter().filter(|cell| cell.directory == directory.id());
            let entries = here().map(|cell| cell.partition.borrow().checkpoint_entry()).collect();
            let starts: Vec<_> = here().map(|cell| cell.partition.borrow().log().planned_start()).collect();
            if let Err(error) = directory.write_checkpoint(self.broker_epoch(), entries).await {
                // The checkpoint before it counts: the next recovery scans more.
                tracing::warn!(directory = %directory.path().display(), %error, "no checkpoint could be written");
                continue;
            }
            for (cell, start) in here().zip(starts) {
                cell.partition.borrow_mut().start_is_durable(start);
                self.start_removal(cell);
            }
            self.settled().notify();
        }
    }

    fn check_place(&self, place: PartitionPlace) -> Result<storage::Directory<E>, OpenPartitionError> {
        let (partition, directory) = (place.partition, place.directory);
        if self.is_stopping() {
            return Err(OpenPartitionError::Stopping);
        }
        if self.cell(partition).is_some() {
            return Err(OpenPartitionError::Open { partition });
        }
        let found = self.directory(directory).cloned();
        found.ok_or(OpenPartitionError::UnknownDirectory { partition, directory })
    }

    fn serve(
        &self,
        place: PartitionPlace,
        config: TopicConfig,
        log: Log<E>,
        producers: Producers,
    ) -> Result<(), OpenPartitionError> {
        // What was possible before the await may not be now.
        self.check_place(place)?;
        let identity = Identity { name: place.partition, host: self.host(), leader_epoch: place.leader_epoch };
        let cell = self.insert(place.partition, place.directory, Partition::new(identity, config, log, producers));
        self.start_maintenance(&cell);
        Ok(())
    }

    /// Ends when no plan of the partition is out and all it has to write is written.
    async fn await_quiet(&self, cell: &PartitionCell<E>) {
        loop {
            let seen = self.settled().count();
            if cell.partition.borrow().is_quiet() {
                return;
            }
            self.settled().changed(seen).await;
        }
    }

    /// Starts the last flush of a partition; gives why it isn't whole on stable storage, if it isn't.
    fn start_flush(&self, cell: &Rc<PartitionCell<E>>) -> runtime::local::OnceReceiver<Option<String>> {
        let (sender, receiver) = runtime::local::once();
        let (shard, cell) = (self.clone(), cell.clone());
        self.mark_dirty(&cell);
        self.env().spawn(async move {
            shard.await_quiet(&cell).await;
            let plan = cell.partition.borrow().begin_flush();
            let outcome = plan.execute().await;
            let now = shard.env().now();
            shard.settle(&cell, |state, purgatory, woken| state.finish_flush(outcome, now, purgatory, woken));
            sender.send(cell.partition.borrow().unflushed());
        });
        receiver
    }
}
