//! Choice of a partition for a record: murmur2 over the key, as the Java client does, or a turn for records without one.
//!
//! One instance per producer and topic. Invariant: a key always goes to the same partition while the number of partitions is
//! the same.

use protocol::ids::PartitionIndex;
use protocol::partitioner;

use crate::config::NullKeyPartitioner;

/// The choice for one topic.
#[derive(Debug)]
pub(crate) struct Partitioner {
    policy: NullKeyPartitioner,
    turn: u32,
}

impl Partitioner {
    /// `seed` decides where the turns begin, so that many producers don't begin together.
    pub fn new(policy: NullKeyPartitioner, seed: u32) -> Partitioner {
        Partitioner { policy, turn: seed }
    }

    /// The partition of a record.
    ///
    /// # Panics
    /// If there are no partitions.
    pub fn partition(&mut self, key: Option<&[u8]>, partitions: u32) -> PartitionIndex {
        assert!(partitions > 0, "a topic has at least one partition");
        if let Some(key) = key {
            return partitioner::partition_of(key, partitions);
        }
        let chosen = PartitionIndex(self.turn % partitions);
        if self.policy == NullKeyPartitioner::RoundRobin {
            self.turn = self.turn.wrapping_add(1);
        }
        chosen
    }

    /// A batch of records without keys left: the next ones go elsewhere.
    pub fn batch_left(&mut self) {
        if self.policy == NullKeyPartitioner::Sticky {
            self.turn = self.turn.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sticky_stays_until_a_batch_has_left() {
        let mut partitioner = Partitioner::new(NullKeyPartitioner::Sticky, 5);
        assert_eq!(partitioner.partition(None, 3), PartitionIndex(2));
        assert_eq!(partitioner.partition(None, 3), PartitionIndex(2));
        partitioner.batch_left();
        assert_eq!(partitioner.partition(None, 3), PartitionIndex(0));
    }

    #[test]
    fn round_robin_takes_each_in_turn() {
        let mut partitioner = Partitioner::new(NullKeyPartitioner::RoundRobin, 0);
        let chosen: Vec<u32> = (0..4).map(|_| partitioner.partition(None, 3).0).collect();
        assert_eq!(chosen, [0, 1, 2, 0]);
    }

    #[test]
    fn a_key_keeps_its_partition_whatever_the_turn() {
        let mut partitioner = Partitioner::new(NullKeyPartitioner::RoundRobin, 0);
        let first = partitioner.partition(Some(b"21"), 7);
        partitioner.partition(None, 7);
        assert_eq!(partitioner.partition(Some(b"21"), 7), first);
    }
}
