//! The judgement that needs no replay: in the block trace itself, every acknowledgement follows a flush of its bytes.
//!
//! Values repeat their marker, so the raw blocks tell which write carried which record. A record counts as covered when
//! enough of its markers, at different places of the disk, lie in writes that a flush had covered by then. One marker may
//! be cut in two by the boundary between two writes.

use std::collections::HashMap;

use anyhow::Result;

use super::recording::{Recording, SECTOR_BYTES};
use crate::real::load::{MARKER_BYTES, MARKER_MAGIC};

/// A record whose acknowledgement had been received at `at`.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// The record.
    pub id: u64,
    /// Markers in its value.
    pub markers: usize,
    /// When, in monotonic nanoseconds.
    pub at: u64,
}

/// A claim that the trace doesn't bear out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uncovered {
    /// The record.
    pub id: u64,
    /// Its markers that a flush had covered, out of all.
    pub covered: usize,
    /// See `covered`.
    pub markers: usize,
    /// How long after the acknowledgement the last of them was covered, in nanoseconds; `None`: never.
    pub late_by: Option<u64>,
}

/// Markers of a piece of data: (position, id).
fn markers_in(data: &[u8]) -> impl Iterator<Item = (usize, u64)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            at += data.get(at..)?.iter().position(|byte| *byte == MARKER_MAGIC[0])?;
            let candidate = data.get(at..at + MARKER_BYTES)?;
            if candidate[..8] == MARKER_MAGIC {
                let position = at;
                at += MARKER_BYTES;
                return Some((position, u64::from_le_bytes(candidate[8..].try_into().expect("eight bytes"))));
            }
            at += 1;
        }
    })
}

/// Compares every claim with the trace.
///
/// # Errors
/// The log can't be read.
pub fn judge(recording: &Recording, claims: &[Claim]) -> Result<Vec<Uncovered>> {
    // Record to places on the disk, each with the first moment at which it was covered.
    let mut places: HashMap<u64, HashMap<u64, u64>> = claims.iter().map(|claim| (claim.id, HashMap::new())).collect();
    for write in &recording.writes {
        let covered = recording.covered_at(write.time.done).unwrap_or(u64::MAX);
        let begin = write.sector * SECTOR_BYTES;
        for (position, id) in markers_in(&recording.data(write)?) {
            if let Some(places) = places.get_mut(&id) {
                let first = places.entry(begin + u64::try_from(position)?).or_insert(covered);
                *first = covered.min(*first);
            }
        }
    }
    let mut uncovered = Vec::new();
    for claim in claims {
        let moments = &places[&claim.id];
        let covered = moments.values().filter(|moment| **moment <= claim.at).count();
        if covered + 1 < claim.markers {
            let last = moments.values().copied().max().filter(|last| *last != u64::MAX && moments.len() + 1 >= claim.markers);
            let late_by = last.map(|last| last.saturating_sub(claim.at));
            uncovered.push(Uncovered { id: claim.id, covered, markers: claim.markers, late_by });
        }
    }
    Ok(uncovered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::real::load::marker;

    #[test]
    fn markers_are_found_at_any_position() {
        let mut data = vec![0xc0; 5];
        data.extend(marker(3));
        data.extend(marker(4));
        data.extend(&marker(5)[..15]);
        assert_eq!(markers_in(&data).collect::<Vec<_>>(), [(5, 3), (21, 4)]);
    }
}
