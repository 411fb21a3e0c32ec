//! How a core's region comes to its full size while the core serves already.
//!
//! Started with the core by [`super::environment`]. Memory that the system has to find and clear takes time (on some virtual machines seconds
//! per GiB), and a host that restarts is waited for. So a core begins with one entry; a thread of the pool touches the next ones in steps, and the
//! core registers each when it is there.
//!
//! Whoever asks for memory meanwhile sees a smaller region, and waits, evicts or pushes back as in any small one.

use std::io;
use std::time::Duration;

use super::memory::{Region, RegionEntry};
use super::pool::Pool;
use super::probe::locked_memory_limit;
use super::ring::{Ring, now_nanos};
use super::timers::Timers;

/// What one job of the pool touches: other jobs wait for no more. A huge page of most processors.
const STEP_BYTES: usize = 2 << 20;

/// Adds entry by entry until the region is whole.
pub(super) async fn grow(name: String, region: Region, ring: Ring, pool: Pool, timers: Timers) {
    let (began_nanos, began_bytes) = (now_nanos(), region.bytes());
    while let Some(entry) = region.next_entry() {
        for address in (entry.address..entry.address + entry.bytes).step_by(STEP_BYTES) {
            let step_nanos = now_nanos();
            pool.run(move || touch(address)).await;
            // The thread may be on the core's own processor: half of it is the core's.
            timers.sleep(Duration::from_nanos(now_nanos() - step_nanos)).await;
        }
        if let Err(error) = ring.register_entry(&entry) {
            say_smaller(&name, &region, &entry, &error);
            region.stop_growing();
            return;
        }
        region.extend();
    }
    if region.bytes() > began_bytes {
        let took_ms = (now_nanos() - began_nanos) / 1_000_000;
        tracing::info!(name, bytes = region.bytes(), took_ms, "the region has its full size");
    }
}

/// Lets the system find and clear the memory of one step. Where it can't, registering says so.
fn touch(address: usize) {
    // SAFETY: the advice writes nothing that was there before: whatever is mapped at the address, its content stays.
    unsafe {
        libc::madvise(address as *mut libc::c_void, STEP_BYTES, libc::MADV_POPULATE_WRITE);
    }
}

fn say_smaller(name: &str, region: &Region, entry: &RegionEntry, error: &io::Error) {
    tracing::warn!(
        name,
        bytes = region.bytes(),
        wanted_bytes = region.full_bytes(),
        entry = entry.index,
        limit_bytes = locked_memory_limit(),
        %error,
        "the region stays smaller than `memory` asks for: no more can be registered; raise LimitMEMLOCK or give CAP_IPC_LOCK"
    );
}

#[cfg(test)]
mod tests {
    use super::super::memory::{CHUNK_BYTES_MAX, ENTRY_BYTES_MAX};
    use super::super::{CoreConfig, run_core};
    use crate::env::Env;

    #[test]
    fn what_cannot_be_registered_is_not_lent() {
        let config = CoreConfig { memory_bytes: 3 * ENTRY_BYTES_MAX, ring_entries: 128, ..CoreConfig::default() };
        run_core(config, |env| async move {
            let region = env.region();
            let second = region.next_entry().unwrap();
            // SAFETY: the memory is the region's, and nothing was lent of this entry.
            let forbidden = unsafe { libc::mprotect(second.address as *mut libc::c_void, second.bytes, libc::PROT_NONE) };
            assert_eq!(forbidden, 0);
            let freed = region.freed();
            while region.full_bytes() > region.bytes() {
                freed.changed(freed.count()).await;
            }
            assert_eq!(region.bytes(), ENTRY_BYTES_MAX);
            let chunks: Vec<_> = std::iter::from_fn(|| region.take(CHUNK_BYTES_MAX)).collect();
            assert_eq!(chunks.len() * CHUNK_BYTES_MAX, ENTRY_BYTES_MAX);
        })
        .unwrap();
    }
}
