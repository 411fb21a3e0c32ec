//! The checkpoint of one core in one data directory: from where on recovery has to scan each log.
//!
//! Two files that are overwritten in turn; the valid one with the higher sequence counts, so a write that is torn loses
//! nothing. An entry is a promise about bytes that are on stable storage before the checkpoint is written: so an old checkpoint is
//! as right as a new one, and only costs a longer scan. A log without an entry is scanned from its oldest unsealed segment.
//!
//! Several cores' checkpoints may name one log, which has moved, or whose core isn't there any more. The sequences of two cores say nothing about
//! each other, and needn't: what an entry promises stays true, since neither the flushed offset of a log nor its start ever goes
//! back, its index files only grow behind what is vouched for, and topic ids are never used again. So the entry with the greatest flushed
//! offset counts, and any other of the log would only have more scanned.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use protocol::ids::{BrokerEpoch, LeaderEpoch, Offset, PartitionIndex, Timestamp, TopicId, TopicPartition};

use crate::bytes::{Reader, Short, Writer, finish_with_crc};
use crate::segment::{EpochStarts, PersistedIndexes};

const MAGIC: u32 = u32::from_le_bytes(*b"CLCP");
const CHECKPOINT_VERSION: u16 = 3;
/// A checkpoint is at most this large, in bytes.
pub(crate) const CHECKPOINT_BYTES_MAX: usize = 64 << 20;
/// Bytes before the entries.
const HEADER_BYTES: usize = 32;

/// What a checkpoint says of one log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointEntry {
    pub(crate) log: TopicPartition,
    pub(crate) log_start: Offset,
    /// All below was on stable storage: a log that ends before it is damaged, not torn.
    pub(crate) flushed: Offset,
    /// The snapshot of the log's producers goes at least up to here; -1 if there is none.
    pub(crate) producers: Offset,
    pub(crate) segments: Vec<SegmentCheckpoint>,
}

/// What is known of logs.
pub(crate) type Entries = BTreeMap<TopicPartition, CheckpointEntry>;

/// Takes an entry of a log, unless one is there that reaches as far.
pub(crate) fn absorb(entries: &mut Entries, entry: CheckpointEntry) {
    match entries.entry(entry.log) {
        Entry::Vacant(vacant) => drop(vacant.insert(entry)),
        Entry::Occupied(mut held) => {
            if held.get().reach() < entry.reach() {
                held.insert(entry);
            }
        }
    }
}

impl CheckpointEntry {
    /// None of these goes back, so of two entries that differ the later one is greater. The log's start comes second, as it moves alone.
    fn reach(&self) -> impl Ord + use<> {
        let persisted = self.segments.last().map(|segment| (segment.base, segment.persisted.entries));
        (self.flushed, self.log_start, self.producers, persisted)
    }
}

/// What it says of an unsealed segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentCheckpoint {
    pub(crate) base: Offset,
    pub(crate) persisted: PersistedIndexes,
    pub(crate) first_append: Timestamp,
    pub(crate) epochs: EpochStarts,
}

/// A core's checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    pub(crate) sequence: u64,
    pub(crate) broker_epoch: BrokerEpoch,
    pub(crate) entries: Vec<CheckpointEntry>,
}

impl Checkpoint {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = Writer::default();
        for entry in &self.entries {
            body.u128(entry.log.topic.0).u32(entry.log.partition.0).i64(entry.log_start.0).i64(entry.flushed.0);
            body.i64(entry.producers.0);
            body.u16(u16::try_from(entry.segments.len()).expect("few segments are unsealed"));
            for segment in &entry.segments {
                let persisted = segment.persisted;
                body.i64(segment.base.0).i64(segment.first_append.0);
                body.u64(persisted.entries as u64).u32(persisted.entries_crc);
                body.u64(persisted.time_entries as u64).u32(persisted.time_entries_crc);
                body.u32(u32::try_from(segment.epochs.len()).expect("a segment has few epochs"));
                for (epoch, start) in &segment.epochs {
                    body.i32(epoch.0).i64(start.0);
                }
            }
        }
        let body = body.into_bytes();
        let mut out = Writer::default();
        out.u32(MAGIC).u16(CHECKPOINT_VERSION).u16(0).u64(self.sequence).i64(self.broker_epoch.0);
        out.u32(u32::try_from(self.entries.len()).expect("a core has few logs"));
        out.sized(&body);
        finish_with_crc(out)
    }

    /// Reads a checkpoint off the front of `bytes`; what lies behind it may be the end of an older, longer one.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Checkpoint> {
        let mut header = Reader::new(bytes);
        header.skip(HEADER_BYTES - 4).ok()?;
        let length = usize::try_from(header.u32().ok()?).ok()?;
        let end = HEADER_BYTES.checked_add(length)?;
        let body = bytes.get(..end)?;
        let crc = bytes.get(end..)?.first_chunk::<4>()?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
            return None;
        }
        Checkpoint::decode_checked(body).ok().flatten()
    }

    fn decode_checked(bytes: &[u8]) -> Result<Option<Checkpoint>, Short> {
        let mut input = Reader::new(bytes);
        if input.u32()? != MAGIC || input.u16()? != CHECKPOINT_VERSION {
            return Ok(None);
        }
        input.skip(2)?;
        let (sequence, broker_epoch, count) = (input.u64()?, BrokerEpoch(input.i64()?), input.u32()?);
        if sequence == u64::MAX {
            tracing::warn!(sequence, "a checkpoint has a sequence that nothing can follow; it isn't taken for one");
            return Ok(None);
        }
        input.skip(4)?;
        let mut entries = Vec::new();
        for _ in 0..count {
            entries.push(decode_entry(&mut input)?);
        }
        Ok(Some(Checkpoint { sequence, broker_epoch, entries }))
    }

    /// The newer of two, each of which may be missing or torn.
    pub(crate) fn newest(files: [Option<Vec<u8>>; 2]) -> Checkpoint {
        let valid = files.into_iter().flatten().filter_map(|bytes| Checkpoint::decode(&bytes));
        valid.max_by_key(|checkpoint| checkpoint.sequence).unwrap_or_default()
    }
}

fn decode_entry(input: &mut Reader<'_>) -> Result<CheckpointEntry, Short> {
    let topic = TopicId(input.u128()?);
    let log = TopicPartition { topic, partition: PartitionIndex(input.u32()?) };
    let (log_start, flushed, producers) = (Offset(input.i64()?), Offset(input.i64()?), Offset(input.i64()?));
    let count = input.u16()?;
    let mut segments = Vec::new();
    for _ in 0..count {
        let base = Offset(input.i64()?);
        let first_append = Timestamp(input.i64()?);
        let persisted = PersistedIndexes {
            entries: usize::try_from(input.u64()?).map_err(|_| Short)?,
            entries_crc: input.u32()?,
            time_entries: usize::try_from(input.u64()?).map_err(|_| Short)?,
            time_entries_crc: input.u32()?,
        };
        let mut epochs = EpochStarts::new();
        for _ in 0..input.u32()? {
            epochs.push((LeaderEpoch(input.i32()?), Offset(input.i64()?)));
        }
        segments.push(SegmentCheckpoint { base, persisted, first_append, epochs });
    }
    Ok(CheckpointEntry { log, log_start, flushed, producers, segments })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint(sequence: u64, logs: u32) -> Checkpoint {
        let entry = |partition| CheckpointEntry {
            log: TopicPartition { topic: TopicId(9), partition: PartitionIndex(partition) },
            log_start: Offset(3),
            flushed: Offset(150),
            producers: Offset(140),
            segments: vec![SegmentCheckpoint {
                base: Offset(100),
                persisted: PersistedIndexes { entries: 7, entries_crc: 1, time_entries: 2, time_entries_crc: 5 },
                first_append: Timestamp(1_000),
                epochs: [(LeaderEpoch(1), Offset(100)), (LeaderEpoch(4), Offset(140))].into_iter().collect(),
            }],
        };
        Checkpoint { sequence, broker_epoch: BrokerEpoch(4), entries: (0..logs).map(entry).collect() }
    }

    #[test]
    fn the_newer_valid_one_counts() {
        let (old, new) = (checkpoint(8, 3), checkpoint(9, 2));
        let both = Checkpoint::newest([Some(old.encode()), Some(new.encode())]);
        assert_eq!(both, new);
        let mut torn = new.encode();
        let at = torn.len() - 20;
        torn[at] ^= 1;
        assert_eq!(Checkpoint::newest([Some(torn), Some(old.encode())]), old);
        assert_eq!(Checkpoint::newest([None, None]), Checkpoint::default());
    }

    #[test]
    fn of_two_entries_the_later_one_counts_in_either_order() {
        let earlier = checkpoint(1, 1).entries.remove(0);
        let mut index_grew = earlier.clone();
        index_grew.segments[0].persisted.entries += 1;
        let later = [
            CheckpointEntry { flushed: Offset(151), log_start: Offset(0), ..earlier.clone() },
            CheckpointEntry { log_start: Offset(4), segments: Vec::new(), ..earlier.clone() },
            index_grew,
        ];
        for later in later {
            for order in [[&earlier, &later], [&later, &earlier]] {
                let mut entries = Entries::new();
                order.into_iter().for_each(|entry| absorb(&mut entries, entry.clone()));
                assert_eq!(entries.into_values().collect::<Vec<_>>(), std::slice::from_ref(&later));
            }
        }
    }

    #[test]
    fn the_rest_of_a_longer_predecessor_does_not_matter() {
        let mut bytes = checkpoint(10, 2).encode();
        bytes.extend_from_slice(&[0xff; 100]);
        assert_eq!(Checkpoint::decode(&bytes), Some(checkpoint(10, 2)));
        assert_eq!(Checkpoint::decode(&bytes[..60]), None);
    }
}
