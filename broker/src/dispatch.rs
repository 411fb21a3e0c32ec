//! From a frame to its handler: one match over the kinds of the native protocol.
//!
//! Lives on the connection core, shared by its connections. What every request has in common is checked here: Hello comes
//! first, the kind and its version are known, internal topics are out of reach.

use std::cell::{Ref, RefCell};
use std::rc::Rc;

use cluster::metadata::Image;
use net::{Call, Frame, Native, Refused, RequestContext, Service};
use protocol::error::ErrorCode;
use protocol::frame::FrameHeader;
use protocol::ids::{ClusterId, CoreId, HostId, METADATA_TOPIC, PartitionIndex, TopicPartition};
use protocol::native::Kind;
use runtime::Env;
use shard::Shard;
use storage::ChunkCache;

use crate::api::reply::refuse;
use crate::api::{
    Reply, alter_topic, create_topic, delete_records, delete_topic, fetch, hello, init_producer, list_offsets, metadata, produce,
};
use crate::changes::Changes;
use crate::core::SharedImage;
use crate::crossing::CoreMesh;

/// Serves native requests. A handle.
pub struct Dispatch<E: Env>(Rc<State<E>>);

struct State<E: Env> {
    env: E,
    shard: Shard<E>,
    changes: Changes<E>,
    image: SharedImage,
    mesh: CoreMesh,
    cache: ChunkCache,
    cluster: ClusterId,
    host: HostId,
    host_name: String,
    core_ports: RefCell<Vec<u16>>,
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
    pub fn new(
        env: E,
        identity: HostIdentity,
        shard: Shard<E>,
        changes: Changes<E>,
        image: SharedImage,
        mesh: CoreMesh,
        cache: ChunkCache,
    ) -> Dispatch<E> {
        Dispatch(Rc::new(State {
            env,
            shard,
            changes,
            image,
            mesh,
            cache,
            cluster: identity.cluster,
            host: identity.host,
            host_name: identity.host_name,
            core_ports: RefCell::default(),
        }))
    }

    /// Tells where each core listens, once that is known.
    pub(crate) fn set_core_ports(&self, ports: Vec<u16>) {
        *self.0.core_ports.borrow_mut() = ports;
    }

    pub(crate) fn env(&self) -> &E {
        &self.0.env
    }

    pub(crate) fn shard(&self) -> &Shard<E> {
        &self.0.shard
    }

    pub(crate) fn changes(&self) -> &Changes<E> {
        &self.0.changes
    }

    pub(crate) fn image(&self) -> Ref<'_, Image> {
        self.0.image.borrow()
    }

    pub(crate) fn mesh(&self) -> &CoreMesh {
        &self.0.mesh
    }

    /// The other core that owns the partition; `None` if it is this one's, or nobody's.
    pub(crate) fn other_owner(&self, partition: TopicPartition) -> Option<CoreId> {
        let mesh = &self.0.mesh;
        if mesh.cores() == 1 {
            return None;
        }
        let core = self.image().partition(partition)?.placement?.core;
        (core != mesh.core() && usize::from(core.0) < mesh.cores()).then_some(core)
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
        self.0.core_ports.borrow().clone()
    }

    /// The partition, if clients may name it; else one that doesn't exist.
    pub(crate) fn readable(&self, partition: TopicPartition) -> TopicPartition {
        if partition.topic == METADATA_TOPIC { NOWHERE } else { partition }
    }

    /// Why the shard doesn't have a partition, as a code and in words.
    pub(crate) fn why_unknown(&self, partition: TopicPartition) -> (ErrorCode, String) {
        let image = self.image();
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
            Kind::AlterTopic => alter_topic::handle(self, &header, &frame.body),
            Kind::DeleteTopic => delete_topic::handle(self, &header, &frame.body),
            Kind::Metadata => metadata::handle(self, &header, &frame.body),
            Kind::Produce => produce::handle(self, &frame),
            Kind::Fetch => fetch::handle(self, &header, &frame.body),
            Kind::ListOffsets => list_offsets::handle(self, &header, &frame.body),
            Kind::InitProducer => init_producer::handle(self, &header, &frame.body),
            Kind::DeleteRecords => delete_records::handle(self, &header, &frame.body),
        }
    }

    async fn ready(&self, header: &FrameHeader) {
        let produces = header.kind() == Some(Kind::Produce);
        // Both must hold in the turn in which the request is called.
        loop {
            if produces {
                self.0.shard.ready().await;
            }
            if self.0.mesh.is_ready() {
                return;
            }
            self.0.mesh.ready().await;
        }
    }

    fn make_room(&self, bytes: usize) {
        self.0.cache.evict(bytes);
    }
}
