//! Several cores of one simulated process: when what one sends to another arrives.
//!
//! Parcels lie in the mesh's own queues, as on the ring; here is only known how many of each queue have arrived. Those of one
//! queue arrive in order, each after a latency that is drawn; queues overtake each other. The stream is the mesh's own, so that a process of one
//! core runs as if there was no mesh.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use protocol::ids::CoreId;
use runtime::local::Notify;
use runtime::mesh::Carrier;

use crate::world::World;

/// How long a parcel is under way, typically.
const LATENCY_NANOS: u64 = 2_000;

/// What the cores of one process share.
pub(crate) struct Cores {
    world: Rc<World>,
    /// By (from, to).
    lines: RefCell<BTreeMap<(CoreId, CoreId), Line>>,
    arrivals: RefCell<BTreeMap<CoreId, Notify>>,
}

#[derive(Default)]
struct Line {
    /// Parcels that have arrived and were not taken.
    arrived: usize,
    last_arrival: u64,
}

/// Carries the parcels that one core sends.
pub(crate) struct SimCarrier {
    cores: Rc<Cores>,
    core: CoreId,
}

impl Cores {
    pub(crate) fn new(world: &Rc<World>) -> Rc<Cores> {
        Rc::new(Cores { world: world.clone(), lines: RefCell::default(), arrivals: RefCell::default() })
    }

    /// What `core` sends with, and the signal for what arrives there.
    pub(crate) fn join(self: &Rc<Cores>, core: CoreId) -> (SimCarrier, Notify) {
        let arrivals = self.arrivals.borrow_mut().entry(core).or_default().clone();
        (SimCarrier { cores: self.clone(), core }, arrivals)
    }

    /// `parcels` arrive at `to`, behind all that `from` sent there before.
    fn post(self: &Rc<Cores>, from: CoreId, to: CoreId, parcels: usize) {
        let now = self.world.now();
        let arrival = {
            let mut lines = self.lines.borrow_mut();
            let line = lines.entry((from, to)).or_default();
            line.last_arrival = (now + self.world.streams.mesh.latency(LATENCY_NANOS)).max(line.last_arrival + 1);
            line.last_arrival
        };
        let cores = self.clone();
        self.world.after(arrival - now, move || {
            cores.lines.borrow_mut().entry((from, to)).or_default().arrived += parcels;
            cores.world.trace("mesh", &[u64::from(from.0), u64::from(to.0), parcels as u64]);
            let arrivals = cores.arrivals.borrow().get(&to).cloned();
            arrivals.iter().for_each(Notify::notify);
        });
    }
}

impl Carrier for SimCarrier {
    fn sent(&self, to: CoreId) {
        self.cores.post(self.core, to, 1);
    }

    fn has_arrived(&self, from: CoreId) -> bool {
        let mut lines = self.cores.lines.borrow_mut();
        let line = lines.entry((from, self.core)).or_default();
        let arrived = line.arrived > 0;
        line.arrived -= usize::from(arrived);
        arrived
    }

    fn ended(&self) {
        let others: Vec<CoreId> = self.cores.arrivals.borrow().keys().copied().filter(|&core| core != self.core).collect();
        for other in others {
            self.cores.post(self.core, other, 0);
        }
    }
}

#[cfg(test)]
mod tests;
