//! DeleteTopic: version 1.
//!
//! Answered when the deletion is in the metadata log, durably, and the partitions take and give no more records. Their
//! files are removed in steps after that; a restart goes on with it.
//!
//! Where it differs from Kafka: one topic per request, by name; a topic of the same name can be made at once, as it has
//! another id and other directories (T17).

use net::Call;
use protocol::frame::FrameHeader;
use protocol::native::{DeleteTopicReply, DeleteTopicRequest, Kind};
use runtime::Env;

use super::Reply;
use super::reply::{refuse_with, reply};
use crate::dispatch::Dispatch;

/// Answers DeleteTopic.
pub fn handle<E: Env>(dispatch: &Dispatch<E>, header: &FrameHeader, body: &[u8]) -> Call<Reply> {
    let request = match DeleteTopicRequest::decode_body(body) {
        Ok(request) => request,
        Err(error) => return Call::Ready(refuse_with(header, &error)),
    };
    let header = *header;
    let deleted = dispatch.changes().clone().delete_topic(request.name);
    let answer = async move {
        match deleted.await {
            Ok(topic_id) => reply(&header, Kind::DeleteTopic, &DeleteTopicReply { topic_id }.encode_body()),
            Err(error) => refuse_with(&header, &error),
        }
    };
    Call::Later { reply: Reply::Other(Box::pin(answer)), bytes_max: 0 }
}
