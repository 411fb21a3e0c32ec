//! A region that comes to its full size while the core works.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Scratch, config};
use runtime::uring::memory::{CHUNK_BYTES_MAX, ENTRY_BYTES_MAX};
use runtime::uring::{CoreConfig, Registration, run_core};
use runtime::{Chunk, Disk, Durability, Env, File};

#[test]
fn a_core_begins_with_one_entry_and_works_from_all_of_them() {
    let scratch = Scratch::new();
    let path = scratch.path("a.log");
    let config = CoreConfig { memory_bytes: 3 * ENTRY_BYTES_MAX, registration: Registration::Required, ..config() };
    run_core(config, |env| async move {
        assert_eq!(env.region().bytes(), ENTRY_BYTES_MAX, "a core doesn't wait for more");
        let mut chunks: Vec<Chunk> = Vec::new();
        while let Some(chunk) = env.region().take(CHUNK_BYTES_MAX) {
            chunks.push(chunk);
        }
        assert_eq!(chunks.len() * CHUNK_BYTES_MAX, ENTRY_BYTES_MAX);
        let freed = env.region().freed();
        while env.region().bytes() < env.region().full_bytes() {
            freed.changed(freed.count()).await;
            while let Some(chunk) = env.region().take(CHUNK_BYTES_MAX) {
                chunks.push(chunk);
            }
        }
        assert_eq!(chunks.len() * CHUNK_BYTES_MAX, 3 * ENTRY_BYTES_MAX, "who waits for memory hears of the growth");
        // The kernel takes an operation on registered memory only from the entry that it names.
        let file = env.disk().file(path, true);
        file.allocate(0, CHUNK_BYTES_MAX as u64).await.unwrap();
        let mut data = chunks.pop().unwrap();
        data.writable()[..8192].fill(7);
        data.publish(8192);
        let data = data.freeze();
        file.write(data.clone(), 0, Durability::Device).await.unwrap();
        for chunk in chunks {
            let (count, chunk) = file.read(chunk, 0, 8192).await;
            assert_eq!((count.unwrap(), chunk.as_bytes()), (8192, &data[..]));
        }
    })
    .unwrap();
}
