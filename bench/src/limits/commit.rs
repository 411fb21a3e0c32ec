//! Durable writes under the open-loop load of the latency figures, by a ring that does nothing else: one block at a time, overwritten in place,
//! each write for all records that were due when it began.
//!
//! fio's closed loop asks for the next write when the last one is done, so a drive that stops for 10 ms is one slow write of thousands. A
//! load on a schedule has thirty records due meanwhile. What this loop finds is what no broker on this drive can stay below.

use anyhow::{Context, Result, anyhow};
use hdrhistogram::Histogram;
use protocol::limits::BLOCK_BYTES;
use runtime::uring::{CoreConfig, RingEnv, run_core};
use runtime::{Disk, Durability, Env, File};

use crate::machine::{self, Random};
use crate::report;

/// The load.
#[derive(Clone, Copy, Debug)]
pub struct CommitLoad {
    /// Records per second, at the times of a Poisson process.
    pub rate_per_second: f64,
    /// The seed of the times.
    pub seed: u64,
    /// How long, in seconds; the first sixth is warm-up.
    pub seconds: f64,
}

const FILE_BYTES: u64 = 64 << 20;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// From the time that a record was due to the end of the write that took it, in nanoseconds.
pub fn run(directory: &std::path::Path, cpu: usize, load: CommitLoad) -> Result<Histogram<u64>> {
    let path = directory.join("commit-limit");
    let config = CoreConfig { name: "commit-limit".to_owned(), cpu: Some(cpu), memory_bytes: 64 << 20, ..CoreConfig::default() };
    let file = path.clone();
    let writer = std::thread::spawn(move || -> Result<_> {
        // Not a broker's core: it starts and ends with this measurement.
        run_core(config, move |env| write(env, file, load))?
    });
    let result = writer.join().map_err(|_| anyhow!("the writing core panicked"))?;
    drop(std::fs::remove_file(&path));
    result
}

async fn write(env: RingEnv, path: std::path::PathBuf, load: CommitLoad) -> Result<Histogram<u64>> {
    let file = env.disk().file(path, true);
    file.allocate(0, FILE_BYTES).await?;
    let mut zeros = env.region().take(1 << 20).context("a region without a free chunk")?;
    zeros.append(&vec![0; 1 << 20]);
    let zeros = zeros.freeze();
    for position in (0..FILE_BYTES).step_by(zeros.len()) {
        file.write(zeros.clone(), position, Durability::Written).await?;
    }
    file.flush().await?;

    let block = zeros.slice(0..BLOCK_BYTES);
    let mut random = Random(load.seed);
    let mut pause = move || u64::try_from(random.exponential(load.rate_per_second).as_nanos()).unwrap_or(u64::MAX).max(1);
    let seconds_of = |seconds: f64| u64::try_from(std::time::Duration::from_secs_f64(seconds).as_nanos());
    let start_nanos = machine::now_nanos();
    let measure_from_nanos = start_nanos + seconds_of(load.seconds / 6.0)?;
    let end_nanos = start_nanos + seconds_of(load.seconds)?;
    let (mut due_nanos, mut position) = (start_nanos + pause(), 0);
    let mut histogram = report::histogram();
    let mut taken = Vec::new();
    while due_nanos < end_nanos {
        while machine::now_nanos() < due_nanos {
            env.yield_now().await;
        }
        let now_nanos = machine::now_nanos();
        while due_nanos <= now_nanos {
            taken.push(due_nanos);
            due_nanos += pause();
        }
        file.write(block.clone(), position, Durability::Device).await?;
        position = (position + BLOCK) % FILE_BYTES;
        let done_nanos = machine::now_nanos();
        for due_nanos in taken.drain(..).filter(|due_nanos| *due_nanos >= measure_from_nanos) {
            histogram.saturating_record(done_nanos - due_nanos);
        }
    }
    file.close();
    Ok(histogram)
}
