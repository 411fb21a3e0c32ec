//! Zigzag varints of records: at most 5 bytes for 32 bits, 10 for 64.

/// Reads one of 32 bits off the front of `bytes`. `None` if the bytes end inside it, or it takes more than 32 bits.
#[inline]
pub(super) fn read_i32(bytes: &mut &[u8]) -> Option<i32> {
    let (&first, rest) = bytes.split_first()?;
    if first < 0x80 {
        *bytes = rest;
        return Some(unzigzag_32(u32::from(first)));
    }
    if let Some((raw, rest)) = read_two(first, rest) {
        *bytes = rest;
        return Some(unzigzag_32(raw));
    }
    let (raw, rest) = read_long(bytes, 5)?;
    *bytes = rest;
    u32::try_from(raw).ok().map(unzigzag_32)
}

/// Reads one of 64 bits off the front of `bytes`. `None` if the bytes end inside it, or it takes more than 64 bits.
#[inline]
pub(super) fn read_i64(bytes: &mut &[u8]) -> Option<i64> {
    let (&first, rest) = bytes.split_first()?;
    if first < 0x80 {
        *bytes = rest;
        return Some(unzigzag_64(u64::from(first)));
    }
    let (raw, rest) = read_long(bytes, 10)?;
    *bytes = rest;
    Some(unzigzag_64(raw))
}

/// Two bytes: the lengths and offset deltas of nearly all records that one doesn't hold.
#[inline]
fn read_two(first: u8, rest: &[u8]) -> Option<(u32, &[u8])> {
    let (&second, rest) = rest.split_first()?;
    (second < 0x80).then(|| (u32::from(first & 0x7f) | u32::from(second) << 7, rest))
}

fn read_long(bytes: &[u8], bytes_max: usize) -> Option<(u64, &[u8])> {
    let mut raw = 0_u64;
    for (index, &byte) in bytes.iter().take(bytes_max).enumerate() {
        let part = u64::from(byte & 0x7f);
        let shift = 7 * index;
        // The tenth byte has room for one bit.
        if shift == 63 && part > 1 {
            return None;
        }
        raw |= part << shift;
        if byte < 0x80 {
            return Some((raw, &bytes[index + 1..]));
        }
    }
    None
}

/// Appends a number of 64 bits; one of 32 bits has the same bytes.
pub(super) fn write(value: i64, out: &mut Vec<u8>) {
    let mut left = zigzag(value);
    while left >= 0x80 {
        out.push(left.to_le_bytes()[0] | 0x80);
        left >>= 7;
    }
    out.push(left.to_le_bytes()[0]);
}

/// How many bytes a number takes.
pub(super) fn size(value: i64) -> usize {
    let bits = 64 - (zigzag(value) | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

fn zigzag(value: i64) -> u64 {
    (value.cast_unsigned() << 1) ^ (value >> 63).cast_unsigned()
}

fn unzigzag_32(raw: u32) -> i32 {
    (raw >> 1).cast_signed() ^ -(raw & 1).cast_signed()
}

fn unzigzag_64(raw: u64) -> i64 {
    (raw >> 1).cast_signed() ^ -(raw & 1).cast_signed()
}
