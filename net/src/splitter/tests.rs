use proptest::prelude::*;

use super::*;

/// Four bytes of body length, four of payload length, one checksum byte over the body.
struct Toy;

const TOY_BODY_MAX: u32 = 1 << 20;
const TOY_PAYLOAD_MAX: u32 = 12 << 20;

impl Framing for Toy {
    type Header = u8;
    const HEAD_BYTES: usize = 9;
    const FRAME_BYTES_MAX: usize = 9 + (1 << 20) + (12 << 20);

    fn parse_head(head: &[u8]) -> Result<(u8, FrameShape), FrameRefused> {
        let body = u32::from_le_bytes(head[..4].try_into().unwrap());
        let payload = u32::from_le_bytes(head[4..8].try_into().unwrap());
        if body > TOY_BODY_MAX || payload > TOY_PAYLOAD_MAX {
            return Err(FrameRefused(format!("body of {body}, payload of {payload} bytes")));
        }
        Ok((head[8], FrameShape { body_bytes: body as usize, payload_bytes: payload as usize }))
    }

    fn verify(header: &u8, _head: &[u8], body: &[u8]) -> Result<(), FrameRefused> {
        if sum(body) == *header { Ok(()) } else { Err(FrameRefused("checksum".into())) }
    }
}

fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
}

fn toy(body: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(body.len()).unwrap().to_le_bytes().to_vec();
    frame.extend(u32::try_from(payload.len()).unwrap().to_le_bytes());
    frame.push(sum(body));
    frame.extend_from_slice(body);
    frame.extend_from_slice(payload);
    frame
}

fn region() -> Region {
    Region::map(64 << 20).unwrap()
}

/// Feeds `bytes` as one receive would: as much as the chunk takes, again and again. Gives the frames cut.
fn feed(splitter: &mut Splitter<Toy>, region: &Region, mut bytes: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let mut chunk = splitter.chunk_to_receive(region).unwrap();
        let count = chunk.remaining().min(bytes.len());
        assert!(count > 0, "a chunk to receive into has room");
        chunk.append(&bytes[..count]);
        bytes = &bytes[count..];
        splitter.received(chunk);
        while let Some(frame) = splitter.next_frame().unwrap() {
            frames.push((frame.body.to_vec(), frame.payload.to_vec()));
        }
    }
    frames
}

#[test]
fn a_frame_cut_at_each_byte_is_whole_again() {
    let region = region();
    let bytes = [toy(b"control", b"payload of the first"), toy(b"", b""), toy(b"x", b"")].concat();
    for cut in 0..=bytes.len() {
        let mut splitter = Splitter::<Toy>::default();
        let mut frames = feed(&mut splitter, &region, &bytes[..cut]);
        splitter.rest();
        splitter.shrink(&region);
        frames.extend(feed(&mut splitter, &region, &bytes[cut..]));
        assert_eq!(frames.len(), 3, "cut at {cut}");
        assert_eq!(frames[0], (b"control".to_vec(), b"payload of the first".to_vec()), "cut at {cut}");
        assert_eq!(frames[2], (b"x".to_vec(), Vec::new()), "cut at {cut}");
        assert_eq!(splitter.partial_bytes(), 0);
    }
    assert_eq!(region.free_bytes(), region.bytes());
}

#[test]
fn one_byte_at_a_time() {
    let region = region();
    let bytes = [toy(b"abc", &[7; 300]), toy(b"def", &[8; 10])].concat();
    let mut splitter = Splitter::<Toy>::default();
    let frames: Vec<_> = bytes.iter().flat_map(|byte| feed(&mut splitter, &region, &[*byte])).collect();
    assert_eq!(frames, vec![(b"abc".to_vec(), vec![7; 300]), (b"def".to_vec(), vec![8; 10])]);
}

#[test]
fn t79_a_hostile_length_is_refused_before_memory_is_taken() {
    let region = region();
    for (body, payload) in [(u32::MAX, 0), (0, u32::MAX), (i32::MAX as u32, i32::MAX as u32), (TOY_BODY_MAX + 1, 0), (1 << 31, 1)]
    {
        let mut splitter = Splitter::<Toy>::default();
        let mut chunk = splitter.chunk_to_receive(&region).unwrap();
        chunk.append(&body.to_le_bytes());
        chunk.append(&payload.to_le_bytes());
        chunk.append(&[0]);
        splitter.received(chunk);
        assert!(splitter.next_frame().is_err(), "{body} and {payload}");
        assert!(splitter.held_bytes() <= RECEIVE_CHUNK_BYTES);
    }
}

#[test]
fn t80_memory_grows_only_with_bytes_that_arrived() {
    let region = region();
    let frame = toy(b"body", &vec![5; TOY_PAYLOAD_MAX as usize]);
    let mut splitter = Splitter::<Toy>::default();
    let mut arrived = 0;
    while arrived < frame.len() {
        let mut chunk = splitter.chunk_to_receive(&region).unwrap();
        assert!(chunk.capacity() <= RECEIVE_CHUNK_BYTES.max(4 * arrived), "{} held for {arrived}", chunk.capacity());
        let count = chunk.remaining().min(frame.len() - arrived).min(10_000);
        chunk.append(&frame[arrived..arrived + count]);
        arrived += count;
        splitter.received(chunk);
        let cut = splitter.next_frame().unwrap();
        assert_eq!(cut.is_some(), arrived == frame.len());
    }
}

#[test]
fn a_stream_of_equal_frames_is_received_up_to_the_end_of_one() {
    let region = region();
    let frame = toy(b"body", &[5; 60_000]);
    let mut splitter = Splitter::<Toy>::default();
    feed(&mut splitter, &region, &frame);
    splitter.rest();
    let chunk = splitter.chunk_to_receive(&region).unwrap();
    let whole = chunk.capacity() / frame.len() * frame.len();
    assert_eq!(splitter.receive_bytes_max(&chunk), whole);
    // A partial frame first, with and without its head.
    for there in [3, 1000] {
        let mut splitter = Splitter::<Toy> { last_bytes: frame.len(), ..Splitter::default() };
        feed(&mut splitter, &region, &frame[..there]);
        let chunk = splitter.chunk_to_receive(&region).unwrap();
        assert_eq!((there + splitter.receive_bytes_max(&chunk)) % frame.len(), 0);
    }
    // A frame that is longer than what there is room for, or none before it: all that fits.
    let longer = Splitter::<Toy> { last_bytes: RECEIVE_CHUNK_BYTES + 1, ..Splitter::default() };
    for splitter in [Splitter::default(), longer] {
        let chunk = region.take(RECEIVE_CHUNK_BYTES).unwrap();
        assert_eq!(splitter.receive_bytes_max(&chunk), RECEIVE_CHUNK_BYTES);
    }
}

#[test]
fn t82_a_frame_that_stalls_holds_what_has_arrived_and_no_more() {
    let region = region();
    let frame = toy(b"body", &vec![5; 1 << 20]);
    for arrived in [1, 9, 100, 5_000, 100_000, 600_000] {
        let mut splitter = Splitter::<Toy>::default();
        assert!(feed(&mut splitter, &region, &frame[..arrived]).is_empty());
        splitter.shrink(&region);
        assert!(splitter.held_bytes() <= 4 * arrived.max(BLOCK_BYTES), "{} held for {arrived}", splitter.held_bytes());
        let frames = feed(&mut splitter, &region, &frame[arrived..]);
        assert_eq!(frames.len(), 1);
        assert_eq!(frames[0].1.len(), 1 << 20);
    }
}

#[test]
fn an_idle_connection_holds_no_memory() {
    let region = region();
    let mut splitter = Splitter::<Toy>::default();
    feed(&mut splitter, &region, &toy(b"a", b"b"));
    splitter.rest();
    assert_eq!(region.free_bytes(), region.bytes());
}

#[test]
fn a_frame_that_is_kept_is_not_overwritten() {
    let region = region();
    let mut splitter = Splitter::<Toy>::default();
    let mut kept = Vec::new();
    for n in 0..200_u8 {
        let mut chunk = splitter.chunk_to_receive(&region).unwrap();
        chunk.append(&toy(&[n; 16], &[n; 5_000]));
        splitter.received(chunk);
        kept.push(splitter.next_frame().unwrap().unwrap());
    }
    for (n, frame) in kept.iter().enumerate() {
        assert!(frame.payload.iter().all(|byte| usize::from(*byte) == n));
    }
}

#[test]
fn without_memory_the_partial_frame_stays() {
    let region = Region::map(16 << 20).unwrap();
    let frame = toy(b"body", &vec![9; 900_000]);
    let mut splitter = Splitter::<Toy>::default();
    feed(&mut splitter, &region, &frame[..RECEIVE_CHUNK_BYTES]);
    let hoard: Vec<Chunk> =
        (12..=24).rev().flat_map(|order| std::iter::from_fn(|| region.take(1 << order)).collect::<Vec<_>>()).collect();
    assert_eq!(splitter.chunk_to_receive(&region).unwrap_err(), NoMemory);
    assert_eq!(splitter.partial_bytes(), RECEIVE_CHUNK_BYTES);
    drop(hoard);
    assert_eq!(feed(&mut splitter, &region, &frame[RECEIVE_CHUNK_BYTES..]).len(), 1);
}

proptest! {
    #[test]
    fn any_frames_in_any_pieces(
        frames in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..300), 0_usize..400_000), 1..12),
        cuts in prop::collection::vec(1_usize..300_000, 1..8),
    ) {
        let region = region();
        let mut splitter = Splitter::<Toy>::default();
        let bytes: Vec<u8> = frames.iter().flat_map(|(body, payload)| toy(body, &vec![3; *payload])).collect();
        let mut cut = Vec::new();
        let mut rest = bytes.as_slice();
        for size in cuts.iter().cycle() {
            let piece = rest.len().min(*size);
            cut.extend(feed(&mut splitter, &region, &rest[..piece]));
            rest = &rest[piece..];
            if size % 2 == 0 { splitter.rest() } else { splitter.shrink(&region) }
            if rest.is_empty() { break }
        }
        prop_assert_eq!(cut.len(), frames.len());
        for ((body, payload), (cut_body, cut_payload)) in frames.iter().zip(&cut) {
            prop_assert_eq!(body, cut_body);
            prop_assert_eq!(*payload, cut_payload.len());
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let region = region();
        let mut splitter = Splitter::<Toy>::default();
        let mut chunk = splitter.chunk_to_receive(&region).unwrap();
        chunk.append(&bytes);
        splitter.received(chunk);
        while let Ok(Some(_)) = splitter.next_frame() {}
    }
}
