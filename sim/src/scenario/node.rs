//! A whole host in the simulator: handlers, shard, storage and net as they are, with native clients over the simulated network.
//!
//! Each life starts a host on the same disk and ends in a crash or a clean stop. Clients go on across lives: they reconnect,
//! produce with every acks level, fetch, and ask for offsets. The last life has no faults; when every partition has taken a record again,
//! everything is read and checked.

mod consumer;
mod idempotent;
mod producer;
mod session;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use broker::member;
use broker::node::{Node, NodeConfig};
use net::ConnectionLimits;
use protocol::ids::HostId;
use runtime::Env;
use runtime::local::{Notify, OnceSender, once};
use runtime::mesh::seats;

use crate::checker::history::{Action, Class, Fault};
use crate::disk::{Crash, DiskFaults};
use crate::env::SimEnv;
use crate::network::NetworkFaults;
use crate::random::Stream;
use crate::recorder::Recorder;
use crate::scenario::{Ran, disk_faults_of};

const PORT: u16 = 9090;
const CORE_PORT: u16 = 9100;
/// After the heal, progress must be seen within this.
const HEALED_WITHIN: Duration = Duration::from_secs(60);

/// From so many bytes of values on they are small: without faults a load must fit the disk, since nothing is ever deleted.
const LOAD_BYTES_MAX: u64 = 256 << 20;
/// The values then, at most.
const SMALL_VALUE_BYTES: u64 = 20;

/// A topic of the scenario.
struct Topic {
    name: String,
    partitions: u32,
    class: Class,
    segment_ms: Option<u64>,
    /// A setting by which old segments leave.
    retention: Option<(&'static str, u64)>,
}

struct Plan {
    lives: u64,
    topics: Vec<Topic>,
    producers: u64,
    consumers: u64,
    /// Bytes of a record's value, at most.
    value_bytes: u64,
    pause_us: u64,
    in_flight_max: usize,
}

/// What clients and the controller share.
struct Shared {
    env: SimEnv,
    address: SocketAddr,
    recorder: Recorder,
    plan: Plan,
    wrong: RefCell<Vec<String>>,
    /// Crashes and stops so far.
    lives_ended: Cell<u64>,
    healed: Cell<bool>,
    stopping: Cell<bool>,
    /// Cores of a life, at most.
    cores_max: u64,
    clients: Cell<u64>,
    acknowledged: Cell<u64>,
    changed: Notify,
    numbers: Cell<u64>,
    /// Of values, in all batches so far.
    load_bytes: Cell<u64>,
}

#[derive(Clone, Copy)]
struct Life {
    number: u64,
    faulty: bool,
    cores: usize,
}

impl Plan {
    fn draw(stream: &Stream) -> Plan {
        let topics = (0..1 + stream.below(2)).map(|index| Topic {
            name: format!("topic-{index}"),
            partitions: 1 + u32::try_from(stream.below(3)).expect("small"),
            class: if stream.chance(1, 3) { Class::Written } else { Class::Device },
            segment_ms: stream.chance(1, 2).then(|| 100 + stream.below(2_000)),
            retention: match stream.below(4) {
                0 => Some(("retention.bytes", stream.below(3 << 20))),
                1 => Some(("retention.ms", stream.below(3_000))),
                _ => None,
            },
        });
        Plan {
            topics: topics.collect(),
            lives: 1 + stream.below(4),
            producers: 1 + stream.below(3),
            consumers: 1 + stream.below(2),
            value_bytes: [20, 200, 2_000, 20_000][stream.index(4)],
            pause_us: [200, 2_000, 10_000][stream.index(3)],
            in_flight_max: 1 + stream.index(8),
        }
    }
}

impl Shared {
    fn complain(&self, what: String) {
        self.env.world().note(|| what.clone());
        self.wrong.borrow_mut().push(what);
    }

    /// A number that nobody else has: consumers, producers.
    fn number(&self) -> u64 {
        self.numbers.set(self.numbers.get() + 1);
        self.numbers.get()
    }

    /// Bytes of each of so many values of a batch.
    fn draw_value_bytes(&self, values: usize) -> usize {
        let fits = self.load_bytes.get() < LOAD_BYTES_MAX;
        let most = if fits { self.plan.value_bytes } else { SMALL_VALUE_BYTES };
        let bytes = 8 + self.stream().below(most);
        self.load_bytes.set(self.load_bytes.get() + bytes * u64::try_from(values).expect("few"));
        usize::try_from(bytes).expect("small")
    }

    /// Where all cores listen, or one of them, which may not be there.
    fn any_address(&self) -> SocketAddr {
        let mut address = self.address;
        if self.cores_max > 1 && self.stream().chance(1, 2) {
            address.set_port(CORE_PORT + u16::try_from(self.stream().below(self.cores_max)).expect("few"));
        }
        address
    }

    /// Cores of the next life.
    fn draw_cores(&self) -> usize {
        if self.cores_max == 1 { 1 } else { 1 + usize::try_from(self.stream().below(self.cores_max)).expect("few") }
    }

    fn stream(&self) -> &Stream {
        self.env.workload()
    }

    async fn pause(&self, most_us: u64) {
        self.env.sleep(Duration::from_micros(1 + self.stream().below(most_us))).await;
    }
}

fn config(address: SocketAddr, number: u64) -> NodeConfig {
    NodeConfig {
        data: vec!["/data/one".into()],
        // With the default, full disks would not take an append further.
        reserve_bytes: [Some(0), Some(1 << 20), None][usize::try_from(number % 3).expect("a small number")],
        data_must_exist: false,
        listen: address,
        core_port: CORE_PORT,
        host: HostId(1),
        host_name: "one".into(),
        connections: ConnectionLimits::default(),
        partitions_max: 100,
        holder: format!("life {number}"),
    }
}

/// A life of the host, as its own task: starts, serves until it is told to stop, says how it went.
async fn host(env: SimEnv, address: SocketAddr, life: Life, stop: Notify, ended: OnceSender<Result<(), String>>) {
    let processes = env.with_cores(life.cores);
    let mut members = Vec::new();
    let mut joined = processes.iter().zip(seats(life.cores)).map(|(process, seat)| (process.clone(), process.join(seat)));
    let (first, mesh) = joined.next().expect("a host has a core");
    for (process, mesh) in joined {
        let (sender, receiver) = once();
        members.push(receiver);
        process.clone().spawn(async move {
            member::run(process, mesh).await;
            sender.send(());
        });
    }
    let node = match Node::start_with(first, mesh, config(address, life.number)).await {
        Ok(node) => node,
        Err(error) => {
            ended.send(Err(format!("life {}: the host doesn't start: {error}", life.number)));
            return;
        }
    };
    env.world().note(|| format!("life {} serves", life.number));
    let (out_of_service, _) = node.partitions();
    if stop.count() == 0 {
        stop.changed(0).await;
    }
    let stopped = node.stop().await;
    for member in members {
        member.await;
    }
    ended.send(if stopped.unclean.is_empty() && out_of_service == 0 {
        Ok(())
    } else {
        Err(format!("life {}: {out_of_service} partitions out of service, stop: {:?}", life.number, stopped.unclean))
    });
}

/// Runs the scenario on the first host, with so many cores at most.
pub async fn run(env: SimEnv, cores_max: u64) -> Ran {
    let mut address = env.address();
    address.set_port(PORT);
    let shared = Rc::new(Shared {
        plan: Plan::draw(env.workload()),
        address,
        recorder: Recorder::default(),
        wrong: RefCell::default(),
        lives_ended: Cell::new(0),
        healed: Cell::new(false),
        stopping: Cell::new(false),
        cores_max,
        clients: Cell::new(0),
        acknowledged: Cell::new(0),
        changed: Notify::new(),
        numbers: Cell::new(1_000),
        load_bytes: Cell::new(0),
        env: env.clone(),
    });
    for _ in 0..shared.plan.producers {
        env.spawn_client(producer::run(shared.clone()));
    }
    env.spawn_client(idempotent::run(shared.clone()));
    for _ in 0..shared.plan.consumers {
        env.spawn_client(consumer::run(shared.clone()));
    }
    let mut process = env.clone();
    for number in 1..=shared.plan.lives {
        let faulty = env.workload().chance(1, 4);
        let cores = shared.draw_cores();
        process = lead_life(&shared, process, Life { number, faulty, cores }).await;
    }
    last_life(&shared, process).await;
    let wrong = shared.wrong.take();
    Ran { history: shared.recorder.take(), crashes: shared.plan.lives, wrong }
}

/// One life that ends in a crash, or a clean stop and then a crash of the power; the next process.
async fn lead_life(shared: &Rc<Shared>, process: SimEnv, life: Life) -> SimEnv {
    let stream = shared.stream();
    if life.faulty {
        process.set_disk_faults(disk_faults_of(stream, (1 << 30) - stream.below(8 << 20)));
        process.set_network_faults(NetworkFaults { resets_ppm: stream.below(5_000), slowness: stream.below(20) });
    }
    let stop = Notify::new();
    let (ended, end) = once();
    process.spawn(host(process.clone(), shared.address, life, stop.clone(), ended));
    let limit = Duration::from_micros(1_000 + stream.below(3_000_000 >> stream.below(8)));
    let acknowledged = shared.acknowledged.get();
    let soon = stream.chance(1, 2).then(|| acknowledged + 1 + stream.below(4));
    let after = stream.below(2_000);
    let crash_due = async {
        let timer = shared.env.sleep(limit);
        let reached = async {
            loop {
                let seen = shared.changed.count();
                if soon.is_some_and(|count| shared.acknowledged.get() >= count) {
                    shared.env.sleep(Duration::from_micros(after)).await;
                    return;
                }
                shared.changed.changed(seen).await;
            }
        };
        futures_lite::future::or(timer, reached).await;
        None
    };
    let outcome = futures_lite::future::or(crash_due, end).await;
    if let Some(Err(error)) = outcome
        && !life.faulty
    {
        shared.complain(error);
    }
    if !life.faulty && stream.chance(1, 5) {
        stop.notify();
        // The stop may be cut short too.
        shared.env.sleep(Duration::from_micros(stream.below(1_000_000))).await;
    }
    let how = if stream.chance(2, 3) { Crash::PowerCut } else { Crash::Kill };
    shared.recorder.down(if how == Crash::PowerCut { Fault::PowerCutAll } else { Fault::KillAll });
    process.crash(how);
    process.set_disk_faults(DiskFaults::default());
    process.set_network_faults(NetworkFaults::default());
    shared.lives_ended.set(shared.lives_ended.get() + 1);
    process.restart()
}

/// The life without faults: all must work again, and everything must be there.
async fn last_life(shared: &Rc<Shared>, process: SimEnv) {
    let life = Life { number: shared.plan.lives + 1, faulty: false, cores: shared.draw_cores() };
    let stop = Notify::new();
    let (ended, mut end) = once();
    process.spawn(host(process.clone(), shared.address, life, stop.clone(), ended));
    shared.healed.set(true);
    shared.recorder.note(Action::Heal);
    let partitions = shared.plan.topics.iter().map(|topic| topic.partitions as usize).sum::<usize>();
    let healed = shared.acknowledged.get();
    let enough = healed + 5 * partitions as u64;
    let begun = shared.env.now();
    loop {
        // What was sent into a connection of the life before counts as tried, and is answered by nobody.
        let (taking, failing) = shared.recorder.since_heal();
        let acknowledged = shared.acknowledged.get();
        if acknowledged >= enough && taking == partitions && failing.is_empty() {
            break;
        }
        if let Some(Err(error)) = end.try_take() {
            shared.complain(error);
            return;
        }
        if shared.env.now().since(begun) > HEALED_WITHIN {
            let acknowledged = acknowledged - healed;
            shared.complain(format!(
                "in the minute after the heal {acknowledged} batches are acknowledged, {taking} of {partitions} partitions take records, never \
                 done: {failing:?}"
            ));
            return;
        }
        shared.env.sleep(Duration::from_millis(20)).await;
    }
    shared.stopping.set(true);
    shared.changed.notify();
    while shared.clients.get() > 0 {
        if shared.env.now().since(begun) > 3 * HEALED_WITHIN {
            shared.complain(format!("{} clients never end", shared.clients.get()));
            return;
        }
        shared.env.sleep(Duration::from_millis(20)).await;
    }
    consumer::catch_up(shared).await;
    stop.notify();
    if let Some(Err(error)) = end.await {
        shared.complain(error);
    }
}
