//! The client: one greeted server, its topics, and what producers and consumers need to reach the cores.
//!
//! Any task may call it. Requests about topics go over one control connection, opened again when it broke. Metadata is
//! cached per topic; who finds it stale asks for a refresh.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;
use protocol::error::ErrorCode;
use protocol::ids::{ClusterId, CoreId, HostId, LeaderEpoch, Offset, PartitionIndex, ProducerId, Timestamp, TopicId};
use protocol::limits;
use protocol::native::{
    AlterTopicReply, AlterTopicRequest, CreateTopicReply, CreateTopicRequest, DeleteBefore, DeleteRecordsPartition,
    DeleteRecordsReply, DeleteRecordsRequest, DeleteTopicReply, DeleteTopicRequest, HelloReply, InitProducerReply,
    InitProducerRequest, Kind, ListOffsetsPartition, ListOffsetsReply, ListOffsetsRequest, MetadataReply, MetadataRequest,
    MetadataTopic, OffsetSpec,
};
use tokio::time::Instant;

use crate::config::ClientConfig;
use crate::connection::{Connection, Reply, Request, ServerAddress};
use crate::error::{ConnectError, RequestError};

/// A connection to a cluster, through one of its hosts. Clones are the same client.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use corelane_client::{Client, ClientConfig};
///
/// let client = Client::connect("127.0.0.1:9090", ClientConfig::default()).await?;
/// client.create_topic("readings", 4, &[("durability", "device")]).await?;
/// for topic in client.list_topics().await? {
///     println!("{} has {} partitions", topic.name, topic.partitions.len());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    inner: Arc<ClientInner>,
}

struct ClientInner {
    address: ServerAddress,
    config: ClientConfig,
    host: HostDescription,
    control: tokio::sync::Mutex<Option<Connection>>,
    topics: Mutex<HashMap<String, CachedTopic>>,
}

struct CachedTopic {
    route: Arc<TopicRoute>,
    asked_at: Instant,
}

/// Where a topic's partitions are.
#[derive(Debug)]
pub(crate) struct TopicRoute {
    pub name: Arc<str>,
    pub topic_id: TopicId,
    /// Owner core and leader epoch, by partition index.
    pub partitions: Vec<(CoreId, LeaderEpoch)>,
}

/// The greeted host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDescription {
    /// The cluster it belongs to.
    pub cluster_id: ClusterId,
    /// Its number.
    pub host_id: HostId,
    /// Its name, empty if it has none.
    pub host_name: String,
    /// The port of each of its cores, by core.
    pub core_ports: Vec<u16>,
}

/// A topic and its partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicDescription {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub topic_id: TopicId,
    /// Its settings.
    pub configs: Vec<(String, String)>,
    /// Its partitions, by index.
    pub partitions: Vec<PartitionDescription>,
}

/// A partition as the server describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionDescription {
    /// Its index in the topic.
    pub index: PartitionIndex,
    /// The current leadership.
    pub leader_epoch: LeaderEpoch,
    /// The core that owns it.
    pub core: CoreId,
    /// The first offset that exists.
    pub log_start: Offset,
    /// The end of what consumers see, exclusive.
    pub high_watermark: Offset,
    /// The end of the log, exclusive.
    pub log_end: Offset,
    /// Size of the log in bytes.
    pub size_bytes: u64,
}

/// A place in a partition's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The first record that exists.
    Start,
    /// Behind the last record that consumers see.
    End,
    /// The record with this offset.
    Offset(Offset),
    /// The first record at or after this time; the end if there is none.
    Time(Timestamp),
}

/// The answer to [`Client::list_offsets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedOffset {
    /// The partition.
    pub partition: PartitionIndex,
    /// The offset; none if no record is at or after the asked time.
    pub offset: Option<Offset>,
    /// That record's timestamp, where it was looked for by time.
    pub timestamp: Option<Timestamp>,
}

impl Client {
    /// Connects to `server` (`HOST:PORT`, native port) and greets it.
    ///
    /// # Errors
    /// If the address makes no sense, nobody answers in time, or who answers speaks something else.
    pub async fn connect(server: &str, config: ClientConfig) -> Result<Client, ConnectError> {
        let address = ServerAddress::parse(server)?;
        if config.client_id.len() > limits::CLIENT_ID_BYTES_MAX {
            let reason = format!(
                "the client id has {} bytes, at most {} are allowed",
                config.client_id.len(),
                limits::CLIENT_ID_BYTES_MAX
            );
            return Err(ConnectError::Greeting { server: server.to_owned(), reason });
        }
        let (connection, hello) = Connection::open(&address, &config).await?;
        let inner = ClientInner {
            address,
            config,
            host: describe_host(hello),
            control: tokio::sync::Mutex::new(Some(connection)),
            topics: Mutex::default(),
        };
        Ok(Client { inner: Arc::new(inner) })
    }

    /// The greeted host.
    #[must_use]
    pub fn host(&self) -> &HostDescription {
        &self.inner.host
    }

    /// Makes a topic; its configs are `(name, value)` pairs. Ends when it can be used.
    ///
    /// # Errors
    /// If the server refuses (a topic of this name exists, a config is unknown), or the outcome isn't known.
    pub async fn create_topic(&self, name: &str, partitions: u32, configs: &[(&str, &str)]) -> Result<TopicId, RequestError> {
        let wait = self.inner.config.request_timeout;
        let body = CreateTopicRequest {
            name: name.to_owned(),
            partitions,
            configs: configs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            timeout_ms: milliseconds(wait),
        };
        let request = Request { wait, ..Request::new(Kind::CreateTopic, body.encode_body()) };
        let reply = self.control_request(request, Repeat::IfNotSent).await?;
        CreateTopicReply::decode_body(&reply.body).map(|reply| reply.topic_id).map_err(|error| self.malformed(error))
    }

    /// Changes settings of a topic, all of them or none; `None` as a value: back to the default. Ends when they are in force.
    ///
    /// # Errors
    /// If the server refuses (no topic of this name, a setting is unknown), or the outcome isn't known.
    pub async fn alter_topic(&self, name: &str, configs: &[(&str, Option<&str>)]) -> Result<TopicId, RequestError> {
        let wait = self.inner.config.request_timeout;
        let configs = configs.iter().map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned)));
        let body = AlterTopicRequest { name: name.to_owned(), configs: configs.collect(), timeout_ms: milliseconds(wait) };
        let request = Request { wait, ..Request::new(Kind::AlterTopic, body.encode_body()) };
        let reply = self.control_request(request, Repeat::Always).await?;
        AlterTopicReply::decode_body(&reply.body).map(|reply| reply.topic_id).map_err(|error| self.malformed(error))
    }

    /// Removes a topic and all its records.
    ///
    /// # Errors
    /// If the server refuses, or the outcome isn't known.
    pub async fn delete_topic(&self, name: &str) -> Result<TopicId, RequestError> {
        let body = DeleteTopicRequest { name: name.to_owned() };
        let request = Request::new(Kind::DeleteTopic, body.encode_body());
        let reply = self.control_request(request, Repeat::IfNotSent).await?;
        self.lock_topics().remove(name);
        DeleteTopicReply::decode_body(&reply.body).map(|reply| reply.topic_id).map_err(|error| self.malformed(error))
    }

    /// A producer id that nobody has had.
    pub(crate) async fn init_producer(&self) -> Result<ProducerId, RequestError> {
        let wait = self.inner.config.request_timeout;
        let body = InitProducerRequest { timeout_ms: milliseconds(wait) };
        let request = Request { wait, ..Request::new(Kind::InitProducer, body.encode_body()) };
        let reply = self.control_request(request, Repeat::Always).await?;
        InitProducerReply::decode_body(&reply.body).map(|reply| reply.producer_id).map_err(|error| self.malformed(error))
    }

    /// All topics, by name.
    ///
    /// # Errors
    /// If no reply comes.
    pub async fn list_topics(&self) -> Result<Vec<TopicDescription>, RequestError> {
        let topics = self.metadata(None).await?;
        Ok(topics.into_iter().filter(|topic| topic.error == ErrorCode::None).map(describe_topic).collect())
    }

    /// One topic.
    ///
    /// # Errors
    /// If there is none of that name, or no reply comes.
    pub async fn describe_topic(&self, name: &str) -> Result<TopicDescription, RequestError> {
        let topics = self.metadata(Some(vec![name.to_owned()])).await?;
        let topic = topics.into_iter().find(|topic| topic.name == name);
        let unknown = || RequestError::UnknownTopic { topic: name.to_owned() };
        let topic = topic.ok_or_else(unknown)?;
        match topic.error {
            ErrorCode::None => Ok(describe_topic(topic)),
            ErrorCode::UnknownTopicOrPartition | ErrorCode::UnknownTopicId => Err(unknown()),
            code => Err(RequestError::Refused { code, message: format!("metadata of topic {name}") }),
        }
    }

    /// Offsets of places in some partitions of a topic, in the order asked.
    ///
    /// # Errors
    /// If a partition doesn't exist, or no reply comes.
    pub async fn list_offsets(
        &self,
        topic: &str,
        places: &[(PartitionIndex, Position)],
    ) -> Result<Vec<ListedOffset>, RequestError> {
        let route = self.route(topic).await?;
        match self.list_offsets_of(&route, places).await {
            // Deleted and created again meanwhile, under another id.
            Err(RequestError::Refused { code, .. }) if is_stale(code) => {
                let route = self.refresh(topic).await?;
                self.list_offsets_of(&route, places).await
            }
            other => other,
        }
    }

    async fn list_offsets_of(
        &self,
        route: &TopicRoute,
        places: &[(PartitionIndex, Position)],
    ) -> Result<Vec<ListedOffset>, RequestError> {
        let mut asked = Vec::with_capacity(places.len());
        for (partition, position) in places {
            route.check(*partition)?;
            let at = match position {
                Position::Start => OffsetSpec::Earliest,
                Position::End => OffsetSpec::Latest,
                Position::Time(timestamp) if timestamp.0 < 0 => {
                    let reason = format!("a time of {timestamp} ms, below zero");
                    return Err(RequestError::Invalid { reason });
                }
                Position::Time(timestamp) => OffsetSpec::AtOrAfter(*timestamp),
                // Nothing to look up; its answer is replaced below.
                Position::Offset(_) => OffsetSpec::Earliest,
            };
            asked.push(ListOffsetsPartition { topic_id: route.topic_id, partition: *partition, at });
        }
        let body = ListOffsetsRequest { partitions: asked };
        let request = Request::new(Kind::ListOffsets, body.encode_body());
        let reply = self.control_request(request, Repeat::Always).await?;
        let reply = ListOffsetsReply::decode_body(&reply.body).map_err(|error| self.malformed(error))?;
        if reply.partitions.len() != places.len() {
            let (found, asked) = (reply.partitions.len(), places.len());
            return Err(self.malformed(format!("{found} partitions in a reply for {asked}")));
        }
        let mut listed = Vec::with_capacity(places.len());
        for (answer, (partition, position)) in reply.partitions.iter().zip(places) {
            if answer.error != ErrorCode::None {
                let message = format!("offsets of {}/{partition}", route.name);
                return Err(RequestError::Refused { code: answer.error, message });
            }
            listed.push(match position {
                Position::Offset(offset) => ListedOffset { partition: *partition, offset: Some(*offset), timestamp: None },
                _ => ListedOffset {
                    partition: *partition,
                    offset: (answer.offset.0 >= 0).then_some(answer.offset),
                    timestamp: (answer.timestamp.0 >= 0).then_some(answer.timestamp),
                },
            });
        }
        Ok(listed)
    }

    /// Deletes the records below an offset in some partitions of a topic, for ever; `None`: all that consumers see. Where the partitions begin then, in
    /// the order asked: at stable storage it is known when this ends.
    ///
    /// # Errors
    /// If a partition doesn't exist, an offset is behind what consumers see, or the outcome isn't known. The other partitions' records may be deleted then.
    pub async fn delete_records(
        &self,
        topic: &str,
        before: &[(PartitionIndex, Option<Offset>)],
    ) -> Result<Vec<Offset>, RequestError> {
        let wait = self.inner.config.request_timeout;
        let route = self.refresh(topic).await?;
        let mut partitions = Vec::with_capacity(before.len());
        for (partition, before) in before {
            route.check(*partition)?;
            if let Some(negative) = before.filter(|offset| offset.0 < 0) {
                return Err(RequestError::Invalid { reason: format!("records before offset {negative}, below zero") });
            }
            let before = before.map_or(DeleteBefore::HighWatermark, DeleteBefore::Offset);
            partitions.push(DeleteRecordsPartition { topic_id: route.topic_id, partition: *partition, before });
        }
        let body = DeleteRecordsRequest { partitions, timeout_ms: milliseconds(wait) };
        let request = Request { wait, ..Request::new(Kind::DeleteRecords, body.encode_body()) };
        let reply = self.control_request(request, Repeat::Always).await?;
        let reply = DeleteRecordsReply::decode_body(&reply.body).map_err(|error| self.malformed(error))?;
        if reply.partitions.len() != before.len() {
            let (found, asked) = (reply.partitions.len(), before.len());
            return Err(self.malformed(format!("{found} partitions in a reply for {asked}")));
        }
        let begins = reply.partitions.iter().zip(before).map(|(answer, (partition, before))| match answer.error {
            ErrorCode::None => Ok(answer.log_start),
            code => {
                let up_to = before.map_or_else(|| "the high watermark".to_owned(), |offset| format!("offset {offset}"));
                let message = format!("deleting records of {}/{partition} before {up_to}", route.name);
                Err(RequestError::Refused { code, message })
            }
        });
        begins.collect()
    }

    /// Where a topic's partitions are, as last heard. What was heard long ago is asked again, and kept if nobody answers.
    pub(crate) async fn route(&self, topic: &str) -> Result<Arc<TopicRoute>, RequestError> {
        let cached = self.lock_topics().get(topic).map(|cached| (cached.route.clone(), cached.asked_at));
        let Some((route, asked_at)) = cached else { return self.refresh(topic).await };
        if asked_at.elapsed() < self.inner.config.metadata_age_max {
            return Ok(route);
        }
        match self.refresh(topic).await {
            Err(error) if error.is_passing() => Ok(route),
            other => other,
        }
    }

    /// Where a topic's partitions are now.
    pub(crate) async fn refresh(&self, topic: &str) -> Result<Arc<TopicRoute>, RequestError> {
        let asked_at = Instant::now();
        let described = match self.describe_topic(topic).await {
            Ok(described) => described,
            Err(error) => {
                if matches!(error, RequestError::UnknownTopic { .. }) {
                    self.lock_topics().remove(topic);
                }
                return Err(error);
            }
        };
        let mut partitions = described.partitions;
        partitions.sort_unstable_by_key(|partition| partition.index);
        let complete = partitions.iter().zip(0u32..).all(|(partition, index)| partition.index == PartitionIndex(index));
        if !complete || partitions.is_empty() {
            return Err(self.malformed(format!("metadata of topic {topic} has gaps in its partitions")));
        }
        let route = Arc::new(TopicRoute {
            name: topic.into(),
            topic_id: described.topic_id,
            partitions: partitions.iter().map(|partition| (partition.core, partition.leader_epoch)).collect(),
        });
        self.lock_topics().insert(topic.to_owned(), CachedTopic { route: route.clone(), asked_at });
        Ok(route)
    }

    /// A new connection to a core of the host (the greeted port if that core has none of its own).
    pub(crate) async fn connect_core(&self, core: CoreId) -> Result<Connection, ConnectError> {
        let port = self.inner.host.core_ports.get(usize::from(core.0)).copied().filter(|port| *port != 0);
        let address = ServerAddress { host: self.inner.address.host.clone(), port: port.unwrap_or(self.inner.address.port) };
        let (connection, _) = Connection::open(&address, &self.inner.config).await?;
        Ok(connection)
    }

    async fn metadata(&self, names: Option<Vec<String>>) -> Result<Vec<MetadataTopic>, RequestError> {
        let request = Request::new(Kind::Metadata, MetadataRequest { names }.encode_body());
        let reply = self.control_request(request, Repeat::Always).await?;
        MetadataReply::decode_body(&reply.body).map(|reply| reply.topics).map_err(|error| self.malformed(error))
    }

    /// Sends a request over the control connection; once more over a new one if the old one turns out to be broken and
    /// `repeat` allows it.
    async fn control_request(&self, request: Request, repeat: Repeat) -> Result<Reply, RequestError> {
        let connection = self.control_connection().await?;
        let again = Request { wait: request.wait, ..Request::new(request.kind, request.body.clone()) };
        match connection.request(request).await {
            Err(RequestError::NotSent { .. }) => {}
            Err(RequestError::Lost { .. }) if repeat == Repeat::Always => {}
            other => return other,
        }
        self.control_connection().await?.request(again).await
    }

    async fn control_connection(&self) -> Result<Connection, ConnectError> {
        let mut control = self.inner.control.lock().await;
        if let Some(connection) = control.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        let (connection, _) = Connection::open(&self.inner.address, &self.inner.config).await?;
        *control = Some(connection.clone());
        Ok(connection)
    }

    fn malformed(&self, reason: impl ToString) -> RequestError {
        RequestError::Malformed { server: self.inner.address.to_string(), reason: reason.to_string() }
    }

    fn lock_topics(&self) -> MutexGuard<'_, HashMap<String, CachedTopic>> {
        self.inner.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TopicRoute {
    pub fn partition_count(&self) -> u32 {
        // A reply's body is bounded far below 2^32 partitions.
        u32::try_from(self.partitions.len()).unwrap_or(u32::MAX)
    }

    /// Owner core and leader epoch of a partition.
    pub fn of(&self, partition: PartitionIndex) -> Option<(CoreId, LeaderEpoch)> {
        self.partitions.get(usize::try_from(partition.0).ok()?).copied()
    }

    pub fn check(&self, partition: PartitionIndex) -> Result<(), RequestError> {
        match self.of(partition) {
            Some(_) => Ok(()),
            None => Err(RequestError::UnknownPartition {
                topic: self.name.to_string(),
                partition,
                partitions: self.partition_count(),
            }),
        }
    }
}

/// When a request may be sent a second time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeat {
    /// If not one byte of it left.
    IfNotSent,
    /// Always: it changes nothing.
    Always,
}

/// Codes that say that the cached route is out of date.
pub(crate) fn is_stale(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::NotLeaderOrFollower
            | ErrorCode::UnknownTopicId
            | ErrorCode::UnknownTopicOrPartition
            | ErrorCode::FencedLeaderEpoch
            | ErrorCode::UnknownLeaderEpoch
    )
}

pub(crate) fn milliseconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

fn describe_host(hello: HelloReply) -> HostDescription {
    HostDescription {
        cluster_id: hello.cluster_id,
        host_id: hello.host_id,
        host_name: hello.host_name,
        core_ports: hello.core_ports,
    }
}

fn describe_topic(topic: MetadataTopic) -> TopicDescription {
    let partitions = topic.partitions.iter().map(|partition| PartitionDescription {
        index: partition.index,
        leader_epoch: partition.leader_epoch,
        core: partition.core,
        log_start: partition.log_start,
        high_watermark: partition.high_watermark,
        log_end: partition.log_end,
        size_bytes: partition.size_bytes,
    });
    TopicDescription { name: topic.name, topic_id: topic.topic_id, configs: topic.configs, partitions: partitions.collect() }
}
