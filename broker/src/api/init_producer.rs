//! InitProducer: version 1.
//!
//! Gives a producer id that nobody in the cluster has had, with epoch 0. Ids are taken in blocks through the metadata log; a block of which some are
//! left when the host stops is not taken up again.
//!
//! Where it differs from Kafka: no transactional id yet, so no epoch to raise; a producer that can't go on with its sequences begins the next epoch
//! by itself (KIP-360).

use std::time::Duration;

use futures_lite::future;
use net::Call;
use protocol::error::ErrorCode;
use protocol::frame::FrameHeader;
use protocol::ids::ProducerEpoch;
use protocol::limits::TOPIC_CHANGE_TIMEOUT_MS_MAX;
use protocol::native::{InitProducerReply, InitProducerRequest, Kind};
use runtime::Env;

use super::Reply;
use super::reply::{refuse, refuse_with, reply};
use crate::dispatch::Dispatch;

/// Answers InitProducer.
pub fn handle<E: Env>(dispatch: &Dispatch<E>, header: &FrameHeader, body: &[u8]) -> Call<Reply> {
    let request = match InitProducerRequest::decode_body(body) {
        Ok(request) => request,
        Err(error) => return Call::Ready(refuse_with(header, &error)),
    };
    let header = *header;
    let timeout_ms = request.timeout_ms.min(TOPIC_CHANGE_TIMEOUT_MS_MAX);
    let given = dispatch.changes().clone().producer_id();
    let env = dispatch.env().clone();
    let answer = async move {
        match given.await {
            Ok(producer_id) => {
                let answer = InitProducerReply { producer_id, producer_epoch: ProducerEpoch(0) };
                reply(&header, Kind::InitProducer, &answer.encode_body())
            }
            Err(error) => refuse_with(&header, &error),
        }
    };
    let late = async move {
        env.sleep(Duration::from_millis(u64::from(timeout_ms))).await;
        refuse(&header, ErrorCode::RequestTimedOut, &format!("no producer id after {timeout_ms} ms; ask again"))
    };
    Call::Later { reply: Reply::Other(Box::pin(future::or(answer, late))), bytes_max: 0 }
}
