use proptest::prelude::*;

use super::*;

fn fields() -> FrameFields {
    FrameFields::request(Kind::Produce, 1, 0x0102_0304_0506_0708).with_payload(70_000)
}

fn header_of(frame: &[u8]) -> [u8; HEADER_BYTES] {
    *frame.first_chunk().unwrap()
}

#[test]
fn a_header_stands_where_the_page_says() {
    let frame = encode_frame(&fields(), b"body").unwrap();
    let mut expected =
        b"CLN1\x01\x00\x04\x00\x01\x00\x00\x00\x04\x00\x00\x00\x70\x11\x01\x00\x08\x07\x06\x05\x04\x03\x02\x01".to_vec();
    let crc = crc_fast::crc32_iscsi(&[&expected[..], b"body"].concat());
    expected.extend_from_slice(&crc.to_le_bytes());
    expected.extend_from_slice(b"body");
    assert_eq!(frame[..], expected[..]);
}

#[test]
fn a_frame_reads_back() {
    let frame = encode_frame(&fields(), b"body").unwrap();
    let header = FrameHeader::parse(&header_of(&frame)).unwrap();
    header.verify(&frame[HEADER_BYTES..]).unwrap();
    assert_eq!((header.kind(), header.kind_version, header.correlation), (Some(Kind::Produce), 1, 0x0102_0304_0506_0708));
    assert_eq!((header.body_bytes(), header.payload_bytes(), header.frame_bytes()), (4, 70_000, 32 + 4 + 70_000));
    assert!(!header.is_reply() && !header.is_error());
}

#[test]
fn a_reply_carries_its_requests_correlation_and_kind() {
    let request = FrameHeader::parse(&header_of(&encode_frame(&fields(), b"").unwrap())).unwrap();
    let reply = encode_frame(&request.reply_fields(Kind::Produce, false), b"reply").unwrap();
    let reply = FrameHeader::parse(&header_of(&reply)).unwrap();
    assert!(reply.is_reply() && !reply.is_error());
    assert_eq!((reply.kind_number, reply.correlation, reply.payload_bytes), (4, request.correlation, 0));
}

#[test]
fn an_unknown_kind_parses_and_is_answered_under_its_number() {
    let mut bytes = header_of(&encode_frame(&fields(), b"").unwrap());
    bytes[6..8].copy_from_slice(&999_u16.to_le_bytes());
    let request = FrameHeader::parse(&bytes).unwrap();
    assert_eq!((request.kind(), request.kind_number), (None, 999));
    let reply = encode_error_frame(&request, b"why").unwrap();
    let header = FrameHeader::parse(&header_of(&reply)).unwrap();
    header.verify(b"why").unwrap();
    assert!(header.is_reply() && header.is_error());
    assert_eq!((header.kind_number, header.correlation), (999, request.correlation));
}

#[test]
fn each_field_that_cannot_be_is_refused_by_name() {
    let good = header_of(&encode_frame(&fields(), b"body").unwrap());
    let changed = |at: usize, bytes: &[u8]| {
        let mut header = good;
        header[at..at + bytes.len()].copy_from_slice(bytes);
        FrameHeader::parse(&header).unwrap_err()
    };
    assert_eq!(changed(0, b"GET "), FrameError::Magic { found: u32::from_le_bytes(*b"GET ") });
    assert_eq!(changed(4, &[2]), FrameError::HeaderVersion { found: 2 });
    assert_eq!(changed(5, &[4]), FrameError::Flags { found: 4 });
    assert_eq!(changed(5, &[FLAG_ERROR]), FrameError::Flags { found: FLAG_ERROR });
    assert_eq!(changed(10, &[1]), FrameError::Reserved { found: 1 });
}

#[test]
fn t79_t80_a_huge_length_is_refused_by_the_header_alone() {
    let good = header_of(&encode_frame(&fields(), b"body").unwrap());
    for length in [0x8000_0000_u32, 0x7fff_ffff, u32::MAX] {
        let (mut body, mut payload) = (good, good);
        body[12..16].copy_from_slice(&length.to_le_bytes());
        payload[16..20].copy_from_slice(&length.to_le_bytes());
        assert_eq!(FrameHeader::parse(&body), Err(FrameError::BodyTooLarge { bytes: length as usize }));
        assert_eq!(FrameHeader::parse(&payload), Err(FrameError::PayloadTooLarge { bytes: length as usize }));
    }
    let mut largest = good;
    largest[12..16].copy_from_slice(&(1_u32 << 20).to_le_bytes());
    assert!(FrameHeader::parse(&largest).is_ok());
    largest[12..16].copy_from_slice(&((1_u32 << 20) + 1).to_le_bytes());
    assert!(FrameHeader::parse(&largest).is_err());
}

#[test]
fn a_frame_that_nobody_would_take_is_not_made() {
    let body = vec![0; FRAME_BODY_BYTES_MAX + 1];
    assert_eq!(encode_frame(&fields(), &body), Err(FrameError::BodyTooLarge { bytes: body.len() }));
    assert!(encode_frame(&fields(), &body[1..]).is_ok());
    let payload_bytes = FRAME_PAYLOAD_BYTES_MAX + 1;
    let too_large = fields().with_payload(payload_bytes);
    assert_eq!(encode_header(&too_large, b""), Err(FrameError::PayloadTooLarge { bytes: payload_bytes }));
}

#[test]
fn a_body_of_another_length_is_refused() {
    let header = FrameHeader::parse(&header_of(&encode_frame(&fields(), b"body").unwrap())).unwrap();
    assert_eq!(header.verify(b"bod"), Err(FrameError::BodyLength { expected: 4, found: 3 }));
}

proptest! {
    #![proptest_config(crate::testing::at_least(500))]

    #[test]
    fn any_header_is_refused_or_has_lengths_within_limits(bytes in any::<[u8; HEADER_BYTES]>()) {
        if let Ok(header) = FrameHeader::parse(&bytes) {
            prop_assert!(header.frame_bytes() <= crate::limits::FRAME_BYTES_MAX);
        }
    }

    #[test]
    fn a_plausible_header_is_refused_or_written_again_as_it_was(mut bytes in any::<[u8; HEADER_BYTES]>(), flags in 0_u8..4) {
        bytes[..6].copy_from_slice(&[b'C', b'L', b'N', b'1', 1, flags]);
        bytes[10..12].copy_from_slice(&[0, 0]);
        (bytes[15], bytes[19]) = (0, 0);
        if let Ok(header) = FrameHeader::parse(&bytes) {
            let mut again = [0; HEADER_BYTES];
            header.write_checked(&mut again);
            prop_assert_eq!(&again[..28], &bytes[..28]);
        }
    }

    #[test]
    fn no_flipped_bit_passes(body in proptest::collection::vec(any::<u8>(), 0..200), bit in any::<prop::sample::Index>()) {
        let mut frame = encode_frame(&fields(), &body).unwrap();
        let bit = bit.index(frame.len() * 8);
        frame[bit / 8] ^= 1 << (bit % 8);
        if let Ok(header) = FrameHeader::parse(&header_of(&frame)) {
            prop_assert!(header.verify(&frame[HEADER_BYTES..]).is_err());
        }
    }
}
