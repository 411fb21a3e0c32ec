//! All operations of a core that the kernel has or is about to get: slots, and the order in which they are submitted.
//!
//! Called by [`super::ring::Ring`] only. Pure: completions come in as values, submissions go out as values.
//!
//! Invariants (traps 91 and 96):
//! - A slot is free only when the kernel has posted its last completion and every notification, and nobody waits for its result.
//! - Dropping a future frees nothing: the slot keeps all that the operation owns until then.
//! - What doesn't fit into the submission queue stays in the outbox, in order; nothing is lost.
//! - Wakers and finished operations leave through `wakers` and `finished`, so that the caller can run foreign code (a waker, the
//!   drop of a chunk) when it holds no borrow.

use std::collections::VecDeque;
use std::io;
use std::task::{Poll, Waker};

use super::operation::{
    Completion, FLAG_MORE, FLAG_NOTIFICATION, Message, Operation, REPORT_COPIED, Step, Submission, ZeroCopyRules,
};

/// The user data of cancellations; their own completions say nothing.
const CANCELLATION: u64 = u64::MAX;
/// The user data of another core's knock, which this ring hasn't asked for; it has done all it can when it wakes the core.
pub(super) const KNOCK: u64 = u64::MAX - 1;

/// Names an operation until its slot is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OperationId {
    index: u32,
    generation: u32,
}

/// The end of an operation: its result, and the operation itself with what it owned (but a send that the kernel still reads).
pub(super) struct Outcome {
    pub(super) result: io::Result<usize>,
    pub(super) operation: Option<Operation>,
}

/// What completions were like, counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) submissions: u64,
    pub(super) completions: u64,
    pub(super) notifications: u64,
    pub(super) zero_copy_sends: u64,
    pub(super) zero_copy_copied: u64,
    pub(super) resubmissions: u64,
    pub(super) short_transfers: u64,
    pub(super) cancellations: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Waiting,
    Gone,
}

struct Slot {
    generation: u32,
    owner: Owner,
    /// An entry is in the outbox, in the submission queue or in the kernel, and its last completion hasn't come.
    in_flight: bool,
    /// Notifications that completions have promised, less those that came. Below zero if one comes first.
    notifications: i32,
    operation: Option<Operation>,
    result: Option<io::Result<usize>>,
    waker: Option<Waker>,
    message: Option<Box<Message>>,
}

#[derive(Clone, Copy)]
enum Queued {
    Operation(OperationId),
    Cancellation(OperationId),
}

pub(super) struct Operations {
    slots: Vec<Slot>,
    free: Vec<u32>,
    outbox: VecDeque<Queued>,
    rules: ZeroCopyRules,
    counts: Counts,
    /// To be woken by the caller.
    pub(super) wakers: Vec<Waker>,
    /// To be dropped by the caller.
    pub(super) finished: Vec<Operation>,
}

impl OperationId {
    fn user_data(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }
}

impl Operations {
    pub(super) fn new(rules: ZeroCopyRules) -> Operations {
        Operations {
            slots: Vec::new(),
            free: Vec::new(),
            outbox: VecDeque::new(),
            rules,
            counts: Counts::default(),
            wakers: Vec::new(),
            finished: Vec::new(),
        }
    }

    /// Takes an operation; somebody waits for its end with [`Operations::poll`] or gives up with [`Operations::abandon`].
    pub(super) fn start(&mut self, operation: Operation) -> OperationId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                owner: Owner::Gone,
                in_flight: false,
                notifications: 0,
                operation: None,
                result: None,
                waker: None,
                message: None,
            });
            u32::try_from(self.slots.len() - 1).expect("operations are fewer than descriptors")
        });
        let slot = &mut self.slots[index as usize];
        assert!(slot.operation.is_none() && !slot.in_flight, "slot {index} is in use");
        slot.owner = Owner::Waiting;
        slot.in_flight = true;
        slot.operation = Some(operation);
        let id = OperationId { index, generation: slot.generation };
        self.outbox.push_back(Queued::Operation(id));
        id
    }

    /// The next thing to submit, with its user data, if any. Once taken, it must reach the kernel.
    pub(super) fn next(&mut self) -> Option<(u64, Submission)> {
        loop {
            match self.outbox.pop_front()? {
                Queued::Operation(id) => {
                    let slot = &mut self.slots[id.index as usize];
                    let operation = slot.operation.as_mut().expect("a queued operation lives");
                    let submission = operation.submission(&mut slot.message, &self.rules);
                    self.counts.submissions += 1;
                    if matches!(submission, Submission::SendZeroCopy { .. }) {
                        self.counts.zero_copy_sends += 1;
                    }
                    return Some((id.user_data(), submission));
                }
                Queued::Cancellation(id) => {
                    let slot = &self.slots[id.index as usize];
                    if slot.generation == id.generation && slot.in_flight {
                        self.counts.cancellations += 1;
                        return Some((CANCELLATION, Submission::Cancel { user_data: id.user_data() }));
                    }
                }
            }
        }
    }

    /// Whether something waits to be submitted.
    pub(super) fn has_queued(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// How many things wait to be submitted.
    pub(super) fn queued(&self) -> usize {
        self.outbox.len()
    }

    /// Slots that are not free.
    pub(super) fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// Takes one completion.
    pub(super) fn complete(&mut self, completion: Completion) {
        if [CANCELLATION, KNOCK].contains(&completion.user_data) {
            return;
        }
        let id = id_of(completion.user_data);
        let slot = &mut self.slots[id.index as usize];
        assert!(slot.generation == id.generation, "{completion:?} is for a slot that was freed");
        if completion.flags & FLAG_NOTIFICATION != 0 {
            self.counts.notifications += 1;
            slot.notifications -= 1;
            if completion.result & REPORT_COPIED != 0
                && let Some(Operation::Send(send)) = &slot.operation
            {
                self.counts.zero_copy_copied += 1;
                send.socket.plain_only.set(true);
            }
            self.settle(id);
            return;
        }
        self.counts.completions += 1;
        let operation = slot.operation.as_mut().expect("a slot in flight has its operation");
        if completion.flags & FLAG_MORE != 0 && matches!(operation, Operation::Send(_)) {
            slot.notifications += 1;
        }
        match operation.advance(completion, &mut self.wakers) {
            Step::Wait if operation.is_overfull() => self.outbox.push_back(Queued::Cancellation(id)),
            Step::Wait => {}
            Step::Again => {
                if completion.result >= 0 {
                    self.counts.short_transfers += 1;
                } else {
                    self.counts.resubmissions += 1;
                }
                if slot.owner == Owner::Gone && operation.is_endless() {
                    // A cancellation may have passed while nothing was in the kernel; the end is here.
                    self.finish(id, Err(io::Error::from_raw_os_error(libc::ECANCELED)));
                } else {
                    self.outbox.push_back(Queued::Operation(id));
                }
            }
            Step::Finished(result) => self.finish(id, result),
        }
    }

    fn finish(&mut self, id: OperationId, result: io::Result<usize>) {
        let slot = &mut self.slots[id.index as usize];
        slot.in_flight = false;
        if slot.owner == Owner::Waiting {
            slot.result = Some(result);
            if let Some(waker) = slot.waker.take() {
                self.wakers.push(waker);
            }
        } else if let Some(operation) = &mut slot.operation {
            operation.forget(&result);
        }
        self.settle(id);
    }

    /// The end of the operation, if it has come; else `waker` is called when it does.
    pub(super) fn poll(&mut self, id: OperationId, waker: &Waker) -> Poll<Outcome> {
        let slot = &mut self.slots[id.index as usize];
        assert!(slot.generation == id.generation && slot.owner == Owner::Waiting, "{id:?} was polled after its end");
        let Some(result) = slot.result.take() else {
            match &mut slot.waker {
                Some(known) if known.will_wake(waker) => {}
                known => *known = Some(waker.clone()),
            }
            return Poll::Pending;
        };
        slot.owner = Owner::Gone;
        let operation = if slot.notifications == 0 { slot.operation.take() } else { None };
        self.settle(id);
        Poll::Ready(Outcome { result, operation })
    }

    /// Nobody waits any more. The operation goes on until the kernel is done; what might never end is canceled.
    pub(super) fn abandon(&mut self, id: OperationId) {
        let slot = &mut self.slots[id.index as usize];
        assert!(slot.generation == id.generation && slot.owner == Owner::Waiting, "{id:?} was dropped twice");
        slot.owner = Owner::Gone;
        slot.waker = None;
        if let (Some(result), Some(operation)) = (slot.result.take(), &mut slot.operation) {
            operation.forget(&result);
        }
        if slot.in_flight && slot.operation.as_ref().is_some_and(Operation::is_endless) {
            self.outbox.push_back(Queued::Cancellation(id));
        }
        self.settle(id);
    }

    /// Asks the kernel to end an operation early.
    pub(super) fn cancel(&mut self, id: OperationId) {
        self.outbox.push_back(Queued::Cancellation(id));
    }

    /// Nobody will wait for this operation; unlike [`Operations::abandon`] it goes on.
    pub(super) fn detach(&mut self, id: OperationId) {
        self.slots[id.index as usize].owner = Owner::Gone;
        self.settle(id);
    }

    /// Asks the kernel to end everything that might never end by itself.
    pub(super) fn cancel_endless(&mut self) {
        for (index, slot) in self.slots.iter().enumerate() {
            if slot.in_flight && slot.operation.as_ref().is_some_and(Operation::is_endless) {
                let index = u32::try_from(index).expect("slots are few");
                self.outbox.push_back(Queued::Cancellation(OperationId { index, generation: slot.generation }));
            }
        }
    }

    /// Resets every connection of which the kernel still reads a send.
    pub(super) fn abort_sends(&self) {
        for slot in &self.slots {
            if let Some(Operation::Send(send)) = &slot.operation {
                send.socket.abort();
            }
        }
    }

    /// Frees what can be freed of a slot.
    fn settle(&mut self, id: OperationId) {
        let slot = &mut self.slots[id.index as usize];
        if slot.in_flight || slot.notifications != 0 {
            return;
        }
        if let Some(Operation::Send(send)) = &mut slot.operation {
            send.release();
        }
        if slot.owner == Owner::Waiting {
            return;
        }
        assert!(slot.result.is_none(), "a result that nobody took is in a free slot");
        self.finished.extend(slot.operation.take());
        slot.generation = slot.generation.wrapping_add(1);
        // The user data of cancellations and knocks is never that of a slot.
        if slot.generation == u32::MAX {
            slot.generation = 0;
        }
        self.free.push(id.index);
    }
}

fn id_of(user_data: u64) -> OperationId {
    let low = u32::try_from(user_data & u64::from(u32::MAX)).expect("masked");
    let high = u32::try_from(user_data >> 32).expect("shifted");
    OperationId { index: low, generation: high }
}

#[cfg(test)]
mod tests;
