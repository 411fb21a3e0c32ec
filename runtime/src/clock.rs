//! Time as a value: decisions receive it, they never read a clock.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A point of the environment's monotonic clock, in nanoseconds since an arbitrary origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Monotonic(pub u64);

impl Monotonic {
    /// Time passed since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Monotonic) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Monotonic {
    type Output = Monotonic;

    fn add(self, delay: Duration) -> Monotonic {
        let nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        Monotonic(self.0.saturating_add(nanos))
    }
}

impl Sub for Monotonic {
    type Output = Duration;

    fn sub(self, earlier: Monotonic) -> Duration {
        self.since(earlier)
    }
}
