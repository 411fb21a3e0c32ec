//! The records of a batch, read one by one from uncompressed bytes. Nothing is copied.
//!
//! ```text
//! record: length, attributes (1 byte, unused), timestamp delta, offset delta, key length (-1: none), key,
//!         value length (-1: none), value, header count, headers: key length, key, value length (-1: none), value
//! ```
//!
//! All numbers but the attributes are zigzag varints.

use super::{BatchError, BatchView, RecordError, TimestampType, varint};
use crate::compression::{self, Codec};
use crate::ids::{Offset, Timestamp};
use crate::limits::RECORD_HEADERS_MAX;

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its offset.
    pub offset: Offset,
    /// Its timestamp; the batch's append time, if it has one.
    pub timestamp: Timestamp,
    /// Its key, if any.
    pub key: Option<&'a [u8]>,
    /// Its value; none for a tombstone.
    pub value: Option<&'a [u8]>,
    headers: &'a [u8],
    header_count: usize,
}

impl<'a> Record<'a> {
    /// Its headers, in order.
    #[must_use]
    pub fn headers(&self) -> HeaderIter<'a> {
        HeaderIter { left: self.headers, count: self.header_count }
    }
}

/// One header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// Its key: UTF-8 by agreement, unchecked.
    pub key: &'a [u8],
    /// Its value, if any.
    pub value: Option<&'a [u8]>,
}

/// The headers of a record. They were checked when the record was read.
#[derive(Clone, Debug)]
pub struct HeaderIter<'a> {
    left: &'a [u8],
    count: usize,
}

impl<'a> Iterator for HeaderIter<'a> {
    type Item = Header<'a>;

    fn next(&mut self) -> Option<Header<'a>> {
        self.count = self.count.checked_sub(1)?;
        read_header(&mut self.left).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count, Some(self.count))
    }
}

impl ExactSizeIterator for HeaderIter<'_> {}

/// The records of a batch. Ends after the first error.
#[derive(Clone, Debug)]
pub struct RecordIter<'a> {
    left: &'a [u8],
    bytes: usize,
    index: u32,
    count: u32,
    base_offset: i64,
    base_timestamp: i64,
    append_time: Option<Timestamp>,
}

impl<'a> BatchView<'a> {
    /// The records of an uncompressed batch; for others see [`BatchView::records_in`].
    ///
    /// # Errors
    /// If the batch is compressed, or its codec or count can't be.
    pub fn records(&self) -> Result<RecordIter<'a>, BatchError> {
        match self.attributes().codec()? {
            Codec::None => self.records_in(self.records_bytes()),
            codec => Err(BatchError::CodecNotAllowed { found: codec, allowed: Codec::None }),
        }
    }

    /// The records of this batch out of what [`BatchView::decompress`] gave.
    ///
    /// # Errors
    /// If the batch's count can't be.
    pub fn records_in<'b>(&self, uncompressed: &'b [u8]) -> Result<RecordIter<'b>, BatchError> {
        let found = self.record_count();
        let count = u32::try_from(found).map_err(|_| BatchError::RecordCount { found })?;
        let append_time = match self.attributes().timestamp_type() {
            TimestampType::CreateTime => None,
            TimestampType::LogAppendTime => Some(self.max_timestamp()),
        };
        Ok(RecordIter {
            left: uncompressed,
            bytes: uncompressed.len(),
            index: 0,
            count,
            base_offset: self.base_offset().0,
            base_timestamp: self.base_timestamp().0,
            append_time,
        })
    }

    /// The first record at or behind the offset `from` whose timestamp isn't below `at`. Timestamps in a batch need not rise. Compressed
    /// records are decompressed, to at most `bytes_max` bytes.
    ///
    /// # Errors
    /// If the records can't be read.
    pub fn find_timestamp(
        &self,
        at: Timestamp,
        from: Offset,
        bytes_max: usize,
    ) -> Result<Option<(Offset, Timestamp)>, BatchError> {
        if self.max_timestamp() < at || self.last_offset() < from {
            return Ok(None);
        }
        if self.attributes().timestamp_type() == TimestampType::LogAppendTime {
            return Ok(Some((self.base_offset().max(from), self.max_timestamp())));
        }
        match self.attributes().codec()? {
            Codec::None => self.records()?.find_timestamp(at, from),
            _ => self.records_in(&self.decompress(bytes_max)?)?.find_timestamp(at, from),
        }
    }

    /// The uncompressed bytes of the records, at most `bytes_max` of them.
    ///
    /// # Errors
    /// If the codec is unknown, or the bytes are corrupt or decompress to more.
    pub fn decompress(&self, bytes_max: usize) -> Result<Vec<u8>, BatchError> {
        Ok(compression::decompress(self.attributes().codec()?, self.records_bytes(), bytes_max)?)
    }
}

impl<'a> Iterator for RecordIter<'a> {
    type Item = Result<Record<'a>, BatchError>;

    fn next(&mut self) -> Option<Result<Record<'a>, BatchError>> {
        if self.index >= self.count {
            let bytes = std::mem::take(&mut self.left).len();
            return (bytes > 0).then_some(Err(BatchError::TrailingRecordBytes { bytes }));
        }
        let at = self.bytes - self.left.len();
        let index = self.index;
        match self.read_record() {
            Ok(record) => {
                self.index += 1;
                Some(Ok(record))
            }
            Err(error) => {
                (self.index, self.left) = (self.count, &[]);
                Some(Err(BatchError::Record { index, at, error }))
            }
        }
    }
}

impl<'a> RecordIter<'a> {
    fn find_timestamp(self, at: Timestamp, from: Offset) -> Result<Option<(Offset, Timestamp)>, BatchError> {
        for record in self {
            let record = record?;
            if record.timestamp >= at && record.offset >= from {
                return Ok(Some((record.offset, record.timestamp)));
            }
        }
        Ok(None)
    }

    fn read_record(&mut self) -> Result<Record<'a>, RecordError> {
        let mut body = take_record(&mut self.left)?;
        let raw = read_fields(&mut body)?;
        let header_count = read_header_count(&mut body)?;
        let headers = body;
        for _ in 0..header_count {
            read_header(&mut body)?;
        }
        if !body.is_empty() {
            return Err(RecordError::TrailingBytes { bytes: body.len() });
        }
        let bad_time = RecordError::Timestamp { base: self.base_timestamp, delta: raw.timestamp_delta };
        let timestamp = match self.append_time {
            Some(timestamp) => timestamp,
            None => Timestamp(self.base_timestamp.checked_add(raw.timestamp_delta).ok_or(bad_time)?),
        };
        Ok(Record {
            offset: Offset(self.base_offset.saturating_add(i64::from(raw.offset_delta))),
            timestamp,
            key: raw.key,
            value: raw.value,
            headers,
            header_count,
        })
    }
}

/// The fields before the headers.
pub(super) struct RawFields<'a> {
    pub(super) timestamp_delta: i64,
    pub(super) offset_delta: i32,
    pub(super) key: Option<&'a [u8]>,
    pub(super) value: Option<&'a [u8]>,
}

/// Cuts the next record, without its length, off the front of `left`.
#[inline]
pub(super) fn take_record<'a>(left: &mut &'a [u8]) -> Result<&'a [u8], RecordError> {
    let length = varint::read_i32(left).ok_or(RecordError::Varint)?;
    let bad_length = RecordError::Length { length, left: left.len() };
    let size = usize::try_from(length).map_err(|_| bad_length)?;
    let (record, rest) = left.split_at_checked(size).ok_or(bad_length)?;
    *left = rest;
    Ok(record)
}

#[inline]
pub(super) fn read_fields<'a>(body: &mut &'a [u8]) -> Result<RawFields<'a>, RecordError> {
    let Some((_attributes, rest)) = body.split_first() else {
        return Err(RecordError::FieldLength { length: 1, left: 0 });
    };
    *body = rest;
    let timestamp_delta = varint::read_i64(body).ok_or(RecordError::Varint)?;
    let offset_delta = varint::read_i32(body).ok_or(RecordError::Varint)?;
    let key = read_nullable(body)?;
    let value = read_nullable(body)?;
    Ok(RawFields { timestamp_delta, offset_delta, key, value })
}

#[inline]
pub(super) fn read_header_count(body: &mut &[u8]) -> Result<usize, RecordError> {
    let found = varint::read_i32(body).ok_or(RecordError::Varint)?;
    match usize::try_from(found) {
        Ok(count) if count <= RECORD_HEADERS_MAX => Ok(count),
        _ => Err(RecordError::HeaderCount { found }),
    }
}

pub(super) fn read_header<'a>(body: &mut &'a [u8]) -> Result<Header<'a>, RecordError> {
    let left = body.len();
    let key = read_nullable(body)?.ok_or(RecordError::FieldLength { length: -1, left })?;
    let value = read_nullable(body)?;
    Ok(Header { key, value })
}

#[inline]
fn read_nullable<'a>(body: &mut &'a [u8]) -> Result<Option<&'a [u8]>, RecordError> {
    let length = varint::read_i32(body).ok_or(RecordError::Varint)?;
    if length == -1 {
        return Ok(None);
    }
    let bad_length = RecordError::FieldLength { length, left: body.len() };
    let size = usize::try_from(length).map_err(|_| bad_length)?;
    let (field, rest) = body.split_at_checked(size).ok_or(bad_length)?;
    *body = rest;
    Ok(Some(field))
}
