//! Sockets of a core: multishot accept, receives into chunks, gathered sends, adaptively without a copy.
//!
//! Called through the traits of [`crate::transport`] by net. Invariants: a socket's descriptor is closed when its last handle and its
//! last operation are gone; the last handle shuts it down, so that no operation of it lasts; a waiting connection
//! (`readable`) holds no memory of the region.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll};

use rustix::net::{Shutdown, sockopt};

use super::memory::Chunk;
use super::operation::{AcceptQueue, Operation, Send, Socket, closed};
use super::operations::OperationId;
use super::ring::Ring;
use crate::transport::{Connection, Listener, SendParts, Sharing, Transport};

/// How sockets are set up.
#[derive(Clone, Copy, Debug)]
pub struct SocketConfig {
    /// Connections that the kernel keeps for a listener until they are accepted.
    pub backlog: i32,
    /// A connection whose peer acknowledges nothing for this long is ended (TCP_USER_TIMEOUT), in milliseconds.
    pub unacknowledged_timeout_ms: u32,
}

impl Default for SocketConfig {
    fn default() -> SocketConfig {
        SocketConfig { backlog: 4096, unacknowledged_timeout_ms: 30_000 }
    }
}

/// The network as one core's ring reaches it.
#[derive(Clone)]
pub struct RingTransport {
    ring: Ring,
    config: SocketConfig,
}

/// A listening socket of the ring.
pub struct RingListener {
    ring: Ring,
    config: SocketConfig,
    queue: Rc<AcceptQueue>,
    operation: Cell<Option<OperationId>>,
    address: SocketAddr,
}

/// A connected stream of the ring.
#[derive(Clone)]
pub struct RingConnection(Rc<Handle>);

struct Handle {
    ring: Ring,
    socket: Rc<Socket>,
}

impl RingTransport {
    pub(super) fn new(ring: Ring, config: SocketConfig) -> RingTransport {
        RingTransport { ring, config }
    }

    /// Takes over a connected stream made elsewhere (a client's, a benchmark's).
    ///
    /// # Errors
    /// What the system says to the socket's options.
    pub fn adopt(&self, stream: TcpStream) -> io::Result<RingConnection> {
        stream.set_nonblocking(false)?;
        connection(&self.ring, &self.config, stream.into())
    }
}

impl Transport for RingTransport {
    type Listener = RingListener;
    type Connection = RingConnection;

    async fn listen(&self, address: SocketAddr, sharing: Sharing) -> io::Result<RingListener> {
        let listener = listen(address, sharing, self.config.backlog)
            .map_err(|error| io::Error::new(error.kind(), format!("listening on {address}: {error}")))?;
        let address = listener.local_addr()?;
        let descriptor = OwnedFd::from(listener);
        let registered = self.ring.register_file(&descriptor);
        let queue = Rc::new(AcceptQueue::new(Rc::new(Socket::new(descriptor, registered))));
        Ok(RingListener { ring: self.ring.clone(), config: self.config, queue, operation: Cell::new(None), address })
    }
}

impl Listener for RingListener {
    type Connection = RingConnection;

    fn local_address(&self) -> SocketAddr {
        self.address
    }

    async fn accept(&self) -> io::Result<(RingConnection, SocketAddr)> {
        let descriptor = poll_fn(|context| self.poll_accept(context)).await?;
        let stream = TcpStream::from(descriptor);
        let peer = stream.peer_addr()?;
        Ok((connection(&self.ring, &self.config, stream.into())?, peer))
    }

    fn close(&self) {
        if self.queue.socket.closed.replace(true) {
            return;
        }
        if let Some(operation) = self.operation.take()
            && self.queue.armed.get()
        {
            self.ring.cancel(operation);
        }
        // The kernel refuses new connections from here on; the descriptor goes with the last operation.
        let _ = rustix::net::shutdown(&self.queue.socket.descriptor, Shutdown::Both);
        self.queue.waiting.borrow_mut().clear();
        if let Some(waiter) = self.queue.waiter.borrow_mut().take() {
            waiter.wake();
        }
    }
}

impl RingListener {
    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<OwnedFd>> {
        let queue = &self.queue;
        if queue.socket.closed.get() {
            return Poll::Ready(Err(closed()));
        }
        let accepted = queue.waiting.borrow_mut().pop_front();
        if accepted.is_none() {
            *queue.waiter.borrow_mut() = Some(context.waker().clone());
        }
        let failed = accepted.as_ref().is_some_and(Result::is_err);
        // After an error (no descriptors left) the caller decides when to go on; armed at once, it would fail at once.
        if !queue.armed.get() && !failed {
            queue.armed.set(true);
            let operation = self.ring.start_detached(Operation::Accept { queue: queue.clone() });
            self.operation.set(Some(operation));
        }
        accepted.map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for RingListener {
    fn drop(&mut self) {
        self.close();
    }
}

impl RingConnection {
    /// Whether sends are copied by now because the kernel said that it copies anyway.
    #[must_use]
    pub fn is_plain_only(&self) -> bool {
        self.0.socket.plain_only.get()
    }
}

impl Connection for RingConnection {
    async fn readable(&self) -> io::Result<()> {
        let socket = self.0.usable()?;
        if !socket.drained.get() {
            // The last receive left bytes behind.
            return Ok(());
        }
        self.0.ring.start(Operation::Readable { socket }).await.result.map(drop)
    }

    async fn receive(&self, into: Chunk, bytes_max: usize) -> (io::Result<usize>, Chunk) {
        let bytes_max = bytes_max.min(into.remaining());
        assert!(bytes_max > 0, "a receive needs room");
        let socket = match self.0.usable() {
            Ok(socket) => socket,
            Err(error) => return (Err(error), into),
        };
        let outcome = self.0.ring.start(Operation::Receive { socket, chunk: into, bytes_max }).await;
        let Some(Operation::Receive { socket, chunk, .. }) = outcome.operation else {
            unreachable!("a receive gives its chunk back")
        };
        // A socket that is shut down reads as the end of the stream; the caller asked for its end, not the peer.
        let ended_here = socket.closed.get() && matches!(outcome.result, Ok(0));
        (if ended_here { Err(closed()) } else { outcome.result }, chunk)
    }

    async fn send(&self, parts: SendParts) -> io::Result<()> {
        let send = Send::new(self.0.usable()?, parts);
        if send.is_done() {
            return Ok(());
        }
        self.0.ring.start(Operation::Send(send)).await.result.map(drop)
    }

    fn unsent_bytes(&self) -> usize {
        self.0.socket.zero_copy_bytes.get()
    }

    fn close(&self) {
        self.0.socket.close();
    }
}

impl Handle {
    fn usable(&self) -> io::Result<Rc<Socket>> {
        if self.socket.closed.get() {
            return Err(closed());
        }
        if self.socket.bytes_lost.get() {
            let text = "a receive was dropped after it had taken bytes; the stream can't be continued";
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, text));
        }
        Ok(self.socket.clone())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.socket.close();
    }
}

fn connection(ring: &Ring, config: &SocketConfig, descriptor: OwnedFd) -> io::Result<RingConnection> {
    let socket = descriptor.as_fd();
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_tcp_user_timeout(socket, config.unacknowledged_timeout_ms)?;
    let registered = ring.register_file(&descriptor);
    Ok(RingConnection(Rc::new(Handle { ring: ring.clone(), socket: Rc::new(Socket::new(descriptor, registered)) })))
}

/// An address that others share can't be seen to be taken: so the first looks for it alone before.
fn listen(address: SocketAddr, sharing: Sharing, backlog: i32) -> io::Result<TcpListener> {
    if sharing == Sharing::First && address.port() != 0 {
        drop(bind(address, false)?);
    }
    let socket = bind(address, sharing != Sharing::Alone)?;
    rustix::net::listen(&socket, backlog)?;
    Ok(TcpListener::from(socket))
}

fn bind(address: SocketAddr, shared: bool) -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, shared)?;
    bind(&socket, &address)?;
    Ok(socket)
}
