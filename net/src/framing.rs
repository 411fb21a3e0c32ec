//! What the splitter has to know of a dialect: where the length stands, and what is refused before memory is taken.
//!
//! Called on a connection core, once per frame. Bytes come from outside: an implementation never panics on them.

use runtime::ChunkSlice;
use thiserror::Error;

/// Sizes of one frame, as its head says, checked against the limits by [`Framing::parse_head`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameShape {
    /// Bytes behind the head that hold control fields.
    pub body_bytes: usize,
    /// Bytes behind the body that hold raw batches.
    pub payload_bytes: usize,
}

/// One frame, cut in place: body and payload are slices of the chunk that the bytes were received into.
#[derive(Debug)]
pub struct Frame<H> {
    /// The decoded head.
    pub header: H,
    /// Control fields.
    pub body: ChunkSlice,
    /// Raw batches; empty if there are none.
    pub payload: ChunkSlice,
}

/// Why the bytes of a connection are not a frame. The stream can't be followed any further: it is closed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct FrameRefused(pub String);

/// The framing of one dialect.
pub trait Framing: 'static {
    /// The decoded head of a frame.
    type Header: Clone + 'static;

    /// Bytes that must be there before the length of a frame is known.
    const HEAD_BYTES: usize;
    /// Largest frame that [`Framing::parse_head`] lets pass, head included.
    const FRAME_BYTES_MAX: usize;

    /// Decodes the head. `head` has exactly [`Framing::HEAD_BYTES`] bytes.
    ///
    /// # Errors
    /// Whatever is wrong with it, a length over its limit included: nothing is allocated for a frame that is refused here.
    fn parse_head(head: &[u8]) -> Result<(Self::Header, FrameShape), FrameRefused>;

    /// Checks the body of a complete frame against its head (checksum).
    ///
    /// # Errors
    /// If they don't belong together.
    fn verify(header: &Self::Header, head: &[u8], body: &[u8]) -> Result<(), FrameRefused>;
}

impl FrameShape {
    /// Bytes of the whole frame behind a head of `head_bytes`.
    #[must_use]
    pub fn total_bytes(self, head_bytes: usize) -> usize {
        head_bytes.saturating_add(self.body_bytes).saturating_add(self.payload_bytes)
    }
}
