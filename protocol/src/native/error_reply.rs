//! The body of an error reply (frame flag `FLAG_ERROR`), to any kind: the request as a whole was refused.
//!
//! Version 1. The frame's kind and kind version are the request's; this layout is the same under all of them.

use super::NativeError;
use super::fields::{access, encode, text};
use crate::error::ErrorCode;

/// Why a request was refused as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorReply {
    /// The code; one that this side doesn't know reads as `UnknownServerError`.
    pub code: ErrorCode,
    /// For people, with the numbers in it.
    pub message: String,
}

#[derive(rkyv::Archive, rkyv::Serialize)]
struct ErrorReplyV1 {
    code: i16,
    message: Vec<u8>,
}

impl ErrorReply {
    /// The body of a frame.
    #[must_use]
    pub fn encode_body(&self) -> Vec<u8> {
        encode(&ErrorReplyV1 { code: self.code.number(), message: self.message.as_bytes().to_vec() })
    }

    /// Reads a body.
    ///
    /// # Errors
    /// If it isn't laid out so, or a field can't be.
    pub fn decode_body(body: &[u8]) -> Result<ErrorReply, NativeError> {
        let archived = access::<ArchivedErrorReplyV1>(body, "an error reply")?;
        Ok(ErrorReply {
            code: ErrorCode::from_number(archived.code.to_native()),
            message: text(archived.message.as_slice(), "message")?,
        })
    }
}
