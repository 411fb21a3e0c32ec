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
use protocol::ids::{Offset, Timestamp};
use protocol::native::{Kind, ListOffsetsPartitionReply, ListOffsetsReply, ListOffsetsRequest};
use runtime::Env;
use shard::FetchError;

use super::Reply;
use super::reply::{refuse_with, reply};
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
        let mut partitions = Vec::with_capacity(request.partitions.len());
        for wanted in &request.partitions {
            let partition = dispatch.readable(wanted.topic_partition());
            let listed = dispatch.shard().list_offsets(partition, wanted.at, Reader::Consumer, NO_EPOCH).await;
            partitions.push(match listed {
                Ok(found) => ListOffsetsPartitionReply {
                    error: ErrorCode::None,
                    offset: found.map_or(Offset(-1), |(offset, _)| offset),
                    timestamp: found.map_or(Timestamp::NONE, |(_, timestamp)| timestamp),
                },
                Err(FetchError::UnknownPartition { .. }) => failed(dispatch.why_unknown(wanted.topic_partition()).0),
                Err(error) => failed(error.code()),
            });
        }
        reply(&header, Kind::ListOffsets, &ListOffsetsReply { partitions }.encode_body())
    };
    Call::Later { reply: Reply::Other(Box::pin(answer)), bytes_max: 0 }
}

fn failed(error: ErrorCode) -> ListOffsetsPartitionReply {
    ListOffsetsPartitionReply { error, offset: Offset(-1), timestamp: Timestamp::NONE }
}
