//! Small little-endian files with a CRC-32C at their end: superblock, marker, checkpoint, manifest.

/// Bytes ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Short;

/// Puts numbers one behind the other.
#[derive(Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

macro_rules! numbers {
    ($($name:ident: $number:ty),*) => {
        impl Writer {
            $(pub(crate) fn $name(&mut self, value: $number) -> &mut Writer {
                self.bytes.extend_from_slice(&value.to_le_bytes());
                self
            })*
        }

        impl Reader<'_> {
            $(pub(crate) fn $name(&mut self) -> Result<$number, Short> {
                let (value, rest) = self.bytes.split_first_chunk().ok_or(Short)?;
                self.bytes = rest;
                Ok(<$number>::from_le_bytes(*value))
            })*
        }
    };
}

numbers!(u16: u16, u32: u32, u64: u64, u128: u128, i32: i32, i64: i64);

impl Writer {
    /// A length and the bytes.
    pub(crate) fn sized(&mut self, bytes: &[u8]) -> &mut Writer {
        self.u32(u32::try_from(bytes.len()).expect("small files have small parts"));
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Takes numbers off the front.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn skip(&mut self, count: usize) -> Result<(), Short> {
        self.bytes = self.bytes.get(count..).ok_or(Short)?;
        Ok(())
    }

    /// A length and that many bytes.
    pub(crate) fn sized(&mut self) -> Result<&'a [u8], Short> {
        let length = usize::try_from(self.u32()?).map_err(|_| Short)?;
        let (part, rest) = self.bytes.split_at_checked(length).ok_or(Short)?;
        self.bytes = rest;
        Ok(part)
    }
}

/// The bytes with their CRC behind them.
pub(crate) fn finish_with_crc(mut out: Writer) -> Vec<u8> {
    let crc = crc32c::crc32c(&out.bytes);
    out.u32(crc);
    out.into_bytes()
}

/// The bytes without their CRC, if it is right.
pub(crate) fn checked_body(bytes: &[u8]) -> Option<&[u8]> {
    let (body, crc) = bytes.split_last_chunk::<4>()?;
    (crc32c::crc32c(body) == u32::from_le_bytes(*crc)).then_some(body)
}
