//! CreateTopic: version 1.
//!
//! Answered when the topic is in the metadata log, durably, and its partitions take records. After `timeout_ms` without
//! that the answer is REQUEST_TIMED_OUT, and the topic may still come to be.
//!
//! Where it differs from Kafka: one topic per request, so that a refusal says all there is to say; unknown settings are
//! refused with the one that was probably meant; the replication factor isn't asked for while a host stands alone.

use std::time::Duration;

use futures_lite::future;
use net::{Call, Response};
use protocol::error::ErrorCode;
use protocol::frame::FrameHeader;
use protocol::limits::TOPIC_CHANGE_TIMEOUT_MS_MAX;
use protocol::native::{CreateTopicReply, CreateTopicRequest, Kind};
use runtime::Env;

use super::Reply;
use super::reply::{refuse, refuse_with, reply};
use crate::dispatch::Dispatch;

/// Answers CreateTopic.
pub fn handle<E: Env>(dispatch: &Dispatch<E>, header: &FrameHeader, body: &[u8]) -> Call<Reply> {
    let request = match CreateTopicRequest::decode_body(body) {
        Ok(request) => request,
        Err(error) => return Call::Ready(refuse_with(header, &error)),
    };
    let header = *header;
    let timeout_ms = request.timeout_ms.min(TOPIC_CHANGE_TIMEOUT_MS_MAX);
    let created = dispatch.changes().clone().create_topic(request.name, request.partitions, request.configs);
    let env = dispatch.env().clone();
    let answer = async move {
        match created.await {
            Ok(topic_id) => reply(&header, Kind::CreateTopic, &CreateTopicReply { topic_id }.encode_body()),
            Err(error) => refuse_with(&header, &error),
        }
    };
    let late = async move {
        env.sleep(Duration::from_millis(u64::from(timeout_ms))).await;
        timed_out(&header, timeout_ms)
    };
    Call::Later { reply: Reply::Other(Box::pin(future::or(answer, late))), bytes_max: 0 }
}

fn timed_out(header: &FrameHeader, timeout_ms: u32) -> Response {
    let message = format!("the topic isn't ready after {timeout_ms} ms; it may still come to be");
    refuse(header, ErrorCode::RequestTimedOut, &message)
}
