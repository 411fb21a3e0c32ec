//! What a partition knows of its idempotent producers (KIP-98, KIP-360): which batch comes next, and which it has had already.
//!
//! Lives on the owner core, inside `shard::partition`, which alone may call it. Order of events for a batch: [`Producers::admit`]
//! says whether it is new, then the log appends it, then [`Producers::appended`] is told. Recovery tells the batches that it finds in the log
//! with [`Producers::appended`] too, on top of a snapshot.
//!
//! Invariants:
//! - Nothing changes before the append has succeeded (trap T26): `admit` only looks.
//! - All records of a producer's epoch that were taken are one run of sequences without a gap, which may wrap (trap T44).
//! - A state goes by the wall clock, never by what records say of their time, and not with the records that made it (traps T46 and T47).
//! - At most [`PRODUCERS_PER_PARTITION_MAX`] producers are remembered. One that may still send again is never given up for another.

use std::collections::{BTreeMap, VecDeque};

use protocol::error::{ErrorCode, WireError};
use protocol::ids::{Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};
use protocol::limits::{PRODUCER_BATCHES_REMEMBERED, PRODUCERS_PER_PARTITION_MAX};

mod snapshot;
#[cfg(test)]
mod tests;

pub use snapshot::SnapshotError;

/// Nobody sends a batch again after this time, in milliseconds: five times the delivery timeout of Kafka's clients.
const RETRIES_END_MS: i64 = 600_000;

/// A batch of an idempotent producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerBatch {
    /// Who sends it.
    pub producer: ProducerId,
    /// Which instance of it.
    pub epoch: ProducerEpoch,
    /// Sequence of its first record.
    pub first: Sequence,
    /// Its records, at least one.
    pub records: u32,
}

/// Where a batch lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Offset of its first record.
    pub base: Offset,
    /// When it was appended, on topics that stamp that; else -1.
    pub append_time: Timestamp,
}

/// What is to be done with a batch that isn't refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is the next one.
    New,
    /// It was appended before, here.
    Duplicate(Place),
}

/// Why a batch is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProducerRefused {
    /// A newer instance of the producer has sent already.
    #[error("producer {producer} is at epoch {current}; this batch has epoch {asked}")]
    Fenced {
        /// The producer.
        producer: ProducerId,
        /// The batch's epoch.
        asked: ProducerEpoch,
        /// The newest one here.
        current: ProducerEpoch,
    },
    /// The first batch of a new instance doesn't begin at 0.
    #[error("the first batch of producer {producer} in epoch {epoch} begins with sequence {first}; 0 is expected")]
    FirstOfEpoch {
        /// The producer.
        producer: ProducerId,
        /// The new epoch.
        epoch: ProducerEpoch,
        /// The batch's first sequence.
        first: Sequence,
    },
    /// Records between the last batch and this one are missing, or it holds some that came in another batch.
    #[error("a batch of producer {producer}, epoch {epoch}, begins with sequence {first}; {expected} is expected")]
    OutOfOrder {
        /// The producer.
        producer: ProducerId,
        /// Its epoch.
        epoch: ProducerEpoch,
        /// The batch's first sequence.
        first: Sequence,
        /// The sequence that comes next.
        expected: Sequence,
    },
    /// It was appended, but so long ago that its offset isn't known any more.
    #[error(
        "the batch of producer {producer}, epoch {epoch}, that begins with sequence {first} was appended before; only the last \
         {PRODUCER_BATCHES_REMEMBERED} batches' offsets are known"
    )]
    OldDuplicate {
        /// The producer.
        producer: ProducerId,
        /// Its epoch.
        epoch: ProducerEpoch,
        /// The batch's first sequence.
        first: Sequence,
    },
    /// No room for one more.
    #[error("{PRODUCERS_PER_PARTITION_MAX} idempotent producers have sent to this partition lately, and no more are remembered")]
    TooManyProducers,
}

impl WireError for ProducerRefused {
    fn code(&self) -> ErrorCode {
        match self {
            ProducerRefused::Fenced { .. } => ErrorCode::InvalidProducerEpoch,
            ProducerRefused::FirstOfEpoch { .. } | ProducerRefused::OutOfOrder { .. } => ErrorCode::OutOfOrderSequenceNumber,
            ProducerRefused::OldDuplicate { .. } => ErrorCode::DuplicateSequenceNumber,
            ProducerRefused::TooManyProducers => ErrorCode::ThrottlingQuotaExceeded,
        }
    }
}

/// The idempotent producers of one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Producers {
    by_id: BTreeMap<ProducerId, Producer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Producer {
    epoch: ProducerEpoch,
    /// The sequence that comes next.
    next: Sequence,
    /// Records taken in this epoch: the run of sequences that ends before `next`.
    records: u64,
    /// The last batches, oldest first.
    batches: VecDeque<Known>,
    /// The wall clock at the last append.
    last_append: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    first: Sequence,
    records: u32,
    place: Place,
}

impl Producers {
    /// Nobody.
    #[must_use]
    pub fn new() -> Producers {
        Producers::default()
    }

    /// How many are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether nobody is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Says what is to be done with a batch. Changes nothing.
    ///
    /// Of a producer that isn't known any batch is taken, whatever its sequence: what it sent before may have been forgotten (KIP-360).
    ///
    /// # Errors
    /// See [`ProducerRefused`].
    pub fn admit(&self, batch: &ProducerBatch, now: Timestamp) -> Result<Admission, ProducerRefused> {
        let ProducerBatch { producer, epoch, first, .. } = *batch;
        let Some(known) = self.by_id.get(&producer) else {
            let full = self.by_id.len() >= PRODUCERS_PER_PARTITION_MAX;
            let all_may_retry = || self.by_id.values().all(|other| other.may_retry(now));
            return if full && all_may_retry() { Err(ProducerRefused::TooManyProducers) } else { Ok(Admission::New) };
        };
        if epoch < known.epoch {
            return Err(ProducerRefused::Fenced { producer, asked: epoch, current: known.epoch });
        }
        if epoch > known.epoch {
            let begins = first == Sequence(0);
            return if begins { Ok(Admission::New) } else { Err(ProducerRefused::FirstOfEpoch { producer, epoch, first }) };
        }
        if first == known.next {
            return Ok(Admission::New);
        }
        if let Some(same) = known.batches.iter().find(|known| known.first == first && known.records == batch.records) {
            return Ok(Admission::Duplicate(same.place));
        }
        let behind = known.next.since(first);
        let remembered: u64 = known.batches.iter().map(|batch| u64::from(batch.records)).sum();
        let is_old = u64::from(behind) <= known.records && u64::from(behind) >= remembered + u64::from(batch.records);
        Err(if is_old {
            ProducerRefused::OldDuplicate { producer, epoch, first }
        } else {
            ProducerRefused::OutOfOrder { producer, epoch, first, expected: known.next }
        })
    }

    /// Notes a batch that was appended, here or before a restart. `now` is the wall clock.
    pub fn appended(&mut self, batch: &ProducerBatch, place: Place, now: Timestamp) {
        if !self.by_id.contains_key(&batch.producer) && self.by_id.len() >= PRODUCERS_PER_PARTITION_MAX {
            self.give_up_one();
        }
        let fresh = || Producer {
            epoch: batch.epoch,
            next: batch.first,
            records: 0,
            batches: VecDeque::with_capacity(PRODUCER_BATCHES_REMEMBERED),
            last_append: now,
        };
        let producer = self.by_id.entry(batch.producer).or_insert_with(fresh);
        if producer.epoch != batch.epoch || producer.next != batch.first {
            // A new instance; or, in a log that is replayed, one that had been forgotten and was taken as it came.
            *producer = fresh();
        }
        producer.next = batch.first.plus(batch.records);
        producer.records += u64::from(batch.records);
        producer.last_append = now;
        if producer.batches.len() == PRODUCER_BATCHES_REMEMBERED {
            producer.batches.pop_front();
        }
        producer.batches.push_back(Known { first: batch.first, records: batch.records, place });
    }

    /// Forgets producers that have appended nothing for `keep_ms` (`producer.id.expiration.ms`); how many.
    pub fn expire(&mut self, now: Timestamp, keep_ms: u64) -> usize {
        let before = self.by_id.len();
        let keep_ms = i64::try_from(keep_ms).unwrap_or(i64::MAX);
        self.by_id.retain(|_, producer| now.0.saturating_sub(producer.last_append.0) < keep_ms);
        before - self.by_id.len()
    }

    /// Forgets the one that has been silent for longest: [`Producers::admit`] has seen that it won't send again what it has sent.
    fn give_up_one(&mut self) {
        let longest = self.by_id.iter().min_by_key(|(_, producer)| producer.last_append).map(|(&producer, _)| producer);
        if let Some(producer) = longest {
            self.by_id.remove(&producer);
        }
    }
}

impl Producer {
    fn may_retry(&self, now: Timestamp) -> bool {
        now.0.saturating_sub(self.last_append.0) < RETRIES_END_MS
    }
}
