//! A client with an idempotent producer per partition: what it hasn't had an acknowledgement for goes again, over any connection and in any life, and
//! must be in the log once and in order.
//!
//! On topics of the class `device` only: the other class may lose acknowledged records, and then sequences are missing by right.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use protocol::batch::{ProducerFields, stamp_producer};
use protocol::error::ErrorCode;
use protocol::ids::{ProducerEpoch, ProducerId, Sequence};
use protocol::limits::PRODUCER_BATCHES_REMEMBERED;
use protocol::native::{Kind, ProduceBatch, ProduceReply, ProduceRequest, ProduceResult};
use runtime::Env;

use super::Shared;
use super::session::{Partition, Session, in_time};
use crate::checker::history::{Acks, Action, Class, Outcome};
use crate::recorder::Begun;
use crate::scenario::batches;
use crate::scenario::client::RequestError;

/// How long it waits for an acknowledgement before it gives the connection up.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(30);

/// What one partition gets.
struct Line {
    id: ProducerId,
    /// The producer in the history.
    number: u64,
    next: Sequence,
    /// A batch of it was acknowledged.
    is_known: bool,
    unsettled: VecDeque<Unsettled>,
}

struct Unsettled {
    bytes: Vec<u8>,
    sends: Vec<Begun>,
}

/// Produces until the scenario ends.
pub(super) async fn run(shared: Rc<Shared>) {
    if shared.plan.topics.iter().all(|topic| topic.class != Class::Device) {
        return;
    }
    shared.clients.set(shared.clients.get() + 1);
    let mut lines = BTreeMap::new();
    while let Some(session) = Session::open(&shared).await {
        // An error ends the session; everything goes again in the next one.
        while !shared.stopping.get() && round(&shared, &session, &mut lines).await.is_ok() {
            shared.pause(2 * shared.plan.pause_us).await;
        }
        session.client.close();
    }
    shared.clients.set(shared.clients.get() - 1);
}

/// Sends what one partition lacks, with some more, and settles the answers.
async fn round(shared: &Rc<Shared>, session: &Session, lines: &mut BTreeMap<String, Line>) -> Result<(), RequestError> {
    let stream = shared.stream();
    let able: Vec<&Partition> = session.partitions.iter().filter(|partition| partition.class == Class::Device).collect();
    let partition = able[stream.index(able.len())].clone();
    if !lines.contains_key(&partition.name) {
        let id = session.producer_id().await?;
        let line = Line { id, number: shared.number(), next: Sequence(0), is_known: false, unsettled: VecDeque::new() };
        lines.insert(partition.name.clone(), line);
    }
    let line = lines.get_mut(&partition.name).expect("it was just put there");
    let most = if line.is_known { PRODUCER_BATCHES_REMEMBERED } else { 1 };
    let wanted = 1 + stream.index(most);
    while line.unsettled.len() < wanted {
        add(shared, line, &partition);
    }
    // Sometimes one that was acknowledged in truth, but not to this client, and one more of the same.
    let twice = stream.chance(1, 8);
    let mut replies = VecDeque::new();
    for (index, batch) in line.unsettled.iter().enumerate() {
        for _ in 0..if twice && index == 0 { 2 } else { 1 } {
            let described = ProduceBatch {
                topic_id: partition.topic,
                partition: partition.index,
                bytes: u32::try_from(batch.bytes.len()).expect("small"),
            };
            let request = ProduceRequest { acks: -1, timeout_ms: 10_000, batches: vec![described] };
            replies.push_back((index, session.client.request(Kind::Produce, &request.encode_body(), &batch.bytes, true)));
        }
    }
    let mut results: Vec<ProduceResult> = Vec::new();
    for (index, reply) in replies {
        let reply = in_time(shared, &session.client, ACKNOWLEDGED_WITHIN, reply).await?;
        let result = ProduceReply::decode_body(&reply.body).expect("a sound reply").results.remove(0);
        match results.get_mut(index) {
            None => results.push(result),
            Some(first) if !first.error.is_none() => *first = result,
            Some(first) if (result.error, result.base_offset) == (first.error, first.base_offset) => {}
            Some(first) => {
                let (at, again) = (first.base_offset, result.base_offset);
                shared.complain(format!("{}: sent twice, at {at} and {again}: {:?}", partition.name, result.error));
            }
        }
    }
    settle(shared, line, &partition, &results);
    Ok(())
}

/// One more batch, which has its place in the order from now on.
fn add(shared: &Shared, line: &mut Line, partition: &Partition) {
    let stream = shared.stream();
    let values: Vec<u64> = (0..1 + stream.below(5)).map(|_| shared.recorder.value()).collect();
    let times = vec![shared.env.wall_clock().0; values.len()];
    let mut bytes = batches::make(&values, shared.draw_value_bytes(values.len()), &times);
    let fields =
        ProducerFields { producer_id: line.id, producer_epoch: ProducerEpoch(0), base_sequence: line.next, transactional: false };
    stamp_producer(&mut bytes, fields);
    line.next = line.next.plus(u32::try_from(values.len()).expect("few"));
    let begin = |value: &u64| {
        shared.recorder.begin(Action::Send {
            partition: partition.name.clone(),
            value: *value,
            acks: Acks::All,
            class: Class::Device,
            producer: Some(line.number),
            offset: None,
        })
    };
    line.unsettled.push_back(Unsettled { sends: values.iter().map(begin).collect(), bytes });
}

fn settle(shared: &Shared, line: &mut Line, partition: &Partition, results: &[ProduceResult]) {
    // What stands behind one that has failed goes again with it, also if it was taken.
    let mut failed = false;
    for result in results {
        match result.error {
            ErrorCode::None if failed => {}
            ErrorCode::None => {
                let done = line.unsettled.pop_front().expect("a result for each batch");
                for (at, send) in (result.base_offset.0..).zip(done.sends) {
                    shared.recorder.end(send, Outcome::Ok, |action| {
                        if let Action::Send { offset, .. } = action {
                            *offset = Some(at);
                        }
                    });
                }
                line.is_known = true;
                shared.acknowledged.set(shared.acknowledged.get() + 1);
                shared.changed.notify();
            }
            ErrorCode::OutOfOrderSequenceNumber if failed => {}
            // It goes again, and so does what is behind it.
            ErrorCode::ThrottlingQuotaExceeded
            | ErrorCode::KafkaStorageError
            | ErrorCode::RequestTimedOut
            | ErrorCode::NotLeaderOrFollower
            | ErrorCode::UnknownTopicOrPartition
            | ErrorCode::UnknownTopicId => {
                failed = true;
                shared.env.world().note(|| format!("{}: {:?} {}", partition.name, result.error, result.message));
            }
            other => shared.complain(format!("{}: a sound batch was refused: {other:?} {}", partition.name, result.message)),
        }
    }
}
