//! The wire at its widest: a core whose ring does nothing but SEND 1 MiB of registered memory after 1 MiB, to one socket or
//! several, read by blocking threads on the generator's processor. Each socket is sent the same range of memory over and over, as
//! long as what the figure reads: a single MiB stays in the processor's caches, and no log does.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use runtime::uring::{CoreConfig, RingEnv, run_core};
use runtime::{ChunkSlice, Connection, Env, Listener, SendPart, SendParts, Sharing, Transport};

use crate::machine;

const SEND_BYTES: usize = 1 << 20;
const READ_BYTES: usize = 1 << 20;

/// What is sent, and to how many.
#[derive(Clone, Copy, Debug)]
pub struct SendLoad {
    /// Sockets.
    pub sockets: usize,
    /// Bytes of the range that is sent again and again.
    pub range_bytes: usize,
    /// How long, in seconds, after a warm-up of a fifth of it.
    pub seconds: f64,
}

/// GiB/s over all sockets.
pub fn run(broker_cpu: usize, generator_cpu: usize, load: SendLoad) -> Result<f64> {
    let SendLoad { sockets, range_bytes, seconds } = load;
    let (address_sender, address_receiver) = mpsc::channel();
    let config = CoreConfig {
        name: "send-limit".to_owned(),
        cpu: Some(broker_cpu),
        memory_bytes: range_bytes + (64 << 20),
        // Loopback copies in any case; asking it not to costs more.
        zero_copy: false,
        ..CoreConfig::default()
    };
    let sender = std::thread::spawn(move || -> Result<()> {
        // Not a broker's core: it starts and ends with this measurement.
        run_core(config, move |env| send_until_closed(env, sockets, range_bytes, address_sender))?
    });
    let address: SocketAddr = address_receiver.recv().map_err(|_| anyhow!("the sending core didn't start"))?;
    let readers: Vec<_> =
        (0..sockets).map(|_| machine::spawn_pinned(generator_cpu, move || read_for(address, seconds))).collect();
    let mut rate = 0.0;
    for reader in readers {
        rate += machine::joined(reader).context("a reader of the send limit")?;
    }
    sender.join().map_err(|_| anyhow!("the sending core panicked"))??;
    Ok(rate)
}

async fn send_until_closed(env: RingEnv, sockets: usize, range_bytes: usize, address: mpsc::Sender<SocketAddr>) -> Result<()> {
    let listener = env.transport().listen(SocketAddr::from(([127, 0, 0, 1], 0)), Sharing::Alone).await?;
    address.send(listener.local_address())?;
    let mut range = Vec::new();
    for _ in 0..range_bytes.div_ceil(SEND_BYTES) {
        let mut chunk = env.region().take(SEND_BYTES).context("a region without a free chunk")?;
        chunk.append(&vec![7; SEND_BYTES]);
        range.push(chunk.freeze());
    }
    let range = std::rc::Rc::new(range);
    let ended = runtime::local::Notify::new();
    for _ in 0..sockets {
        let (connection, _) = listener.accept().await?;
        let (range, ended) = (range.clone(), ended.clone());
        env.spawn(async move {
            let mut next = 0;
            // Ends when the reader closes its end.
            while connection.send(parts(&range[next])).await.is_ok() {
                next = (next + 1) % range.len();
            }
            connection.close();
            ended.notify();
        });
    }
    let target = u64::try_from(sockets)?;
    while ended.count() < target {
        ended.changed(ended.count()).await;
    }
    Ok(())
}

fn parts(slice: &ChunkSlice) -> SendParts {
    let mut parts = SendParts::new();
    parts.push(SendPart::Chunk(slice.clone()));
    parts
}

/// Reads for so long after a warm-up; GiB/s.
fn read_for(address: SocketAddr, seconds: f64) -> Result<f64> {
    let mut stream = TcpStream::connect(address)?;
    let mut buffer = vec![0; READ_BYTES];
    let warm_up = Duration::from_secs_f64(seconds / 5.0).as_secs_f64();
    let mut measured_from = None;
    let (mut bytes, start_nanos) = (0u64, machine::now_nanos());
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Err(anyhow!("the sending core closed the connection"));
        }
        let now_nanos = machine::now_nanos();
        match measured_from {
            None if machine::seconds_since(start_nanos) >= warm_up => measured_from = Some(now_nanos),
            None => {}
            Some(from) => {
                bytes += count as u64;
                let passed = Duration::from_nanos(now_nanos - from).as_secs_f64();
                if passed >= seconds {
                    return Ok(bytes as f64 / passed / (1u64 << 30) as f64);
                }
            }
        }
    }
}
