//! What a listener serves: one call per frame, in the order of the frames.
//!
//! Implemented by the broker's dispatch; called by `connection` on the connection core.

use std::future::Future;
use std::net::SocketAddr;

use runtime::SendParts;

use crate::framing::{Frame, Framing};

/// Who sends the requests of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Principal {
    /// Nobody has said; the listener doesn't ask.
    #[default]
    Anonymous,
}

/// What is known of a connection, for each of its requests.
#[derive(Clone, Debug)]
pub struct RequestContext {
    /// Address of the other end.
    pub peer: SocketAddr,
    /// Name of the listener.
    pub listener: &'static str,
    /// Number of the connection on this core, never used twice.
    pub connection: u64,
    /// What the client calls itself; empty until it says so.
    pub client_id: String,
    /// Who it is.
    pub principal: Principal,
    /// Protocol version agreed on in the dialect's handshake; `None` before it.
    pub version: Option<u16>,
}

/// A connection is turned away at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub String);

/// One reply: its parts are sent in order, behind the replies of earlier requests.
#[derive(Debug, Default)]
pub struct Response {
    /// Head, body and chunks; empty for a request that turns out to have no reply (acks=0).
    pub parts: SendParts,
    /// The connection ends behind it, and why.
    pub close: Option<Box<str>>,
}

impl From<SendParts> for Response {
    fn from(parts: SendParts) -> Response {
        Response { parts, close: None }
    }
}

impl Response {
    /// Bytes of all parts.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.as_bytes().len()).sum()
    }
}

/// What became of a request.
pub enum Call<R> {
    /// The reply is there.
    Ready(Response),
    /// The reply comes later. `bytes_max` counts against the connection's reply bytes until it is there.
    Later {
        /// Dropped if the connection closes first: what it waits for is freed (T83, T92).
        reply: R,
        /// Largest reply, in bytes.
        bytes_max: usize,
    },
    /// The request has no reply (acks=0).
    NoReply,
    /// The connection ends: earlier replies are sent, then `last`, then it closes.
    Close {
        /// A last reply.
        last: Option<Response>,
        /// Said in the log.
        reason: String,
    },
}

/// Serves the frames of one dialect. A handle: clones are the same service.
pub trait Service<F: Framing>: Clone + 'static {
    /// A reply that comes later. Polled whenever anything happens on its connection.
    type Reply: Future<Output = Response> + Unpin + 'static;

    /// A new connection.
    ///
    /// # Errors
    /// If it is not welcome.
    fn open(&self, context: &RequestContext) -> Result<(), Refused>;

    /// One request. Requests of a connection are called in order, and what this does before it returns is done in that order.
    fn call(&self, context: &mut RequestContext, frame: Frame<F::Header>) -> Call<Self::Reply>;

    /// Ends when this request may be called, in the same turn; its connection isn't read meanwhile (back-pressure). Each kind waits
    /// for what it needs only: reads go on where writes have to wait.
    fn ready(&self, header: &F::Header) -> impl Future<Output = ()>;

    /// Memory to receive into has run short: give back about `bytes` of what is only kept in case it is asked for again.
    fn make_room(&self, bytes: usize);
}
