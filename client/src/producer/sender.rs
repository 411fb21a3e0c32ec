//! The producer's sender task: takes due batches from the queues, groups them per owner core into requests, settles results.
//!
//! One task per producer. It waits for: a wake of the handles, a reply, a connection made, metadata, the next due time.
//! Order: the batches of one partition go to one connection in queue order ([`Connection::submit`] keeps it); a partition
//! changes its connection only when nothing of it is in flight any more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hashbrown::{HashMap, HashSet};
use protocol::error::ErrorCode;
use protocol::ids::{CoreId, ProducerId};
use protocol::limits;
use protocol::native::{Kind, ProduceBatch, ProduceReply, ProduceRequest};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::client::{self, TopicRoute};
use crate::config::{Acks, Retry};
use crate::connection::{Connection, Outcome, Request, Sink};
use crate::error::{ConnectError, DeliveryError, RequestError};
use crate::producer::queue::{Attempt, Batch};
use crate::producer::{Shared, State};

/// Pause before a core that couldn't be reached is tried again.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);
/// The task sleeps at most this long.
const SLEEP_MAX: Duration = Duration::from_secs(60);

enum Link {
    Connecting,
    Up { connection: Connection, number: u64 },
    Down { until: Instant },
}

struct Sent {
    /// Queue and the batch's number in it, in the request's order.
    batches: Vec<(usize, u64)>,
}

enum Event {
    Reply(u64, Outcome),
    Connected(CoreId, Result<Connection, ConnectError>),
    Refreshed(Arc<str>, Result<Arc<TopicRoute>, RequestError>),
    Initialized(Result<ProducerId, RequestError>),
}

/// The identity of an idempotent producer.
enum Identity {
    None,
    AskedFor,
    Known(ProducerId),
    /// It couldn't be had.
    AskAgain(Instant),
}

struct Sender {
    shared: Arc<Shared>,
    links: HashMap<CoreId, Link>,
    link_next: u64,
    sent: HashMap<u64, Sent>,
    token_next: u64,
    refreshing: HashSet<Arc<str>>,
    identity: Identity,
    replies: mpsc::UnboundedSender<(u64, Outcome)>,
    events: mpsc::UnboundedSender<Event>,
}

/// A request under construction.
#[derive(Default)]
struct Draft {
    entries: Vec<(usize, ProduceBatch, Batch)>,
    payload_bytes: usize,
}

pub(super) async fn run(shared: Arc<Shared>) {
    let (replies, mut reply_receiver) = mpsc::unbounded_channel();
    let (events, mut event_receiver) = mpsc::unbounded_channel();
    let mut sender = Sender {
        shared: shared.clone(),
        links: HashMap::new(),
        link_next: 0,
        sent: HashMap::new(),
        token_next: 0,
        refreshing: HashSet::new(),
        identity: Identity::None,
        replies,
        events,
    };
    loop {
        let Some(wake_at) = sender.step() else { return };
        let event = tokio::select! {
            biased;
            // Both channels have a sender in `sender` and never end.
            Some((token, outcome)) = reply_receiver.recv() => Some(Event::Reply(token, outcome)),
            Some(event) = event_receiver.recv() => Some(event),
            () = shared.wake.notified() => None,
            () = tokio::time::sleep_until(wake_at) => None,
        };
        if let Some(event) = event {
            sender.settle(event);
        }
        while let Ok((token, outcome)) = reply_receiver.try_recv() {
            sender.settle(Event::Reply(token, outcome));
        }
    }
}

impl Sender {
    /// Sends all that may leave now. When to look again, or `None` when the producer is closed and empty.
    fn step(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let shared = self.shared.clone();
        let mut guard = shared.lock();
        let state = &mut *guard;
        let mut freed_bytes = 0;
        for index in &state.active {
            state.queues[*index].expire(now);
        }
        self.identify(state, now);
        while self.send_round(state, now) {}
        let mut wake_at = now + SLEEP_MAX;
        let queues = &mut state.queues;
        state.active.retain(|index| {
            let queue = &mut queues[*index];
            freed_bytes += queue.take_freed_bytes();
            if let Some(at) = queue.next_event().filter(|at| *at > now) {
                wake_at = wake_at.min(at);
            }
            !queue.is_empty()
        });
        for link in self.links.values() {
            if let Link::Down { until } = link
                && !state.active.is_empty()
            {
                wake_at = wake_at.min(*until);
            }
        }
        if let Identity::AskAgain(at) = self.identity {
            wake_at = wake_at.min(at);
        }
        let ended = state.closed && state.active.is_empty();
        drop(guard);
        shared.memory.add_permits(freed_bytes);
        (!ended).then_some(wake_at)
    }

    /// Gives the queues that need one the producer's identity, and asks for it if there is none.
    fn identify(&mut self, state: &mut State, now: Instant) {
        for index in &state.active {
            let queue = &mut state.queues[*index];
            if !queue.lacks_producer() {
                continue;
            }
            match self.identity {
                Identity::Known(producer) if queue.give_producer(producer) => continue,
                Identity::AskedFor => return,
                Identity::AskAgain(at) if at > now => return,
                _ => {}
            }
            self.identity = Identity::AskedFor;
            let (client, events) = (self.shared.client.clone(), self.events.clone());
            tokio::spawn(async move {
                let result = client.init_producer().await;
                drop(events.send(Event::Initialized(result)));
            });
            return;
        }
    }

    fn settle_identity(&mut self, result: Result<ProducerId, RequestError>) {
        let error = match result {
            Ok(producer) => {
                self.identity = Identity::Known(producer);
                return;
            }
            Err(error) => error,
        };
        tracing::debug!(%error, "no producer id yet");
        self.identity = Identity::AskAgain(Instant::now() + RECONNECT_PAUSE);
        if error.is_passing() && self.shared.config.retry != Retry::Never {
            return;
        }
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        for index in &state.active {
            let queue = &mut state.queues[*index];
            if queue.lacks_producer() {
                queue.fail_unsent(|queue| DeliveryError::NotSent {
                    topic: queue.topic.to_string(),
                    partition: queue.partition,
                    reason: format!("no producer id: {error}"),
                });
            }
        }
    }

    /// At most one batch of each partition, in one request per core. Whether another round may send more.
    fn send_round(&mut self, state: &mut State, now: Instant) -> bool {
        let mut drafts: BTreeMap<CoreId, Draft> = BTreeMap::new();
        for position in 0..state.active.len() {
            let index = state.active[position];
            if !state.queues[index].has_sendable(now) {
                continue;
            }
            let (name, partition) = (state.queues[index].topic.clone(), state.queues[index].partition);
            let Some(topic) = state.topics.get(&*name) else { continue };
            let topic_id = topic.route.topic_id;
            let Some((core, _)) = topic.route.of(partition) else { continue };
            let Some(link) = self.link_up(core, now) else { continue };
            if !state.queues[index].may_use(link) {
                continue;
            }
            let draft = drafts.entry(core).or_default();
            if draft.entries.len() >= limits::PARTITIONS_PER_REQUEST_MAX {
                continue;
            }
            let Some(batch) = state.queues[index].next_batch(now) else { continue };
            let full = draft.payload_bytes + batch.bytes.len() > limits::FRAME_PAYLOAD_BYTES_MAX;
            let Some(bytes) = u32::try_from(batch.bytes.len()).ok().filter(|_| !full || draft.entries.is_empty()) else {
                state.queues[index].unsent(batch);
                continue;
            };
            draft.payload_bytes += batch.bytes.len();
            draft.entries.push((index, ProduceBatch { topic_id, partition, bytes }, batch));
        }
        let mut more = false;
        for (core, draft) in drafts {
            if !draft.entries.is_empty() {
                more |= self.submit(state, core, draft);
            }
        }
        more
    }

    /// The number of the core's connection; starts to connect if there is none.
    fn link_up(&mut self, core: CoreId, now: Instant) -> Option<u64> {
        match self.links.get(&core) {
            Some(Link::Up { connection, number }) if !connection.is_closed() => return Some(*number),
            Some(Link::Connecting) => return None,
            Some(Link::Down { until }) if *until > now => return None,
            _ => {}
        }
        self.links.insert(core, Link::Connecting);
        let (client, events) = (self.shared.client.clone(), self.events.clone());
        tokio::spawn(async move {
            let result = client.connect_core(core).await;
            drop(events.send(Event::Connected(core, result)));
        });
        None
    }

    fn submit(&mut self, state: &mut State, core: CoreId, draft: Draft) -> bool {
        let config = &self.shared.config;
        let body = ProduceRequest {
            acks: config.acks.wire(),
            timeout_ms: client::milliseconds(config.ack_timeout),
            batches: draft.entries.iter().map(|(_, batch, _)| *batch).collect(),
        };
        let request = Request {
            payload: draft.entries.iter().map(|(_, _, batch)| batch.bytes.clone()).collect::<Vec<Bytes>>(),
            wait: config.ack_timeout,
            no_reply: config.acks == Acks::None,
            ..Request::new(Kind::Produce, body.encode_body())
        };
        let Some(Link::Up { connection, number }) = self.links.get(&core) else {
            unreachable!("drafts are made for connected cores only");
        };
        let token = self.token_next;
        self.token_next += 1;
        let sink = Sink::Queue { sender: self.replies.clone(), token };
        // The outcome comes through the channel, never from inside this call, so that it finds the entry made below.
        if connection.submit(request, sink).is_err() {
            // Too many requests are pending there; their replies wake this task.
            for (index, _, batch) in draft.entries {
                state.queues[index].unsent(batch);
            }
            return false;
        }
        let batches = draft.entries.into_iter().map(|(index, _, batch)| (index, state.queues[index].sent(batch, *number)));
        self.sent.insert(token, Sent { batches: batches.collect() });
        true
    }

    fn settle(&mut self, event: Event) {
        match event {
            Event::Reply(token, outcome) => self.settle_reply(token, outcome),
            Event::Connected(core, result) => self.settle_connect(core, result),
            Event::Refreshed(name, result) => self.settle_refresh(&name, result),
            Event::Initialized(result) => self.settle_identity(result),
        }
    }

    fn settle_reply(&mut self, token: u64, outcome: Outcome) {
        let Some(sent) = self.sent.remove(&token) else { return };
        let attempts = self.attempts(&sent, outcome);
        let now = Instant::now();
        let mut stale = Vec::new();
        let shared = self.shared.clone();
        let mut state = shared.lock();
        for ((index, sequence), attempt) in sent.batches.iter().zip(attempts) {
            let Some(queue) = state.queues.get_mut(*index) else { continue };
            if matches!(&attempt, Attempt::Refused { code, .. } if client::is_stale(*code)) {
                stale.push(queue.topic.clone());
            }
            queue.attempt_ended(*sequence, attempt, now);
        }
        drop(state);
        for name in stale {
            self.refresh(name);
        }
    }

    fn attempts(&self, sent: &Sent, outcome: Outcome) -> Vec<Attempt> {
        let count = sent.batches.len();
        let reply = match outcome {
            Ok(reply) => reply,
            Err(RequestError::Refused { code, message }) => return vec![Attempt::Refused { code, message }; count],
            Err(error) if error.is_unknown() => return vec![Attempt::Unknown { reason: error.to_string() }; count],
            Err(error) => return vec![Attempt::NotSent { reason: error.to_string() }; count],
        };
        if self.shared.config.acks == Acks::None {
            return vec![Attempt::Accepted { base_offset: None, append_time: None }; count];
        }
        let results = match ProduceReply::decode_body(&reply.body) {
            Ok(reply) if reply.results.len() == count => reply.results,
            Ok(reply) => {
                let reason = format!("{} results in a reply for {count} batches", reply.results.len());
                return vec![Attempt::Unknown { reason }; count];
            }
            Err(error) => return vec![Attempt::Unknown { reason: error.to_string() }; count],
        };
        let attempt = |result: protocol::native::ProduceResult| match result.error {
            ErrorCode::None if result.base_offset.0 >= 0 => Attempt::Accepted {
                base_offset: Some(result.base_offset),
                append_time: (result.log_append_time.0 >= 0).then_some(result.log_append_time),
            },
            ErrorCode::None => Attempt::Unknown { reason: "a reply without an offset".to_owned() },
            code => Attempt::Refused { code, message: result.message },
        };
        results.into_iter().map(attempt).collect()
    }

    fn settle_connect(&mut self, core: CoreId, result: Result<Connection, ConnectError>) {
        match result {
            Ok(connection) => {
                self.links.insert(core, Link::Up { connection, number: self.link_next });
                self.link_next += 1;
            }
            Err(error) => {
                tracing::debug!(%core, %error, "a core can't be reached");
                self.links.insert(core, Link::Down { until: Instant::now() + RECONNECT_PAUSE });
                if self.shared.config.retry == Retry::Never {
                    self.fail_unsent(core, &error);
                }
            }
        }
    }

    /// Without retries, what would go to an unreachable core has failed.
    fn fail_unsent(&self, core: CoreId, error: &ConnectError) {
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        for index in &state.active {
            let queue = &mut state.queues[*index];
            let route = state.topics.get(&*queue.topic).map(|topic| &topic.route);
            if route.and_then(|route| route.of(queue.partition)).is_some_and(|(owner, _)| owner == core) {
                queue.fail_unsent(|queue| DeliveryError::NotSent {
                    topic: queue.topic.to_string(),
                    partition: queue.partition,
                    reason: error.to_string(),
                });
            }
        }
    }

    fn refresh(&mut self, name: Arc<str>) {
        if !self.refreshing.insert(name.clone()) {
            return;
        }
        let (client, events) = (self.shared.client.clone(), self.events.clone());
        tokio::spawn(async move {
            let result = client.refresh(&name).await;
            drop(events.send(Event::Refreshed(name, result)));
        });
    }

    fn settle_refresh(&mut self, name: &Arc<str>, result: Result<Arc<TopicRoute>, RequestError>) {
        self.refreshing.remove(name);
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        match result {
            Ok(route) => {
                if let Some(topic) = state.topics.get_mut(&**name) {
                    topic.queues.resize(route.partitions.len().max(topic.queues.len()), None);
                    topic.route = route;
                }
            }
            Err(RequestError::UnknownTopic { .. }) => {
                for index in &state.active {
                    let queue = &mut state.queues[*index];
                    if queue.topic == *name {
                        queue.fail_unsent(|queue| DeliveryError::Refused {
                            topic: queue.topic.to_string(),
                            partition: queue.partition,
                            code: ErrorCode::UnknownTopicOrPartition,
                            message: "the topic is gone".to_owned(),
                        });
                    }
                }
            }
            // The next refusal asks again.
            Err(error) => tracing::debug!(topic = %name, %error, "metadata couldn't be refreshed"),
        }
    }
}
