//! Threads for blocking work off the core: names and directories, locks, unlinking.
//!
//! Called by [`super::disk`], [`super::file`] and through [`crate::Env::offload`]. A job's end rings a bell, an eventfd that the core's ring
//! waits for; the core itself takes no lock. Threads start when they are needed, and the pool's end waits for them.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;

use protocol::limits::OFFLOADED_JOBS_MAX;
use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::CpuSet;
use slab::Slab;

use super::operation::Operation;
use super::ring::Ring;
use crate::local::{Notify, OnceSender, once};

/// A handle on the core's pool.
#[derive(Clone)]
pub(super) struct Pool(Rc<State>);

struct State {
    ring: Ring,
    bell: Arc<OwnedFd>,
    waiting: RefCell<Slab<Waiting>>,
    /// A place among the waiting has become free.
    room: Notify,
    jobs: Cell<Option<mpsc::Sender<Job>>>,
    queue: Arc<Mutex<mpsc::Receiver<Job>>>,
    done_sender: mpsc::Sender<Done>,
    done: mpsc::Receiver<Done>,
    threads: RefCell<Vec<JoinHandle<()>>>,
    threads_max: usize,
    name: String,
    /// Where the threads may run; where the core may if absent.
    processors: Option<CpuSet>,
}

/// A job that hasn't ended.
struct Waiting {
    sender: OnceSender<Value>,
    /// Goes when the job has ended, or with the pool, which waits for it.
    _kept: Box<dyn Any>,
}

/// What a job gave, or what it panicked with.
type Value = Result<Box<dyn Any + Send>, Box<dyn Any + Send>>;

struct Job {
    key: usize,
    work: Box<dyn FnOnce() -> Box<dyn Any + Send> + Send>,
}

struct Done {
    key: usize,
    value: Value,
}

impl Pool {
    pub(super) fn new(ring: &Ring, name: &str, threads_max: usize, processors: Option<CpuSet>) -> io::Result<Pool> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (jobs, queue) = mpsc::channel();
        let (done_sender, done) = mpsc::channel();
        Ok(Pool(Rc::new(State {
            ring: ring.clone(),
            bell,
            waiting: RefCell::default(),
            room: Notify::new(),
            jobs: Cell::new(Some(jobs)),
            queue: Arc::new(Mutex::new(queue)),
            done_sender,
            done,
            threads: RefCell::default(),
            threads_max: threads_max.max(1),
            name: format!("{name}-pool"),
            processors,
        })))
    }

    /// Runs `work` on a thread of the pool, once polled. It runs to its end even if the future is dropped then.
    pub(super) fn run<T, W>(&self, work: W) -> impl Future<Output = T> + use<T, W>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        self.run_keeping((), work)
    }

    /// The same; what `work` uses of `kept` is there until it has ended.
    pub(super) fn run_keeping<K, T, W>(&self, kept: K, work: W) -> impl Future<Output = T> + use<K, T, W>
    where
        K: 'static,
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        let pool = self.clone();
        async move {
            while pool.0.waiting.borrow().len() >= OFFLOADED_JOBS_MAX {
                pool.0.room.changed(pool.0.room.count()).await;
            }
            let (sender, receiver) = once();
            let key = pool.0.waiting.borrow_mut().insert(Waiting { sender, _kept: Box::new(kept) });
            pool.give(Job { key, work: Box::new(move || Box::new(work())) });
            match receiver.await.expect("a job gives its value") {
                Ok(value) => *value.downcast().expect("a job gives a value of its type"),
                Err(panic) => resume_unwind(panic),
            }
        }
    }

    /// The eventfd that the core's ring waits for, as long as the pool is asked what is done.
    pub(super) fn bell(&self) -> &Arc<OwnedFd> {
        &self.0.bell
    }

    fn give(&self, job: Job) {
        let mut threads = self.0.threads.borrow_mut();
        if threads.len() < self.0.threads_max.min(self.0.waiting.borrow().len()) {
            threads.push(self.0.start_thread());
        }
        let jobs = self.0.jobs.take().expect("the pool is open while there are handles");
        jobs.send(job).expect("the pool keeps the queue's other end");
        self.0.jobs.set(Some(jobs));
    }

    /// Takes what the threads have done, whenever the bell rings. Never ends.
    pub(super) async fn deliver(self) {
        loop {
            // A ring that ends cancels it; the task is dropped then.
            let _ = self.0.ring.start(Operation::Bell { bell: self.0.bell.clone() }).await;
            let mut count = [0; 8];
            // An empty bell is as good as one that was read: what is done lies in the queue.
            let _ = rustix::io::read(&*self.0.bell, &mut count);
            while let Ok(done) = self.0.done.try_recv() {
                let ended = self.0.waiting.borrow_mut().remove(done.key);
                ended.sender.send(done.value);
                self.0.room.notify();
            }
        }
    }
}

impl State {
    fn start_thread(&self) -> JoinHandle<()> {
        let (queue, done, bell, processors) = (self.queue.clone(), self.done_sender.clone(), self.bell.clone(), self.processors);
        let work = move || {
            if let Some(processors) = processors {
                // Not on the core's own processor, which the thread has from its parent; if it can't be left, it works there.
                let _ = rustix::thread::sched_setaffinity(None, &processors);
            }
            loop {
                let Ok(Ok(job)) = queue.lock().map(|queue| queue.recv()) else { return };
                let value = catch_unwind(AssertUnwindSafe(job.work));
                // Nobody listens once the core has stopped. The count is far from its maximum, so the write can't fail.
                let _ = done.send(Done { key: job.key, value });
                let _ = rustix::io::write(&*bell, &1_u64.to_ne_bytes());
            }
        };
        std::thread::Builder::new().name(self.name.clone()).spawn(work).expect("a thread of the pool starts")
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.jobs.set(None);
        for thread in self.threads.get_mut().drain(..) {
            // A job's panic was caught.
            let _ = thread.join();
        }
    }
}
