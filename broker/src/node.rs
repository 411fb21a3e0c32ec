//! A host: from its data directories to its listeners, and back.
//!
//! Runs on core 0; `start` is called by the command line inside a core, and by the simulator. Order of events: directories
//! (lock, superblock) -> the metadata log, replayed -> this start is recorded, which raises every leader epoch -> partitions find a core,
//! if theirs is gone -> new directories are marked as used -> checkpoints of cores that are gone are taken over -> the other cores begin ->
//! partitions -> listeners. A stop: listeners -> what is owed is answered -> everything flushed, on each core -> the marker of a clean stop.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use cluster::metadata::{Image, MetadataRecord, placement};
use futures_util::future::join_all;
use net::ConnectionLimits;
use protocol::ids::{BrokerEpoch, ClusterId, CoreId, HostId, PartitionIndex, TopicPartition};
use runtime::mesh::seats;
use runtime::{Env, Sharing};
use shard::Shard;
use storage::{ChunkCache, Directory};
use thiserror::Error;

use crate::changes::Changes;
use crate::controller::{Controller, ControllerIdentity, METADATA_PARTITION};
use crate::core::{Core, CoreParts, others};
use crate::crossing::{self, Beginning, CoreMesh, CoreReply, CoreRequest};
use crate::directories::{self, DirectoriesError};
use crate::dispatch::{Dispatch, HostIdentity};
use crate::metadata_log::{self, MetadataError};
use crate::partitions::{Opening, Partitions};
use crate::progress::Progress;

/// Records of one batch of the metadata log, at most.
const RECORDS_AT_ONCE: usize = 1000;
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
    /// With several cores, core n also listens alone at this port + n of the same address; 0: any free ports.
    pub core_port: u16,
    /// The host's number.
    pub host: HostId,
    /// Its name, as clients are told.
    pub host_name: String,
    /// Limits of the listener.
    pub connections: ConnectionLimits,
    /// Free bytes of each drive that logs of topics leave; a part of the drive if it isn't given.
    pub reserve_bytes: Option<u64>,
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
    /// Another core can't begin, or has ended.
    #[error("core {core} doesn't start: {reason}")]
    Core {
        /// The core.
        core: CoreId,
        /// What it says.
        reason: String,
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
    core: Core<E>,
    cluster: ClusterId,
    broker_epoch: BrokerEpoch,
    controller: Controller<E>,
    address: SocketAddr,
    partitions_out_of_service: usize,
}

impl<E: Env> Node<E> {
    /// Starts a host of one core; it serves when this returns.
    ///
    /// # Errors
    /// See [`StartError`]. Nothing is served then.
    pub async fn start(env: E, config: NodeConfig) -> Result<Node<E>, StartError> {
        let seat = seats(1).pop().expect("a seat for one core");
        let mesh = env.join(seat);
        Node::start_with(env, mesh, config).await
    }

    /// Starts a host whose other cores run [`crate::member::run`]; it serves when this returns.
    ///
    /// # Errors
    /// See [`StartError`]. Nothing is served then, and the other cores have ended.
    pub async fn start_with(env: E, mesh: CoreMesh, config: NodeConfig) -> Result<Node<E>, StartError> {
        let started = Node::begin(env, mesh.clone(), &config).await;
        if started.is_err() {
            stop_others(&mesh).await;
        }
        started
    }

    async fn begin(env: E, mesh: CoreMesh, config: &NodeConfig) -> Result<Node<E>, StartError> {
        let cache = ChunkCache::new(env.region().clone());
        let opened = directories::open(&env, config, &cache).await?;
        let directories = opened.all().to_vec();
        let progress = Progress::default();
        let shard = Shard::start(env.clone(), config.host, directories.clone());
        let replayed = metadata_log::open(&shard, &opened, &progress).await?;
        let broker_epoch = BrokerEpoch(replayed.image.broker_epoch(config.host).map_or(0, |epoch| epoch.0) + 1);
        shard.set_broker_epoch(broker_epoch);
        let partitions = Partitions::new(shard.clone(), directories.clone(), progress.clone());
        partitions.sweep(&replayed.image, |log| replayed.deleted.contains(&log.topic)).await.map_err(StartError::Disk)?;
        let image = Rc::new(RefCell::new(replayed.image));
        let identity = ControllerIdentity { host: config.host, partitions_max: config.partitions_max };
        let controller = Controller::new(env.clone(), identity, shard.clone(), partitions.clone(), mesh.clone(), image.clone());
        record_start(&controller, config.host, broker_epoch, mesh.cores()).await?;
        opened.mark_used(broker_epoch).await?;
        forget_gone_logs(&directories, &controller.image());
        remove_checkpoints_of_gone_cores(&directories, mesh.cores(), broker_epoch).await;
        let cluster = directories[0].superblock().cluster;
        let who = HostIdentity { cluster, host: config.host, host_name: config.host_name.clone() };
        let changes = Changes::Here(controller.clone());
        let dispatch = Dispatch::new(env.clone(), who, shard.clone(), changes, image.clone(), mesh.clone(), cache);
        let connections = config.connections;
        let core = Core::new(CoreParts { env: env.clone(), mesh, shard, directories, partitions, dispatch, image, connections });
        env.spawn(crossing::serve(core.clone()));
        begin_others(&core, config, cluster, broker_epoch).await?;
        controller.let_others_follow();
        let openings = openings(&controller.image(), config.host);
        let partitions_out_of_service = open_partitions(&env, &controller, &progress, openings).await;
        let address = listen(&core, config).await?;
        Ok(Node { core, cluster, broker_epoch, controller, address, partitions_out_of_service })
    }

    /// Where the native protocol listens, with the actual port.
    #[must_use]
    pub fn native_address(&self) -> SocketAddr {
        self.address
    }

    /// The port at which each core listens alone; of one core, the host's.
    #[must_use]
    pub fn core_ports(&self) -> Vec<u16> {
        self.core.dispatch().core_ports()
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

    /// Core 0's partitions, for tests and metrics.
    #[must_use]
    pub fn shard(&self) -> &Shard<E> {
        self.core.shard()
    }

    /// The metadata.
    #[must_use]
    pub fn controller(&self) -> &Controller<E> {
        &self.controller
    }

    /// The environment of core 0.
    #[must_use]
    pub fn env(&self) -> &E {
        self.core.env()
    }

    /// Stops: answers what is owed, flushes everything and leaves the marker of a clean stop.
    pub async fn stop(self) -> Stopped {
        let core = &self.core;
        let close_others = ask_others(core, |_| CoreRequest::Close);
        futures_lite::future::zip(core.close(), close_others).await;
        self.controller.stop().await;
        let (here, elsewhere) = futures_lite::future::zip(core.shard().stop(), ask_others(core, |_| CoreRequest::Stop)).await;
        let mut stopped = Stopped::default();
        let mut failed = Vec::new();
        let elsewhere = elsewhere.into_iter().map(|(core, answer)| match answer {
            Some(CoreReply::Stopped(report)) => Ok(report),
            Some(_) | None => Err(core),
        });
        for report in std::iter::once(Ok(here)).chain(elsewhere) {
            let report = match report {
                Ok(report) => report,
                Err(core) => {
                    stopped.unclean.push(format!("core {core} has ended before"));
                    failed.extend(self.core.directories().iter().map(Directory::id));
                    continue;
                }
            };
            stopped.flushed += report.flushed;
            for (partition, directory, reason) in report.failed {
                stopped.unclean.push(format!("partition {partition}: {reason}"));
                failed.push(directory);
            }
        }
        for directory in core.directories() {
            if failed.contains(&directory.id()) {
                continue;
            }
            if let Err(error) = directory.stop_cleanly(self.broker_epoch).await {
                stopped.unclean.push(format!("{}: {error}", directory.path().display()));
            }
        }
        stopped
    }
}

/// Records this start, and gives partitions whose core is gone, and new cores their share, a place.
async fn record_start<E: Env>(
    controller: &Controller<E>,
    host: HostId,
    broker_epoch: BrokerEpoch,
    cores: usize,
) -> Result<(), StartError> {
    let started = MetadataRecord::HostStarted { host, broker_epoch };
    controller.commit(&[started]).await.map_err(MetadataError::from)?;
    let moves = placement::moves_at_start(&controller.image(), host, cores);
    if !moves.is_empty() {
        tracing::info!(cores, partitions = moves.len(), "partitions move, since the host has other cores than before");
    }
    for records in moves.chunks(RECORDS_AT_ONCE) {
        controller.commit(records).await.map_err(MetadataError::from)?;
    }
    Ok(())
}

/// Forgets what checkpoints say of logs that are gone.
fn forget_gone_logs<E: Env>(directories: &[Directory<E>], image: &Image) {
    for directory in directories {
        directory.retain_entries(|log| {
            let place = image.partition(log).and_then(|partition| partition.placement);
            log == METADATA_PARTITION || place.is_some_and(|place| place.directory == directory.id())
        });
    }
}

/// Takes over the checkpoints of cores that don't exist any more.
async fn remove_checkpoints_of_gone_cores<E: Env>(directories: &[Directory<E>], cores: usize, broker_epoch: BrokerEpoch) {
    for directory in directories {
        if let Err(error) = directory.remove_checkpoints_above(cores, broker_epoch).await {
            let directory = directory.path().display();
            tracing::warn!(%directory, %error, "checkpoints of cores that are gone are left until the next start");
        }
    }
}

/// Tells the other cores to begin.
async fn begin_others<E: Env>(
    core: &Core<E>,
    config: &NodeConfig,
    cluster: ClusterId,
    broker_epoch: BrokerEpoch,
) -> Result<(), StartError> {
    let answers = ask_others(core, |to| {
        let image = core.dispatch().image().clone();
        let is_its = |log| image.partition(log).and_then(|found| found.placement).is_some_and(|place| place.core == to);
        let directories = core.directories().iter().map(|directory: &Directory<E>| directory.share(is_its)).collect();
        let (host, host_name, connections) = (config.host, config.host_name.clone(), config.connections);
        CoreRequest::Begin(Box::new(Beginning { cluster, host, host_name, broker_epoch, image, directories, connections }))
    });
    for (core, answer) in answers.await {
        let reason = match answer {
            Some(CoreReply::Begun(Ok(()))) => continue,
            Some(CoreReply::Begun(Err(reason))) => reason,
            Some(_) | None => "it has ended".into(),
        };
        return Err(StartError::Core { core, reason });
    }
    Ok(())
}

/// Has every core listen, and then accept; the host's address, as it is bound.
async fn listen<E: Env>(core: &Core<E>, config: &NodeConfig) -> Result<SocketAddr, StartError> {
    let failed = |address| move |error| StartError::Listen { address, error };
    if core.mesh().cores() == 1 {
        let address = core.listen(config.listen, Sharing::Alone).await.map_err(failed(config.listen))?;
        core.start_serving(vec![address.port()]);
        return Ok(address);
    }
    let own = |core: CoreId| {
        let port = if config.core_port == 0 { 0 } else { config.core_port.saturating_add(core.0) };
        SocketAddr::new(config.listen.ip(), port)
    };
    let shared = core.listen(config.listen, Sharing::First).await.map_err(failed(config.listen))?;
    let here = own(core.mesh().core());
    let mut ports = vec![core.listen(here, Sharing::Alone).await.map_err(failed(here))?.port()];
    for (core, answer) in ask_others(core, |to| CoreRequest::Listen { shared, own: own(to) }).await {
        match answer {
            Some(CoreReply::Listening(Ok(port))) => ports.push(port),
            Some(CoreReply::Listening(Err((address, error)))) => return Err(StartError::Listen { address, error }),
            Some(_) | None => return Err(StartError::Core { core, reason: "it has ended".into() }),
        }
    }
    ask_others(core, |_| CoreRequest::Serve(ports.clone())).await;
    core.start_serving(ports);
    Ok(shared)
}

/// Asks every other core, all at once; their answers, in the order of the cores.
async fn ask_others<E: Env>(core: &Core<E>, request: impl Fn(CoreId) -> CoreRequest) -> Vec<(CoreId, Option<CoreReply>)> {
    let asked = others(core.mesh()).map(|to| {
        let request = request(to);
        async move { (to, core.mesh().call(to, request).await) }
    });
    join_all(asked).await
}

/// Ends the other cores of a host that doesn't start.
async fn stop_others(mesh: &CoreMesh) {
    join_all(others(mesh).map(|core| mesh.call(core, CoreRequest::Stop))).await;
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

/// Has all partitions opened, and says each second how far core 0 is; how many are out of service.
async fn open_partitions<E: Env>(env: &E, controller: &Controller<E>, progress: &Progress, openings: Vec<Opening>) -> usize {
    let count = openings.len();
    let began = env.now();
    let report = async {
        loop {
            env.sleep(PROGRESS_INTERVAL).await;
            tracing::info!("recovery: {}", progress.describe(env.now().since(began)));
        }
    };
    let opened = futures_lite::future::or(controller.open_all(openings), report).await;
    let failed = opened.iter().filter(|(_, result)| result.is_err()).count();
    let took_ms = u64::try_from(env.now().since(began).as_millis()).unwrap_or(u64::MAX);
    tracing::info!(partitions = count, out_of_service = failed, took_ms, "partitions are open");
    failed
}
