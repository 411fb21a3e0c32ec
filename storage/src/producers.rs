//! What a log keeps of its idempotent producers: snapshots of a state that its owner holds, so that recovery needn't read the whole log.
//!
//! The log doesn't know what a snapshot says. Its owner gives two kinds: one of the state at the end of a segment that has just rolled, which
//! goes into that segment's manifest, and one of the state now, which goes into a file of its own once all before it is on stable storage, together with the
//! index entries up to there. Recovery gives the newest one back and then, in order, every batch behind it.
//!
//! Invariants:
//! - A snapshot on disk is of a state that is on stable storage as a whole: recovery never has to take one back.
//! - Index entries are persisted up to the snapshot and no further, so that no batch behind the snapshot is left out of the scan.

use std::io;
use std::path::Path;
use std::rc::Rc;

use protocol::ids::{Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};
use runtime::{Disk, Env};

use crate::bytes::{Reader, Short, Writer, checked_body, finish_with_crc};
use crate::checkpoint::CheckpointEntry;
use crate::error::RecoveryError;
use crate::header::BatchHeader;
use crate::log::Log;

const MAGIC: u32 = u32::from_le_bytes(*b"CLPR");
const VERSION: u16 = 1;
/// The file's name in the log's directory.
pub(crate) const PRODUCERS_NAME: &str = "producers";
/// The file is at most this large, in bytes.
pub(crate) const PRODUCERS_BYTES_MAX: usize = 8 << 20;
/// Attribute bit of a batch whose timestamps are append times.
const LOG_APPEND_TIME: i16 = 1 << 3;

/// Takes what recovery finds of idempotent producers.
pub trait ProducerReplay {
    /// Begins with a snapshot that the log's owner gave. Called at most once, before any batch.
    ///
    /// # Errors
    /// What is wrong with it.
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String>;

    /// A batch that was appended behind the snapshot. Called in the order of the log.
    fn replay(&mut self, batch: ReplayedBatch);

    /// The state as it is now; empty for nobody.
    fn snapshot(&self) -> Vec<u8>;
}

/// Of logs whose owner keeps no such state.
impl ProducerReplay for () {
    fn restore(&mut self, _snapshot: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn replay(&mut self, _batch: ReplayedBatch) {}

    fn snapshot(&self) -> Vec<u8> {
        Vec::new()
    }
}

/// A batch of an idempotent producer, as recovery found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayedBatch {
    /// Who sent it.
    pub producer: ProducerId,
    /// Which instance of it.
    pub epoch: ProducerEpoch,
    /// Sequence of its first record.
    pub first: Sequence,
    /// Its records.
    pub records: u32,
    /// Offset of its first record.
    pub base: Offset,
    /// When it was appended, if its timestamps are append times; else -1.
    pub append_time: Timestamp,
}

impl ReplayedBatch {
    /// What a batch says; `None` if its producer isn't idempotent.
    fn of(header: &BatchHeader) -> Option<ReplayedBatch> {
        let stamped = header.attributes & LOG_APPEND_TIME != 0;
        is_idempotent(header).then(|| ReplayedBatch {
            producer: header.producer_id,
            epoch: header.producer_epoch,
            first: header.base_sequence,
            records: header.last_offset_delta.saturating_add(1),
            base: header.base_offset,
            append_time: if stamped { header.max_timestamp } else { Timestamp::NONE },
        })
    }
}

/// Whether a batch's producer is idempotent. Control batches have a producer, but no sequence.
fn is_idempotent(header: &BatchHeader) -> bool {
    header.producer_id.0 >= 0 && header.base_sequence.0 >= 0
}

/// The state of a log's producers at one offset, as its owner gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Every batch below is in it, none above.
    pub(crate) at: Offset,
    pub(crate) bytes: Box<[u8]>,
}

impl Snapshot {
    fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u32(MAGIC).u16(VERSION).i64(self.at.0).sized(&self.bytes);
        finish_with_crc(out)
    }

    /// `None` if it is damaged, or of a later version.
    fn decode(bytes: &[u8]) -> Option<Snapshot> {
        let body = checked_body(bytes)?;
        let fields = |input: &mut Reader<'_>| -> Result<Option<Snapshot>, Short> {
            if input.u32()? != MAGIC || input.u16()? != VERSION {
                return Ok(None);
            }
            Ok(Some(Snapshot { at: Offset(input.i64()?), bytes: input.sized()?.into() }))
        };
        fields(&mut Reader::new(body)).ok().flatten()
    }

    /// Writes it in place of the one before, durably.
    pub(crate) async fn write<E: Env>(&self, env: &E, directory: &Path) -> io::Result<()> {
        env.disk().replace_file(&directory.join(PRODUCERS_NAME), self.encode()).await
    }

    /// The one that lies there; `None` if there is none, or it is damaged.
    async fn read<E: Env>(env: &E, directory: &Path) -> Result<Option<Snapshot>, RecoveryError> {
        let path = directory.join(PRODUCERS_NAME);
        match env.disk().read_file(&path, PRODUCERS_BYTES_MAX).await {
            Ok(bytes) => {
                let snapshot = Snapshot::decode(&bytes);
                if snapshot.is_none() {
                    tracing::warn!(path = %path.display(), "the snapshot of producers is damaged; unsealed segments are scanned whole");
                }
                Ok(snapshot)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(RecoveryError::Io { path, cause: Rc::new(cause) }),
        }
    }
}

/// What a log knows of its producers' snapshots.
#[derive(Debug)]
pub(crate) struct KeptProducers {
    /// The log holds batches of idempotent producers, or did: nothing of it is persisted without a snapshot.
    pub(crate) present: bool,
    /// Given by the owner, and not on disk.
    pub(crate) pending: Option<Snapshot>,
    /// Up to where the one on disk goes; -1 for none.
    pub(crate) on_disk: Offset,
}

impl KeptProducers {
    /// Whether a checkpoint counts on a newer snapshot than is there: then index entries may lie beyond it, and unsealed segments have to be scanned
    /// whole.
    pub(crate) fn is_behind(&self, entry: Option<&CheckpointEntry>, directory: &Path) -> bool {
        let expected = entry.map_or(Offset(-1), |entry| entry.producers);
        let is_behind = self.on_disk < expected;
        if is_behind {
            let (directory, found) = (directory.display(), self.on_disk);
            tracing::warn!(%directory, %found, %expected, "the snapshot of producers is missing; unsealed segments are scanned whole");
        }
        is_behind
    }
}

impl Default for KeptProducers {
    fn default() -> KeptProducers {
        KeptProducers { present: false, pending: None, on_disk: Offset(-1) }
    }
}

/// A recovery's way to tell batches.
pub(crate) struct Replaying<'a> {
    pub(crate) state: &'a mut dyn ProducerReplay,
    /// The state has all below.
    pub(crate) from: Offset,
    /// There is a snapshot, or a batch was told.
    pub(crate) present: bool,
}

impl Replaying<'_> {
    /// Restores the newest snapshot: the one beside the log, or `known` of the last sealed segment, which ends at `sealed_to`. Up to where the one
    /// beside the log goes; -1 if there is none.
    pub(crate) async fn begin<E: Env>(
        &mut self,
        env: &E,
        directory: &Path,
        sealed_to: Offset,
        known: Option<Box<[u8]>>,
    ) -> Result<Offset, RecoveryError> {
        let beside = Snapshot::read(env, directory).await?;
        let on_disk = beside.as_ref().map_or(Offset(-1), |snapshot| snapshot.at);
        self.present = known.is_some() || on_disk >= Offset(0);
        // One at the very end of what was sealed stands for manifests that are gone.
        let counts = |snapshot: &Snapshot| snapshot.at > sealed_to || (known.is_none() && snapshot.at == sealed_to);
        let (path, newest) = match beside.filter(counts) {
            Some(snapshot) => (directory.join(PRODUCERS_NAME), Some(snapshot)),
            None => (directory.to_path_buf(), known.map(|bytes| Snapshot { at: sealed_to, bytes })),
        };
        self.from = newest.as_ref().map_or(Offset(0), |snapshot| snapshot.at);
        if let Some(snapshot) = newest.filter(|snapshot| !snapshot.bytes.is_empty()) {
            self.state.restore(&snapshot.bytes).map_err(|reason| RecoveryError::Producers { path, reason })?;
        }
        Ok(on_disk)
    }

    pub(crate) fn batch(&mut self, header: &BatchHeader) {
        if let Some(batch) = ReplayedBatch::of(header).filter(|batch| batch.base >= self.from) {
            self.present = true;
            self.state.replay(batch);
        }
    }

    /// The state at the end of a segment; empty if it has gone beyond.
    pub(crate) fn at(&self, end: Offset) -> Box<[u8]> {
        if self.present && self.from <= end { self.state.snapshot().into() } else { Box::default() }
    }
}

impl<E: Env> Log<E> {
    /// Whether [`Log::note_producers_at_roll`] is to be called before anything else: a segment has just ended.
    #[must_use]
    pub fn wants_producers_at_roll(&self) -> bool {
        let rolled = self.open.len().checked_sub(2).map(|last| &self.open[last]);
        rolled.is_some_and(|segment| segment.producers_at_end.is_none())
    }

    /// Takes the state of the producers at the end of the segment that has just rolled, empty for nobody: without the batch for which it rolled.
    pub fn note_producers_at_roll(&mut self, snapshot: Vec<u8>) {
        let rolled = self.open.len().checked_sub(2).and_then(|last| self.open.get_mut(last));
        rolled.expect("a segment has rolled").producers_at_end = Some(snapshot.into());
    }

    /// Whether [`Log::note_producers`] would help: nothing more is persisted without it.
    #[must_use]
    pub fn wants_producers(&self) -> bool {
        self.producers.present && self.producers.pending.is_none()
    }

    /// Takes the state of the producers as it is now, with every batch that was appended.
    pub fn note_producers(&mut self, snapshot: Vec<u8>) {
        self.producers.pending = Some(Snapshot { at: self.offsets.log_end, bytes: snapshot.into() });
    }

    /// Notes that a batch was appended.
    pub(crate) fn note_producer_of(&mut self, header: &BatchHeader) {
        self.producers.present |= is_idempotent(header);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_reads_back_and_any_damage_is_noticed() {
        let snapshot = Snapshot { at: Offset(77), bytes: vec![1, 2, 3].into() };
        let bytes = snapshot.encode();
        assert_eq!(Snapshot::decode(&bytes), Some(snapshot));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            assert_eq!(Snapshot::decode(&damaged), None, "byte {at}");
            assert_eq!(Snapshot::decode(&bytes[..at]), None, "cut at {at}");
        }
    }
}
