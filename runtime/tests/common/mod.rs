//! What the tests of the ring share: a scratch directory, a small core, an echo.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "each test binary uses a part")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use runtime::uring::{CoreConfig, RingEnv, RingListener, run_core};
use runtime::{Chunk, Connection, Env, Listener, SendPart, SendParts};

pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("ring-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn config() -> CoreConfig {
    CoreConfig { memory_bytes: 16 << 20, ring_entries: 128, ..CoreConfig::default() }
}

pub fn core<T: 'static, F: Future<Output = T> + 'static>(main: impl FnOnce(RingEnv) -> F + 'static) -> T {
    run_core(config(), main).unwrap()
}

pub fn filled(env: &RingEnv, bytes: usize, seed: usize) -> Chunk {
    let mut chunk = env.region().take(bytes).unwrap();
    for (n, byte) in chunk.writable()[..bytes].iter_mut().enumerate() {
        *byte = u8::try_from((n * 7 + n / 4096 + seed) % 251).unwrap();
    }
    chunk.publish(bytes);
    chunk
}

pub fn any() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// Echoes every connection until its end.
pub fn spawn_echo(env: &RingEnv, listener: RingListener) {
    let task_env = env.clone();
    env.spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let env = task_env.clone();
            task_env.spawn(async move {
                loop {
                    connection.readable().await.unwrap();
                    let (received, chunk) = connection.receive(env.region().take(4096).unwrap(), usize::MAX).await;
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

/// Waits until `condition` holds, or fails after five seconds.
pub async fn until(env: &RingEnv, what: &str, condition: impl Fn() -> bool) {
    for _ in 0..5000 {
        if condition() {
            return;
        }
        env.sleep(std::time::Duration::from_millis(1)).await;
    }
    panic!("{what} didn't happen in five seconds");
}
