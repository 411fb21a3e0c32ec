//! The deterministic world: one thread, virtual time, tasks and events, random streams, and the trace.
//!
//! What runs next is drawn from the scheduler's stream among the ready tasks; time moves a little with each step and jumps to the
//! next event when nothing is ready. Nothing here reads a clock or an address, so one seed gives one run.
//!
//! Invariants:
//! - An event runs at its time or later, in order of (time, number); never twice.
//! - A task belongs to an owner (an incarnation of a host, or the controller); tasks of a dead owner are never polled again.
//! - The trace hash covers every step, every completion and what it carried.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use runtime::Region;
use runtime::local::{OnceReceiver, once};

use crate::random::{Stream, mix};

/// Who a task belongs to; 0 is the controller, which no crash ends.
pub type Owner = u64;

/// The owner of the test itself.
pub const CONTROLLER: Owner = 0;

type Event = Box<dyn FnOnce()>;
type TaskFuture = Pin<Box<dyn Future<Output = ()>>>;

/// Separate streams, so that one more draw of one concern leaves the others as they were.
pub(crate) struct Streams {
    pub scheduler: Stream,
    pub disk: Stream,
    pub crash: Stream,
    pub network: Stream,
    pub environment: Stream,
    pub workload: Stream,
    pub mesh: Stream,
}

/// One deterministic world.
pub struct World {
    now: Cell<u64>,
    numbers: Cell<u64>,
    steps: Cell<u64>,
    events: RefCell<BTreeMap<(u64, u64), Event>>,
    tasks: RefCell<BTreeMap<u64, Task>>,
    /// Of processes with several cores: what one has lent may come back at any step.
    regions: RefCell<Vec<(Owner, Region)>>,
    ready: Arc<ReadyQueue>,
    pub(crate) streams: Streams,
    hash: Cell<u64>,
    print: bool,
}

struct Task {
    owner: Owner,
    future: Option<TaskFuture>,
    waker: Arc<TaskWaker>,
}

#[derive(Default)]
struct ReadyQueue(Mutex<Vec<u64>>);

struct TaskWaker {
    task: u64,
    queued: AtomicBool,
    ready: Arc<ReadyQueue>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.ready.0.lock().expect("one thread only").push(self.task);
        }
    }
}

/// Why a run ended before its future did.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Nothing is ready and nothing is due: the future waits for ever.
    #[error("deadlock at {now_ns} ns after {steps} steps: no task is ready, no event is due")]
    Deadlock {
        /// Virtual time.
        now_ns: u64,
        /// Steps run.
        steps: u64,
    },
    /// The limit of steps or of virtual time is passed.
    #[error("not finished after {steps} steps, {now_ns} ns of virtual time")]
    Limit {
        /// Virtual time.
        now_ns: u64,
        /// Steps run.
        steps: u64,
    },
}

/// Bounds of one run.
#[derive(Clone, Copy, Debug)]
pub struct RunLimits {
    /// Steps (polls and events), at most.
    pub steps_max: u64,
    /// Virtual time, in nanoseconds, at most.
    pub time_ns_max: u64,
}

impl World {
    pub(crate) fn new(seed: u64, print: bool) -> Rc<World> {
        Rc::new(World {
            now: Cell::new(1_000_000_000),
            numbers: Cell::new(1),
            steps: Cell::new(0),
            events: RefCell::default(),
            tasks: RefCell::default(),
            regions: RefCell::default(),
            ready: Arc::default(),
            streams: Streams {
                scheduler: Stream::new(seed, "scheduler"),
                disk: Stream::new(seed, "disk"),
                crash: Stream::new(seed, "crash"),
                network: Stream::new(seed, "network"),
                environment: Stream::new(seed, "environment"),
                workload: Stream::new(seed, "workload"),
                mesh: Stream::new(seed, "mesh"),
            },
            hash: Cell::new(mix(seed)),
            print,
        })
    }

    /// Virtual nanoseconds.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now.get()
    }

    /// Polls and events run so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps.get()
    }

    /// Hash of everything that has happened.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.hash.get()
    }

    /// The next number of a world-wide sequence.
    pub(crate) fn number(&self) -> u64 {
        let number = self.numbers.get();
        self.numbers.set(number + 1);
        number
    }

    /// Notes what happened: `kind` and its numbers go into the trace.
    pub fn trace(&self, kind: &'static str, words: &[u64]) {
        let mut hash = kind.bytes().fold(self.hash.get() ^ self.now.get(), |hash, byte| mix(hash ^ u64::from(byte)));
        for word in words {
            hash = mix(hash.rotate_left(7) ^ word);
        }
        self.hash.set(hash);
        if self.print {
            eprintln!("{:>16} {kind} {words:x?}", self.now.get());
        }
    }

    /// A line in the printed trace, made only when it is printed.
    pub fn note(&self, text: impl FnOnce() -> String) {
        if self.print {
            eprintln!("{:>16} -- {}", self.now.get(), text());
        }
    }

    /// Runs `event` after `delay_ns`.
    pub(crate) fn after(&self, delay_ns: u64, event: impl FnOnce() + 'static) {
        let key = (self.now.get().saturating_add(delay_ns), self.number());
        self.events.borrow_mut().insert(key, Box::new(event));
    }

    /// Ends after `delay_ns`.
    pub(crate) fn sleep(&self, delay_ns: u64) -> OnceReceiver<()> {
        let (sender, receiver) = once();
        self.after(delay_ns, move || sender.send(()));
        receiver
    }

    pub(crate) fn spawn(&self, owner: Owner, future: impl Future<Output = ()> + 'static) {
        let task = self.number();
        let waker = Arc::new(TaskWaker { task, queued: AtomicBool::new(false), ready: self.ready.clone() });
        waker.clone().wake();
        self.tasks.borrow_mut().insert(task, Task { owner, future: Some(Box::pin(future)), waker });
    }

    /// Ends every task of `owner`.
    pub(crate) fn end_owner(&self, owner: Owner) {
        let dead: Vec<Task> = {
            let mut tasks = self.tasks.borrow_mut();
            let ids: Vec<u64> = tasks.iter().filter(|(_, task)| task.owner == owner).map(|(&id, _)| id).collect();
            ids.iter().filter_map(|id| tasks.remove(id)).collect()
        };
        drop(dead);
        self.regions.borrow_mut().retain(|&(of, _)| of != owner);
    }

    /// Takes in what comes back to `region` after each step, as a core's driver does each turn.
    pub(crate) fn collect_each_step(&self, owner: Owner, region: Region) {
        self.regions.borrow_mut().push((owner, region));
    }

    /// Drops all tasks and events: they hold handles of this world.
    pub(crate) fn clear(&self) {
        self.regions.take();
        loop {
            let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
            let events = std::mem::take(&mut *self.events.borrow_mut());
            if tasks.is_empty() && events.is_empty() {
                return;
            }
            drop(tasks);
            drop(events);
        }
    }

    /// Runs until `finished` says so.
    pub(crate) fn run_until(&self, limits: RunLimits, finished: impl Fn() -> bool) -> Result<(), RunError> {
        while !finished() {
            if self.steps.get() >= limits.steps_max || self.now.get() >= limits.time_ns_max {
                return Err(RunError::Limit { now_ns: self.now.get(), steps: self.steps.get() });
            }
            self.steps.set(self.steps.get() + 1);
            for (_, region) in &*self.regions.borrow() {
                region.collect();
            }
            if self.fire_due() || self.poll_one() {
                continue;
            }
            let next = self.events.borrow().keys().next().map(|&(at, _)| at);
            match next {
                Some(at) => self.now.set(at.max(self.now.get())),
                None => return Err(RunError::Deadlock { now_ns: self.now.get(), steps: self.steps.get() }),
            }
        }
        Ok(())
    }

    fn fire_due(&self) -> bool {
        let event = {
            let mut events = self.events.borrow_mut();
            match events.first_entry() {
                Some(entry) if entry.key().0 <= self.now.get() => entry.remove(),
                _ => return false,
            }
        };
        event();
        true
    }

    fn poll_one(&self) -> bool {
        let task = {
            let mut ready = self.ready.0.lock().expect("one thread only");
            if ready.is_empty() {
                return false;
            }
            let index = self.streams.scheduler.index(ready.len());
            ready.swap_remove(index)
        };
        let (mut future, waker) = {
            let mut tasks = self.tasks.borrow_mut();
            let Some(entry) = tasks.get_mut(&task) else { return true };
            let Some(future) = entry.future.take() else { return true };
            (future, entry.waker.clone())
        };
        waker.queued.store(false, Ordering::Relaxed);
        // A step takes time, so that a loop of yields can't stop the clock.
        self.now.set(self.now.get() + self.streams.scheduler.between(50, 2_000));
        self.trace("poll", &[task]);
        let waker = Waker::from(waker);
        let done = future.as_mut().poll(&mut Context::from_waker(&waker));
        let mut tasks = self.tasks.borrow_mut();
        match done {
            Poll::Ready(()) => {
                let finished = tasks.remove(&task);
                drop(tasks);
                drop(finished);
                drop(future);
            }
            Poll::Pending => match tasks.get_mut(&task) {
                Some(entry) => entry.future = Some(future),
                None => {
                    // Its owner was ended while it ran.
                    drop(tasks);
                    drop(future);
                }
            },
        }
        true
    }
}
