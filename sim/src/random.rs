//! Seeded streams of random numbers, one per concern, so that a change in how often one concern draws doesn't move the others.

use std::cell::Cell;

/// A stream of random numbers (SplitMix64). Not shared between threads.
#[derive(Debug)]
pub struct Stream(Cell<u64>);

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A well-mixed function of one word.
#[must_use]
pub fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl Stream {
    /// The stream of `concern` under `seed`.
    #[must_use]
    pub fn new(seed: u64, concern: &str) -> Stream {
        let state =
            concern.bytes().fold(mix(seed.wrapping_add(STEP)), |state, byte| mix(state ^ u64::from(byte)).wrapping_add(STEP));
        Stream(Cell::new(state))
    }

    /// The next 64 bits.
    pub fn next(&self) -> u64 {
        let state = self.0.get().wrapping_add(STEP);
        self.0.set(state);
        mix(state)
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub fn below(&self, bound: u64) -> u64 {
        if bound == 0 {
            return 0;
        }
        let wide = u128::from(self.next()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// An index below `length`.
    pub fn index(&self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap_or(0)
    }

    /// A number in `low..=high`.
    pub fn between(&self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True `numerator` times in `denominator`.
    pub fn chance(&self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator
    }

    /// Mostly near `typical`, sometimes ten times, rarely a hundred times as long: how latencies fall.
    pub fn latency(&self, typical: u64) -> u64 {
        let base = self.between(typical / 2, typical * 2);
        match self.below(200) {
            0 => base * 100,
            1..=9 => base * 10,
            _ => base,
        }
    }
}
