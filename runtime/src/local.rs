//! Signals between tasks of one core: no atomics, no locks, no allocation per wait but the list of waiters.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Wakes every task that waits, and remembers one signal when nobody does.
#[derive(Clone, Default)]
pub struct Notify(Rc<NotifyState>);

#[derive(Default)]
struct NotifyState {
    signals: Cell<u64>,
    waiters: RefCell<Vec<Waker>>,
}

impl Notify {
    /// A signal that nobody has given yet.
    #[must_use]
    pub fn new() -> Notify {
        Notify::default()
    }

    /// Wakes all who wait; who asks for [`Notify::count`] from before is not put to sleep.
    pub fn notify(&self) {
        self.0.signals.set(self.0.signals.get().wrapping_add(1));
        let waiters = std::mem::take(&mut *self.0.waiters.borrow_mut());
        for waiter in waiters {
            waiter.wake();
        }
    }

    /// How often [`Notify::notify`] was called.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.signals.get()
    }

    /// Whether a task waits.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        !self.0.waiters.borrow().is_empty()
    }

    /// Ends once `notify` has been called more than `seen` times (as given by [`Notify::count`]).
    pub fn changed(&self, seen: u64) -> impl Future<Output = ()> + use<> {
        let state = self.0.clone();
        poll_fn(move |context| {
            if state.signals.get() != seen {
                return Poll::Ready(());
            }
            let mut waiters = state.waiters.borrow_mut();
            if !waiters.iter().any(|waiter| waiter.will_wake(context.waker())) {
                waiters.push(context.waker().clone());
            }
            Poll::Pending
        })
    }
}

struct OnceState<T> {
    value: Option<T>,
    waiter: Option<Waker>,
    sender_alive: bool,
}

/// The giving end of a [`once`] pair.
pub struct OnceSender<T>(Rc<RefCell<OnceState<T>>>);

/// The waiting end of a [`once`] pair: a future of the value, or of `None` if the sender was dropped without one.
pub struct OnceReceiver<T>(Rc<RefCell<OnceState<T>>>);

/// A value handed over once, between two tasks of one core.
#[must_use]
pub fn once<T>() -> (OnceSender<T>, OnceReceiver<T>) {
    let state = Rc::new(RefCell::new(OnceState { value: None, waiter: None, sender_alive: true }));
    (OnceSender(state.clone()), OnceReceiver(state))
}

impl<T> OnceSender<T> {
    /// Gives the value; it is dropped if nobody waits any more.
    pub fn send(self, value: T) {
        self.0.borrow_mut().value = Some(value);
    }

    /// Whether the receiver was dropped.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        Rc::strong_count(&self.0) == 1
    }
}

impl<T> Drop for OnceSender<T> {
    fn drop(&mut self) {
        let waiter = {
            let mut state = self.0.borrow_mut();
            state.sender_alive = false;
            state.waiter.take()
        };
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }
}

impl<T> OnceReceiver<T> {
    /// The value, if it is there already.
    pub fn try_take(&mut self) -> Option<T> {
        self.0.borrow_mut().value.take()
    }

    /// Whether the sender has given the value, or was dropped.
    #[must_use]
    pub fn is_over(&self) -> bool {
        !self.0.borrow().sender_alive
    }
}

impl<T> Future for OnceReceiver<T> {
    type Output = Option<T>;

    fn poll(self: std::pin::Pin<&mut Self>, context: &mut std::task::Context<'_>) -> Poll<Option<T>> {
        let mut state = self.0.borrow_mut();
        if let Some(value) = state.value.take() {
            return Poll::Ready(Some(value));
        }
        if !state.sender_alive {
            return Poll::Ready(None);
        }
        state.waiter = Some(context.waker().clone());
        Poll::Pending
    }
}

/// A bounded number of places, given in the order in which they were asked for. A handle: clones give the same places.
#[derive(Clone)]
pub struct Places(Rc<PlacesState>);

struct PlacesState {
    free: Cell<usize>,
    freed: Notify,
    waiting: RefCell<VecDeque<OnceSender<Place>>>,
}

/// One of the [`Places`]; dropped, it goes to the first who still waits.
pub struct Place(Rc<PlacesState>);

impl Places {
    /// So many places, all free.
    #[must_use]
    pub fn new(count: usize) -> Places {
        Places(Rc::new(PlacesState { free: Cell::new(count), freed: Notify::new(), waiting: RefCell::default() }))
    }

    /// Places that nobody has.
    #[must_use]
    pub fn free(&self) -> usize {
        self.0.free.get()
    }

    /// A signal for each place that becomes free.
    #[must_use]
    pub fn freed(&self) -> &Notify {
        &self.0.freed
    }

    /// A place, if one is free: then nobody waits.
    #[must_use]
    pub fn try_take(&self) -> Option<Place> {
        let free = self.0.free.get().checked_sub(1)?;
        self.0.free.set(free);
        Some(Place(self.0.clone()))
    }

    /// Lines up at once; the future ends with a place. Dropped, it leaves the line.
    pub fn take(&self) -> impl Future<Output = Place> + use<> {
        let (sender, receiver) = once();
        match self.try_take() {
            Some(place) => sender.send(place),
            None => self.0.waiting.borrow_mut().push_back(sender),
        }
        async { receiver.await.expect("who waits is given a place") }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let next = {
            let mut waiting = self.0.waiting.borrow_mut();
            std::iter::from_fn(|| waiting.pop_front()).find(|next| !next.is_abandoned())
        };
        match next {
            Some(next) => next.send(Place(self.0.clone())),
            None => {
                self.0.free.set(self.0.free.get() + 1);
                self.0.freed.notify();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once};

    #[test]
    fn places_are_given_in_the_order_of_asking_to_those_who_still_wait() {
        let places = Places::new(1);
        let first = block_on(places.take());
        assert!(places.try_take().is_none());
        let (mut second, third, mut fourth) = (Box::pin(places.take()), places.take(), Box::pin(places.take()));
        assert!(block_on(poll_once(&mut fourth)).is_none());
        drop((first, third));
        assert!(block_on(poll_once(&mut fourth)).is_none() && places.try_take().is_none(), "the second's turn");
        let second = block_on(poll_once(&mut second)).unwrap();
        assert!(block_on(poll_once(&mut fourth)).is_none());
        drop(second);
        let fourth = block_on(poll_once(&mut fourth)).unwrap();
        // Given and never taken, it goes on.
        let (given, last) = (places.take(), places.take());
        drop(fourth);
        drop(given);
        drop(block_on(poll_once(Box::pin(last))).unwrap());
        assert!(places.try_take().is_some(), "it is free again");
    }

    #[test]
    fn a_signal_before_the_wait_is_not_lost() {
        let notify = Notify::new();
        let seen = notify.count();
        notify.notify();
        assert!(block_on(poll_once(notify.changed(seen))).is_some());
        assert!(block_on(poll_once(notify.changed(notify.count()))).is_none());
    }

    #[test]
    fn a_dropped_sender_ends_the_wait() {
        let (sender, receiver) = once::<u8>();
        drop(sender);
        assert_eq!(block_on(receiver), None);
        let (sender, receiver) = once();
        sender.send(7);
        assert_eq!(block_on(receiver), Some(7));
    }
}
