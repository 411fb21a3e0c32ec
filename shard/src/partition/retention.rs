//! A partition's old segments leave it: asked each second, told after a checkpoint (`crate::maintenance`, `crate::lifecycle`).

use protocol::ids::{Offset, Timestamp};
use protocol::native::DeleteBefore;
use runtime::Env;
use storage::{RemovalOutcome, RemovalPlan};

use super::{Condition, Partition};
use crate::delete_records::DeleteRecordsError;
use crate::purgatory::Purgatory;
use crate::tickets::Woken;

impl<E: Env> Partition<E> {
    /// Has the log begin where retention has it now.
    pub(crate) fn retain(&mut self, wall: Timestamp) {
        if !matches!(self.condition, Condition::Serving) {
            return;
        }
        let limit = self.replica.positions().high_watermark;
        if let Some(start) = self.log.retention_start(wall, limit) {
            self.log.plan_start(start);
        }
    }

    /// Has the log begin where its records are to be deleted up to; that offset.
    pub(crate) fn begin_later(&mut self, before: DeleteBefore) -> Result<Offset, DeleteRecordsError> {
        self.check_serving()?;
        let high_watermark = self.replica.positions().high_watermark;
        let start = match before {
            DeleteBefore::HighWatermark => high_watermark,
            DeleteBefore::Offset(asked) if asked > high_watermark => {
                return Err(DeleteRecordsError::OutOfRange { asked, high_watermark });
            }
            DeleteBefore::Offset(asked) => asked,
        };
        self.want_start(start);
        Ok(start)
    }

    /// Has the log begin at `start`, which consumers see, if it doesn't begin behind it.
    pub(crate) fn want_start(&mut self, start: Offset) {
        if start > self.log.log_start() {
            self.log.plan_start(start);
        }
    }

    /// A checkpoint on stable storage says where the log begins.
    pub(crate) fn start_is_durable(&mut self, start: Offset) {
        self.log.start_is_durable(start);
        self.replica.log_start_moved(self.log.log_start());
    }

    pub(crate) fn begin_removal(&mut self) -> Option<RemovalPlan<E>> {
        // A stop doesn't wait for all that could go; it goes in the next process.
        if !matches!(self.condition, Condition::Serving) {
            return None;
        }
        let plan = self.log.begin_removal()?;
        self.removal_running = true;
        Some(plan)
    }

    pub(crate) fn finish_removal(&mut self, outcome: RemovalOutcome, purgatory: &mut Purgatory, woken: &mut Woken) {
        self.removal_running = false;
        if let Err(failure) = self.log.finish_removal(outcome) {
            self.close(Condition::Stopped(failure), purgatory, woken);
        }
    }
}
