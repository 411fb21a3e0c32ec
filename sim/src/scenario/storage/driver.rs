//! Drives one log as a shard would: appends, writes, maintenance and reads as tasks of the process.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use protocol::batch::BatchView;
use protocol::ids::{DurabilityClass, LeaderEpoch, Offset, Timestamp};
use runtime::Env;
use storage::{CheckpointEntry, Log, LookupStep, ReadRequest, ReadStep, Stamp};

use super::{Life, Shared};
use crate::checker::history::{Acks, Action, Class, Outcome};
use crate::env::SimEnv;
use crate::recorder::Begun;
use crate::scenario::batches;

/// A log and what waits for it. A handle.
#[derive(Clone)]
pub(super) struct LogDriver(Rc<State>);

struct State {
    env: SimEnv,
    shared: Rc<Shared>,
    life: Life,
    index: usize,
    partition: String,
    class: Class,
    log: RefCell<Log<SimEnv>>,
    /// Appended and not acknowledged: the offset of the first record, and the sends.
    pending: RefCell<VecDeque<(Offset, Vec<Begun>)>>,
    stopping: Cell<bool>,
    busy: Cell<u32>,
    acks: Cell<u64>,
}

impl LogDriver {
    pub fn new(env: SimEnv, shared: Rc<Shared>, life: Life, index: usize, log: Log<SimEnv>) -> LogDriver {
        let class = match shared.plan.logs[index].1.class {
            DurabilityClass::Device => Class::Device,
            DurabilityClass::Written => Class::Written,
        };
        LogDriver(Rc::new(State {
            env,
            shared,
            life,
            index,
            partition: format!("log/{index}"),
            class,
            log: RefCell::new(log),
            pending: RefCell::default(),
            stopping: Cell::new(false),
            busy: Cell::new(0),
            acks: Cell::new(0),
        }))
    }

    /// Batches acknowledged in this life.
    pub fn acknowledged(&self) -> u64 {
        self.0.acks.get()
    }

    /// What stopped the log.
    pub fn failure(&self) -> Option<String> {
        self.0.log.borrow().failure().map(ToString::to_string)
    }

    pub fn checkpoint_entry(&self) -> CheckpointEntry {
        self.0.log.borrow().checkpoint_entry()
    }

    /// Has records leave the log's start, as its retention says or as somebody deletes them.
    pub fn shorten(&self, deletes: bool) {
        let bound = Offset(self.bound());
        let mut log = self.0.log.borrow_mut();
        if let Some(start) = log.retention_start(self.0.env.wall_clock(), bound) {
            log.plan_start(start);
        }
        let range = u64::try_from(bound.0 - log.log_start().0).expect("a log ends behind its start");
        if deletes && range > 0 {
            let further = self.0.env.workload().below(range + 1) >> self.0.env.workload().below(4);
            let start = log.log_start().plus(u32::try_from(further).expect("few records"));
            log.plan_start(start);
        }
    }

    /// Where the checkpoint that is made now says that the log begins.
    pub fn planned_start(&self) -> Offset {
        self.0.log.borrow().planned_start()
    }

    /// That checkpoint is on stable storage: what lies below goes.
    pub fn start_is_durable(&self, start: Offset) {
        self.0.log.borrow_mut().start_is_durable(start);
        self.note_watermarks();
        let driver = self.clone();
        self.0.env.spawn(async move {
            loop {
                let plan = driver.0.log.borrow_mut().begin_removal();
                let Some(plan) = plan else { return };
                let outcome = plan.execute().await;
                let is_done = outcome.is_done();
                if driver.0.log.borrow_mut().finish_removal(outcome).is_err() || !is_done {
                    return;
                }
            }
        });
    }

    /// Starts the tasks.
    pub fn start(&self) {
        let env = &self.0.env;
        self.note_watermarks();
        env.spawn(self.clone().append_all());
        env.spawn(self.clone().maintain());
        env.spawn(self.clone().read_here_and_there());
        env.spawn(self.clone().consume());
    }

    /// Exclusive bound of what consumers see: on one host the in-sync replicas are this one.
    fn bound(&self) -> i64 {
        let log = self.0.log.borrow();
        match self.0.class {
            Class::Device => log.flushed().0,
            Class::Written => log.written().0,
        }
    }

    fn note_watermarks(&self) {
        let log_start = self.0.log.borrow().log_start().0;
        let partition = self.0.partition.clone();
        self.0.shared.recorder.note(Action::Watermarks { partition, log_start, high_watermark: self.bound() });
    }

    async fn append_all(self) {
        let state = &*self.0;
        let shape = state.shared.plan.shape;
        while !state.stopping.get() {
            let stream = state.env.workload();
            let burst = 1 + if stream.chance(1, 3) { stream.below(6) } else { 0 };
            for _ in 0..burst {
                let (records, bytes) = if shape.one_size {
                    (shape.records, shape.value_bytes)
                } else {
                    (1 + stream.below(shape.records), 8 + stream.below(shape.value_bytes << stream.below(4)))
                };
                self.append(records, bytes);
            }
            self.pump();
            state.env.sleep(Duration::from_micros(1 + stream.below(2 * shape.pause_us))).await;
        }
    }

    fn append(&self, records: u64, value_bytes: u64) {
        let state = &*self.0;
        let recorder = &state.shared.recorder;
        let wall = state.env.wall_clock();
        let stream = state.env.workload();
        let values: Vec<u64> = (0..records).map(|_| recorder.value()).collect();
        let times: Vec<i64> = values
            .iter()
            .map(|_| if stream.chance(1, 10) { wall.0 - i64::try_from(stream.below(500)).expect("small") } else { wall.0 })
            .collect();
        let bytes = batches::make(&values, usize::try_from(value_bytes).expect("small"), &times);
        let (batch, _) = BatchView::split(&bytes).expect("a batch of ours");
        let with = Stamp { leader_epoch: LeaderEpoch(state.life.epoch), wall, now: state.env.now(), log_append_time: false };
        let begun: Vec<Begun> = values
            .iter()
            .map(|&value| {
                let (partition, class, producer) = (state.partition.clone(), state.class, Some(state.index as u64));
                recorder.begin(Action::Send { partition, value, acks: Acks::All, class, producer, offset: None })
            })
            .collect();
        match state.log.borrow_mut().begin_append(&batch, with) {
            Ok(appended) => state.pending.borrow_mut().push_back((appended.base, begun)),
            Err(_) => {
                for send in begun {
                    recorder.end(send, Outcome::Failed, |_| {});
                }
            }
        }
    }

    /// Starts all writes that may go out.
    fn pump(&self) {
        loop {
            let plan = self.0.log.borrow_mut().begin_write(self.0.env.now());
            let Some(plan) = plan else { return };
            let driver = self.clone();
            self.0.env.spawn(async move {
                let outcome = plan.execute().await;
                let settled = driver.0.log.borrow_mut().finish_write(outcome);
                if settled.is_ok() {
                    driver.acknowledge();
                    driver.pump();
                }
            });
        }
    }

    /// Acknowledges what the class allows.
    fn acknowledge(&self) {
        let bound = self.bound();
        let mut pending = self.0.pending.borrow_mut();
        while let Some((base, sends)) = pending.front() {
            let count = i64::try_from(sends.len()).expect("few");
            if base.0 + count > bound {
                return;
            }
            for (at, send) in (base.0..).zip(sends) {
                self.0.shared.recorder.end(*send, Outcome::Ok, |action| {
                    if let Action::Send { offset, .. } = action {
                        *offset = Some(at);
                    }
                });
            }
            pending.pop_front();
            self.0.acks.set(self.0.acks.get() + 1);
            self.0.shared.acks.set(self.0.shared.acks.get() + 1);
            self.0.shared.acknowledged.notify();
        }
    }

    async fn maintain(self) {
        let env = &self.0.env;
        while self.failure().is_none() {
            let plan = self.0.log.borrow_mut().begin_maintenance(env.now(), env.wall_clock());
            let Some(plan) = plan else {
                env.sleep(Duration::from_micros(50 + env.workload().below(500))).await;
                continue;
            };
            let outcome = plan.execute().await;
            if self.0.log.borrow_mut().finish_maintenance(outcome, env.now()).is_ok() {
                self.acknowledge();
                self.pump();
            }
        }
    }

    /// One consumer that goes on where it was, over all lives.
    async fn consume(self) {
        let state = &*self.0;
        let position = &state.shared.positions[state.index];
        while !state.stopping.get() {
            state.env.sleep(Duration::from_micros(500 + state.env.workload().below(5_000))).await;
            self.note_watermarks();
            if position.get() > self.bound() {
                // Class `written` lost its end at a power cut, which its consumers must live with.
                position.set(self.bound());
                continue;
            }
            position.set(position.get().max(state.log.borrow().log_start().0));
            let bytes = 1 + state.env.workload().index(100_000);
            if let Ok(next) = self.poll(state.index as u64, position.get(), bytes).await {
                position.set(next);
            }
        }
    }

    async fn read_here_and_there(self) {
        let state = &*self.0;
        while !state.stopping.get() {
            state.env.sleep(Duration::from_micros(500 + state.env.workload().below(5_000))).await;
            let (log_start, bound) = (state.log.borrow().log_start().0, self.bound());
            if log_start < bound {
                let range = u64::try_from(bound - log_start).expect("positive");
                let offset = log_start + i64::try_from(state.env.workload().below(range)).expect("small");
                let consumer = 1_000_000 + state.shared.recorder.count() as u64;
                let read = self.poll(consumer, offset, 1 + state.env.workload().index(20_000)).await;
                if read.is_ok_and(|next| next <= offset) {
                    state.shared.complain(state.life, || format!("nothing was read at {offset} below {bound}"));
                }
            }
        }
    }

    /// Reads from `position` up to the bound, as one poll; the next position.
    async fn poll(&self, consumer: u64, position: i64, bytes_max: usize) -> Result<i64, String> {
        let state = &*self.0;
        let partition = state.partition.clone();
        let begun = state.shared.recorder.begin(Action::Poll { partition, consumer, position, records: Vec::new() });
        state.busy.set(state.busy.get() + 1);
        let read = self.read(position, bytes_max).await;
        state.busy.set(state.busy.get() - 1);
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(error) => {
                state.shared.recorder.end(begun, Outcome::Failed, |_| {});
                // What has left the log meanwhile can't be read any more.
                if state.log.borrow().log_start().0 <= position {
                    state.shared.complain(state.life, || format!("life {}: {}: {error}", state.life.epoch, state.partition));
                }
                return Err(error);
            }
        };
        let mut seen = batches::read(&bytes);
        // A batch that holds the position comes whole.
        seen.retain(|record| record.offset >= position);
        let next = seen.last().map_or(position, |record| record.offset + 1);
        state.shared.recorder.end(begun, Outcome::Ok, |action| {
            if let Action::Poll { records, .. } = action {
                *records = seen;
            }
        });
        Ok(next)
    }

    async fn read(&self, position: i64, bytes_max: usize) -> Result<Vec<u8>, String> {
        let request = ReadRequest { offset: Offset(position), bound: Offset(self.bound()), bytes_max, first_batch_whole: true };
        let mut step = self.0.log.borrow_mut().begin_read(request).map_err(|error| error.to_string())?;
        loop {
            match step {
                ReadStep::Ready(result) => {
                    let bytes: Vec<u8> = result.slices.iter().flat_map(|slice| slice.iter().copied()).collect();
                    return if bytes.len() == result.bytes { Ok(bytes) } else { Err("a read lies about its bytes".into()) };
                }
                ReadStep::Disk(read) => {
                    let outcome = read.execute().await;
                    step = self.0.log.borrow_mut().finish_read(outcome).map_err(|error| error.to_string())?;
                }
            }
        }
    }

    async fn lookup(&self, timestamp: i64) -> Result<(), String> {
        let state = &*self.0;
        let partition = state.partition.clone();
        let begun = state.shared.recorder.begin(Action::Lookup { partition, timestamp, offset: -1 });
        let bound = Offset(self.bound());
        let mut step = state.log.borrow_mut().begin_lookup(Timestamp(timestamp), bound).map_err(|error| error.to_string())?;
        loop {
            match step {
                LookupStep::Ready(found) => {
                    state.shared.recorder.end(begun, Outcome::Ok, |action| {
                        if let Action::Lookup { offset, .. } = action {
                            *offset = found.map_or(-1, |(offset, _)| offset.0);
                        }
                    });
                    return Ok(());
                }
                LookupStep::Disk(plan) => {
                    let outcome = plan.execute().await;
                    step = state.log.borrow_mut().finish_lookup(outcome).map_err(|error| error.to_string())?;
                }
            }
        }
    }

    /// Ends the tasks, waits for what is appended, flushes.
    pub async fn stop(&self) -> Result<(), String> {
        let state = &*self.0;
        state.stopping.set(true);
        for _ in 0..10_000 {
            if let Some(failure) = self.failure() {
                return Err(failure);
            }
            self.pump();
            let written = {
                let log = state.log.borrow();
                log.written() == log.log_end()
            };
            if written && state.busy.get() == 0 {
                let plan = state.log.borrow().begin_flush();
                let outcome = plan.execute().await;
                let settled = state.log.borrow_mut().finish_flush(outcome, state.env.now());
                settled.map_err(|error| error.to_string())?;
                self.acknowledge();
                return Ok(());
            }
            state.env.sleep(Duration::from_micros(500)).await;
        }
        Err(format!("log {}: what is appended is never written", state.index))
    }

    /// Reads everything, then every few offsets alone, then timestamps.
    pub async fn catch_up(&self) -> Result<(), String> {
        let state = &*self.0;
        self.note_watermarks();
        let consumer = 500_000 + state.index as u64;
        let mut position = state.log.borrow().log_start().0;
        let start = position;
        while position < self.bound() {
            let next = self.poll(consumer, position, 1 + state.env.workload().index(200_000)).await?;
            if next <= position {
                return Err(format!("nothing is read at {position} below {}", self.bound()));
            }
            position = next;
        }
        if position != state.log.borrow().log_end().0 {
            return Err(format!("read up to {position}, the log ends at {}", state.log.borrow().log_end()));
        }
        let wall = state.env.wall_clock().0;
        for _ in 0..20 {
            let back = i64::try_from(state.env.workload().below(2_000)).expect("small");
            self.lookup(wall + 100 - back).await?;
        }
        for round in 0..50 {
            let range = u64::try_from(position - start).expect("positive");
            if range == 0 {
                break;
            }
            let offset = start + i64::try_from(state.env.workload().below(range)).expect("small");
            self.poll(600_000 + 100 * state.index as u64 + round, offset, 1).await?;
        }
        Ok(())
    }
}
