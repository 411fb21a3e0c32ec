//! The environment of one core: disk, transport, clock, randomness, tasks.

use std::future::Future;
use std::time::Duration;

use protocol::ids::Timestamp;

use crate::clock::Monotonic;
use crate::disk::Disk;
use crate::mesh::{Mesh, Seat};
use crate::transport::Transport;
use crate::uring::memory::Region;

/// Everything that a core's code may ask of the world. A handle: cheap to clone, of one thread.
///
/// The one type parameter of storage, net, shard and the handlers of broker. No method is called through `dyn`.
pub trait Env: Clone + 'static {
    /// The disks of this host, as this core reaches them.
    type Disk: Disk;
    /// The network of this host, as this core reaches it.
    type Transport: Transport;

    /// The disk.
    fn disk(&self) -> &Self::Disk;
    /// The network.
    fn transport(&self) -> &Self::Transport;
    /// The core's region: all memory that disk and network read from and write to.
    fn region(&self) -> &Region;

    /// The monotonic clock.
    fn now(&self) -> Monotonic;
    /// The wall clock, in milliseconds since the Unix epoch.
    fn wall_clock(&self) -> Timestamp;
    /// 64 random bits; seeded in the simulator.
    fn random(&self) -> u64;

    /// Starts a task on this core and lets it run to its end.
    fn spawn(&self, task: impl Future<Output = ()> + 'static);
    /// Ends after `delay`.
    fn sleep(&self, delay: Duration) -> impl Future<Output = ()>;
    /// Lets other ready tasks of this core run once. Long loops call it at least every 0.5 ms.
    fn yield_now(&self) -> impl Future<Output = ()>;
    /// Runs `work` off the core (CPU-heavy or blocking work) and gives its value back. Begins when the future is first polled,
    /// and then goes on to its end even if the future is dropped.
    ///
    /// The simulator runs it on its own thread, after a virtual delay.
    fn offload<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> impl Future<Output = T>;

    /// Takes this core's seat in the mesh of its process.
    fn join<Q: Send + 'static, R: Send + 'static>(&self, seat: Seat<Q, R>) -> Mesh<Q, R>;

    /// Whether the fault `canary` is switched on. Only the simulator ever answers `true`.
    #[inline]
    fn canary(&self, canary: Canary) -> bool {
        let _ = canary;
        false
    }
}

/// Faults that the simulator can switch on to show that it would find them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Canary {
    /// A `device` acknowledgement leaves when the write completes, before its flush.
    AckBeforeFlush,
    /// Recovery accepts a batch whose leader epoch is lower than its predecessor's, and doesn't clear what lies behind a cut.
    RecoveryWithoutEpochCheck,
    /// A chunk returns to its region while the kernel still reads it.
    ReuseOfBufferInFlight,
    /// Offset index entries point one entry too far.
    IndexOneEntryBehind,
}
