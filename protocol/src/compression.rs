//! The codecs of record batches, with a bound on what comes out.
//!
//! Pure CPU work; called by clients, and by brokers off the cores only (compaction, sampling). Framing as Kafka's
//! clients write it: gzip members, snappy in xerial's blocks (plain snappy is read too), the lz4 frame format, zstd
//! frames. Concatenated members and frames are read as one; anything behind them is refused.
//!
//! Invariants:
//! - Output grows as it is made, never on the word of a length field, and never past the caller's limit (trap T81).
//! - Working memory is the codec's window: 32 KiB, 64 KiB, at most 8 MiB for lz4; zstd reserves the frame's window, at most
//!   128 MiB of address space of which it touches what it has put out.

mod lz4;
mod snappy;

use std::io::{self, Read, Write};

/// How the records of a batch are compressed; the numbers are the attributes' lowest three bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Codec {
    /// Not at all.
    #[default]
    None = 0,
    /// gzip.
    Gzip = 1,
    /// snappy, in xerial's framing.
    Snappy = 2,
    /// lz4, in its frame format.
    Lz4 = 3,
    /// zstd.
    Zstd = 4,
}

/// Why bytes couldn't be compressed or decompressed.
#[derive(Debug, thiserror::Error)]
pub enum CompressionError {
    /// The output would pass the limit.
    #[error("{codec} data decompresses to more than the {allowed} bytes that are allowed")]
    TooLarge {
        /// The codec.
        codec: Codec,
        /// The limit, in bytes.
        allowed: usize,
    },
    /// The input isn't what the codec writes.
    #[error("{codec} data of {bytes} bytes is corrupt: {source}")]
    Corrupt {
        /// The codec.
        codec: Codec,
        /// Length of the input.
        bytes: usize,
        /// What the codec says.
        source: io::Error,
    },
    /// Bytes behind the end of the compressed data.
    #[error("{bytes} bytes behind the end of {codec} data")]
    TrailingBytes {
        /// The codec.
        codec: Codec,
        /// How many.
        bytes: usize,
    },
    /// The compressor failed.
    #[error("{codec} could not compress {bytes} bytes: {source}")]
    Compress {
        /// The codec.
        codec: Codec,
        /// Length of the input.
        bytes: usize,
        /// What the codec says.
        source: io::Error,
    },
}

impl Codec {
    /// Every codec, by number.
    pub const ALL: [Codec; 5] = [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];

    /// The number in a batch's attributes.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The codec with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Codec> {
        Codec::ALL.get(usize::from(number)).copied()
    }

    /// The configuration's word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Codec::None => "none",
            Codec::Gzip => "gzip",
            Codec::Snappy => "snappy",
            Codec::Lz4 => "lz4",
            Codec::Zstd => "zstd",
        }
    }

    /// The codec with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Codec> {
        Codec::ALL.into_iter().find(|codec| codec.name() == name)
    }
}

impl std::fmt::Display for Codec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Compresses `input` and appends the result to `output`.
///
/// # Errors
/// If the codec fails.
pub fn compress_into(codec: Codec, input: &[u8], output: &mut Vec<u8>) -> Result<(), CompressionError> {
    let failed = |source| CompressionError::Compress { codec, bytes: input.len(), source };
    match codec {
        Codec::None => output.extend_from_slice(input),
        Codec::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(output, flate2::Compression::default());
            encoder.write_all(input).and_then(|()| encoder.finish()).map_err(failed)?;
        }
        Codec::Snappy => snappy::compress_into(input, output).map_err(failed)?,
        Codec::Lz4 => {
            let mut encoder = lz4_flex::frame::FrameEncoder::new(output);
            encoder.write_all(input).map_err(failed)?;
            encoder.finish().map_err(|error| failed(error.into()))?;
        }
        Codec::Zstd => {
            let mut encoder = zstd::stream::write::Encoder::new(output, zstd::DEFAULT_COMPRESSION_LEVEL).map_err(failed)?;
            encoder.set_pledged_src_size(Some(input.len() as u64)).map_err(failed)?;
            encoder.write_all(input).and_then(|()| encoder.finish()).map_err(failed)?;
        }
    }
    Ok(())
}

/// Compresses `input`.
///
/// # Errors
/// If the codec fails.
pub fn compress(codec: Codec, input: &[u8]) -> Result<Vec<u8>, CompressionError> {
    let mut output = Vec::new();
    compress_into(codec, input, &mut output)?;
    Ok(output)
}

/// Decompresses `input` to at most `bytes_max` bytes.
///
/// # Errors
/// If the input is corrupt, has bytes behind its end, or would decompress to more.
pub fn decompress(codec: Codec, input: &[u8], bytes_max: usize) -> Result<Vec<u8>, CompressionError> {
    let corrupt = |source| CompressionError::Corrupt { codec, bytes: input.len(), source };
    match codec {
        Codec::None if input.len() > bytes_max => Err(CompressionError::TooLarge { codec, allowed: bytes_max }),
        Codec::None => Ok(input.to_vec()),
        Codec::Gzip => read_bounded(codec, flate2::bufread::MultiGzDecoder::new(input), input.len(), bytes_max),
        Codec::Snappy => snappy::decompress(input, bytes_max),
        Codec::Lz4 => lz4::decompress(input, bytes_max),
        Codec::Zstd => {
            let decoder = zstd::stream::read::Decoder::with_buffer(input).map_err(corrupt)?;
            read_bounded(codec, decoder, input.len(), bytes_max)
        }
    }
}

fn read_bounded(codec: Codec, mut decoder: impl Read, bytes: usize, bytes_max: usize) -> Result<Vec<u8>, CompressionError> {
    let mut output = Vec::new();
    read_onto(codec, &mut decoder, bytes, bytes_max, &mut output)?;
    Ok(output)
}

fn read_onto(
    codec: Codec,
    decoder: &mut impl Read,
    bytes: usize,
    bytes_max: usize,
    output: &mut Vec<u8>,
) -> Result<(), CompressionError> {
    let left = bytes_max.saturating_sub(output.len());
    // Room for a usual gain over what really came; it grows from there as output is made.
    output.reserve(left.min(bytes.saturating_mul(4)));
    // One byte more than allowed tells "just fits" from "too large".
    let mut bounded = decoder.take(left as u64 + 1);
    bounded.read_to_end(output).map_err(|source| CompressionError::Corrupt { codec, bytes, source })?;
    if output.len() > bytes_max { Err(CompressionError::TooLarge { codec, allowed: bytes_max }) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
