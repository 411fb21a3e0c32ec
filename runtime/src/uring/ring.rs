//! One core's io_uring: entries go in once per turn of the core's tasks, completions come out and wake them.
//!
//! Lives on one core; called by file, socket and the core's driver. Order of events in a turn: tasks start operations (into the outbox); the
//! driver, which stands in the executor's queue behind all tasks that were ready, waits until those have woken no others, moves the outbox
//! into the submission queue, enters the kernel once, takes what has completed, and wakes its tasks. When no task has run since its last turn, it sleeps in the
//! kernel until a completion comes or a timer is due: the executor itself never sleeps.
//!
//! Invariants:
//! - The driver sleeps only when nothing is ready: the queue is first in, first out, so a task that is ready when the driver goes to its
//!   end has run when the driver comes up again, and is seen in the count of polls. From outside only the ring wakes a core; other cores do it through [`super::waking`].
//! - An operation waits at most [`SUBMIT_DELAY_NANOS_MAX`] or [`SUBMIT_QUEUED_MAX`] others before it reaches the kernel, if operations
//!   go on being started; else until no task is ready, but no longer than [`GATHER_NANOS_MAX`] and one round of the tasks.
//! - No waker is called, and nothing that an operation owned is dropped, while the state is borrowed.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};

use super::memory::{Region, RegionEntry};
use super::operation::{Completion, Operation, Submission, Target, ZeroCopyRules};
use super::operations::{Counts, KNOCK, OperationId, Operations, Outcome};
use super::tasks::Tasks;
use super::timers::Timers;
use super::waking::Waking;
use crate::local::Notify;

/// Operations that wait in the outbox before one that is started takes them to the kernel at once.
const SUBMIT_QUEUED_MAX: usize = 64;
/// Age of the oldest operation in the outbox at which one that is started takes all to the kernel, in nanoseconds.
const SUBMIT_DELAY_NANOS_MAX: u64 = 100_000;
/// Age of the oldest operation in the outbox up to which the driver lets tasks that were woken meanwhile run first, in nanoseconds: what they
/// start goes to the kernel with it.
const GATHER_NANOS_MAX: u64 = 30_000;
/// Rounds of submitting and draining in one turn, before other tasks run.
const ROUNDS_PER_TURN_MAX: usize = 8;

/// A handle on the ring; clones are the same ring.
#[derive(Clone)]
pub(super) struct Ring(Rc<Shared>);

struct Shared {
    state: RefCell<State>,
    /// When the oldest operation of the outbox was started.
    queued_since: Cell<u64>,
    sleeps: Cell<u64>,
    turns: Cell<u64>,
    ended: Cell<bool>,
    driver_ended: Notify,
}

struct State {
    uring: IoUring,
    operations: Operations,
    /// The region is registered.
    registered: bool,
    /// Places for registered files that are free.
    file_places: Vec<u32>,
    enters: u64,
}

/// How the ring is made.
pub(super) struct RingConfig {
    pub(super) entries: u32,
    /// Places for registered files.
    pub(super) files: u32,
    pub(super) rules: ZeroCopyRules,
}

/// A descriptor's place among the ring's registered files, given back when this is dropped.
pub(super) struct RegisteredFile {
    ring: Ring,
    index: u32,
}

/// An operation that somebody waits for. Dropped before its end, it goes on and its result is thrown away.
pub(super) struct Pending {
    ring: Ring,
    id: Option<OperationId>,
}

/// Counts of the ring's work.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RingCounts {
    pub(super) operations: Counts,
    pub(super) enters: u64,
    pub(super) sleeps: u64,
    pub(super) turns: u64,
    pub(super) in_use: usize,
}

impl Ring {
    /// Makes the ring on the thread that will drive it.
    pub(super) fn new(config: &RingConfig) -> io::Result<Ring> {
        let uring = build(config.entries)?;
        uring.submitter().register_files_sparse(config.files)?;
        let file_places = (0..config.files).rev().collect();
        let operations = Operations::new(config.rules);
        let ring = Ring(Rc::new(Shared {
            state: RefCell::new(State { uring, operations, registered: false, file_places, enters: 0 }),
            queued_since: Cell::new(0),
            sleeps: Cell::new(0),
            turns: Cell::new(0),
            ended: Cell::new(false),
            driver_ended: Notify::new(),
        }));
        Ok(ring)
    }

    /// Makes room for the entries of `region`, and registers its next, the first.
    pub(super) fn register(&self, region: &Region) -> io::Result<()> {
        let entries = u32::try_from(region.entries()).unwrap_or(u32::MAX);
        self.0.state.borrow().uring.submitter().register_buffers_sparse(entries)?;
        if let Some(first) = region.next_entry() {
            self.register_entry(&first)?;
        }
        self.0.state.borrow_mut().registered = true;
        Ok(())
    }

    /// Registers memory of the region, so that no operation has to look its pages up.
    pub(super) fn register_entry(&self, entry: &RegionEntry) -> io::Result<()> {
        let range = libc::iovec { iov_base: entry.address as *mut libc::c_void, iov_len: entry.bytes };
        // SAFETY: the range is of the region's mapping, which the core keeps until the ring is gone.
        unsafe { self.0.state.borrow().uring.submitter().register_buffers_update(entry.index.into(), &[range], None) }
    }

    /// Whether the region is registered.
    pub(super) fn is_registered(&self) -> bool {
        self.0.state.borrow().registered
    }

    /// Another descriptor of the ring, by which others can knock as long as it is open.
    pub(super) fn duplicate(&self) -> io::Result<OwnedFd> {
        let state = self.0.state.borrow();
        // SAFETY: the descriptor is the ring's, which the borrow keeps.
        let ring = unsafe { BorrowedFd::borrow_raw(state.uring.as_raw_fd()) };
        Ok(rustix::io::fcntl_dupfd_cloexec(ring, 0)?)
    }

    /// Lets the kernel's worker threads of this ring run on `processors`, not only where the core is pinned.
    pub(super) fn spread_workers(&self, processors: &rustix::thread::CpuSet) -> io::Result<()> {
        // SAFETY: all zeros is an empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        for processor in (0..rustix::thread::CpuSet::MAX_CPU).filter(|&processor| processors.is_set(processor)) {
            // SAFETY: the number is below the set's size, which is the same for both kinds of set.
            unsafe { libc::CPU_SET(processor, &mut set) };
        }
        self.0.state.borrow().uring.submitter().register_iowq_aff(&set)
    }

    /// Registers a descriptor, so that no operation has to look it up. None if no place is left; the number works as well then.
    pub(super) fn register_file(&self, descriptor: &OwnedFd) -> Option<RegisteredFile> {
        let mut state = self.0.state.borrow_mut();
        let index = state.file_places.pop()?;
        if state.uring.submitter().register_files_update(index, &[descriptor.as_raw_fd()]).is_err() {
            state.file_places.push(index);
            return None;
        }
        Some(RegisteredFile { ring: self.clone(), index })
    }

    /// Starts an operation; it reaches the kernel at the end of this turn of the tasks.
    pub(super) fn start(&self, operation: Operation) -> Pending {
        let id = self.enqueue(|operations| operations.start(operation));
        Pending { ring: self.clone(), id: Some(id) }
    }

    /// Starts an operation that nobody waits for.
    pub(super) fn start_detached(&self, operation: Operation) -> OperationId {
        self.enqueue(|operations| {
            let id = operations.start(operation);
            operations.detach(id);
            id
        })
    }

    /// Asks the kernel to end an operation early.
    pub(super) fn cancel(&self, id: OperationId) {
        self.enqueue(|operations| operations.cancel(id));
    }

    /// Asks the kernel to end everything that might never end by itself.
    pub(super) fn cancel_endless(&self) {
        self.enqueue(Operations::cancel_endless);
    }

    /// Resets every connection of which the kernel still reads a send.
    pub(super) fn abort_sends(&self) {
        self.0.state.borrow().operations.abort_sends();
    }

    /// Operations that the kernel may still have something of.
    pub(super) fn in_use(&self) -> usize {
        self.0.state.borrow().operations.in_use()
    }

    pub(super) fn counts(&self) -> RingCounts {
        let state = self.0.state.borrow();
        RingCounts {
            operations: state.operations.counts(),
            enters: state.enters,
            sleeps: self.0.sleeps.get(),
            turns: self.0.turns.get(),
            in_use: state.operations.in_use(),
        }
    }

    fn enqueue<T>(&self, start: impl FnOnce(&mut Operations) -> T) -> T {
        let shared = &*self.0;
        let mut state = shared.state.borrow_mut();
        let value = start(&mut state.operations);
        match state.operations.queued() {
            0 => return value,
            1 => shared.queued_since.set(now_nanos()),
            queued => {
                let late = now_nanos().saturating_sub(shared.queued_since.get()) > SUBMIT_DELAY_NANOS_MAX;
                if queued >= SUBMIT_QUEUED_MAX || late {
                    state.fill();
                    state.enter();
                }
            }
        }
        value
    }

    /// Submits what waits, takes what has completed and wakes those who wait for it.
    /// Whether something was done, and whether work is left for another turn.
    pub(super) fn turn(&self) -> Turn {
        let shared = &*self.0;
        shared.turns.set(shared.turns.get() + 1);
        let mut turn = Turn { active: false, unfinished: false };
        for round in 0.. {
            let (wakers, finished) = {
                let mut state = shared.state.borrow_mut();
                turn.active |= state.pass();
                turn.unfinished = state.is_unfinished();
                (std::mem::take(&mut state.operations.wakers), std::mem::take(&mut state.operations.finished))
            };
            self.give_back(wakers, finished);
            if turn.unfinished && round < ROUNDS_PER_TURN_MAX {
                continue;
            }
            break;
        }
        turn
    }

    /// Runs foreign code without a borrow, and keeps the vectors' memory for the next turn.
    fn give_back(&self, mut wakers: Vec<Waker>, mut finished: Vec<Operation>) {
        for waker in wakers.drain(..) {
            waker.wake();
        }
        finished.clear();
        let mut state = self.0.state.borrow_mut();
        let operations = &mut state.operations;
        if operations.wakers.is_empty() {
            operations.wakers = wakers;
        }
        if operations.finished.is_empty() {
            operations.finished = finished;
        }
    }

    /// Drives the core until `stopping`; see the invariants above.
    pub(super) async fn run_driver(self, driven: Driven, stopping: Rc<Cell<bool>>) {
        let ring = self.clone();
        let (mut polls, mut active_at) = (0, now_nanos());
        std::future::poll_fn(move |context| -> Poll<()> {
            if stopping.get() {
                return Poll::Ready(());
            }
            let polls_before = std::mem::replace(&mut polls, driven.tasks.polls());
            let rung = driven.waking.look();
            if polls != polls_before && self.gathers() {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let turn = self.turn();
            let now = now_nanos();
            let fired = driven.timers.fire(now);
            if turn.active || turn.unfinished || rung {
                active_at = now;
            } else if !fired && polls == polls_before && now.saturating_sub(active_at) >= driven.spin_nanos {
                driven.waking.asleep(|| self.sleep(driven.timers.next_due().saturating_sub(now)));
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        ring.0.ended.set(true);
        ring.0.driver_ended.notify();
    }

    /// Whether operations wait that others may still join.
    fn gathers(&self) -> bool {
        let queued = self.0.state.borrow().operations.has_queued();
        queued && now_nanos().saturating_sub(self.0.queued_since.get()) < GATHER_NANOS_MAX
    }

    /// Ends when the driver has.
    pub(super) async fn until_driver_ended(&self) {
        while !self.0.ended.get() {
            self.0.driver_ended.changed(self.0.driver_ended.count()).await;
        }
    }

    /// Waits in the kernel until there is a completion, for so long at most.
    fn sleep(&self, nanos_max: u64) {
        self.0.sleeps.set(self.0.sleeps.get() + 1);
        let mut state = self.0.state.borrow_mut();
        state.enters += 1;
        let limit = Timespec::from(Duration::from_nanos(nanos_max));
        let arguments = if nanos_max == u64::MAX { SubmitArgs::new() } else { SubmitArgs::new().timespec(&limit) };
        let slept = state.uring.submitter().submit_with_args(1, &arguments);
        check_enter(slept);
    }

    fn poll(&self, id: OperationId, waker: &Waker) -> Poll<Outcome> {
        let mut state = self.0.state.borrow_mut();
        let outcome = state.operations.poll(id, waker);
        let finished = std::mem::take(&mut state.operations.finished);
        drop(state);
        drop(finished);
        outcome
    }

    fn abandon(&self, id: OperationId) {
        let finished = self.enqueue(|operations| {
            operations.abandon(id);
            std::mem::take(&mut operations.finished)
        });
        drop(finished);
    }
}

/// What the driver drives besides the ring.
pub(super) struct Driven {
    pub(super) tasks: Tasks,
    pub(super) timers: Timers,
    pub(super) waking: Waking,
    /// How long it looks for completions after the last one before it sleeps.
    pub(super) spin_nanos: u64,
}

/// What a turn did.
pub(super) struct Turn {
    /// Something was submitted or had completed.
    pub(super) active: bool,
    /// The outbox isn't empty.
    pub(super) unfinished: bool,
}

impl State {
    /// Submits and drains once.
    fn pass(&mut self) -> bool {
        let mut active = self.fill();
        let queue = self.uring.submission();
        let due = !queue.is_empty() || queue.taskrun() || queue.cq_overflow();
        drop(queue);
        if due {
            active = true;
            self.enter();
        }
        for entry in self.uring.completion() {
            active = true;
            let completion = Completion { user_data: entry.user_data(), result: entry.result(), flags: entry.flags() };
            self.operations.complete(completion);
        }
        active
    }

    /// Moves the outbox into the submission queue, as far as it fits.
    fn fill(&mut self) -> bool {
        if !self.operations.has_queued() {
            return false;
        }
        let mut queue = self.uring.submission();
        while !queue.is_full() {
            let Some((user_data, submission)) = self.operations.next() else { break };
            let entry = translate(submission, self.registered).user_data(user_data);
            // SAFETY: the operation's slot owns all that the entry points to until its last completion.
            unsafe { queue.push(&entry).expect("a queue that isn't full takes an entry") };
        }
        true
    }

    /// Something hasn't reached the kernel.
    fn is_unfinished(&mut self) -> bool {
        self.operations.has_queued() || !self.uring.submission().is_empty()
    }

    fn enter(&mut self) {
        self.enters += 1;
        let (submitter, mut queue, _) = self.uring.split();
        queue.sync();
        let waiting = u32::try_from(queue.len()).expect("a ring is small");
        // SAFETY: no argument is passed; the entries of the queue point to what the operations' slots own.
        let entered = unsafe { submitter.enter::<libc::sigset_t>(waiting, 0, GET_EVENTS, None) };
        check_enter(entered);
    }
}

fn check_enter(entered: io::Result<usize>) {
    const PASSING: [i32; 5] = [libc::EINTR, libc::EAGAIN, libc::EBUSY, libc::ENOMEM, libc::ETIME];
    match entered {
        Ok(_) => {}
        // Nothing is lost: entries stay in the queue and go with the next turn, when completions have been taken.
        Err(error) if error.raw_os_error().is_some_and(|number| PASSING.contains(&number)) => {}
        Err(error) => panic!("io_uring_enter: {error}"),
    }
}

impl RegisteredFile {
    /// What operations name: the place if there is one, else the number.
    pub(super) fn target(registered: Option<&RegisteredFile>, descriptor: &OwnedFd) -> Target {
        match registered {
            Some(file) => Target { number: i32::try_from(file.index).expect("files are few"), registered: true },
            None => Target { number: descriptor.as_raw_fd(), registered: false },
        }
    }
}

impl Drop for RegisteredFile {
    fn drop(&mut self) {
        let mut state = self.ring.0.state.borrow_mut();
        // A place that can't be emptied stays taken; the descriptor itself is closed by its owner.
        if state.uring.submitter().register_files_update(self.index, &[-1]).is_ok() {
            state.file_places.push(self.index);
        }
    }
}

impl Future for Pending {
    type Output = Outcome;

    fn poll(mut self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let id = self.id.expect("polled after its end");
        let outcome = self.ring.poll(id, context.waker());
        if outcome.is_ready() {
            self.id = None;
        }
        outcome
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.ring.abandon(id);
        }
    }
}

/// An io_uring as a core uses it.
pub(super) fn build(entries: u32) -> io::Result<IoUring> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_coop_taskrun()
        .setup_taskrun_flag()
        .setup_defer_taskrun()
        .setup_submit_all()
        .setup_clamp()
        .setup_cqsize(entries.saturating_mul(4))
        .build(entries)
}

fn translate(submission: Submission, registered: bool) -> squeue::Entry {
    let entry = translate_number(submission, registered);
    if submission.target().is_some_and(|target| target.registered) {
        return entry.flags(squeue::Flags::FIXED_FILE);
    }
    entry
}

/// The entry, with the number of its target as it is.
fn translate_number(submission: Submission, registered: bool) -> squeue::Entry {
    let no_signal = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
    match submission {
        Submission::Open { path, flags } => opcode::OpenAt::new(Fd(libc::AT_FDCWD), path).flags(flags).mode(0o644).build(),
        Submission::Read { target, memory, position } if registered => {
            opcode::ReadFixed::new(Fd(target.number), memory.address, memory.length, memory.entry).offset(position).build()
        }
        Submission::Read { target, memory, position } => {
            opcode::Read::new(Fd(target.number), memory.address, memory.length).offset(position).build()
        }
        Submission::Write { target, memory, position, durable } => {
            let flags = if durable { libc::RWF_DSYNC } else { 0 };
            if registered {
                opcode::WriteFixed::new(Fd(target.number), memory.address, memory.length, memory.entry)
                    .offset(position)
                    .rw_flags(flags)
                    .build()
            } else {
                opcode::Write::new(Fd(target.number), memory.address, memory.length).offset(position).rw_flags(flags).build()
            }
        }
        Submission::Flush { target } => {
            opcode::Fsync::new(Fd(target.number)).flags(io_uring::types::FsyncFlags::DATASYNC).build()
        }
        Submission::Allocate { target, mode, position, length } => {
            opcode::Fallocate::new(Fd(target.number), length).offset(position).mode(mode).build()
        }
        Submission::Readable { target } => {
            let events = u32::try_from(libc::POLLIN).expect("a positive mask");
            opcode::PollAdd::new(Fd(target.number), events).build()
        }
        Submission::Receive { target, memory, poll_first } => {
            let priority = if poll_first { RECEIVE_POLL_FIRST } else { 0 };
            opcode::Recv::new(Fd(target.number), memory.address, memory.length).ioprio(priority).build()
        }
        Submission::SendMessage { target, message, more } => {
            let flags = no_signal | if more { libc::MSG_MORE } else { 0 };
            opcode::SendMsg::new(Fd(target.number), message).flags(flags.unsigned_abs()).build()
        }
        Submission::SendZeroCopy { target, memory, more } => {
            let flags = no_signal | if more { libc::MSG_MORE } else { 0 };
            let entry = registered.then_some(memory.entry);
            opcode::SendZc::new(Fd(target.number), memory.address.cast_const(), memory.length)
                .buf_index(entry)
                .zc_flags(SEND_REPORT_USAGE)
                .flags(flags)
                .build()
        }
        Submission::Accept { target } => opcode::AcceptMulti::new(Fd(target.number)).flags(libc::SOCK_CLOEXEC).build(),
        Submission::Knock { ring } => opcode::MsgRingData::new(Fd(ring), 0, KNOCK, None).build(),
        Submission::Cancel { user_data } => opcode::AsyncCancel::new(user_data).build(),
    }
}

/// IORING_ENTER_GETEVENTS: what has ended is taken in with each entry; with DEFER_TASKRUN nothing else takes it in.
const GET_EVENTS: u32 = 1;
/// IORING_RECVSEND_POLL_FIRST: wait for bytes before the first try.
const RECEIVE_POLL_FIRST: u16 = 1;
/// IORING_SEND_ZC_REPORT_USAGE: the notification says whether the kernel copied.
const SEND_REPORT_USAGE: u16 = 1 << 3;

/// CLOCK_MONOTONIC, in nanoseconds.
pub(super) fn now_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds * 1_000_000_000 + nanos
}
