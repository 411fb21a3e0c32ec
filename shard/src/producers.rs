//! A partition's idempotent producers between the batches, the rules and the log: who sent a batch, and what a log keeps of the state.
//!
//! Called by `partition` and `lifecycle`. The rules are [`cluster::producer`]'s; where snapshots go is [`storage`]'s.

use cluster::producer::{Place, ProducerBatch, Producers};
use protocol::batch::BatchView;
use protocol::ids::{ProducerId, Timestamp};
use storage::{ProducerReplay, ReplayedBatch};

/// Who sent a batch, if that one's batches are known again.
pub(crate) fn producer_of(batch: &BatchView<'_>) -> Option<ProducerBatch> {
    let producer = batch.producer_id();
    (producer != ProducerId::NONE).then(|| ProducerBatch {
        producer,
        epoch: batch.producer_epoch(),
        first: batch.base_sequence(),
        records: u32::try_from(batch.record_count()).expect("a batch is validated before it is admitted"),
    })
}

/// Empty for nobody.
pub(crate) fn snapshot_of(producers: &Producers) -> Vec<u8> {
    if producers.is_empty() { Vec::new() } else { producers.to_snapshot() }
}

/// The idempotent producers of a partition, as recovery finds them.
pub(crate) struct RecoveredProducers {
    pub(crate) state: Producers,
    /// Who sent what is replayed may still send it again: it counts as appended now.
    pub(crate) now: Timestamp,
}

impl ProducerReplay for RecoveredProducers {
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
        self.state = Producers::from_snapshot(snapshot).map_err(|error| error.to_string())?;
        Ok(())
    }

    fn replay(&mut self, batch: ReplayedBatch) {
        let ReplayedBatch { producer, epoch, first, records, base, append_time } = batch;
        self.state.appended(&ProducerBatch { producer, epoch, first, records }, Place { base, append_time }, self.now);
    }

    fn snapshot(&self) -> Vec<u8> {
        snapshot_of(&self.state)
    }
}
