//! The purgatory: fetches that found too little wait here for bytes below their bound, or for their deadline.
//!
//! One per core. `fetch` parks and awaits; `partition` lists which waiters stand at it; the shard tells of bytes that became
//! visible (the high watermark moved past them, trap T75: an append alone wakes nobody), the clock of time that passed.
//!
//! Invariants: a waiter is gone when its fetch is dropped (T83, T92), with its place in every partition's list and in the deadlines; waiters
//! and their places are bounded (T82), a fetch that finds no place isn't parked. Nothing of a fetch's data is kept here.

use std::collections::BTreeSet;
use std::task::{Context, Poll, Waker};

use protocol::limits::{PURGATORY_PLACES_MAX, PURGATORY_WAITERS_MAX};
use runtime::Monotonic;
use slab::Slab;

use crate::tickets::Woken;

#[cfg(test)]
mod tests;

/// Key of a parked fetch, as long as it is parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WaiterKey(usize);

/// Limits of a purgatory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PurgatoryLimits {
    pub(crate) waiters_max: usize,
    /// Entries in partitions' lists, in all.
    pub(crate) places_max: usize,
}

impl Default for PurgatoryLimits {
    fn default() -> PurgatoryLimits {
        PurgatoryLimits { waiters_max: PURGATORY_WAITERS_MAX, places_max: PURGATORY_PLACES_MAX }
    }
}

#[derive(Default)]
pub(crate) struct Purgatory {
    limits: PurgatoryLimits,
    waiters: Slab<Waiter>,
    deadlines: BTreeSet<(Monotonic, WaiterKey)>,
    places: usize,
}

struct Waiter {
    waker: Option<Waker>,
    deadline: Monotonic,
    /// Bytes that must become visible before the fetch is worth another try.
    missing_bytes: u64,
    places: usize,
    woken: bool,
}

impl Purgatory {
    pub(crate) fn new(limits: PurgatoryLimits) -> Purgatory {
        Purgatory { limits, ..Purgatory::default() }
    }

    /// Parks a fetch that will be listed at `places` partitions; `None` if the purgatory is full.
    pub(crate) fn park(&mut self, deadline: Monotonic, missing_bytes: u64, places: usize) -> Option<WaiterKey> {
        if self.waiters.len() >= self.limits.waiters_max || self.places + places > self.limits.places_max {
            return None;
        }
        let waiter = Waiter { waker: None, deadline, missing_bytes, places, woken: false };
        let key = WaiterKey(self.waiters.insert(waiter));
        self.places += places;
        self.deadlines.insert((deadline, key));
        Some(key)
    }

    /// Takes a fetch out.
    pub(crate) fn leave(&mut self, key: WaiterKey) {
        let waiter = self.waiters.remove(key.0);
        self.places -= waiter.places;
        self.deadlines.remove(&(waiter.deadline, key));
    }

    /// Bytes have become visible in a partition where the waiter is listed.
    pub(crate) fn advance(&mut self, key: WaiterKey, bytes: u64, woken: &mut Woken) {
        let waiter = &mut self.waiters[key.0];
        waiter.missing_bytes = waiter.missing_bytes.saturating_sub(bytes);
        if waiter.missing_bytes == 0 {
            waiter.wake(woken);
        }
    }

    /// Something has happened that the fetch must look at: its partition has stopped or is gone.
    pub(crate) fn wake(&mut self, key: WaiterKey, woken: &mut Woken) {
        self.waiters[key.0].wake(woken);
    }

    /// Wakes all whose deadline has passed; the number of them.
    pub(crate) fn expire(&mut self, now: Monotonic, woken: &mut Woken) -> u64 {
        let mut count = 0;
        while let Some(&(deadline, key)) = self.deadlines.first()
            && deadline <= now
        {
            self.deadlines.pop_first();
            self.waiters[key.0].wake(woken);
            count += 1;
        }
        count
    }

    /// The deadline that passes first.
    pub(crate) fn earliest_deadline(&self) -> Option<Monotonic> {
        self.deadlines.first().map(|&(deadline, _)| deadline)
    }

    /// Ready once the waiter was woken.
    pub(crate) fn poll(&mut self, key: WaiterKey, context: &mut Context<'_>) -> Poll<()> {
        let waiter = &mut self.waiters[key.0];
        if waiter.woken {
            return Poll::Ready(());
        }
        if waiter.waker.as_ref().is_none_or(|waker| !waker.will_wake(context.waker())) {
            waiter.waker = Some(context.waker().clone());
        }
        Poll::Pending
    }

    /// Parked fetches.
    pub(crate) fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Entries in partitions' lists, in all.
    pub(crate) fn places(&self) -> usize {
        self.places
    }
}

impl Waiter {
    fn wake(&mut self, woken: &mut Woken) {
        self.woken = true;
        woken.extend(self.waker.take());
    }
}
