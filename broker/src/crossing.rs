//! What the cores of a host say to each other, and how a core serves what others ask of it.
//!
//! A request that reaches a core crosses to the core that owns its partition: as one message per owner, with the bytes lent, answered by one
//! reply whose slot was reserved when the request was sent (T89). The metadata log and the controller are on core 0; the others have a copy
//! of the image and ask core 0 for changes.
//!
//! Order: a core takes the requests of another one in the order in which that one sent them, and appends before it takes the next; so order on
//! a connection is order in a partition, wherever the connection is.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use cluster::metadata::{Image, MetadataRecord};
use cluster::replica::Acks;
use net::ConnectionLimits;
use protocol::ids::{BrokerEpoch, ClusterId, CoreId, DirectoryId, HostId, ProducerId, TopicId, TopicPartition};
use protocol::native::{
    DeleteBefore, DeleteRecordsPartitionReply, FetchPartitionReply, ListOffsetsPartitionReply, OffsetSpec, ProduceResult,
};
use runtime::mesh::{Answer, Asked, Mesh};
use runtime::{Env, Loan};
use shard::{PartitionDescription, StopReport};
use smallvec::SmallVec;
use storage::SharedDirectory;

use crate::api::{delete_records, fetch, list_offsets, produce};
use crate::controller::ChangeError;
use crate::core::Core;
use crate::partitions::Opening;

/// The cores of this host, as one of them reaches them. A handle.
pub type CoreMesh = Mesh<CoreRequest, CoreReply>;

/// What one core asks of another.
pub enum CoreRequest {
    /// Appends batches.
    Produce(CrossingProduce),
    /// Reads, and waits for bytes where there are too few.
    Fetch(shard::FetchRequest),
    /// Offsets by name or time.
    ListOffsets(Vec<(TopicPartition, OffsetSpec)>),
    /// Deletes records.
    DeleteRecords {
        /// Where, and up to where.
        wanted: Vec<(TopicPartition, DeleteBefore)>,
        /// How long it may take.
        timeout: Duration,
    },
    /// Offsets and sizes.
    Describe(Vec<TopicPartition>),
    /// A change of the metadata; of core 0 only.
    Change(Change),
    /// From core 0: what a core has to know before it serves.
    Begin(Box<Beginning>),
    /// From core 0: records that the metadata log has.
    Apply(Vec<MetadataRecord>),
    /// From core 0: partitions to recover or make.
    Open(Vec<Opening>),
    /// From core 0: a partition to remove, with its files.
    Delete(TopicPartition),
    /// From core 0: listen with it at the first address, and alone at the second.
    Listen {
        /// Where all cores listen.
        shared: SocketAddr,
        /// Where this core listens.
        own: SocketAddr,
    },
    /// From core 0: accept connections; the ports of all cores.
    Serve(Vec<u16>),
    /// A failed flush has stopped the logs of a directory.
    DirectoryFailed {
        /// The directory.
        directory: DirectoryId,
        /// What happened.
        words: String,
    },
    /// From core 0: accept and read no more, answer what is owed.
    Close,
    /// From core 0: flush everything and end.
    Stop,
}

/// What it answers.
pub enum CoreReply {
    /// To `Produce`, in the order of its batches.
    Produced(SmallVec<[ProduceResult; 1]>),
    /// To `Fetch`, in the order of its partitions, and their bytes.
    Fetched(Vec<FetchPartitionReply>, Vec<Loan>),
    /// To `ListOffsets`, in the order asked.
    Listed(Vec<ListOffsetsPartitionReply>),
    /// To `DeleteRecords`, in the order asked.
    Begins(Vec<DeleteRecordsPartitionReply>),
    /// To `Describe`, in the order asked; `None` for what isn't open there.
    Described(Vec<Option<PartitionDescription>>),
    /// To `Change`.
    Changed(Result<Changed, ChangeError>),
    /// To `Begin`: it serves its part, or why not.
    Begun(Result<(), String>),
    /// To `Open`, in the order asked: why a partition is out of service, if it is.
    Opened(Vec<Result<(), String>>),
    /// To `Listen`: the port of its own, or which address can't be listened on.
    Listening(Result<u16, (SocketAddr, io::Error)>),
    /// To `Stop`.
    Stopped(StopReport),
    /// To everything else.
    Done,
}

/// Batches for partitions of another core.
pub struct CrossingProduce {
    /// When they count as acknowledged.
    pub acks: Acks,
    /// How long the acknowledgement is waited for.
    pub timeout: Duration,
    /// The batches, in their order.
    pub batches: SmallVec<[(TopicPartition, Loan); 1]>,
}

/// A change that core 0 makes.
pub enum Change {
    /// A topic is made.
    CreateTopic {
        /// Its name.
        name: String,
        /// Its partitions.
        partitions: u32,
        /// Its settings.
        configs: Vec<(String, String)>,
    },
    /// The topic of this name is removed.
    DeleteTopic(String),
    /// Settings of a topic are changed.
    AlterTopic {
        /// Its name.
        name: String,
        /// The settings, and their values; `None`: back to the default.
        configs: Vec<(String, Option<String>)>,
    },
    /// A producer id is given away.
    ProducerId,
}

/// What a change has given.
pub enum Changed {
    /// The topic concerned.
    Topic(TopicId),
    /// The producer id.
    Producer(ProducerId),
}

/// What a core has to know before it serves.
pub struct Beginning {
    /// The cluster.
    pub cluster: ClusterId,
    /// The host.
    pub host: HostId,
    /// Its name, as clients are told.
    pub host_name: String,
    /// The number of this start.
    pub broker_epoch: BrokerEpoch,
    /// The metadata.
    pub image: Image,
    /// The data directories.
    pub directories: Vec<SharedDirectory>,
    /// Limits of its listeners.
    pub connections: ConnectionLimits,
}

/// Serves what other cores ask, until one asks to stop.
pub async fn serve<E: Env>(core: Core<E>) {
    loop {
        let Asked { from, request, answer } = core.mesh().next().await;
        if let Some(answer) = answer_request(&core, from, request, answer).await {
            // The last one: core 0 waits for it.
            answer.send(CoreReply::Stopped(core.shard().stop().await));
            return;
        }
    }
}

/// Answers one request, or starts to. The answer to `Stop` is left to the caller.
async fn answer_request<E: Env>(
    core: &Core<E>,
    from: CoreId,
    request: CoreRequest,
    answer: Answer<CoreReply>,
) -> Option<Answer<CoreReply>> {
    let dispatch = core.dispatch();
    match request {
        CoreRequest::Produce(request) => {
            // Those behind it wait too, and then the sender, for want of credit.
            dispatch.shard().ready().await;
            produce::serve(dispatch, request, answer);
        }
        CoreRequest::Fetch(request) => fetch::serve(dispatch, request, answer),
        CoreRequest::ListOffsets(wanted) => {
            let dispatch = dispatch.clone();
            core.env().spawn(async move { answer.send(CoreReply::Listed(list_offsets::on_this_core(&dispatch, &wanted).await)) });
        }
        CoreRequest::DeleteRecords { wanted, timeout } => {
            let dispatch = dispatch.clone();
            core.env().spawn(async move {
                answer.send(CoreReply::Begins(delete_records::on_this_core(&dispatch, &wanted, timeout).await));
            });
        }
        CoreRequest::Describe(partitions) => {
            let described = partitions.into_iter().map(|partition| dispatch.shard().describe(partition));
            answer.send(CoreReply::Described(described.collect()));
        }
        CoreRequest::Change(change) => {
            let changed = dispatch.changes().make(change);
            core.env().spawn(async move { answer.send(CoreReply::Changed(changed.await)) });
        }
        CoreRequest::Apply(records) => {
            core.apply(&records);
            answer.send(CoreReply::Done);
        }
        CoreRequest::Open(openings) => {
            let partitions = core.partitions().clone();
            core.env().spawn(async move { answer.send(CoreReply::Opened(partitions.open_all(openings).await)) });
        }
        CoreRequest::Delete(partition) => {
            let partitions = core.partitions().clone();
            core.env().spawn(async move {
                partitions.delete(partition).await;
                answer.send(CoreReply::Done);
            });
        }
        CoreRequest::DirectoryFailed { directory, words } => {
            core.fail_directory(directory, &words);
            answer.send(CoreReply::Done);
        }
        CoreRequest::Listen { shared, own } => answer.send(CoreReply::Listening(core.listen_with_others(shared, own).await)),
        CoreRequest::Serve(ports) => {
            core.start_serving(ports);
            answer.send(CoreReply::Done);
        }
        CoreRequest::Close => {
            let core = core.clone();
            core.env().clone().spawn(async move {
                core.close().await;
                answer.send(CoreReply::Done);
            });
        }
        CoreRequest::Begin(_) => {
            tracing::error!(%from, "a core that serves was told to begin");
            answer.send(CoreReply::Begun(Err("it serves already".into())));
        }
        CoreRequest::Stop => return Some(answer),
    }
    None
}
