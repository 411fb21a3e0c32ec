//! The mesh: bounded queues between the cores of one process, one for each ordered pair, and requests and replies over them.
//!
//! Called by broker on each core, between [`crate::Env::join`] and the core's end. A core's handle lives on that core; what crosses is owned.
//!
//! Order: requests of one core to another come in the order of sending. A request that leaves at once isn't overtaken.
//!
//! Invariants (trap 89):
//! - A request takes a credit, and gives it back when its reply has come, or the other core's end; also if nobody waits for it any more.
//! - So, with C credits from A to B, the queue from A to B holds at most C requests, the replies to at most C requests of B, and at most 2 C
//!   cancellations (one of the call that has the slot, one of the call before: that one's request was taken, the new one's stands behind
//!   its cancellation). It has room for 4 C, and a push never fails.
//! - The pump takes all that comes: replies and cancellations are settled at once, requests wait in a list of their own, of at most C per core.
//!   So a reply never waits behind a request, and two cores that are out of credits go on.
//! - A core that has ended is noticed behind all that it sent; what its peers have under way with it ends with nothing.

pub(crate) mod bell;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use protocol::ids::CoreId;
use protocol::limits::{MESH_REQUESTS_MAX, MESH_REQUESTS_PER_PAIR_MIN};
use rtrb::{Consumer, Producer, RingBuffer};
use slab::Slab;

use crate::local::{Notify, OnceReceiver, OnceSender, Place, Places, once};
use bell::{Closer, Hub};

/// Parcels of one core that the pump takes before other tasks run.
const PARCELS_PER_TURN: usize = 256;
/// Room of a queue, in requests that may be under way.
const PARCELS_PER_CREDIT: usize = 4;

/// What travels from one core to another. A slot names a call of the core that asks.
enum Parcel<Q, R> {
    Request {
        slot: u32,
        request: Q,
    },
    /// Without a reply if the answer was dropped.
    Reply {
        slot: u32,
        reply: Option<R>,
    },
    Cancellation {
        slot: u32,
    },
}

/// One core's place in a mesh, to be taken to the core's thread and given to [`crate::Env::join`]. Dropped, that core has ended for the others.
pub struct Seat<Q, R> {
    /// By core; none to itself.
    lines: Vec<Option<Line<Q, R>>>,
    closer: Closer,
}

struct Line<Q, R> {
    outgoing: Producer<Parcel<Q, R>>,
    incoming: Consumer<Parcel<Q, R>>,
}

/// The seats of a mesh of `cores`, in order.
///
/// # Panics
/// If there are more cores than [`CoreId`] has numbers.
#[must_use]
pub fn seats<Q, R>(cores: usize) -> Vec<Seat<Q, R>> {
    let hub = Arc::new(Hub::new(cores));
    let room = PARCELS_PER_CREDIT * credits(cores);
    // [from][to]: the ends of the queue.
    let mut ends: Vec<Vec<_>> =
        (0..cores).map(|from| (0..cores).map(|to| (from != to).then(|| RingBuffer::new(room)).unzip()).collect()).collect();
    let seat = |core: usize| {
        let line = |other: usize| {
            let (outgoing, incoming) = (ends[core][other].0.take(), ends[other][core].1.take());
            outgoing.zip(incoming).map(|(outgoing, incoming)| Line { outgoing, incoming })
        };
        let lines = (0..cores).map(line).collect();
        Seat { lines, closer: Closer { hub: hub.clone(), core: core_id(core) } }
    };
    (0..cores).map(seat).collect()
}

/// Requests that may be under way from one core to another.
fn credits(cores: usize) -> usize {
    (MESH_REQUESTS_MAX / cores.saturating_sub(1).max(1)).max(MESH_REQUESTS_PER_PAIR_MIN)
}

fn core_id(core: usize) -> CoreId {
    CoreId(u16::try_from(core).expect("cores are few"))
}

/// What an environment does for one core's part of the mesh.
pub trait Carrier: 'static {
    /// A parcel for `to` was put into its queue: the pump there has to be told of its arrival.
    fn sent(&self, to: CoreId);
    /// Whether the first parcel in the queue of `from` has arrived. It is taken if so.
    fn has_arrived(&self, from: CoreId) -> bool;
    /// This core's part of the mesh has ended: all other pumps have to be told.
    fn ended(&self);
}

impl<Q: Send + 'static, R: Send + 'static> Seat<Q, R> {
    /// Which core's it is.
    #[must_use]
    pub fn core(&self) -> CoreId {
        self.closer.core
    }

    /// Takes the seat, for an environment: the core's handle, and its pump, which the environment runs as a task of that core. The pump looks
    /// at its queues at each signal of `arrivals`.
    pub fn take<C: Carrier>(self, carrier: C, arrivals: Notify) -> (Mesh<Q, R>, impl Future<Output = ()> + use<Q, R, C>) {
        let credits = credits(self.lines.len());
        let peer = |line: Line<Q, R>| Peer {
            places: Places::new(credits),
            ended: Cell::new(false),
            state: RefCell::new(PeerState { line, calls: Slab::new(), asked: VecDeque::new(), answering: Vec::new() }),
        };
        let peers = self.lines.into_iter().map(|line| line.map(peer)).collect();
        let mesh = Mesh(Rc::new(Inner {
            peers,
            credits,
            first: Cell::new(0),
            asked: Notify::new(),
            carrier: Box::new(carrier),
            closer: self.closer,
        }));
        (mesh.clone(), mesh.0.pump(arrivals))
    }
}

impl<Q, R> Seat<Q, R> {
    /// Its hub, for an environment that rings.
    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.closer.hub
    }
}

/// One core's handle on the mesh; clones are the same.
pub struct Mesh<Q, R>(Rc<Inner<Q, R>>);

impl<Q, R> Clone for Mesh<Q, R> {
    fn clone(&self) -> Mesh<Q, R> {
        Mesh(self.0.clone())
    }
}

struct Inner<Q, R> {
    /// By core; none for this one.
    peers: Vec<Option<Peer<Q, R>>>,
    credits: usize,
    /// The core whose request is taken next, if it has one.
    first: Cell<usize>,
    /// A request has come.
    asked: Notify,
    carrier: Box<dyn Carrier>,
    closer: Closer,
}

struct Peer<Q, R> {
    /// The credits.
    places: Places,
    /// Noticed, behind all that it has sent.
    ended: Cell<bool>,
    state: RefCell<PeerState<Q, R>>,
}

struct PeerState<Q, R> {
    line: Line<Q, R>,
    /// Requests to that core.
    calls: Slab<Call<R>>,
    /// Requests of that core that nobody has taken, by slot.
    asked: VecDeque<(u32, Q)>,
    /// Requests of that core without an answer, by slot.
    answering: Vec<Option<Answering>>,
}

struct Call<R> {
    reply: OnceSender<R>,
    _credit: Place,
}

#[derive(Default)]
struct Answering {
    cancelled: bool,
    /// For who waits for it.
    notify: Option<Notify>,
}

/// What is left to do for a parcel when nothing is borrowed: foreign code may run.
enum Taken<R> {
    Request,
    Reply(Call<R>, Option<R>),
    Cancellation(Option<Notify>),
}

/// A call under way: ends with the reply, or with nothing if the other core has ended or dropped the answer.
/// Dropped before, it tells the other core that nobody waits.
pub struct Reply<R> {
    receiver: OnceReceiver<R>,
    /// None if the request was never sent.
    exchange: Option<Rc<dyn Exchange<R>>>,
    to: CoreId,
    slot: u32,
}

/// A request of another core.
pub struct Asked<Q, R> {
    /// Who asks.
    pub from: CoreId,
    /// What.
    pub request: Q,
    /// Where the reply goes.
    pub answer: Answer<R>,
}

/// The one reply to a request. Dropped without one, the other core gets nothing for a reply.
pub struct Answer<R> {
    exchange: Rc<dyn Exchange<R>>,
    to: CoreId,
    slot: u32,
    open: bool,
}

/// What replies and answers know of the mesh.
trait Exchange<R> {
    fn answer(&self, to: CoreId, slot: u32, reply: Option<R>);
    fn cancel(&self, to: CoreId, slot: u32);
    /// None if it is cancelled already.
    fn cancellation(&self, to: CoreId, slot: u32) -> Option<Notify>;
    fn is_cancelled(&self, to: CoreId, slot: u32) -> bool;
}

impl<Q: Send + 'static, R: Send + 'static> Mesh<Q, R> {
    /// This core.
    #[must_use]
    pub fn core(&self) -> CoreId {
        self.0.closer.core
    }

    /// Cores of the mesh, this one included.
    #[must_use]
    pub fn cores(&self) -> usize {
        self.0.peers.len()
    }

    /// Whether one request to each other core can be sent in this turn.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.0.first_full().is_none()
    }

    /// Ends when one request to each other core can be sent in the same turn. Immediately if so already.
    pub async fn ready(&self) {
        // After a wait all are looked at again: others may have taken what was free.
        while let Some(full) = self.0.first_full() {
            let freed = full.places.freed();
            freed.changed(freed.count()).await;
        }
    }

    /// Takes a credit, reserves the reply's slot and sends.
    ///
    /// # Errors
    /// The request, if there is no credit.
    ///
    /// # Panics
    /// If `to` is this core, or none of the mesh.
    pub fn try_call(&self, to: CoreId, request: Q) -> Result<Reply<R>, Q> {
        let peer = self.0.peer(to);
        if peer.ended.get() {
            return Ok(Reply { receiver: once().1, exchange: None, to, slot: 0 });
        }
        match peer.places.try_take() {
            Some(credit) => Ok(self.0.clone().send(to, request, credit)),
            None => Err(request),
        }
    }

    /// Waits for a credit, behind those who wait already, then does the same and waits for the reply. None: the other core has ended.
    ///
    /// # Panics
    /// If `to` is this core, or none of the mesh.
    pub async fn call(&self, to: CoreId, request: Q) -> Option<R> {
        let peer = self.0.peer(to);
        let credit = match peer.places.try_take() {
            Some(credit) => credit,
            None => peer.places.take().await,
        };
        if peer.ended.get() {
            return None;
        }
        self.0.clone().send(to, request, credit).await
    }

    /// Requests under way to that core.
    #[must_use]
    pub fn under_way(&self, to: CoreId) -> usize {
        self.0.peer(to).state.borrow().calls.len()
    }

    /// Requests that may be under way to one core, at most.
    #[must_use]
    pub fn credits(&self) -> usize {
        self.0.credits
    }

    /// The next request of any other core; requests of one core come in the order of sending. Fair among cores.
    pub async fn next(&self) -> Asked<Q, R> {
        loop {
            let seen = self.0.asked.count();
            if let Some(asked) = self.0.clone().next_asked() {
                return asked;
            }
            self.0.asked.changed(seen).await;
        }
    }
}

impl<Q: Send + 'static, R: Send + 'static> Inner<Q, R> {
    fn peer(&self, core: CoreId) -> &Peer<Q, R> {
        let peer = self.peers.get(usize::from(core.0)).and_then(Option::as_ref);
        peer.unwrap_or_else(|| panic!("core {core} is not another core of {}", self.peers.len()))
    }

    /// A peer that no request can be sent to now.
    fn first_full(&self) -> Option<&Peer<Q, R>> {
        self.peers.iter().flatten().find(|peer| !peer.ended.get() && peer.places.free() == 0)
    }

    fn send(self: Rc<Self>, to: CoreId, request: Q, credit: Place) -> Reply<R> {
        let (sender, receiver) = once();
        let slot = {
            let state = &mut *self.peer(to).state.borrow_mut();
            let slot = slot_of(state.calls.insert(Call { reply: sender, _credit: credit }));
            state.push(Parcel::Request { slot, request });
            slot
        };
        self.carrier.sent(to);
        Reply { receiver, exchange: Some(self), to, slot }
    }

    fn next_asked(self: Rc<Self>) -> Option<Asked<Q, R>> {
        let (cores, first) = (self.peers.len(), self.first.get());
        let (from, (slot, request)) = (first..first + cores).find_map(|at| {
            let from = at % cores;
            let asked = self.peers[from].as_ref()?.state.borrow_mut().asked.pop_front()?;
            Some((from, asked))
        })?;
        self.first.set((from + 1) % cores);
        let from = core_id(from);
        Some(Asked { from, request, answer: Answer { exchange: self, to: from, slot, open: true } })
    }

    /// Takes what arrives. Never ends.
    async fn pump(self: Rc<Self>, arrivals: Notify) {
        loop {
            let seen = arrivals.count();
            let mut more = false;
            for (from, peer) in self.peers.iter().enumerate() {
                if let Some(peer) = peer.as_ref().filter(|peer| !peer.ended.get()) {
                    more |= self.take_from(core_id(from), peer);
                }
            }
            if more {
                futures_lite::future::yield_now().await;
            } else {
                arrivals.changed(seen).await;
            }
        }
    }

    /// Takes parcels of one core. Whether there may be more than were taken in one go.
    fn take_from(&self, from: CoreId, peer: &Peer<Q, R>) -> bool {
        // Looked at before the queue: if so, the queue holds all that will ever come.
        let ended = self.closer.hub.has_ended(from);
        for _ in 0..PARCELS_PER_TURN {
            let taken = {
                let mut state = peer.state.borrow_mut();
                if state.line.incoming.is_empty() {
                    drop(state);
                    if ended {
                        peer.end();
                    }
                    return false;
                }
                if !self.carrier.has_arrived(from) {
                    return false;
                }
                state.take_one()
            };
            match taken {
                Taken::Request => self.asked.notify(),
                Taken::Reply(call, Some(reply)) => call.reply.send(reply),
                Taken::Reply(call, None) => drop(call),
                Taken::Cancellation(notify) => notify.iter().for_each(Notify::notify),
            }
        }
        true
    }
}

impl<Q, R> Peer<Q, R> {
    /// The core has ended: nobody answers its calls, nobody waits for answers.
    fn end(&self) {
        self.ended.set(true);
        let mut state = self.state.borrow_mut();
        let calls = std::mem::take(&mut state.calls);
        let cancelled: Vec<Notify> = state.answering.iter_mut().flatten().filter_map(Answering::cancel).collect();
        drop(state);
        drop(calls);
        cancelled.iter().for_each(Notify::notify);
    }
}

impl<Q, R> PeerState<Q, R> {
    fn push(&mut self, parcel: Parcel<Q, R>) {
        assert!(self.line.outgoing.push(parcel).is_ok(), "a queue between cores has room for all that credits allow");
    }

    fn take_one(&mut self) -> Taken<R> {
        match self.line.incoming.pop().expect("a queue that isn't empty has a parcel, and one who takes it") {
            Parcel::Request { slot, request } => {
                let index = slot as usize;
                if self.answering.len() <= index {
                    self.answering.resize_with(index + 1, || None);
                }
                let before = self.answering[index].replace(Answering::default());
                assert!(before.is_none(), "slot {slot} was used again before its request was answered");
                self.asked.push_back((slot, request));
                Taken::Request
            }
            Parcel::Reply { slot, reply } => Taken::Reply(self.calls.remove(slot as usize), reply),
            // The answer may have left meanwhile.
            Parcel::Cancellation { slot } => {
                Taken::Cancellation(self.answering[slot as usize].as_mut().and_then(Answering::cancel))
            }
        }
    }
}

impl Answering {
    /// Who is to be told.
    fn cancel(&mut self) -> Option<Notify> {
        self.cancelled = true;
        self.notify.take()
    }
}

impl<Q: Send + 'static, R: Send + 'static> Exchange<R> for Inner<Q, R> {
    fn answer(&self, to: CoreId, slot: u32, reply: Option<R>) {
        let peer = self.peer(to);
        let mut state = peer.state.borrow_mut();
        let answering = state.answering[slot as usize].take();
        assert!(answering.is_some(), "slot {slot} was answered twice");
        if !peer.ended.get() {
            state.push(Parcel::Reply { slot, reply });
            drop(state);
            self.carrier.sent(to);
        }
    }

    fn cancel(&self, to: CoreId, slot: u32) {
        self.peer(to).state.borrow_mut().push(Parcel::Cancellation { slot });
        self.carrier.sent(to);
    }

    fn cancellation(&self, to: CoreId, slot: u32) -> Option<Notify> {
        let mut state = self.peer(to).state.borrow_mut();
        let answering = state.answering[slot as usize].as_mut().expect("an answer that wasn't sent has its slot");
        (!answering.cancelled).then(|| answering.notify.get_or_insert_with(Notify::new).clone())
    }

    fn is_cancelled(&self, to: CoreId, slot: u32) -> bool {
        let state = self.peer(to).state.borrow();
        state.answering[slot as usize].as_ref().expect("an answer that wasn't sent has its slot").cancelled
    }
}

impl<Q, R> Drop for Inner<Q, R> {
    fn drop(&mut self) {
        self.carrier.ended();
    }
}

impl<R> Future for Reply<R> {
    type Output = Option<R>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<R>> {
        Pin::new(&mut self.receiver).poll(context)
    }
}

impl<R> Drop for Reply<R> {
    fn drop(&mut self) {
        // Once it is over, its slot may be another call's.
        if let Some(exchange) = self.exchange.take().filter(|_| !self.receiver.is_over()) {
            exchange.cancel(self.to, self.slot);
        }
    }
}

impl<R> Answer<R> {
    /// Sends the reply.
    pub fn send(mut self, reply: R) {
        self.open = false;
        self.exchange.answer(self.to, self.slot, Some(reply));
    }

    /// Whether nobody waits for the reply any more.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.exchange.is_cancelled(self.to, self.slot)
    }

    /// Ends when nobody waits for the reply any more.
    pub fn cancelled(&self) -> impl Future<Output = ()> + use<R> {
        let notify = self.exchange.cancellation(self.to, self.slot);
        async move {
            if let Some(notify) = notify {
                notify.changed(0).await;
            }
        }
    }
}

impl<R> Drop for Answer<R> {
    fn drop(&mut self) {
        if self.open {
            self.exchange.answer(self.to, self.slot, None);
        }
    }
}

fn slot_of(key: usize) -> u32 {
    u32::try_from(key).expect("calls are few")
}

#[cfg(test)]
mod tests;
