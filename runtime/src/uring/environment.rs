//! One core: a glommio executor on a thread (pinned or not), one ring, one region; and [`RingEnv`], the core's [`Env`].
//!
//! [`run_core`] is called by bench and tests, and for each of several cores by [`super::run_cores`]. It makes everything on the calling thread, runs the given
//! future, then stops: tasks are dropped, operations end, and only then the ring and the region go.
//!
//! What the machine doesn't give is an error that says which limit, how much is needed and how to mend it; the one mode that is less
//! than asked for, an unregistered region, is logged, and can be forbidden.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use glommio::{LocalExecutorBuilder, Placement, PoolPlacement};
use protocol::ids::Timestamp;
use protocol::limits;
use rustix::thread::CpuSet;

use super::cores::Member;
use super::disk::RingDisk;
use super::growth::grow;
use super::memory::Region;
use super::metrics::Metrics;
use super::operation::ZeroCopyRules;
use super::pool::Pool;
use super::ring::{Driven, Ring, RingConfig, build, now_nanos};
use super::socket::{RingTransport, SocketConfig};
use super::tasks::{Tasks, spawn_later};
use super::timers::Timers;
use super::waking::{EndAtDrop, Endings, RingCarrier, Waking};
use crate::clock::Monotonic;
use crate::env::Env;
use crate::mesh::bell::{Bell, Closer};
use crate::mesh::{Mesh, Seat};

/// How long a core looks for completions by itself before it sleeps until the kernel wakes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spin {
    /// Not at all.
    Off,
    /// For so long after the last completion. A timer of the core may be late by as much.
    For(Duration),
    /// Always: the lowest latency, a whole processor, and on disks without FUA slower synchronous writes.
    Always,
}

/// Whether the region must be registered with the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// A core doesn't start without it.
    Required,
    /// Without it (too little memlock) a core works and says so; each operation then looks its pages up, and sends are copied.
    Preferred,
}

/// How one core is made.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    /// Name of the thread's executor, for logs.
    pub name: String,
    /// The processor to run on; not pinned if absent.
    pub cpu: Option<usize>,
    /// Bytes of the region; rounded up to 16 MiB.
    pub memory_bytes: usize,
    /// Entries of the submission queue.
    pub ring_entries: u32,
    /// Looking for completions before sleeping.
    pub spin: Spin,
    /// Threads for blocking work off the core.
    pub offload_threads: usize,
    /// Descriptors that files may take.
    pub descriptors_max: usize,
    /// Whether the region must be registered.
    pub registration: Registration,
    /// Whether large parts may be sent without a copy.
    pub zero_copy: bool,
    /// How sockets are set up.
    pub sockets: SocketConfig,
}

impl Default for CoreConfig {
    fn default() -> CoreConfig {
        CoreConfig {
            name: "core".to_owned(),
            cpu: None,
            memory_bytes: 64 << 20,
            ring_entries: 1024,
            spin: Spin::Off,
            offload_threads: 2,
            descriptors_max: limits::SEGMENT_DESCRIPTORS_PER_CORE_MAX,
            registration: Registration::Preferred,
            zero_copy: true,
            sockets: SocketConfig::default(),
        }
    }
}

/// Why a core doesn't start.
#[derive(Debug, thiserror::Error)]
pub enum CoreError {
    /// There is no io_uring for this process.
    #[error("io_uring can't be used: {reason}. {remedy}")]
    NoRing {
        /// What the kernel says, and why it may say so.
        reason: String,
        /// What to do about it.
        remedy: String,
    },
    /// The limit of locked memory is too low.
    #[error(
        "locked memory: {needed_bytes} bytes are needed, the limit is {limit_bytes}; raise it (LimitMEMLOCK= of the unit, `ulimit -l`) or \
         give the process CAP_IPC_LOCK"
    )]
    LockedMemory {
        /// What this core needs.
        needed_bytes: u64,
        /// What the process may lock.
        limit_bytes: u64,
    },
    /// The region can't be mapped.
    #[error("a region of {bytes} bytes can't be mapped: {source}; lower `memory`")]
    Region {
        /// Bytes asked for.
        bytes: usize,
        /// What the system said.
        source: io::Error,
    },
    /// The processor isn't there, or not for this process.
    #[error("processor {cpu} can't be used: {reason}; see `taskset -p` and the cgroup's cpuset")]
    Processor {
        /// The processor asked for.
        cpu: usize,
        /// Why not.
        reason: String,
    },
    /// The executor can't be made.
    #[error("the executor can't be made: {0}")]
    Executor(String),
}

/// The environment of one core: the ring's disk and network, the region, clocks, tasks. A handle.
#[derive(Clone)]
pub struct RingEnv(Rc<Core>);

struct Core {
    ring: Ring,
    region: Region,
    disk: RingDisk,
    transport: RingTransport,
    tasks: Tasks,
    timers: Timers,
    pool: Pool,
    waking: Waking,
    endings: Endings,
    random: Cell<u64>,
}

/// Makes a core on the calling thread and runs `main` on it to its end; then stops the core.
/// The thread must not run another executor.
///
/// # Errors
/// [`CoreError`], if the machine doesn't give what a core needs; nothing is left behind then.
pub fn run_core<T, F>(config: CoreConfig, main: impl FnOnce(RingEnv) -> F + 'static) -> Result<T, CoreError>
where
    T: 'static,
    F: Future<Output = T> + 'static,
{
    let value = run_among(config, None, main)?;
    Ok(value.expect("a core alone runs"))
}

/// The same for one of several cores, if it is one. Nothing, if another one couldn't be made.
pub(super) fn run_among<T, F>(
    config: CoreConfig,
    member: Option<Member>,
    main: impl FnOnce(RingEnv) -> F + 'static,
) -> Result<Option<T>, CoreError>
where
    T: 'static,
    F: Future<Output = T> + 'static,
{
    // The executor would panic or hang without io_uring, so it is tried first.
    drop(build(config.ring_entries).map_err(|error| super::probe::explain_no_ring(&error))?);
    super::probe::check_locked_memory()?;
    let before = config.cpu.and_then(|_| rustix::thread::sched_getaffinity(None).ok());
    let placement = config.cpu.map_or(Placement::Unbound, Placement::Fixed);
    let executor = LocalExecutorBuilder::new(placement)
        .name(&config.name)
        .preempt_timer(EXECUTOR_TIMER)
        .io_memory(0)
        .ring_depth(EXECUTOR_RING_DEPTH)
        // The core has a pool of its own.
        .blocking_thread_pool_placement(PoolPlacement::Unbound(1))
        .make()
        .map_err(|error| match config.cpu {
            Some(cpu) => CoreError::Processor { cpu, reason: error.to_string() },
            None => CoreError::Executor(error.to_string()),
        })?;
    let processors = before;
    let endings = Endings::default();
    let _end = EndAtDrop(endings.clone());
    let result = executor.run(async move {
        let (core, driver) = Driver::start(&config, processors, endings)?;
        let tasks = core.0.tasks.clone();
        let whole = async move {
            let mut member = member;
            let value = if member.as_mut().is_none_or(Member::built) { Some(main(core.clone()).await) } else { None };
            let stopped = driver.stop(core).await;
            if let Some(member) = member {
                member.ended();
            }
            drop(stopped);
            value
        };
        Ok(tasks.counted(whole).await)
    });
    drop(executor);
    if let Some(before) = before {
        // A thread that is used for something else afterwards gets its processors back; if not, it stays pinned.
        let _ = rustix::thread::sched_setaffinity(None, &before);
    }
    result
}

const EXECUTOR_RING_DEPTH: usize = 64;
/// Listening sockets of a core, for the size of a table only.
const LISTENERS_MAX: usize = 16;
/// How often the executor looks at its own rings, which nothing waits for.
const EXECUTOR_TIMER: Duration = Duration::from_millis(100);
/// How long a core that stops waits for the kernel to give its memory back.
const STOP_WAIT: Duration = Duration::from_secs(2);

/// How long a core that stops lets peers acknowledge what was sent to them without a copy.
const STOP_PATIENCE: Duration = Duration::from_millis(300);

/// What drives a core's ring, in a task of its own.
struct Driver {
    stopping: Rc<Cell<bool>>,
}

impl Driver {
    fn start(config: &CoreConfig, processors: Option<CpuSet>, endings: Endings) -> Result<(RingEnv, Driver), CoreError> {
        let system = |error: io::Error| CoreError::Executor(error.to_string());
        let region =
            Region::reserve(config.memory_bytes).map_err(|source| CoreError::Region { bytes: config.memory_bytes, source })?;
        let (ring, registered) = make_ring(config, &region)?;
        if let Some(processors) = &processors {
            // Else flushes and allocations, which kernel threads do, would wait for this very thread to sleep.
            ring.spread_workers(processors).map_err(system)?;
        }
        let (tasks, timers) = (Tasks::default(), Timers::new());
        let pool = Pool::new(&ring, &config.name, config.offload_threads, processors).map_err(system)?;
        let disk = RingDisk::new(&ring, &tasks, &pool, config.descriptors_max);
        let transport = RingTransport::new(ring.clone(), config.sockets);
        let random = Cell::new(seed().map_err(system)?);
        tracing::debug!(name = config.name, cpu = config.cpu, region_bytes = region.full_bytes(), registered, "core made");
        let spin_nanos = match config.spin {
            Spin::Off => 0,
            Spin::For(spin) => u64::try_from(spin.as_nanos()).unwrap_or(u64::MAX),
            Spin::Always => u64::MAX,
        };
        let driver = Driver { stopping: Rc::default() };
        let bell = Bell::new(ring.duplicate().map_err(system)?, pool.bell().clone());
        let waking = Waking::new(Arc::new(bell), region.clone());
        let driven = Driven { tasks: tasks.clone(), timers: timers.clone(), waking: waking.clone(), spin_nanos };
        spawn_later(ring.clone().run_driver(driven, driver.stopping.clone()));
        tasks.spawn(pool.clone().deliver());
        tasks.spawn(grow(config.name.clone(), region.clone(), ring.clone(), pool.clone(), timers.clone()));
        Ok((RingEnv(Rc::new(Core { ring, region, disk, transport, tasks, timers, pool, waking, endings, random })), driver))
    }

    /// Ends everything that runs on the core, in the order that keeps memory valid. What is given back goes last.
    async fn stop(self, core: RingEnv) -> Option<RingEnv> {
        core.0.tasks.stop().await;
        core.0.endings.end();
        core.0.ring.cancel_endless();
        let start = core.now();
        let mut patient = true;
        while core.0.ring.in_use() > 0 && core.now() < start + STOP_WAIT {
            core.sleep(Duration::from_millis(1)).await;
            if patient && core.now() > start + STOP_PATIENCE {
                patient = false;
                core.0.ring.abort_sends();
            }
        }
        self.stopping.set(true);
        core.0.ring.until_driver_ended().await;
        let in_use = core.0.ring.in_use();
        if in_use > 0 {
            tracing::warn!(in_use, "the kernel still has operations of a stopped core; their memory is kept");
            std::mem::forget(core);
            return None;
        }
        Some(core)
    }
}

fn make_ring(config: &CoreConfig, region: &Region) -> Result<(Ring, bool), CoreError> {
    let rules = ZeroCopyRules {
        enabled: config.zero_copy,
        bytes_min: limits::ZERO_COPY_BYTES_MIN,
        bytes_per_connection_max: limits::ZERO_COPY_BYTES_PER_CONNECTION_MAX,
        region_divisor: limits::ZERO_COPY_REGION_DIVISOR,
    };
    let made = Ring::new(&RingConfig { entries: config.ring_entries, files: registered_files(config), rules });
    let ring = made.map_err(|error| super::probe::explain_no_ring(&error))?;
    let needed_bytes = u64::try_from(region.full_bytes()).unwrap_or(u64::MAX);
    // What can't be registered in all is not begun with.
    let allowed = if super::probe::may_lock(needed_bytes) { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ENOMEM)) };
    let Err(error) = allowed.and_then(|()| ring.register(region)) else {
        region.extend();
        return Ok((ring, true));
    };
    while region.next_entry().is_some() {
        region.extend();
    }
    let limit_bytes = super::probe::locked_memory_limit();
    if config.registration == Registration::Required {
        return Err(CoreError::LockedMemory { needed_bytes, limit_bytes });
    }
    tracing::warn!(
        name = config.name,
        needed_bytes,
        limit_bytes,
        %error,
        "the region is not registered: I/O costs more, sends are copied; raise LimitMEMLOCK or give CAP_IPC_LOCK"
    );
    Ok((ring, false))
}

/// Places for every file and connection of a core, as far as the process may have descriptors (the kernel's own bound).
fn registered_files(config: &CoreConfig) -> u32 {
    let wanted = config.descriptors_max + limits::CONNECTIONS_PER_CORE_MAX + LISTENERS_MAX;
    let allowed = super::probe::descriptors_limit();
    u32::try_from(wanted).unwrap_or(u32::MAX).min(u32::try_from(allowed).unwrap_or(u32::MAX))
}

fn seed() -> io::Result<u64> {
    let mut bytes = [0_u8; 8];
    io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

impl RingEnv {
    /// What this core's ring has done so far.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        Metrics::new(&self.0.ring.counts(), &self.0.disk.counts(), &self.0.region)
    }

    /// Whether the region is registered with the ring.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.0.ring.is_registered()
    }
}

impl Env for RingEnv {
    type Disk = RingDisk;
    type Transport = RingTransport;

    fn disk(&self) -> &RingDisk {
        &self.0.disk
    }

    fn transport(&self) -> &RingTransport {
        &self.0.transport
    }

    fn region(&self) -> &Region {
        &self.0.region
    }

    fn now(&self) -> Monotonic {
        Monotonic(now_nanos())
    }

    fn wall_clock(&self) -> Timestamp {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        Timestamp(now.tv_sec * 1000 + now.tv_nsec / 1_000_000)
    }

    fn random(&self) -> u64 {
        // SplitMix64: a counter through a mixing function.
        let counter = self.0.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.random.set(counter);
        let mixed = (counter ^ (counter >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.0.tasks.spawn(task);
    }

    async fn sleep(&self, delay: Duration) {
        self.0.timers.sleep(delay).await;
    }

    fn yield_now(&self) -> impl Future<Output = ()> {
        futures_lite::future::yield_now()
    }

    fn join<Q: Send + 'static, R: Send + 'static>(&self, seat: Seat<Q, R>) -> Mesh<Q, R> {
        let (hub, core) = (seat.hub().clone(), seat.core());
        self.0.endings.add(Closer { hub: hub.clone(), core });
        hub.install(core, self.0.waking.bell().clone());
        let carrier = RingCarrier { ring: self.0.ring.clone(), hub };
        let (mesh, pump) = seat.take(carrier, self.0.waking.arrivals().clone());
        self.0.tasks.spawn(pump);
        mesh
    }

    async fn offload<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        self.0.pool.run(work).await
    }
}
