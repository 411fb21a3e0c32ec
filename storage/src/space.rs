//! Space on the drive: what a log may allocate, and what is kept from it in reserve.
//!
//! Called by maintenance and where a log is made. A drive that is full to the last block takes more with it than appends: checkpoints, manifests
//! and the metadata log need a little space too, and so does whoever is to free some. So logs of topics leave a reserve; what they
//! lack is said with the drive's name and the bytes short, and asked for again until it is there.

use std::fmt;
use std::io;
use std::path::Path;

use protocol::ids::{METADATA_TOPIC, TopicPartition};
use runtime::disk::{Space, is_lack_of_space, reworded};
use runtime::{Disk, Env};

use crate::blocks::block_floor;
use crate::config::StorageConfig;

/// Allocation never takes more than this part of the free space at once.
const SPACE_DIVISOR: u64 = 8;
/// The least step that this part is cut down to, in bytes.
const STEP_BYTES_MIN: u64 = 256 << 10;

/// The range of a file that is to be allocated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) from: u64,
    /// Its end, if there is much space.
    pub(crate) to: u64,
    /// What a batch waits for; not above `from` if none does.
    pub(crate) needed_to: u64,
}

/// What a log may take of a drive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    reserve_bytes: u64,
}

/// A drive has too little space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shortage {
    needed: u64,
    available: u64,
    reserve: u64,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shortage { needed, available, reserve } = self;
        let short = needed - available.saturating_sub(*reserve);
        write!(f, "{short} bytes short: {needed} are needed, {available} are free, of which {reserve} are kept in reserve")
    }
}

impl Allowance {
    /// The metadata log's goes to the last block.
    pub(crate) fn of(log: TopicPartition, storage: &StorageConfig) -> Allowance {
        Allowance { reserve_bytes: if log.topic == METADATA_TOPIC { 0 } else { storage.reserve_bytes } }
    }

    /// The end of an allocation on the drive below `path`: kept to a part of the free space, but never below what is needed.
    ///
    /// # Errors
    /// If that isn't there beside the reserve (`StorageFull`), in words for whoever is refused for it.
    pub(crate) async fn end<E: Env>(self, env: &E, path: &Path, wanted: Wanted) -> io::Result<u64> {
        // What can't be asked is left to the allocation itself.
        let Ok(space) = env.disk().space(path).await else { return Ok(wanted.to) };
        self.end_within(space, wanted).map_err(|shortage| {
            io::Error::new(io::ErrorKind::StorageFull, format!("the drive of {}: {shortage}", path.display()))
        })
    }

    fn end_within(self, space: Space, wanted: Wanted) -> Result<u64, Shortage> {
        let Wanted { from, to, needed_to } = wanted;
        let usable = space.available.saturating_sub(self.reserve_bytes);
        let part = block_floor(usable / SPACE_DIVISOR).max(STEP_BYTES_MIN);
        let to = to.min((from + part).max(needed_to));
        if to - from <= usable {
            return Ok(to);
        }
        let needed = if needed_to > from { needed_to.min(to) - from } else { to - from };
        if needed <= usable {
            return Ok(from + needed);
        }
        Err(Shortage { needed, available: space.available, reserve: self.reserve_bytes })
    }
}

/// What an allocation says that found no space, with the drive that lacks it.
pub(crate) fn name_drive(error: io::Error, path: &Path) -> io::Error {
    if !is_lack_of_space(&error) {
        return error;
    }
    let words = format!("the drive of {}: {error}", path.display());
    reworded(&error, words)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn end(available: u64, reserve_bytes: u64, wanted: (u64, u64, u64)) -> Result<u64, String> {
        let (from, to, needed_to) = wanted;
        let space = Space { total: 1 << 40, available };
        let allowance = Allowance { reserve_bytes };
        allowance.end_within(space, Wanted { from, to, needed_to }).map_err(|shortage| shortage.to_string())
    }

    #[test]
    fn allocations_leave_the_reserve_and_most_of_the_rest() {
        assert_eq!(end(1 << 40, 8 * MIB, (MIB, 129 * MIB, 0)), Ok(129 * MIB));
        assert_eq!(end(88 * MIB, 8 * MIB, (MIB, 129 * MIB, 0)), Ok(11 * MIB), "an eighth of what is not in reserve");
        assert_eq!(end(88 * MIB, 8 * MIB, (MIB, 129 * MIB, 61 * MIB)), Ok(61 * MIB), "but all that a batch needs");
        assert_eq!(end(9 * MIB, 8 * MIB, (0, 128 * MIB, MIB)), Ok(MIB), "to the last block beside the reserve");
        assert_eq!(
            end(9 * MIB, 8 * MIB, (0, 128 * MIB, MIB + 4096)),
            Err("4096 bytes short: 1052672 are needed, 9437184 are free, of which 8388608 are kept in reserve".into())
        );
        assert_eq!(end(9 * MIB, 0, (0, 128 * MIB, 9 * MIB)), Ok(9 * MIB), "without a reserve all of it");
        assert!(end(4 * MIB, 8 * MIB, (0, MIB, 0)).is_err(), "nothing is left beside the reserve");
    }
}
