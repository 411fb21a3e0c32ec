//! The sequences of one partition's batches, by which the server knows a batch again that is sent twice (KIP-98, KIP-360).
//!
//! Used by [`queue`](super::queue) alone. A batch gets its sequence when it first leaves, and keeps it as long as it may still land in its place.
//! Invariants:
//! - The batches of one epoch are one run of sequences, from 0.
//! - A batch that has failed for good leaves a gap: those behind it begin a new epoch, once nothing is in flight any more.
//! - Until the first batch of an epoch was accepted it is alone in flight: the server takes any sequence of a producer that it doesn't know.

use bytes::Bytes;
use protocol::batch::{ProducerFields, stamp_producer};
use protocol::ids::{ProducerEpoch, ProducerId, Sequence};

#[derive(Debug)]
pub(super) struct Sequences {
    /// `None` until the server gives one.
    producer: Option<ProducerId>,
    epoch: ProducerEpoch,
    next: Sequence,
    /// A batch of this epoch was accepted.
    is_known: bool,
    /// A batch with a sequence has failed.
    has_gap: bool,
    /// All of its epochs are used up.
    used_up: Option<ProducerId>,
}

impl Sequences {
    pub fn new() -> Sequences {
        Sequences { producer: None, epoch: ProducerEpoch(0), next: Sequence(0), is_known: false, has_gap: false, used_up: None }
    }

    /// Whether nothing can leave before [`Sequences::give`].
    pub fn lacks_producer(&self) -> bool {
        self.producer.is_none()
    }

    /// Takes an identity. `false` if its epochs are used up here.
    pub fn give(&mut self, producer: ProducerId) -> bool {
        if self.used_up == Some(producer) {
            return false;
        }
        self.producer = Some(producer);
        true
    }

    /// Whether what isn't in flight has to wait for what is.
    pub fn holds(&self, in_flight: usize) -> bool {
        in_flight > 0 && (self.has_gap || !self.is_known)
    }

    /// Who sends the batch that leaves next. It counts only with [`Sequences::taken`].
    pub fn fields(&self) -> ProducerFields {
        ProducerFields {
            producer_id: self.producer.expect("nothing leaves without a producer id"),
            producer_epoch: self.epoch,
            base_sequence: self.next,
            transactional: false,
        }
    }

    /// A batch has those fields.
    pub fn taken(&mut self, records: u32) {
        self.next = self.next.plus(records);
    }

    pub fn accepted(&mut self) {
        self.is_known = true;
    }

    /// A batch that had a sequence has failed for good, or the server has lost one.
    pub fn failed(&mut self) {
        self.has_gap = true;
    }

    pub fn has_gap(&self) -> bool {
        self.has_gap
    }

    /// If there is a gap, begins the next epoch with these batches; nothing may be in flight. Whether it did.
    pub fn close_gap<'a>(&mut self, again: impl Iterator<Item = (&'a mut Bytes, u32)>) -> bool {
        if !self.has_gap || self.producer.is_none() {
            return false;
        }
        if self.epoch == ProducerEpoch(i16::MAX) {
            self.used_up = self.producer.take();
            self.epoch = ProducerEpoch(-1);
            return false;
        }
        self.epoch = ProducerEpoch(self.epoch.0 + 1);
        self.next = Sequence(0);
        (self.has_gap, self.is_known) = (false, false);
        for (bytes, records) in again {
            let mut stamped = Vec::from(std::mem::take(bytes));
            stamp_producer(&mut stamped, self.fields());
            *bytes = Bytes::from(stamped);
            self.taken(records);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_producer_whose_epochs_are_used_up_takes_another_identity() {
        let mut sequences = Sequences::new();
        assert!(sequences.give(ProducerId(1)));
        sequences.epoch = ProducerEpoch(i16::MAX);
        sequences.failed();
        assert!(!sequences.close_gap(std::iter::empty()));
        assert!(sequences.lacks_producer() && !sequences.give(ProducerId(1)));
        assert!(sequences.give(ProducerId(2)) && sequences.close_gap(std::iter::empty()));
        let fields = sequences.fields();
        assert_eq!(
            (fields.producer_id, fields.producer_epoch, fields.base_sequence),
            (ProducerId(2), ProducerEpoch(0), Sequence(0))
        );
    }
}
