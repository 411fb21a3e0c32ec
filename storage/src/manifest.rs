//! The manifest of a sealed segment: what it holds, in one small file with a CRC.
//!
//! Little endian: magic `u32`, version `u16`, parts `u16`, then the fixed fields, then the parts (tag `u16`, length `u32`, bytes), then
//! the CRC-32C of all before it. A part that a reader doesn't know is kept as it is. Parts for transactions, compaction and
//! tiers are added without a new version.

use protocol::ids::{LeaderEpoch, Offset, Timestamp};
use protocol::limits::{LOG_END_OFFSET_MAX, SEGMENT_REACH_MAX};

use crate::bytes::{Reader, Short, Writer, checked_body, finish_with_crc};
use crate::segment::EpochStarts;

const MAGIC: u32 = u32::from_le_bytes(*b"CLSM");
/// The version written, and the only one read.
pub(crate) const MANIFEST_VERSION: u16 = 1;
const TAG_EPOCHS: u16 = 1;
/// The idempotent producers at the segment's end, as the log's owner gave them; without it there were none.
pub(crate) const TAG_PRODUCERS: u16 = 2;
/// The wall clock at the last append, `i64`.
pub(crate) const TAG_LAST_APPEND: u16 = 3;
/// A manifest is at most this large, in bytes.
pub(crate) const MANIFEST_BYTES_MAX: usize = 4 << 20;

/// What a sealed segment holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) base: Offset,
    /// The offset behind the last record.
    pub(crate) end: Offset,
    /// Exact size of the log file.
    pub(crate) log_bytes: u64,
    pub(crate) index: IndexSummary,
    pub(crate) time_index: IndexSummary,
    pub(crate) max_timestamp: Timestamp,
    pub(crate) max_timestamp_offset: Offset,
    /// Wall clock at the first append.
    pub(crate) first_append: Timestamp,
    pub(crate) epochs: EpochStarts,
    /// Parts that this version doesn't know.
    pub(crate) others: Vec<(u16, Vec<u8>)>,
}

/// Entries of an index file, and their CRC-32C.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IndexSummary {
    pub(crate) entries: u64,
    pub(crate) crc: u32,
}

/// Why bytes aren't a manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ManifestError {
    #[error("the manifest's CRC doesn't match, or it is cut short")]
    Damaged,
    #[error("not a manifest: it begins with {0:08x}")]
    Magic(u32),
    #[error("manifest version {0} was written by a newer Corelane; this one reads version {MANIFEST_VERSION}")]
    Version(u16),
}

impl From<Short> for ManifestError {
    fn from(_: Short) -> ManifestError {
        ManifestError::Damaged
    }
}

impl Manifest {
    /// The producers at the segment's end; `None` for nobody.
    pub(crate) fn producers(&self) -> Option<&[u8]> {
        self.others.iter().find(|(tag, _)| *tag == TAG_PRODUCERS).map(|(_, bytes)| &bytes[..])
    }

    /// The wall clock at the last append; as good as it is known where no part says it.
    pub(crate) fn last_append(&self) -> Timestamp {
        let part = self.others.iter().find(|(tag, _)| *tag == TAG_LAST_APPEND);
        let said = part.and_then(|(_, bytes)| Some(i64::from_le_bytes(*bytes.first_chunk()?)));
        said.map_or(self.first_append.max(self.max_timestamp), Timestamp)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        let parts = u16::try_from(self.others.len() + 1).expect("a manifest has few parts");
        out.u32(MAGIC).u16(MANIFEST_VERSION).u16(parts);
        out.i64(self.base.0).i64(self.end.0).u64(self.log_bytes);
        for summary in [self.index, self.time_index] {
            out.u64(summary.entries).u32(summary.crc);
        }
        out.i64(self.max_timestamp.0).i64(self.max_timestamp_offset.0).i64(self.first_append.0);
        let mut epochs = Writer::default();
        for (epoch, start) in &self.epochs {
            epochs.i32(epoch.0).i64(start.0);
        }
        out.u16(TAG_EPOCHS).sized(&epochs.into_bytes());
        for (tag, bytes) in &self.others {
            out.u16(*tag).sized(bytes);
        }
        finish_with_crc(out)
    }

    /// Whether it can be that of the segment at `base` whose log file has `bytes`.
    pub(crate) fn fits(&self, base: Offset, bytes: u64) -> bool {
        let end = base.0.saturating_add(1)..=LOG_END_OFFSET_MAX.min(base.0.saturating_add(SEGMENT_REACH_MAX + 1));
        self.base == base && self.log_bytes == bytes && end.contains(&self.end.0)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Manifest, ManifestError> {
        let mut header = Reader::new(bytes);
        let (magic, version) = (header.u32()?, header.u16()?);
        if magic != MAGIC {
            return Err(ManifestError::Magic(magic));
        }
        if version != MANIFEST_VERSION {
            return Err(ManifestError::Version(version));
        }
        let mut input = Reader::new(checked_body(bytes).ok_or(ManifestError::Damaged)?);
        input.skip(6)?;
        let parts = input.u16()?;
        let mut manifest = Manifest {
            base: Offset(input.i64()?),
            end: Offset(input.i64()?),
            log_bytes: input.u64()?,
            index: IndexSummary { entries: input.u64()?, crc: input.u32()? },
            time_index: IndexSummary { entries: input.u64()?, crc: input.u32()? },
            max_timestamp: Timestamp(input.i64()?),
            max_timestamp_offset: Offset(input.i64()?),
            first_append: Timestamp(input.i64()?),
            epochs: EpochStarts::new(),
            others: Vec::new(),
        };
        for _ in 0..parts {
            let tag = input.u16()?;
            let part = input.sized()?;
            if tag != TAG_EPOCHS {
                manifest.others.push((tag, part.to_vec()));
                continue;
            }
            let mut epochs = Reader::new(part);
            while !epochs.is_empty() {
                manifest.epochs.push((LeaderEpoch(epochs.i32()?), Offset(epochs.i64()?)));
            }
        }
        Ok(manifest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        Manifest {
            base: Offset(7),
            end: Offset(900),
            log_bytes: 123_456,
            index: IndexSummary { entries: 12, crc: 0xdead_beef },
            time_index: IndexSummary { entries: 3, crc: 1 },
            max_timestamp: Timestamp(1_700_000_000_000),
            max_timestamp_offset: Offset(880),
            first_append: Timestamp(5),
            epochs: [(LeaderEpoch(3), Offset(7)), (LeaderEpoch(9), Offset(500))].into_iter().collect(),
            others: vec![(77, vec![1, 2, 3])],
        }
    }

    #[test]
    fn a_manifest_reads_back_with_parts_that_are_unknown() {
        let bytes = manifest().encode();
        assert_eq!(Manifest::decode(&bytes), Ok(manifest()));
    }

    #[test]
    fn any_flipped_bit_and_any_cut_is_noticed() {
        let bytes = manifest().encode();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert!(Manifest::decode(&damaged).is_err(), "byte {at}");
            assert!(Manifest::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_newer_version_is_refused_by_its_number() {
        let mut bytes = manifest().encode();
        bytes[4] = 2;
        assert_eq!(Manifest::decode(&bytes), Err(ManifestError::Version(2)));
    }
}
