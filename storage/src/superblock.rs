//! The superblock of a data directory: whose it is and which format it has. The marker that a clean stop leaves. And what can be
//! told of a directory that isn't open.

use std::io;
use std::path::Path;

use protocol::ids::{BrokerEpoch, ClusterId, DirectoryId, HostId};
use runtime::{Disk, Env};

use crate::bytes::{Reader, Short, Writer, checked_body, finish_with_crc};

const MAGIC: u32 = u32::from_le_bytes(*b"CLDD");
const MARKER_MAGIC: u32 = u32::from_le_bytes(*b"CLCS");
/// The format written, and the newest read.
pub const FORMAT_VERSION: u16 = 1;
/// Feature bits that this version understands.
pub const KNOWN_FEATURES: u64 = 0;
/// Either file is at most this large, in bytes.
pub(crate) const SMALL_FILE_BYTES_MAX: usize = 4096;

/// Whose a data directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The cluster.
    pub cluster: ClusterId,
    /// The host.
    pub host: HostId,
    /// The directory.
    pub directory: DirectoryId,
    /// Format of everything in it.
    pub format: u16,
    /// Features that a reader must know.
    pub features: u64,
}

/// Why bytes aren't a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SuperblockError {
    /// Cut short, or its CRC is another.
    #[error("the superblock is damaged: its CRC doesn't match")]
    Damaged,
    /// Something else.
    #[error("not a superblock: it begins with {found:08x}")]
    Magic {
        /// The first four bytes.
        found: u32,
    },
    /// Written by a newer version.
    #[error("format {found} was written by a newer Corelane; this one reads up to format {allowed}")]
    Format {
        /// The format of the directory.
        found: u16,
        /// The newest that is read.
        allowed: u16,
    },
    /// Needs a feature that this version lacks.
    #[error("feature bits {found:#x} are set; this Corelane knows {known:#x}")]
    Features {
        /// Bits that are set.
        found: u64,
        /// Bits that are known.
        known: u64,
    },
}

impl From<Short> for SuperblockError {
    fn from(_: Short) -> SuperblockError {
        SuperblockError::Damaged
    }
}

impl Superblock {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u32(MAGIC).u16(self.format).u16(0).u64(self.features);
        out.u128(self.cluster.0).u32(self.host.0).u128(self.directory.0);
        finish_with_crc(out)
    }

    /// Reads it. The format is looked at before the CRC: a newer format may have another layout behind it.
    ///
    /// # Errors
    /// See [`SuperblockError`].
    pub fn decode(bytes: &[u8]) -> Result<Superblock, SuperblockError> {
        let mut input = Reader::new(bytes);
        let found = input.u32()?;
        if found != MAGIC {
            return Err(SuperblockError::Magic { found });
        }
        let format = input.u16()?;
        if format > FORMAT_VERSION {
            return Err(SuperblockError::Format { found: format, allowed: FORMAT_VERSION });
        }
        let mut input = Reader::new(checked_body(bytes).ok_or(SuperblockError::Damaged)?);
        input.skip(8)?;
        let features = input.u64()?;
        if features & !KNOWN_FEATURES != 0 {
            return Err(SuperblockError::Features { found: features, known: KNOWN_FEATURES });
        }
        let cluster = ClusterId(input.u128()?);
        let host = HostId(input.u32()?);
        Ok(Superblock { cluster, host, directory: DirectoryId(input.u128()?), format, features })
    }
}

/// What a path holds, by the names in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// No superblock: it isn't there, it is empty, or it isn't a data directory.
    Unformatted,
    /// A superblock.
    Formatted,
    /// A superblock and a checkpoint: its host has run.
    Used,
}

/// Looks at a path that may be a data directory. Nothing is locked, and nothing is changed.
///
/// # Errors
/// What the disk says, other than that nothing is there.
pub async fn look<E: Env>(env: &E, path: &Path) -> io::Result<Seen> {
    let entries = match env.disk().list(path).await {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Seen::Unformatted),
        Err(error) => return Err(error),
    };
    if !entries.iter().any(|entry| entry.name == "superblock") {
        return Ok(Seen::Unformatted);
    }
    let is_used = entries.iter().any(|entry| entry.name.starts_with("checkpoint-"));
    Ok(if is_used { Seen::Used } else { Seen::Formatted })
}

/// The bytes of a clean-stop marker.
pub(crate) fn encode_marker(epoch: BrokerEpoch) -> Vec<u8> {
    let mut out = Writer::default();
    out.u32(MARKER_MAGIC).u32(0).i64(epoch.0);
    finish_with_crc(out)
}

/// The broker epoch of a clean-stop marker; `None` if it is damaged, which is as good as absent.
pub(crate) fn decode_marker(bytes: &[u8]) -> Option<BrokerEpoch> {
    let mut input = Reader::new(checked_body(bytes)?);
    let magic = input.u32().ok()?;
    input.skip(4).ok()?;
    (magic == MARKER_MAGIC).then(|| input.i64().ok().map(BrokerEpoch)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock() -> Superblock {
        Superblock {
            cluster: ClusterId(77),
            host: HostId(3),
            directory: DirectoryId(1 << 100),
            format: FORMAT_VERSION,
            features: 0,
        }
    }

    #[test]
    fn a_superblock_reads_back_and_damage_is_noticed() {
        let bytes = superblock().encode();
        assert_eq!(Superblock::decode(&bytes), Ok(superblock()));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(Superblock::decode(&damaged).is_err(), "byte {at}");
            assert!(Superblock::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_newer_format_and_an_unknown_feature_are_named() {
        let newer = Superblock { format: 2, ..superblock() };
        assert_eq!(Superblock::decode(&newer.encode()), Err(SuperblockError::Format { found: 2, allowed: 1 }));
        let featured = Superblock { features: 4, ..superblock() };
        assert_eq!(Superblock::decode(&featured.encode()), Err(SuperblockError::Features { found: 4, known: 0 }));
    }

    #[test]
    fn a_marker_reads_back() {
        let bytes = encode_marker(BrokerEpoch(12));
        assert_eq!(decode_marker(&bytes), Some(BrokerEpoch(12)));
        assert_eq!(decode_marker(&bytes[..10]), None);
    }
}
