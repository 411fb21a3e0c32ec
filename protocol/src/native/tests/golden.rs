//! The bytes of each (kind, version), fixed. A failure here means that a released layout has changed: mend the code, or
//! give the new layout a version of its own and leave these lines alone.

use super::{frame_of, samples};

/// Name, then the whole frame without its payload, in hex.
const GOLDEN: &str = include_str!("golden.txt");

pub(super) fn bytes_of(name: &str) -> Vec<u8> {
    let line = GOLDEN.lines().find(|line| line.split(' ').next() == Some(name));
    from_hex(line.unwrap_or_else(|| panic!("no golden bytes for {name}")).split_once(' ').unwrap().1)
}

pub(super) fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> =
        text.chars().filter(|letter| !letter.is_whitespace()).map(|digit| digit.to_digit(16).unwrap()).collect();
    digits.chunks(2).map(|pair| u8::try_from(pair[0] << 4 | pair[1]).unwrap()).collect()
}

pub(super) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn frames_are_the_golden_bytes() {
    let samples = samples::all();
    for sample in &samples {
        let frame = frame_of(sample);
        assert_eq!(to_hex(&frame), to_hex(&bytes_of(sample.name)), "the layout of {} has changed", sample.name);
        (sample.check)(&bytes_of(sample.name)[32..]);
    }
    assert_eq!(GOLDEN.lines().count(), samples.len(), "golden bytes without a sample");
}

#[test]
fn golden_bytes_cover_every_kind_both_ways() {
    for kind in super::Kind::ALL {
        for is_reply in [false, true] {
            let covered = samples::all().iter().any(|sample| sample.kind == kind && (sample.flags != 0) == is_reply);
            assert!(covered, "{} has no golden {}", kind.name(), if is_reply { "reply" } else { "request" });
        }
    }
}
