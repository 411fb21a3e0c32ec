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
