//! The network as a core sees it: stream connections that receive into chunks and send gathered parts.

use std::future::Future;
use std::io;
use std::net::SocketAddr;

use smallvec::SmallVec;

use crate::uring::lending::Loan;
use crate::uring::memory::{Chunk, ChunkSlice};

/// One part of a gathered send.
#[derive(Clone, Debug)]
pub enum SendPart {
    /// Bytes made for this send (headers, bodies).
    Owned(Box<[u8]>),
    /// Bytes of a chunk: sent from where they lie, held until the kernel no longer reads them.
    Chunk(ChunkSlice),
    /// The same of another core's chunk.
    Lent(Loan),
}

impl SendPart {
    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            SendPart::Owned(bytes) => bytes,
            SendPart::Chunk(slice) => slice,
            SendPart::Lent(loan) => loan,
        }
    }
}

/// The parts of one send, in order.
pub type SendParts = SmallVec<[SendPart; 4]>;

/// Who else may listen on an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Nobody.
    Alone,
    /// Other cores of this process; this one is the first, so the address must be free. It may be taken in between by another process
    /// of this user that shares it too.
    First,
    /// Other cores of this process; the first listens already.
    Joined,
}

/// The network of a host.
pub trait Transport: Clone + 'static {
    /// A listening socket.
    type Listener: Listener<Connection = Self::Connection>;
    /// A connected stream.
    type Connection: Connection;

    /// Listens on `address`; port 0 takes any free port. Of listeners that share an address, each connection goes to one.
    fn listen(&self, address: SocketAddr, sharing: Sharing) -> impl Future<Output = io::Result<Self::Listener>>;
}

/// A listening socket.
pub trait Listener: 'static {
    /// What it accepts.
    type Connection: Connection;

    /// The bound address, with the actual port.
    fn local_address(&self) -> SocketAddr;
    /// The next connection and its peer's address. Errors of one connection (ECONNABORTED, EMFILE) are returned, and
    /// accepting goes on.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Connection, SocketAddr)>>;
    /// Stops listening; a pending `accept` ends with an error.
    fn close(&self);
}

/// A connected stream. A handle: clones are the same stream. At most one receive and one send are under way.
pub trait Connection: Clone + 'static {
    /// Ends when bytes, the end of the stream or an error can be received. Holds no memory meanwhile.
    fn readable(&self) -> impl Future<Output = io::Result<()>>;
    /// Receives from one to `bytes_max` bytes, as far as they fit, behind what `into` holds already, and publishes them; 0 is the end
    /// of the stream.
    fn receive(&self, into: Chunk, bytes_max: usize) -> impl Future<Output = (io::Result<usize>, Chunk)>;
    /// Sends all parts in order. Short sends are continued. Ends when the kernel has taken all bytes; parts sent
    /// without a copy stay held until their notification, beyond the end of this future.
    fn send(&self, parts: SendParts) -> impl Future<Output = io::Result<()>>;
    /// Bytes of chunks that unfinished zero-copy sends of this connection hold.
    fn unsent_bytes(&self) -> usize;
    /// Shuts both directions down: what is under way ends with an error, the descriptor is closed when nothing uses it.
    /// The peer still gets what was sent, unless a send is under way: then the connection is reset, and its memory comes back
    /// at once. Dropping the last handle closes.
    fn close(&self);
}
