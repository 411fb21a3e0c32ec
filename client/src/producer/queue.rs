//! The batches of one partition, and the rule that keeps their order. No I/O and no clock: time comes in.
//!
//! Used by the producer's handles (records in) and its sender task (batches out, results in), under the producer's lock.
//!
//! A batch goes open -> ready -> in flight -> settled; or in flight -> again -> in flight.
//! Invariants:
//! - Batches leave in the order in which they were opened, at most `window` at once, all over one connection.
//! - A batch that was refused for a passing reason waits until every batch in flight has its result. If a later one was
//!   accepted (or may have been), it fails as overtaken: sent again it would land behind it. Otherwise all go again, in
//!   order. While one waits, nothing new leaves.
//! - Every batch is settled once.
//! - An idempotent producer's batches have sequences ([`super::sequences`]): a batch whose outcome isn't known goes again and lands once. One
//!   that is out of order goes again behind what is missing, or, if nothing is missing here, in a new epoch (KIP-360).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use protocol::error::ErrorCode;
use protocol::ids::{Offset, PartitionIndex, ProducerId, Timestamp};
use tokio::time::Instant;

use crate::config::Retry;
use crate::delivery::{BatchOutcome, BatchResult};
use crate::error::{self, DeliveryError};
use crate::producer::open_batch::OpenBatch;
use crate::producer::sequences::Sequences;

/// Longest pause before a batch is sent again.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// A finished batch.
pub(super) struct Batch {
    pub bytes: Bytes,
    pub memory_bytes: usize,
    pub records: u32,
    pub deadline: Instant,
    pub outcome: Arc<BatchOutcome>,
    /// The server may know it again.
    pub has_sequence: bool,
    /// An earlier attempt may have been appended.
    pub maybe_appended: bool,
    pub last_failure: Option<String>,
}

/// What happened to one attempt.
#[derive(Debug, Clone)]
pub(super) enum Attempt {
    Accepted {
        base_offset: Option<Offset>,
        append_time: Option<Timestamp>,
    },
    Refused {
        code: ErrorCode,
        message: String,
    },
    /// It never left.
    NotSent {
        reason: String,
    },
    Unknown {
        reason: String,
    },
}

impl Attempt {
    const ACCEPTED_SOMEWHERE: Attempt = Attempt::Accepted { base_offset: None, append_time: None };
}

enum State {
    Sent,
    /// Has failed, and would be sent again if nothing overtakes it.
    Waiting(Attempt),
}

struct InFlight {
    sequence: u64,
    batch: Batch,
    state: State,
}

/// Settings that decide about attempts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    /// The server knows a batch again that is sent twice.
    pub idempotent: bool,
    pub window: usize,
    pub retry: Retry,
    pub backoff: Duration,
    pub delivery_timeout: Duration,
}

/// The batches of one partition.
pub(super) struct Queue {
    pub topic: Arc<str>,
    pub partition: PartitionIndex,
    policy: Policy,
    /// Of an idempotent producer.
    sequences: Option<Sequences>,
    open: Option<OpenBatch>,
    ready: VecDeque<OpenBatch>,
    again: VecDeque<Batch>,
    in_flight: VecDeque<InFlight>,
    rest_until: Option<Instant>,
    failures_in_a_row: u32,
    sequence_next: u64,
    /// The connection that has what is in flight.
    link: Option<u64>,
    /// Memory of settled batches that the owner hasn't taken back yet.
    freed_bytes: usize,
}

impl Queue {
    pub fn new(topic: Arc<str>, partition: PartitionIndex, policy: Policy) -> Queue {
        Queue {
            topic,
            partition,
            policy,
            sequences: policy.idempotent.then(Sequences::new),
            open: None,
            ready: VecDeque::new(),
            again: VecDeque::new(),
            in_flight: VecDeque::new(),
            rest_until: None,
            failures_in_a_row: 0,
            sequence_next: 0,
            link: None,
            freed_bytes: 0,
        }
    }

    /// The batch that takes records.
    pub fn open_mut(&mut self) -> &mut Option<OpenBatch> {
        &mut self.open
    }

    /// The open batch takes no more records.
    pub fn close_open(&mut self) {
        self.ready.extend(self.open.take());
    }

    pub fn is_empty(&self) -> bool {
        self.open.is_none() && self.ready.is_empty() && self.again.is_empty() && self.in_flight.is_empty()
    }

    pub fn take_freed_bytes(&mut self) -> usize {
        std::mem::take(&mut self.freed_bytes)
    }

    /// The outcomes of all batches that have none yet.
    pub fn outcomes(&self) -> impl Iterator<Item = Arc<BatchOutcome>> {
        let finished = self.again.iter().chain(self.in_flight.iter().map(|entry| &entry.batch));
        let unfinished = self.ready.iter().chain(&self.open);
        finished.map(|batch| batch.outcome.clone()).chain(unfinished.map(|batch| batch.outcome.clone()))
    }

    /// When [`Queue::has_sendable`] may become true, or a batch passes its deadline, without anything else happening.
    pub fn next_event(&self) -> Option<Instant> {
        let unsent_deadline = self.again.front().map(|batch| batch.deadline);
        let ready_deadline = self.ready.front().or(self.open.as_ref()).map(|batch| batch.deadline);
        let deadline = [unsent_deadline, ready_deadline].into_iter().flatten().min();
        if self.is_held() {
            return deadline;
        }
        let due = match self.rest_until {
            Some(until) => Some(until),
            None => self.open.as_ref().map(|open| open.due),
        };
        [deadline, due].into_iter().flatten().min()
    }

    /// Whether nothing can leave until [`Queue::give_producer`].
    pub fn lacks_producer(&self) -> bool {
        self.sequences.as_ref().is_some_and(Sequences::lacks_producer)
    }

    /// Takes the producer's identity. `false` if another one is needed.
    pub fn give_producer(&mut self, producer: ProducerId) -> bool {
        self.sequences.as_mut().is_none_or(|sequences| sequences.give(producer))
    }

    /// Whether nothing may leave until results come.
    fn is_held(&self) -> bool {
        if self.sequences.as_ref().is_some_and(|sequences| sequences.holds(self.in_flight.len())) {
            return true;
        }
        self.in_flight.len() >= self.policy.window || self.in_flight.iter().any(|entry| matches!(entry.state, State::Waiting(_)))
    }

    /// Whether a batch may leave now.
    pub fn has_sendable(&mut self, now: Instant) -> bool {
        if self.is_held() || self.lacks_producer() {
            return false;
        }
        if let Some(until) = self.rest_until {
            if until > now {
                return false;
            }
            self.rest_until = None;
        }
        !self.again.is_empty() || !self.ready.is_empty() || self.open.as_ref().is_some_and(|open| open.due <= now)
    }

    /// The batch that leaves next, compressed. It must be handed back to [`Queue::sent`] or [`Queue::unsent`].
    pub fn next_batch(&mut self, now: Instant) -> Option<Batch> {
        while self.has_sendable(now) {
            if let Some(sequences) = &mut self.sequences
                && self.in_flight.is_empty()
            {
                let sequenced = self.again.iter_mut().filter(|batch| batch.has_sequence);
                sequences.close_gap(sequenced.map(|batch| (&mut batch.bytes, batch.records)));
                if sequences.lacks_producer() {
                    return None;
                }
            }
            if let Some(batch) = self.again.pop_front() {
                return Some(batch);
            }
            if self.ready.is_empty() {
                self.close_open();
            }
            let producer = self.sequences.as_ref().map(Sequences::fields);
            match self.ready.pop_front()?.finish(producer) {
                Ok(batch) => {
                    if let Some(sequences) = &mut self.sequences {
                        sequences.taken(batch.records);
                    }
                    return Some(batch);
                }
                Err((batch, error)) => {
                    let error = self.final_error(&batch, Attempt::NotSent { reason: error.to_string() });
                    self.settle(batch, BatchResult::Failed(error));
                }
            }
        }
        None
    }

    /// Whether a batch may leave over the connection of this number: what is in flight keeps the partition on its own.
    pub fn may_use(&self, link: u64) -> bool {
        self.in_flight.is_empty() || self.link == Some(link)
    }

    /// A batch of [`Queue::next_batch`] has left; the number is for [`Queue::attempt_ended`].
    pub fn sent(&mut self, batch: Batch, link: u64) -> u64 {
        assert!(self.may_use(link), "a partition's batches in flight share one connection");
        self.link = Some(link);
        let sequence = self.sequence_next;
        self.sequence_next += 1;
        self.in_flight.push_back(InFlight { sequence, batch, state: State::Sent });
        sequence
    }

    /// A batch of [`Queue::next_batch`] couldn't leave for the moment.
    pub fn unsent(&mut self, batch: Batch) {
        self.again.push_front(batch);
    }

    /// Settles one attempt.
    pub fn attempt_ended(&mut self, sequence: u64, attempt: Attempt, now: Instant) {
        let Some(index) = self.in_flight.iter().position(|entry| entry.sequence == sequence) else {
            // Settled by force before.
            return;
        };
        let attempt = if self.is_old_duplicate(&attempt) { Attempt::ACCEPTED_SOMEWHERE } else { attempt };
        if let Attempt::Accepted { base_offset, append_time } = attempt {
            self.failures_in_a_row = 0;
            if let Some(sequences) = &mut self.sequences {
                sequences.accepted();
            }
            self.overtake(index);
            let batch = self.remove(sequence);
            self.settle(batch, BatchResult::Appended { base_offset, append_time });
        } else if self.goes_again(&attempt) {
            if is_out_of_order(&attempt) && !self.is_behind_a_gap(index) {
                // The server has lost batches that it had acknowledged (class `written` and a power cut): this one isn't there either.
                self.sequences.as_mut().expect("only sequences are out of order").failed();
            }
            let entry = &mut self.in_flight[index];
            entry.batch.maybe_appended |= is_unknown(&attempt);
            entry.batch.last_failure = Some(describe(&attempt));
            entry.state = State::Waiting(attempt);
        } else {
            if is_unknown(&attempt) {
                self.overtake(index);
            }
            let batch = self.remove(sequence);
            let error = self.final_error(&batch, attempt);
            self.settle(batch, BatchResult::Failed(error));
        }
        self.rearm(now);
    }

    /// Fails what has passed its deadline without being in flight.
    pub fn expire(&mut self, now: Instant) {
        while let Some(batch) = self.again.pop_front_if(|batch| batch.deadline <= now) {
            let error = self.timed_out(&batch);
            self.settle(batch, BatchResult::Failed(error));
        }
        if self.open.as_ref().is_some_and(|open| open.deadline <= now) {
            self.close_open();
        }
        while let Some(open) = self.ready.pop_front_if(|open| open.deadline <= now) {
            let batch = open.abandon();
            let error = self.timed_out(&batch);
            self.settle(batch, BatchResult::Failed(error));
        }
    }

    /// Fails everything that isn't in flight for one reason (a topic that is gone, a server that isn't there with
    /// [`Retry::Never`]).
    pub fn fail_unsent(&mut self, error: impl Fn(&Queue) -> DeliveryError) {
        self.close_open();
        let unfinished = std::mem::take(&mut self.ready).into_iter().map(OpenBatch::abandon);
        let all: Vec<Batch> = std::mem::take(&mut self.again).into_iter().chain(unfinished).collect();
        for batch in all {
            let error =
                if batch.maybe_appended { self.unknown(&batch, "the first attempt's reply was lost") } else { error(self) };
            self.settle(batch, BatchResult::Failed(error));
        }
    }

    /// The producer ends: everything gets a result.
    pub fn end(&mut self) {
        for entry in std::mem::take(&mut self.in_flight) {
            let error = self.unknown(&entry.batch, "the producer ended before the reply came");
            self.settle(entry.batch, BatchResult::Failed(error));
        }
        self.fail_unsent(|queue| DeliveryError::ProducerEnded { topic: queue.topic.to_string(), partition: queue.partition });
    }

    /// Fails the waiting batches ahead of `index`: a later one is, or may be, in the log.
    fn overtake(&mut self, index: usize) {
        let waiting: Vec<u64> = self
            .in_flight
            .iter()
            .take(index)
            .filter_map(|entry| match entry.state {
                State::Waiting(_) => Some(entry.sequence),
                State::Sent => None,
            })
            .collect();
        for sequence in waiting {
            let position = self.in_flight.iter().position(|entry| entry.sequence == sequence).expect("listed above");
            let entry = self.in_flight.remove(position).expect("found above");
            let State::Waiting(attempt) = entry.state else { unreachable!("only waiting batches are listed") };
            let error = match (attempt, entry.batch.maybe_appended) {
                (Attempt::Refused { code, message }, false) => {
                    DeliveryError::Overtaken { topic: self.topic.to_string(), partition: self.partition, code, message }
                }
                (attempt, _) => self.final_error(&entry.batch, attempt),
            };
            self.settle(entry.batch, BatchResult::Failed(error));
        }
    }

    /// If nothing is out any more and something waits, all of it goes again, in order.
    fn rearm(&mut self, now: Instant) {
        let idle = self.in_flight.iter().all(|entry| matches!(entry.state, State::Waiting(_)));
        if !idle || self.in_flight.is_empty() {
            return;
        }
        for entry in std::mem::take(&mut self.in_flight).into_iter().rev() {
            self.again.push_front(entry.batch);
        }
        let pause = self.policy.backoff * 2u32.saturating_pow(self.failures_in_a_row.min(10));
        self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
        self.rest_until = Some(now + pause.min(BACKOFF_MAX));
    }

    /// Whether the server has it, but doesn't know any more where.
    fn is_old_duplicate(&self, attempt: &Attempt) -> bool {
        self.policy.idempotent && matches!(attempt, Attempt::Refused { code: ErrorCode::DuplicateSequenceNumber, .. })
    }

    /// Whether something is missing before it that this side knows of: a batch that goes again too, or a gap, after which a new epoch begins.
    fn is_behind_a_gap(&self, index: usize) -> bool {
        let waits = |entry: &InFlight| matches!(entry.state, State::Waiting(_));
        self.sequences.as_ref().is_some_and(Sequences::has_gap) || self.in_flight.iter().take(index).any(waits)
    }

    fn goes_again(&self, attempt: &Attempt) -> bool {
        if self.policy.retry != Retry::Never && self.sequences.is_some() && is_out_of_order(attempt) {
            return true;
        }
        let lands_once = self.policy.idempotent;
        match (self.policy.retry, attempt) {
            (Retry::Never, _) | (_, Attempt::Accepted { .. }) => false,
            (_, Attempt::NotSent { .. }) => true,
            (retry, Attempt::Refused { code, .. }) => {
                error::is_passing(*code) || (error::is_unknown(*code) && (lands_once || retry == Retry::RefusedAndUnknown))
            }
            (retry, Attempt::Unknown { .. }) => lands_once || retry == Retry::RefusedAndUnknown,
        }
    }

    fn remove(&mut self, sequence: u64) -> Batch {
        let index = self.in_flight.iter().position(|entry| entry.sequence == sequence).expect("it is in flight");
        self.in_flight.remove(index).expect("found above").batch
    }

    fn settle(&mut self, batch: Batch, result: BatchResult) {
        self.freed_bytes += batch.memory_bytes;
        if let (Some(sequences), BatchResult::Failed(_), true) = (&mut self.sequences, &result, batch.has_sequence) {
            sequences.failed();
        }
        batch.outcome.settle(result);
    }

    fn final_error(&self, batch: &Batch, attempt: Attempt) -> DeliveryError {
        let (topic, partition) = (self.topic.to_string(), self.partition);
        if batch.maybe_appended || is_unknown(&attempt) {
            return self.unknown(batch, &describe(&attempt));
        }
        match attempt {
            Attempt::Refused { code, message } => DeliveryError::Refused { topic, partition, code, message },
            other => DeliveryError::NotSent { topic, partition, reason: describe(&other) },
        }
    }

    fn timed_out(&self, batch: &Batch) -> DeliveryError {
        let reason = batch.last_failure.clone().unwrap_or_else(|| "it was never sent".to_owned());
        if batch.maybe_appended {
            return self.unknown(batch, &reason);
        }
        DeliveryError::TimedOut {
            topic: self.topic.to_string(),
            partition: self.partition,
            limit: self.policy.delivery_timeout,
            reason,
        }
    }

    fn unknown(&self, batch: &Batch, reason: &str) -> DeliveryError {
        let reason = format!("{reason} ({} records)", batch.records);
        DeliveryError::Unknown { topic: self.topic.to_string(), partition: self.partition, reason }
    }
}

fn is_out_of_order(attempt: &Attempt) -> bool {
    matches!(attempt, Attempt::Refused { code: ErrorCode::OutOfOrderSequenceNumber, .. })
}

fn is_unknown(attempt: &Attempt) -> bool {
    match attempt {
        Attempt::Unknown { .. } => true,
        Attempt::Refused { code, .. } => error::is_unknown(*code),
        Attempt::Accepted { .. } | Attempt::NotSent { .. } => false,
    }
}

fn describe(attempt: &Attempt) -> String {
    match attempt {
        Attempt::Accepted { .. } => "accepted".to_owned(),
        Attempt::Refused { code, message } => format!("refused with {code}: {message}"),
        Attempt::NotSent { reason } | Attempt::Unknown { reason } => reason.clone(),
    }
}

#[cfg(test)]
mod tests;
