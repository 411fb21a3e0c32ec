//! The writer of a shard: what was appended in a tick is written once, as group commits.
//!
//! A batch marks its partition; the writer task runs after the connections' tasks of the same tick, takes one plan after the other
//! from each marked partition, and starts a task per plan. That task settles its write and goes on with the next plan of the
//! partition at once: a slot that becomes free doesn't wait for a tick.
//!
//! A partition that has bytes to write, no plan out and yet gets none (no memory for a private block) or has batches waiting
//! for room is tried again each millisecond by the task for the stalled.

use std::rc::Rc;
use std::time::Duration;

use runtime::Env;
use storage::WritePlan;

use crate::shard::{PartitionCell, Shard};

/// How long a stalled partition waits for its next try.
const STALLED_RETRY: Duration = Duration::from_millis(1);

impl<E: Env> Shard<E> {
    pub(crate) async fn run_writer(self) {
        let mut marked = Vec::new();
        while !self.is_stopped() {
            self.dirty_signal().wait().await;
            // The two lists change places, so that neither is allocated anew each tick.
            std::mem::swap(&mut marked, &mut *self.dirty().borrow_mut());
            for cell in marked.drain(..) {
                cell.dirty.set(false);
                self.start_writes(&cell);
                self.follow_up(&cell);
            }
        }
    }

    /// Starts as many writes of a partition as may be out.
    pub(crate) fn start_writes(&self, cell: &Rc<PartitionCell<E>>) {
        while let Some(plan) = self.begin_write(cell) {
            let (shard, cell) = (self.clone(), cell.clone());
            self.env().spawn(async move { shard.write(cell, plan).await });
        }
    }

    /// Writes, settles, and goes on as long as there is something to write.
    async fn write(self, cell: Rc<PartitionCell<E>>, plan: WritePlan<E>) {
        let mut next = Some(plan);
        while let Some(plan) = next {
            let outcome = plan.execute().await;
            self.counters().writes.add(1);
            self.settle(&cell, |state, purgatory, woken| state.finish_write(outcome, purgatory, woken));
            next = self.begin_write(&cell);
            self.follow_up(&cell);
        }
    }

    fn begin_write(&self, cell: &PartitionCell<E>) -> Option<WritePlan<E>> {
        cell.partition.borrow_mut().begin_write(self.env().now())
    }

    /// What a settled plan may have made possible or necessary.
    pub(crate) fn follow_up(&self, cell: &Rc<PartitionCell<E>>) {
        if cell.partition.borrow().has_deferred() {
            let appended = cell.partition.borrow_mut().retry_deferred(self.clocks());
            if appended {
                self.mark_dirty(cell);
            }
        }
        self.start_maintenance(cell);
        self.watch_crowding(cell);
        let state = cell.partition.borrow();
        if state.is_stalled() || state.has_deferred() {
            drop(state);
            self.mark_stalled(cell);
        }
        self.settled().notify();
    }

    fn mark_stalled(&self, cell: &Rc<PartitionCell<E>>) {
        if !cell.stalled.replace(true) {
            self.stalled().borrow_mut().push(cell.clone());
            self.stalled_signal().give();
        }
    }

    pub(crate) async fn run_stalled(self) {
        while !self.is_stopped() {
            self.stalled_signal().wait().await;
            self.env().sleep(STALLED_RETRY).await;
            let stalled = std::mem::take(&mut *self.stalled().borrow_mut());
            for cell in stalled {
                cell.stalled.set(false);
                self.start_writes(&cell);
                self.follow_up(&cell);
            }
        }
    }
}
