//! Fetch: version 1.
//!
//! Batches as they lie in the log, sent from where they lie. Answered at once if `min_bytes` are there or a partition has an error;
//! else it waits for the high watermark (never for mere appends, T75) or `max_wait_ms`. The first batch of the first partition that has
//! one comes whole, however small the limits (T72), and so does a batch that contains the offset asked for (T30).
//!
//! Where it differs from Kafka: no fetch sessions yet; a position behind the end is OFFSET_OUT_OF_RANGE at once, as there; the
//! limits of the answer are the least of what is asked and what this host allows; a partition that comes twice is refused, as each
//! of its entries would take a place of its own in the purgatory.

mod gather;

use std::time::Duration;

use cluster::replica::Reader;
use futures_lite::future;
use net::Call;
use protocol::error::{ErrorCode, WireError};
use protocol::frame::FrameHeader;
use protocol::ids::{Offset, TopicPartition};
use protocol::limits::FETCH_BYTES_MAX;
use protocol::native::{FetchPartition, FetchPartitionReply, FetchReply, FetchRequest, IsolationLevel, Kind};
use runtime::mesh::Answer;
use runtime::{Env, Loan};
use shard::FetchError;
use smallvec::SmallVec;

use super::Reply;
use super::reply::{refuse, refuse_with, reply_with_payload};
use crate::crossing::CoreReply;
use crate::dispatch::Dispatch;

/// Answers Fetch.
pub fn handle<E: Env>(dispatch: &Dispatch<E>, header: &FrameHeader, body: &[u8]) -> Call<Reply> {
    let request = match FetchRequest::decode_body(body) {
        Ok(request) => request,
        Err(error) => return Call::Ready(refuse_with(header, &error)),
    };
    if let Some(twice) = first_twice(&request.partitions) {
        let message = format!("partition {} of topic {} comes twice", twice.partition, twice.topic);
        return Call::Ready(refuse(header, ErrorCode::InvalidRequest, &message));
    }
    let bytes_max = size(request.max_bytes).min(FETCH_BYTES_MAX);
    let asked = shard::FetchRequest {
        reader: match request.isolation {
            IsolationLevel::ReadUncommitted => Reader::Consumer,
            IsolationLevel::ReadCommitted => Reader::CommittedConsumer,
        },
        max_wait: Duration::from_millis(u64::from(request.max_wait_ms)),
        min_bytes: size(request.min_bytes).min(bytes_max),
        max_bytes: bytes_max,
        partitions: request
            .partitions
            .iter()
            .map(|wanted| shard::FetchPartition {
                partition: dispatch.readable(wanted.topic_partition()),
                offset: wanted.offset,
                max_bytes: size(wanted.max_bytes),
                leader_epoch: wanted.current_leader_epoch,
            })
            .collect(),
    };
    let header = *header;
    let dispatch = dispatch.clone();
    let answer = async move {
        let (partitions, payload) = gather::fetch(&dispatch, asked).await;
        reply_with_payload(&header, Kind::Fetch, &FetchReply { partitions }.encode_body(), payload.into_iter())
    };
    Call::Later { reply: Reply::Other(Box::pin(answer)), bytes_max }
}

/// Reads for another core, whose wait ends when its client is gone.
pub fn serve<E: Env>(dispatch: &Dispatch<E>, request: shard::FetchRequest, answer: Answer<CoreReply>) {
    let dispatch = dispatch.clone();
    dispatch.shard().count_served_crossing();
    dispatch.env().clone().spawn(async move {
        let cancelled = answer.cancelled();
        let fetched = async { Some(on_this_core(&dispatch, request).await) };
        let given_up = async {
            cancelled.await;
            None
        };
        if let Some((partitions, slices)) = future::or(fetched, given_up).await {
            answer.send(lent(partitions, slices));
        }
    });
}

/// The bytes lent, as far as they may be: a partition whose bytes can't is told to ask again.
fn lent(mut partitions: Vec<FetchPartitionReply>, slices: Vec<Slices>) -> CoreReply {
    let mut loans = Vec::new();
    for (partition, slices) in partitions.iter_mut().zip(slices) {
        let lent: Result<Vec<Loan>, _> = slices.into_iter().map(runtime::ChunkSlice::lend).collect();
        match lent {
            Ok(lent) => loans.extend(lent),
            Err(_) => *partition = failed(ErrorCode::ThrottlingQuotaExceeded),
        }
    }
    CoreReply::Fetched(partitions, loans)
}

/// Reads partitions of this core, and waits for bytes where there are too few.
async fn on_this_core<E: Env>(dispatch: &Dispatch<E>, asked: shard::FetchRequest) -> (Vec<FetchPartitionReply>, Vec<Slices>) {
    let names: SmallVec<[TopicPartition; 4]> = asked.partitions.iter().map(|wanted| wanted.partition).collect();
    let result = dispatch.shard().clone().fetch(asked).await;
    let mut partitions = Vec::with_capacity(result.len());
    let mut slices = Vec::with_capacity(result.len());
    for (name, fetched) in names.into_iter().zip(result) {
        let (partition, found) = match fetched {
            Ok(fetched) => {
                let partition = FetchPartitionReply {
                    error: ErrorCode::None,
                    high_watermark: fetched.bounds.high_watermark,
                    last_stable: fetched.bounds.last_stable,
                    log_start: fetched.bounds.log_start,
                    bytes: u32::try_from(fetched.bytes).unwrap_or(u32::MAX),
                };
                (partition, fetched.slices)
            }
            Err(FetchError::UnknownPartition { .. }) => (failed(dispatch.why_unknown(name).0), Slices::new()),
            Err(FetchError::OutOfRange { log_start, log_end, .. }) => {
                let bounds = FetchPartitionReply {
                    log_start,
                    high_watermark: log_end,
                    last_stable: log_end,
                    ..failed(ErrorCode::OffsetOutOfRange)
                };
                (bounds, Slices::new())
            }
            Err(error) => (failed(error.code()), Slices::new()),
        };
        partitions.push(partition);
        slices.push(found);
    }
    (partitions, slices)
}

/// Where a partition's batches lie.
type Slices = SmallVec<[runtime::ChunkSlice; 4]>;

/// A partition that has two entries, the lowest if there are several.
fn first_twice(partitions: &[FetchPartition]) -> Option<TopicPartition> {
    if partitions.len() < 2 {
        return None;
    }
    let mut named: SmallVec<[TopicPartition; 16]> = partitions.iter().map(FetchPartition::topic_partition).collect();
    named.sort_unstable();
    named.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

fn size(bytes: u32) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn failed(error: ErrorCode) -> FetchPartitionReply {
    FetchPartitionReply { error, high_watermark: Offset(-1), last_stable: Offset(-1), log_start: Offset(-1), bytes: 0 }
}
