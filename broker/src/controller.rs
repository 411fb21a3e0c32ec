//! The controller of a host that stands alone: changes of metadata, one after the other.
//!
//! Lives on core 0. A change is checked against the image, appended to the metadata log as one batch, awaited until it is
//! durable, applied to the image, and only then acted on (partitions opened or closed). Handlers call it; `node` replays.
//!
//! Invariants:
//! - The image is what the durable part of the metadata log adds up to. A batch of records is taken whole or not at all.
//! - A change runs to its end in a task of its own, also if whoever asked has gone: between the append and the image nothing
//!   may stop it.
//! - Changes are made in the order in which they were asked for, and so many wait at most as `limits` says.
//! - If the outcome of an append isn't known, nothing is changed any more until a restart has read what is there.

use std::cell::{Cell, Ref, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use cluster::metadata::{ApplyError, Image, MetadataRecord, TopicConfig, TopicImage, placement};
use cluster::replica::{Acks, NO_EPOCH};
use futures_util::future::join_all;
use protocol::batch::{BatchBuilder, BatchView, BuildError, RecordFields};
use protocol::compression::Codec;
use protocol::error::{ErrorCode, WireError};
use protocol::ids::{
    CoreId, DirectoryId, HostId, METADATA_TOPIC, PartitionIndex, ProducerId, Timestamp, TopicId, TopicPartition,
};
use protocol::limits::TOPIC_CHANGES_WAITING_MAX;
use runtime::Env;
use runtime::local::{OnceSender, once};
use shard::{ProduceRequest, Shard};
use thiserror::Error;

use crate::core::{SharedImage, others, reconfigure};
use crate::crossing::{Change, Changed, CoreMesh, CoreReply, CoreRequest};
use crate::partitions::{Opening, Partitions};

/// The metadata log's one partition.
pub const METADATA_PARTITION: TopicPartition = TopicPartition { topic: METADATA_TOPIC, partition: PartitionIndex(0) };
/// A write of the metadata log that takes longer than this has an unknown outcome.
const APPEND_TIMEOUT: Duration = Duration::from_secs(60);

/// Producer ids that are taken at once: each time costs a record of the metadata log. As many as Kafka's controller gives.
const PRODUCER_IDS_TAKEN_AT_ONCE: i64 = 1000;

/// Why a change was refused, or not done.
#[derive(Clone, Debug, Error)]
pub enum ChangeError {
    /// It doesn't fit what is there.
    #[error(transparent)]
    Refused(#[from] ApplyError),
    /// No topic has that name.
    #[error("there is no topic {name:?}")]
    UnknownTopic {
        /// The name.
        name: String,
    },
    /// The host would have too many partitions.
    #[error("{asked} partitions more would make {} of this host, {allowed} are allowed (partitions_max)", present + asked)]
    TooManyPartitions {
        /// Partitions that it has.
        present: usize,
        /// Partitions asked for.
        asked: usize,
        /// Partitions allowed.
        allowed: usize,
    },
    /// The topic asks for more in-sync replicas than there are hosts.
    #[error("min.insync.replicas={asked} can't be met: this host stands alone, so a partition has 1 replica")]
    TooFewHosts {
        /// Replicas asked for.
        asked: u32,
    },
    /// As many changes wait as may.
    #[error(
        "{TOPIC_CHANGES_WAITING_MAX} changes of topics wait already, and no more may (TOPIC_CHANGES_WAITING_MAX); ask again later"
    )]
    TooManyWaiting,
    /// The metadata log doesn't take it; nothing was changed.
    #[error("the metadata log refused the change: {reason}")]
    LogRefused {
        /// What it said.
        reason: String,
    },
    /// Whether the metadata log has it isn't known.
    #[error("the metadata log failed, and nothing is changed any more until this host is restarted: {reason}")]
    LogFailed {
        /// What it said.
        reason: String,
    },
    /// The topic exists, but some partition can't be used.
    #[error("the topic exists, but partition {partition} can't be opened: {reason}")]
    NotOpened {
        /// The partition.
        partition: PartitionIndex,
        /// Why not.
        reason: String,
    },
    /// The host stops.
    #[error("the host is stopping")]
    Stopping,
}

impl WireError for ChangeError {
    fn code(&self) -> ErrorCode {
        match self {
            ChangeError::Refused(error) => error.code(),
            ChangeError::UnknownTopic { .. } => ErrorCode::UnknownTopicOrPartition,
            ChangeError::TooManyPartitions { .. } => ErrorCode::InvalidPartitions,
            ChangeError::TooFewHosts { .. } => ErrorCode::InvalidConfig,
            ChangeError::TooManyWaiting => ErrorCode::ThrottlingQuotaExceeded,
            ChangeError::LogRefused { .. } | ChangeError::LogFailed { .. } | ChangeError::NotOpened { .. } => {
                ErrorCode::KafkaStorageError
            }
            ChangeError::Stopping => ErrorCode::BrokerNotAvailable,
        }
    }
}

/// Changes metadata. A handle.
pub struct Controller<E: Env>(Rc<ControllerState<E>>);

struct ControllerState<E: Env> {
    env: E,
    host: HostId,
    partitions_max: usize,
    shard: Shard<E>,
    partitions: Partitions<E>,
    mesh: CoreMesh,
    image: SharedImage,
    /// The other cores have the image, and are told of changes.
    others_follow: Cell<bool>,
    /// A change is under way.
    busy: Cell<bool>,
    /// The changes that wait for it, first in, first out.
    waiting: RefCell<VecDeque<OnceSender<()>>>,
    /// Producer ids that are taken and not given away.
    producer_ids: RefCell<Range<i64>>,
    failed: RefCell<Option<String>>,
    stopping: Cell<bool>,
}

impl<E: Env> Clone for Controller<E> {
    fn clone(&self) -> Self {
        Controller(self.0.clone())
    }
}

/// Where a controller works.
#[derive(Clone, Copy, Debug)]
pub struct ControllerIdentity {
    /// The host.
    pub host: HostId,
    /// Partitions of the host at most.
    pub partitions_max: usize,
}

impl<E: Env> Controller<E> {
    /// A controller whose image is that of the metadata log as it is now. `partitions` are core 0's.
    pub fn new(
        env: E,
        identity: ControllerIdentity,
        shard: Shard<E>,
        partitions: Partitions<E>,
        mesh: CoreMesh,
        image: SharedImage,
    ) -> Controller<E> {
        Controller(Rc::new(ControllerState {
            env,
            host: identity.host,
            partitions_max: identity.partitions_max,
            shard,
            partitions,
            mesh,
            image,
            others_follow: Cell::new(false),
            busy: Cell::new(false),
            waiting: RefCell::default(),
            producer_ids: RefCell::new(0..0),
            failed: RefCell::new(None),
            stopping: Cell::new(false),
        }))
    }

    /// The metadata as of the last change.
    #[must_use]
    pub fn image(&self) -> Ref<'_, Image> {
        self.0.image.borrow()
    }

    /// The other cores have this image now: they are told of changes.
    pub fn let_others_follow(&self) {
        self.0.others_follow.set(true);
    }

    /// Makes a change; it has its place in the line when this returns. The work goes on if the future is dropped.
    pub fn make(&self, change: Change) -> Pin<Box<dyn Future<Output = Result<Changed, ChangeError>>>> {
        match change {
            Change::CreateTopic { name, partitions, configs } => {
                let created = self.create_topic(name, partitions, configs);
                Box::pin(async move { created.await.map(Changed::Topic) })
            }
            Change::DeleteTopic(name) => {
                let deleted = self.delete_topic(name);
                Box::pin(async move { deleted.await.map(Changed::Topic) })
            }
            Change::AlterTopic { name, configs } => {
                let altered = self.run(move |controller| async move { controller.alter(&name, configs).await });
                Box::pin(async move { altered.await.map(Changed::Topic) })
            }
            Change::ProducerId => {
                let given = self.producer_id();
                Box::pin(async move { given.await.map(Changed::Producer) })
            }
        }
    }

    /// Makes a topic and its partitions. The work goes on if the future is dropped.
    pub fn create_topic(
        &self,
        name: String,
        partitions: u32,
        configs: Vec<(String, String)>,
    ) -> impl Future<Output = Result<TopicId, ChangeError>> + use<E> {
        self.run(move |controller| async move { controller.create(name, partitions, configs).await })
    }

    /// Removes a topic. The work goes on if the future is dropped.
    pub fn delete_topic(&self, name: String) -> impl Future<Output = Result<TopicId, ChangeError>> + use<E> {
        self.run(move |controller| async move { controller.delete(&name).await })
    }

    /// A producer id that nobody has had. The work goes on if the future is dropped; what it took is given to the next who asks.
    pub fn producer_id(&self) -> impl Future<Output = Result<ProducerId, ChangeError>> + use<E> {
        let ready = self.free_producer_id();
        let taking = ready.is_none().then(|| self.run(|controller| async move { controller.take_producer_ids().await }));
        async move {
            match (ready, taking) {
                (Some(id), _) => Ok(id),
                (None, Some(taking)) => taking.await,
                (None, None) => unreachable!("what isn't there is taken"),
            }
        }
    }

    /// Takes records that this host makes at its start.
    ///
    /// # Errors
    /// If they don't fit, or the log doesn't take them.
    pub async fn commit(&self, records: &[MetadataRecord]) -> Result<(), ChangeError> {
        self.append(records).await
    }

    /// Refuses changes from now on, and ends when the one under way is done.
    pub async fn stop(&self) {
        self.0.stopping.set(true);
        self.line_up().await;
    }

    /// Runs a change in a task of its own, after those before it.
    fn run<T, F, C>(&self, change: C) -> impl Future<Output = Result<T, ChangeError>> + use<T, F, C, E>
    where
        T: 'static,
        F: Future<Output = Result<T, ChangeError>> + 'static,
        C: FnOnce(Controller<E>) -> F + 'static,
    {
        let (sender, receiver) = once();
        if self.0.waiting.borrow().len() >= TOPIC_CHANGES_WAITING_MAX {
            sender.send(Err(ChangeError::TooManyWaiting));
        } else {
            let turn = self.line_up();
            let controller = self.clone();
            self.0.env.spawn(async move {
                turn.await;
                let result =
                    if controller.0.stopping.get() { Err(ChangeError::Stopping) } else { change(controller.clone()).await };
                controller.hand_over();
                sender.send(result);
            });
        }
        async move { receiver.await.unwrap_or(Err(ChangeError::Stopping)) }
    }

    /// Takes the last place in the line at once; the future ends when all before have gone.
    fn line_up(&self) -> impl Future<Output = ()> + use<E> {
        let (give, turn) = once();
        if self.0.busy.replace(true) {
            self.0.waiting.borrow_mut().push_back(give);
        } else {
            give.send(());
        }
        async move {
            turn.await;
        }
    }

    /// Gives the turn to the first in the line that still wants it.
    fn hand_over(&self) {
        let mut waiting = self.0.waiting.borrow_mut();
        let next = std::iter::from_fn(|| waiting.pop_front()).find(|next| !next.is_abandoned());
        drop(waiting);
        match next {
            Some(next) => next.send(()),
            None => self.0.busy.set(false),
        }
    }

    fn free_producer_id(&self) -> Option<ProducerId> {
        self.0.producer_ids.borrow_mut().next().map(ProducerId)
    }

    async fn take_producer_ids(self) -> Result<ProducerId, ChangeError> {
        // Whoever was before in the line may have taken enough.
        if let Some(id) = self.free_producer_id() {
            return Ok(id);
        }
        let first = self.0.image.borrow().producer_ids_next().0;
        let next = first.checked_add(PRODUCER_IDS_TAKEN_AT_ONCE).expect("producer ids end at 2^63 - 1");
        self.append(&[MetadataRecord::ProducerIdsTaken { host: self.0.host, next: ProducerId(next) }]).await?;
        *self.0.producer_ids.borrow_mut() = first + 1..next;
        Ok(ProducerId(first))
    }

    async fn create(self, name: String, count: u32, configs: Vec<(String, String)>) -> Result<TopicId, ChangeError> {
        let state = &self.0;
        let id = TopicId((u128::from(state.env.random()) << 64) | u128::from(state.env.random()));
        let config = TopicConfig::parse(configs.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let created = MetadataRecord::TopicCreated { id, name, partitions: count, configs };
        // Says what is wrong with the topic before anything else is looked at.
        state.image.borrow().check(&created)?;
        self.check_partitions(count)?;
        check_in_sync(&config.map_err(ApplyError::from)?)?;
        let mut records = vec![created];
        let mut loads = state.partitions.loads(&state.image.borrow(), state.host);
        let mut cores = placement::loads(&state.image.borrow(), state.host, state.mesh.cores());
        for index in 0..count {
            let partition = TopicPartition { topic: id, partition: PartitionIndex(index) };
            let directory = least_loaded(&mut loads)
                .ok_or_else(|| ChangeError::LogRefused { reason: "no data directory can be used".into() })?;
            let core = placement::least_loaded(&mut cores);
            records.push(MetadataRecord::PartitionPlaced { partition, host: state.host, core, directory });
        }
        self.append(&records).await?;
        tracing::info!(topic = %id, partitions = count, "topic created");
        self.open(id).await?;
        Ok(id)
    }

    fn check_partitions(&self, count: u32) -> Result<(), ChangeError> {
        let present = self.0.image.borrow().partitions_of(self.0.host).count();
        let asked = usize::try_from(count).unwrap_or(usize::MAX);
        let allowed = self.0.partitions_max;
        if present.saturating_add(asked) > allowed {
            return Err(ChangeError::TooManyPartitions { present, asked, allowed });
        }
        Ok(())
    }

    /// Has each core open its partitions of the topic.
    async fn open(&self, id: TopicId) -> Result<(), ChangeError> {
        let Some(topic) = self.0.image.borrow().topic(id).cloned() else { return Ok(()) };
        let openings = (0..).zip(&topic.partitions).map(|(index, partition)| Opening {
            name: TopicPartition { topic: id, partition: PartitionIndex(index) },
            partition: *partition,
            config: topic.config,
        });
        let results = self.open_all(openings.collect()).await;
        match results.into_iter().find_map(|(name, result)| Some((name, result.err()?))) {
            None => Ok(()),
            Some((name, reason)) => Err(ChangeError::NotOpened { partition: name.partition, reason }),
        }
    }

    /// Has each core open its own of these partitions, all cores at once; for each, why it is out of service, if it is.
    pub async fn open_all(&self, openings: Vec<Opening>) -> Vec<(TopicPartition, Result<(), String>)> {
        let state = &self.0;
        let mut by_core: BTreeMap<CoreId, Vec<Opening>> = BTreeMap::new();
        for opening in openings {
            let core = opening.partition.placement.map_or(state.mesh.core(), |placement| placement.core);
            by_core.entry(core).or_default().push(opening);
        }
        let here = by_core.remove(&state.mesh.core()).unwrap_or_default();
        let names_of = |openings: &[Opening]| openings.iter().map(|opening| opening.name).collect::<Vec<_>>();
        let elsewhere = by_core.into_iter().map(|(core, openings)| {
            let names = names_of(&openings);
            async move { (names, state.mesh.call(core, CoreRequest::Open(openings)).await) }
        });
        let names_here = names_of(&here);
        let (here, elsewhere) = futures_lite::future::zip(state.partitions.open_all(here), join_all(elsewhere)).await;
        let mut opened: Vec<_> = names_here.into_iter().zip(here).collect();
        for (names, answer) in elsewhere {
            match answer {
                Some(CoreReply::Opened(results)) => opened.extend(names.into_iter().zip(results)),
                Some(_) | None => opened.extend(names.into_iter().map(|name| (name, Err("its core has ended".into())))),
            }
        }
        opened
    }

    /// Has the owner remove a partition of a topic that is gone.
    async fn remove(&self, name: TopicPartition, core: CoreId) {
        if core == self.0.mesh.core() {
            self.0.partitions.delete(name).await;
        } else {
            self.0.mesh.call(core, CoreRequest::Delete(name)).await;
        }
    }

    fn topic_named(&self, name: &str) -> Result<TopicImage, ChangeError> {
        let topic = self.0.image.borrow().topic_named(name).cloned();
        topic.ok_or_else(|| ChangeError::UnknownTopic { name: name.chars().take(300).collect() })
    }

    async fn alter(self, name: &str, mut configs: Vec<(String, Option<String>)>) -> Result<TopicId, ChangeError> {
        let topic = self.topic_named(name)?;
        let given = configs.iter().filter_map(|(name, value)| Some((name.as_str(), value.as_deref()?)));
        TopicConfig::parse(given).map_err(ApplyError::from)?;
        // Each change is a record that must fit what is there: what goes makes room for what comes.
        configs.sort_by_key(|(_, value)| value.is_some());
        check_in_sync(&self.0.image.borrow().check_configs(topic.id, &configs)?)?;
        let records = configs.into_iter().map(|(name, value)| MetadataRecord::TopicConfigChanged { id: topic.id, name, value });
        let records: Vec<_> = records.collect();
        if !records.is_empty() {
            self.append(&records).await?;
            tracing::info!(topic = %topic.id, name, settings = records.len(), "topic altered");
        }
        Ok(topic.id)
    }

    async fn delete(self, name: &str) -> Result<TopicId, ChangeError> {
        let topic = self.topic_named(name)?;
        self.append(&[MetadataRecord::TopicDeleted { id: topic.id }]).await?;
        tracing::info!(topic = %topic.id, name, "topic deleted");
        for (index, partition) in (0..).zip(&topic.partitions) {
            let core = partition.placement.map_or(self.0.mesh.core(), |placement| placement.core);
            self.remove(TopicPartition { topic: topic.id, partition: PartitionIndex(index) }, core).await;
        }
        Ok(topic.id)
    }

    /// Appends records as one batch, awaits their durability and applies them.
    async fn append(&self, records: &[MetadataRecord]) -> Result<(), ChangeError> {
        if let Some(reason) = &*self.0.failed.borrow() {
            return Err(ChangeError::LogFailed { reason: reason.clone() });
        }
        // What follows the first record of a batch depends on nothing else that could have changed, or was checked with it: changes go
        // one by one.
        if let Some(first) = records.first() {
            self.0.image.borrow().check(first)?;
        }
        let refused = |reason: String| ChangeError::LogRefused { reason };
        let batch = encode(records, self.0.env.wall_clock()).map_err(|error| refused(error.to_string()))?;
        let request =
            ProduceRequest { partition: METADATA_PARTITION, acks: Acks::All, leader_epoch: NO_EPOCH, timeout: APPEND_TIMEOUT };
        let ticket = {
            let (view, _) = BatchView::split(&batch).map_err(|error| refused(error.to_string()))?;
            let ticket = self.0.shard.produce(request, &view);
            ticket.map_err(|error| refused(error.to_string()))?
        };
        if let Err(error) = ticket.await {
            let reason = error.to_string();
            tracing::error!(%reason, "the metadata log failed; nothing is changed any more until a restart");
            *self.0.failed.borrow_mut() = Some(reason.clone());
            return Err(ChangeError::LogFailed { reason });
        }
        {
            let mut image = self.0.image.borrow_mut();
            for record in records {
                image.apply(record).expect("a batch of records was checked, and changes go one by one");
            }
            reconfigure(&self.0.shard, &image, records);
        }
        self.tell_others(records).await;
        Ok(())
    }

    /// Ends when every core has the records in its image: who is answered then finds the change wherever it asks.
    async fn tell_others(&self, records: &[MetadataRecord]) {
        if !self.0.others_follow.get() {
            return;
        }
        // A core that has ended needs no image.
        join_all(others(&self.0.mesh).map(|core| self.0.mesh.call(core, CoreRequest::Apply(records.to_vec())))).await;
    }
}

/// A host that stands alone has one replica of each partition: more can never be in sync.
fn check_in_sync(config: &TopicConfig) -> Result<(), ChangeError> {
    match config.min_in_sync_replicas {
        0 | 1 => Ok(()),
        asked => Err(ChangeError::TooFewHosts { asked }),
    }
}

/// The records as the values of one batch.
fn encode(records: &[MetadataRecord], now: Timestamp) -> Result<Vec<u8>, BuildError> {
    let mut builder = BatchBuilder::new(Codec::None);
    for record in records {
        let value = record.encode();
        builder.push(&RecordFields { timestamp: now, key: None, value: Some(&value), headers: &[] })?;
    }
    builder.finish()
}

/// Takes the directory with the fewest partitions, and counts one more there.
fn least_loaded(loads: &mut [(DirectoryId, usize)]) -> Option<DirectoryId> {
    let (directory, load) = loads.iter_mut().min_by_key(|(_, load)| *load)?;
    *load += 1;
    Some(*directory)
}
