//! What the tests of the log share: a directory on the simulator's disk, batches with known values, and an owner that drives a log.
#![allow(clippy::unwrap_used, reason = "a test fails where it must")]
#![allow(dead_code, reason = "each test file uses its part")]

use std::path::PathBuf;

use protocol::batch::{BatchBuilder, BatchView, RecordFields};
use protocol::compression::Codec;
use protocol::ids::{BrokerEpoch, CoreId, HostId, LeaderEpoch, Offset, PartitionIndex, Timestamp, TopicId, TopicPartition};
use runtime::{ChunkSlice, Env};
use sim::SimEnv;
use storage::{
    AppendError, Appended, CheckpointEntry, ChunkCache, Directory, Log, LogConfig, LogFailure, OpenError, OpenRequest, ReadError,
    ReadRequest, ReadStep, Stamp, StorageConfig,
};

pub const LOG: TopicPartition = TopicPartition { topic: TopicId(42), partition: PartitionIndex(0) };

pub fn root() -> PathBuf {
    PathBuf::from("/data")
}

pub fn request(env: &SimEnv) -> OpenRequest {
    OpenRequest {
        cluster: None,
        host: HostId(1),
        core: CoreId(0),
        holder: "test".to_string(),
        storage: StorageConfig::default(),
        cache: ChunkCache::new(env.region().clone()),
    }
}

pub async fn try_open(env: &SimEnv) -> Result<Directory<SimEnv>, OpenError> {
    Directory::open(env, root(), request(env)).await
}

pub async fn open(env: &SimEnv) -> Directory<SimEnv> {
    try_open(env).await.unwrap()
}

/// A batch of records with these timestamps; each value is its number in `bytes` bytes.
pub fn batch_at(timestamps: &[i64], bytes: usize) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Codec::None);
    for (number, timestamp) in timestamps.iter().enumerate() {
        let value = vec![u8::try_from(number % 251).unwrap(); bytes];
        let record = RecordFields { timestamp: Timestamp(*timestamp), key: None, value: Some(&value), headers: &[] };
        builder.push(&record).unwrap();
    }
    builder.finish().unwrap()
}

/// A batch whose one value is `number`, filled up to `bytes`.
pub fn numbered(number: u64, bytes: usize) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(bytes.max(8), (number % 251).to_le_bytes()[0]);
    let mut builder = BatchBuilder::new(Codec::None);
    let timestamp = Timestamp(1_750_000_000_000 + i64::try_from(number).unwrap());
    builder.push(&RecordFields { timestamp, key: None, value: Some(&value), headers: &[] }).unwrap();
    builder.finish().unwrap()
}

/// The number in a batch made by [`numbered`].
pub fn number_of(batch: &BatchView<'_>) -> u64 {
    let record = batch.records().unwrap().next().unwrap().unwrap();
    u64::from_le_bytes(*record.value.unwrap().first_chunk().unwrap())
}

pub fn stamp(env: &SimEnv, epoch: i32) -> Stamp {
    Stamp { leader_epoch: LeaderEpoch(epoch), wall: env.wall_clock(), now: env.now(), log_append_time: false }
}

/// Appends; maintains and writes until there is room.
pub async fn append(env: &SimEnv, log: &mut Log<SimEnv>, epoch: i32, bytes: &[u8]) -> Appended {
    try_append(env, log, epoch, bytes).await.unwrap()
}

pub async fn try_append(env: &SimEnv, log: &mut Log<SimEnv>, epoch: i32, bytes: &[u8]) -> Result<Appended, AppendError> {
    let (batch, _) = BatchView::split(bytes).unwrap();
    let mut last = None;
    for _ in 0..100 {
        match log.begin_append(&batch, stamp(env, epoch)) {
            Err(error @ AppendError::NotReady { .. }) => {
                last = Some(error);
                // The first write gives a new segment its name; only then can its space grow.
                if write(env, log).await.is_err() || maintain(env, log).await.is_err() {
                    return Err(AppendError::Stopped(log.failure().unwrap().clone()));
                }
            }
            Err(error @ (AppendError::TooManyUnwritten { .. } | AppendError::NoMemory { .. })) => {
                last = Some(error);
                if write(env, log).await.is_err() {
                    return Err(AppendError::Stopped(log.failure().unwrap().clone()));
                }
            }
            result => return result,
        }
    }
    Err(last.unwrap())
}

/// Writes all that is appended, two writes at a time.
pub async fn write(env: &SimEnv, log: &mut Log<SimEnv>) -> Result<(), LogFailure> {
    loop {
        let first = log.begin_write(env.now());
        let second = log.begin_write(env.now());
        let Some(first) = first else { return Ok(()) };
        match second {
            Some(second) => {
                // The later one settles first every other time.
                let (one, two) = futures_lite::future::zip(first.execute(), second.execute()).await;
                let (one, two) = if env.workload().chance(1, 2) { (two, one) } else { (one, two) };
                log.finish_write(one)?;
                log.finish_write(two)?;
            }
            None => {
                log.finish_write(first.execute().await)?;
            }
        }
    }
}

/// All maintenance that is due.
pub async fn maintain(env: &SimEnv, log: &mut Log<SimEnv>) -> Result<(), LogFailure> {
    for _ in 0..1000 {
        let Some(plan) = log.begin_maintenance(env.now(), env.wall_clock()) else { return Ok(()) };
        let outcome = plan.execute().await;
        log.finish_maintenance(outcome, env.now())?;
    }
    panic!("maintenance never ends");
}

/// Everything settled, flushed, persisted.
pub async fn settle(env: &SimEnv, log: &mut Log<SimEnv>) -> Result<(), LogFailure> {
    write(env, log).await?;
    maintain(env, log).await?;
    let outcome = log.begin_flush().execute().await;
    log.finish_flush(outcome, env.now())?;
    Ok(())
}

pub async fn read(log: &mut Log<SimEnv>, request: ReadRequest) -> Result<(Vec<u8>, Offset), ReadError> {
    let mut step = log.begin_read(request)?;
    loop {
        match step {
            ReadStep::Ready(result) => return Ok((joined(&result.slices), result.next_offset)),
            ReadStep::Disk(plan) => {
                let outcome = plan.execute().await;
                step = log.finish_read(outcome)?;
            }
        }
    }
}

pub fn joined(slices: &[ChunkSlice]) -> Vec<u8> {
    slices.iter().flat_map(|slice| slice.iter().copied()).collect()
}

/// All batches from `offset` to the end, in pieces of at most `bytes_max`.
pub async fn read_all(log: &mut Log<SimEnv>, offset: Offset, bytes_max: usize) -> Result<Vec<u8>, ReadError> {
    let mut all = Vec::new();
    let mut offset = offset;
    let bound = log.log_end();
    while offset < bound {
        let (bytes, next) = read(log, ReadRequest { offset, bound, bytes_max, first_batch_whole: true }).await?;
        assert!(next > offset, "a read gives at least a batch");
        all.extend_from_slice(&bytes);
        offset = next;
    }
    Ok(all)
}

/// The batches in some bytes, each with its CRC checked.
pub fn batches(mut bytes: &[u8]) -> Vec<BatchView<'_>> {
    let mut batches = Vec::new();
    while !bytes.is_empty() {
        let (batch, rest) = BatchView::split(bytes).unwrap();
        batch.verify_crc().unwrap();
        batches.push(batch);
        bytes = rest;
    }
    batches
}

/// The numbers of all batches from `offset` on, with offsets checked.
pub async fn numbers(log: &mut Log<SimEnv>, offset: Offset) -> Vec<u64> {
    let bytes = read_all(log, offset, 1 << 20).await.unwrap();
    let mut expected = offset;
    let mut numbers = Vec::new();
    for batch in batches(&bytes) {
        assert_eq!(batch.base_offset(), expected);
        expected = batch.next_offset();
        numbers.push(number_of(&batch));
    }
    assert_eq!(expected, log.log_end());
    numbers
}

/// A log of 60 batches and so many others that a checkpoint of them takes several blocks. One has been written; of the next, each block
/// differs.
pub async fn checkpointed_among_many(env: &SimEnv, directory: &Directory<SimEnv>) -> (Log<SimEnv>, Vec<Log<SimEnv>>) {
    let mut log = directory.create_log(LOG, LogConfig::default()).await.unwrap();
    for number in 0..60 {
        append(env, &mut log, 1, &numbered(number, 9000)).await;
    }
    settle(env, &mut log).await.unwrap();
    env.sleep(std::time::Duration::from_secs(60)).await;
    settle(env, &mut log).await.unwrap();
    let mut others = Vec::new();
    for partition in 1..120 {
        let name = TopicPartition { partition: PartitionIndex(partition), ..LOG };
        others.push(directory.create_log(name, LogConfig::default()).await.unwrap());
    }
    directory.write_checkpoint(BrokerEpoch(1), entries_of(&log, &others)).await.unwrap();
    for other in &mut others {
        append(env, other, 1, &numbered(0, 100)).await;
        settle(env, other).await.unwrap();
    }
    (log, others)
}

/// Where the log's files lie.
pub fn log_path() -> PathBuf {
    root().join("topics").join(LOG.topic.to_string()).join(LOG.partition.to_string())
}

/// What a checkpoint says of these.
pub fn entries_of(log: &Log<SimEnv>, others: &[Log<SimEnv>]) -> Vec<CheckpointEntry> {
    others.iter().chain([log]).map(Log::checkpoint_entry).collect()
}

pub fn small_segments() -> LogConfig {
    LogConfig { segment_bytes: 1 << 20, ..LogConfig::default() }
}

/// Where a manifest has its numbers of 64 bits.
pub const MANIFEST_NUMBERS_AT: [usize; 8] = [8, 16, 24, 32, 44, 56, 64, 72];
/// Numbers of 64 bits that have no place in a file of a log.
pub const NUMBERS_THAT_CANNOT_BE: [u64; 4] = [1 << 33, u64::MAX >> 1, 1 << 63, u64::MAX];

/// A small file with another number at `at`, and the right CRC.
pub fn crafted(bytes: &[u8], at: usize, number: u64) -> Vec<u8> {
    let (body, _) = bytes.split_last_chunk::<4>().unwrap();
    let mut body = body.to_vec();
    body[at..at + 8].copy_from_slice(&number.to_le_bytes());
    let crc = crc32c::crc32c(&body);
    body.extend_from_slice(&crc.to_le_bytes());
    body
}

/// Batches in order, each of which names as many offsets as a batch can.
pub fn far_reaching(count: i64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in 0..count {
        let mut batch = numbered(0, 6000);
        batch[..8].copy_from_slice(&(number << 31).to_be_bytes());
        batch[23..27].copy_from_slice(&i32::MAX.to_be_bytes());
        let crc = crc32c::crc32c(&batch[21..]);
        batch[17..21].copy_from_slice(&crc.to_be_bytes());
        bytes.extend_from_slice(&batch);
    }
    bytes
}
