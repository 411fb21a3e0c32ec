//! One core: its partitions and what waits at them. A handle, of one thread; clones are the same shard.
//!
//! The broker's handlers call it on the core itself. State lives in `RefCell`s that are borrowed for one synchronous decision and never
//! across an await; wakers are called once nothing is borrowed.
//!
//! Tasks of a shard: `writer` (once per tick, writes what was appended), the clock (deadlines of tickets and fetches), `maintenance`
//! (each second, and after writes), and one per write or piece of maintenance that is out.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use cluster::metadata::TopicConfig;
use hashbrown::HashMap;
use protocol::batch::BatchView;
use protocol::ids::{BrokerEpoch, DirectoryId, HostId, LeaderEpoch, Offset, TopicPartition};
use runtime::Env;
use runtime::local::Notify;
use storage::Directory;

use crate::metrics::{Counters, ShardMetrics};
use crate::partition::{Clocks, Condition, Partition};
use crate::produce::{ProduceError, ProduceRequest};
use crate::purgatory::{Purgatory, PurgatoryLimits};
use crate::signal::Signal;
use crate::tickets::{Ticket, Woken};

/// Topic ids are drawn at random by this cluster, so a fixed seed can't be played against.
type Routes<E> = HashMap<TopicPartition, Rc<PartitionCell<E>>, foldhash::fast::FixedState>;

/// A partition, where its tasks and tickets reach it without a look at the routing table.
pub(crate) struct PartitionCell<E: Env> {
    pub(crate) name: TopicPartition,
    pub(crate) directory: DirectoryId,
    pub(crate) partition: RefCell<Partition<E>>,
    /// Listed for the writer.
    pub(crate) dirty: Cell<bool>,
    /// Listed for another try.
    pub(crate) stalled: Cell<bool>,
    /// Counted as crowded.
    crowded: Cell<bool>,
}

/// The partitions of one core and all that waits there.
pub struct Shard<E: Env>(Rc<Inner<E>>);

impl<E: Env> Clone for Shard<E> {
    fn clone(&self) -> Shard<E> {
        Shard(self.0.clone())
    }
}

struct Inner<E: Env> {
    env: E,
    host: HostId,
    broker_epoch: Cell<BrokerEpoch>,
    directories: Vec<Directory<E>>,
    routes: RefCell<Routes<E>>,
    purgatory: RefCell<Purgatory>,
    /// Partitions with something to write, each once.
    dirty: RefCell<Vec<Rc<PartitionCell<E>>>>,
    dirty_signal: Signal,
    /// Partitions that need another try though no outcome is awaited: no memory for a write, no room for a batch.
    stalled: RefCell<Vec<Rc<PartitionCell<E>>>>,
    stalled_signal: Signal,
    clock: Clock,
    crowded: Cell<usize>,
    /// Given when a core that was crowded isn't any more.
    room: Notify,
    /// Given when a plan was settled or a checkpoint written, and each second: `stop` and deletions wait for that.
    settled: Notify,
    stopping: Cell<bool>,
    stopped: Cell<bool>,
    counters: Counters,
}

/// When the clock task must look next.
#[derive(Default)]
pub(crate) struct Clock {
    /// No ticket's deadline passes before this, or it has waited for `tickets_not_before`.
    pub(crate) tickets: Cell<Option<runtime::Monotonic>>,
    /// The tickets aren't looked at again before this.
    pub(crate) tickets_not_before: Cell<runtime::Monotonic>,
    /// What the clock task sleeps for.
    pub(crate) armed: Cell<Option<runtime::Monotonic>>,
    pub(crate) signal: Signal,
}

/// Offsets and size of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionDescription {
    /// The partition.
    pub partition: TopicPartition,
    /// Number of its leadership.
    pub leader_epoch: LeaderEpoch,
    /// The first offset.
    pub log_start: Offset,
    /// Consumers with read_committed read below it.
    pub last_stable: Offset,
    /// Consumers read below it.
    pub high_watermark: Offset,
    /// The next offset.
    pub log_end: Offset,
    /// All below is on stable storage here.
    pub flushed: Offset,
    /// Bytes of batches.
    pub size_bytes: u64,
    /// Segments.
    pub segments: usize,
    /// Batches that wait for their acknowledgement or for room.
    pub waiting_tickets: usize,
    /// Fetches that wait here.
    pub waiting_fetches: usize,
    /// Why it has stopped, if it has.
    pub stopped: Option<String>,
}

impl<E: Env> Shard<E> {
    /// A core without partitions yet, and its tasks.
    #[must_use]
    pub fn start(env: E, host: HostId, directories: Vec<Directory<E>>) -> Shard<E> {
        Shard::start_with(env, host, directories, PurgatoryLimits::default())
    }

    pub(crate) fn start_with(env: E, host: HostId, directories: Vec<Directory<E>>, limits: PurgatoryLimits) -> Shard<E> {
        let shard = Shard(Rc::new(Inner {
            env,
            host,
            broker_epoch: Cell::default(),
            directories,
            routes: RefCell::default(),
            purgatory: RefCell::new(Purgatory::new(limits)),
            dirty: RefCell::default(),
            dirty_signal: Signal::default(),
            stalled: RefCell::default(),
            stalled_signal: Signal::default(),
            clock: Clock::default(),
            crowded: Cell::new(0),
            room: Notify::new(),
            settled: Notify::new(),
            stopping: Cell::new(false),
            stopped: Cell::new(false),
            counters: Counters::default(),
        }));
        shard.start_tasks();
        shard
    }

    fn start_tasks(&self) {
        let env = &self.0.env;
        env.spawn(self.clone().run_writer());
        env.spawn(self.clone().run_stalled());
        env.spawn(self.clone().run_clock());
        env.spawn(self.clone().run_maintenance());
    }

    /// Ends when appends may go on: no partition of the core waits for room, and none has too much to write. The next request is
    /// to be called in the same turn; another task may have taken the room in a later one.
    pub async fn ready(&self) {
        if self.0.crowded.get() == 0 {
            return;
        }
        self.0.counters.back_pressure.add(1);
        while self.0.crowded.get() > 0 && !self.0.stopping.get() {
            self.0.room.changed(self.0.room.count()).await;
        }
    }

    /// Offsets and size of a partition; `None` if it isn't here.
    #[must_use]
    pub fn describe(&self, partition: TopicPartition) -> Option<PartitionDescription> {
        let cell = self.cell(partition)?;
        let state = cell.partition.borrow();
        let positions = state.replica().positions();
        Some(PartitionDescription {
            partition,
            leader_epoch: state.replica().leader_epoch(),
            log_start: positions.log_start,
            last_stable: positions.last_stable,
            high_watermark: positions.high_watermark,
            log_end: positions.log_end,
            flushed: positions.flushed,
            size_bytes: state.log().size_bytes(),
            segments: state.log().segment_count(),
            waiting_tickets: state.waiting_tickets(),
            waiting_fetches: state.waiting_fetches(),
            stopped: state.stopped_by().map(ToString::to_string),
        })
    }

    /// What the core has done and what waits.
    #[must_use]
    pub fn metrics(&self) -> ShardMetrics {
        let cells = self.cells();
        let stopped = cells.iter().filter(|cell| cell.partition.borrow().stopped_by().is_some()).count();
        ShardMetrics {
            parked_fetches: self.0.purgatory.borrow().len() as u64,
            parked_places: self.0.purgatory.borrow().places() as u64,
            partitions: cells.len() as u64,
            stopped_partitions: stopped as u64,
            ..self.0.counters.snapshot()
        }
    }

    /// Counts a request, or a part of one, that another core has to serve.
    pub fn count_crossing(&self) {
        self.counters().crossings.add(1);
    }

    /// Counts one that came from another core.
    pub fn count_served_crossing(&self) {
        self.counters().served_crossings.add(1);
    }

    /// Takes changed settings of a topic, for each of its partitions that is here.
    pub fn reconfigure(&self, partition: TopicPartition, config: TopicConfig) {
        if let Some(cell) = self.cell(partition) {
            self.settle(&cell, |state, purgatory, woken| state.reconfigure(config, purgatory, woken));
        }
    }

    /// The number of this start, once the metadata log has given it: checkpoints carry it.
    pub fn set_broker_epoch(&self, broker_epoch: BrokerEpoch) {
        self.0.broker_epoch.set(broker_epoch);
    }

    // What the other files of this crate use.

    pub(crate) fn env(&self) -> &E {
        &self.0.env
    }

    pub(crate) fn host(&self) -> HostId {
        self.0.host
    }

    pub(crate) fn broker_epoch(&self) -> BrokerEpoch {
        self.0.broker_epoch.get()
    }

    pub(crate) fn directories(&self) -> &[Directory<E>] {
        &self.0.directories
    }

    pub(crate) fn directory(&self, id: DirectoryId) -> Option<&Directory<E>> {
        self.0.directories.iter().find(|directory| directory.id() == id)
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.0.counters
    }

    pub(crate) fn purgatory(&self) -> &RefCell<Purgatory> {
        &self.0.purgatory
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.0.clock
    }

    pub(crate) fn dirty_signal(&self) -> &Signal {
        &self.0.dirty_signal
    }

    pub(crate) fn dirty(&self) -> &RefCell<Vec<Rc<PartitionCell<E>>>> {
        &self.0.dirty
    }

    pub(crate) fn stalled_signal(&self) -> &Signal {
        &self.0.stalled_signal
    }

    pub(crate) fn stalled(&self) -> &RefCell<Vec<Rc<PartitionCell<E>>>> {
        &self.0.stalled
    }

    pub(crate) fn settled(&self) -> &Notify {
        &self.0.settled
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.0.stopping.get()
    }

    /// Whether the shard's tasks should end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.0.stopped.get()
    }

    pub(crate) fn clocks(&self) -> Clocks {
        Clocks { now: self.0.env.now(), wall: self.0.env.wall_clock() }
    }

    pub(crate) fn cell(&self, partition: TopicPartition) -> Option<Rc<PartitionCell<E>>> {
        self.0.routes.borrow().get(&partition).cloned()
    }

    /// Whether any partition is so.
    pub(crate) fn any(&self, is_so: impl Fn(&Partition<E>) -> bool) -> bool {
        self.0.routes.borrow().values().any(|cell| is_so(&cell.partition.borrow()))
    }

    /// All partitions, in their order.
    pub(crate) fn cells(&self) -> Vec<Rc<PartitionCell<E>>> {
        let mut cells: Vec<_> = self.0.routes.borrow().values().cloned().collect();
        cells.sort_unstable_by_key(|cell| cell.name);
        cells
    }

    pub(crate) fn insert(&self, name: TopicPartition, directory: DirectoryId, partition: Partition<E>) -> Rc<PartitionCell<E>> {
        let partition = RefCell::new(partition);
        let (dirty, stalled, crowded) = Default::default();
        let cell = Rc::new(PartitionCell { name, directory, partition, dirty, stalled, crowded });
        let before = self.0.routes.borrow_mut().insert(name, cell.clone());
        assert!(before.is_none(), "partition {name} is opened once");
        cell
    }

    pub(crate) fn remove(&self, name: TopicPartition) -> Option<Rc<PartitionCell<E>>> {
        self.0.routes.borrow_mut().remove(&name)
    }

    /// Appends a batch and sees to what follows.
    pub(crate) fn append(
        &self,
        cell: &Rc<PartitionCell<E>>,
        request: &ProduceRequest,
        batch: &BatchView<'_>,
    ) -> Result<Ticket, ProduceError> {
        let clocks = self.clocks();
        let ticket = cell.partition.borrow_mut().begin_append(batch, request, clocks)?;
        self.mark_dirty(cell);
        self.watch_crowding(cell);
        if !ticket.is_settled() {
            self.watch_ticket(clocks.now + request.timeout);
        }
        Ok(ticket)
    }

    /// Has the writer look at the partition in this tick.
    pub(crate) fn mark_dirty(&self, cell: &Rc<PartitionCell<E>>) {
        if !cell.dirty.replace(true) {
            self.0.dirty.borrow_mut().push(cell.clone());
            self.0.dirty_signal.give();
        }
    }

    /// Changes a partition's state and then calls whoever that woke.
    pub(crate) fn settle(&self, cell: &Rc<PartitionCell<E>>, change: impl FnOnce(&mut Partition<E>, &mut Purgatory, &mut Woken)) {
        let mut woken = Woken::new();
        change(&mut cell.partition.borrow_mut(), &mut self.0.purgatory.borrow_mut(), &mut woken);
        wake(woken);
    }

    /// Counts the partition among the crowded ones, or no more.
    pub(crate) fn watch_crowding(&self, cell: &PartitionCell<E>) {
        let is_crowded = cell.partition.borrow().is_crowded();
        let was_crowded = cell.crowded.replace(is_crowded);
        if is_crowded == was_crowded {
            return;
        }
        let crowded = self.0.crowded.get();
        self.0.crowded.set(if is_crowded { crowded + 1 } else { crowded - 1 });
        if self.0.crowded.get() == 0 {
            self.0.room.notify();
        }
    }

    /// Answers everything with "stopping" from now on.
    pub(crate) fn refuse_all(&self) {
        self.0.stopping.set(true);
        for cell in self.cells() {
            self.settle(&cell, |state, purgatory, woken| state.close(Condition::Stopping, purgatory, woken));
            self.watch_crowding(&cell);
        }
        self.0.room.notify();
    }

    /// Ends the shard's tasks.
    pub(crate) fn end_tasks(&self) {
        self.0.stopped.set(true);
        for signal in [&self.0.dirty_signal, &self.0.stalled_signal, &self.0.clock.signal] {
            signal.give();
        }
    }
}

/// Wakes everyone; nothing is borrowed any more.
pub(crate) fn wake(woken: Woken) {
    for waker in woken {
        waker.wake();
    }
}
