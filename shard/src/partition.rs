//! A partition on its owner core: joins the log, the replica's decisions, and who waits. Everything here is synchronous.
//!
//! `shard` calls it from requests, `writer` and `maintenance` with plans' outcomes; nothing else does. Order of events for a batch:
//! `begin_append` (rules, epoch, in-sync replicas, then the log: its offsets are fixed) -> `begin_write` (group commit) -> the
//! plan runs elsewhere -> `finish_write` (progress -> replica -> effects -> tickets and waiters). For a fetch: `begin_fetch` (bound
//! and data of one instant) -> memory, or a plan -> `finish_fetch`.
//!
//! Invariants: the replica's log end and progress are the log's after each call; a waiter is woken by its bound, never by an append
//! (T75); batches that wait for room keep their order, and none overtakes them; a partition that has stopped answers everything with
//! why, and stays stopped.

mod retention;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use cluster::metadata::TopicConfig;
use cluster::metadata::config::TimestampSource;
use cluster::producer::{Admission, Place, ProducerBatch, Producers};
use cluster::replica::{Acks, Effect, Positions, Reader, Replica, ReplicaOffsets, ReplicaSettings};
use protocol::batch::{BatchView, ProduceRules};
use protocol::ids::{DurabilityClass, HostId, LeaderEpoch, Offset, Timestamp, TopicPartition};
use protocol::limits::{DEFERRED_BYTES_PER_PARTITION_MAX, PRODUCER_ID_EXPIRATION_MS, UNWRITTEN_BYTES_BEFORE_BACK_PRESSURE};
use runtime::local::{OnceSender, once};
use runtime::{Env, Monotonic};
use slab::Slab;
use storage::{AppendError, DiskReadOutcome, Log, LogConfig, LogFailure, MaintenanceOutcome, MaintenancePlan, ReadError};
use storage::{CheckpointEntry, FlushOutcome, FlushPlan, ReadRequest, ReadStep, Stamp, WriteOutcome, WritePlan};

use crate::fetch::{FetchError, FetchPartition};
use crate::produce::{ProduceError, ProduceRequest};
use crate::producers::{producer_of, snapshot_of};
use crate::purgatory::{Purgatory, WaiterKey};
use crate::tickets::{Appended, Deadline, Produced, Ticket, TicketQueue, Woken};

/// How often silent producers are looked for.
const PRODUCERS_LOOK_INTERVAL: Duration = Duration::from_secs(60);

/// The clocks, as read at the start of a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clocks {
    pub(crate) now: Monotonic,
    pub(crate) wall: Timestamp,
}

/// Whether a partition serves.
#[derive(Clone, Debug)]
pub(crate) enum Condition {
    Serving,
    /// A failed disk has stopped its log.
    Stopped(LogFailure),
    Deleted,
    /// The host stops.
    Stopping,
}

/// Offsets that a reader is told, of one instant (T55).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Consumers with read_uncommitted read below it.
    pub high_watermark: Offset,
    /// Consumers with read_committed read below it.
    pub last_stable: Offset,
    /// Where the log starts.
    pub log_start: Offset,
}

/// What a read may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) bytes_max: usize,
    /// The first batch is given even if it alone is larger (T72).
    pub(crate) first_batch_whole: bool,
}

/// A read that has begun.
pub(crate) struct Fetching<E: Env> {
    pub(crate) bounds: Bounds,
    /// How far this reader could read at that instant.
    pub(crate) bound: Offset,
    pub(crate) step: ReadStep<E>,
}

/// Who the partition is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) name: TopicPartition,
    pub(crate) host: HostId,
    pub(crate) leader_epoch: LeaderEpoch,
}

pub(crate) struct Partition<E: Env> {
    name: TopicPartition,
    log: Log<E>,
    replica: Replica,
    producers: Producers,
    producers_looked_at: Monotonic,
    config: TopicConfig,
    rules: ProduceRules,
    condition: Condition,
    tickets: Rc<RefCell<TicketQueue>>,
    /// Fetches that wait here.
    places: Slab<WaiterKey>,
    deferred: VecDeque<Deferred>,
    deferred_bytes: usize,
    /// Bytes appended since the partition was opened, and those of them that have become visible.
    appended_bytes: u64,
    visible_bytes: u64,
    writes_in_flight: usize,
    maintenance_running: bool,
    removal_running: bool,
}

/// A batch that waits for room.
struct Deferred {
    batch: Box<[u8]>,
    request: ProduceRequest,
    deadline: Deadline,
    /// `None` for acks=0.
    ticket: Option<OnceSender<Result<Ticket, ProduceError>>>,
}

/// What the log keeps of a topic's settings.
pub(crate) fn log_config(config: &TopicConfig) -> LogConfig {
    LogConfig {
        class: config.durability,
        segment_bytes: config.segment_bytes,
        segment_ms: config.segment_ms,
        index_interval_bytes: config.index_interval_bytes,
        retention_ms: config.retention_ms,
        retention_bytes: config.retention_bytes,
    }
}

impl<E: Env> Partition<E> {
    pub(crate) fn new(identity: Identity, config: TopicConfig, log: Log<E>, producers: Producers) -> Partition<E> {
        assert_eq!(log.flushed(), log.log_end(), "a log is on stable storage before it is served");
        let settings = ReplicaSettings {
            host: identity.host,
            class: config.durability,
            min_in_sync_replicas: config.min_in_sync_replicas,
            leader_epoch: identity.leader_epoch,
        };
        let (log_start, log_end) = (log.log_start(), log.log_end());
        Partition {
            name: identity.name,
            replica: Replica::new(settings, ReplicaOffsets::recovered(log_start, log_end)),
            log,
            producers,
            producers_looked_at: Monotonic::default(),
            config,
            rules: config.produce_rules(),
            condition: Condition::Serving,
            tickets: Rc::default(),
            places: Slab::new(),
            deferred: VecDeque::new(),
            deferred_bytes: 0,
            appended_bytes: 0,
            visible_bytes: 0,
            writes_in_flight: 0,
            maintenance_running: false,
            removal_running: false,
        }
    }

    // Produce.

    /// Checks, appends and stamps a batch, or queues it where the log has no room for the moment.
    pub(crate) fn begin_append(
        &mut self,
        batch: &BatchView<'_>,
        request: &ProduceRequest,
        clocks: Clocks,
    ) -> Result<Ticket, ProduceError> {
        self.check_serving_for_produce()?;
        self.replica.begin_append_allowed(request.acks, request.leader_epoch)?;
        batch.validate_produced(&self.rules)?;
        let deadline = Deadline { at: clocks.now + request.timeout, timeout: request.timeout };
        if !self.deferred.is_empty() {
            return self.defer(batch, request, deadline);
        }
        match self.admit(batch, request.acks, deadline, clocks)? {
            Some(ticket) => Ok(ticket),
            None => self.defer(batch, request, deadline),
        }
    }

    /// Appends a batch that is its producer's next, and gives the ticket of the first one for a duplicate. `None`: there is no room for
    /// the moment.
    fn admit(
        &mut self,
        batch: &BatchView<'_>,
        acks: Acks,
        deadline: Deadline,
        clocks: Clocks,
    ) -> Result<Option<Ticket>, ProduceError> {
        let from = producer_of(batch);
        if let Some(from) = &from
            && let Admission::Duplicate(place) = self.producers.admit(from, clocks.wall)?
        {
            return Ok(Some(self.ticket_again(acks, place.base.plus(from.records), place, deadline)));
        }
        match self.append(batch, from, acks, deadline, clocks) {
            Ok(ticket) => Ok(Some(ticket)),
            Err(AppendError::Stopped(failure)) => Err(failure.into()),
            Err(AppendError::NotReady { .. }) => match self.log.shortage() {
                Some(shortage) => Err(ProduceError::NoSpace { partition: self.name, shortage: shortage.to_owned() }),
                None => Ok(None),
            },
            Err(_) => Ok(None),
        }
    }

    /// For a batch that was appended before: acknowledged when the first one is.
    fn ticket_again(&self, acks: Acks, end: Offset, place: Place, deadline: Deadline) -> Ticket {
        let Positions { high_watermark, written, flushed, .. } = self.replica.positions();
        let acknowledged = match (acks, self.replica.class()) {
            (Acks::All, _) => high_watermark,
            (_, DurabilityClass::Device) => flushed,
            (_, DurabilityClass::Written) => written,
        };
        if end <= acknowledged {
            return Ticket::settled(Ok(self.produced(place)));
        }
        Ticket::appended(&self.tickets, acks, Appended::Before, end, self.produced(place), deadline)
    }

    fn produced(&self, place: Place) -> Produced {
        Produced { base_offset: place.base, append_time: place.append_time, log_start: self.log.log_start() }
    }

    fn append(
        &mut self,
        batch: &BatchView<'_>,
        from: Option<ProducerBatch>,
        acks: Acks,
        deadline: Deadline,
        clocks: Clocks,
    ) -> Result<Ticket, AppendError> {
        let stamp = Stamp {
            leader_epoch: self.replica.leader_epoch(),
            wall: clocks.wall,
            now: clocks.now,
            log_append_time: self.config.timestamp_source == TimestampSource::Leader,
        };
        let appended = self.log.begin_append(batch, stamp)?;
        self.note_roll();
        let place = Place { base: appended.base, append_time: appended.timestamp };
        if let Some(from) = from {
            self.producers.appended(&from, place, clocks.wall);
        }
        let end = self.log.log_end();
        assert_eq!(appended.last.plus(1), end, "a batch ends where its log ends");
        self.replica.appended(end);
        self.appended_bytes += batch.size() as u64;
        Ok(Ticket::appended(&self.tickets, acks, Appended::Now, end, self.produced(place), deadline))
    }

    /// Gives the log the state of the producers at the end of a segment that has just rolled.
    fn note_roll(&mut self) {
        if self.log.wants_producers_at_roll() {
            self.log.note_producers_at_roll(snapshot_of(&self.producers));
        }
    }

    fn defer(&mut self, batch: &BatchView<'_>, request: &ProduceRequest, deadline: Deadline) -> Result<Ticket, ProduceError> {
        let (waiting, allowed) = (self.deferred_bytes, DEFERRED_BYTES_PER_PARTITION_MAX);
        if waiting + batch.size() > allowed {
            return Err(ProduceError::TooMuchWaits { waiting, batch: batch.size(), allowed });
        }
        let (ticket, answer) = match request.acks {
            // Its producer expects no answer and gets no offset.
            Acks::None => {
                let log_start = self.log.log_start();
                let unknown = Produced { base_offset: Offset(-1), append_time: Timestamp::NONE, log_start };
                (None, Ticket::settled(Ok(unknown)))
            }
            Acks::Leader | Acks::All => {
                let (sender, receiver) = once();
                (Some(sender), Ticket::deferred(receiver))
            }
        };
        self.deferred_bytes += batch.size();
        self.deferred.push_back(Deferred { batch: batch.bytes().into(), request: *request, deadline, ticket });
        Ok(answer)
    }

    /// Appends batches that waited for room, as far as there is some now; gives up those whose time is over. Whether any was appended.
    pub(crate) fn retry_deferred(&mut self, clocks: Clocks) -> bool {
        let before = self.appended_bytes;
        while let Some(first) = self.deferred.pop_front() {
            let size = first.batch.len();
            let result = if first.deadline.at <= clocks.now {
                Err(ProduceError::TimedOut { timeout: first.deadline.timeout })
            } else {
                let view = BatchView::whole(&first.batch).expect("the batch was checked when it came");
                match self.admit(&view, first.request.acks, first.deadline, clocks) {
                    Ok(Some(ticket)) => Ok(ticket),
                    Ok(None) => {
                        self.deferred.push_front(first);
                        break;
                    }
                    Err(error) => Err(error),
                }
            };
            self.deferred_bytes -= size;
            if let Some(ticket) = first.ticket {
                ticket.send(result);
            }
        }
        self.appended_bytes > before
    }

    /// Whether batches wait for room.
    pub(crate) fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Whether batches wait for room, or so much waits to be written that no more should come. What a stopped log hasn't written will never
    /// be, and nobody waits for it.
    pub(crate) fn is_crowded(&self) -> bool {
        let crowded = !self.deferred.is_empty() || self.log.unwritten_bytes() > UNWRITTEN_BYTES_BEFORE_BACK_PRESSURE;
        crowded && self.writes_on()
    }

    // Writes.

    /// The next write, if there is something to write and a slot is free.
    pub(crate) fn begin_write(&mut self, now: Monotonic) -> Option<WritePlan<E>> {
        if !self.is_serving_or_stopping() {
            return None;
        }
        let plan = self.log.begin_write(now)?;
        self.writes_in_flight += 1;
        Some(plan)
    }

    /// Settles a write: moves the offsets, completes tickets, wakes waiters. A failed write stops the partition.
    pub(crate) fn finish_write(&mut self, outcome: WriteOutcome, purgatory: &mut Purgatory, woken: &mut Woken) {
        self.writes_in_flight -= 1;
        match self.log.finish_write(outcome) {
            Ok(_) => self.settle_progress(purgatory, woken),
            Err(failure) => self.close(Condition::Stopped(failure), purgatory, woken),
        }
    }

    /// Whether bytes wait to be written and no outcome is awaited that would bring the next write.
    pub(crate) fn is_stalled(&self) -> bool {
        let idle = self.writes_in_flight == 0 && !self.maintenance_running && !self.removal_running;
        idle && self.writes_on() && self.log.unwritten_bytes() > 0
    }

    /// Whether no plan is out and everything is written that still will be.
    pub(crate) fn is_quiet(&self) -> bool {
        let idle = self.writes_in_flight == 0 && !self.maintenance_running;
        idle && (self.log.unwritten_bytes() == 0 || !self.writes_on())
    }

    fn settle_progress(&mut self, purgatory: &mut Purgatory, woken: &mut Woken) {
        let progress = self.log.progress();
        for effect in self.replica.local_progress(progress.written, progress.flushed) {
            match effect {
                Effect::HighWatermark(offset) => {
                    self.tickets.borrow_mut().settle(Acks::All, offset, woken);
                    self.wake_waiters(purgatory, woken);
                }
                Effect::LocalProgress(offset) => self.tickets.borrow_mut().settle(Acks::Leader, offset, woken),
            }
        }
    }

    /// Tells the fetches that wait here how many bytes have become visible: on several hosts at most so many, never fewer.
    fn wake_waiters(&mut self, purgatory: &mut Purgatory, woken: &mut Woken) {
        let visible = self.appended_bytes - self.log.unwritten_bytes() as u64;
        let more = (visible - self.visible_bytes).max(1);
        self.visible_bytes = visible;
        for (_, &waiter) in &self.places {
            purgatory.advance(waiter, more, woken);
        }
    }

    // Maintenance.

    pub(crate) fn begin_maintenance(&mut self, clocks: Clocks) -> Option<MaintenancePlan<E>> {
        if self.maintenance_running || !self.is_serving_or_stopping() {
            return None;
        }
        self.expire_producers(clocks);
        if self.log.wants_producers() {
            self.log.note_producers(snapshot_of(&self.producers));
        }
        let plan = self.log.begin_maintenance(clocks.now, clocks.wall);
        // It may have rolled by time.
        self.note_roll();
        let plan = plan?;
        self.maintenance_running = true;
        Some(plan)
    }

    fn expire_producers(&mut self, clocks: Clocks) {
        if clocks.now.since(self.producers_looked_at) >= PRODUCERS_LOOK_INTERVAL {
            self.producers_looked_at = clocks.now;
            self.producers.expire(clocks.wall, PRODUCER_ID_EXPIRATION_MS);
        }
    }

    pub(crate) fn finish_maintenance(
        &mut self,
        outcome: MaintenanceOutcome,
        now: Monotonic,
        purgatory: &mut Purgatory,
        woken: &mut Woken,
    ) {
        self.maintenance_running = false;
        match self.log.finish_maintenance(outcome, now) {
            Ok(()) => self.settle_progress(purgatory, woken),
            Err(failure) => self.close(Condition::Stopped(failure), purgatory, woken),
        }
    }

    /// A flush of all that is written, for a stop.
    pub(crate) fn begin_flush(&self) -> FlushPlan<E> {
        self.log.begin_flush()
    }

    pub(crate) fn finish_flush(&mut self, outcome: FlushOutcome, now: Monotonic, purgatory: &mut Purgatory, woken: &mut Woken) {
        match self.log.finish_flush(outcome, now) {
            Ok(_) => self.settle_progress(purgatory, woken),
            Err(failure) => self.close(Condition::Stopped(failure), purgatory, woken),
        }
    }

    /// Why the log isn't whole on stable storage, if it isn't.
    pub(crate) fn unflushed(&self) -> Option<String> {
        if let Some(failure) = self.log.failure() {
            return Some(failure.to_string());
        }
        let (flushed, log_end) = (self.log.flushed(), self.log.log_end());
        (flushed < log_end).then(|| format!("flushed up to {flushed} of {log_end}"))
    }

    // Fetch.

    /// Reads from memory, or plans the read from the disk. Bound and data are of one instant.
    pub(crate) fn begin_fetch(
        &mut self,
        wanted: &FetchPartition,
        reader: Reader,
        budget: Budget,
    ) -> Result<Fetching<E>, FetchError> {
        self.check_serving()?;
        self.replica.check_epoch(wanted.leader_epoch)?;
        let Positions { log_start, log_end, high_watermark, last_stable, .. } = self.replica.positions();
        if wanted.offset < log_start || wanted.offset > log_end {
            return Err(FetchError::OutOfRange { asked: wanted.offset, log_start, log_end });
        }
        let bound = self.replica.read_bound(reader);
        let nothing = budget.bytes_max == 0 && !budget.first_batch_whole;
        let request = ReadRequest {
            offset: wanted.offset,
            bound: if nothing { wanted.offset } else { bound },
            bytes_max: budget.bytes_max,
            first_batch_whole: budget.first_batch_whole,
        };
        let step = self.log.begin_read(request)?;
        Ok(Fetching { bounds: Bounds { high_watermark, last_stable, log_start }, bound, step })
    }

    /// Settles a read from the disk.
    pub(crate) fn finish_fetch(&mut self, outcome: DiskReadOutcome<E>) -> Result<ReadStep<E>, ReadError> {
        self.log.finish_read(outcome)
    }

    /// How far this reader may read; `None` if the partition doesn't serve.
    pub(crate) fn read_bound(&self, reader: Reader) -> Option<Offset> {
        matches!(self.condition, Condition::Serving).then(|| self.replica.read_bound(reader))
    }

    /// Lists a waiter here.
    pub(crate) fn take_place(&mut self, waiter: WaiterKey) -> usize {
        self.places.insert(waiter)
    }

    pub(crate) fn leave_place(&mut self, place: usize) {
        self.places.remove(place);
    }

    pub(crate) fn waiting_tickets(&self) -> usize {
        self.tickets.borrow().len() + self.deferred.len()
    }

    pub(crate) fn waiting_fetches(&self) -> usize {
        self.places.len()
    }

    // The rest.

    /// Answers everything that waits here, and all to come, with why.
    pub(crate) fn close(&mut self, condition: Condition, purgatory: &mut Purgatory, woken: &mut Woken) {
        if matches!(self.condition, Condition::Stopped(_) | Condition::Deleted) {
            return;
        }
        self.condition = condition;
        let error = self.check_serving_for_produce().expect_err("it serves no more");
        // Batches that are appended are still written when the host stops, and their tickets end with that.
        if !matches!(self.condition, Condition::Stopping) {
            self.tickets.borrow_mut().close(error.clone(), woken);
        }
        self.deferred_bytes = 0;
        for ticket in self.deferred.drain(..).filter_map(|deferred| deferred.ticket) {
            ticket.send(Err(error.clone()));
        }
        for (_, &waiter) in &self.places {
            purgatory.wake(waiter, woken);
        }
    }

    /// Gives up tickets whose time is over; the next deadline.
    pub(crate) fn expire_tickets(&mut self, now: Monotonic, woken: &mut Woken) -> Option<Monotonic> {
        self.tickets.borrow_mut().expire(now, woken)
    }

    /// Takes changed settings of the topic.
    pub(crate) fn reconfigure(&mut self, config: TopicConfig, purgatory: &mut Purgatory, woken: &mut Woken) {
        self.config = config;
        self.rules = config.produce_rules();
        self.log.set_config(log_config(&config));
        let effects = self.replica.reconfigure(config.durability, config.min_in_sync_replicas);
        for effect in effects {
            match effect {
                Effect::HighWatermark(offset) => {
                    self.tickets.borrow_mut().settle(Acks::All, offset, woken);
                    self.wake_waiters(purgatory, woken);
                }
                Effect::LocalProgress(offset) => self.tickets.borrow_mut().settle(Acks::Leader, offset, woken),
            }
        }
    }

    pub(crate) fn replica(&self) -> &Replica {
        &self.replica
    }

    pub(crate) fn log(&self) -> &Log<E> {
        &self.log
    }

    pub(crate) fn log_mut(&mut self) -> &mut Log<E> {
        &mut self.log
    }

    /// What has stopped it, if a disk did.
    pub(crate) fn stopped_by(&self) -> Option<&LogFailure> {
        match &self.condition {
            Condition::Stopped(failure) => Some(failure),
            _ => None,
        }
    }

    pub(crate) fn checkpoint_entry(&self) -> CheckpointEntry {
        self.log.checkpoint_entry()
    }

    pub(crate) fn check_serving(&self) -> Result<(), FetchError> {
        match &self.condition {
            Condition::Serving => Ok(()),
            Condition::Stopped(failure) => Err(FetchError::Stopped(failure.clone())),
            Condition::Deleted => Err(FetchError::UnknownPartition { partition: self.name }),
            Condition::Stopping => Err(FetchError::Stopping),
        }
    }

    fn check_serving_for_produce(&self) -> Result<(), ProduceError> {
        match &self.condition {
            Condition::Serving => Ok(()),
            Condition::Stopped(failure) => Err(ProduceError::Stopped(failure.clone())),
            Condition::Deleted => Err(ProduceError::Deleted { partition: self.name }),
            Condition::Stopping => Err(ProduceError::Stopping),
        }
    }

    /// Answers everything with why, if the log has stopped since: another one of its directory has failed.
    pub(crate) fn check_log(&mut self, purgatory: &mut Purgatory, woken: &mut Woken) {
        if let Err(failure) = self.log.check_running() {
            self.close(Condition::Stopped(failure), purgatory, woken);
        }
    }

    /// Whether what is appended will still be written.
    fn writes_on(&self) -> bool {
        self.is_serving_or_stopping() && self.log.failure().is_none()
    }

    fn is_serving_or_stopping(&self) -> bool {
        matches!(self.condition, Condition::Serving | Condition::Stopping)
    }
}
