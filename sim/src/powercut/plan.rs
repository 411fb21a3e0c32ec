//! Where to cut, and what survives: pure, and the same for the same seed.

use super::recording::Recording;
use crate::random::{Stream, mix};

/// What a cut keeps beside what is flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Everything that had completed.
    Prefix,
    /// A random subset of what no flush covers, some of it cut at a sector.
    Torn,
}

/// Sectors `from..to` of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its number in the recording.
    pub write: usize,
    /// First sector that survives.
    pub from: u64,
    /// Behind the last sector that survives.
    pub to: u64,
}

/// One power cut.
#[derive(Clone, Debug)]
pub struct Cut {
    /// Number of the point.
    pub point: usize,
    /// The moment, in monotonic nanoseconds.
    pub at: u64,
    /// Why there: "ack", "flush", "write", "time" or "end".
    pub reason: &'static str,
    /// The first so many writes all survive whole.
    pub common: usize,
    /// What survives of the others, in log order.
    pub late: Vec<Piece>,
    /// Writes that no flush covers at this moment.
    pub loose: usize,
    /// How many of those survive at least in part, and how many of them are torn.
    pub kept: usize,
    /// See `kept`.
    pub torn: usize,
}

fn pick<T: Copy>(random: &Stream, of: &[T]) -> Option<T> {
    of.get(random.index(of.len())).copied()
}

/// Cuts of one mode, in order of time. `acks` are the moments at which acknowledgements had been received.
#[must_use]
pub fn cuts(recording: &Recording, mode: Mode, points: usize, seed: u64, acks: &[u64]) -> Vec<Cut> {
    let mut cuts: Vec<Cut> = (0..points)
        .map(|point| {
            let stream = u64::try_from(point).unwrap_or(u64::MAX) * 2 + u64::from(mode == Mode::Torn);
            let random = Stream::new(seed ^ mix(stream), "power cut");
            let (at, reason) = moment(recording, mode, point, &random, acks);
            cut(recording, mode, point, at, reason, &random)
        })
        .collect();
    cuts.sort_by_key(|cut| cut.at);
    cuts
}

/// Prefix cuts fall on flush boundaries; half of the torn ones right behind an acknowledgement, where a missing flush shows.
fn moment(recording: &Recording, mode: Mode, point: usize, random: &Stream, acks: &[u64]) -> (u64, &'static str) {
    let span = recording.span;
    if point == 0 {
        return (span.done, "end");
    }
    let within = |at: u64| (span.issue..=span.done).contains(&at);
    let flushes: Vec<u64> = recording.flushes.iter().map(|flush| flush.done).filter(|at| within(*at)).collect();
    let roll = random.below(100);
    let chosen = match mode {
        Mode::Prefix => pick(random, &flushes).map(|at| (at, "flush")),
        Mode::Torn if roll < 50 => pick(random, acks).filter(|at| within(*at)).map(|at| (at + 1000, "ack")),
        Mode::Torn if roll < 75 => pick(random, &flushes).map(|at| (at.saturating_sub(random.below(2_000_000)), "flush")),
        Mode::Torn if roll < 90 => {
            let writes: Vec<u64> = recording.writes.iter().map(|write| write.time.done).filter(|at| within(*at)).collect();
            pick(random, &writes).map(|at| (at, "write"))
        }
        Mode::Torn => None,
    };
    chosen.unwrap_or_else(|| (span.issue + random.below(span.done - span.issue + 1), "time"))
}

fn cut(recording: &Recording, mode: Mode, point: usize, at: u64, reason: &'static str, random: &Stream) -> Cut {
    // A write survives for certain if it was complete at `limit`.
    let limit = match mode {
        Mode::Prefix => at,
        Mode::Torn => recording.flushes.iter().filter(|flush| flush.done <= at).map(|flush| flush.issue).max().unwrap_or(0),
    };
    let writes = &recording.writes;
    let common = writes.iter().position(|write| write.time.done > limit).unwrap_or(writes.len());
    let mut late = Vec::new();
    let mut loose = Vec::new();
    for (number, write) in writes.iter().enumerate().skip(common) {
        if write.time.done <= limit {
            late.push(Piece { write: number, from: 0, to: write.sectors });
        } else if mode == Mode::Torn && write.time.issue < at {
            loose.push(Piece { write: number, from: 0, to: write.sectors });
        }
    }
    let kept = survivors(&loose, random);
    let torn = kept.iter().filter(|piece| piece.from != 0 || piece.to != writes[piece.write].sectors).count();
    let (loose, kept_count) = (loose.len(), kept.len());
    late.extend(kept);
    late.sort_by_key(|piece| piece.write);
    Cut { point, at, reason, common, late, loose, kept: kept_count, torn }
}

/// Which of the writes that no flush covers survive, and how much of them.
fn survivors(loose: &[Piece], random: &Stream) -> Vec<Piece> {
    let count = u64::try_from(loose.len()).unwrap_or(u64::MAX);
    if count == 0 {
        return Vec::new();
    }
    let rule = random.below(15);
    let chosen = random.below(count);
    let numbered = (0..count).zip(loose);
    let kept: Vec<Piece> = match rule {
        0..4 => Vec::new(),                                                                                   // none
        4..8 => loose.iter().copied().filter(|_| random.chance(50, 100)).collect(),                           // half
        8..10 => loose.iter().copied().filter(|_| random.chance(90, 100)).collect(),                          // most
        10..12 => return numbered.filter(|(number, _)| *number != chosen).map(|(_, piece)| *piece).collect(), // all but one
        12 => numbered.filter(|(number, _)| *number == chosen).map(|(_, piece)| *piece).collect(),            // only one
        13 => numbered.filter(|(number, _)| *number >= chosen).map(|(_, piece)| *piece).collect(),            // the late ones
        _ => loose.to_vec(),                                                                                  // all
    };
    kept.into_iter()
        .map(|piece| {
            if piece.to < 2 || !random.chance(35, 100) {
                return piece;
            }
            let at = 1 + random.below(piece.to - 1);
            if random.chance(67, 100) { Piece { to: at, ..piece } } else { Piece { from: at, ..piece } }
        })
        .collect()
}
