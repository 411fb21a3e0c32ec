//! The real process under test: started, killed, loaded with records whose acknowledgements are noted, and read back.
//!
//! Used by the power-cut harness and by the kill test, on ordinary threads with blocking sockets: the stamp of an
//! acknowledgement is taken right after its bytes were received, and nothing stands between it and the wire.

pub mod audit;
pub mod crash;
pub mod host;
pub mod load;
pub mod wire;

use std::time::Duration;

/// Nanoseconds of `CLOCK_MONOTONIC`: the clock of the kernel's trace and of every stamp here.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).expect("the monotonic clock isn't negative");
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).expect("nanoseconds aren't negative")
}

/// Waits on an ordinary thread.
#[allow(clippy::disallowed_methods, reason = "a harness of processes and devices, not a core")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Asks until `done`, or until `limit` has passed; says which.
pub fn wait_until(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let end = monotonic_ns().saturating_add(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
    loop {
        if done() {
            return true;
        }
        if monotonic_ns() > end {
            return false;
        }
        pause(Duration::from_millis(5));
    }
}
