//! The requests, one file each: versions served, behaviour, where it differs from Kafka's and why.
//!
//! A handler is called on the connection core, in the order of the requests. What it does before it returns is done in that
//! order (appends are); what comes later is a future that is dropped when its connection closes.

pub mod alter_topic;
mod by_owner;
pub mod create_topic;
pub mod delete_records;
pub mod delete_topic;
pub mod fetch;
pub mod hello;
pub mod init_producer;
pub mod list_offsets;
pub mod metadata;
pub mod produce;
pub mod reply;

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use net::Response;

/// A reply that comes later.
///
/// A produce request's has a type of its own, without an allocation. The others are boxed: they hold reads and waits of many
/// steps, next to which one box and one indirect call per wake-up don't count.
pub enum Reply {
    /// Waits for acknowledgements.
    Produce(produce::ProduceWait),
    /// Anything else.
    Other(Pin<Box<dyn Future<Output = Response>>>),
}

impl Future for Reply {
    type Output = Response;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Response> {
        match &mut *self {
            Reply::Produce(wait) => Pin::new(wait).poll(context),
            Reply::Other(other) => other.as_mut().poll(context),
        }
    }
}
