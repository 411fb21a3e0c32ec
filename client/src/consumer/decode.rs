//! A batch as it was fetched, and its records. The CRC is checked on arrival, decompression is bounded.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use protocol::batch::BatchView;
use protocol::compression::Codec;
use protocol::ids::{Offset, PartitionIndex};
use protocol::limits;

use crate::record::{ConsumedRecord, Header};

/// A whole batch with a good CRC.
#[derive(Clone, Debug)]
pub(super) struct FetchedBatch {
    bytes: Bytes,
    base_offset: Offset,
    next_offset: Offset,
}

impl FetchedBatch {
    /// Cuts the first batch off `payload`. `expected` is the lowest offset that its end must pass.
    pub fn cut(payload: &mut Bytes, expected: Offset) -> Result<FetchedBatch, (Option<Offset>, String)> {
        let (view, _) = BatchView::split(payload).map_err(|error| (None, error.to_string()))?;
        let (base_offset, next_offset) = (view.base_offset(), view.next_offset());
        view.verify_crc().map_err(|error| (Some(base_offset), error.to_string()))?;
        if base_offset.0 < 0 || view.last_offset_delta() < 0 || next_offset <= expected {
            let reason = format!("it has offsets {base_offset} to {next_offset} (exclusive), {expected} was asked for");
            return Err((Some(base_offset), reason));
        }
        let size = view.size();
        Ok(FetchedBatch { bytes: payload.split_to(size), base_offset, next_offset })
    }

    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    pub fn base_offset(&self) -> Offset {
        self.base_offset
    }

    /// Behind its last record.
    pub fn next_offset(&self) -> Offset {
        self.next_offset
    }

    /// Appends its records from `position` on. Markers aren't records. On an error, what was appended is to be dropped.
    pub fn decode(
        &self,
        topic: &Arc<str>,
        partition: PartitionIndex,
        position: Offset,
        bytes_max: usize,
        out: &mut VecDeque<ConsumedRecord>,
    ) -> Result<(), String> {
        let view = BatchView::whole(&self.bytes).map_err(|error| error.to_string())?;
        if view.attributes().is_control() {
            return Ok(());
        }
        let count_max = i64::from(limits::BATCH_RECORDS_MAX);
        if !(0..=count_max).contains(&i64::from(view.record_count())) {
            return Err(format!("it says it has {} records, at most {count_max} are allowed", view.record_count()));
        }
        // Records keep a share of the bytes they came in.
        let uncompressed = match view.attributes().codec().map_err(|error| error.to_string())? {
            Codec::None => self.bytes.slice(limits::BATCH_HEADER_BYTES..),
            _ => Bytes::from(view.decompress(bytes_max).map_err(|error| error.to_string())?),
        };
        for record in view.records_in(&uncompressed).map_err(|error| error.to_string())? {
            let record = record.map_err(|error| error.to_string())?;
            if record.offset < position {
                continue;
            }
            if record.offset >= self.next_offset {
                return Err(format!("record {} lies behind its batch, which ends at {}", record.offset, self.next_offset));
            }
            let share = |bytes: &[u8]| uncompressed.slice_ref(bytes);
            let headers = record
                .headers()
                .map(|header| Header { key: String::from_utf8_lossy(header.key).into_owned(), value: header.value.map(share) });
            out.push_back(ConsumedRecord {
                topic: topic.clone(),
                partition,
                offset: record.offset,
                timestamp: record.timestamp,
                leader_epoch: view.leader_epoch(),
                key: record.key.map(share),
                value: record.value.map(share),
                headers: headers.collect(),
            });
        }
        Ok(())
    }
}
