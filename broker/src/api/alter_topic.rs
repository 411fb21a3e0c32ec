//! AlterTopic: version 1.
//!
//! Answered when the changed settings are in the metadata log, durably, and in force on every core. All of a request's changes are made or
//! none. After `timeout_ms` without that the answer is REQUEST_TIMED_OUT, and they may still come to be.
//!
//! Where it differs from Kafka's IncrementalAlterConfigs (KIP-339): one topic per request; set and back to the default, no appending.

use std::time::Duration;

use futures_lite::future;
use net::Call;
use protocol::error::ErrorCode;
use protocol::frame::FrameHeader;
use protocol::limits::TOPIC_CHANGE_TIMEOUT_MS_MAX;
use protocol::native::{AlterTopicReply, AlterTopicRequest, Kind};
use runtime::Env;

use super::Reply;
use super::reply::{refuse, refuse_with, reply};
use crate::dispatch::Dispatch;

/// Answers AlterTopic.
pub fn handle<E: Env>(dispatch: &Dispatch<E>, header: &FrameHeader, body: &[u8]) -> Call<Reply> {
    let request = match AlterTopicRequest::decode_body(body) {
        Ok(request) => request,
        Err(error) => return Call::Ready(refuse_with(header, &error)),
    };
    let header = *header;
    let timeout_ms = request.timeout_ms.min(TOPIC_CHANGE_TIMEOUT_MS_MAX);
    let altered = dispatch.changes().clone().alter_topic(request.name, request.configs);
    let env = dispatch.env().clone();
    let answer = async move {
        match altered.await {
            Ok(topic_id) => reply(&header, Kind::AlterTopic, &AlterTopicReply { topic_id }.encode_body()),
            Err(error) => refuse_with(&header, &error),
        }
    };
    let late = async move {
        env.sleep(Duration::from_millis(u64::from(timeout_ms))).await;
        let message = format!("the settings aren't changed after {timeout_ms} ms; they may still come to be");
        refuse(&header, ErrorCode::RequestTimedOut, &message)
    };
    Call::Later { reply: Reply::Other(Box::pin(future::or(answer, late))), bytes_max: 0 }
}
