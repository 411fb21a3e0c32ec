//! One connection: receive, cut, call in order, reply in order, one gathered send of all that is ready.
//!
//! Lives on the connection core, as one task that polls three things in turn: the reader, the replies that come later,
//! the writer. `server` starts it, sweeps its deadlines and stops it.
//!
//! Invariants:
//! - A request is called only when its reply has room (requests and bytes) and the service is ready; else the socket isn't read.
//! - When the peer is gone the task ends and drops the replies that wait, with all that they hold (T83, T92).
//! - No borrow lives across an await; memory is held only between "readable" and the last cut frame, or for a partial frame.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use protocol::limits::{RECEIVE_CHUNK_BYTES, RECEIVE_RESERVE_DIVISOR};
use runtime::local::Notify;
use runtime::{Chunk, Connection, Env, Monotonic, SendParts, Transport};

use crate::framing::{Frame, Framing};
use crate::limits::ConnectionLimits;
use crate::reply_queue::ReplyQueue;
use crate::server::Counters;
use crate::service::{Call, RequestContext, Service};
use crate::splitter::Splitter;

/// A core runs nothing longer than this without letting others run.
const TURN_MAX: Duration = Duration::from_micros(500);

/// The stream type of an environment.
pub(crate) type Stream<E> = <<E as Env>::Transport as Transport>::Connection;

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The peer closed it, or it broke.
    Disconnected(String),
    /// The bytes are no frames.
    BadFrame(String),
    /// The service ended it.
    ByService(String),
    /// A deadline passed.
    TimedOut(&'static str),
    /// The host stops.
    Stopped,
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseReason::Disconnected(error) => write!(f, "disconnected: {error}"),
            CloseReason::BadFrame(error) => write!(f, "not a frame: {error}"),
            CloseReason::ByService(reason) => write!(f, "ended by the host: {reason}"),
            CloseReason::TimedOut(what) => write!(f, "timed out: {what}"),
            CloseReason::Stopped => f.write_str("the host stops"),
        }
    }
}

/// What the reader waits for, and since when.
#[derive(Clone, Copy)]
enum Waiting {
    FirstRequest(Monotonic),
    RestOfFrame(Monotonic),
    Request,
}

/// The state of a connection, shared by its task and the sweep.
pub(crate) struct ConnectionState<E: Env, F: Framing, S: Service<F>> {
    env: E,
    stream: Stream<E>,
    service: S,
    limits: ConnectionLimits,
    counters: Rc<Counters>,
    splitter: RefCell<Splitter<F>>,
    queue: RefCell<ReplyQueue<S::Reply>>,
    opened: Monotonic,
    last_activity: Cell<Monotonic>,
    waiting: Cell<Option<Waiting>>,
    sending_since: Cell<Option<Monotonic>>,
    timed_out: Cell<Option<&'static str>>,
    room: Notify,
    stop: Notify,
    aborted: Cell<bool>,
}

impl<E: Env, F: Framing, S: Service<F>> ConnectionState<E, F, S> {
    pub(crate) fn new(env: E, stream: Stream<E>, service: S, limits: ConnectionLimits, counters: Rc<Counters>) -> Self {
        let opened = env.now();
        ConnectionState {
            env,
            stream,
            service,
            limits,
            counters,
            splitter: RefCell::default(),
            queue: RefCell::default(),
            opened,
            last_activity: Cell::new(opened),
            waiting: Cell::new(None),
            sending_since: Cell::new(None),
            timed_out: Cell::new(None),
            room: Notify::new(),
            stop: Notify::new(),
            aborted: Cell::new(false),
        }
    }

    /// Serves the connection to its end.
    pub(crate) async fn run(&self, context: &mut RequestContext) -> CloseReason {
        let mut ended = None;
        {
            let mut reader = pin!(self.read(context));
            let mut writer = pin!(self.write());
            let mut stop = pin!(self.stop.changed(0));
            let mut abort = pin!(self.aborted());
            poll_fn(|task| {
                if ended.is_none()
                    && let Poll::Ready(reason) = reader.as_mut().poll(task)
                {
                    ended = Some(reason);
                }
                if ended.is_none() && stop.as_mut().poll(task).is_ready() {
                    ended = Some(CloseReason::Stopped);
                }
                if abort.as_mut().poll(task).is_ready() || matches!(ended, Some(CloseReason::Disconnected(_))) {
                    return Poll::Ready(());
                }
                self.queue.borrow_mut().drive(task);
                if let Poll::Ready(error) = writer.as_mut().poll(task) {
                    ended.get_or_insert(CloseReason::Disconnected(error.to_string()));
                    return Poll::Ready(());
                }
                if let Some(reason) = self.queue.borrow_mut().take_close() {
                    ended.get_or_insert(CloseReason::ByService(reason.into()));
                }
                // What ended for another reason than the peer first sends the replies that it owes.
                if ended.is_some() && self.queue.borrow().is_empty() && self.sending_since.get().is_none() {
                    return Poll::Ready(());
                }
                Poll::Pending
            })
            .await;
        }
        self.stream.close();
        self.queue.replace(ReplyQueue::default());
        match self.timed_out.get() {
            Some(what) => CloseReason::TimedOut(what),
            None => ended.unwrap_or(CloseReason::Stopped),
        }
    }

    /// Reads no more; the connection ends when the replies owed are sent.
    pub(crate) fn stop(&self) {
        self.stop.notify();
    }

    /// Ends at once.
    pub(crate) fn abort(&self) {
        self.aborted.set(true);
        self.stop.notify();
        self.stream.close();
    }

    /// Closes the connection if a deadline has passed, and shrinks what a stalled frame holds. Called about once a second.
    pub(crate) fn sweep(&self, now: Monotonic) {
        if self.timed_out.get().is_some() {
            return;
        }
        let limits = &self.limits;
        let late = match self.waiting.get() {
            Some(Waiting::FirstRequest(since)) if now.since(since) > limits.first_request_timeout => Some("no first request"),
            Some(Waiting::RestOfFrame(since)) if now.since(since) > limits.partial_frame_timeout => Some("the rest of a frame"),
            Some(Waiting::Request) if self.is_idle(now) => Some("idle"),
            Some(_) | None => None,
        };
        let slow = self.sending_since.get().is_some_and(|since| now.since(since) > limits.send_timeout);
        if let Some(what) = if slow { Some("the peer doesn't read") } else { late } {
            self.timed_out.set(Some(what));
            self.counters.timed_out.set(self.counters.timed_out.get() + 1);
            self.stream.close();
        } else if matches!(self.waiting.get(), Some(Waiting::FirstRequest(_) | Waiting::RestOfFrame(_))) {
            self.splitter.borrow_mut().shrink(self.env.region());
        }
    }

    /// Whether there has been nothing to do for too long. A request that waits for its reply is something to do.
    fn is_idle(&self, now: Monotonic) -> bool {
        let owes_nothing = self.queue.borrow().is_empty() && self.sending_since.get().is_none();
        owes_nothing && now.since(self.last_activity.get()) > self.limits.idle_timeout
    }

    async fn aborted(&self) {
        while !self.aborted.get() {
            self.stop.changed(self.stop.count()).await;
        }
    }

    async fn read(&self, context: &mut RequestContext) -> CloseReason {
        let mut called = false;
        let mut first_since = self.opened;
        let mut partial_since = None;
        let mut turn = self.env.now();
        loop {
            let paused = self.wait_for_room().await;
            first_since = first_since + paused;
            partial_since = partial_since.map(|since: Monotonic| since + paused);
            let next = self.splitter.borrow_mut().next_frame();
            match next {
                Err(refused) => return CloseReason::BadFrame(refused.0),
                Ok(Some(frame)) => {
                    called = true;
                    partial_since = None;
                    self.service.ready(&frame.header).await;
                    if let Some(reason) = self.call(context, frame) {
                        return reason;
                    }
                    let now = self.env.now();
                    self.last_activity.set(now);
                    if now.since(turn) > TURN_MAX {
                        self.env.yield_now().await;
                        turn = self.env.now();
                    }
                    continue;
                }
                Ok(None) => {}
            }
            if self.splitter.borrow().partial_bytes() > 0 {
                partial_since = partial_since.or_else(|| Some(self.env.now()));
            }
            self.waiting.set(Some(match partial_since {
                _ if !called => Waiting::FirstRequest(first_since),
                Some(since) => Waiting::RestOfFrame(since),
                None => Waiting::Request,
            }));
            let received = self.receive().await;
            self.waiting.set(None);
            turn = self.env.now();
            match received {
                Ok(0) => return CloseReason::Disconnected("end of stream".into()),
                Ok(count) => self.counters.add_received(count),
                Err(error) => return CloseReason::Disconnected(error.to_string()),
            }
        }
    }

    /// Waits until the reply of one more request has room; gives the time that this took.
    async fn wait_for_room(&self) -> Duration {
        if self.has_room() {
            return Duration::ZERO;
        }
        let began = self.env.now();
        while !self.has_room() {
            self.room.changed(self.room.count()).await;
        }
        self.env.now().since(began)
    }

    fn has_room(&self) -> bool {
        let queue = self.queue.borrow();
        queue.len() < self.limits.requests_in_flight_max && queue.bytes() < self.limits.reply_bytes_max
    }

    fn call(&self, context: &mut RequestContext, frame: Frame<F::Header>) -> Option<CloseReason> {
        self.counters.requests.set(self.counters.requests.get() + 1);
        match self.service.call(context, frame) {
            Call::Ready(response) => self.queue.borrow_mut().push_ready(response),
            Call::Later { reply, bytes_max } => self.queue.borrow_mut().push_later(reply, bytes_max),
            Call::NoReply => {}
            Call::Close { last, reason } => {
                if let Some(response) = last {
                    self.queue.borrow_mut().push_ready(response);
                }
                return Some(CloseReason::ByService(reason));
            }
        }
        None
    }

    /// One receive. Memory is taken only once there is something to receive.
    async fn receive(&self) -> io::Result<usize> {
        self.splitter.borrow_mut().rest();
        self.stream.readable().await?;
        let chunk = self.chunk_to_receive().await;
        let bytes_max = self.splitter.borrow().receive_bytes_max(&chunk);
        let (result, chunk) = self.stream.receive(chunk, bytes_max).await;
        self.splitter.borrow_mut().received(chunk);
        result
    }

    /// Waits for memory to receive into. The last share of the region is left to writes: frames that wait for room in a log would
    /// else hold the memory that is needed to make that room.
    async fn chunk_to_receive(&self) -> Chunk {
        let region = self.env.region();
        let freed = region.freed();
        let reserve = region.bytes() / RECEIVE_RESERVE_DIVISOR;
        loop {
            let seen = freed.count();
            if region.free_bytes() < reserve + RECEIVE_CHUNK_BYTES {
                self.service.make_room(reserve + RECEIVE_CHUNK_BYTES - region.free_bytes());
            }
            if region.free_bytes() >= reserve {
                let taken = self.splitter.borrow_mut().chunk_to_receive(region);
                if let Ok(chunk) = taken {
                    return chunk;
                }
            }
            self.counters.memory_waits.set(self.counters.memory_waits.get() + 1);
            freed.changed(seen).await;
        }
    }

    /// Sends what is ready, for as long as the connection lives; ends with the error of a send.
    async fn write(&self) -> io::Error {
        loop {
            let parts = self.ready_parts().await;
            let bytes = parts.iter().map(|part| part.as_bytes().len()).sum();
            self.sending_since.set(Some(self.env.now()));
            if let Err(error) = self.stream.send(parts).await {
                return error;
            }
            self.sending_since.set(None);
            self.last_activity.set(self.env.now());
            self.counters.add_sent(bytes);
            self.room.notify();
        }
    }

    /// The ready replies at the front. `run` polls this whenever it has polled what may make one ready, so no waker is kept.
    fn ready_parts(&self) -> impl Future<Output = SendParts> {
        poll_fn(|_| {
            let parts = self.queue.borrow_mut().gather();
            if parts.is_empty() { Poll::Pending } else { Poll::Ready(parts) }
        })
    }
}
