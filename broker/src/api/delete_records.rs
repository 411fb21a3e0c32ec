//! DeleteRecords: version 1.
//!
//! Answered when the partitions begin there and stable storage says so: what was deleted doesn't come back after a crash. A start inside a batch
//! is allowed; a fetch at it gives the whole batch (T29). Waits are at most `timeout_ms`, and end with REQUEST_TIMED_OUT.
//!
//! Where it differs from Kafka: there the answer doesn't wait for the disk.

use std::time::Duration;

use net::Call;
use protocol::error::{ErrorCode, WireError};
use protocol::frame::FrameHeader;
use protocol::ids::{CoreId, Offset, TopicPartition};
use protocol::limits::DELETE_RECORDS_TIMEOUT_MS_MAX;
use protocol::native::{DeleteBefore, DeleteRecordsPartitionReply, DeleteRecordsReply, DeleteRecordsRequest, Kind};
use runtime::Env;
use shard::{DeleteRecordsError, FetchError};

use super::Reply;
use super::by_owner::by_owner;
use super::reply::{refuse_with, reply};
use crate::crossing::{CoreReply, CoreRequest};
use crate::dispatch::Dispatch;

/// A partition, and up to where its records are deleted.
type Wanted = (TopicPartition, DeleteBefore);

/// Answers DeleteRecords.
pub fn handle<E: Env>(dispatch: &Dispatch<E>, header: &FrameHeader, body: &[u8]) -> Call<Reply> {
    let request = match DeleteRecordsRequest::decode_body(body) {
        Ok(request) => request,
        Err(error) => return Call::Ready(refuse_with(header, &error)),
    };
    let header = *header;
    let dispatch = dispatch.clone();
    let timeout = Duration::from_millis(request.timeout_ms.min(DELETE_RECORDS_TIMEOUT_MS_MAX).into());
    let answer = async move {
        let wanted = request.partitions.iter().map(|wanted| (dispatch.readable(wanted.topic_partition()), wanted.before));
        let partitions = delete(&dispatch, &wanted.collect::<Vec<_>>(), timeout).await;
        reply(&header, Kind::DeleteRecords, &DeleteRecordsReply { partitions }.encode_body())
    };
    Call::Later { reply: Reply::Other(Box::pin(answer)), bytes_max: 0 }
}

/// Asks each core for its own.
async fn delete<E: Env>(dispatch: &Dispatch<E>, wanted: &[Wanted], timeout: Duration) -> Vec<DeleteRecordsPartitionReply> {
    let ask = async |owner, its: Vec<Wanted>| match owner {
        None => on_this_core(dispatch, &its, timeout).await,
        Some(core) => on_another_core(dispatch, core, its, timeout).await,
    };
    by_owner(dispatch, wanted, failed(ErrorCode::UnknownServerError), ask).await
}

async fn on_another_core<E: Env>(
    dispatch: &Dispatch<E>,
    core: CoreId,
    wanted: Vec<Wanted>,
    timeout: Duration,
) -> Vec<DeleteRecordsPartitionReply> {
    let count = wanted.len();
    dispatch.shard().count_crossing();
    match dispatch.mesh().call(core, CoreRequest::DeleteRecords { wanted, timeout }).await {
        Some(CoreReply::Begins(begun)) => begun,
        Some(_) | None => vec![failed(ErrorCode::NotLeaderOrFollower); count],
    }
}

/// Deletes records of partitions of this core.
pub async fn on_this_core<E: Env>(
    dispatch: &Dispatch<E>,
    wanted: &[Wanted],
    timeout: Duration,
) -> Vec<DeleteRecordsPartitionReply> {
    let deadline = dispatch.env().now() + timeout;
    let results = dispatch.shard().delete_records(wanted, deadline).await;
    let reply = |((partition, _), result): (&Wanted, Result<Offset, DeleteRecordsError>)| match result {
        Ok(log_start) => DeleteRecordsPartitionReply { error: ErrorCode::None, log_start },
        Err(DeleteRecordsError::Unavailable(FetchError::UnknownPartition { .. })) => failed(dispatch.why_unknown(*partition).0),
        Err(error) => failed(error.code()),
    };
    wanted.iter().zip(results).map(reply).collect()
}

fn failed(error: ErrorCode) -> DeleteRecordsPartitionReply {
    DeleteRecordsPartitionReply { error, log_start: Offset(-1) }
}
