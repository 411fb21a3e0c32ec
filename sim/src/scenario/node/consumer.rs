//! A client that fetches each partition from where it was, and asks for offsets in between.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use protocol::error::ErrorCode;
use protocol::ids::{LeaderEpoch, Offset, Timestamp};
use protocol::native::{FetchPartition, FetchReply, FetchRequest, IsolationLevel, Kind, OffsetSpec};
use runtime::Env;

use super::Shared;
use super::session::{Partition, Session, in_time};
use crate::checker::history::{Action, Class, Outcome};
use crate::recorder::Begun;
use crate::scenario::batches;
use crate::scenario::client::RequestError;

/// Where one consumer is in a partition.
#[derive(Clone, Copy)]
struct Place {
    consumer: u64,
    position: i64,
}

/// Consumes until the scenario ends.
pub(super) async fn run(shared: Rc<Shared>) {
    shared.clients.set(shared.clients.get() + 1);
    let mut places: BTreeMap<String, Place> = BTreeMap::new();
    while let Some(session) = Session::open(&shared).await {
        while !session.client.is_broken() && !shared.stopping.get() {
            if shared.stream().chance(1, 3) {
                shared.pause(20_000).await;
            }
            if fetch(&shared, &session, &mut places).await.is_err() {
                break;
            }
        }
        session.client.close();
    }
    shared.clients.set(shared.clients.get() - 1);
}

/// One fetch of some partitions.
async fn fetch(shared: &Rc<Shared>, session: &Session, places: &mut BTreeMap<String, Place>) -> Result<(), RequestError> {
    let stream = shared.stream();
    let wanted: Vec<Partition> = session.partitions.iter().filter(|_| stream.chance(2, 3)).cloned().collect();
    for partition in &wanted {
        places.entry(partition.name.clone()).or_insert_with(|| Place { consumer: shared.number(), position: 0 });
    }
    let asked: Vec<(Partition, Place)> =
        wanted.into_iter().map(|partition| (partition.clone(), places[&partition.name])).collect();
    if asked.is_empty() {
        return Ok(());
    }
    let max_wait_ms = u32::try_from(stream.below(200)).expect("small");
    let mut lost = Vec::new();
    // What was read is settled whole before the next request, which may fail.
    for (name, next) in fetch_once(shared, session, &asked, max_wait_ms).await? {
        match next {
            Some(position) => places.get_mut(&name).expect("it was asked for").position = position,
            None => lost.push(name),
        }
    }
    for name in lost {
        // The class `written` loses its end at a power cut, and retention takes the start: the consumer starts anew from what is there.
        let partition = session.partitions.iter().find(|partition| partition.name == name).expect("it was asked for");
        let earliest = session.offset(partition, OffsetSpec::Earliest).await?;
        let latest = session.offset(partition, OffsetSpec::Latest).await?;
        let position = if places[&name].position < earliest { earliest } else { latest };
        places.insert(name, Place { consumer: shared.number(), position });
    }
    Ok(())
}

/// Fetches from these places; the next position of each partition, none where it is out of range.
async fn fetch_once(
    shared: &Rc<Shared>,
    session: &Session,
    asked: &[(Partition, Place)],
    max_wait_ms: u32,
) -> Result<Vec<(String, Option<i64>)>, RequestError> {
    let stream = shared.stream();
    let max_bytes = [1, 5_000, 100_000, 4 << 20][stream.index(4)];
    let request = FetchRequest {
        max_wait_ms,
        min_bytes: [0, 1, 10_000][stream.index(3)],
        max_bytes,
        isolation: IsolationLevel::ReadUncommitted,
        partitions: asked
            .iter()
            .map(|(partition, place)| FetchPartition {
                topic_id: partition.topic,
                partition: partition.index,
                offset: Offset(place.position),
                max_bytes,
                current_leader_epoch: LeaderEpoch(-1),
            })
            .collect(),
    };
    let begun: Vec<_> = asked.iter().map(|(partition, place)| begin_poll(shared, partition, place)).collect();
    let wait = Duration::from_millis(u64::from(max_wait_ms)) + Duration::from_secs(20);
    let reply = session.client.request(Kind::Fetch, &request.encode_body(), &[], true);
    let reply = in_time(shared, &session.client, wait, reply).await?;
    let answered = FetchReply::decode_body(&reply.body).expect("a sound reply").partitions;
    assert_eq!(answered.len(), asked.len(), "an answer for each partition");
    let mut rest = reply.payload.as_slice();
    let mut next = Vec::new();
    for (((partition, place), (poll, watermarks)), answer) in asked.iter().zip(begun).zip(answered) {
        let (bytes, behind) = rest.split_at(usize::try_from(answer.bytes).expect("small"));
        rest = behind;
        if answer.error == ErrorCode::OffsetOutOfRange && (partition.class == Class::Written || partition.retains) {
            shared.recorder.end(poll, Outcome::Failed, |_| {});
            next.push((partition.name.clone(), None));
            continue;
        }
        if answer.error != ErrorCode::None {
            if answer.error == ErrorCode::OffsetOutOfRange || answer.error == ErrorCode::CorruptMessage {
                shared.complain(format!("{} at {}: {:?}", partition.name, place.position, answer.error));
            }
            shared.recorder.end(poll, Outcome::Failed, |_| {});
            shared.env.world().note(|| format!("{}: fetch: {:?}", partition.name, answer.error));
            next.push((partition.name.clone(), Some(place.position)));
            continue;
        }
        let mut seen = batches::read(bytes);
        seen.retain(|record| record.offset >= place.position);
        next.push((partition.name.clone(), Some(seen.last().map_or(place.position, |record| record.offset + 1))));
        let above = seen.last().is_some_and(|record| record.offset >= answer.high_watermark.0);
        if above {
            shared.complain(format!("{}: a record at or above the high watermark {}", partition.name, answer.high_watermark));
        }
        shared.recorder.end(poll, Outcome::Ok, |action| {
            if let Action::Poll { records, .. } = action {
                *records = seen;
            }
        });
        shared.recorder.end(watermarks, Outcome::Ok, |action| {
            if let Action::Watermarks { log_start, high_watermark, .. } = action {
                (*log_start, *high_watermark) = (answer.log_start.0, answer.high_watermark.0);
            }
        });
    }
    assert!(rest.is_empty(), "{} bytes of payload belong to nobody", rest.len());
    Ok(next)
}

/// Notes that a poll begins, and that it will see watermarks.
fn begin_poll(shared: &Shared, partition: &Partition, place: &Place) -> (Begun, Begun) {
    let partition = partition.name.clone();
    let poll =
        Action::Poll { partition: partition.clone(), consumer: place.consumer, position: place.position, records: Vec::new() };
    let watermarks = Action::Watermarks { partition, log_start: -1, high_watermark: -1 };
    (shared.recorder.begin(poll), shared.recorder.begin(watermarks))
}

/// Reads everything, then asks for timestamps. Nothing is sent any more, and nothing fails.
pub(super) async fn catch_up(shared: &Rc<Shared>) {
    if let Err(error) = try_catch_up(shared).await {
        shared.complain(format!("the catch-up: {error}"));
    }
}

async fn try_catch_up(shared: &Rc<Shared>) -> Result<(), RequestError> {
    let session = Session::try_open(shared, shared.address).await?;
    for partition in session.partitions.clone() {
        let (start, end) =
            (session.offset(&partition, OffsetSpec::Earliest).await?, session.offset(&partition, OffsetSpec::Latest).await?);
        let mut place = Place { consumer: shared.number(), position: start };
        while place.position < end {
            let next = fetch_once(shared, &session, &[(partition.clone(), place)], 100).await?;
            match next[0].1 {
                Some(position) if position > place.position => place.position = position,
                None if partition.retains => {
                    let position = session.offset(&partition, OffsetSpec::Earliest).await?;
                    place = Place { consumer: shared.number(), position };
                }
                _ => {
                    shared.complain(format!("{}: nothing is read at {} below {end}", partition.name, place.position));
                    return Ok(());
                }
            }
        }
        if partition.retains {
            // What has left meanwhile is missed by nobody who hears of the log start, and by lookups that find what is behind it.
            fetch_once(shared, &session, &[(partition.clone(), place)], 0).await?;
            continue;
        }
        for round in 0..20 {
            let range = u64::try_from(end - start).expect("positive");
            if range == 0 {
                break;
            }
            let offset = start + i64::try_from(shared.stream().below(range)).expect("small");
            let alone = Place { consumer: shared.number(), position: offset };
            fetch_once(shared, &session, &[(partition.clone(), alone)], 100).await?;
            let back = i64::try_from(shared.stream().below(50 << (round / 2))).expect("small");
            lookup(shared, &session, &partition, shared.env.wall_clock().0 + 10 - back).await?;
        }
    }
    session.client.close();
    Ok(())
}

async fn lookup(shared: &Rc<Shared>, session: &Session, partition: &Partition, timestamp: i64) -> Result<(), RequestError> {
    let action = Action::Lookup { partition: partition.name.clone(), timestamp, offset: -1 };
    let begun = shared.recorder.begin(action);
    let found = session.offset(partition, OffsetSpec::AtOrAfter(Timestamp(timestamp))).await?;
    shared.recorder.end(begun, Outcome::Ok, |action| {
        if let Action::Lookup { offset, .. } = action {
            *offset = found;
        }
    });
    Ok(())
}
