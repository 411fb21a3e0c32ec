//! The ring on the real kernel: files with direct I/O, sockets over loopback, tasks and work off the core.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use runtime::uring::{CoreConfig, RingEnv, Spin, run_core};
use runtime::{Chunk, Connection, Disk, Durability, Env, File, Listener, SendPart, SendParts, Transport};

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn config() -> CoreConfig {
    CoreConfig { memory_bytes: 16 << 20, ring_entries: 128, ..CoreConfig::default() }
}

fn core<T: 'static, F: Future<Output = T> + 'static>(main: impl FnOnce(RingEnv) -> F) -> T {
    run_core(config(), main).unwrap()
}

fn filled(env: &RingEnv, bytes: usize, seed: usize) -> Chunk {
    let mut chunk = env.region().take(bytes).unwrap();
    for (n, byte) in chunk.writable()[..bytes].iter_mut().enumerate() {
        *byte = u8::try_from((n * 7 + n / 4096 + seed) % 251).unwrap();
    }
    chunk.publish(bytes);
    chunk
}

fn any() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// Echoes every connection until its end.
fn spawn_echo(env: &RingEnv, listener: <runtime::uring::RingTransport as Transport>::Listener) {
    let task_env = env.clone();
    env.spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let env = task_env.clone();
            task_env.spawn(async move {
                loop {
                    connection.readable().await.unwrap();
                    let (received, chunk) = connection.receive(env.region().take(4096).unwrap()).await;
                    if received.unwrap_or(0) == 0 {
                        return;
                    }
                    let parts = SendParts::from_iter([SendPart::Chunk(chunk.freeze())]);
                    if connection.send(parts).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
}

#[test]
fn a_file_is_written_flushed_and_read() {
    let scratch = Scratch::new("file");
    let path = scratch.path("a.log");
    core(|env| async move {
        let file = env.disk().file(path.clone(), true);
        file.allocate(0, 1 << 20).await.unwrap();
        assert_eq!(file.length().await.unwrap(), 1 << 20);
        let data = filled(&env, 65536, 1).freeze();
        file.write(data.slice(0..4096), 0, Durability::Device).await.unwrap();
        let (first, second) = (
            file.write(data.slice(4096..32768), 4096, Durability::Written),
            file.write(data.slice(32768..65536), 32768, Durability::Written),
        );
        futures_lite::future::zip(first, second).await.0.unwrap();
        file.flush().await.unwrap();
        file.close();
        let (count, chunk) = file.read(env.region().take(65536).unwrap(), 0, 65536).await;
        assert_eq!((count.unwrap(), chunk.as_bytes()), (65536, &data[..]));
        file.zero_range(4096, 4096).await.unwrap();
        let (count, chunk) = file.read(env.region().take(4096).unwrap(), 4096, 4096).await;
        assert_eq!((count.unwrap(), chunk.as_bytes()), (4096, &[0; 4096][..]));
        file.set_length(10_000).await.unwrap();
        let (count, chunk) = file.read(env.region().take(65536).unwrap(), 8192, 32768).await;
        assert_eq!((count.unwrap(), chunk.as_bytes()), (10_000 - 8192, &data[8192..10_000]));
        env.disk().remove_file(&path).await.unwrap();
        assert!(!path.exists());
    });
}

#[test]
fn an_echo_over_loopback() {
    core(|env| async move {
        let listener = env.transport().listen(any()).await.unwrap();
        let address = listener.local_address();
        spawn_echo(&env, listener);
        let client = env.offload(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            let mut back = [0; 5];
            for _ in 0..1000 {
                stream.write_all(b"hello").unwrap();
                stream.read_exact(&mut back).unwrap();
                assert_eq!(&back, b"hello");
            }
        });
        client.await;
        let metrics = env.metrics();
        assert!(metrics.completions > 2000, "{metrics:?}");
    });
}

#[test]
fn a_spinning_core_echoes_and_its_timers_fire() {
    let config = CoreConfig { spin: Spin::For(Duration::from_micros(50)), ..config() };
    run_core(config, |env| async move {
        let listener = env.transport().listen(any()).await.unwrap();
        let address = listener.local_address();
        spawn_echo(&env, listener);
        env.offload(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            let mut back = [0; 5];
            for _ in 0..100 {
                stream.write_all(b"hello").unwrap();
                stream.read_exact(&mut back).unwrap();
            }
        })
        .await;
        env.sleep(Duration::from_millis(5)).await;
    })
    .unwrap();
}
