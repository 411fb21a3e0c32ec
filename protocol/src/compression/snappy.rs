//! Snappy in xerial's framing, as Kafka's Java client writes it: a header of 16 bytes (magic, version 1, compatible
//! version 1), then blocks of raw snappy, each behind its length (4 bytes, big endian). Input without that header is read
//! as one raw block, as some clients send it.

use std::io;

use super::{Codec, CompressionError};

const MAGIC: [u8; 8] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];
const HEADER_BYTES: usize = 16;
/// What one block holds before compression: xerial's default.
const BLOCK_BYTES: usize = 32 << 10;
/// Raw snappy's largest gain: a copy of 64 bytes takes 3.
const BEST_GAIN: usize = 22;

pub(super) fn compress_into(input: &[u8], output: &mut Vec<u8>) -> io::Result<()> {
    output.extend_from_slice(&MAGIC);
    output.extend_from_slice(&1_u32.to_be_bytes());
    output.extend_from_slice(&1_u32.to_be_bytes());
    let mut encoder = snap::raw::Encoder::new();
    for block in input.chunks(BLOCK_BYTES) {
        let start = output.len();
        output.resize(start + 4 + snap::raw::max_compress_len(block.len()), 0);
        let written = encoder.compress(block, &mut output[start + 4..])?;
        output.truncate(start + 4 + written);
        let length = u32::try_from(written).map_err(io::Error::other)?;
        output[start..start + 4].copy_from_slice(&length.to_be_bytes());
    }
    Ok(())
}

pub(super) fn decompress(input: &[u8], bytes_max: usize) -> Result<Vec<u8>, CompressionError> {
    let mut output = Vec::new();
    if !input.starts_with(&MAGIC) {
        block(input, input.len(), bytes_max, &mut output)?;
        return Ok(output);
    }
    let Some(mut rest) = input.get(HEADER_BYTES..) else {
        return Err(corrupt(input.len(), "the header is cut"));
    };
    while let Some((length, behind)) = rest.split_first_chunk::<4>() {
        let length = u32::from_be_bytes(*length) as usize;
        let Some((data, behind)) = behind.split_at_checked(length) else {
            return Err(corrupt(input.len(), "a block is longer than what is there"));
        };
        block(data, input.len(), bytes_max, &mut output)?;
        rest = behind;
    }
    if rest.is_empty() { Ok(output) } else { Err(CompressionError::TrailingBytes { codec: Codec::Snappy, bytes: rest.len() }) }
}

/// One raw block. Its stated length is believed only as far as the block's own size can yield it.
fn block(data: &[u8], input_bytes: usize, bytes_max: usize, output: &mut Vec<u8>) -> Result<(), CompressionError> {
    let wrap = |error: snap::Error| CompressionError::Corrupt { codec: Codec::Snappy, bytes: input_bytes, source: error.into() };
    let stated = snap::raw::decompress_len(data).map_err(wrap)?;
    if stated > bytes_max - output.len() {
        return Err(CompressionError::TooLarge { codec: Codec::Snappy, allowed: bytes_max });
    }
    if stated > data.len().saturating_mul(BEST_GAIN) {
        return Err(corrupt(input_bytes, "a block states more than it can hold"));
    }
    let start = output.len();
    output.resize(start + stated, 0);
    snap::raw::Decoder::new().decompress(data, &mut output[start..]).map_err(wrap)?;
    Ok(())
}

fn corrupt(bytes: usize, what: &'static str) -> CompressionError {
    CompressionError::Corrupt { codec: Codec::Snappy, bytes, source: io::Error::new(io::ErrorKind::InvalidData, what) }
}
