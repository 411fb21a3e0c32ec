//! How fast a log grows, and what follows from it: how far ahead blocks are zeroed, and when a log streams instead.
//!
//! Zeroing writes every byte twice and buys latency: so a log of low or middling rate keeps a zeroed window ahead of its
//! end that holds what it may append until the next maintenance; a log near disk speed keeps none.

use runtime::Monotonic;

use crate::blocks::{BLOCK, block_ceiling};
use crate::config::StorageConfig;

/// Span over which the rate is averaged, in nanoseconds.
const SPAN_NANOS: u64 = 100_000_000;
/// The window holds this many spans of appends.
const WINDOW_SPANS: u64 = 4;

/// The rate of one log.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rate {
    span_start: Monotonic,
    span_bytes: u64,
    bytes_per_second: u64,
    streaming: bool,
}

impl Rate {
    /// Notes an append.
    pub(crate) fn note(&mut self, now: Monotonic, bytes: usize, config: &StorageConfig) {
        self.advance(now, config);
        self.span_bytes += bytes as u64;
    }

    /// Closes the span if it is over.
    pub(crate) fn advance(&mut self, now: Monotonic, config: &StorageConfig) {
        let passed = now.0.saturating_sub(self.span_start.0);
        if passed < SPAN_NANOS {
            return;
        }
        let measured = u64::try_from(u128::from(self.span_bytes) * 1_000_000_000 / u128::from(passed)).unwrap_or(u64::MAX);
        self.bytes_per_second = if passed > 8 * SPAN_NANOS { measured } else { self.bytes_per_second / 2 + measured / 2 };
        self.span_bytes = 0;
        self.span_start = now;
        let threshold = config.streaming_bytes_per_second;
        self.streaming = self.bytes_per_second >= if self.streaming { threshold / 2 } else { threshold };
    }

    /// Whether the log streams: it writes whole blocks into unwritten extents and zeroes nothing.
    pub(crate) fn streaming(&self) -> bool {
        self.streaming
    }

    /// Bytes to keep zeroed ahead of the end.
    pub(crate) fn window_bytes(&self, config: &StorageConfig) -> u64 {
        if self.streaming {
            return 0;
        }
        let span = u128::from(self.bytes_per_second) * u128::from(SPAN_NANOS * WINDOW_SPANS) / 1_000_000_000;
        let wanted = u64::try_from(span).unwrap_or(u64::MAX).min(config.window_bytes_max);
        block_ceiling(wanted).clamp(BLOCK, config.window_bytes_max.max(BLOCK))
    }

    /// Bytes to keep allocated ahead of the end.
    pub(crate) fn allocation_bytes(&self, config: &StorageConfig) -> u64 {
        let wanted = (self.bytes_per_second * 4).clamp(256 << 10, config.allocation_step_bytes_max.max(256 << 10));
        wanted.next_power_of_two()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(rate_bytes: usize, spans: u64) -> Rate {
        let config = StorageConfig::default();
        let mut rate = Rate::default();
        for tick in 0..spans * 10 {
            rate.note(Monotonic(1 + tick * SPAN_NANOS / 10), rate_bytes / 100, &config);
        }
        rate
    }

    #[test]
    fn the_window_is_one_block_when_idle_and_grows_with_the_rate() {
        let config = StorageConfig::default();
        assert_eq!(Rate::default().window_bytes(&config), BLOCK);
        let middling = after(3 << 20, 20);
        assert!(!middling.streaming());
        assert!(middling.window_bytes(&config) > 256 << 10, "{}", middling.window_bytes(&config));
        let streaming = after(1 << 30, 20);
        assert!(streaming.streaming());
        assert_eq!(streaming.window_bytes(&config), 0);
    }

    #[test]
    fn an_idle_log_falls_back() {
        let config = StorageConfig::default();
        let mut rate = after(1 << 30, 20);
        rate.advance(Monotonic(1 << 40), &config);
        rate.advance(Monotonic(1 << 41), &config);
        assert!(!rate.streaming());
        assert_eq!(rate.window_bytes(&config), BLOCK);
    }
}
