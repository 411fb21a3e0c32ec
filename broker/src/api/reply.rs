//! Replies as frames: one piece for header and body, then the chunks of the payload as they are.

use net::Response;
use protocol::error::{ErrorCode, WireError};
use protocol::frame::{FrameFields, FrameHeader, encode_error_frame, encode_frame};
use protocol::native::{ErrorReply, Kind};
use runtime::{SendPart, SendParts};

/// Longest message of an error reply, in bytes; what a client sent may be in it.
const MESSAGE_BYTES_MAX: usize = 4096;

/// A reply without payload.
pub fn reply(request: &FrameHeader, kind: Kind, body: &[u8]) -> Response {
    reply_with_payload(request, kind, body, std::iter::empty())
}

/// A reply with batches behind it.
pub fn reply_with_payload(request: &FrameHeader, kind: Kind, body: &[u8], payload: impl Iterator<Item = SendPart>) -> Response {
    let mut parts = SendParts::new();
    parts.push(SendPart::Owned(Box::default()));
    parts.extend(payload);
    let payload_bytes = parts.iter().map(|part| part.as_bytes().len()).sum();
    let fields = FrameFields { payload_bytes, ..request.reply_fields(kind, false) };
    match encode_frame(&fields, body) {
        Ok(head) => {
            parts[0] = SendPart::Owned(head);
            parts.into()
        }
        Err(error) => refuse(request, ErrorCode::UnknownServerError, &format!("the reply is too large: {error}; ask for less")),
    }
}

/// An error reply for an error that says its own code.
pub fn refuse_with(request: &FrameHeader, error: &impl WireError) -> Response {
    refuse(request, error.code(), &error.to_string())
}

/// An error reply.
pub fn refuse(request: &FrameHeader, code: ErrorCode, message: &str) -> Response {
    let message = message.get(..message.floor_char_boundary(MESSAGE_BYTES_MAX)).unwrap_or_default();
    let body = ErrorReply { code, message: message.into() }.encode_body();
    match encode_error_frame(request, &body) {
        Ok(frame) => SendParts::from_iter([SendPart::Owned(frame)]).into(),
        Err(_) => unreachable!("the message was cut to {MESSAGE_BYTES_MAX} bytes"),
    }
}
