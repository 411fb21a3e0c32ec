//! Files and names on a real file system with direct I/O.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io;
use std::rc::Rc;

use common::{Scratch, config, core, filled, until};
use futures_lite::future::{poll_once, zip};
use runtime::uring::{CoreConfig, run_core};
use runtime::{Disk, Durability, Env, File};

#[test]
fn a_file_is_written_flushed_and_read() {
    let scratch = Scratch::new();
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
        zip(first, second).await.0.unwrap();
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
fn more_files_than_descriptors() {
    let scratch = Scratch::new();
    let paths: Vec<_> = (0..20).map(|n| scratch.path(&format!("{n}.log"))).collect();
    let config = CoreConfig { descriptors_max: 3, ..config() };
    run_core(config, |env| async move {
        let files: Vec<_> = paths.iter().map(|path| env.disk().file(path.clone(), true)).collect();
        for round in 0..3 {
            let done = Rc::new(std::cell::Cell::new(0));
            for (n, file) in files.iter().enumerate() {
                // All at once: more operations than descriptors, so some wait for a descriptor that is in use.
                let (file, task_env, done) = (file.clone(), env.clone(), done.clone());
                env.spawn(async move {
                    let data = filled(&task_env, 8192, n + round).freeze();
                    file.allocate(0, 8192).await.unwrap();
                    file.write(data.clone(), 0, Durability::Written).await.unwrap();
                    assert!(task_env.metrics().descriptors_open <= 3, "{:?}", task_env.metrics());
                    let (count, back) = file.read(task_env.region().take(8192).unwrap(), 0, 8192).await;
                    assert_eq!((count.unwrap(), back.as_bytes()), (8192, &data[..]));
                    done.set(done.get() + 1);
                });
            }
            until(&env, "all files", || done.get() == files.len()).await;
        }
        assert!(env.metrics().descriptor_evictions > 20, "{:?}", env.metrics());
        drop(files);
        until(&env, "closing", || env.metrics().descriptors_open == 0).await;
    })
    .unwrap();
}

#[test]
fn t96_more_writes_than_the_queue_has_entries() {
    let scratch = Scratch::new();
    let path = scratch.path("a.log");
    let config = CoreConfig { ring_entries: 4, ..config() };
    run_core(config, |env| async move {
        let file = env.disk().file(path, true);
        file.allocate(0, 4 << 20).await.unwrap();
        let data = filled(&env, 4096, 1).freeze();
        let done = Rc::new(std::cell::Cell::new(0));
        for n in 0..1000 {
            let (file, data, done) = (file.clone(), data.clone(), done.clone());
            env.spawn(async move {
                file.write(data, n * 4096, Durability::Written).await.unwrap();
                done.set(done.get() + 1);
            });
        }
        until(&env, "all writes", || done.get() == 1000).await;
        let (count, back) = file.read(env.region().take(4 << 20).unwrap(), 0, 1000 * 4096).await;
        assert_eq!(count.unwrap(), 1000 * 4096);
        assert!(back.as_bytes().chunks(4096).all(|block| block == &data[..]));
    })
    .unwrap();
}

#[test]
fn t91_dropped_write_is_finished_and_frees_its_memory_then() {
    let scratch = Scratch::new();
    let path = scratch.path("a.log");
    core(|env| async move {
        let file = env.disk().file(path, true);
        file.allocate(0, 1 << 20).await.unwrap();
        let all = env.region().free_bytes();
        for n in 0..64_u64 {
            let data = filled(&env, 16384, usize::try_from(n).unwrap()).freeze();
            assert!(poll_once(file.write(data, n * 16384, Durability::Written)).await.is_none());
        }
        assert!(env.region().free_bytes() < all, "the writes own their memory");
        until(&env, "the writes' end", || env.region().free_bytes() == all).await;
        for n in [0_u64, 63] {
            let expected = filled(&env, 16384, usize::try_from(n).unwrap());
            let (_, back) = file.read(env.region().take(16384).unwrap(), n * 16384, 16384).await;
            assert_eq!(back.as_bytes(), expected.as_bytes());
        }
    });
}

#[test]
fn a_missing_file_and_an_unaligned_read_are_told_by_name() {
    let scratch = Scratch::new();
    let path = scratch.path("absent.log");
    core(|env| async move {
        let file = env.disk().file(path, false);
        let error = file.flush().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().contains("absent.log"), "{error}");
        assert_eq!(env.metrics().descriptors_open, 0);
    });
}

#[test]
fn names_and_small_files() {
    let scratch = Scratch::new();
    let root = scratch.path("data");
    core(|env| async move {
        let disk = env.disk();
        let deep = root.join("topics/a");
        disk.create_directory(&deep).await.unwrap();
        disk.create_directory(&deep).await.unwrap();
        let checkpoint = deep.join("checkpoint");
        disk.replace_file(&checkpoint, b"one".to_vec()).await.unwrap();
        disk.replace_file(&checkpoint, b"two".to_vec()).await.unwrap();
        assert_eq!(disk.read_file(&checkpoint, 3).await.unwrap(), b"two");
        assert_eq!(disk.read_file(&checkpoint, 2).await.unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        disk.overwrite_file(&deep.join("a-or-b"), b"longer".to_vec()).await.unwrap();
        disk.overwrite_file(&deep.join("a-or-b"), b"short".to_vec()).await.unwrap();
        assert_eq!(disk.read_file(&deep.join("a-or-b"), 100).await.unwrap(), b"short");
        disk.rename(&checkpoint, &deep.join("z")).await.unwrap();
        disk.sync_directory(&deep).await.unwrap();
        let names: Vec<_> = disk.list(&deep).await.unwrap().into_iter().map(|entry| (entry.name, entry.length)).collect();
        assert_eq!(names, [("a-or-b".to_owned(), 5), ("z".to_owned(), 3)]);
        assert!(disk.list(&root.join("topics")).await.unwrap()[0].is_directory);
        let space = disk.space(&root).await.unwrap();
        assert!(space.available > 0 && space.available < space.total);
        disk.remove_file(&deep.join("z")).await.unwrap();
        disk.remove_file(&deep.join("a-or-b")).await.unwrap();
        disk.remove_directory(&deep).await.unwrap();
        assert_eq!(disk.list(&root.join("topics")).await.unwrap(), []);
        assert_eq!(disk.remove_file(&deep).await.unwrap_err().kind(), io::ErrorKind::NotFound);
    });
}

#[test]
fn a_large_file_is_freed_in_steps_after_its_name_is_gone() {
    let scratch = Scratch::new();
    let path = scratch.path("large.log");
    core(|env| async move {
        let file = env.disk().file(path.clone(), true);
        file.allocate(0, 100 << 20).await.unwrap();
        // Nobody waits for the end; the file goes all the same.
        assert!(poll_once(env.disk().remove_file(&path)).await.is_none());
        until(&env, "the name's end", || !path.exists()).await;
        let mut length = file.length().await.unwrap();
        for _ in 0..1000 {
            if length == 0 {
                break;
            }
            env.sleep(std::time::Duration::from_millis(1)).await;
            length = file.length().await.unwrap();
        }
        assert_eq!(length, 0, "the open descriptor frees nothing at once when it closes");
    });
}

#[test]
fn a_locked_directory_names_its_holder() {
    let scratch = Scratch::new();
    let path = scratch.path("lock");
    let other = path.clone();
    core(|env| async move {
        env.disk().lock(&path, "host 7, process 42".to_owned()).await.unwrap();
        let error = env.disk().lock(&path, "host 8".to_owned()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(error.to_string().contains("host 7, process 42"), "{error}");
    });
    core(|env| async move { env.disk().lock(&other, "host 8".to_owned()).await.unwrap() });
}
