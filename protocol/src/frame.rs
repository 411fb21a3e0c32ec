//! The native frame: a fixed header of 32 bytes (little endian), a body of control fields, and a payload of raw record
//! batches.
//!
//! Pure; called by the connection's core for requests, by clients for replies.
//!
//! Order of events for a reader: receive 32 bytes, `FrameHeader::parse` (lengths are checked against the limits, nothing
//! is allocated), receive the body, `FrameHeader::verify`, decode the body by kind and kind version, receive the payload.
//!
//! Invariants:
//! - A header that parses has lengths within `FRAME_BODY_BYTES_MAX` and `FRAME_PAYLOAD_BYTES_MAX`.
//! - The CRC covers the header's first 28 bytes and the body. The payload carries its own, batch by batch.
//! - An unknown kind parses: the receiver answers it, rather than closing the connection.

use crate::limits::{FRAME_BODY_BYTES_MAX, FRAME_PAYLOAD_BYTES_MAX};
use crate::native::Kind;

/// Size of the header, in bytes.
pub const HEADER_BYTES: usize = 32;
/// The first four bytes of every frame: `CLN1`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"CLN1");
/// The version of the header that this code reads and writes.
pub const HEADER_VERSION: u8 = 1;
/// Flag: this frame is a reply.
pub const FLAG_REPLY: u8 = 1;
/// Flag: the reply's body is an [`ErrorReply`](crate::native::ErrorReply); set with [`FLAG_REPLY`] only.
pub const FLAG_ERROR: u8 = 2;

/// Bytes of the header that its CRC covers.
const CHECKED_BYTES: usize = HEADER_BYTES - 4;

/// Why bytes are no frame, or a frame can't be made. All of these but `BodyTooLarge` and `PayloadTooLarge` on the
/// sender's side mean that the peer doesn't speak this protocol: the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The first four bytes aren't `CLN1`.
    #[error("frame magic is {found:#010x}, expected {MAGIC:#010x}")]
    Magic {
        /// What was there.
        found: u32,
    },
    /// A header of a version that isn't spoken here.
    #[error("frame header version is {found}, this side speaks {HEADER_VERSION}")]
    HeaderVersion {
        /// The version of the header.
        found: u8,
    },
    /// Flags that don't exist, or an error flag without the reply flag.
    #[error("frame flags are {found:#04x}: reply is 1, error is 2 and only with reply, no others exist")]
    Flags {
        /// The flags.
        found: u8,
    },
    /// The reserved field isn't 0.
    #[error("frame's reserved field is {found}, must be 0")]
    Reserved {
        /// What was there.
        found: u16,
    },
    /// The body is longer than a frame may have.
    #[error("frame body of {bytes} bytes, {FRAME_BODY_BYTES_MAX} are allowed")]
    BodyTooLarge {
        /// Length asked for.
        bytes: usize,
    },
    /// The payload is longer than a frame may have.
    #[error("frame payload of {bytes} bytes, {FRAME_PAYLOAD_BYTES_MAX} are allowed")]
    PayloadTooLarge {
        /// Length asked for.
        bytes: usize,
    },
    /// The body handed over isn't as long as the header says.
    #[error("frame body of {found} bytes under a header that says {expected}")]
    BodyLength {
        /// The header's length.
        expected: u32,
        /// The body's length.
        found: usize,
    },
    /// The CRC doesn't match.
    #[error("frame CRC is {computed:#010x}, the header says {stored:#010x}")]
    Crc {
        /// The header's CRC.
        stored: u32,
        /// The CRC of what arrived.
        computed: u32,
    },
}

/// A header whose lengths are within the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// `FLAG_REPLY`, `FLAG_ERROR`.
    pub flags: u8,
    /// The kind as it came; see [`FrameHeader::kind`].
    pub kind_number: u16,
    /// Version of the body's layout.
    pub kind_version: u16,
    /// Length of the body, in bytes.
    pub body_bytes: u32,
    /// Length of the payload, in bytes.
    pub payload_bytes: u32,
    /// Chosen by who asks; a reply carries its request's.
    pub correlation: u64,
    /// CRC-32C of the 28 bytes before it and the body.
    pub crc: u32,
}

/// What a sender decides about a frame; lengths and CRC follow from the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameFields {
    /// What is asked or answered.
    pub kind: Kind,
    /// Version of the body's layout.
    pub kind_version: u16,
    /// `FLAG_REPLY`, `FLAG_ERROR`, or 0.
    pub flags: u8,
    /// Chosen by who asks; a reply carries its request's.
    pub correlation: u64,
    /// Length of the payload that will follow, in bytes.
    pub payload_bytes: usize,
}

impl FrameFields {
    /// A request without payload.
    #[must_use]
    pub fn request(kind: Kind, kind_version: u16, correlation: u64) -> FrameFields {
        FrameFields { kind, kind_version, flags: 0, correlation, payload_bytes: 0 }
    }

    /// The same, followed by `payload_bytes` bytes of payload.
    #[must_use]
    pub fn with_payload(self, payload_bytes: usize) -> FrameFields {
        FrameFields { payload_bytes, ..self }
    }
}

impl FrameHeader {
    /// Reads a header. Lengths are checked; the CRC isn't, as it covers the body too: see [`FrameHeader::verify`].
    ///
    /// # Errors
    /// The first field that can't be, with what was there.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<FrameHeader, FrameError> {
        let magic = u32_at(bytes, 0);
        if magic != MAGIC {
            return Err(FrameError::Magic { found: magic });
        }
        if bytes[4] != HEADER_VERSION {
            return Err(FrameError::HeaderVersion { found: bytes[4] });
        }
        let flags = bytes[5];
        if flags & !(FLAG_REPLY | FLAG_ERROR) != 0 || flags == FLAG_ERROR {
            return Err(FrameError::Flags { found: flags });
        }
        let reserved = u16_at(bytes, 10);
        if reserved != 0 {
            return Err(FrameError::Reserved { found: reserved });
        }
        let header = FrameHeader {
            flags,
            kind_number: u16_at(bytes, 6),
            kind_version: u16_at(bytes, 8),
            body_bytes: u32_at(bytes, 12),
            payload_bytes: u32_at(bytes, 16),
            correlation: u64::from(u32_at(bytes, 20)) | u64::from(u32_at(bytes, 24)) << 32,
            crc: u32_at(bytes, 28),
        };
        if header.body_bytes() > FRAME_BODY_BYTES_MAX {
            return Err(FrameError::BodyTooLarge { bytes: header.body_bytes() });
        }
        if header.payload_bytes() > FRAME_PAYLOAD_BYTES_MAX {
            return Err(FrameError::PayloadTooLarge { bytes: header.payload_bytes() });
        }
        Ok(header)
    }

    /// Checks the CRC over header and body.
    ///
    /// # Errors
    /// If the body isn't as long as the header says, or the CRC differs.
    pub fn verify(&self, body: &[u8]) -> Result<(), FrameError> {
        if body.len() != self.body_bytes() {
            return Err(FrameError::BodyLength { expected: self.body_bytes, found: body.len() });
        }
        let mut head = [0; HEADER_BYTES];
        self.write_checked(&mut head);
        let computed = crc32c::crc32c_append(crc32c::crc32c(&head[..CHECKED_BYTES]), body);
        if computed == self.crc { Ok(()) } else { Err(FrameError::Crc { stored: self.crc, computed }) }
    }

    /// The kind, if this side knows it.
    #[must_use]
    pub fn kind(&self) -> Option<Kind> {
        Kind::from_number(self.kind_number)
    }

    /// Whether this frame answers a request.
    #[must_use]
    pub fn is_reply(&self) -> bool {
        self.flags & FLAG_REPLY != 0
    }

    /// Whether the body is an [`ErrorReply`](crate::native::ErrorReply).
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.flags & FLAG_ERROR != 0
    }

    /// Length of the body, in bytes.
    #[must_use]
    pub fn body_bytes(&self) -> usize {
        self.body_bytes as usize
    }

    /// Length of the payload, in bytes.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.payload_bytes as usize
    }

    /// Length of the whole frame, this header included, in bytes.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        HEADER_BYTES + self.body_bytes() + self.payload_bytes()
    }

    /// The fields of a reply to this request; an error reply with `is_error`.
    #[must_use]
    pub fn reply_fields(&self, kind: Kind, is_error: bool) -> FrameFields {
        let flags = if is_error { FLAG_REPLY | FLAG_ERROR } else { FLAG_REPLY };
        FrameFields { kind, kind_version: self.kind_version, flags, correlation: self.correlation, payload_bytes: 0 }
    }

    fn write_checked(&self, out: &mut [u8; HEADER_BYTES]) {
        out[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4] = HEADER_VERSION;
        out[5] = self.flags;
        out[6..8].copy_from_slice(&self.kind_number.to_le_bytes());
        out[8..10].copy_from_slice(&self.kind_version.to_le_bytes());
        out[10..12].copy_from_slice(&[0, 0]);
        out[12..16].copy_from_slice(&self.body_bytes.to_le_bytes());
        out[16..20].copy_from_slice(&self.payload_bytes.to_le_bytes());
        out[20..28].copy_from_slice(&self.correlation.to_le_bytes());
    }
}

/// The header of a frame with this body; the payload follows the body on the wire.
///
/// # Errors
/// If body or payload are longer than a frame may have.
pub fn encode_header(fields: &FrameFields, body: &[u8]) -> Result<[u8; HEADER_BYTES], FrameError> {
    encode_raw_header(fields, fields.kind.number(), body)
}

/// Header and body in one piece; the payload, if any, follows on the wire.
///
/// # Errors
/// If body or payload are longer than a frame may have.
pub fn encode_frame(fields: &FrameFields, body: &[u8]) -> Result<Box<[u8]>, FrameError> {
    let header = encode_header(fields, body)?;
    let mut frame = Vec::with_capacity(HEADER_BYTES + body.len());
    frame.extend_from_slice(&header);
    frame.extend_from_slice(body);
    Ok(frame.into_boxed_slice())
}

/// An error reply to a request whose kind this side may not even know: the kind goes back as it came.
///
/// # Errors
/// If the body is longer than a frame may have.
pub fn encode_error_frame(request: &FrameHeader, body: &[u8]) -> Result<Box<[u8]>, FrameError> {
    let fields = request.reply_fields(Kind::Hello, true);
    let header = encode_raw_header(&fields, request.kind_number, body)?;
    Ok([&header, body].concat().into_boxed_slice())
}

fn encode_raw_header(fields: &FrameFields, kind_number: u16, body: &[u8]) -> Result<[u8; HEADER_BYTES], FrameError> {
    let too_large = FrameError::BodyTooLarge { bytes: body.len() };
    if body.len() > FRAME_BODY_BYTES_MAX {
        return Err(too_large);
    }
    let payload_too_large = FrameError::PayloadTooLarge { bytes: fields.payload_bytes };
    if fields.payload_bytes > FRAME_PAYLOAD_BYTES_MAX {
        return Err(payload_too_large);
    }
    let header = FrameHeader {
        flags: fields.flags,
        kind_number,
        kind_version: fields.kind_version,
        body_bytes: u32::try_from(body.len()).map_err(|_| too_large)?,
        payload_bytes: u32::try_from(fields.payload_bytes).map_err(|_| payload_too_large)?,
        correlation: fields.correlation,
        crc: 0,
    };
    let mut bytes = [0; HEADER_BYTES];
    header.write_checked(&mut bytes);
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..CHECKED_BYTES]), body);
    bytes[CHECKED_BYTES..].copy_from_slice(&crc.to_le_bytes());
    Ok(bytes)
}

fn u16_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests;
