//! The metadata log at start: recovered or made, and replayed.
//!
//! It is a partition like others, in one of the data directories. It has its leader epoch from itself: one more than the last
//! batch's, so that each start is above all before it.

use std::collections::BTreeSet;
use std::time::Duration;

use cluster::metadata::{ApplyError, DecodeError, Image, MetadataRecord, TopicConfig};
use cluster::replica::{NO_EPOCH, Reader};
use protocol::batch::BatchView;
use protocol::ids::{LeaderEpoch, Offset, TopicId};
use protocol::limits::{BATCH_BYTES_CEILING, FETCH_BYTES_MAX};
use runtime::Env;
use shard::{FetchPartition, FetchRequest, PartitionPlace, Shard};
use thiserror::Error;

use crate::controller::{ChangeError, METADATA_PARTITION};
use crate::directories::Directories;
use crate::progress::Progress;

/// Why the metadata log can't be used.
#[derive(Debug, Error)]
pub enum MetadataError {
    /// It can't be opened or read.
    #[error("the metadata log can't be opened: {0}")]
    Open(String),
    /// A record isn't understood.
    #[error("the metadata log, offset {offset}: {reason}")]
    Record {
        /// Its offset.
        offset: Offset,
        /// What is wrong.
        reason: String,
    },
    /// The start can't be recorded.
    #[error(transparent)]
    Change(#[from] ChangeError),
}

/// What the metadata log says.
pub struct Replayed {
    /// The state that it adds up to.
    pub image: Image,
    /// Topics that were and are not any more.
    pub deleted: BTreeSet<TopicId>,
}

/// Opens the metadata log, or makes it for a new host, and replays it.
///
/// # Errors
/// See [`MetadataError`].
pub async fn open<E: Env>(
    shard: &Shard<E>,
    directories: &Directories<E>,
    progress: &Progress,
) -> Result<Replayed, MetadataError> {
    let config = TopicConfig { batch_bytes_max: BATCH_BYTES_CEILING, retention_ms: None, ..TopicConfig::default() };
    let failed = |error: shard::OpenPartitionError| MetadataError::Open(error.to_string());
    match directories.with_metadata_log() {
        None => {
            let directory = directories.all()[0].id();
            let place = PartitionPlace { partition: METADATA_PARTITION, directory, leader_epoch: LeaderEpoch(0) };
            shard.create_partition(place, config).await.map_err(failed)?;
        }
        Some(directory) => {
            let place = PartitionPlace { partition: METADATA_PARTITION, directory: directory.id(), leader_epoch: NO_EPOCH };
            shard.open_partition(place, config, progress.of_one()).await.map_err(failed)?;
        }
    }
    replay(shard).await
}

async fn replay<E: Env>(shard: &Shard<E>) -> Result<Replayed, MetadataError> {
    let mut replayed = Replayed { image: Image::new(), deleted: BTreeSet::new() };
    let mut next = Offset(0);
    loop {
        let wanted =
            FetchPartition { partition: METADATA_PARTITION, offset: next, max_bytes: FETCH_BYTES_MAX, leader_epoch: NO_EPOCH };
        let request = FetchRequest {
            reader: Reader::Consumer,
            max_wait: Duration::ZERO,
            min_bytes: 1,
            max_bytes: FETCH_BYTES_MAX,
            partitions: std::iter::once(wanted).collect(),
        };
        let mut result = shard.clone().fetch(request).await;
        let fetched = result.remove(0).map_err(|error| MetadataError::Open(error.to_string()))?;
        let bytes: Vec<u8> = fetched.slices.iter().flat_map(|slice| slice.to_vec()).collect();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let (batch, behind) = BatchView::split(rest).map_err(|error| damaged(next, error))?;
            replayed.take(&batch)?;
            next = Offset(batch.last_offset().0 + 1);
            rest = behind;
        }
        if next >= fetched.bounds.high_watermark {
            return Ok(replayed);
        }
        if bytes.is_empty() {
            return Err(MetadataError::Open(format!("nothing at offset {next} of {}", fetched.bounds.high_watermark)));
        }
    }
}

fn damaged(offset: Offset, error: impl std::fmt::Display) -> MetadataError {
    MetadataError::Record { offset, reason: error.to_string() }
}

impl Replayed {
    fn take(&mut self, batch: &BatchView<'_>) -> Result<(), MetadataError> {
        let base = batch.base_offset();
        let records = batch.records().map_err(|error| damaged(base, error))?;
        for (index, record) in (0..).zip(records) {
            let offset = base.plus(index);
            let record = record.map_err(|error| damaged(offset, error))?;
            let value = record.value.unwrap_or_default();
            let record = MetadataRecord::decode(value).map_err(|error: DecodeError| damaged(offset, error))?;
            self.image.apply(&record).map_err(|error: ApplyError| damaged(offset, error))?;
            if let MetadataRecord::TopicDeleted { id } = record {
                self.deleted.insert(id);
            }
        }
        Ok(())
    }
}
