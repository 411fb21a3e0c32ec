//! How a core's ring hears of other cores, and how it tells them.
//!
//! [`Waking`] is asked by the core's driver, once per turn and before it sleeps; [`RingCarrier`] by the mesh, for each parcel. The
//! reasoning that no wake-up is lost stands in [`crate::mesh::bell`].

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use protocol::ids::CoreId;

use super::memory::Region;
use super::operation::Operation;
use super::ring::Ring;
use crate::local::Notify;
use crate::mesh::Carrier;
use crate::mesh::bell::{Bell, Closer, Hub};

/// The core's own bell, and what hangs on it. A handle.
#[derive(Clone)]
pub(super) struct Waking(Rc<State>);

struct State {
    bell: Arc<Bell>,
    /// How often the bell had been rung when the core looked last.
    seen: Cell<u64>,
    /// To the pumps: parcels may have arrived.
    arrivals: Notify,
    region: Region,
}

impl Waking {
    pub(super) fn new(bell: Arc<Bell>, region: Region) -> Waking {
        region.install_bell(bell.clone());
        Waking(Rc::new(State { bell, seen: Cell::new(0), arrivals: Notify::new(), region }))
    }

    pub(super) fn bell(&self) -> &Arc<Bell> {
        &self.0.bell
    }

    pub(super) fn arrivals(&self) -> &Notify {
        &self.0.arrivals
    }

    /// Takes in what other cores have left. Whether there was something.
    pub(super) fn look(&self) -> bool {
        let collected = self.0.region.collect();
        let rung = self.0.bell.rung();
        let moved = self.0.seen.replace(rung) != rung;
        if moved {
            self.0.arrivals.notify();
        }
        collected || moved
    }

    /// Runs `sleep`, unless another core has left something meanwhile; from here on it wakes this core.
    pub(super) fn asleep(&self, sleep: impl FnOnce()) {
        self.0.bell.falls_asleep();
        let returned = self.0.region.falls_asleep();
        if !returned && self.0.bell.rung() == self.0.seen.get() {
            sleep();
        }
        self.0.bell.wakes_up();
        self.0.region.wakes_up();
    }
}

/// How one core's parcels are announced.
pub(super) struct RingCarrier {
    pub(super) ring: Ring,
    pub(super) hub: Arc<Hub>,
}

impl Carrier for RingCarrier {
    fn sent(&self, to: CoreId) {
        if let Some(bell) = self.hub.bell(to)
            && bell.ring()
        {
            self.ring.start_detached(Operation::Knock { bell: bell.clone() });
        }
    }

    fn has_arrived(&self, _from: CoreId) -> bool {
        true
    }

    /// The closer of the seat has done it.
    fn ended(&self) {}
}

/// What a core ends when it stops or its thread panics, though its tasks may never be dropped then.
#[derive(Clone, Default)]
pub(super) struct Endings(Rc<RefCell<Vec<Closer>>>);

impl Endings {
    pub(super) fn add(&self, closer: Closer) {
        self.0.borrow_mut().push(closer);
    }

    pub(super) fn end(&self) {
        let closers = std::mem::take(&mut *self.0.borrow_mut());
        drop(closers);
    }
}

/// Ends them when it is dropped.
pub(super) struct EndAtDrop(pub(super) Endings);

impl Drop for EndAtDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use futures_lite::future::{block_on, poll_once};
    use rustix::event::{EventfdFlags, eventfd};

    use super::super::ring::now_nanos;
    use super::*;

    fn waking() -> (Waking, Arc<OwnedFd>) {
        let alarm = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let bell = Bell::new(std::fs::File::open("/dev/null").unwrap().into(), alarm.clone());
        (Waking::new(Arc::new(bell), Region::map(16 << 20).unwrap()), alarm)
    }

    /// Whether the core would sleep; `meanwhile` happens when it does.
    fn sleeps(waking: &Waking, meanwhile: impl FnOnce()) -> bool {
        let mut slept = false;
        waking.asleep(|| {
            slept = true;
            meanwhile();
        });
        slept
    }

    #[test]
    fn a_core_that_was_rung_since_it_looked_does_not_sleep_and_one_that_sleeps_is_woken_by_one() {
        let (waking, _) = waking();
        let bell = waking.bell().clone();
        assert!(!bell.ring() && !sleeps(&waking, || ()), "it is awake, and must look first");
        assert!(waking.look() && !waking.look());
        assert!(sleeps(&waking, || assert!(bell.ring() && !bell.ring(), "one wakes it")));
        assert!(waking.look() && !bell.ring(), "it is awake");
    }

    #[test]
    fn what_comes_back_wakes_a_core_only_if_a_task_waits_for_memory() {
        let (waking, alarm) = waking();
        let region = waking.0.region.clone();
        let lend = || region.take(4096).unwrap().freeze().lend().unwrap();
        let heard = || rustix::io::read(&*alarm, &mut [0; 8]).is_ok();
        let (first, second, third) = (lend(), lend(), lend());
        assert!(sleeps(&waking, || drop(first)) && !heard() && waking.look());
        let freed = region.freed();
        let mut waits = Box::pin(freed.changed(freed.count()));
        assert!(block_on(poll_once(&mut waits)).is_none());
        drop(second);
        assert!(!sleeps(&waking, || ()), "it came back before");
        assert!(waking.look() && block_on(poll_once(&mut waits)).is_some());
        let mut waits = Box::pin(freed.changed(freed.count()));
        assert!(block_on(poll_once(&mut waits)).is_none());
        assert!(sleeps(&waking, || drop(third)) && heard() && waking.look());
    }

    #[test]
    fn no_ring_is_missed_between_looking_and_sleeping() {
        const RINGS: u64 = 50_000;
        let (waking, _) = waking();
        let (bell, core, seen) = (waking.bell().clone(), std::thread::current(), Arc::new(AtomicU64::new(0)));
        let answered = seen.clone();
        let sender = std::thread::spawn(move || {
            for ring in 1..=RINGS {
                if bell.ring() {
                    core.unpark();
                }
                for tries in 0.. {
                    if answered.load(Ordering::Relaxed) == ring {
                        break;
                    }
                    if tries > 1_000 {
                        std::thread::yield_now();
                    }
                    std::hint::spin_loop();
                }
                for _ in 0..ring % 97 {
                    std::hint::spin_loop();
                }
            }
        });
        while seen.load(Ordering::Relaxed) < RINGS {
            if waking.look() {
                seen.store(waking.0.seen.get(), Ordering::Relaxed);
            } else {
                // A turn's work lies between both.
                for _ in 0..seen.load(Ordering::Relaxed) % 89 {
                    std::hint::spin_loop();
                }
                let slept = Cell::new(Duration::ZERO);
                waking.asleep(|| {
                    let start = now_nanos();
                    std::thread::park_timeout(Duration::from_secs(10));
                    slept.set(Duration::from_nanos(now_nanos() - start));
                });
                assert!(slept.get() < Duration::from_secs(9), "a ring was missed: only the clock has woken this");
            }
        }
        sender.join().unwrap();
    }
}
