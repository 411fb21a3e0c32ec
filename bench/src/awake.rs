//! Keeps a processor from halting while latencies are measured.
//!
//! A processor with nothing to do halts, and one that belongs to a virtual machine is then given away: it comes back tens to hundreds of
//! microseconds after its interrupt, and hosts that pack lightly used processors put two of them on one. What is measured then is the neighbours.
//! So a thread of the lowest class (SCHED_IDLE: whatever else wants the processor has it at once) turns on the broker's processor, as booting
//! with `idle=poll` would have it; limits and figures are measured under it alike. Only that one: with all of them awake, a host's quota
//! runs out and everything stands still to the end of its period. Its time is niced time in /proc/stat and isn't counted as busy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Result, anyhow};
use thread_priority::ThreadPriority;
use thread_priority::unix::{NormalThreadSchedulePolicy, ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id};

use crate::machine;

/// Spins between two looks at whether to end.
const SPINS_PER_LOOK: usize = 100;

/// A processor kept awake, until this is stopped or dropped.
pub struct Awake {
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Awake {
    /// Keeps `cpu` awake.
    pub fn start(cpu: usize) -> Awake {
        let ending = Arc::new(AtomicBool::new(false));
        let ending_of_thread = ending.clone();
        let thread = machine::spawn_pinned(cpu, move || {
            take_lowest_class()?;
            while !ending_of_thread.load(Ordering::Relaxed) {
                for _ in 0..SPINS_PER_LOOK {
                    std::hint::spin_loop();
                }
                std::thread::yield_now();
            }
            Ok(())
        });
        Awake { ending, thread: Some(thread) }
    }

    /// Lets it halt again.
    pub fn stop(mut self) -> Result<()> {
        self.ending.store(true, Ordering::Relaxed);
        self.thread.take().map_or(Ok(()), machine::joined)
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
    }
}

/// Puts this thread into SCHED_IDLE: whatever else wants its processor has it at once.
pub fn take_lowest_class() -> Result<()> {
    let policy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
    set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy)
        .map_err(|error| anyhow!("the class SCHED_IDLE can't be taken: {error:?}"))?;
    // Its time is counted apart from everybody else's.
    rustix::process::nice(19)?;
    Ok(())
}
