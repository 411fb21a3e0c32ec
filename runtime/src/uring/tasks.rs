//! The tasks of one core.
//!
//! Called by [`super::environment`], [`super::disk`] and [`super::file`]. glommio drops no task that sleeps when its executor ends; so each task is
//! registered here, and [`Tasks::stop`] has all of them dropped, before the ring and the region go.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use slab::Slab;

use crate::local::Notify;

/// A handle on the core's tasks.
#[derive(Clone, Default)]
pub(super) struct Tasks(Rc<State>);

#[derive(Default)]
struct State {
    stopping: Cell<bool>,
    polls: Cell<u64>,
    wakers: RefCell<Slab<Option<Waker>>>,
    ended: Notify,
}

impl Tasks {
    /// Starts a task. It first runs when the executor gets to it, never inside this call.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let state = self.0.clone();
        if state.stopping.get() {
            return;
        }
        let key = state.wakers.borrow_mut().insert(None);
        let registered = async move {
            {
                let mut task = pin!(task);
                poll_fn(|context| {
                    state.polls.set(state.polls.get() + 1);
                    if state.stopping.get() {
                        return Poll::Ready(());
                    }
                    let mut wakers = state.wakers.borrow_mut();
                    match &mut wakers[key] {
                        Some(known) if known.will_wake(context.waker()) => {}
                        known => *known = Some(context.waker().clone()),
                    }
                    drop(wakers);
                    task.as_mut().poll(context)
                })
                .await;
            }
            let waker = state.wakers.borrow_mut().remove(key);
            drop(waker);
            state.ended.notify();
        };
        spawn_later(registered);
    }

    /// Counts each poll of `future`, as of every task: what was polled in between tells the driver that the core isn't idle.
    pub(super) fn counted<T>(&self, future: impl Future<Output = T>) -> impl Future<Output = T> {
        let state = self.0.clone();
        async move {
            let mut future = pin!(future);
            poll_fn(|context| {
                state.polls.set(state.polls.get() + 1);
                future.as_mut().poll(context)
            })
            .await
        }
    }

    /// Polls of tasks so far.
    pub(super) fn polls(&self) -> u64 {
        self.0.polls.get()
    }

    /// Has every task dropped, and ends when they are.
    pub(super) async fn stop(&self) {
        self.0.stopping.set(true);
        loop {
            let seen = self.0.ended.count();
            let wakers: Vec<Waker> = self.0.wakers.borrow().iter().filter_map(|(_, waker)| waker.clone()).collect();
            if self.0.wakers.borrow().is_empty() {
                return;
            }
            for waker in wakers {
                waker.wake();
            }
            self.0.ended.changed(seen).await;
        }
    }
}

/// Starts a task that first runs when the executor gets to it (glommio's `spawn_local` runs it at once).
pub(super) fn spawn_later(task: impl Future<Output = ()> + 'static) {
    let queue = glommio::executor().current_task_queue();
    match glommio::spawn_local_into(task, queue) {
        Ok(task) => drop(task.detach()),
        Err(error) => panic!("the core's own task queue refused a task: {error}"),
    }
}
