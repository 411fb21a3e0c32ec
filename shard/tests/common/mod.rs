//! A shard in the simulator, batches, and short ways to produce and fetch.
#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use cluster::metadata::TopicConfig;
use cluster::replica::{Acks, NO_EPOCH, Reader};
use futures_lite::future::or;
use protocol::batch::{BatchBuilder, BatchView, RecordFields};
use protocol::compression::Codec;
use protocol::ids::{CoreId, HostId, LeaderEpoch, Offset, PartitionIndex, Timestamp, TopicId, TopicPartition};
use runtime::Env;
use shard::{FetchPartition, FetchRequest, FetchResult, PartitionPlace, ProduceError, ProduceRequest, Produced, Shard, Ticket};
use sim::{DiskFaults, SimEnv};
use smallvec::smallvec;
use storage::{ChunkCache, Directory, OpenRequest, StorageConfig};

pub const MILLISECOND: Duration = Duration::from_millis(1);
pub const EPOCH: LeaderEpoch = LeaderEpoch(3);

/// One core with one data directory.
pub struct Core {
    pub env: SimEnv,
    pub shard: Shard<SimEnv>,
    pub directory: Directory<SimEnv>,
}

pub fn partition(index: u32) -> TopicPartition {
    TopicPartition { topic: TopicId(77), partition: PartitionIndex(index) }
}

pub async fn start(env: &SimEnv) -> Core {
    let request = OpenRequest {
        cluster: None,
        host: HostId(1),
        core: CoreId(0),
        holder: "a test".into(),
        storage: StorageConfig::default(),
        cache: ChunkCache::new(env.region().clone()),
    };
    let directory = Directory::open(env, "/data".into(), request).await.unwrap();
    let shard = Shard::start(env.clone(), HostId(1), vec![directory.clone()]);
    Core { env: env.clone(), shard, directory }
}

/// A core with `count` empty partitions of default settings.
pub async fn start_with(env: &SimEnv, count: u32) -> Core {
    let core = start(env).await;
    for index in 0..count {
        core.create(index, TopicConfig::default()).await;
    }
    core
}

impl Core {
    pub fn place(&self, index: u32) -> PartitionPlace {
        PartitionPlace { partition: partition(index), directory: self.directory.id(), leader_epoch: EPOCH }
    }

    pub async fn create(&self, index: u32, config: TopicConfig) {
        self.shard.create_partition(self.place(index), config).await.unwrap();
    }

    /// Appends and gives the ticket.
    pub fn append(&self, index: u32, batch: &[u8], acks: Acks) -> Result<Ticket, ProduceError> {
        let timeout = Duration::from_secs(30);
        let request = ProduceRequest { partition: partition(index), acks, leader_epoch: NO_EPOCH, timeout };
        self.shard.produce(request, &BatchView::whole(batch).unwrap())
    }

    /// Appends and waits for all in-sync replicas.
    pub async fn produce(&self, index: u32, batch: &[u8]) -> Result<Produced, ProduceError> {
        self.append(index, batch, Acks::All)?.await
    }

    pub async fn fetch(&self, request: FetchRequest) -> FetchResult {
        self.shard.clone().fetch(request).await
    }

    /// The records' values from an offset on, without waiting.
    pub async fn read(&self, index: u32, offset: i64) -> Vec<Vec<u8>> {
        let result = self.fetch(fetch_of(&[(index, offset)], Duration::ZERO)).await;
        values(&result, 0)
    }

    pub async fn sleep(&self, delay: Duration) {
        self.env.sleep(delay).await;
    }

    /// The value, if it is there within the time; else the future is dropped.
    pub async fn within<T>(&self, delay: Duration, future: impl Future<Output = T>) -> Option<T> {
        let late = async {
            self.sleep(delay).await;
            None
        };
        or(async { Some(future.await) }, late).await
    }

    /// Operations of the disk take this many times as long, those that are under way excepted.
    pub fn slow_disk(&self, times: u64) {
        self.env.set_disk_faults(DiskFaults { slowness: times, ..DiskFaults::default() });
    }

    pub fn heal_disk(&self) {
        self.env.set_disk_faults(DiskFaults::default());
    }
}

/// A batch of one record per value.
pub fn batch_of(values: &[&[u8]]) -> Vec<u8> {
    compressed_batch_of(Codec::None, values)
}

/// A batch of these values.
pub fn compressed_batch_of(codec: Codec, values: &[&[u8]]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(codec);
    for value in values {
        let timestamp = Timestamp(1_700_000_000_000);
        builder.push(&RecordFields { timestamp, key: None, value: Some(value), headers: &[] }).unwrap();
    }
    builder.finish().unwrap()
}

/// A batch of one record of this size.
pub fn batch_of_bytes(bytes: usize) -> Vec<u8> {
    batch_of(&[&vec![7; bytes]])
}

pub fn fetch_of(partitions: &[(u32, i64)], max_wait: Duration) -> FetchRequest {
    FetchRequest {
        reader: Reader::Consumer,
        max_wait,
        min_bytes: 1,
        max_bytes: 1 << 20,
        partitions: partitions.iter().map(|&(index, offset)| from(index, offset)).collect(),
    }
}

pub fn from(index: u32, offset: i64) -> FetchPartition {
    FetchPartition { partition: partition(index), offset: Offset(offset), max_bytes: 1 << 20, leader_epoch: NO_EPOCH }
}

/// A fetch of one partition that waits for long.
pub fn long_poll(index: u32, offset: i64) -> FetchRequest {
    FetchRequest { partitions: smallvec![from(index, offset)], ..fetch_of(&[], Duration::from_secs(20)) }
}

/// The batches that one partition of a fetch gave.
pub fn batches(result: &FetchResult, position: usize) -> Vec<Vec<u8>> {
    let fetched = result[position].as_ref().unwrap();
    let bytes: Vec<u8> = fetched.slices.iter().flat_map(|slice| slice.to_vec()).collect();
    assert_eq!(bytes.len(), fetched.bytes);
    let mut rest = &bytes[..];
    let mut batches = Vec::new();
    while !rest.is_empty() {
        let (batch, after) = BatchView::split(rest).unwrap();
        batch.verify_crc().unwrap();
        batches.push(batch.bytes().to_vec());
        rest = after;
    }
    batches
}

/// The values of the records that one partition of a fetch gave.
pub fn values(result: &FetchResult, position: usize) -> Vec<Vec<u8>> {
    let batches = batches(result, position);
    let views = batches.iter().map(|batch| BatchView::whole(batch).unwrap());
    views
        .flat_map(|batch| batch.records().unwrap().map(|record| record.unwrap().value.unwrap().to_vec()).collect::<Vec<_>>())
        .collect()
}
