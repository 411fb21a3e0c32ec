//! The lz4 frame format. The library takes a frame that is cut between two blocks for a whole one, so the frame's end is
//! found here first, by walking the block lengths; it then decodes exactly the frame.
//!
//! ```text
//! magic u32 | flags u8, block size u8, [content size u64], [dictionary u32], header checksum u8 |
//! blocks: length u32 (top bit: stored as is), data, [checksum u32] | 0 u32, [content checksum u32]
//! ```

use std::io;

use super::{Codec, CompressionError, read_onto};

const MAGIC: u32 = 0x184d_2204;
const VERSION_BITS: u8 = 0b1100_0000;
const VERSION: u8 = 0b0100_0000;
const BLOCK_CHECKSUM_BIT: u8 = 1 << 4;
const CONTENT_SIZE_BIT: u8 = 1 << 3;
const CONTENT_CHECKSUM_BIT: u8 = 1 << 2;
const DICTIONARY_BIT: u8 = 1;
const STORED_BIT: u32 = 1 << 31;

/// One frame or several, and nothing else.
pub(super) fn decompress(input: &[u8], bytes_max: usize) -> Result<Vec<u8>, CompressionError> {
    let mut rest = input;
    let mut output = Vec::new();
    loop {
        let (frame, behind) = frame_bytes(rest).and_then(|bytes| rest.split_at_checked(bytes)).ok_or_else(|| {
            let source = io::Error::new(io::ErrorKind::InvalidData, "no whole lz4 frame");
            CompressionError::Corrupt { codec: Codec::Lz4, bytes: input.len(), source }
        })?;
        let mut decoder = lz4_flex::frame::FrameDecoder::new(frame);
        read_onto(Codec::Lz4, &mut decoder, input.len(), bytes_max, &mut output)?;
        if behind.is_empty() {
            return Ok(output);
        }
        rest = behind;
    }
}

/// Length of the frame at the start of `input`, if its end is there.
fn frame_bytes(input: &[u8]) -> Option<usize> {
    let flags = *input.get(4)?;
    if u32_at(input, 0)? != MAGIC || flags & VERSION_BITS != VERSION {
        return None;
    }
    let optional = |bit: u8, bytes: usize| if flags & bit != 0 { bytes } else { 0 };
    let mut at = 4 + 2 + optional(CONTENT_SIZE_BIT, 8) + optional(DICTIONARY_BIT, 4) + 1;
    loop {
        let block = u32_at(input, at)?;
        at += 4;
        if block == 0 {
            return Some(at + optional(CONTENT_CHECKSUM_BIT, 4));
        }
        at = at.checked_add((block & !STORED_BIT) as usize + optional(BLOCK_CHECKSUM_BIT, 4))?;
    }
}

fn u32_at(input: &[u8], at: usize) -> Option<u32> {
    input.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}
