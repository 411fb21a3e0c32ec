//! From a frame to its handler: one match over the kinds of the native protocol.
//!
//! Lives on the connection core, shared by its connections. What every request has in common is checked here: Hello comes
//! first, the kind and its version are known, internal topics are out of reach.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use net::{Call, Frame, Native, Refused, RequestContext, Service};
use protocol::error::ErrorCode;
use protocol::frame::FrameHeader;
use protocol::ids::{ClusterId, HostId, METADATA_TOPIC, PartitionIndex, TopicPartition};
use protocol::native::Kind;
use runtime::Env;
use shard::Shard;
use storage::ChunkCache;

use crate::api::reply::refuse;
use crate::api::{Reply, create_topic, delete_topic, fetch, hello, init_producer, list_offsets, metadata, produce};
use crate::controller::Controller;

/// Serves native requests. A handle.
pub struct Dispatch<E: Env>(Rc<State<E>>);

struct State<E: Env> {
    env: E,
    shard: Shard<E>,
    controller: Controller<E>,
    cache: ChunkCache,
    cluster: ClusterId,
    host: HostId,
    host_name: String,
    native_address: Cell<Option<SocketAddr>>,
}

impl<E: Env> Clone for Dispatch<E> {
    fn clone(&self) -> Self {
        Dispatch(self.0.clone())
    }
}

/// Who this host is, as clients are told.
#[derive(Clone, Debug)]
pub struct HostIdentity {
    /// The cluster.
    pub cluster: ClusterId,
    /// The host's number.
    pub host: HostId,
    /// Its name.
    pub host_name: String,
}

/// A partition that no topic has.
const NOWHERE: TopicPartition = TopicPartition { topic: protocol::ids::TopicId(0), partition: PartitionIndex(0) };

impl<E: Env> Dispatch<E> {
    /// A dispatch to these.
    pub fn new(env: E, identity: HostIdentity, shard: Shard<E>, controller: Controller<E>, cache: ChunkCache) -> Dispatch<E> {
        Dispatch(Rc::new(State {
            env,
            shard,
            controller,
            cache,
            cluster: identity.cluster,
            host: identity.host,
            host_name: identity.host_name,
            native_address: Cell::new(None),
        }))
    }

    /// Tells where the native protocol listens, once that is known.
    pub fn set_native_address(&self, address: SocketAddr) {
        self.0.native_address.set(Some(address));
    }

    pub(crate) fn env(&self) -> &E {
        &self.0.env
    }

    pub(crate) fn shard(&self) -> &Shard<E> {
        &self.0.shard
    }

    pub(crate) fn controller(&self) -> &Controller<E> {
        &self.0.controller
    }

    pub(crate) fn cluster_id(&self) -> ClusterId {
        self.0.cluster
    }

    pub(crate) fn host_id(&self) -> HostId {
        self.0.host
    }

    pub(crate) fn host_name(&self) -> &str {
        &self.0.host_name
    }

    pub(crate) fn core_ports(&self) -> Vec<u16> {
        self.0.native_address.get().iter().map(SocketAddr::port).collect()
    }

    /// The partition, if clients may name it; else one that doesn't exist.
    pub(crate) fn readable(&self, partition: TopicPartition) -> TopicPartition {
        if partition.topic == METADATA_TOPIC { NOWHERE } else { partition }
    }

    /// Why the shard doesn't have a partition, as a code and in words.
    pub(crate) fn why_unknown(&self, partition: TopicPartition) -> (ErrorCode, String) {
        let image = self.0.controller.image();
        let topic = image.topic(partition.topic);
        match topic {
            None => (ErrorCode::UnknownTopicId, format!("there is no topic with id {}", partition.topic)),
            Some(topic) => match image.partition(partition) {
                None => {
                    let message =
                        format!("topic {} has {} partitions, not {}", topic.name, topic.partitions.len(), partition.partition);
                    (ErrorCode::UnknownTopicOrPartition, message)
                }
                Some(_) => {
                    let message = format!("{}/{} can't be used: its log isn't open", topic.name, partition.partition);
                    (ErrorCode::KafkaStorageError, message)
                }
            },
        }
    }
}

impl<E: Env> Service<Native> for Dispatch<E> {
    type Reply = Reply;

    fn open(&self, _: &RequestContext) -> Result<(), Refused> {
        Ok(())
    }

    fn call(&self, context: &mut RequestContext, frame: Frame<FrameHeader>) -> Call<Reply> {
        let header = frame.header;
        let Some(kind) = header.kind() else {
            let message = format!("kind {} is not known to this host", header.kind_number);
            return Call::Ready(refuse(&header, ErrorCode::UnsupportedVersion, &message));
        };
        if !kind.speaks(header.kind_version) {
            let (first, last) = kind.versions();
            let message = format!("version {} of {}: this host speaks {first} to {last}", header.kind_version, kind.name());
            return Call::Ready(refuse(&header, ErrorCode::UnsupportedVersion, &message));
        }
        if context.version.is_none() && kind != Kind::Hello {
            let message = format!("{} came before hello", kind.name());
            let last = Some(refuse(&header, ErrorCode::InvalidRequest, &message));
            return Call::Close { last, reason: message };
        }
        match kind {
            Kind::Hello => Call::Ready(hello::handle(self, context, &header, &frame.body)),
            Kind::CreateTopic => create_topic::handle(self, &header, &frame.body),
            Kind::DeleteTopic => delete_topic::handle(self, &header, &frame.body),
            Kind::Metadata => Call::Ready(metadata::handle(self, &header, &frame.body)),
            Kind::Produce => produce::handle(self, &frame),
            Kind::Fetch => fetch::handle(self, &header, &frame.body),
            Kind::ListOffsets => list_offsets::handle(self, &header, &frame.body),
            Kind::InitProducer => init_producer::handle(self, &header, &frame.body),
        }
    }

    async fn ready(&self, header: &FrameHeader) {
        if header.kind() == Some(Kind::Produce) {
            self.0.shard.ready().await;
        }
    }

    fn make_room(&self, bytes: usize) {
        self.0.cache.evict(bytes);
    }
}
