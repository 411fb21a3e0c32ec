//! Hello: versions 1.
//!
//! The first request of a connection; what comes before it is refused. Agrees on the highest protocol version that both
//! sides speak, and says who this host is, which kinds it serves and where its cores listen. A second Hello is answered
//! like the first.
//!
//! Kafka has no such handshake: there ApiVersions is optional, and a client may begin with anything.

use net::{RequestContext, Response};
use protocol::error::ErrorCode;
use protocol::frame::FrameHeader;
use protocol::limits::FRAME_BYTES_MAX;
use protocol::native::{HelloReply, HelloRequest, Kind, KindVersions, PROTOCOL_VERSION};
use runtime::Env;

use super::reply::{refuse, refuse_with, reply};
use crate::dispatch::Dispatch;

/// Answers Hello.
pub fn handle<E: Env>(dispatch: &Dispatch<E>, context: &mut RequestContext, header: &FrameHeader, body: &[u8]) -> Response {
    let request = match HelloRequest::decode_body(body) {
        Ok(request) => request,
        Err(error) => return refuse_with(header, &error),
    };
    if request.version_min > PROTOCOL_VERSION || request.version_max < PROTOCOL_VERSION {
        let message = format!(
            "the client speaks versions {} to {} of the native protocol, this host speaks {PROTOCOL_VERSION}",
            request.version_min, request.version_max
        );
        return refuse(header, ErrorCode::UnsupportedVersion, &message);
    }
    context.client_id = request.client_id;
    context.version = Some(PROTOCOL_VERSION);
    tracing::debug!(peer = %context.peer, client_id = context.client_id, software = request.client_software, "hello");
    let kinds = Kind::ALL.iter().map(|kind| {
        let (version_min, version_max) = kind.versions();
        KindVersions { kind_number: kind.number(), version_min, version_max }
    });
    let answer = HelloReply {
        cluster_id: dispatch.cluster_id(),
        host_id: dispatch.host_id(),
        host_name: dispatch.host_name().to_owned(),
        version: PROTOCOL_VERSION,
        features: 0,
        kinds: kinds.collect(),
        core_ports: dispatch.core_ports(),
        frame_bytes_max: u32::try_from(FRAME_BYTES_MAX).unwrap_or(u32::MAX),
    };
    reply(header, Kind::Hello, &answer.encode_body())
}
