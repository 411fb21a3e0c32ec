//! ListOffsets: version 1.
//!
//! The first offset, the end of what consumers see, or the first record at or after a time (T34: -1 if there is none, however
//! the timestamps are ordered). Times below zero are refused.
//!
//! Where it differs from Kafka: no "max timestamp" and no tiered offsets yet.

use cluster::replica::{NO_EPOCH, Reader};
use net::Call;
use protocol::error::{ErrorCode, WireError};
use protocol::frame::FrameHeader;
use protocol::ids::{CoreId, Offset, Timestamp, TopicPartition};
use protocol::native::{Kind, ListOffsetsPartitionReply, ListOffsetsReply, ListOffsetsRequest, OffsetSpec};
use runtime::Env;
use shard::FetchError;

use super::Reply;
use super::by_owner::by_owner;
use super::reply::{refuse_with, reply};
use crate::crossing::{CoreReply, CoreRequest};
use crate::dispatch::Dispatch;

/// Answers ListOffsets.
pub fn handle<E: Env>(dispatch: &Dispatch<E>, header: &FrameHeader, body: &[u8]) -> Call<Reply> {
    let request = match ListOffsetsRequest::decode_body(body) {
        Ok(request) => request,
        Err(error) => return Call::Ready(refuse_with(header, &error)),
    };
    let header = *header;
    let dispatch = dispatch.clone();
    let answer = async move {
        let wanted = request.partitions.iter().map(|wanted| (dispatch.readable(wanted.topic_partition()), wanted.at));
        let partitions = list(&dispatch, &wanted.collect::<Vec<_>>()).await;
        reply(&header, Kind::ListOffsets, &ListOffsetsReply { partitions }.encode_body())
    };
    Call::Later { reply: Reply::Other(Box::pin(answer)), bytes_max: 0 }
}

/// Asks each core for its own.
async fn list<E: Env>(dispatch: &Dispatch<E>, wanted: &[Wanted]) -> Vec<ListOffsetsPartitionReply> {
    let ask = async |owner, its: Vec<Wanted>| match owner {
        None => on_this_core(dispatch, &its).await,
        Some(core) => on_another_core(dispatch, core, its).await,
    };
    by_owner(dispatch, wanted, failed(ErrorCode::UnknownServerError), ask).await
}

async fn on_another_core<E: Env>(dispatch: &Dispatch<E>, core: CoreId, wanted: Vec<Wanted>) -> Vec<ListOffsetsPartitionReply> {
    let count = wanted.len();
    dispatch.shard().count_crossing();
    match dispatch.mesh().call(core, CoreRequest::ListOffsets(wanted)).await {
        Some(CoreReply::Listed(listed)) => listed,
        Some(_) | None => vec![failed(ErrorCode::NotLeaderOrFollower); count],
    }
}

/// The offsets of partitions of this core.
pub async fn on_this_core<E: Env>(dispatch: &Dispatch<E>, wanted: &[Wanted]) -> Vec<ListOffsetsPartitionReply> {
    let mut listed = Vec::with_capacity(wanted.len());
    for (partition, at) in wanted {
        let found = dispatch.shard().list_offsets(*partition, *at, Reader::Consumer, NO_EPOCH).await;
        listed.push(match found {
            Ok(found) => ListOffsetsPartitionReply {
                error: ErrorCode::None,
                offset: found.map_or(Offset(-1), |(offset, _)| offset),
                timestamp: found.map_or(Timestamp::NONE, |(_, timestamp)| timestamp),
            },
            Err(FetchError::UnknownPartition { .. }) => failed(dispatch.why_unknown(*partition).0),
            Err(error) => failed(error.code()),
        });
    }
    listed
}

/// A partition, and which of its offsets.
type Wanted = (TopicPartition, OffsetSpec);

fn failed(error: ErrorCode) -> ListOffsetsPartitionReply {
    ListOffsetsPartitionReply { error, offset: Offset(-1), timestamp: Timestamp::NONE }
}
