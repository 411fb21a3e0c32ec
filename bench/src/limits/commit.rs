//! Durable acknowledgements by a ring that does nothing else: it receives requests, writes their bytes to the next blocks of a file that was written
//! before, each write for all that came meanwhile, and answers.
//!
//! fio's closed loop asks for the next write when the last one is done, so a drive that stops for 10 ms is one slow write of thousands. A
//! load on a schedule has thirty records due meanwhile. What this loop gives to the generator of the latency figures is what no broker on
//! this machine can stay below: no frames, sums, records, partitions or segments are between socket and drive.

use std::cell::Cell;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use protocol::error::ErrorCode;
use protocol::frame::{FrameHeader, HEADER_BYTES, encode_frame};
use protocol::ids::{Offset, Timestamp};
use protocol::limits::BLOCK_BYTES;
use protocol::native::{Kind, ProduceReply, ProduceResult};
use runtime::local::Notify;
use runtime::uring::{CoreConfig, RingConnection, RingEnv, run_core};
use runtime::{Connection, Disk, Durability, Env, File, Listener, SendPart, SendParts, Sharing, Transport};

use crate::wire::Wire;

const FILE_BYTES: u64 = 64 << 20;
const RECEIVE_BYTES: usize = 64 << 10;
const WRITE_BYTES_MAX: usize = 256 << 10;

/// A running ring. It ends when its connection does.
pub struct CommitRing {
    core: JoinHandle<Result<()>>,
    path: PathBuf,
    /// The one connection that it serves; nobody is greeted.
    pub wire: Wire,
}

impl CommitRing {
    /// Starts one on a processor.
    pub fn start(directory: &std::path::Path, cpu: usize) -> Result<CommitRing> {
        let path = directory.join("commit-limit");
        let config =
            CoreConfig { name: "commit-limit".to_owned(), cpu: Some(cpu), memory_bytes: 64 << 20, ..CoreConfig::default() };
        let (address_sender, address_receiver) = mpsc::channel();
        let file = path.clone();
        let core = std::thread::spawn(move || -> Result<_> {
            // Not a broker's core: it starts and ends with this measurement.
            run_core(config, move |env| serve(env, file, address_sender))?
        });
        let address = address_receiver.recv().map_err(|_| anyhow!("the committing core didn't start"))?;
        Ok(CommitRing { core, path, wire: Wire::ungreeted(TcpStream::connect(address)?)? })
    }

    /// A second handle of the connection.
    pub fn connection(&self) -> Result<Wire> {
        Wire::ungreeted(self.wire.stream.try_clone()?)
    }

    /// Ends it.
    pub fn stop(self) -> Result<()> {
        self.wire.stream.shutdown(std::net::Shutdown::Both)?;
        let ended = self.core.join().map_err(|_| anyhow!("the committing core panicked"))?;
        drop(std::fs::remove_file(&self.path));
        ended
    }
}

/// What came and what of it was written.
#[derive(Default)]
struct Requests {
    received: Cell<u64>,
    written: Cell<u64>,
    ended: Cell<bool>,
    /// The first one's header: all are alike.
    header: Cell<Option<FrameHeader>>,
}

async fn serve(env: RingEnv, path: PathBuf, address: mpsc::Sender<SocketAddr>) -> Result<()> {
    let file = env.disk().file(path, true);
    file.allocate(0, FILE_BYTES).await?;
    let mut zeros = env.region().take(1 << 20).context("a region without a free chunk")?;
    zeros.append(&vec![0; 1 << 20]);
    let zeros = zeros.freeze();
    for position in (0..FILE_BYTES).step_by(zeros.len()) {
        file.write(zeros.clone(), position, Durability::Written).await?;
    }
    file.flush().await?;

    let listener = env.transport().listen(SocketAddr::from(([127, 0, 0, 1], 0)), Sharing::Alone).await?;
    address.send(listener.local_address())?;
    let (connection, _) = listener.accept().await?;
    let (requests, arrived) = (Rc::new(Requests::default()), Rc::new(Notify::new()));
    let writer = write(env.clone(), file, connection.clone(), requests.clone(), arrived.clone());
    let finished = Rc::new(Notify::new());
    let done = finished.clone();
    env.spawn(async move {
        // A failure shows as answers that never come.
        drop(writer.await);
        done.notify();
    });
    receive(&env, &connection, &requests, &arrived).await?;
    requests.ended.set(true);
    arrived.notify();
    finished.changed(0).await;
    Ok(())
}

/// Takes requests until the connection ends.
async fn receive(env: &RingEnv, connection: &RingConnection, requests: &Requests, arrived: &Notify) -> Result<()> {
    let mut buffer = env.region().take(RECEIVE_BYTES).context("a region without a free chunk")?;
    let mut bytes = 0;
    loop {
        connection.readable().await?;
        let (received, chunk) = connection.receive(buffer, RECEIVE_BYTES).await;
        let received = received? as u64;
        if received == 0 {
            return Ok(());
        }
        bytes += received;
        let mut header = requests.header.get();
        if header.is_none()
            && let Some(head) = chunk.as_bytes().first_chunk::<HEADER_BYTES>()
        {
            header = Some(FrameHeader::parse(head)?);
            requests.header.set(header);
        }
        buffer = chunk.restart().map_err(|_| anyhow!("nothing holds what was received"))?;
        if let Some(header) = header {
            requests.received.set(bytes / header.frame_bytes() as u64);
            arrived.notify();
        }
    }
}

/// Writes what came, and answers it.
async fn write<F: File>(
    env: RingEnv,
    file: F,
    connection: RingConnection,
    requests: Rc<Requests>,
    arrived: Rc<Notify>,
) -> Result<()> {
    let mut blocks = env.region().take(WRITE_BYTES_MAX).context("a region without a free chunk")?;
    blocks.append(&vec![0x5a; WRITE_BYTES_MAX]);
    let blocks = blocks.freeze();
    let mut position = 0;
    while !requests.ended.get() {
        let seen = arrived.count();
        let (from, to) = (requests.written.get(), requests.received.get());
        let Some(header) = requests.header.get().filter(|_| from < to) else {
            arrived.changed(seen).await;
            continue;
        };
        let to = to.min(from + (WRITE_BYTES_MAX / header.frame_bytes()) as u64);
        let bytes = (usize::try_from(to - from)? * header.frame_bytes()).next_multiple_of(BLOCK_BYTES);
        file.write(blocks.slice(0..bytes), position, Durability::Device).await?;
        position = (position + bytes as u64) % (FILE_BYTES - WRITE_BYTES_MAX as u64);
        requests.written.set(to);
        let answers = answers(&header, from..to)?;
        let connection = connection.clone();
        // The next write doesn't wait for it; a failure shows as answers that never come.
        env.spawn(async move { drop(connection.send(answers).await) });
    }
    Ok(())
}

fn answers(header: &FrameHeader, requests: std::ops::Range<u64>) -> Result<SendParts> {
    let mut bytes = Vec::new();
    for number in requests {
        let result = ProduceResult {
            error: ErrorCode::None,
            message: String::new(),
            base_offset: Offset(i64::try_from(number)?),
            log_append_time: Timestamp(-1),
            log_start: Offset(0),
        };
        let mut fields = header.reply_fields(Kind::Produce, false);
        fields.correlation = number;
        bytes.extend_from_slice(&encode_frame(&fields, &ProduceReply { results: vec![result] }.encode_body())?);
    }
    let mut parts = SendParts::new();
    parts.push(SendPart::Owned(bytes.into()));
    Ok(parts)
}
