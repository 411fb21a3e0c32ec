//! A host: from its data directories to its listeners, and back.
//!
//! Runs on core 0; `start` is called by the command line inside a core, and by the simulator. Order of events: directories
//! (lock, superblock) -> the metadata log, replayed -> this start is recorded, which raises every leader epoch -> new directories are
//! marked as used -> partitions -> listeners. A stop: listeners -> what is owed is answered -> everything flushed -> the marker of a clean stop.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use cluster::metadata::{Image, MetadataRecord};
use net::{ConnectionLimits, Native, Server};
use protocol::ids::{BrokerEpoch, ClusterId, CoreId, HostId, PartitionIndex, TopicPartition};
use runtime::{Env, Sharing, Transport};
use shard::Shard;
use storage::{ChunkCache, Directory};
use thiserror::Error;

use crate::controller::{Controller, ControllerIdentity};
use crate::directories::{self, DirectoriesError};
use crate::dispatch::{Dispatch, HostIdentity};
use crate::metadata_log::{self, MetadataError};
use crate::partitions::{Opening, Partitions};
use crate::progress::Progress;

/// Replies that are owed when a host stops have this long to leave.
const STOP_PATIENCE: Duration = Duration::from_millis(300);
/// How often the progress of a recovery is said.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// What a host is started with.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Data directories.
    pub data: Vec<PathBuf>,
    /// None of them may be new.
    pub data_must_exist: bool,
    /// Where the native protocol listens.
    pub listen: SocketAddr,
    /// The host's number.
    pub host: HostId,
    /// Its name, as clients are told.
    pub host_name: String,
    /// Limits of the listener.
    pub connections: ConnectionLimits,
    /// Partitions of the host at most.
    pub partitions_max: usize,
    /// Said to whoever finds a data directory locked.
    pub holder: String,
}

/// Why a host doesn't start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The data directories can't be used.
    #[error(transparent)]
    Directories(#[from] DirectoriesError),
    /// The metadata log can't be used.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// A disk failed while logs were looked for.
    #[error("the data directories can't be read: {0}")]
    Disk(std::io::Error),
    /// The address can't be listened on.
    #[error("can't listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        error: std::io::Error,
    },
}

/// How a stop went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stopped {
    /// Partitions whose log is whole on stable storage.
    pub flushed: usize,
    /// Why the stop wasn't clean, for each partition or directory concerned.
    pub unclean: Vec<String>,
}

/// A host that serves.
pub struct Node<E: Env> {
    env: E,
    cluster: ClusterId,
    broker_epoch: BrokerEpoch,
    directories: Vec<Directory<E>>,
    shard: Shard<E>,
    controller: Controller<E>,
    native: Server<E, Native, Dispatch<E>>,
    partitions_out_of_service: usize,
}

impl<E: Env> Node<E> {
    /// Starts a host; it serves when this returns.
    ///
    /// # Errors
    /// See [`StartError`]. Nothing is served then.
    pub async fn start(env: E, config: NodeConfig) -> Result<Node<E>, StartError> {
        let cache = ChunkCache::new(env.region().clone());
        let opened = directories::open(&env, &config, &cache).await?;
        let directories = opened.all().to_vec();
        let progress = Progress::default();
        let shard = Shard::start(env.clone(), config.host, directories.clone());
        let replayed = metadata_log::open(&shard, &opened, &progress).await?;
        let broker_epoch = BrokerEpoch(replayed.image.broker_epoch(config.host).map_or(0, |epoch| epoch.0) + 1);
        shard.set_broker_epoch(broker_epoch);
        let partitions = Partitions::new(env.clone(), shard.clone(), directories.clone(), progress.clone());
        partitions.sweep(&replayed.image, |log| replayed.deleted.contains(&log.topic)).await.map_err(StartError::Disk)?;
        let identity = ControllerIdentity { host: config.host, core: CoreId(0), partitions_max: config.partitions_max };
        let controller = Controller::new(env.clone(), identity, shard.clone(), partitions.clone(), replayed.image);
        let started = MetadataRecord::HostStarted { host: config.host, broker_epoch };
        controller.commit(&[started]).await.map_err(MetadataError::from)?;
        opened.mark_used(broker_epoch).await?;
        let openings = openings(&controller.image(), config.host);
        let out_of_service = open_partitions(&env, &partitions, &progress, openings).await;
        let cluster = directories[0].superblock().cluster;
        let who = HostIdentity { cluster, host: config.host, host_name: config.host_name.clone() };
        let dispatch = Dispatch::new(env.clone(), who, shard.clone(), controller.clone(), cache);
        let listener = env
            .transport()
            .listen(config.listen, Sharing::Alone)
            .await
            .map_err(|error| StartError::Listen { address: config.listen, error })?;
        let native = Server::new(env.clone(), listener, "native", dispatch.clone(), config.connections);
        dispatch.set_native_address(native.local_address());
        env.spawn(native.clone().run());
        Ok(Node { env, cluster, broker_epoch, directories, shard, controller, native, partitions_out_of_service: out_of_service })
    }

    /// Where the native protocol listens, with the actual port.
    #[must_use]
    pub fn native_address(&self) -> SocketAddr {
        self.native.local_address()
    }

    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// The number of this start.
    #[must_use]
    pub fn broker_epoch(&self) -> BrokerEpoch {
        self.broker_epoch
    }

    /// Partitions that can't be used, and how many there are in all.
    #[must_use]
    pub fn partitions(&self) -> (usize, usize) {
        let all = self.controller.image().topics().map(|topic| topic.partitions.len()).sum();
        (self.partitions_out_of_service, all)
    }

    /// The core's partitions, for tests and metrics.
    #[must_use]
    pub fn shard(&self) -> &Shard<E> {
        &self.shard
    }

    /// The metadata.
    #[must_use]
    pub fn controller(&self) -> &Controller<E> {
        &self.controller
    }

    /// The environment.
    #[must_use]
    pub fn env(&self) -> &E {
        &self.env
    }

    /// Stops: answers what is owed, flushes everything and leaves the marker of a clean stop.
    pub async fn stop(self) -> Stopped {
        self.native.stop(STOP_PATIENCE).await;
        self.controller.stop().await;
        let report = self.shard.stop().await;
        let mut stopped = Stopped { flushed: report.flushed, unclean: Vec::new() };
        for (partition, _, reason) in &report.failed {
            stopped.unclean.push(format!("partition {partition}: {reason}"));
        }
        for directory in &self.directories {
            if report.failed.iter().any(|(_, failed, _)| *failed == directory.id()) {
                continue;
            }
            if let Err(error) = directory.stop_cleanly(self.broker_epoch).await {
                stopped.unclean.push(format!("{}: {error}", directory.path().display()));
            }
        }
        stopped
    }
}

/// The partitions that this host leads.
fn openings(image: &Image, host: HostId) -> Vec<Opening> {
    let all = image.topics().flat_map(|topic| {
        (0..).zip(&topic.partitions).map(|(index, partition)| Opening {
            name: TopicPartition { topic: topic.id, partition: PartitionIndex(index) },
            partition: *partition,
            config: topic.config,
        })
    });
    all.filter(|opening| opening.partition.placement.is_some_and(|placement| placement.host == host)).collect()
}

/// Opens all partitions, and says each second how far that is.
async fn open_partitions<E: Env>(env: &E, partitions: &Partitions<E>, progress: &Progress, openings: Vec<Opening>) -> usize {
    let count = openings.len();
    let began = env.now();
    let report = async {
        loop {
            env.sleep(PROGRESS_INTERVAL).await;
            tracing::info!("recovery: {}", progress.describe(env.now().since(began)));
        }
    };
    let failed = futures_lite::future::or(partitions.open_all(openings), report).await;
    let took_ms = u64::try_from(env.now().since(began).as_millis()).unwrap_or(u64::MAX);
    tracing::info!(partitions = count, out_of_service = failed, took_ms, "partitions are open");
    failed
}
