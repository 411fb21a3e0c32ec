//! The clock of a shard: one task that sleeps until the next deadline of a ticket or a parked fetch, and then gives it up.
//!
//! Fetches stand in order of their deadlines. Tickets don't: their number is large and their deadline rarely passes, so only a
//! lower bound is kept, and all are looked at when it passes. That costs a walk over all partitions, so it isn't done again at once:
//! a client may send timeouts of zero, one after the other.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use runtime::{Env, Monotonic};

use crate::shard::{Shard, wake};
use crate::tickets::Woken;

/// Tickets are looked at no sooner than this after the last time; one whose deadline has passed waits as long.
const TICKETS_PAUSE: Duration = Duration::from_millis(2);

impl<E: Env> Shard<E> {
    /// A ticket has this deadline.
    pub(crate) fn watch_ticket(&self, deadline: Monotonic) {
        let clock = self.clock();
        let deadline = deadline.max(clock.tickets_not_before.get());
        if clock.tickets.get().is_none_or(|earliest| deadline < earliest) {
            clock.tickets.set(Some(deadline));
            self.watch(deadline);
        }
    }

    /// Something happens at `deadline`: the clock task must be awake then.
    pub(crate) fn watch(&self, deadline: Monotonic) {
        let clock = self.clock();
        if clock.armed.get().is_none_or(|armed| deadline < armed) {
            clock.armed.set(Some(deadline));
            clock.signal.give();
        }
    }

    pub(crate) async fn run_clock(self) {
        while !self.is_stopped() {
            let earliest = self.next_deadline();
            self.clock().armed.set(earliest);
            match earliest {
                None => self.clock().signal.wait().await,
                Some(at) => {
                    let now = self.env().now();
                    if at > now {
                        first_of(self.env().sleep(at - now), self.clock().signal.wait()).await;
                    }
                    self.expire();
                }
            }
        }
    }

    fn next_deadline(&self) -> Option<Monotonic> {
        let fetches = self.purgatory().borrow().earliest_deadline();
        fetches.into_iter().chain(self.clock().tickets.get()).min()
    }

    fn expire(&self) {
        let now = self.env().now();
        let mut woken = Woken::new();
        let expired = self.purgatory().borrow_mut().expire(now, &mut woken);
        self.counters().expired_fetches.add(expired);
        if self.clock().tickets.get().is_some_and(|earliest| earliest <= now) {
            let cells = self.cells();
            let next = cells.iter().filter_map(|cell| cell.partition.borrow_mut().expire_tickets(now, &mut woken)).min();
            self.counters().ticket_scans.add(1);
            let not_before = now + TICKETS_PAUSE;
            self.clock().tickets_not_before.set(not_before);
            self.clock().tickets.set(next.map(|next| next.max(not_before)));
        }
        wake(woken);
    }
}

/// Ends when one of the two does.
async fn first_of(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|context| {
        if one.as_mut().poll(context).is_ready() || other.as_mut().poll(context).is_ready() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}
