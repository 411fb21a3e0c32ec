//! One pipelined connection to a core: requests leave in the order of [`Connection::submit`], replies find their request by
//! correlation id.
//!
//! Three tasks per connection: one writes (gathering what waits into one system call), one reads, one watches deadlines. They
//! end with the connection, which ends when its last handle is dropped, when the stream breaks, when a reply can't be
//! read, or when a request gets no reply in time (a pipelined stream with a hole in it is of no use).
//!
//! Invariants: every submitted request is settled exactly once. A request is settled as *not sent* only if not one byte of it
//! was handed to the socket. At most `REQUESTS_IN_FLIGHT_PER_CONNECTION_MAX` requests are pending. Memory for a reply
//! grows with the bytes that arrived, never on the word of a length field.

use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use hashbrown::HashMap;
use protocol::frame::{self, FrameFields, FrameHeader};
use protocol::limits;
use protocol::native::{ErrorReply, HelloReply, HelloRequest, Kind};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::config::ClientConfig;
use crate::error::{ConnectError, RequestError};

/// Frames that one system call may gather.
const GATHERED_FRAMES_MAX: usize = 32;
/// How often deadlines are looked at.
const DEADLINE_TICK: Duration = Duration::from_millis(250);
/// First step of a reply's memory, in bytes.
const REPLY_STEP_BYTES: usize = 64 << 10;

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerAddress {
    pub host: String,
    pub port: u16,
}

impl ServerAddress {
    pub fn parse(server: &str) -> Result<ServerAddress, ConnectError> {
        let refuse = |reason: &str| ConnectError::Address { server: server.to_owned(), reason: reason.to_owned() };
        let (host, port) = server.rsplit_once(':').ok_or_else(|| refuse("not of the form HOST:PORT"))?;
        let port = port.parse::<u16>().map_err(|_| refuse("the port isn't a number from 1 to 65535"))?;
        let host = host.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() || port == 0 {
            return Err(refuse("not of the form HOST:PORT"));
        }
        Ok(ServerAddress { host: host.to_owned(), port })
    }
}

impl std::fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A request that is ready to leave.
pub(crate) struct Request {
    pub kind: Kind,
    pub body: Vec<u8>,
    pub payload: Vec<Bytes>,
    /// What the server itself may wait before it replies.
    pub wait: Duration,
    /// The server sends no reply; the request is settled when it was handed to the socket.
    pub no_reply: bool,
}

impl Request {
    pub fn new(kind: Kind, body: Vec<u8>) -> Request {
        Request { kind, body, payload: Vec::new(), wait: Duration::ZERO, no_reply: false }
    }
}

/// A good reply; empty for a request without one.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    pub body: Bytes,
    pub payload: Bytes,
}

/// What a request ended with.
pub(crate) type Outcome = Result<Reply, RequestError>;

/// Where an outcome goes.
pub(crate) enum Sink {
    Once(oneshot::Sender<Outcome>),
    /// To one of the many who share a queue, under a number of their own.
    Queue {
        sender: mpsc::UnboundedSender<(u64, Outcome)>,
        token: u64,
    },
}

impl Sink {
    fn settle(self, outcome: Outcome) {
        // Who no longer waits doesn't need the outcome.
        match self {
            Sink::Once(sender) => drop(sender.send(outcome)),
            Sink::Queue { sender, token } => drop(sender.send((token, outcome))),
        }
    }
}

struct Pending {
    kind: Kind,
    sink: Sink,
    /// Its bytes may have reached the server.
    begun: bool,
    deadline: Instant,
    limit: Duration,
    _slot: OwnedSemaphorePermit,
}

#[derive(Default)]
struct State {
    closed: Option<RequestError>,
    correlation_next: u64,
    pending: HashMap<u64, Pending, foldhash::fast::RandomState>,
}

struct Outgoing {
    correlation: u64,
    head: Box<[u8]>,
    payload: Vec<Bytes>,
    no_reply: bool,
}

struct Shared {
    server: String,
    request_timeout: Duration,
    state: Mutex<State>,
    slots: Arc<Semaphore>,
}

struct Handle {
    shared: Arc<Shared>,
    outgoing: mpsc::UnboundedSender<Outgoing>,
    tasks: Vec<AbortHandle>,
}

/// A handle on a connection; clones are the same connection.
#[derive(Clone)]
pub(crate) struct Connection(Arc<Handle>);

impl Connection {
    /// Connects and greets.
    pub async fn open(address: &ServerAddress, config: &ClientConfig) -> Result<(Connection, HelloReply), ConnectError> {
        let server = address.to_string();
        let limit = config.connect_timeout;
        let timed_out = || ConnectError::TimedOut { server: server.clone(), limit };
        let connecting = TcpStream::connect((address.host.as_str(), address.port));
        let unreachable = |error: io::Error| ConnectError::Unreachable {
            server: server.clone(),
            kind: error.kind(),
            reason: error.to_string(),
        };
        let stream = tokio::time::timeout(limit, connecting).await.map_err(|_| timed_out())?.map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        let connection = Connection::start(stream, server.clone(), config.request_timeout);

        let hello = HelloRequest {
            client_id: config.client_id.clone(),
            client_software: concat!("corelane-client/", env!("CARGO_PKG_VERSION")).to_owned(),
            version_min: 1,
            version_max: 1,
            features: 0,
        };
        let request = Request::new(Kind::Hello, hello.encode_body());
        let greeting = |reason: String| ConnectError::Greeting { server: server.clone(), reason };
        let outcome = tokio::time::timeout(limit, connection.request(request)).await.map_err(|_| timed_out())?;
        let reply = outcome.map_err(|error| greeting(error.to_string()))?;
        let hello = HelloReply::decode_body(&reply.body).map_err(|error| greeting(error.to_string()))?;
        Ok((connection, hello))
    }

    fn start(stream: TcpStream, server: String, request_timeout: Duration) -> Connection {
        let slots = Arc::new(Semaphore::new(limits::REQUESTS_IN_FLIGHT_PER_CONNECTION_MAX));
        let shared = Arc::new(Shared { server, request_timeout, state: Mutex::default(), slots });
        let (outgoing, waiting) = mpsc::unbounded_channel();
        let (read_half, write_half) = stream.into_split();
        let tasks = vec![
            tokio::spawn(write_frames(shared.clone(), write_half, waiting)).abort_handle(),
            tokio::spawn(read_frames(shared.clone(), read_half)).abort_handle(),
            tokio::spawn(watch_deadlines(shared.clone())).abort_handle(),
        ];
        Connection(Arc::new(Handle { shared, outgoing, tasks }))
    }

    /// Sends a request and waits for its reply.
    pub async fn request(&self, request: Request) -> Outcome {
        // The semaphore is never closed.
        let slot = self.0.shared.slots.clone().acquire_owned().await.expect("an open semaphore");
        let (sender, receiver) = oneshot::channel();
        self.submit_with(request, Sink::Once(sender), slot);
        receiver.await.unwrap_or_else(|_| Err(self.0.shared.not_sent("the connection ended")))
    }

    /// Queues a request behind those submitted before; its outcome goes to `sink`. Gives both back if too many requests
    /// are pending.
    pub fn submit(&self, request: Request, sink: Sink) -> Result<(), (Request, Sink)> {
        let Ok(slot) = self.0.shared.slots.clone().try_acquire_owned() else { return Err((request, sink)) };
        self.submit_with(request, sink, slot);
        Ok(())
    }

    fn submit_with(&self, request: Request, sink: Sink, slot: OwnedSemaphorePermit) {
        let shared = &self.0.shared;
        let payload_bytes = request.payload.iter().map(Bytes::len).sum::<usize>();
        let mut state = shared.lock();
        if let Some(closed) = &state.closed {
            let error = shared.not_sent(&closed.to_string());
            drop(state);
            return sink.settle(Err(error));
        }
        let correlation = state.correlation_next;
        let (_, version) = request.kind.versions();
        let fields = FrameFields::request(request.kind, version, correlation).with_payload(payload_bytes);
        let head = match frame::encode_frame(&fields, &request.body) {
            Ok(head) => head,
            Err(error) => {
                drop(state);
                return sink.settle(Err(RequestError::Invalid { reason: error.to_string() }));
            }
        };
        state.correlation_next += 1;
        let limit = shared.request_timeout + request.wait;
        let deadline = Instant::now() + limit;
        let pending = Pending { kind: request.kind, sink, begun: false, deadline, limit, _slot: slot };
        state.pending.insert(correlation, pending);
        // Under the lock, so that the order of correlation ids is the order on the wire.
        let frame = Outgoing { correlation, head, payload: request.payload, no_reply: request.no_reply };
        drop(self.0.outgoing.send(frame));
    }

    /// Whether a new request would be refused.
    pub fn is_closed(&self) -> bool {
        self.0.shared.lock().closed.is_some()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.fail(self.shared.lost("closed by the client"));
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock can panic half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn not_sent(&self, reason: &str) -> RequestError {
        RequestError::NotSent { server: self.server.clone(), reason: reason.to_owned() }
    }

    fn lost(&self, reason: &str) -> RequestError {
        RequestError::Lost { server: self.server.clone(), reason: reason.to_owned() }
    }

    fn malformed(&self, reason: impl ToString) -> RequestError {
        RequestError::Malformed { server: self.server.clone(), reason: reason.to_string() }
    }

    /// Ends the connection: the first reason stays, everything pending is settled.
    fn fail(&self, error: RequestError) {
        let pending = {
            let mut state = self.lock();
            if state.closed.is_some() {
                return;
            }
            state.closed = Some(error.clone());
            std::mem::take(&mut state.pending)
        };
        let mut pending: Vec<(u64, Pending)> = pending.into_iter().collect();
        pending.sort_unstable_by_key(|(correlation, _)| *correlation);
        for (_, request) in pending {
            let outcome = if request.begun { error.clone() } else { self.not_sent(&error.to_string()) };
            request.sink.settle(Err(outcome));
        }
    }

    /// Marks frames as begun; those whose request was settled meanwhile (the connection ended) are dropped.
    fn begin(&self, frames: &mut Vec<Outgoing>) {
        let mut state = self.lock();
        frames.retain(|frame| match state.pending.get_mut(&frame.correlation) {
            Some(pending) => {
                pending.begun = true;
                true
            }
            None => false,
        });
    }

    fn settle(&self, correlation: u64, outcome: Outcome) -> bool {
        let request = self.lock().pending.remove(&correlation);
        match request {
            Some(request) => {
                request.sink.settle(outcome);
                true
            }
            None => false,
        }
    }

    fn kind_of(&self, correlation: u64) -> Option<Kind> {
        self.lock().pending.get(&correlation).map(|pending| pending.kind)
    }
}

async fn write_frames(shared: Arc<Shared>, mut stream: OwnedWriteHalf, mut waiting: mpsc::UnboundedReceiver<Outgoing>) {
    let mut frames = Vec::new();
    while waiting.recv_many(&mut frames, GATHERED_FRAMES_MAX).await > 0 {
        shared.begin(&mut frames);
        if let Err(error) = write_gathered(&mut stream, &frames).await {
            return shared.fail(shared.lost(&format!("the request couldn't be written: {error}")));
        }
        for frame in frames.drain(..).filter(|frame| frame.no_reply) {
            shared.settle(frame.correlation, Ok(Reply::default()));
        }
    }
}

async fn write_gathered(stream: &mut OwnedWriteHalf, frames: &[Outgoing]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(frames.len() * 2);
    for frame in frames {
        slices.push(IoSlice::new(&frame.head));
        slices.extend(frame.payload.iter().filter(|bytes| !bytes.is_empty()).map(|bytes| IoSlice::new(bytes)));
    }
    let mut rest = slices.as_mut_slice();
    while !rest.is_empty() {
        let written = stream.write_vectored(rest).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut rest, written);
    }
    Ok(())
}

async fn read_frames(shared: Arc<Shared>, stream: OwnedReadHalf) {
    let mut reader = BufReader::with_capacity(REPLY_STEP_BYTES, stream);
    loop {
        if let Err(error) = read_frame(&shared, &mut reader).await {
            return shared.fail(error);
        }
    }
}

async fn read_frame(shared: &Shared, reader: &mut BufReader<OwnedReadHalf>) -> Result<(), RequestError> {
    let broken = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => shared.lost("the server closed the connection"),
        _ => shared.lost(&error.to_string()),
    };
    let mut head = [0; frame::HEADER_BYTES];
    reader.read_exact(&mut head).await.map_err(broken)?;
    let header = FrameHeader::parse(&head).map_err(|error| shared.malformed(error))?;
    let body = read_bounded(reader, header.body_bytes()).await.map_err(broken)?;
    header.verify(&body).map_err(|error| shared.malformed(error))?;
    let payload = read_bounded(reader, header.payload_bytes()).await.map_err(broken)?;

    let correlation = header.correlation;
    let Some(kind) = shared.kind_of(correlation) else {
        return Err(shared.malformed(format!("a reply to request {correlation}, which isn't pending")));
    };
    if !header.is_reply() || header.kind_number != kind.number() {
        return Err(shared.malformed(format!("request {correlation} is of kind {kind:?}, the reply says {}", header.kind_number)));
    }
    let outcome = if header.is_error() {
        let refusal = ErrorReply::decode_body(&body).map_err(|error| shared.malformed(error))?;
        Err(RequestError::Refused { code: refusal.code, message: refusal.message })
    } else {
        Ok(Reply { body, payload })
    };
    shared.settle(correlation, outcome);
    Ok(())
}

/// Reads exactly `length` bytes (bounded by the header's limits); memory at most doubles with what has arrived.
async fn read_bounded(reader: &mut BufReader<OwnedReadHalf>, length: usize) -> io::Result<Bytes> {
    let mut bytes = BytesMut::new();
    while bytes.len() < length {
        let missing = length - bytes.len();
        if bytes.capacity() == bytes.len() {
            bytes.reserve(missing.min(bytes.len().max(REPLY_STEP_BYTES)));
        }
        if reader.read_buf(&mut (&mut bytes).limit(missing)).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(bytes.freeze())
}

async fn watch_deadlines(shared: Arc<Shared>) {
    let mut ticks = tokio::time::interval(DEADLINE_TICK);
    loop {
        ticks.tick().await;
        let now = Instant::now();
        let overdue = {
            let state = shared.lock();
            if state.closed.is_some() {
                return;
            }
            state.pending.values().filter(|pending| pending.deadline <= now).map(|pending| pending.limit).min()
        };
        if let Some(limit) = overdue {
            return shared.fail(RequestError::TimedOut { server: shared.server.clone(), limit });
        }
    }
}
