//! The replies of one connection, in the order of its requests.
//!
//! Lives on the connection core; `connection` pushes, drives and gathers. Replies that come later are polled together, so
//! that they progress side by side; only the ready ones at the front are sent, gathered into one send.
//!
//! Invariants:
//! - `bytes` is what queued replies hold or may come to hold; it falls when their bytes are handed to a send.
//! - A reply is polled once when it is new, and then only when one of them was woken: the task is woken by each receive too, and with
//!   many requests out, polling all of them each time would cost more than the requests.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use protocol::limits::{SEND_BYTES_MAX, SEND_PARTS_MAX};
use runtime::woken::Woken;
use runtime::{SendPart, SendParts};

use crate::service::Response;

#[cfg(test)]
mod tests;

enum Slot<R> {
    /// `sent` parts are gone already.
    Ready {
        parts: SendParts,
        sent: usize,
        close: Option<Box<str>>,
    },
    Later {
        reply: R,
        bytes_max: usize,
    },
}

/// Replies not handed to a send yet.
pub struct ReplyQueue<R> {
    slots: VecDeque<Slot<R>>,
    bytes: usize,
    later: usize,
    /// Slots at the front that have been polled, or were ready when they came.
    polled: usize,
    woken: Option<Woken>,
    /// A reply that was handed to a send was to be the last, and why.
    close: Option<Box<str>>,
}

impl<R> Default for ReplyQueue<R> {
    fn default() -> ReplyQueue<R> {
        ReplyQueue { slots: VecDeque::new(), bytes: 0, later: 0, polled: 0, woken: None, close: None }
    }
}

impl<R: Future<Output = Response> + Unpin> ReplyQueue<R> {
    /// Replies queued.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether nothing is queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Bytes that the queued replies hold or may come to hold.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Queues a reply that is there.
    pub fn push_ready(&mut self, response: Response) {
        self.bytes += response.bytes();
        self.slots.push_back(Slot::Ready { parts: response.parts, sent: 0, close: response.close });
    }

    /// Queues a reply that comes later.
    pub fn push_later(&mut self, reply: R, bytes_max: usize) {
        self.bytes += bytes_max;
        self.later += 1;
        self.slots.push_back(Slot::Later { reply, bytes_max });
    }

    /// Polls what comes later, as far as it is new or was woken.
    pub fn drive(&mut self, context: &mut Context<'_>) {
        if self.later == 0 {
            self.polled = self.slots.len();
            return;
        }
        let known = self.woken.take().filter(|woken| woken.is_of(context.waker()));
        let woken = known.unwrap_or_else(|| Woken::new(context.waker()));
        let from = if woken.take() { 0 } else { self.polled };
        let mut context = Context::from_waker(woken.waker());
        for slot in self.slots.range_mut(from..) {
            let Slot::Later { reply, bytes_max } = slot else { continue };
            let bytes_max = *bytes_max;
            if let Poll::Ready(response) = Pin::new(reply).poll(&mut context) {
                self.bytes = self.bytes - bytes_max + response.bytes();
                self.later -= 1;
                *slot = Slot::Ready { parts: response.parts, sent: 0, close: response.close };
            }
        }
        self.polled = self.slots.len();
        self.woken = Some(woken);
    }

    /// Takes the ready bytes at the front, up to the bounds of one send; empty if the front isn't ready.
    pub fn gather(&mut self) -> SendParts {
        let mut parts = SendParts::new();
        let mut bytes = 0;
        while let Some(Slot::Ready { parts: ready, sent, close }) = self.slots.front_mut() {
            while bytes < SEND_BYTES_MAX && parts.len() < SEND_PARTS_MAX && *sent < ready.len() {
                let part = std::mem::replace(&mut ready[*sent], SendPart::Owned(Box::default()));
                let (now, rest) = split(part, SEND_BYTES_MAX - bytes);
                bytes += now.as_bytes().len();
                if !now.as_bytes().is_empty() {
                    parts.push(now);
                }
                match rest {
                    Some(rest) => ready[*sent] = rest,
                    None => *sent += 1,
                }
            }
            if *sent < ready.len() {
                break;
            }
            let close = close.take();
            self.slots.pop_front();
            self.polled = self.polled.saturating_sub(1);
            if close.is_some() {
                // Nothing follows the last reply.
                *self = ReplyQueue { close, bytes, ..ReplyQueue::default() };
                break;
            }
        }
        self.bytes -= bytes;
        parts
    }

    /// Why the connection is to end, once the last reply was handed to a send.
    pub fn take_close(&mut self) -> Option<Box<str>> {
        self.close.take()
    }
}

/// The first `room` bytes of a part, and what is left of it.
fn split(part: SendPart, room: usize) -> (SendPart, Option<SendPart>) {
    let length = part.as_bytes().len();
    if length <= room {
        return (part, None);
    }
    match part {
        SendPart::Chunk(slice) => (SendPart::Chunk(slice.slice(0..room)), Some(SendPart::Chunk(slice.slice(room..length)))),
        SendPart::Lent(loan) => (SendPart::Lent(loan.slice(0..room)), Some(SendPart::Lent(loan.slice(room..length)))),
        SendPart::Owned(bytes) => {
            let (now, rest) = bytes.split_at(room);
            (SendPart::Owned(now.into()), Some(SendPart::Owned(rest.into())))
        }
    }
}
