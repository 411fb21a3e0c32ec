//! The framing of the native protocol: 32 bytes of head, a body under a checksum, a payload of raw batches.

use protocol::frame::{FrameHeader, HEADER_BYTES};
use protocol::limits::FRAME_BYTES_MAX;

use crate::framing::{FrameRefused, FrameShape, Framing};

/// Marks connections that speak the native protocol.
#[derive(Clone, Copy, Debug)]
pub struct Native;

impl Framing for Native {
    type Header = FrameHeader;
    const HEAD_BYTES: usize = HEADER_BYTES;
    const FRAME_BYTES_MAX: usize = FRAME_BYTES_MAX;

    fn parse_head(head: &[u8]) -> Result<(FrameHeader, FrameShape), FrameRefused> {
        let head: &[u8; HEADER_BYTES] =
            head.try_into().map_err(|_| FrameRefused(format!("a head of {} bytes, {HEADER_BYTES} expected", head.len())))?;
        let header = FrameHeader::parse(head).map_err(|error| FrameRefused(error.to_string()))?;
        if header.is_reply() {
            return Err(FrameRefused("a reply was sent to a server".into()));
        }
        Ok((header, FrameShape { body_bytes: header.body_bytes(), payload_bytes: header.payload_bytes() }))
    }

    fn verify(header: &FrameHeader, _head: &[u8], body: &[u8]) -> Result<(), FrameRefused> {
        header.verify(body).map_err(|error| FrameRefused(error.to_string()))
    }
}
