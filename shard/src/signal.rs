//! A signal to one task of this core, which sleeps until it is given. Lives in the shard; no allocation, no loss: a signal
//! given while the task is busy is found when it next waits.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::task::{Poll, Waker};

#[derive(Default)]
pub(crate) struct Signal {
    given: Cell<bool>,
    waiter: Cell<Option<Waker>>,
}

impl Signal {
    /// Wakes the task, now or when it next waits.
    pub(crate) fn give(&self) {
        if !self.given.replace(true)
            && let Some(waiter) = self.waiter.take()
        {
            waiter.wake();
        }
    }

    /// Ends when the signal was given since the last wait. One task waits at a time.
    pub(crate) fn wait(&self) -> impl Future<Output = ()> + '_ {
        poll_fn(|context| {
            if self.given.replace(false) {
                return Poll::Ready(());
            }
            let waiter = self.waiter.take().filter(|waiter| waiter.will_wake(context.waker()));
            self.waiter.set(Some(waiter.unwrap_or_else(|| context.waker().clone())));
            Poll::Pending
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once};

    #[test]
    fn a_signal_is_kept_until_it_is_waited_for() {
        let signal = Signal::default();
        signal.give();
        signal.give();
        assert!(block_on(poll_once(signal.wait())).is_some());
        assert!(block_on(poll_once(signal.wait())).is_none());
        signal.give();
        assert!(block_on(poll_once(signal.wait())).is_some());
    }
}
