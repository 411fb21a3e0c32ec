//! What wakes a core that sleeps in its ring, when another thread has left something for it; and which cores of a mesh have ended.
//!
//! Shared by all cores of a process: beside the queues of the mesh and the loans of memory, nothing else is.
//!
//! No wake-up is lost. Who leaves something does it first, then raises `rung`, then looks at `asleep`. The core says `asleep`, then looks
//! whether `rung` has moved from what it has seen, then sleeps. All four are sequentially consistent, so one of the two sees the other: either
//! the core sees that `rung` has moved, or the other thread sees that it sleeps. Of several that see it, one takes `asleep`
//! and wakes it, and the others rely on that. A core that is awake looks at `rung` once per turn, before it looks into its queues.
//! Who joins after something was left for it looks into its queues when its bell can be seen; between both stands a fence on either side.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

use protocol::ids::CoreId;

/// The bell of one core.
pub(crate) struct Bell {
    rung: AtomicU64,
    asleep: AtomicBool,
    /// A descriptor of the core's ring that is the bell's own: while anybody can ring, its number stands for that ring and no other.
    ring: OwnedFd,
    /// An eventfd that the core's ring waits for, for those who have no ring at hand.
    alarm: Arc<OwnedFd>,
}

impl Bell {
    pub(crate) fn new(ring: OwnedFd, alarm: Arc<OwnedFd>) -> Bell {
        Bell { rung: AtomicU64::new(0), asleep: AtomicBool::new(false), ring, alarm }
    }

    /// Says that something was left for the core. Whether the core sleeps, and the caller has to wake it.
    #[must_use]
    pub(crate) fn ring(&self) -> bool {
        self.rung.fetch_add(1, Ordering::SeqCst);
        self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst)
    }

    /// Wakes the core with a system call.
    pub(crate) fn sound_alarm(&self) {
        // The count is far from its maximum, so the write can't fail.
        let _ = rustix::io::write(self.alarm.as_fd(), &1_u64.to_ne_bytes());
    }

    /// The number of the core's ring.
    pub(crate) fn ring_number(&self) -> i32 {
        self.ring.as_raw_fd()
    }

    /// How often it was rung.
    pub(crate) fn rung(&self) -> u64 {
        self.rung.load(Ordering::SeqCst)
    }

    /// The core goes to sleep.
    pub(crate) fn falls_asleep(&self) {
        self.asleep.store(true, Ordering::SeqCst);
    }

    /// The core is awake.
    pub(crate) fn wakes_up(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }
}

/// The bells of the cores of one mesh, and which of them have ended.
pub(crate) struct Hub {
    stations: Box<[Station]>,
}

#[derive(Default)]
struct Station {
    ended: AtomicBool,
    /// There since the core has joined.
    bell: OnceLock<Arc<Bell>>,
}

impl Hub {
    pub(crate) fn new(cores: usize) -> Hub {
        Hub { stations: (0..cores).map(|_| Station::default()).collect() }
    }

    pub(crate) fn cores(&self) -> usize {
        self.stations.len()
    }

    /// The bell of a core, if it has one: it looks into its queues after it has got one.
    pub(crate) fn bell(&self, core: CoreId) -> Option<&Arc<Bell>> {
        let bell = &self.stations[usize::from(core.0)].bell;
        if bell.get().is_none() {
            fence(Ordering::SeqCst);
        }
        bell.get()
    }

    /// The core can be rung from here on. It looks into its queues after this.
    pub(crate) fn install(&self, core: CoreId, bell: Arc<Bell>) {
        let first = self.stations[usize::from(core.0)].bell.set(bell).is_ok();
        assert!(first, "core {core} has joined twice");
        fence(Ordering::SeqCst);
    }

    /// Whether the core has ended: then all that it has sent lies in its queues.
    pub(crate) fn has_ended(&self, core: CoreId) -> bool {
        self.stations[usize::from(core.0)].ended.load(Ordering::SeqCst)
    }

    /// The core sends and takes nothing more. All others are woken: it may be that who was to ring them never got to it.
    fn end(&self, core: CoreId) {
        if self.stations[usize::from(core.0)].ended.swap(true, Ordering::SeqCst) {
            return;
        }
        for other in (0_u16..).map(CoreId).take(self.cores()).filter(|&other| other != core) {
            if let Some(bell) = self.bell(other) {
                let _ = bell.ring();
                bell.sound_alarm();
            }
        }
    }
}

/// Ends a core's part of a mesh when it is dropped.
pub(crate) struct Closer {
    pub(crate) hub: Arc<Hub>,
    pub(crate) core: CoreId,
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.hub.end(self.core);
    }
}
