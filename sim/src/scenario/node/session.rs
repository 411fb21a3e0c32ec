//! A client's session with the host: connected, greeted, topics known.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use protocol::error::ErrorCode;
use protocol::ids::{PartitionIndex, ProducerId, TopicId};
use protocol::native::{
    CreateTopicReply, CreateTopicRequest, HelloRequest, InitProducerReply, InitProducerRequest, Kind, ListOffsetsPartition,
    ListOffsetsReply, ListOffsetsRequest, MetadataReply, MetadataRequest, OffsetSpec,
};
use runtime::Env;

use super::{Shared, Topic};
use crate::checker::history::Class;
use crate::scenario::client::{Client, Reply, RequestError};

/// How long a client waits for a reply that isn't a fetch's.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

/// A partition that a session can use.
#[derive(Clone)]
pub(super) struct Partition {
    /// `topic/index`, as in the history.
    pub name: String,
    pub topic: TopicId,
    pub index: PartitionIndex,
    pub class: Class,
    /// Records leave it as time goes by.
    pub retains: bool,
}

/// A session. Ends with its connection.
pub(super) struct Session {
    pub client: Client,
    pub partitions: Vec<Partition>,
    shared: Rc<Shared>,
}

/// A reply in time, or the connection is given up.
pub(super) async fn in_time(
    shared: &Shared,
    client: &Client,
    wait: Duration,
    reply: impl Future<Output = Result<Reply, RequestError>>,
) -> Result<Reply, RequestError> {
    let timeout = async {
        shared.env.sleep(wait).await;
        client.close();
        Err(RequestError::Broken)
    };
    futures_lite::future::or(reply, timeout).await
}

impl Session {
    /// Tries until it stands; `None` when the scenario ends.
    pub async fn open(shared: &Rc<Shared>) -> Option<Session> {
        while !shared.stopping.get() {
            match Session::try_open(shared, shared.any_address()).await {
                Ok(session) => return Some(session),
                Err(error) => {
                    shared.env.world().note(|| format!("no session: {error}"));
                    shared.pause(20_000).await;
                }
            }
        }
        None
    }

    /// One try.
    pub async fn try_open(shared: &Rc<Shared>, address: SocketAddr) -> Result<Session, RequestError> {
        let client = Client::connect(&shared.env, address).await?;
        let hello =
            HelloRequest { client_id: "sim".into(), client_software: "sim".into(), version_min: 1, version_max: 1, features: 0 };
        let mut session = Session { client, partitions: Vec::new(), shared: shared.clone() };
        session.ask(Kind::Hello, &hello.encode_body()).await?;
        for topic in &shared.plan.topics {
            session.find(topic).await?;
        }
        Ok(session)
    }

    async fn ask(&self, kind: Kind, body: &[u8]) -> Result<Reply, RequestError> {
        in_time(&self.shared, &self.client, REPLY_TIMEOUT, self.client.request(kind, body, &[], true)).await
    }

    /// Finds a topic, or creates it.
    async fn find(&mut self, topic: &Topic) -> Result<(), RequestError> {
        loop {
            let request = MetadataRequest { names: Some(vec![topic.name.clone()]) };
            let reply = self.ask(Kind::Metadata, &request.encode_body()).await?;
            let reply = MetadataReply::decode_body(&reply.body).expect("a sound reply");
            if let Some(found) = reply.topics.iter().find(|found| found.error == ErrorCode::None) {
                self.partitions.extend(found.partitions.iter().map(|partition| Partition {
                    name: format!("{}/{}", topic.name, partition.index),
                    topic: found.topic_id,
                    index: partition.index,
                    class: topic.class,
                    retains: topic.retention.is_some(),
                }));
                return Ok(());
            }
            let class = if topic.class == Class::Device { "device" } else { "written" };
            let mut configs =
                vec![("durability".to_owned(), class.to_owned()), ("segment.bytes".to_owned(), (1 << 20).to_string())];
            configs.extend(topic.segment_ms.map(|ms| ("segment.ms".to_owned(), ms.to_string())));
            configs.extend(topic.retention.map(|(name, value)| (name.to_owned(), value.to_string())));
            let request =
                CreateTopicRequest { name: topic.name.clone(), partitions: topic.partitions, configs, timeout_ms: 10_000 };
            match self.ask(Kind::CreateTopic, &request.encode_body()).await {
                Ok(reply) => drop(CreateTopicReply::decode_body(&reply.body).expect("a sound reply")),
                Err(RequestError::Refused(refused)) => {
                    self.shared.env.world().note(|| format!("topic refused: {refused:?}"));
                    if matches!(refused.code, ErrorCode::InvalidConfig | ErrorCode::InvalidRequest) {
                        self.shared.complain(format!("the topic was refused: {refused:?}"));
                        return Err(RequestError::Broken);
                    }
                    self.shared.pause(20_000).await;
                }
                Err(broken) => return Err(broken),
            }
        }
    }

    /// A producer id.
    pub async fn producer_id(&self) -> Result<ProducerId, RequestError> {
        let request = InitProducerRequest { timeout_ms: 10_000 };
        let reply = self.ask(Kind::InitProducer, &request.encode_body()).await?;
        Ok(InitProducerReply::decode_body(&reply.body).expect("a sound reply").producer_id)
    }

    /// One partition's offset; -1 for none.
    pub async fn offset(&self, partition: &Partition, at: OffsetSpec) -> Result<i64, RequestError> {
        let ask = ListOffsetsPartition { topic_id: partition.topic, partition: partition.index, at };
        let request = ListOffsetsRequest { partitions: vec![ask] };
        let reply = self.ask(Kind::ListOffsets, &request.encode_body()).await?;
        let reply = ListOffsetsReply::decode_body(&reply.body).expect("a sound reply");
        match reply.partitions.as_slice() {
            [one] if one.error == ErrorCode::None => Ok(one.offset.0),
            [one] => {
                self.shared.env.world().note(|| format!("no offset: {:?}", one.error));
                Err(RequestError::Broken)
            }
            other => panic!("one partition asked for, {} answered", other.len()),
        }
    }
}
