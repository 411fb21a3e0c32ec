//! The idempotent producers of a partition as bytes: what recovery begins with instead of the whole log.
//!
//! Little endian: version `u16`, producers `u32`, and for each: producer id `i64`, epoch `i16`, next sequence `i32`, records of its epoch `u64`, last
//! append `i64`, batches `u8`, and for each batch: first sequence `i32`, records `u32`, base offset `i64`, append time `i64`. Whoever keeps it
//! adds a checksum and the offset up to which it holds.

use std::collections::{BTreeMap, VecDeque};

use protocol::ids::{Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};
use protocol::limits::{PRODUCER_BATCHES_REMEMBERED, PRODUCERS_PER_PARTITION_MAX};

use super::{Known, Place, Producer, Producers};

/// The version written, and the only one read.
const VERSION: u16 = 1;

/// Why bytes aren't a snapshot of producers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// Fewer or more bytes than it says, or a number that is never written.
    #[error("the snapshot of producers is damaged at byte {at} of {bytes}")]
    Damaged {
        /// Where.
        at: usize,
        /// How many there are.
        bytes: usize,
    },
    /// A later format.
    #[error("a snapshot of producers of version {0}; this Corelane reads version {VERSION}")]
    Version(u16),
}

impl Producers {
    /// As bytes; equal states have equal bytes.
    #[must_use]
    pub fn to_snapshot(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(6 + self.by_id.len() * 160);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&u32::try_from(self.by_id.len()).expect("producers are few").to_le_bytes());
        for (id, producer) in &self.by_id {
            out.extend_from_slice(&id.0.to_le_bytes());
            out.extend_from_slice(&producer.epoch.0.to_le_bytes());
            out.extend_from_slice(&producer.next.0.to_le_bytes());
            out.extend_from_slice(&producer.records.to_le_bytes());
            out.extend_from_slice(&producer.last_append.0.to_le_bytes());
            out.push(u8::try_from(producer.batches.len()).expect("few batches are remembered"));
            for batch in &producer.batches {
                out.extend_from_slice(&batch.first.0.to_le_bytes());
                out.extend_from_slice(&batch.records.to_le_bytes());
                out.extend_from_slice(&batch.place.base.0.to_le_bytes());
                out.extend_from_slice(&batch.place.append_time.0.to_le_bytes());
            }
        }
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// See [`SnapshotError`].
    pub fn from_snapshot(bytes: &[u8]) -> Result<Producers, SnapshotError> {
        let mut input = Input { bytes, at: 0 };
        let version = u16::from_le_bytes(input.take()?);
        if version != VERSION {
            return Err(SnapshotError::Version(version));
        }
        let count = u32::from_le_bytes(input.take()?) as usize;
        if count > PRODUCERS_PER_PARTITION_MAX {
            return Err(input.damaged());
        }
        let mut by_id = BTreeMap::new();
        for _ in 0..count {
            let (id, producer) = input.producer()?;
            if by_id.last_key_value().is_some_and(|(last, _)| *last >= id) {
                return Err(input.damaged());
            }
            by_id.insert(id, producer);
        }
        if input.at != bytes.len() {
            return Err(input.damaged());
        }
        Ok(Producers { by_id })
    }
}

struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Input<'_> {
    fn damaged(&self) -> SnapshotError {
        SnapshotError::Damaged { at: self.at, bytes: self.bytes.len() }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        let field = self.bytes[self.at..].first_chunk::<N>().ok_or_else(|| self.damaged())?;
        self.at += N;
        Ok(*field)
    }

    fn sequence(&mut self) -> Result<Sequence, SnapshotError> {
        let sequence = i32::from_le_bytes(self.take()?);
        if sequence < 0 { Err(self.damaged()) } else { Ok(Sequence(sequence)) }
    }

    fn producer(&mut self) -> Result<(ProducerId, Producer), SnapshotError> {
        let id = ProducerId(i64::from_le_bytes(self.take()?));
        let epoch = ProducerEpoch(i16::from_le_bytes(self.take()?));
        let next = self.sequence()?;
        let records = u64::from_le_bytes(self.take()?);
        let last_append = Timestamp(i64::from_le_bytes(self.take()?));
        let [count] = self.take()?;
        if usize::from(count) > PRODUCER_BATCHES_REMEMBERED {
            return Err(self.damaged());
        }
        let mut batches = VecDeque::with_capacity(PRODUCER_BATCHES_REMEMBERED);
        for _ in 0..count {
            let first = self.sequence()?;
            let records = u32::from_le_bytes(self.take()?);
            let base = Offset(i64::from_le_bytes(self.take()?));
            let append_time = Timestamp(i64::from_le_bytes(self.take()?));
            batches.push_back(Known { first, records, place: Place { base, append_time } });
        }
        Ok((id, Producer { epoch, next, records, batches, last_append }))
    }
}
