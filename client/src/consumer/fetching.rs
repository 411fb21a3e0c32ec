//! The consumer's fetches: which go out, over which connection, and what their replies mean.
//!
//! At most one fetch is out per owner core. It asks for the partitions of that core that have room ahead, starting with
//! another one each time. Passing failures let the link rest and are asked again; all others become an error in its place
//! behind what was fetched before it.

use bytes::Bytes;
use hashbrown::HashSet;
use protocol::error::ErrorCode;
use protocol::ids::{CoreId, Offset, PartitionIndex};
use protocol::limits;
use protocol::native::{FetchPartition, FetchPartitionReply, FetchReply, FetchRequest, IsolationLevel, Kind};
use tokio::time::Instant;

use crate::client::{self, Position};
use crate::connection::{Connection, Outcome, Reply, Request, Sink};
use crate::consumer::decode::FetchedBatch;
use crate::consumer::{Consumer, Fetched};
use crate::error::{self, ConsumeError, RequestError};

/// A connection to an owner core, with at most one fetch out.
#[derive(Default)]
pub(super) struct Link {
    connection: Option<Connection>,
    out: Option<Out>,
    rest_until: Option<Instant>,
}

struct Out {
    token: u64,
    /// Slot and generation of each partition, in the request's order.
    partitions: Vec<(usize, u64)>,
}

impl Consumer {
    /// Sends what may go out. How many went.
    pub(super) fn send_fetches(&mut self) -> usize {
        if self.fetched_bytes >= self.config.prefetch_bytes_max {
            return 0;
        }
        let now = Instant::now();
        let mut sent = 0;
        for core in self.links.keys().copied().collect::<Vec<_>>() {
            let Some(link) = self.links.get(&core) else { continue };
            let resting = link.rest_until.is_some_and(|until| until > now);
            let Some(connection) = link.connection.clone().filter(|open| link.out.is_none() && !resting && !open.is_closed())
            else {
                continue;
            };
            let partitions = self.fetchable_of(core);
            if partitions.is_empty() {
                continue;
            }
            self.send_fetch(core, &connection, partitions);
            sent += 1;
        }
        sent
    }

    /// Slots that may be fetched from a core, in turn.
    fn fetchable_of(&mut self, core: CoreId) -> Vec<usize> {
        let share = usize::try_from(self.config.partition_bytes_max).unwrap_or(usize::MAX);
        let count = self.assigned.len();
        self.turn = (self.turn + 1) % count.max(1);
        let in_turn = (0..count).map(|index| (index + self.turn) % count);
        let wanted = in_turn.filter(|slot| {
            let assigned = &self.assigned[*slot];
            assigned.core == core && assigned.fetchable().is_some() && assigned.fetched_bytes < share
        });
        wanted.take(limits::PARTITIONS_PER_REQUEST_MAX).collect()
    }

    fn send_fetch(&mut self, core: CoreId, connection: &Connection, slots: Vec<usize>) {
        let mut partitions = Vec::with_capacity(slots.len());
        let mut asked = Vec::with_capacity(slots.len());
        for slot in slots {
            let assigned = &self.assigned[slot];
            let Some(offset) = assigned.fetchable() else { continue };
            partitions.push(FetchPartition {
                topic_id: assigned.topic_id,
                partition: assigned.partition,
                offset,
                max_bytes: self.config.partition_bytes_max,
                current_leader_epoch: assigned.leader_epoch,
            });
            asked.push((slot, assigned.generation));
        }
        let body = FetchRequest {
            max_wait_ms: client::milliseconds(self.config.wait_max),
            min_bytes: self.config.bytes_min,
            max_bytes: self.config.fetch_bytes_max,
            isolation: IsolationLevel::ReadUncommitted,
            partitions,
        };
        let request = Request { wait: self.config.wait_max, ..Request::new(Kind::Fetch, body.encode_body()) };
        let token = self.token_next;
        self.token_next += 1;
        let sink = Sink::Queue { sender: self.sender.clone(), token };
        let link = self.links.entry(core).or_default();
        // One request is out per connection, far below its bound.
        if connection.submit(request, sink).is_ok() {
            link.out = Some(Out { token, partitions: asked });
        }
    }

    /// Connects to the cores of assigned partitions. One that can't be reached rests.
    pub(super) async fn connect_links(&mut self) {
        let cores: HashSet<CoreId> = self.assigned.iter().map(|assigned| assigned.core).collect();
        self.links.retain(|core, _| cores.contains(core));
        for core in cores {
            let link = self.links.entry(core).or_default();
            let now = Instant::now();
            let up = link.connection.as_ref().is_some_and(|connection| !connection.is_closed());
            if up || link.out.is_some() || link.rest_until.is_some_and(|until| until > now) {
                continue;
            }
            let result = self.client.connect_core(core).await;
            let link = self.links.entry(core).or_default();
            match result {
                Ok(connection) => *link = Link { connection: Some(connection), out: None, rest_until: None },
                Err(error) => {
                    tracing::debug!(%core, %error, "a core can't be reached");
                    link.connection = None;
                    link.rest_until = Some(Instant::now() + self.config.retry_backoff);
                }
            }
        }
    }

    /// Looks positions up that aren't offsets yet.
    pub(super) async fn resolve_positions(&mut self) -> Result<(), ConsumeError> {
        while let Some(first) = self.assigned.iter().find(|assigned| assigned.unresolved().is_some()) {
            let topic = first.topic.clone();
            let open = self.assigned.iter().enumerate().filter(|(_, assigned)| assigned.topic == topic);
            let (slots, places): (Vec<usize>, Vec<(PartitionIndex, Position)>) = open
                .filter_map(|(slot, assigned)| Some((slot, (assigned.partition, assigned.unresolved()?))))
                .take(limits::PARTITIONS_PER_REQUEST_MAX)
                .unzip();
            let listed = match self.client.list_offsets(&topic, &places).await {
                Ok(listed) => listed,
                Err(error) if error.is_passing() => {
                    tracing::debug!(%topic, %error, "offsets couldn't be listed");
                    tokio::time::sleep(self.config.retry_backoff).await;
                    continue;
                }
                Err(error) => {
                    for slot in slots {
                        self.assigned[slot].rest();
                    }
                    return Err(error.into());
                }
            };
            let mut beyond = Vec::new();
            for (slot, listed) in slots.into_iter().zip(listed) {
                match listed.offset {
                    Some(offset) => self.assigned[slot].resolve(offset),
                    // No record is that young: the end.
                    None => beyond.push((slot, self.assigned[slot].partition)),
                }
            }
            let ends: Vec<_> = beyond.iter().map(|(_, partition)| (*partition, Position::End)).collect();
            if ends.is_empty() {
                continue;
            }
            let listed = self.client.list_offsets(&topic, &ends).await?;
            for ((slot, _), listed) in beyond.into_iter().zip(listed) {
                self.assigned[slot].resolve(listed.offset.unwrap_or_default());
            }
        }
        Ok(())
    }

    /// Asks anew where partitions are whose route turned out to be old.
    pub(super) async fn refresh_routes(&mut self) {
        let stale: HashSet<_> =
            self.assigned.iter().filter(|assigned| assigned.stale).map(|assigned| assigned.topic.clone()).collect();
        for topic in stale {
            let result = self.client.refresh(&topic).await;
            for slot in 0..self.assigned.len() {
                let assigned = &mut self.assigned[slot];
                if assigned.topic != topic || !assigned.stale {
                    continue;
                }
                let error = match &result {
                    Ok(route) => {
                        if assigned.follow(route) {
                            continue;
                        }
                        ConsumeError::TopicReplaced { topic: topic.to_string(), partition: assigned.partition }
                    }
                    Err(error) if error.is_passing() => continue,
                    Err(error) => ConsumeError::Request(error.clone()),
                };
                assigned.stale = false;
                self.queue_error(slot, error);
            }
        }
    }

    /// Ends when a reply came, or when something may be tried again. At once if something is there already.
    pub(super) async fn wait(&mut self) {
        if !self.fetched.is_empty() {
            return;
        }
        let stale = self.assigned.iter().any(|assigned| assigned.stale);
        let pause = stale.then(|| Instant::now() + self.config.retry_backoff);
        let rest = self.links.values().filter_map(|link| link.rest_until).chain(pause).min();
        let reply = match rest {
            Some(until) => tokio::time::timeout_at(until, self.replies.recv()).await.ok().flatten(),
            None => self.replies.recv().await,
        };
        if let Some((token, outcome)) = reply {
            self.settle(token, outcome);
        }
        let now = Instant::now();
        for link in self.links.values_mut() {
            link.rest_until = link.rest_until.filter(|until| *until > now);
        }
    }

    pub(super) fn take_replies(&mut self) {
        while let Ok((token, outcome)) = self.replies.try_recv() {
            self.settle(token, outcome);
        }
    }

    /// A seek doesn't wait for the fetch that is out: its connection is given up.
    pub(super) fn abandon_fetch_of(&mut self, slot: usize) {
        let holds = |link: &Link| link.out.as_ref().is_some_and(|out| out.partitions.iter().any(|(held, _)| *held == slot));
        for link in self.links.values_mut().filter(|link| holds(link)) {
            link.out = None;
            link.connection = None;
        }
    }

    fn settle(&mut self, token: u64, outcome: Outcome) {
        let Some((core, link)) = self.links.iter_mut().find(|(_, link)| link.out.as_ref().is_some_and(|out| out.token == token))
        else {
            // Given up by a seek.
            return;
        };
        let core = *core;
        let Some(out) = link.out.take() else { return };
        let retry_at = Instant::now() + self.config.retry_backoff;
        let failure = match outcome {
            Ok(reply) => match self.settle_reply(&out, reply) {
                Ok(()) => return,
                Err(reason) => RequestError::Malformed { server: format!("core {core}"), reason },
            },
            Err(error) => error,
        };
        if failure.is_passing() {
            tracing::debug!(%core, error = %failure, "a fetch failed");
            if let Some(link) = self.links.get_mut(&core) {
                link.rest_until = Some(retry_at);
            }
            // The host may have been restarted with other leader epochs.
            for (slot, _) in out.partitions {
                self.assigned[slot].stale = true;
            }
            return;
        }
        for (slot, generation) in out.partitions {
            if self.assigned[slot].generation == generation {
                self.queue_error(slot, ConsumeError::Request(failure.clone()));
            }
        }
        if let Some(link) = self.links.get_mut(&core) {
            link.connection = None;
        }
    }

    fn settle_reply(&mut self, out: &Out, reply: Reply) -> Result<(), String> {
        let body = FetchReply::decode_body(&reply.body).map_err(|error| error.to_string())?;
        if body.partitions.len() != out.partitions.len() {
            return Err(format!("{} partitions in a reply for {}", body.partitions.len(), out.partitions.len()));
        }
        let mut payload = reply.payload;
        for (answer, (slot, generation)) in body.partitions.iter().zip(&out.partitions) {
            let size = usize::try_from(answer.bytes).unwrap_or(usize::MAX);
            if size > payload.len() {
                return Err(format!("a partition of {size} bytes with {} left in the payload", payload.len()));
            }
            let batches = payload.split_to(size);
            if self.assigned[*slot].generation == *generation {
                self.settle_partition(*slot, answer, batches);
            }
        }
        if payload.is_empty() { Ok(()) } else { Err(format!("{} bytes behind the last partition", payload.len())) }
    }

    fn settle_partition(&mut self, slot: usize, answer: &FetchPartitionReply, batches: Bytes) {
        let assigned = &mut self.assigned[slot];
        let Some(asked) = assigned.fetchable() else { return };
        match answer.error {
            ErrorCode::None => {
                assigned.high_watermark = Some(answer.high_watermark);
                self.take_batches(slot, asked, batches);
            }
            ErrorCode::OffsetOutOfRange => {
                let error = ConsumeError::OffsetOutOfRange {
                    topic: assigned.topic.to_string(),
                    partition: assigned.partition,
                    asked,
                    log_start: answer.log_start,
                    high_watermark: answer.high_watermark,
                };
                self.queue_error(slot, error);
            }
            code if client::is_stale(code) => assigned.stale = true,
            code if error::is_passing(code) || error::is_unknown(code) => {
                let (core, until) = (assigned.core, Instant::now() + self.config.retry_backoff);
                if let Some(link) = self.links.get_mut(&core) {
                    link.rest_until = Some(until);
                }
            }
            code => {
                let (topic, partition) = (assigned.topic.to_string(), assigned.partition);
                self.queue_error(slot, ConsumeError::Refused { topic, partition, code });
            }
        }
    }

    fn take_batches(&mut self, slot: usize, asked: Offset, mut batches: Bytes) {
        let generation = self.assigned[slot].generation;
        let mut expected = asked;
        while !batches.is_empty() {
            match FetchedBatch::cut(&mut batches, expected) {
                Ok(batch) => {
                    expected = batch.next_offset();
                    self.assigned[slot].arrived(expected);
                    self.assigned[slot].fetched_bytes += batch.size();
                    self.fetched_bytes += batch.size();
                    self.fetched.push_back(Fetched::Batch { slot, generation, batch });
                }
                Err((base, reason)) => {
                    let error = self.assigned[slot].corrupt(base.unwrap_or(expected), reason);
                    self.queue_error(slot, error);
                    return;
                }
            }
        }
    }
}
