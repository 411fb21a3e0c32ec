//! What the drive is faster at: writes that are durable one by one, or plain writes that share a flush.
//!
//! Measured once at start per core and drive, on a file of its own. Drives with FUA, or with a cache that power loss doesn't touch, do single
//! durable writes at no cost; on others a flush is dear, and sharing it pays.

use std::io;
use std::path::Path;
use std::time::Duration;

use futures_lite::future::zip;
use protocol::limits::BLOCK_BYTES;
use runtime::{ChunkSlice, Disk, Durability, Env, File, Region};

use crate::blocks::BLOCK;
use crate::config::FlushPolicy;

/// Rounds of each kind; the median counts.
const ROUNDS: usize = 15;
/// Sharing a flush must be better by this part to be chosen: single durable writes are simpler for the drive's scheduler.
const ADVANTAGE_PERCENT: u32 = 15;
const FILE_NAME: &str = "flush-measure.tmp";
const FILE_BYTES: u64 = 64 << 10;

/// What was measured: two writes of one block each, in flight together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushMeasurement {
    /// Both durable by themselves.
    pub each_write: Duration,
    /// Both plain, then one flush.
    pub grouped: Duration,
    /// The faster of the two, by enough.
    pub policy: FlushPolicy,
}

/// Measures the drive below `directory`.
///
/// # Errors
/// What the disk says.
pub async fn measure<E: Env>(env: &E, directory: &Path) -> io::Result<FlushMeasurement> {
    let path = directory.join(FILE_NAME);
    let file = env.disk().file(path.clone(), true);
    let result = measure_file(env, &file).await;
    file.close();
    env.disk().remove_file(&path).await?;
    let (each_write, grouped) = result?;
    let policy =
        if grouped * 100 < each_write * (100 - ADVANTAGE_PERCENT) { FlushPolicy::Grouped } else { FlushPolicy::EachWrite };
    Ok(FlushMeasurement { each_write, grouped, policy })
}

async fn measure_file<E: Env, F: File>(env: &E, file: &F) -> io::Result<(Duration, Duration)> {
    file.allocate(0, FILE_BYTES).await?;
    let all = zeros(env.region(), FILE_BYTES)?;
    file.write(all.clone(), 0, Durability::Device).await?;
    file.flush().await?;
    let block = || all.slice(0..BLOCK_BYTES);
    let (mut each_write, mut grouped) = (Vec::new(), Vec::new());
    for round in 0..u64::try_from(ROUNDS).expect("few rounds") {
        let position = round * 2 * BLOCK % FILE_BYTES;
        let start = env.now();
        let (one, two) =
            zip(file.write(block(), position, Durability::Device), file.write(block(), position + BLOCK, Durability::Device))
                .await;
        one.and(two)?;
        each_write.push(env.now() - start);
        let start = env.now();
        let (one, two) =
            zip(file.write(block(), position, Durability::Written), file.write(block(), position + BLOCK, Durability::Written))
                .await;
        one.and(two)?;
        file.flush().await?;
        grouped.push(env.now() - start);
    }
    Ok((median(each_write), median(grouped)))
}

fn zeros(region: &Region, bytes: u64) -> io::Result<ChunkSlice> {
    let bytes = crate::blocks::in_memory(bytes);
    let mut chunk = region.take(bytes).ok_or_else(|| io::Error::new(io::ErrorKind::OutOfMemory, "the region is full"))?;
    chunk.writable()[..bytes].fill(0);
    chunk.publish(bytes);
    Ok(chunk.freeze())
}

fn median(mut durations: Vec<Duration>) -> Duration {
    durations.sort_unstable();
    durations[durations.len() / 2]
}
