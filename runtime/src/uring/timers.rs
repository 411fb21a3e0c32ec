//! The timers of one core: a task sleeps here, and the driver wakes it when its time has come.
//!
//! Called by [`super::environment`] (sleeps) and [`super::ring`] (which sleeps until the next one). Not the executor's own timers: those
//! cost system calls each time a core sleeps.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::ring::now_nanos;

/// A handle on the core's timers.
#[derive(Clone, Default)]
pub(super) struct Timers(Rc<State>);

#[derive(Default)]
struct State {
    /// By due time (nanoseconds of CLOCK_MONOTONIC), then by number.
    waiting: RefCell<BTreeMap<Key, Waker>>,
    next_number: Cell<u64>,
    /// The first due time of `waiting`, or the end of time.
    next_due: Cell<u64>,
    fired: RefCell<Vec<Waker>>,
}

type Key = (u64, u64);

/// Ends when its time has come. It may be polled by any task, and be dropped before.
pub(super) struct Sleep {
    timers: Timers,
    due: u64,
    key: Option<Key>,
}

impl Timers {
    pub(super) fn new() -> Timers {
        let timers = Timers::default();
        timers.note_next(&timers.0.waiting.borrow());
        timers
    }

    /// Ends after `delay`, as soon as the core gets to it.
    pub(super) fn sleep(&self, delay: Duration) -> Sleep {
        let delay = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        Sleep { timers: self.clone(), due: now_nanos().saturating_add(delay), key: None }
    }

    /// When the next timer is due; `u64::MAX` if none waits.
    pub(super) fn next_due(&self) -> u64 {
        self.0.next_due.get()
    }

    /// Wakes those whose time has come. Whether there were any.
    pub(super) fn fire(&self, now: u64) -> bool {
        if now < self.next_due() {
            return false;
        }
        let mut fired = std::mem::take(&mut *self.0.fired.borrow_mut());
        {
            let mut waiting = self.0.waiting.borrow_mut();
            while let Some(first) = waiting.first_entry().filter(|first| first.key().0 <= now) {
                fired.push(first.remove());
            }
            self.note_next(&waiting);
        }
        // Foreign code: it may start and drop timers.
        let any = !fired.is_empty();
        for waker in fired.drain(..) {
            waker.wake();
        }
        *self.0.fired.borrow_mut() = fired;
        any
    }

    fn note_next(&self, waiting: &BTreeMap<Key, Waker>) {
        self.0.next_due.set(waiting.first_key_value().map_or(u64::MAX, |((due, _), _)| *due));
    }
}

impl Sleep {
    fn forget(&mut self) {
        if let Some(key) = self.key.take() {
            let mut waiting = self.timers.0.waiting.borrow_mut();
            let waker = waiting.remove(&key);
            self.timers.note_next(&waiting);
            drop(waiting);
            drop(waker);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if now_nanos() >= self.due {
            self.forget();
            return Poll::Ready(());
        }
        let state = self.timers.0.clone();
        let key = self.key.unwrap_or_else(|| {
            let number = state.next_number.get();
            state.next_number.set(number + 1);
            (self.due, number)
        });
        self.key = Some(key);
        let mut waiting = state.waiting.borrow_mut();
        let old = waiting.insert(key, context.waker().clone());
        self.timers.note_next(&waiting);
        drop(waiting);
        drop(old);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.forget();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn poll(sleep: &mut Sleep, count: &Arc<Count>) -> Poll<()> {
        Pin::new(sleep).poll(&mut Context::from_waker(&count.clone().into()))
    }

    #[test]
    fn timers_fire_in_order_and_not_before_their_time() {
        let timers = Timers::new();
        let count = Arc::new(Count::default());
        assert_eq!(timers.next_due(), u64::MAX);
        let mut late = timers.sleep(Duration::from_secs(20));
        let mut soon = timers.sleep(Duration::from_secs(10));
        assert!(poll(&mut late, &count).is_pending() && poll(&mut soon, &count).is_pending());
        assert_eq!(timers.next_due(), soon.due);
        assert!(!timers.fire(soon.due - 1));
        assert!(timers.fire(soon.due));
        assert_eq!((count.0.load(Ordering::Relaxed), timers.next_due()), (1, late.due));
        assert!(timers.fire(u64::MAX));
        assert_eq!((count.0.load(Ordering::Relaxed), timers.next_due()), (2, u64::MAX));
    }

    #[test]
    fn a_dropped_sleep_leaves_nothing() {
        let timers = Timers::new();
        let count = Arc::new(Count::default());
        let mut sleep = timers.sleep(Duration::from_secs(10));
        assert!(poll(&mut sleep, &count).is_pending());
        drop(sleep);
        assert_eq!((timers.next_due(), timers.0.waiting.borrow().len()), (u64::MAX, 0));
        assert!(!timers.fire(u64::MAX - 1));
    }

    #[test]
    fn a_sleep_polled_again_wakes_the_last_who_asked() {
        let timers = Timers::new();
        let (first, second) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let mut sleep = timers.sleep(Duration::from_secs(10));
        assert!(poll(&mut sleep, &first).is_pending() && poll(&mut sleep, &second).is_pending());
        assert!(timers.fire(sleep.due));
        assert_eq!((first.0.load(Ordering::Relaxed), second.0.load(Ordering::Relaxed)), (0, 1));
    }

    #[test]
    fn no_time_at_all_is_over_at_once() {
        let timers = Timers::new();
        assert!(poll(&mut timers.sleep(Duration::ZERO), &Arc::new(Count::default())).is_ready());
    }
}
