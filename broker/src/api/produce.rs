//! Produce: version 1.
//!
//! Each batch is checked (T36) and appended before the next request of the connection is looked at, so that order on a
//! connection is order in a partition. A batch that is refused doesn't keep the others of its request from being appended:
//! each has its own result, with a message that says what was wrong and the numbers. The reply comes when all are
//! acknowledged as `acks` asks, or `timeout_ms` have passed (then the outcome is unknown).
//!
//! With acks=0 there is no reply. If a batch is refused then, the connection closes, since nothing else could tell (T76).
//!
//! Where it differs from Kafka: one batch per entry, as Kafka's since record batches v2; partitions are named by topic id,
//! so that what was meant for a deleted topic can't land in its successor (T17).

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use cluster::replica::{Acks, NO_EPOCH};
use net::{Call, Frame, Response};
use protocol::batch::{BatchError, BatchView};
use protocol::error::{ErrorCode, WireError};
use protocol::frame::FrameHeader;
use protocol::ids::{Offset, Timestamp};
use protocol::native::{Kind, ProduceBatch, ProduceReply, ProduceRequestView, ProduceResult};
use runtime::Env;
use shard::{ProduceError, ProduceRequest, Produced, Ticket};
use smallvec::SmallVec;

use super::Reply;
use super::reply::{refuse, refuse_with, reply};
use crate::dispatch::Dispatch;

/// The results of one request, as they come.
pub struct ProduceWait {
    header: FrameHeader,
    outcomes: SmallVec<[Outcome; 1]>,
    /// All before this one are done.
    next: usize,
}

enum Outcome {
    Waiting(Ticket),
    Done(Result<Produced, ProduceError>),
    /// No such partition here.
    Unknown((ErrorCode, String)),
}

/// Answers Produce.
pub fn handle<E: Env>(dispatch: &Dispatch<E>, frame: &Frame<FrameHeader>) -> Call<Reply> {
    let header = frame.header;
    let view = match ProduceRequestView::parse(&frame.body) {
        Ok(view) => view,
        Err(error) => return Call::Ready(refuse_with(&header, &error)),
    };
    let Some(acks) = Acks::from_wire(i16::from(view.acks())) else {
        return refuse_request(&header, Acks::All, &format!("acks is {}; -1, 0 and 1 are allowed", view.acks()));
    };
    if view.payload_bytes() != frame.payload.len() as u64 {
        let message = format!("the batches have {} bytes, the payload {}", view.payload_bytes(), frame.payload.len());
        return refuse_request(&header, acks, &message);
    }
    let timeout = Duration::from_millis(u64::from(view.timeout_ms()));
    let mut wait = ProduceWait { header, outcomes: SmallVec::new(), next: 0 };
    let mut payload: &[u8] = &frame.payload;
    for batch in view.batches() {
        let (bytes, rest) = payload.split_at(usize::try_from(batch.bytes).unwrap_or(usize::MAX).min(payload.len()));
        payload = rest;
        wait.outcomes.push(match append(dispatch, &batch, bytes, acks, timeout) {
            Ok(ticket) => Outcome::Waiting(ticket),
            Err(ProduceError::UnknownPartition { .. }) => Outcome::Unknown(dispatch.why_unknown(batch.topic_partition())),
            Err(error) => Outcome::Done(Err(error)),
        });
    }
    if acks == Acks::None {
        return match wait.first_error() {
            None => Call::NoReply,
            Some(error) => Call::Close { last: None, reason: format!("a batch with acks=0 was refused: {error}") },
        };
    }
    Call::Later { bytes_max: 0, reply: Reply::Produce(wait) }
}

fn append<E: Env>(
    dispatch: &Dispatch<E>,
    batch: &ProduceBatch,
    bytes: &[u8],
    acks: Acks,
    timeout: Duration,
) -> Result<Ticket, ProduceError> {
    let (view, rest) = BatchView::split(bytes)?;
    if !rest.is_empty() {
        return Err(BatchError::TrailingBytes { bytes: rest.len() }.into());
    }
    let request = ProduceRequest { partition: dispatch.readable(batch.topic_partition()), acks, leader_epoch: NO_EPOCH, timeout };
    dispatch.shard().produce(request, &view)
}

/// A request that makes no sense as a whole.
fn refuse_request(header: &FrameHeader, acks: Acks, message: &str) -> Call<Reply> {
    match acks {
        Acks::None => Call::Close { last: None, reason: message.into() },
        _ => Call::Ready(refuse(header, ErrorCode::InvalidRequest, message)),
    }
}

impl ProduceWait {
    fn first_error(&self) -> Option<String> {
        self.outcomes.iter().find_map(|outcome| match outcome {
            Outcome::Done(Err(error)) => Some(error.to_string()),
            Outcome::Unknown((_, message)) => Some(message.clone()),
            Outcome::Done(Ok(_)) | Outcome::Waiting(_) => None,
        })
    }

    fn response(&self) -> Response {
        let results = self.outcomes.iter().map(|outcome| match outcome {
            Outcome::Done(Ok(produced)) => ProduceResult {
                error: ErrorCode::None,
                message: String::new(),
                base_offset: produced.base_offset,
                log_append_time: produced.append_time,
                log_start: produced.log_start,
            },
            Outcome::Done(Err(error)) => failed(error.code(), error.to_string()),
            Outcome::Unknown((code, message)) => failed(*code, message.clone()),
            Outcome::Waiting(_) => unreachable!("the reply is made when all are done"),
        });
        let answer = ProduceReply { results: results.collect() };
        reply(&self.header, Kind::Produce, &answer.encode_body())
    }
}

fn failed(error: ErrorCode, message: String) -> ProduceResult {
    ProduceResult { error, message, base_offset: Offset(-1), log_append_time: Timestamp::NONE, log_start: Offset(-1) }
}

impl Future for ProduceWait {
    type Output = Response;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Response> {
        let wait = &mut *self;
        while let Some(outcome) = wait.outcomes.get_mut(wait.next) {
            if let Outcome::Waiting(ticket) = outcome {
                let Poll::Ready(result) = Pin::new(ticket).poll(context) else { return Poll::Pending };
                *outcome = Outcome::Done(result);
            }
            wait.next += 1;
        }
        Poll::Ready(wait.response())
    }
}
