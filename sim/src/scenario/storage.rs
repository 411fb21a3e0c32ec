//! One core's logs, driven directly: appends, group commits, reads, rolls, checkpoints, clean stops, crashes, disk faults.
//!
//! Each life of the process opens the directory, recovers its logs and works until it is crashed, perhaps while it still recovers. The
//! last life has no faults: it appends a little, reads everything and looks timestamps up.

mod driver;

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use protocol::ids::{BrokerEpoch, CoreId, DurabilityClass, HostId, PartitionIndex, TopicId, TopicPartition};
use runtime::local::{Notify, OnceSender, once};
use runtime::{Env, Region};
use storage::{ChunkCache, Directory, FlushPolicy, LogConfig, OpenRequest, StorageConfig};

use crate::checker::history::{Action, Fault};
use crate::disk::{Crash, DiskFaults};
use crate::env::SimEnv;
use crate::random::Stream;
use crate::recorder::Recorder;
use crate::scenario::{Ran, batches, disk_faults_of};

use driver::LogDriver;

/// What a seed decides once.
struct Plan {
    lives: u64,
    logs: Vec<(TopicPartition, LogConfig)>,
    storage: StorageConfig,
    shape: Shape,
    /// Records are deleted from the logs' starts.
    deletes: bool,
}

/// How batches look.
#[derive(Clone, Copy)]
struct Shape {
    /// Batches of one size, so that what lies behind a cut would fit behind another.
    one_size: bool,
    records: u64,
    value_bytes: u64,
    pause_us: u64,
}

/// The size of the values of one-record batches that fill whole blocks, so that what a cut leaves behind fits behind another batch.
fn block_filling_value(blocks: u64) -> u64 {
    let fills = |value_bytes: &u64| {
        let bytes = usize::try_from(*value_bytes).expect("small");
        batches::make(&[1], bytes, &[0]).len() as u64 == 4096 * blocks
    };
    (4096 * blocks - 200..4096 * blocks).find(fills).expect("a batch of any size can be made")
}

/// What all lives share.
struct Shared {
    recorder: Recorder,
    wrong: RefCell<Vec<String>>,
    plan: Plan,
    /// Where each log's steady consumer goes on.
    positions: Vec<Cell<i64>>,
    /// Acknowledgements in this life, and a signal for each.
    acks: Cell<u64>,
    acknowledged: Notify,
}

/// How one life is led.
#[derive(Clone, Copy)]
struct Life {
    epoch: i32,
    /// Errors of the disk are switched on: what fails is no finding.
    faulty: bool,
    /// The last one, which ends by itself.
    last: bool,
    clean_stop: bool,
    /// Crash soon after so many acknowledgements.
    acks_max: Option<u64>,
}

impl Plan {
    fn draw(stream: &Stream) -> Plan {
        let segment_bytes = [16 << 10, 64 << 10, 256 << 10, 1 << 20][stream.index(4)];
        let logs = (0..1 + stream.below(3)).map(|index| {
            let class = if stream.chance(1, 3) { DurabilityClass::Written } else { DurabilityClass::Device };
            let segment_ms = if stream.chance(1, 4) { 20 + stream.below(200) } else { LogConfig::default().segment_ms };
            let name = TopicPartition { topic: TopicId(7 + u128::from(index)), partition: PartitionIndex(0) };
            let index_interval_bytes = if stream.chance(1, 2) { 4096 } else { 512 };
            let retention_bytes = stream.chance(1, 4).then(|| segment_bytes * (1 + index));
            (name, LogConfig { class, segment_bytes, segment_ms, index_interval_bytes, retention_bytes, ..LogConfig::default() })
        });
        let logs = logs.collect();
        let storage = StorageConfig {
            flush_policy: if stream.chance(1, 2) { FlushPolicy::EachWrite } else { FlushPolicy::Grouped },
            streaming_bytes_per_second: if stream.chance(1, 3) { 1 << 20 } else { 96 << 20 },
            window_bytes_max: [0, 64 << 10, 4 << 20][stream.index(3)],
            allocation_step_bytes_max: [64 << 10, 1 << 20, 128 << 20][stream.index(3)],
            idle_tail_ms: [1, 20, 10_000][stream.index(3)],
            reserve_bytes: [0, 256 << 10][stream.index(2)],
        };
        let mut shape = Shape {
            one_size: stream.chance(1, 2),
            records: 1 + stream.below(8),
            value_bytes: [16, 100, 1000, 4000][stream.index(4)],
            pause_us: [50, 200, 1000, 4000][stream.index(4)],
        };
        if shape.one_size && stream.chance(1, 2) {
            (shape.records, shape.value_bytes) = (1, block_filling_value(1 + stream.below(2)));
        }
        Plan { lives: 1 + stream.below(6), logs, storage, shape, deletes: stream.chance(1, 4) }
    }
}

/// Runs the scenario on the first host.
pub async fn run(env: SimEnv) -> Ran {
    let plan = Plan::draw(env.workload());
    let positions = plan.logs.iter().map(|_| Cell::new(0)).collect();
    let shared = Rc::new(Shared {
        recorder: Recorder::default(),
        wrong: RefCell::default(),
        plan,
        positions,
        acks: Cell::new(0),
        acknowledged: Notify::new(),
    });
    let mut process = env.clone();
    let mut crashes = 0;
    for number in 0..=shared.plan.lives {
        let last = number == shared.plan.lives;
        let stream = env.workload();
        let faulty = !last && stream.chance(1, 4);
        let life = Life {
            epoch: i32::try_from(number).expect("few lives") + 1,
            faulty,
            last,
            clean_stop: stream.chance(1, 5),
            acks_max: stream.chance(1, 2).then(|| 1 + stream.below(3)),
        };
        shared.acks.set(0);
        process.set_disk_faults(if faulty {
            disk_faults_of(stream, (1 << 30) - stream.below(1 << 20))
        } else {
            DiskFaults::default()
        });
        if last {
            shared.recorder.note(Action::Heal);
        }
        let (ended, end) = once();
        process.spawn(live(process.clone(), shared.clone(), life, ended));
        if last {
            end.await;
            break;
        }
        let limit = Duration::from_micros(500 + stream.below(200_000 >> stream.below(6)));
        let work = async {
            end.await;
        };
        let over = futures_lite::future::or(env.sleep(limit), shared.acks_reached(&env, life.acks_max));
        futures_lite::future::or(work, over).await;
        let how = if stream.chance(2, 3) { Crash::PowerCut } else { Crash::Kill };
        shared.recorder.down(if how == Crash::PowerCut { Fault::PowerCutAll } else { Fault::KillAll });
        process.crash(how);
        process = process.restart();
        crashes += 1;
    }
    let wrong = shared.wrong.take();
    Ran { history: shared.recorder.take(), crashes, wrong }
}

impl Shared {
    async fn acks_reached(&self, env: &SimEnv, acks_max: Option<u64>) {
        loop {
            let seen = self.acknowledged.count();
            if acks_max.is_some_and(|most| self.acks.get() >= most) {
                return env.sleep(Duration::from_micros(env.workload().below(300))).await;
            }
            self.acknowledged.changed(seen).await;
        }
    }

    fn complain(&self, life: Life, what: impl FnOnce() -> String) {
        if !life.faulty {
            self.wrong.borrow_mut().push(what());
        }
    }
}

/// One life, from opening the directory on. Signals its end.
async fn live(env: SimEnv, shared: Rc<Shared>, life: Life, ended: OnceSender<()>) {
    if let Err(error) = try_live(&env, &shared, life).await {
        shared.complain(life, || format!("life {}: {error}", life.epoch));
        env.world().note(|| format!("life {} ends: {error}", life.epoch));
    }
    ended.send(());
}

async fn try_live(env: &SimEnv, shared: &Rc<Shared>, life: Life) -> Result<(), String> {
    let region: Region = env.region().clone();
    let cache = ChunkCache::new(region);
    let request = OpenRequest {
        cluster: None,
        host: HostId(1),
        core: CoreId(0),
        holder: format!("life {}", life.epoch),
        storage: shared.plan.storage,
        cache: cache.clone(),
    };
    let directory = Directory::open(env, PathBuf::from("/data"), request).await.map_err(|error| error.to_string())?;
    let mut drivers = Vec::new();
    for (index, (name, config)) in shared.plan.logs.iter().enumerate() {
        let exists = directory.has_log(*name).await.map_err(|error| error.to_string())?;
        let log = if exists {
            {
                let recovered =
                    directory.recover_log(*name, *config, &mut (), |_| {}).await.map_err(|error| error.to_string())?;
                env.world().note(|| format!("{name}: {:?}, ends at {}", recovered.cut, recovered.log.log_end()));
                recovered.log
            }
        } else {
            directory.create_log(*name, *config).await.map_err(|error| error.to_string())?
        };
        let driver = LogDriver::new(env.clone(), shared.clone(), life, index, log);
        drivers.push(driver);
    }
    let workload = env.workload();
    for driver in &drivers {
        driver.start();
    }
    let mut left = if life.last { 3 } else { u64::MAX };
    let mut rounds = 0;
    while left > 0 {
        env.sleep(Duration::from_micros(2_000 + workload.below(20_000))).await;
        left -= 1;
        // The last life ends only once every log takes records again.
        if left == 0 && life.last && drivers.iter().any(|driver| driver.acknowledged() == 0) && rounds < 500 {
            left = 1;
        }
        rounds += 1;
        if workload.chance(1, 3) {
            cache.evict(usize::MAX);
        }
        if workload.chance(1, 3) {
            let deletes = shared.plan.deletes && workload.chance(1, 2);
            drivers.iter().for_each(|driver| driver.shorten(deletes));
        }
        if workload.chance(1, 3) {
            checkpoint(&directory, &drivers, life).await?;
        }
        if life.clean_stop && !life.last && workload.chance(1, 4) {
            left = 0;
        }
        if let Some(failure) = drivers.iter().find_map(LogDriver::failure) {
            return Err(failure);
        }
    }
    for driver in &drivers {
        driver.stop().await?;
    }
    if life.last {
        // What was to go has gone when everything is read.
        checkpoint(&directory, &drivers, life).await?;
        for driver in &drivers {
            cache.evict(usize::MAX);
            driver.catch_up().await?;
        }
    }
    checkpoint(&directory, &drivers, life).await?;
    directory.stop_cleanly(BrokerEpoch(i64::from(life.epoch))).await.map_err(|error| error.to_string())
}

async fn checkpoint(directory: &Directory<SimEnv>, drivers: &[LogDriver], life: Life) -> Result<(), String> {
    let entries = drivers.iter().map(LogDriver::checkpoint_entry).collect();
    let starts: Vec<_> = drivers.iter().map(LogDriver::planned_start).collect();
    let written = directory.write_checkpoint(BrokerEpoch(i64::from(life.epoch)), entries).await;
    written.map_err(|error| error.to_string())?;
    for (driver, start) in drivers.iter().zip(starts) {
        driver.start_is_durable(start);
    }
    Ok(())
}
