//! Produce: version 1.
//!
//! Each batch is checked (T36) and appended before the next request of the connection is looked at, so that order on a
//! connection is order in a partition. A batch that is refused doesn't keep the others of its request from being appended:
//! each has its own result, with a message that says what was wrong and the numbers. The reply comes when all are
//! acknowledged as `acks` asks, or `timeout_ms` have passed (then the outcome is unknown).
//!
//! A batch of another core's partition crosses to it, with the others of that core in one message; there it is checked and appended in the
//! same order ([`serve`]).
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
use protocol::ids::{CoreId, Offset, Timestamp, TopicPartition};
use protocol::native::{Kind, ProduceReply, ProduceRequestView, ProduceResult};
use runtime::mesh::{Answer, Reply as CoreAnswer};
use runtime::{ChunkSlice, Env, Loan};
use shard::{ProduceError, ProduceRequest, Produced, Ticket};
use smallvec::SmallVec;

use super::Reply;
use super::reply::{refuse, refuse_with, reply};
use crate::crossing::{CoreReply, CoreRequest, CrossingProduce};
use crate::dispatch::Dispatch;

/// The results of one request, as they come.
pub struct ProduceWait {
    header: FrameHeader,
    acks: Acks,
    outcomes: SmallVec<[Outcome; 1]>,
    /// All before this one are done.
    next: usize,
    crossings: Crossings,
}

enum Outcome {
    Waiting(Ticket),
    Done(Result<Produced, ProduceError>),
    /// As it is told: of another core, or of a partition that isn't here.
    Told(ProduceResult),
    /// Another core will tell.
    Crossing,
}

/// What other cores answer, and which batches that is about.
type Crossings = SmallVec<[(CoreAnswer<CoreReply>, Indices); 0]>;
type Indices = SmallVec<[usize; 4]>;

/// Batches for one other core, and which of the request's they are.
struct Outgoing {
    core: CoreId,
    batches: SmallVec<[(TopicPartition, Loan); 1]>,
    indices: Indices,
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
    let mut wait = ProduceWait { header, acks, outcomes: SmallVec::new(), next: 0, crossings: SmallVec::new() };
    let mut outgoing: SmallVec<[Outgoing; 0]> = SmallVec::new();
    let mut at = 0;
    for batch in view.batches() {
        let end = (at + usize::try_from(batch.bytes).unwrap_or(usize::MAX)).min(frame.payload.len());
        let partition = dispatch.readable(batch.topic_partition());
        let appended = append(dispatch, partition, &frame.payload[at..end], acks, timeout);
        wait.outcomes.push(match appended {
            Ok(ticket) => Outcome::Waiting(ticket),
            Err(ProduceError::UnknownPartition { .. }) => match dispatch.other_owner(partition) {
                Some(core) => lend(&mut outgoing, core, partition, frame.payload.slice(at..end), wait.outcomes.len()),
                None => Outcome::Told(unknown(dispatch, batch.topic_partition())),
            },
            Err(error) => Outcome::Done(Err(error)),
        });
        at = end;
    }
    for outgoing in outgoing {
        wait.cross(dispatch, outgoing, timeout);
    }
    if acks == Acks::None && wait.crossings.is_empty() {
        return match wait.first_error() {
            None => Call::NoReply,
            Some(error) => Call::Close { last: None, reason: refused_without_reply(&error) },
        };
    }
    Call::Later { bytes_max: 0, reply: Reply::Produce(wait) }
}

/// Puts a batch with those that go to the same core.
fn lend(
    outgoing: &mut SmallVec<[Outgoing; 0]>,
    core: CoreId,
    partition: TopicPartition,
    batch: ChunkSlice,
    index: usize,
) -> Outcome {
    let Ok(loan) = batch.lend() else {
        let message =
            "as many bytes are lent to other cores as may be; ask again later, or connect to the core that owns the partition";
        return Outcome::Told(failed(ErrorCode::ThrottlingQuotaExceeded, message.into()));
    };
    let group = match outgoing.iter().position(|group| group.core == core) {
        Some(group) => group,
        None => {
            outgoing.push(Outgoing { core, batches: SmallVec::new(), indices: Indices::new() });
            outgoing.len() - 1
        }
    };
    outgoing[group].batches.push((partition, loan));
    outgoing[group].indices.push(index);
    Outcome::Crossing
}

/// Appends, for another core, and answers it when all is acknowledged.
pub fn serve<E: Env>(dispatch: &Dispatch<E>, request: CrossingProduce, answer: Answer<CoreReply>) {
    let CrossingProduce { acks, timeout, batches } = request;
    dispatch.shard().count_served_crossing();
    let mut outcomes: SmallVec<[Outcome; 1]> = SmallVec::new();
    for (partition, batch) in batches {
        outcomes.push(match append(dispatch, partition, &batch, acks, timeout) {
            Ok(ticket) => Outcome::Waiting(ticket),
            Err(ProduceError::UnknownPartition { .. }) => Outcome::Told(unknown(dispatch, partition)),
            Err(error) => Outcome::Done(Err(error)),
        });
    }
    if outcomes.iter().all(Outcome::is_done) {
        return answer.send(CoreReply::Produced(outcomes.into_iter().map(Outcome::into_result).collect()));
    }
    dispatch.env().spawn(async move {
        let mut results = SmallVec::new();
        for outcome in outcomes {
            let outcome = match outcome {
                Outcome::Waiting(ticket) => Outcome::Done(ticket.await),
                done => done,
            };
            results.push(outcome.into_result());
        }
        answer.send(CoreReply::Produced(results));
    });
}

fn append<E: Env>(
    dispatch: &Dispatch<E>,
    partition: TopicPartition,
    bytes: &[u8],
    acks: Acks,
    timeout: Duration,
) -> Result<Ticket, ProduceError> {
    let (view, rest) = BatchView::split(bytes)?;
    if !rest.is_empty() {
        return Err(BatchError::TrailingBytes { bytes: rest.len() }.into());
    }
    let request = ProduceRequest { partition, acks, leader_epoch: NO_EPOCH, timeout };
    dispatch.shard().produce(request, &view)
}

/// A request that makes no sense as a whole.
fn refuse_request(header: &FrameHeader, acks: Acks, message: &str) -> Call<Reply> {
    match acks {
        Acks::None => Call::Close { last: None, reason: message.into() },
        _ => Call::Ready(refuse(header, ErrorCode::InvalidRequest, message)),
    }
}

fn refused_without_reply(error: &str) -> String {
    format!("a batch with acks=0 was refused: {error}")
}

impl Outcome {
    fn is_done(&self) -> bool {
        !matches!(self, Outcome::Waiting(_) | Outcome::Crossing)
    }

    fn into_result(self) -> ProduceResult {
        match self {
            Outcome::Done(Ok(produced)) => ProduceResult {
                error: ErrorCode::None,
                message: String::new(),
                base_offset: produced.base_offset,
                log_append_time: produced.append_time,
                log_start: produced.log_start,
            },
            Outcome::Done(Err(error)) => failed(error.code(), error.to_string()),
            Outcome::Told(result) => result,
            Outcome::Waiting(_) | Outcome::Crossing => unreachable!("the reply is made when all are done"),
        }
    }
}

impl ProduceWait {
    /// Sends a core its batches.
    fn cross<E: Env>(&mut self, dispatch: &Dispatch<E>, outgoing: Outgoing, timeout: Duration) {
        let Outgoing { core, batches, indices } = outgoing;
        let request = CoreRequest::Produce(CrossingProduce { acks: self.acks, timeout, batches });
        match dispatch.mesh().try_call(core, request) {
            Ok(answer) => {
                dispatch.shard().count_crossing();
                self.crossings.push((answer, indices));
            }
            Err(_) => {
                let message =
                    format!("core {core}, which owns the partition, takes no more requests of this one; ask again later");
                self.tell(&indices, || failed(ErrorCode::ThrottlingQuotaExceeded, message.clone()));
            }
        }
    }

    fn tell(&mut self, indices: &[usize], mut result: impl FnMut() -> ProduceResult) {
        for index in indices {
            self.outcomes[*index] = Outcome::Told(result());
        }
    }

    /// Takes what another core has answered.
    fn take_answer(&mut self, answer: Option<CoreReply>, indices: &[usize]) {
        match answer {
            Some(CoreReply::Produced(results)) if results.len() == indices.len() => {
                let mut results = results.into_iter();
                self.tell(indices, || results.next().expect("as many as were asked for"));
            }
            // What was under way there may be in the log or not.
            Some(_) | None => self.tell(indices, || failed(ErrorCode::NotLeaderOrFollower, "the host is stopping".into())),
        }
    }

    fn first_error(&self) -> Option<String> {
        self.outcomes.iter().find_map(|outcome| match outcome {
            Outcome::Done(Err(error)) => Some(error.to_string()),
            Outcome::Told(result) if !result.error.is_none() => Some(result.message.clone()),
            Outcome::Done(Ok(_)) | Outcome::Told(_) | Outcome::Waiting(_) | Outcome::Crossing => None,
        })
    }

    fn response(&mut self) -> Response {
        if self.acks == Acks::None {
            let close = self.first_error().map(|error| refused_without_reply(&error).into());
            return Response { close, ..Response::default() };
        }
        let results = self.outcomes.drain(..).map(Outcome::into_result);
        let answer = ProduceReply { results: results.collect() };
        reply(&self.header, Kind::Produce, &answer.encode_body())
    }
}

fn unknown<E: Env>(dispatch: &Dispatch<E>, partition: TopicPartition) -> ProduceResult {
    let (code, message) = dispatch.why_unknown(partition);
    failed(code, message)
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
                // With acks=0 only other cores are waited for.
                let Poll::Ready(result) = Pin::new(ticket).poll(context) else { return Poll::Pending };
                *outcome = Outcome::Done(result);
            }
            wait.next += 1;
        }
        while let Some((answer, _)) = wait.crossings.last_mut() {
            let Poll::Ready(answer) = Pin::new(answer).poll(context) else { return Poll::Pending };
            if let Some((_, indices)) = wait.crossings.pop() {
                wait.take_answer(answer, &indices);
            }
        }
        Poll::Ready(wait.response())
    }
}
