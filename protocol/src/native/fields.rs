//! What all kinds share: the checked access to an archived body, its encoding, and the conversion of single fields.
//! The archived types themselves are never shared.

use rkyv::api::high::{HighSerializer, HighValidator, to_bytes_in};
use rkyv::bytecheck::CheckBytes;
use rkyv::rancor::Failure;
use rkyv::ser::allocator::ArenaHandle;
use rkyv::{Portable, Serialize};

use crate::limits::FRAME_BODY_BYTES_MAX;

/// Why a body is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NativeError {
    /// The bytes aren't laid out as this kind and version are: a list points outside, or its length passes the body.
    #[error("body of {bytes} bytes isn't laid out as {message} is")]
    Layout {
        /// The message that was expected.
        message: &'static str,
        /// Length of the body.
        bytes: usize,
    },
    /// A field that holds text isn't UTF-8.
    #[error("{field} isn't UTF-8 from byte {valid_bytes} on")]
    Text {
        /// The field.
        field: &'static str,
        /// Bytes of it that are UTF-8.
        valid_bytes: usize,
    },
    /// A field's value can't be.
    #[error("{field} is {found}, {first} to {last} are allowed")]
    Range {
        /// The field.
        field: &'static str,
        /// Its value.
        found: i64,
        /// Smallest that may be.
        first: i64,
        /// Largest that may be.
        last: i64,
    },
    /// A list or text is longer than it may be.
    #[error("{field} has {found} entries, {allowed} are allowed")]
    TooMany {
        /// The field.
        field: &'static str,
        /// Its length.
        found: usize,
        /// What is allowed.
        allowed: usize,
    },
}

/// Reads a body through the checked accessor.
pub(super) fn access<'a, T>(body: &'a [u8], message: &'static str) -> Result<&'a T, NativeError>
where
    T: Portable + for<'c> CheckBytes<HighValidator<'c, Failure>>,
{
    rkyv::access::<T, Failure>(body).map_err(|_| NativeError::Layout { message, bytes: body.len() })
}

/// What a body takes in most replies, in bytes: room for it is made at once.
const USUAL_BODY_BYTES: usize = 128;

/// Writes a body. The frame refuses one that is too long.
pub(super) fn encode<T>(message: &T) -> Vec<u8>
where
    T: for<'a> Serialize<HighSerializer<Vec<u8>, ArenaHandle<'a>, Failure>>,
{
    // Writing into memory fails only past 4 GiB, where relative pointers end: the caller's lists are bounded far below.
    to_bytes_in::<_, Failure>(message, Vec::with_capacity(USUAL_BODY_BYTES))
        .expect("a message in memory fits 32-bit relative pointers")
}

/// A text field.
pub(super) fn text(bytes: &[u8], field: &'static str) -> Result<String, NativeError> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(error) => Err(NativeError::Text { field, valid_bytes: error.valid_up_to() }),
    }
}

/// A list of at most `allowed` entries.
pub(super) fn bounded(found: usize, allowed: usize, field: &'static str) -> Result<(), NativeError> {
    if found > allowed { Err(NativeError::TooMany { field, found, allowed }) } else { Ok(()) }
}

/// A value from `first` to `last`.
pub(super) fn within(found: i64, first: i64, last: i64, field: &'static str) -> Result<(), NativeError> {
    if (first..=last).contains(&found) { Ok(()) } else { Err(NativeError::Range { field, found, first, last }) }
}

const _: () = assert!(FRAME_BODY_BYTES_MAX < i32::MAX as usize);
