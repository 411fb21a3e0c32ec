use proptest::prelude::*;

use super::*;

const COMPRESSED: [Codec; 4] = [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];

/// What a test lets come out at most.
const ALLOWED: usize = 1 << 20;

fn text(bytes: usize) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes + 32);
    let mut line = 0_u32;
    while text.len() < bytes {
        text.extend_from_slice(format!("line {line} of a log that repeats\n").as_bytes());
        line += 1;
    }
    text.truncate(bytes);
    text
}

#[test]
fn numbers_and_names_are_kafkas() {
    for (number, name) in [(0, "none"), (1, "gzip"), (2, "snappy"), (3, "lz4"), (4, "zstd")] {
        let codec = Codec::from_number(number).unwrap();
        assert_eq!((codec.number(), codec.name(), Codec::from_name(name)), (number, name, Some(codec)));
    }
    assert_eq!(Codec::from_number(5), None);
    assert_eq!(Codec::from_name("brotli"), None);
}

#[test]
fn what_is_compressed_comes_back() {
    for codec in Codec::ALL {
        for bytes in [0, 1, 100, 32 << 10, (32 << 10) + 1, 300_000] {
            let input = text(bytes);
            let compressed = compress(codec, &input).unwrap();
            assert_eq!(decompress(codec, &compressed, ALLOWED).unwrap(), input, "{codec}, {bytes} bytes");
            assert!(bytes < 1000 || codec == Codec::None || compressed.len() < bytes / 2, "{codec} gains nothing");
        }
    }
}

#[test]
fn a_limit_that_just_fits_is_enough() {
    let input = text(70_000);
    for codec in Codec::ALL {
        let compressed = compress(codec, &input).unwrap();
        assert_eq!(decompress(codec, &compressed, input.len()).unwrap(), input, "{codec}");
        let error = decompress(codec, &compressed, input.len() - 1).unwrap_err();
        assert!(matches!(error, CompressionError::TooLarge { allowed: 69_999, .. }), "{codec}: {error}");
    }
}

#[test]
fn members_and_frames_one_behind_the_other_are_one() {
    for codec in [Codec::Gzip, Codec::Lz4, Codec::Zstd] {
        let twice = [compress(codec, b"first, ").unwrap(), compress(codec, b"second").unwrap()].concat();
        assert_eq!(decompress(codec, &twice, ALLOWED).unwrap(), b"first, second", "{codec}");
    }
}

#[test]
fn snappy_without_xerials_framing_is_read() {
    let raw = snap::raw::Encoder::new().compress_vec(b"as some clients send it").unwrap();
    assert_eq!(decompress(Codec::Snappy, &raw, ALLOWED).unwrap(), b"as some clients send it");
}

#[test]
fn snappys_framing_is_xerials() {
    let compressed = compress(Codec::Snappy, b"abc").unwrap();
    let expected = [&b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01\0\0\0\x05"[..], &[3, 2 << 2, b'a', b'b', b'c']].concat();
    assert_eq!(compressed, expected);
}

#[test]
fn bytes_behind_the_end_are_refused() {
    for codec in COMPRESSED {
        let mut compressed = compress(codec, &text(5000)).unwrap();
        compressed.extend_from_slice(b"xyz");
        assert!(decompress(codec, &compressed, ALLOWED).is_err(), "{codec}");
    }
}

#[test]
fn cut_data_is_refused() {
    let input = text(5000);
    for codec in COMPRESSED {
        let compressed = compress(codec, &input).unwrap();
        for cut in 1..compressed.len() {
            // Snappy's framing has no end mark: a cut between blocks can't be seen there. Here is one block.
            if codec == Codec::Snappy && cut == 16 {
                continue;
            }
            assert!(decompress(codec, &compressed[..cut], ALLOWED).is_err(), "{codec} of {} cut at {cut}", compressed.len());
        }
    }
}

#[test]
fn an_lz4_frame_cut_between_blocks_is_refused() {
    let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
    encoder.write_all(&text(100_000)).unwrap();
    encoder.flush().unwrap();
    let without_end_mark = encoder.get_ref().clone();
    assert!(decompress(Codec::Lz4, &without_end_mark, ALLOWED).is_err());
    assert_eq!(decompress(Codec::Lz4, &encoder.finish().unwrap(), ALLOWED).unwrap(), text(100_000));
}

#[test]
fn t81_a_bomb_stops_at_the_limit() {
    let zeros = vec![0; 32 << 20];
    for codec in COMPRESSED {
        let bomb = compress(codec, &zeros).unwrap();
        assert!(bomb.len() < zeros.len() / 15, "{codec} makes a bomb of {} bytes", bomb.len());
        let error = decompress(codec, &bomb, ALLOWED).unwrap_err();
        assert!(matches!(error, CompressionError::TooLarge { allowed: ALLOWED, .. }), "{codec}: {error}");
    }
}

#[test]
fn t81_output_grows_as_it_is_made() {
    for codec in COMPRESSED {
        let compressed = compress(codec, b"a few bytes").unwrap();
        let output = decompress(codec, &compressed, 64 << 20).unwrap();
        assert!(output.capacity() <= 4096, "{codec} took {} bytes for {}", output.capacity(), output.len());
    }
}

#[test]
fn t80_a_stated_length_takes_no_memory() {
    // Raw snappy that states 2 GiB and 60 MiB, in a few bytes.
    for stated in [[0xff, 0xff, 0xff, 0xff, 0x07], [0x80, 0x80, 0x80, 0x1e, 0x00]] {
        let framed = [&b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01\0\0\0\x08"[..], &stated, &[0, b'a', 0]].concat();
        for input in [&stated[..], &framed[..]] {
            // Refused by what it states, before anything is made room for.
            let error = decompress(Codec::Snappy, input, 64 << 20).unwrap_err().to_string();
            assert!(error.contains("states more") || error.contains("more than the 67108864"), "{error}");
        }
    }
    // Xerial's block length of 2 GiB, and a negative one.
    for length in [[0x7f, 0xff, 0xff, 0xff], [0xff, 0xff, 0xff, 0xff]] {
        let framed = [&b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01"[..], &length, b"abc"].concat();
        assert!(decompress(Codec::Snappy, &framed, 64 << 20).is_err());
    }
    // A zstd frame that states 1 TiB in one segment.
    let zstd = [0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0];
    assert!(decompress(Codec::Zstd, &zstd, 64 << 20).is_err());
}

proptest! {
    #![proptest_config(crate::testing::at_least(300))]

    #[test]
    fn any_bytes_come_back(codec in 0_usize..5, input in proptest::collection::vec(any::<u8>(), 0..5000)) {
        let codec = Codec::ALL[codec];
        let compressed = compress(codec, &input).unwrap();
        prop_assert_eq!(decompress(codec, &compressed, input.len()).unwrap(), input);
    }

    #[test]
    fn t81_garbage_is_bounded(codec in 0_usize..5, input in proptest::collection::vec(any::<u8>(), 0..500)) {
        if let Ok(output) = decompress(Codec::ALL[codec], &input, 4096) {
            prop_assert!(output.len() <= 4096);
        }
    }

    #[test]
    fn t81_changed_bytes_are_bounded(codec in 0_usize..5, at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let codec = Codec::ALL[codec];
        let mut compressed = compress(codec, &text(3000)).unwrap();
        let at = at.index(compressed.len());
        compressed[at] = byte;
        if let Ok(output) = decompress(codec, &compressed, 4096) {
            prop_assert!(output.len() <= 4096 && output.capacity() <= 32 << 10);
        }
    }
}
