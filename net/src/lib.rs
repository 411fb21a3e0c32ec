//! Listeners, connections, frames and ordered replies. Generic over [`runtime::Env`] and over the framing of a dialect.
//!
//! What lives here knows nothing of topics: it cuts frames out of a byte stream in place, calls a [`Service`] once per
//! frame in order, and sends the replies in that order.
#![forbid(unsafe_code)]

pub mod connection;
pub mod framing;
pub mod limits;
pub mod native;
pub mod reply_queue;
pub mod server;
pub mod service;
pub mod splitter;

pub use framing::{Frame, FrameRefused, FrameShape, Framing};
pub use limits::ConnectionLimits;
pub use native::Native;
pub use server::Server;
pub use service::{Call, Principal, Refused, RequestContext, Response, Service};
