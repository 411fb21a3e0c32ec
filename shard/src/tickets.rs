//! Tickets: appended batches that wait for their acknowledgement.
//!
//! One [`TicketQueue`] per partition, on its owner core; `partition` pushes and settles, the clock expires, the reply of a
//! produce request awaits. A ticket costs one entry in a queue, no allocation of its own.
//!
//! Invariants: in one lane (acks=1, acks=-1) entries stand in order of their offsets, so that acknowledgements come in the
//! order of appends; an entry leaves the front once it is acknowledged or nobody waits for it; what has left the front while its
//! ticket lives is acknowledged. A closed queue has no entries.
//!
//! A ticket keeps a waker only while it is polled: whoever has many awaits them one after the other, so that one task never
//! has more wakers out than requests.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use cluster::replica::Acks;
use protocol::ids::{Offset, Timestamp};
use runtime::Monotonic;
use runtime::local::OnceReceiver;
use smallvec::SmallVec;

use crate::produce::ProduceError;

#[cfg(test)]
mod tests;

/// Wakers to be called once no state is borrowed.
pub(crate) type Woken = SmallVec<[Waker; 8]>;

/// What a producer is told of a batch that was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Produced {
    /// Offset of the batch's first record.
    pub base_offset: Offset,
    /// The time of its append, where the topic's timestamps are append times; else -1.
    pub append_time: Timestamp,
    /// Where the log starts.
    pub log_start: Offset,
}

/// When a ticket gives up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    pub(crate) at: Monotonic,
    pub(crate) timeout: Duration,
}

/// Whether a ticket's batch is new, or was appended before and isn't acknowledged yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Appended {
    Now,
    Before,
}

/// The tickets of one partition.
#[derive(Default)]
pub(crate) struct TicketQueue {
    leader: Lane,
    all: Lane,
    closed: Option<ProduceError>,
}

#[derive(Default)]
struct Lane {
    /// Number of the entry at the front.
    first: u64,
    pending: VecDeque<Pending>,
}

struct Pending {
    /// The batch is acknowledged when all below this offset is.
    end: Offset,
    deadline: Monotonic,
    waker: Option<Waker>,
    expired: bool,
    /// The ticket was dropped, or has given its answer.
    abandoned: bool,
}

impl TicketQueue {
    /// All below `acknowledged` is acknowledged at this level.
    pub(crate) fn settle(&mut self, acks: Acks, acknowledged: Offset, woken: &mut Woken) {
        if let Some(lane) = self.lane(acks) {
            lane.settle(acknowledged, woken);
        }
    }

    /// Gives up all whose deadline has passed; the earliest deadline of the others.
    pub(crate) fn expire(&mut self, now: Monotonic, woken: &mut Woken) -> Option<Monotonic> {
        let leader = self.leader.expire(now, woken);
        let all = self.all.expire(now, woken);
        leader.into_iter().chain(all).min()
    }

    /// Answers all with `error`, those to come too.
    pub(crate) fn close(&mut self, error: ProduceError, woken: &mut Woken) {
        for lane in [&mut self.leader, &mut self.all] {
            woken.extend(lane.pending.drain(..).filter_map(|pending| pending.waker));
        }
        self.closed.get_or_insert(error);
    }

    /// Entries, for whose sake nobody may be waiting any more.
    pub(crate) fn len(&self) -> usize {
        self.leader.pending.len() + self.all.pending.len()
    }

    fn lane(&mut self, acks: Acks) -> Option<&mut Lane> {
        match acks {
            Acks::None => None,
            Acks::Leader => Some(&mut self.leader),
            Acks::All => Some(&mut self.all),
        }
    }
}

impl Lane {
    fn push(&mut self, appended: Appended, end: Offset, deadline: Monotonic) -> u64 {
        let last = self.pending.back().map(|last| last.end);
        let end = match appended {
            Appended::Now => {
                assert!(last.is_none_or(|last| last < end), "tickets come in the order of appends");
                end
            }
            // It waits with the last one.
            Appended::Before => last.map_or(end, |last| last.max(end)),
        };
        self.pending.push_back(Pending { end, deadline, waker: None, expired: false, abandoned: false });
        self.first + self.pending.len() as u64 - 1
    }

    fn settle(&mut self, acknowledged: Offset, woken: &mut Woken) {
        while let Some(front) = self.pending.front()
            && (front.end <= acknowledged || front.abandoned)
        {
            let front = self.pending.pop_front().expect("it was just looked at");
            self.first += 1;
            woken.extend(front.waker);
        }
    }

    fn expire(&mut self, now: Monotonic, woken: &mut Woken) -> Option<Monotonic> {
        let mut earliest: Option<Monotonic> = None;
        for pending in self.pending.iter_mut().filter(|pending| !pending.abandoned && !pending.expired) {
            if pending.deadline <= now {
                pending.expired = true;
                woken.extend(pending.waker.take());
            } else {
                earliest = Some(earliest.map_or(pending.deadline, |earliest| earliest.min(pending.deadline)));
            }
        }
        earliest
    }

    fn entry(&mut self, sequence: u64) -> Option<&mut Pending> {
        let index = sequence.checked_sub(self.first)?;
        self.pending.get_mut(usize::try_from(index).ok()?)
    }

    /// Nobody waits for this entry any more.
    fn abandon(&mut self, sequence: u64) {
        if let Some(entry) = self.entry(sequence) {
            entry.abandoned = true;
            entry.waker = None;
            while self.pending.front().is_some_and(|front| front.abandoned) {
                self.pending.pop_front();
                self.first += 1;
            }
        }
    }
}

/// A batch that was taken: a future of its acknowledgement. Dropping it gives up the wait, not the batch.
pub struct Ticket(State);

enum State {
    Settled(Option<Result<Produced, ProduceError>>),
    Waiting(Waiting),
    /// The batch waits for room in its log; then it has a ticket of its own.
    Deferred(OnceReceiver<Result<Ticket, ProduceError>>),
}

struct Waiting {
    queue: Rc<RefCell<TicketQueue>>,
    acks: Acks,
    sequence: u64,
    produced: Produced,
    timeout: Duration,
}

impl Ticket {
    /// For a batch that needs no acknowledgement.
    pub(crate) fn settled(result: Result<Produced, ProduceError>) -> Ticket {
        Ticket(State::Settled(Some(result)))
    }

    /// For a batch that isn't appended yet.
    pub(crate) fn deferred(receiver: OnceReceiver<Result<Ticket, ProduceError>>) -> Ticket {
        Ticket(State::Deferred(receiver))
    }

    /// For a batch that is in the log and ends at `end`.
    pub(crate) fn appended(
        queue: &Rc<RefCell<TicketQueue>>,
        acks: Acks,
        appended: Appended,
        end: Offset,
        produced: Produced,
        deadline: Deadline,
    ) -> Ticket {
        let sequence = match queue.borrow_mut().lane(acks) {
            Some(lane) => lane.push(appended, end, deadline.at),
            None => return Ticket::settled(Ok(produced)),
        };
        let waiting = Waiting { queue: queue.clone(), acks, sequence, produced, timeout: deadline.timeout };
        Ticket(State::Waiting(waiting))
    }

    /// Whether polling would give the answer at once.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        match &self.0 {
            State::Settled(_) => true,
            State::Waiting(waiting) => waiting.is_settled(),
            State::Deferred(_) => false,
        }
    }
}

impl Waiting {
    fn is_settled(&self) -> bool {
        let mut queue = self.queue.borrow_mut();
        let closed = queue.closed.is_some();
        let lane = queue.lane(self.acks).expect("tickets that wait are in a lane");
        closed || self.sequence < lane.first || lane.entry(self.sequence).is_some_and(|entry| entry.expired)
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Produced, ProduceError>> {
        let queue = &mut *self.queue.borrow_mut();
        let closed = queue.closed.clone();
        let lane = queue.lane(self.acks).expect("tickets that wait are in a lane");
        if self.sequence < lane.first {
            return Poll::Ready(Ok(self.produced));
        }
        if let Some(error) = closed {
            return Poll::Ready(Err(error));
        }
        let entry = lane.entry(self.sequence).expect("an open queue holds what isn't acknowledged");
        if entry.expired {
            return Poll::Ready(Err(ProduceError::TimedOut { timeout: self.timeout }));
        }
        if entry.waker.as_ref().is_none_or(|waker| !waker.will_wake(context.waker())) {
            entry.waker = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

impl Future for Ticket {
    type Output = Result<Produced, ProduceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match &mut self.0 {
                State::Settled(result) => return Poll::Ready(result.take().expect("a ticket is polled until it is ready")),
                State::Waiting(waiting) => return waiting.poll(context),
                State::Deferred(receiver) => match Pin::new(receiver).poll(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(Ok(ticket))) => *self = ticket,
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
                    Poll::Ready(None) => return Poll::Ready(Err(ProduceError::Stopping)),
                },
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut queue = self.queue.borrow_mut();
        if let Some(lane) = queue.lane(self.acks) {
            lane.abandon(self.sequence);
        }
    }
}
