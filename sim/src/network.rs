//! The simulated network: streams with latency, cut into pieces of random size, and resets.
//!
//! Bytes of one direction of one connection arrive in order; different connections overtake each other. A direction holds at most
//! its window: a receiver that doesn't receive stops the sender. Parts of a send are read when they travel, not when they are sent.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use runtime::local::Notify;
use runtime::uring::memory::DanglingSlice;
use runtime::{Chunk, Connection, Listener, SendPart, SendParts, Sharing, Transport};

use crate::world::{Owner, World};

/// Faults of the network; chances are in a million pieces sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct NetworkFaults {
    /// The connection is reset instead of delivering a piece.
    pub resets_ppm: u64,
    /// Latencies are multiplied by this, if not 0.
    pub slowness: u64,
}

/// All listeners of the world.
#[derive(Default)]
pub(crate) struct Network {
    /// Several of one address share it.
    listeners: RefCell<BTreeMap<SocketAddr, Vec<Rc<ListenerState>>>>,
    streams: RefCell<Vec<(Owner, std::rc::Weak<Direction>)>>,
    ports: Cell<u16>,
    pub(crate) faults: Cell<NetworkFaults>,
}

struct ListenerState {
    owner: Owner,
    address: SocketAddr,
    sharing: Sharing,
    waiting: RefCell<VecDeque<(SimConnection, SocketAddr)>>,
    changed: Notify,
    closed: Cell<bool>,
}

/// One direction of a stream.
struct Direction {
    arrived: RefCell<VecDeque<u8>>,
    travelling_bytes: Cell<usize>,
    last_arrival: Cell<u64>,
    end: Cell<End>,
    changed: Notify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    Finished,
    Reset,
}

const WINDOW_BYTES: usize = 256 << 10;
const MICROSECOND: u64 = 1_000;

impl Direction {
    fn new() -> Rc<Direction> {
        Rc::new(Direction {
            arrived: RefCell::default(),
            travelling_bytes: Cell::new(0),
            last_arrival: Cell::new(0),
            end: Cell::new(End::Open),
            changed: Notify::new(),
        })
    }

    fn held_bytes(&self) -> usize {
        self.travelling_bytes.get() + self.arrived.borrow().len()
    }

    fn stop(&self, end: End) {
        if self.end.get() == End::Open || end == End::Reset {
            self.end.set(end);
        }
        self.changed.notify();
    }
}

fn reset() -> io::Error {
    io::Error::from(io::ErrorKind::ConnectionReset)
}

/// A process's handle on the network.
#[derive(Clone)]
pub struct SimTransport {
    pub(crate) world: Rc<World>,
    pub(crate) network: Rc<Network>,
    pub(crate) owner: Owner,
    pub(crate) releases_early: bool,
}

/// A listening socket.
pub struct SimListener {
    transport: SimTransport,
    state: Rc<ListenerState>,
}

/// One end of a stream.
#[derive(Clone)]
pub struct SimConnection(Rc<EndPoint>);

struct EndPoint {
    transport: SimTransport,
    incoming: Rc<Direction>,
    outgoing: Rc<Direction>,
    closed: Cell<bool>,
}

impl Network {
    fn remove(&self, listener: &Rc<ListenerState>) {
        let mut listeners = self.listeners.borrow_mut();
        if let Some(there) = listeners.get_mut(&listener.address) {
            there.retain(|other| !Rc::ptr_eq(other, listener));
            if there.is_empty() {
                listeners.remove(&listener.address);
            }
        }
    }

    /// The process is gone: its listeners refuse, its streams are reset.
    pub(crate) fn end_owner(&self, owner: Owner) {
        self.listeners.borrow_mut().retain(|_, listeners| {
            listeners.retain(|listener| {
                if listener.owner == owner {
                    listener.closed.set(true);
                    listener.changed.notify();
                }
                listener.owner != owner
            });
            !listeners.is_empty()
        });
        self.streams.borrow_mut().retain(|(of, direction)| {
            let Some(direction) = direction.upgrade() else { return false };
            if *of == owner {
                direction.stop(End::Reset);
            }
            *of != owner
        });
    }
}

impl SimTransport {
    fn latency(&self) -> u64 {
        self.world.streams.network.latency(20 * MICROSECOND) * self.network.faults.get().slowness.max(1)
    }

    /// Who gets a connection to `address`; one of those that share it is drawn.
    fn listener(&self, address: SocketAddr) -> Option<Rc<ListenerState>> {
        let listeners = self.network.listeners.borrow();
        match &listeners.get(&address)?[..] {
            [listener] => Some(listener.clone()),
            several => Some(several[self.world.streams.network.index(several.len())].clone()),
        }
    }

    /// Connects to a listener of any host.
    ///
    /// # Errors
    /// `ConnectionRefused` if nobody listens there.
    pub async fn connect(&self, address: SocketAddr) -> io::Result<SimConnection> {
        self.world.sleep(self.latency()).await;
        let Some(listener) = self.listener(address) else { return Err(io::Error::from(io::ErrorKind::ConnectionRefused)) };
        let (there, back) = (Direction::new(), Direction::new());
        {
            let mut streams = self.network.streams.borrow_mut();
            streams.retain(|(_, direction)| direction.strong_count() > 0);
            for owner in [self.owner, listener.owner] {
                streams.extend([(owner, Rc::downgrade(&there)), (owner, Rc::downgrade(&back))]);
            }
        }
        let remote = SimTransport { owner: listener.owner, ..self.clone() };
        let far = EndPoint { transport: remote, incoming: there.clone(), outgoing: back.clone(), closed: Cell::new(false) };
        let near = EndPoint { transport: self.clone(), incoming: back, outgoing: there, closed: Cell::new(false) };
        let port = u16::try_from(self.world.number() % 30_000).unwrap_or(0) + 30_000;
        let peer = SocketAddr::from(([10, 1, 0, 1], port));
        self.world.trace("connect", &[u64::from(port)]);
        listener.waiting.borrow_mut().push_back((SimConnection(Rc::new(far)), peer));
        listener.changed.notify();
        self.world.sleep(self.latency()).await;
        Ok(SimConnection(Rc::new(near)))
    }
}

impl Transport for SimTransport {
    type Listener = SimListener;
    type Connection = SimConnection;

    async fn listen(&self, mut address: SocketAddr, sharing: Sharing) -> io::Result<SimListener> {
        if address.port() == 0 {
            let port = self.network.ports.get() + 1;
            self.network.ports.set(port);
            address.set_port(20_000 + port);
        }
        let mut listeners = self.network.listeners.borrow_mut();
        let there = listeners.entry(address).or_default();
        let shares = |other: &Rc<ListenerState>| other.owner == self.owner && other.sharing != Sharing::Alone;
        if !there.is_empty() && (sharing != Sharing::Joined || !there.iter().all(shares)) {
            return Err(io::Error::from(io::ErrorKind::AddrInUse));
        }
        let state = Rc::new(ListenerState {
            owner: self.owner,
            address,
            sharing,
            waiting: RefCell::default(),
            changed: Notify::new(),
            closed: Cell::new(false),
        });
        there.push(state.clone());
        drop(listeners);
        Ok(SimListener { transport: self.clone(), state })
    }
}

impl Listener for SimListener {
    type Connection = SimConnection;

    fn local_address(&self) -> SocketAddr {
        self.state.address
    }

    async fn accept(&self) -> io::Result<(SimConnection, SocketAddr)> {
        loop {
            let seen = self.state.changed.count();
            if self.state.closed.get() {
                return Err(io::Error::from(io::ErrorKind::ConnectionAborted));
            }
            if let Some(accepted) = self.state.waiting.borrow_mut().pop_front() {
                return Ok(accepted);
            }
            self.state.changed.changed(seen).await;
        }
    }

    fn close(&self) {
        self.state.closed.set(true);
        self.transport.network.remove(&self.state);
        self.state.changed.notify();
        for (connection, _) in std::mem::take(&mut *self.state.waiting.borrow_mut()) {
            connection.close();
        }
    }
}

/// What a piece carries until it arrives.
enum Carried {
    Held(SendPart),
    Released(DanglingSlice),
}

impl SimConnection {
    /// Puts a piece on its way; it arrives after all that left before it.
    fn transmit(&self, carried: Rc<Carried>, start: usize, length: usize) {
        let end = &self.0;
        let transport = &end.transport;
        let direction = end.outgoing.clone();
        let arrival = (transport.world.now() + transport.latency()).max(direction.last_arrival.get() + 1);
        direction.last_arrival.set(arrival);
        direction.travelling_bytes.set(direction.travelling_bytes.get() + length);
        let resets = transport.world.streams.network.chance(transport.network.faults.get().resets_ppm, 1_000_000);
        let other = end.incoming.clone();
        let world = transport.world.clone();
        transport.world.after(arrival - transport.world.now(), move || {
            direction.travelling_bytes.set(direction.travelling_bytes.get() - length);
            if resets {
                other.stop(End::Reset);
                direction.stop(End::Reset);
            }
            if direction.end.get() == End::Reset {
                return;
            }
            let mut arrived = direction.arrived.borrow_mut();
            match &*carried {
                Carried::Held(part) => arrived.extend(&part.as_bytes()[start..start + length]),
                Carried::Released(slice) => arrived.extend(&slice.copy_out()[start..start + length]),
            }
            world.trace("arrive", &[length as u64, arrived.len() as u64]);
            drop(arrived);
            direction.changed.notify();
        });
    }

    /// Received bytes in a vector of the caller's: for clients, which have no region.
    ///
    /// # Errors
    /// `ConnectionReset`.
    pub async fn receive_some(&self, bytes_max: usize) -> io::Result<Vec<u8>> {
        self.readable().await?;
        let incoming = &self.0.incoming;
        let mut arrived = incoming.arrived.borrow_mut();
        let count = self.slice(arrived.len().min(bytes_max));
        let bytes = arrived.drain(..count).collect();
        drop(arrived);
        incoming.changed.notify();
        Ok(bytes)
    }

    /// Exactly `bytes.len()` bytes; `false` if the stream ended before the first.
    ///
    /// # Errors
    /// `ConnectionReset`, `UnexpectedEof`.
    pub async fn receive_exact(&self, bytes: &mut [u8]) -> io::Result<bool> {
        let mut filled = 0;
        while filled < bytes.len() {
            let some = self.receive_some(bytes.len() - filled).await?;
            if some.is_empty() {
                return if filled == 0 { Ok(false) } else { Err(io::Error::from(io::ErrorKind::UnexpectedEof)) };
            }
            bytes[filled..filled + some.len()].copy_from_slice(&some);
            filled += some.len();
        }
        Ok(true)
    }

    /// Sends bytes of the caller's.
    ///
    /// # Errors
    /// `ConnectionReset`.
    pub async fn send_bytes(&self, bytes: Vec<u8>) -> io::Result<()> {
        self.send(std::iter::once(SendPart::Owned(bytes.into_boxed_slice())).collect()).await
    }

    fn slice(&self, available: usize) -> usize {
        let stream = &self.0.transport.world.streams.network;
        if available > 1 && stream.chance(1, 4) { 1 + stream.index(available) } else { available }
    }
}

impl Connection for SimConnection {
    async fn readable(&self) -> io::Result<()> {
        let incoming = &self.0.incoming;
        loop {
            let seen = incoming.changed.count();
            if self.0.closed.get() || incoming.end.get() == End::Reset {
                return Err(reset());
            }
            if !incoming.arrived.borrow().is_empty() || incoming.end.get() == End::Finished {
                return Ok(());
            }
            incoming.changed.changed(seen).await;
        }
    }

    async fn receive(&self, mut into: Chunk, bytes_max: usize) -> (io::Result<usize>, Chunk) {
        if let Err(error) = self.readable().await {
            return (Err(error), into);
        }
        let incoming = &self.0.incoming;
        let mut arrived = incoming.arrived.borrow_mut();
        let count = self.slice(arrived.len().min(into.remaining()).min(bytes_max));
        for (to, from) in into.writable().iter_mut().zip(arrived.drain(..count)) {
            *to = from;
        }
        into.publish(count);
        drop(arrived);
        incoming.changed.notify();
        (Ok(count), into)
    }

    async fn send(&self, parts: SendParts) -> io::Result<()> {
        let transport = &self.0.transport;
        for part in parts {
            let total = part.as_bytes().len();
            let carried = Rc::new(match part {
                SendPart::Chunk(slice) if transport.releases_early => Carried::Released(slice.into_dangling()),
                part => Carried::Held(part),
            });
            let mut start = 0;
            while start < total {
                let outgoing = &self.0.outgoing;
                let seen = outgoing.changed.count();
                if self.0.closed.get() || outgoing.end.get() != End::Open {
                    return Err(reset());
                }
                let room = WINDOW_BYTES.saturating_sub(outgoing.held_bytes());
                if room == 0 {
                    outgoing.changed.changed(seen).await;
                    continue;
                }
                let length = room.min(total - start);
                let length = if transport.world.streams.network.chance(1, 4) {
                    1 + transport.world.streams.network.index(length)
                } else {
                    length
                };
                self.transmit(carried.clone(), start, length);
                start += length;
            }
        }
        transport.world.sleep(transport.world.streams.network.latency(MICROSECOND)).await;
        if self.0.closed.get() { Err(reset()) } else { Ok(()) }
    }

    fn unsent_bytes(&self) -> usize {
        self.0.outgoing.travelling_bytes.get()
    }

    fn close(&self) {
        if self.0.closed.replace(true) {
            return;
        }
        let (incoming, outgoing) = (self.0.incoming.clone(), self.0.outgoing.clone());
        incoming.stop(End::Reset);
        // The end travels behind what was sent.
        let transport = &self.0.transport;
        let arrival = (transport.world.now() + transport.latency()).max(outgoing.last_arrival.get() + 1);
        transport.world.after(arrival - transport.world.now(), move || outgoing.stop(End::Finished));
    }
}

impl Drop for EndPoint {
    fn drop(&mut self) {
        if !self.closed.get() {
            self.incoming.stop(End::Reset);
            self.outgoing.stop(End::Reset);
        }
    }
}
