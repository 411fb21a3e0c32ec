//! Maintenance of a shard's logs: space ahead, the next segment, rolls by time, seals, flushes of class `written`, checkpoints, retention.
//!
//! Each partition is asked after its writes (a hot one needs space at once) and each second (a quiet one rolls by time, trap T33). One
//! piece per partition is out at a time; its task goes on with the next. Directories get a checkpoint each few seconds, if
//! anything was written since the last.

use std::rc::Rc;
use std::time::Duration;

use runtime::Env;
use storage::MaintenancePlan;

use crate::shard::{PartitionCell, Shard};

/// How often every partition is asked.
const ROUND_INTERVAL: Duration = Duration::from_secs(1);
/// How often in a round the logs are asked whether a checkpoint would help.
const CHECKPOINT_CHECKS_PER_ROUND: u32 = 4;
/// Rounds between two checkpoints.
const ROUNDS_PER_CHECKPOINT: u64 = 5;
/// Partitions asked before other tasks get a turn.
const PARTITIONS_PER_TURN: usize = 256;

impl<E: Env> Shard<E> {
    pub(crate) async fn run_maintenance(self) {
        let mut round = 0_u64;
        let mut checkpointed = 0;
        loop {
            // A log that is appended to near disk speed asks for checkpoints more often, so that recovery never scans much of it.
            for _ in 0..CHECKPOINT_CHECKS_PER_ROUND {
                self.env().sleep(ROUND_INTERVAL / CHECKPOINT_CHECKS_PER_ROUND).await;
                if self.is_stopping() {
                    return;
                }
                if self.any(|partition| partition.log().wants_checkpoint()) {
                    self.write_checkpoints().await;
                }
            }
            for (index, cell) in self.cells().iter().enumerate() {
                if index % PARTITIONS_PER_TURN == PARTITIONS_PER_TURN - 1 {
                    self.env().yield_now().await;
                }
                self.settle(cell, |state, purgatory, woken| state.check_log(purgatory, woken));
                self.watch_crowding(cell);
                cell.partition.borrow_mut().retain(self.env().wall_clock());
                self.start_maintenance(cell);
                self.start_removal(cell);
            }
            // Who waits for a log that has been stopped is told at the latest now.
            self.settled().notify();
            round += 1;
            let writes = self.counters().writes.value();
            if round.is_multiple_of(ROUNDS_PER_CHECKPOINT) && writes != checkpointed {
                checkpointed = writes;
                self.write_checkpoints().await;
            }
        }
    }

    /// Starts the partition's next piece of maintenance, if one is due.
    pub(crate) fn start_maintenance(&self, cell: &Rc<PartitionCell<E>>) {
        if let Some(plan) = self.begin_maintenance(cell) {
            let (shard, cell) = (self.clone(), cell.clone());
            self.env().spawn(async move { shard.maintain(cell, plan).await });
        }
    }

    /// Has the files of segments removed that have left the partition's log.
    pub(crate) fn start_removal(&self, cell: &Rc<PartitionCell<E>>) {
        let plan = cell.partition.borrow_mut().begin_removal();
        if let Some(plan) = plan {
            let (shard, cell) = (self.clone(), cell.clone());
            self.env().spawn(async move {
                let outcome = plan.execute().await;
                let is_done = outcome.is_done();
                shard.settle(&cell, |state, purgatory, woken| state.finish_removal(outcome, purgatory, woken));
                if is_done {
                    shard.start_removal(&cell);
                }
                shard.follow_up(&cell);
            });
        }
    }

    async fn maintain(self, cell: Rc<PartitionCell<E>>, plan: MaintenancePlan<E>) {
        let outcome = plan.execute().await;
        let now = self.env().now();
        self.settle(&cell, |state, purgatory, woken| state.finish_maintenance(outcome, now, purgatory, woken));
        // Writes may have waited for it.
        self.start_writes(&cell);
        self.follow_up(&cell);
    }

    fn begin_maintenance(&self, cell: &PartitionCell<E>) -> Option<MaintenancePlan<E>> {
        cell.partition.borrow_mut().begin_maintenance(self.clocks())
    }
}
