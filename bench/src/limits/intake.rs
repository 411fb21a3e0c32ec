//! What taking bytes in costs at the least: a ring that receives batches, sums and copies them, writes them durably in the same sizes, and answers.
//!
//! No frames, records, partitions or tasks per request: the processor time of this loop is the kernel's, the memory's and the checksum's, and
//! a broker adds its own. Against it a busy processor can be told from a slow one.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::mpsc;

use anyhow::{Context, Result, anyhow};
use runtime::local::Notify;
use runtime::uring::{CoreConfig, RingConnection, RingEnv, run_core};
use runtime::{Chunk, ChunkSlice, Connection, Disk, Durability, Env, File, Listener, SendPart, SendParts, Sharing, Transport};

use crate::machine::{self, CpuTicks};

const BATCH_BYTES: usize = 64 << 10;
const RECEIVE_BYTES: usize = BATCH_BYTES;
const WRITE_BYTES: usize = 1 << 20;
const BATCHES_PER_WRITE: usize = WRITE_BYTES / BATCH_BYTES;
const WRITES_IN_FLIGHT: usize = 2;
/// As long as an answer to one batch.
const REPLY_BYTES: usize = 74;

/// Busy seconds of `broker_cpu` per GiB taken in, with `window` batches under way.
pub fn run(directory: &std::path::Path, broker_cpu: usize, generator_cpu: usize, bytes: u64, window: usize) -> Result<f64> {
    let (address_sender, address_receiver) = mpsc::channel();
    let config =
        CoreConfig { name: "intake-limit".to_owned(), cpu: Some(broker_cpu), memory_bytes: 256 << 20, ..CoreConfig::default() };
    let path = directory.join("intake-limit");
    let file = path.clone();
    let taker = std::thread::spawn(move || -> Result<()> {
        // Not a broker's core: it starts and ends with this measurement.
        run_core(config, move |env| take_in(env, file, bytes, address_sender))?
    });
    let address: SocketAddr = address_receiver.recv().map_err(|_| anyhow!("the taking core didn't start"))?;
    let writes = usize::try_from(bytes / WRITE_BYTES as u64)?;
    let sender = machine::spawn_pinned(generator_cpu, move || send(address, broker_cpu, writes * BATCHES_PER_WRITE, window));
    let busy_seconds = machine::joined(sender).context("the sender of the intake limit")?;
    taker.join().map_err(|_| anyhow!("the taking core panicked"))??;
    drop(std::fs::remove_file(&path));
    Ok(busy_seconds / (bytes as f64 / (1u64 << 30) as f64))
}

/// Keeps `window` batches under way; the busy seconds from the first byte to the last answer.
fn send(address: SocketAddr, broker_cpu: usize, batches: usize, window: usize) -> Result<f64> {
    let mut stream = TcpStream::connect(address)?;
    let batch = vec![0x5a; BATCH_BYTES];
    let mut answers = vec![0; window * REPLY_BYTES];
    let (mut sent, mut answer_bytes) = (0, 0);
    let ticks = CpuTicks::read(broker_cpu)?;
    while answer_bytes < batches * REPLY_BYTES {
        while sent < batches && sent - answer_bytes / REPLY_BYTES < window {
            stream.write_all(&batch)?;
            sent += 1;
        }
        let count = stream.read(&mut answers)?;
        anyhow::ensure!(count > 0, "the taking core closed the connection");
        answer_bytes += count;
    }
    Ok(CpuTicks::read(broker_cpu)?.busy_seconds_since(&ticks))
}

struct Writes<F> {
    file: Rc<F>,
    connection: RingConnection,
    waiting: VecDeque<ChunkSlice>,
    position: u64,
    finished: Rc<Notify>,
    started: u64,
}

impl<F: File + 'static> Writes<F> {
    /// Starts what may be out; each write answers its batches.
    fn start(&mut self, env: &RingEnv) {
        while self.started - self.finished.count() < WRITES_IN_FLIGHT as u64 {
            let Some(slice) = self.waiting.pop_front() else { return };
            let (file, connection, finished, position) =
                (self.file.clone(), self.connection.clone(), self.finished.clone(), self.position);
            self.position += slice.len() as u64;
            self.started += 1;
            env.spawn(async move {
                let mut parts = SendParts::new();
                parts.push(SendPart::Owned(vec![0; BATCHES_PER_WRITE * REPLY_BYTES].into()));
                // A failure shows as answers that never come.
                if file.write(slice, position, Durability::Device).await.is_ok() && connection.send(parts).await.is_ok() {
                    finished.notify();
                }
            });
        }
    }
}

async fn take_in(env: RingEnv, path: std::path::PathBuf, bytes: u64, address: mpsc::Sender<SocketAddr>) -> Result<()> {
    let file = Rc::new(env.disk().file(path, true));
    file.allocate(0, bytes).await?;
    file.flush().await?;
    let listener = env.transport().listen(SocketAddr::from(([127, 0, 0, 1], 0)), Sharing::Alone).await?;
    address.send(listener.local_address())?;
    let (connection, _) = listener.accept().await?;
    let finished = Rc::new(Notify::new());
    let mut writes = Writes {
        file,
        connection: connection.clone(),
        waiting: VecDeque::new(),
        position: 0,
        finished: finished.clone(),
        started: 0,
    };
    let mut received = take(&env, RECEIVE_BYTES)?;
    let mut log = take(&env, WRITE_BYTES)?;
    let (mut left, mut sum) = (bytes, 0);
    while left > 0 {
        connection.readable().await?;
        let (result, chunk) = connection.receive(received, RECEIVE_BYTES).await;
        received = chunk;
        left = left.saturating_sub(result? as u64);
        if received.filled() == RECEIVE_BYTES || left == 0 {
            for batch in received.as_bytes().chunks(BATCH_BYTES) {
                sum ^= crc_fast::crc32_iscsi(batch);
                log.place(batch);
                log.publish(batch.len());
                if log.filled() == WRITE_BYTES {
                    writes.waiting.push_back(std::mem::replace(&mut log, take(&env, WRITE_BYTES)?).freeze());
                }
            }
            received = received.restart().map_err(|_| anyhow!("nothing holds what was received"))?;
        }
        writes.start(&env);
    }
    std::hint::black_box(sum);
    while !writes.waiting.is_empty() || finished.count() < writes.started {
        finished.changed(finished.count()).await;
        writes.start(&env);
    }
    Ok(())
}

fn take(env: &RingEnv, bytes: usize) -> Result<Chunk> {
    env.region().take(bytes).context("a region without a free chunk")
}
