//! A client that produces, pipelined, with every acks level.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use protocol::error::ErrorCode;
use protocol::native::{Kind, ProduceBatch, ProduceReply, ProduceRequest};
use runtime::Env;
use runtime::local::Notify;

use super::Shared;
use super::session::{Partition, Session, in_time};
use crate::checker::history::{Acks, Action, Outcome};
use crate::recorder::Begun;
use crate::scenario::batches;
use crate::scenario::client::{Reply, RequestError};

/// How long a producer waits for an acknowledgement before it gives the connection up.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(30);

/// Produces until the scenario ends.
pub(super) async fn run(shared: Rc<Shared>) {
    shared.clients.set(shared.clients.get() + 1);
    let mut producer = shared.number();
    while let Some(session) = Session::open(&shared).await {
        let lives = shared.lives_ended.get();
        produce(&shared, &session, producer).await;
        session.client.close();
        if lives == shared.lives_ended.get() {
            // The host lives: what was sent on the old connection may still land behind what the new one sends.
            producer = shared.number();
        }
    }
    shared.clients.set(shared.clients.get() - 1);
}

async fn produce(shared: &Rc<Shared>, session: &Session, producer: u64) {
    let in_flight = Rc::new(Cell::new(0_usize));
    let returned = Notify::new();
    loop {
        let seen = returned.count();
        let full = in_flight.get() >= shared.plan.in_flight_max;
        if session.client.is_broken() || (shared.stopping.get() && in_flight.get() == 0) {
            return;
        }
        if full || shared.stopping.get() {
            returned.changed(seen).await;
            continue;
        }
        send_one(shared, session, producer, &in_flight, &returned);
        if shared.stream().chance(1, 2) {
            shared.pause(2 * shared.plan.pause_us).await;
        }
    }
}

/// What was sent in one batch.
struct Sent {
    partition: Partition,
    acks: Acks,
    sends: Vec<Begun>,
}

fn send_one(shared: &Rc<Shared>, session: &Session, producer: u64, in_flight: &Rc<Cell<usize>>, returned: &Notify) {
    let stream = shared.stream();
    let acks = match stream.below(10) {
        0 if !shared.healed.get() => Acks::None,
        0..=4 => Acks::Leader,
        _ => Acks::All,
    };
    let mut payload = Vec::new();
    let mut described = Vec::new();
    let mut sent = Vec::new();
    for _ in 0..1 + stream.below(2) {
        let partition = session.partitions[stream.index(session.partitions.len())].clone();
        let values: Vec<u64> = (0..1 + stream.below(5)).map(|_| shared.recorder.value()).collect();
        let wall = shared.env.wall_clock().0;
        let times: Vec<i64> = values.iter().map(|_| wall - i64::try_from(stream.below(50)).expect("small")).collect();
        let bytes = batches::make(&values, shared.draw_value_bytes(values.len()), &times);
        described.push(ProduceBatch {
            topic_id: partition.topic,
            partition: partition.index,
            bytes: u32::try_from(bytes.len()).expect("small"),
        });
        payload.extend(bytes);
        let begin = |value: &u64| {
            let (partition, class) = (partition.name.clone(), partition.class);
            let action = Action::Send { partition, value: *value, acks, class, producer: Some(producer), offset: None };
            shared.recorder.begin(action)
        };
        let sends = values.iter().map(begin).collect();
        sent.push(Sent { partition, acks, sends });
    }
    let number = match acks {
        Acks::None => 0,
        Acks::Leader => 1,
        Acks::All => -1,
    };
    let request = ProduceRequest { acks: number, timeout_ms: 10_000, batches: described };
    let reply = session.client.request(Kind::Produce, &request.encode_body(), &payload, acks != Acks::None);
    in_flight.set(in_flight.get() + 1);
    let (shared, client, in_flight, returned) = (shared.clone(), session.client.clone(), in_flight.clone(), returned.clone());
    let env = shared.env.clone();
    env.spawn_client(async move {
        let reply = in_time(&shared, &client, ACKNOWLEDGED_WITHIN, reply).await;
        settle(&shared, &sent, reply);
        in_flight.set(in_flight.get() - 1);
        returned.notify();
    });
}

fn settle(shared: &Shared, sent: &[Sent], reply: Result<Reply, RequestError>) {
    let reply = match reply {
        Ok(_) if sent[0].acks == Acks::None => return,
        Ok(reply) => ProduceReply::decode_body(&reply.body).expect("a sound reply"),
        Err(error) => {
            if !matches!(error, RequestError::Broken) {
                shared.complain(format!("a produce request was refused: {error}"));
            }
            return;
        }
    };
    assert_eq!(reply.results.len(), sent.len(), "a result for each batch");
    for (one, result) in sent.iter().zip(&reply.results) {
        match result.error {
            ErrorCode::None => {
                for (at, send) in (result.base_offset.0..).zip(&one.sends) {
                    shared.recorder.end(*send, Outcome::Ok, |action| {
                        if let Action::Send { offset, .. } = action {
                            *offset = Some(at);
                        }
                    });
                }
                shared.acknowledged.set(shared.acknowledged.get() + 1);
                shared.changed.notify();
            }
            // Said before anything is appended.
            ErrorCode::ThrottlingQuotaExceeded | ErrorCode::UnknownTopicId => {
                for send in &one.sends {
                    shared.recorder.end(*send, Outcome::Failed, |_| {});
                }
            }
            ErrorCode::KafkaStorageError
            | ErrorCode::RequestTimedOut
            | ErrorCode::NotLeaderOrFollower
            | ErrorCode::UnknownTopicOrPartition => {
                shared.env.world().note(|| format!("{}: {:?} {}", one.partition.name, result.error, result.message));
            }
            other => shared.complain(format!("{}: a sound batch was refused: {other:?} {}", one.partition.name, result.message)),
        }
    }
}
