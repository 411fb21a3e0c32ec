//! The simulator's environment of one process on one host, and the runs around it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use protocol::ids::Timestamp;
use runtime::local::once;
use runtime::{Canary, Env, Mesh, Monotonic, Region, Seat};

use crate::cores::Cores;
use crate::disk::{Crash, DiskCounters, DiskFaults, DiskState, Sectors, SimDisk};
use crate::network::{Network, NetworkFaults, SimConnection, SimTransport};
use crate::random::Stream;
use crate::world::{CONTROLLER, Owner, RunError, RunLimits, World};

/// What a run is made of.
#[derive(Clone, Debug)]
pub struct Options {
    /// Everything follows from it.
    pub seed: u64,
    /// What survives of a write that is cut.
    pub sectors: Sectors,
    /// Size of each host's disk, in bytes.
    pub disk_bytes: u64,
    /// Size of each process's region, in bytes.
    pub region_bytes: usize,
    /// Faults of the program to switch on.
    pub canaries: Vec<Canary>,
    /// Print the trace to standard error.
    pub print_trace: bool,
    /// Bounds of the run.
    pub limits: RunLimits,
}

impl Options {
    /// The usual options under `seed`: 512-byte sectors, 1 GiB of disk, a 64 MiB region, one virtual day.
    #[must_use]
    pub fn new(seed: u64) -> Options {
        Options {
            seed,
            sectors: Sectors::Atomic512,
            disk_bytes: 1 << 30,
            region_bytes: 64 << 20,
            canaries: Vec::new(),
            print_trace: false,
            limits: RunLimits { steps_max: 200_000_000, time_ns_max: 86_400_000_000_000 },
        }
    }
}

/// How a run went.
#[derive(Debug)]
pub struct Finished<T> {
    /// The future's value.
    pub value: T,
    /// Hash of the trace: the same seed gives the same.
    pub trace_hash: u64,
    /// Virtual nanoseconds that passed.
    pub time_ns: u64,
    /// Steps run.
    pub steps: u64,
}

/// One core of one process on one host of the simulated world; most processes have one. A handle.
#[derive(Clone)]
pub struct SimEnv(Rc<Process>);

struct Host {
    address: SocketAddr,
    disk: Rc<DiskState>,
}

struct Process {
    world: Rc<World>,
    network: Rc<Network>,
    options: Rc<Options>,
    hosts: Rc<Cell<u8>>,
    host: Rc<Host>,
    owner: Owner,
    disk: SimDisk,
    transport: SimTransport,
    region: Region,
    cores: Rc<Cores>,
    offloads: Offloads,
    wall_offset_ms: Rc<Cell<i64>>,
}

/// Jobs off the core.
#[derive(Default)]
struct Offloads {
    running: Cell<usize>,
    most: Cell<usize>,
    slowness: Cell<u64>,
}

const WALL_START_MS: i64 = 1_750_000_000_000;

/// Runs `main` on the first host of a new world under `seed`, to its end.
///
/// # Panics
/// With the seed, if `main` panics, never ends, or the region can't be mapped.
pub fn run<T: 'static, F: Future<Output = T> + 'static>(seed: u64, main: impl FnOnce(SimEnv) -> F) -> T {
    run_with(Options::new(seed), main).value
}

/// The same with options, and what is known about the run.
///
/// # Panics
/// With the seed, if `main` panics, never ends, or the region can't be mapped.
pub fn run_with<T: 'static, F: Future<Output = T> + 'static>(options: Options, main: impl FnOnce(SimEnv) -> F) -> Finished<T> {
    let seed = options.seed;
    match try_run(options, main) {
        Ok(finished) => finished,
        Err(error) => panic!("seed {seed}: {error}"),
    }
}

/// Says the seed when a run panics.
struct SeedOnPanic(u64);

impl Drop for SeedOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("simulator: seed {} failed", self.0);
        }
    }
}

/// Clears the world however the run ends: tasks hold handles of it.
struct ClearAtEnd(Rc<World>);

impl Drop for ClearAtEnd {
    fn drop(&mut self) {
        self.0.clear();
    }
}

/// The same, but a future that never ends is an error.
///
/// # Errors
/// If nothing can go on, or a limit is passed.
///
/// # Panics
/// If `main` panics, or the region can't be mapped.
pub fn try_run<T: 'static, F: Future<Output = T> + 'static>(
    options: Options,
    main: impl FnOnce(SimEnv) -> F,
) -> Result<Finished<T>, RunError> {
    let _seed = SeedOnPanic(options.seed);
    let world = World::new(options.seed, options.print_trace);
    let _clear = ClearAtEnd(world.clone());
    let limits = options.limits;
    let start = world.now();
    let env = SimEnv::first(&world, Rc::new(options));
    let value: Rc<RefCell<Option<T>>> = Rc::default();
    let to = value.clone();
    let future = main(env);
    world.spawn(CONTROLLER, async move {
        let value = future.await;
        *to.borrow_mut() = Some(value);
    });
    let ended = value.clone();
    world.run_until(limits, move || ended.borrow().is_some())?;
    let value = value.borrow_mut().take().expect("the run ended with a value");
    Ok(Finished { value, trace_hash: world.trace_hash(), time_ns: world.now() - start, steps: world.steps() })
}

fn new_region(options: &Options) -> Region {
    Region::map(options.region_bytes).expect("the simulated region can be mapped")
}

impl SimEnv {
    fn first(world: &Rc<World>, options: Rc<Options>) -> SimEnv {
        let hosts = Rc::new(Cell::new(0));
        SimEnv::start(world, &Rc::default(), &options, &hosts, SimEnv::new_host(&options, &hosts), Rc::default())
    }

    fn new_host(options: &Options, hosts: &Cell<u8>) -> Rc<Host> {
        hosts.set(hosts.get() + 1);
        let disk = Rc::new(DiskState::new(options.sectors, options.disk_bytes));
        Rc::new(Host { address: SocketAddr::from(([10, 0, 0, hosts.get()], 0)), disk })
    }

    fn start(
        world: &Rc<World>,
        network: &Rc<Network>,
        options: &Rc<Options>,
        hosts: &Rc<Cell<u8>>,
        host: Rc<Host>,
        wall_offset_ms: Rc<Cell<i64>>,
    ) -> SimEnv {
        let owner = world.number();
        let releases_early = options.canaries.contains(&Canary::ReuseOfBufferInFlight);
        let disk =
            SimDisk { state: host.disk.clone(), world: world.clone(), incarnation: host.disk.incarnation.get(), releases_early };
        let transport = SimTransport { world: world.clone(), network: network.clone(), owner, releases_early };
        SimEnv(Rc::new(Process {
            world: world.clone(),
            network: network.clone(),
            options: options.clone(),
            hosts: hosts.clone(),
            host,
            owner,
            disk,
            transport,
            region: new_region(options),
            cores: Cores::new(world),
            offloads: Offloads::default(),
            wall_offset_ms,
        }))
    }

    /// The cores of this process, this one first; the others are new. They have one disk and one address, and end together, but each has
    /// a region and threads of its own. To be called once.
    #[must_use]
    pub fn with_cores(&self, cores: usize) -> Vec<SimEnv> {
        let p = &self.0;
        let other = |_| {
            SimEnv(Rc::new(Process {
                world: p.world.clone(),
                network: p.network.clone(),
                options: p.options.clone(),
                hosts: p.hosts.clone(),
                host: p.host.clone(),
                owner: p.owner,
                disk: p.disk.clone(),
                transport: p.transport.clone(),
                region: new_region(&p.options),
                cores: p.cores.clone(),
                offloads: Offloads::default(),
                wall_offset_ms: p.wall_offset_ms.clone(),
            }))
        };
        let all: Vec<SimEnv> = std::iter::once(self.clone()).chain((1..cores).map(other)).collect();
        if cores > 1 {
            for core in &all {
                p.world.collect_each_step(p.owner, core.region().clone());
            }
        }
        all
    }

    /// A process on another, new host, with an empty disk.
    #[must_use]
    pub fn other_host(&self) -> SimEnv {
        let p = &self.0;
        let host = SimEnv::new_host(&p.options, &p.hosts);
        SimEnv::start(&p.world, &p.network, &p.options, &p.hosts, host, Rc::default())
    }

    /// Ends this process: its tasks are gone, its streams are reset, its disk keeps what `how` leaves.
    pub fn crash(&self, how: Crash) {
        self.0.world.note(|| format!("crash {how:?}"));
        self.0.host.disk.crash(how, &self.0.world);
        self.0.network.end_owner(self.0.owner);
        self.0.world.end_owner(self.0.owner);
    }

    /// A new process on this host, after a crash or beside an ended process: same disk, new memory.
    #[must_use]
    pub fn restart(&self) -> SimEnv {
        let p = &self.0;
        SimEnv::start(&p.world, &p.network, &p.options, &p.hosts, p.host.clone(), p.wall_offset_ms.clone())
    }

    /// Connects to a listener of any host, as a client on this one.
    ///
    /// # Errors
    /// `ConnectionRefused` if nobody listens there.
    pub async fn connect(&self, address: SocketAddr) -> io::Result<SimConnection> {
        self.0.transport.connect(address).await
    }

    /// This host's address, with port 0.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.0.host.address
    }

    /// Starts a task that belongs to no host: a client, or the test itself. No crash ends it.
    pub fn spawn_client(&self, task: impl Future<Output = ()> + 'static) {
        self.0.world.spawn(CONTROLLER, task);
    }

    /// The disk's faults from now on.
    pub fn set_disk_faults(&self, faults: DiskFaults) {
        self.0.host.disk.faults.set(faults);
    }

    /// The network's faults from now on.
    pub fn set_network_faults(&self, faults: NetworkFaults) {
        self.0.network.faults.set(faults);
    }

    /// What the disk has been asked for.
    #[must_use]
    pub fn disk_counters(&self) -> DiskCounters {
        self.0.host.disk.counters.get()
    }

    /// Most jobs of this process that were off the core at once.
    #[must_use]
    pub fn offloaded_at_most(&self) -> usize {
        self.0.offloads.most.get()
    }

    /// Jobs off the core take this many times as long from now on.
    pub fn slow_offloads(&self, times: u64) {
        self.0.offloads.slowness.set(times);
    }

    /// Moves the wall clock of this host.
    pub fn shift_wall_clock(&self, by_ms: i64) {
        self.0.wall_offset_ms.set(self.0.wall_offset_ms.get() + by_ms);
    }

    /// The stream that tests draw their work from.
    #[must_use]
    pub fn workload(&self) -> &Stream {
        &self.0.world.streams.workload
    }

    /// The world: virtual time, trace.
    #[must_use]
    pub fn world(&self) -> &Rc<World> {
        &self.0.world
    }
}

impl Env for SimEnv {
    type Disk = SimDisk;
    type Transport = SimTransport;

    fn disk(&self) -> &SimDisk {
        &self.0.disk
    }

    fn transport(&self) -> &SimTransport {
        &self.0.transport
    }

    fn region(&self) -> &Region {
        &self.0.region
    }

    fn now(&self) -> Monotonic {
        Monotonic(self.0.world.now())
    }

    fn wall_clock(&self) -> Timestamp {
        let passed = i64::try_from(self.0.world.now() / 1_000_000).expect("virtual time is short");
        Timestamp(WALL_START_MS + passed + self.0.wall_offset_ms.get())
    }

    fn random(&self) -> u64 {
        self.0.world.streams.environment.next()
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        // A process that was crashed starts nothing more.
        if self.0.disk.incarnation == self.0.host.disk.incarnation.get() {
            self.0.world.spawn(self.0.owner, task);
        }
    }

    async fn sleep(&self, delay: Duration) {
        let nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        self.0.world.sleep(nanos).await;
    }

    async fn yield_now(&self) {
        futures_lite::future::yield_now().await;
    }

    async fn offload<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let p = self.0.clone();
        let delay = p.world.streams.environment.latency(100_000) * p.offloads.slowness.get().max(1);
        p.offloads.running.set(p.offloads.running.get() + 1);
        p.offloads.most.set(p.offloads.most.get().max(p.offloads.running.get()));
        let (sender, receiver) = once();
        self.0.world.after(delay, move || {
            p.offloads.running.set(p.offloads.running.get() - 1);
            if p.disk.incarnation == p.host.disk.incarnation.get() {
                sender.send(work());
            }
        });
        match receiver.await {
            Some(value) => value,
            // The process has crashed, and nothing waits any more.
            None => std::future::pending().await,
        }
    }

    fn join<Q: Send + 'static, R: Send + 'static>(&self, seat: Seat<Q, R>) -> Mesh<Q, R> {
        let (carrier, arrivals) = self.0.cores.join(seat.core());
        let (mesh, pump) = seat.take(carrier, arrivals);
        self.spawn(pump);
        mesh
    }

    fn canary(&self, canary: Canary) -> bool {
        self.0.options.canaries.contains(&canary)
    }
}

#[cfg(test)]
mod tests;
