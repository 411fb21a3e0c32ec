//! A listener: accepts, counts, refuses over the limits, runs one task per connection, sweeps their deadlines, stops.
//!
//! Lives on one core; `broker::node` makes one per listening socket.
//!
//! Invariants: a connection counts against the core and its address from its acceptance to the end of its task. What is
//! refused is closed before a byte of it is read, and counted.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use futures_lite::future;
use runtime::local::Notify;
use runtime::{Connection, Env, Listener, Transport};
use slab::Slab;

use crate::connection::{ConnectionState, Stream};
use crate::framing::Framing;
use crate::limits::ConnectionLimits;
use crate::service::{Principal, RequestContext, Service};

/// Deadlines are looked at this often.
const SWEEP_INTERVAL: Duration = Duration::from_millis(1000);
/// After a failed accept (descriptors exhausted, for one) nothing is accepted for this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a listener has seen. Read by metrics, on the same core.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections accepted.
    pub accepted: Cell<u64>,
    /// Connections closed at once, since the core or their address had too many.
    pub refused: Cell<u64>,
    /// Accepts that failed.
    pub accept_errors: Cell<u64>,
    /// Connections closed by a deadline.
    pub timed_out: Cell<u64>,
    /// Requests called.
    pub requests: Cell<u64>,
    /// Bytes received.
    pub received_bytes: Cell<u64>,
    /// Bytes sent.
    pub sent_bytes: Cell<u64>,
    /// Receives that waited for memory.
    pub memory_waits: Cell<u64>,
}

impl Counters {
    pub(crate) fn add_received(&self, bytes: usize) {
        self.received_bytes.set(self.received_bytes.get() + bytes as u64);
    }

    pub(crate) fn add_sent(&self, bytes: usize) {
        self.sent_bytes.set(self.sent_bytes.get() + bytes as u64);
    }
}

/// One listening socket and its connections. A handle: clones are the same server.
pub struct Server<E: Env, F: Framing, S: Service<F>>(Rc<ServerState<E, F, S>>);

struct ServerState<E: Env, F: Framing, S: Service<F>> {
    env: E,
    listener: <E::Transport as Transport>::Listener,
    name: &'static str,
    service: S,
    limits: ConnectionLimits,
    counters: Rc<Counters>,
    connections: RefCell<Slab<Rc<ConnectionState<E, F, S>>>>,
    per_address: RefCell<BTreeMap<IpAddr, usize>>,
    number_next: Cell<u64>,
    stopping: Cell<bool>,
    stop: Notify,
    ended: Notify,
}

impl<E: Env, F: Framing, S: Service<F>> Clone for Server<E, F, S> {
    fn clone(&self) -> Self {
        Server(self.0.clone())
    }
}

impl<E: Env, F: Framing, S: Service<F>> Server<E, F, S> {
    /// A server on a listening socket; nothing is accepted before [`Server::run`].
    pub fn new(
        env: E,
        listener: <E::Transport as Transport>::Listener,
        name: &'static str,
        service: S,
        limits: ConnectionLimits,
    ) -> Server<E, F, S> {
        Server(Rc::new(ServerState {
            env,
            listener,
            name,
            service,
            limits,
            counters: Rc::default(),
            connections: RefCell::default(),
            per_address: RefCell::default(),
            number_next: Cell::new(0),
            stopping: Cell::new(false),
            stop: Notify::new(),
            ended: Notify::new(),
        }))
    }

    /// The bound address.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.0.listener.local_address()
    }

    /// What it has seen.
    #[must_use]
    pub fn counters(&self) -> Rc<Counters> {
        self.0.counters.clone()
    }

    /// Connections open.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.0.connections.borrow().len()
    }

    /// Accepts and sweeps until [`Server::stop`].
    pub async fn run(self) {
        future::zip(self.accept_loop(), self.sweep_loop()).await;
    }

    /// Stops accepting and reading, lets the replies owed go out for up to `patience`, then closes everything. Ends when
    /// every connection has.
    pub async fn stop(&self, patience: Duration) {
        let state = &self.0;
        state.stopping.set(true);
        state.stop.notify();
        state.listener.close();
        self.for_each(ConnectionState::stop);
        future::or(self.all_ended(), state.env.sleep(patience)).await;
        self.for_each(ConnectionState::abort);
        self.all_ended().await;
    }

    async fn accept_loop(&self) {
        let state = &self.0;
        while !state.stopping.get() {
            match state.listener.accept().await {
                Ok((stream, peer)) if state.stopping.get() => {
                    tracing::debug!(%peer, "accepted while stopping: closed");
                    stream.close();
                }
                Ok((stream, peer)) => self.admit(stream, peer),
                Err(_) if state.stopping.get() => break,
                Err(error) => {
                    state.counters.accept_errors.set(state.counters.accept_errors.get() + 1);
                    tracing::warn!(listener = state.name, %error, "accept failed");
                    state.env.sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn sweep_loop(&self) {
        let state = &self.0;
        while !state.stopping.get() {
            let seen = state.stop.count();
            future::or(state.env.sleep(SWEEP_INTERVAL), state.stop.changed(seen)).await;
            let now = state.env.now();
            self.for_each(|connection| connection.sweep(now));
        }
    }

    fn admit(&self, stream: Stream<E>, peer: SocketAddr) {
        let state = &self.0;
        let address = peer.ip();
        let from_address = state.per_address.borrow().get(&address).copied().unwrap_or(0);
        if self.connection_count() >= state.limits.connections_max || from_address >= state.limits.connections_per_address_max {
            return self.refuse(&stream, peer, "too many connections");
        }
        let number = state.number_next.get();
        state.number_next.set(number + 1);
        let mut context = RequestContext {
            peer,
            listener: state.name,
            connection: number,
            client_id: String::new(),
            principal: Principal::Anonymous,
            version: None,
        };
        if let Err(refused) = state.service.open(&context) {
            return self.refuse(&stream, peer, &refused.0);
        }
        state.counters.accepted.set(state.counters.accepted.get() + 1);
        *state.per_address.borrow_mut().entry(address).or_insert(0) += 1;
        let connection =
            Rc::new(ConnectionState::new(state.env.clone(), stream, state.service.clone(), state.limits, state.counters.clone()));
        let key = state.connections.borrow_mut().insert(connection.clone());
        let server = self.clone();
        state.env.spawn(async move {
            let reason = connection.run(&mut context).await;
            tracing::debug!(%peer, connection = number, %reason, "connection closed");
            server.release(key, address);
        });
    }

    fn refuse(&self, stream: &Stream<E>, peer: SocketAddr, reason: &str) {
        let counters = &self.0.counters;
        counters.refused.set(counters.refused.get() + 1);
        tracing::debug!(%peer, reason, "connection refused");
        stream.close();
    }

    fn release(&self, key: usize, address: IpAddr) {
        let state = &self.0;
        state.connections.borrow_mut().remove(key);
        let mut per_address = state.per_address.borrow_mut();
        if let Some(count) = per_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                per_address.remove(&address);
            }
        }
        state.ended.notify();
    }

    async fn all_ended(&self) {
        loop {
            let seen = self.0.ended.count();
            if self.0.connections.borrow().is_empty() {
                return;
            }
            self.0.ended.changed(seen).await;
        }
    }

    /// Calls `act` for each connection; what `act` wakes may end connections, but only later.
    fn for_each(&self, act: impl Fn(&ConnectionState<E, F, S>)) {
        let connections: Vec<_> = self.0.connections.borrow().iter().map(|(_, connection)| connection.clone()).collect();
        for connection in connections {
            act(&connection);
        }
    }
}
