//! A client of the native protocol inside the simulator: pipelined requests over one simulated connection.
//!
//! Requests leave in the order of their calls; replies come back in that order. A broken connection ends all that wait.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;

use protocol::frame::{FrameFields, FrameHeader, HEADER_BYTES, encode_frame};
use protocol::native::{ErrorReply, Kind};
use runtime::Connection;
use runtime::local::{Notify, OnceSender, once};

use crate::env::SimEnv;
use crate::network::SimConnection;

/// Why a request has no reply.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    /// The connection broke: nobody knows what became of the request.
    #[error("the connection is broken")]
    Broken,
    /// The host refused it.
    #[error("refused: {0:?}")]
    Refused(ErrorReply),
}

/// A reply's body and payload.
pub(super) struct Reply {
    pub body: Vec<u8>,
    pub payload: Vec<u8>,
}

type Answer = Result<Reply, RequestError>;

/// One connection of a client. A handle.
#[derive(Clone)]
pub(super) struct Client(Rc<State>);

struct State {
    connection: SimConnection,
    waiting: RefCell<VecDeque<(u64, OnceSender<Answer>)>>,
    outgoing: RefCell<VecDeque<Vec<u8>>>,
    queued: Notify,
    correlation: Cell<u64>,
    broken: Cell<bool>,
}

impl Client {
    /// Connects; two tasks of no host carry the connection.
    pub async fn connect(env: &SimEnv, address: SocketAddr) -> Result<Client, RequestError> {
        let connection = env.connect(address).await.map_err(|_| RequestError::Broken)?;
        let client = Client(Rc::new(State {
            connection,
            waiting: RefCell::default(),
            outgoing: RefCell::default(),
            queued: Notify::new(),
            correlation: Cell::new(0),
            broken: Cell::new(false),
        }));
        env.spawn_client(client.clone().send_all());
        env.spawn_client(client.clone().receive_all());
        Ok(client)
    }

    pub fn is_broken(&self) -> bool {
        self.0.broken.get()
    }

    /// Ends the connection.
    pub fn close(&self) {
        self.fail();
    }

    /// Sends a request now, in order; the future is its answer. `expects_reply` is false for produce without acknowledgement.
    pub fn request(&self, kind: Kind, body: &[u8], payload: &[u8], expects_reply: bool) -> impl Future<Output = Answer> + use<> {
        let state = &self.0;
        let correlation = state.correlation.get() + 1;
        state.correlation.set(correlation);
        let (sender, receiver) = once();
        if !state.broken.get() {
            let version = kind.versions().1;
            let fields = FrameFields::request(kind, version, correlation).with_payload(payload.len());
            let mut bytes = encode_frame(&fields, body).expect("a small frame").into_vec();
            bytes.extend_from_slice(payload);
            state.outgoing.borrow_mut().push_back(bytes);
            if expects_reply {
                state.waiting.borrow_mut().push_back((correlation, sender));
            } else {
                sender.send(Ok(Reply { body: Vec::new(), payload: Vec::new() }));
            }
            state.queued.notify();
        }
        async move { receiver.await.unwrap_or(Err(RequestError::Broken)) }
    }

    fn fail(&self) {
        self.0.broken.set(true);
        self.0.connection.close();
        self.0.queued.notify();
        drop(std::mem::take(&mut *self.0.waiting.borrow_mut()));
    }

    async fn send_all(self) {
        while !self.is_broken() {
            let seen = self.0.queued.count();
            let next = self.0.outgoing.borrow_mut().pop_front();
            match next {
                Some(bytes) => {
                    if self.0.connection.send_bytes(bytes).await.is_err() {
                        self.fail();
                    }
                }
                None => self.0.queued.changed(seen).await,
            }
        }
    }

    async fn receive_all(self) {
        while let Some((header, reply)) = self.receive_one().await {
            let first = self.0.waiting.borrow_mut().pop_front();
            let (correlation, sender) = first.expect("a reply that nobody waits for");
            assert_eq!(header.correlation, correlation, "replies come in the order of their requests");
            sender.send(if header.is_error() {
                Err(RequestError::Refused(ErrorReply::decode_body(&reply.body).expect("a sound error reply")))
            } else {
                Ok(reply)
            });
        }
        self.fail();
    }

    async fn receive_one(&self) -> Option<(FrameHeader, Reply)> {
        let connection = &self.0.connection;
        let mut head = [0; HEADER_BYTES];
        if !connection.receive_exact(&mut head).await.ok()? {
            return None;
        }
        let header = FrameHeader::parse(&head).expect("a sound header");
        let mut body = vec![0; header.body_bytes()];
        let mut payload = vec![0; header.payload_bytes()];
        for part in [&mut body, &mut payload] {
            if !part.is_empty() && !connection.receive_exact(part).await.ok()? {
                return None;
            }
        }
        assert!(header.is_reply(), "a host only replies");
        header.verify(&body).expect("a sound checksum");
        Some((header, Reply { body, payload }))
    }
}
