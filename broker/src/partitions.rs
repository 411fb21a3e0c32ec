//! The partitions of this host's data directories, as the controller opens and deletes them.
//!
//! One per core, for the partitions that the core owns. A partition that can't be opened is out of service, said once as an error; the others go on.

use std::rc::Rc;

use cluster::metadata::{Image, PartitionImage, TopicConfig};
use futures_util::future::join_all;
use protocol::ids::{DirectoryId, HostId, TopicPartition};
use runtime::Env;
use shard::{PartitionPlace, Shard};
use storage::Directory;

use crate::progress::Progress;

/// Partitions that are opened at once when a host starts.
const OPEN_AT_ONCE: usize = 32;

/// Opens and deletes partitions. A handle.
pub struct Partitions<E: Env>(Rc<State<E>>);

struct State<E: Env> {
    shard: Shard<E>,
    directories: Vec<Directory<E>>,
    progress: Progress,
}

impl<E: Env> Clone for Partitions<E> {
    fn clone(&self) -> Self {
        Partitions(self.0.clone())
    }
}

/// A partition to be opened.
#[derive(Clone, Debug)]
pub struct Opening {
    /// The partition.
    pub name: TopicPartition,
    /// Its place.
    pub partition: PartitionImage,
    /// Its topic's settings.
    pub config: TopicConfig,
}

impl<E: Env> Partitions<E> {
    /// The partitions of these directories.
    pub fn new(shard: Shard<E>, directories: Vec<Directory<E>>, progress: Progress) -> Partitions<E> {
        Partitions(Rc::new(State { shard, directories, progress }))
    }

    /// Partitions in each directory that can be used.
    #[must_use]
    pub fn loads(&self, image: &Image, host: HostId) -> Vec<(DirectoryId, usize)> {
        let mut loads: Vec<_> = self.0.directories.iter().map(|directory| (directory.id(), 0)).collect();
        for (_, partition) in image.partitions_of(host) {
            let placed = partition.placement.map(|placement| placement.directory);
            if let Some((_, load)) = loads.iter_mut().find(|(directory, _)| Some(*directory) == placed) {
                *load += 1;
            }
        }
        loads
    }

    /// Recovers a partition, or makes it if it has never been.
    ///
    /// # Errors
    /// Why it is out of service, in words.
    pub async fn open(&self, opening: &Opening) -> Result<(), String> {
        let result = self.try_open(opening).await;
        if let Err(reason) = &result {
            tracing::error!(partition = %opening.name, reason, "a partition is out of service");
        }
        result
    }

    async fn try_open(&self, opening: &Opening) -> Result<(), String> {
        let state = &self.0;
        let Some(placement) = opening.partition.placement else { return Err("it has no place yet".into()) };
        let directory = state.directories.iter().find(|directory| directory.id() == placement.directory);
        let directory = directory.ok_or_else(|| {
            format!("its data directory {} isn't among those of this host; is a --data missing?", placement.directory)
        })?;
        let place = PartitionPlace {
            partition: opening.name,
            directory: placement.directory,
            leader_epoch: opening.partition.leader_epoch,
        };
        let exists = directory.has_log(opening.name).await.map_err(|error| error.to_string())?;
        if !exists {
            return state.shard.create_partition(place, opening.config).await.map_err(|error| error.to_string());
        }
        let opened = state.shard.open_partition(place, opening.config, state.progress.of_one()).await;
        let opened = opened.map_err(|error| error.to_string())?;
        if let Some(cut) = opened.cut {
            tracing::info!(
                partition = %opening.name,
                segment = %cut.segment,
                position = cut.position,
                fault = %cut.fault,
                segments_removed = cut.segments_removed,
                "a torn tail was cut"
            );
        }
        Ok(())
    }

    /// Opens many, some at once; for each, in their order, why it is out of service, if it is.
    pub async fn open_all(&self, openings: Vec<Opening>) -> Vec<Result<(), String>> {
        let mut opened = Vec::with_capacity(openings.len());
        for group in openings.chunks(OPEN_AT_ONCE) {
            opened.extend(join_all(group.iter().map(|opening| self.open(opening))).await);
        }
        opened
    }

    /// Answers all who wait at a partition, and removes it. What can't be removed now is at the next start.
    pub async fn delete(&self, name: TopicPartition) {
        if let Err(error) = self.0.shard.delete_partition(name).await {
            tracing::warn!(partition = %name, %error, "a deleted partition's files are left until the next start");
        }
    }

    /// Removes logs of topics that were deleted before the last stop. Logs that the metadata log knows nothing of are kept: an
    /// operator must see them.
    ///
    /// # Errors
    /// What a disk says.
    pub async fn sweep(&self, image: &Image, is_deleted: impl Fn(TopicPartition) -> bool) -> std::io::Result<()> {
        for directory in &self.0.directories {
            for log in directory.list_logs().await? {
                if log == crate::controller::METADATA_PARTITION || image.partition(log).is_some() {
                    continue;
                }
                if is_deleted(log) {
                    directory.delete_log(log).await?;
                } else {
                    let path = directory.path().display();
                    tracing::warn!(%log, directory = %path, "a log that the metadata log doesn't know is left alone");
                }
            }
        }
        Ok(())
    }
}
