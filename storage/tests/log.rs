//! Appends, writes, rolls and reads of one log on the simulator's disk.
#![allow(clippy::unwrap_used, reason = "a test fails where it must")]

mod support;

use std::time::Duration;

use protocol::ids::{DurabilityClass, Offset, PartitionIndex, TopicPartition};
use runtime::{Disk, Env};
use sim::SimEnv;
use storage::{Directory, Log, LogConfig, ReadRequest, StorageConfig};
use support::*;

#[test]
fn what_is_appended_is_read_back_from_memory_and_from_the_disk() {
    sim::run(1, |env| async move {
        let directory = open(&env).await;
        let mut log = directory.create_log(LOG, small_segments()).await.unwrap();
        for number in 0..400 {
            let bytes = usize::try_from(env.workload().between(8, 20_000)).unwrap();
            let appended = append(&env, &mut log, 1, &numbered(number, bytes)).await;
            assert_eq!(appended.base, Offset(i64::try_from(number).unwrap()));
            if env.workload().chance(1, 3) {
                write(&env, &mut log).await.unwrap();
            }
            if env.workload().chance(1, 3) {
                maintain(&env, &mut log).await.unwrap();
            }
        }
        settle(&env, &mut log).await.unwrap();
        assert_eq!(log.flushed(), Offset(400));
        assert!(log.segment_count() > 3, "{}", log.segment_count());
        let expected: Vec<u64> = (0..400).collect();
        assert_eq!(numbers(&mut log, Offset(0)).await, expected);
        assert_eq!(log.metrics().snapshot().crossing_writes, 0);
        log.drop_cached();
        assert_eq!(numbers(&mut log, Offset(0)).await, expected);
        assert_eq!(env.disk_counters().crossing_writes, 0);
    });
}

#[test]
fn t30_an_offset_inside_a_batch_gives_the_whole_batch() {
    sim::run(2, |env| async move {
        let directory = open(&env).await;
        let mut log = directory.create_log(LOG, LogConfig::default()).await.unwrap();
        for _ in 0..40 {
            append(&env, &mut log, 1, &batch_at(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 300)).await;
        }
        settle(&env, &mut log).await.unwrap();
        for from_disk in [false, true] {
            for offset in [0, 1, 9, 10, 155, 399] {
                if from_disk {
                    log.drop_cached();
                }
                let request = ReadRequest { offset: Offset(offset), bound: log.log_end(), bytes_max: 1, first_batch_whole: true };
                let (bytes, next) = read(&mut log, request).await.unwrap();
                let found = batches(&bytes);
                assert_eq!(found.len(), 1);
                assert_eq!(found[0].base_offset(), Offset(offset / 10 * 10));
                assert_eq!(next, Offset(offset / 10 * 10 + 10));
                let request = ReadRequest { first_batch_whole: false, ..request };
                assert!(read(&mut log, request).await.unwrap().0.is_empty());
            }
        }
        assert!(env.now().0 > 0);
    });
}

#[test]
fn appends_that_wait_are_one_write() {
    sim::run(3, |env| async move {
        let directory = open(&env).await;
        let mut log = directory.create_log(LOG, LogConfig::default()).await.unwrap();
        maintain(&env, &mut log).await.unwrap();
        for number in 0..50 {
            append(&env, &mut log, 1, &numbered(number, 100)).await;
        }
        // The window of an idle log is one block; the rest goes out beside it.
        write(&env, &mut log).await.unwrap();
        assert_eq!(log.written(), Offset(50));
        assert!(log.metrics().snapshot().writes <= 2, "{:?}", log.metrics().snapshot());
    });
}

#[test]
fn offsets_move_with_the_contiguous_prefix_only() {
    sim::run(3, |env| async move {
        let directory = open(&env).await;
        let mut log = directory.create_log(LOG, LogConfig::default()).await.unwrap();
        for number in 0..3 {
            append(&env, &mut log, 1, &numbered(number, 60_000)).await;
        }
        let first = log.begin_write(env.now()).unwrap();
        let second = log.begin_write(env.now()).unwrap();
        let second = second.execute().await;
        assert_eq!(log.finish_write(second).unwrap().flushed, Offset(0));
        let first = first.execute().await;
        assert_eq!(log.finish_write(first).unwrap().flushed, Offset(3));
    });
}

#[test]
fn t33_a_quiet_active_segment_rolls_by_time() {
    sim::run(4, |env| async move {
        let directory = open(&env).await;
        let config = LogConfig { segment_ms: 60_000, ..LogConfig::default() };
        let mut log = directory.create_log(LOG, config).await.unwrap();
        env.sleep(Duration::from_secs(120)).await;
        maintain(&env, &mut log).await.unwrap();
        assert_eq!(log.segment_count(), 1, "an empty segment doesn't roll");
        // Timestamps of records, however old, have no say.
        append(&env, &mut log, 1, &batch_at(&[5], 100)).await;
        settle(&env, &mut log).await.unwrap();
        env.sleep(Duration::from_secs(59)).await;
        maintain(&env, &mut log).await.unwrap();
        assert_eq!(log.segment_count(), 1);
        env.sleep(Duration::from_secs(2)).await;
        maintain(&env, &mut log).await.unwrap();
        assert_eq!(log.segment_count(), 2, "nothing was appended meanwhile");
        let names = env.disk().list(&root().join("topics").join(LOG.topic.to_string()).join("0")).await.unwrap();
        let sealed = names.iter().find(|entry| entry.name == "00000000000000000000.log").unwrap();
        assert_eq!(sealed.length, log.size_bytes(), "a sealed segment has its exact size");
        assert!(names.iter().any(|entry| entry.name == "00000000000000000001.log"));
        append(&env, &mut log, 1, &numbered(1, 100)).await;
        settle(&env, &mut log).await.unwrap();
        assert_eq!(log.log_end(), Offset(2));
    });
}

#[test]
fn t93_no_write_goes_from_written_into_unwritten_blocks() {
    for streaming in [false, true] {
        for seed in 0..40 {
            sim::run(seed, move |env| async move {
                let directory = open(&env).await;
                let streaming_bytes_per_second = if streaming { 1 } else { u64::MAX };
                directory.set_storage(StorageConfig { streaming_bytes_per_second, ..StorageConfig::default() });
                let mut log = directory.create_log(LOG, small_segments()).await.unwrap();
                for number in 0..150 {
                    let bytes = [50, 900, 4000, 30_000, 200_000][env.workload().index(5)];
                    append(&env, &mut log, 1, &numbered(number, bytes)).await;
                    match env.workload().below(4) {
                        0 => write(&env, &mut log).await.unwrap(),
                        1 => maintain(&env, &mut log).await.unwrap(),
                        2 => env.sleep(Duration::from_millis(env.workload().below(300))).await,
                        _ => {}
                    }
                }
                settle(&env, &mut log).await.unwrap();
                assert_eq!(env.disk_counters().crossing_writes, 0);
                assert_eq!(log.metrics().snapshot().crossing_writes, 0);
                log.drop_cached();
                assert_eq!(numbers(&mut log, Offset(0)).await, (0..150).collect::<Vec<_>>());
            });
        }
    }
}

#[test]
fn a_log_that_streams_writes_whole_blocks_and_zeroes_nothing() {
    sim::run(5, |env| async move {
        let directory = open(&env).await;
        directory.set_storage(StorageConfig { streaming_bytes_per_second: 1 << 20, ..StorageConfig::default() });
        let mut log = directory.create_log(LOG, LogConfig::default()).await.unwrap();
        for number in 0..100 {
            append(&env, &mut log, 1, &numbered(number, 65_000)).await;
            env.sleep(Duration::from_millis(2)).await;
            maintain(&env, &mut log).await.unwrap();
        }
        write(&env, &mut log).await.unwrap();
        let before = log.metrics().snapshot();
        for number in 100..1100 {
            append(&env, &mut log, 1, &numbered(number, 65_000)).await;
            if log.unwritten_bytes() > 300_000
                && let Some(plan) = log.begin_write(env.now())
            {
                assert!(plan.bytes().is_multiple_of(4096));
                let outcome = plan.execute().await;
                log.finish_write(outcome).unwrap();
                maintain(&env, &mut log).await.unwrap();
            }
        }
        let after = log.metrics().snapshot();
        assert_eq!(after.zeroed_bytes, before.zeroed_bytes);
        let written = after.written_bytes - before.written_bytes;
        assert!(written < (after.appended_bytes - before.appended_bytes) + 4096, "no block is written twice: {written}");
    });
}

#[test]
fn a_middling_log_writes_into_its_window() {
    sim::run(5, |env| async move {
        let directory = open(&env).await;
        let mut log = directory.create_log(LOG, LogConfig::default()).await.unwrap();
        for number in 0..600 {
            append(&env, &mut log, 1, &numbered(number, 1000)).await;
            env.sleep(Duration::from_micros(300)).await;
            let before = log.metrics().snapshot().writes;
            write(&env, &mut log).await.unwrap();
            let writes = log.metrics().snapshot().writes - before;
            if number > 400 {
                assert_eq!(writes, 1, "one small commit in the window is one write");
            }
            maintain(&env, &mut log).await.unwrap();
        }
        assert!(log.metrics().snapshot().zeroed_bytes > 0);
    });
}

#[test]
fn class_written_moves_the_written_offset_and_a_flush_the_flushed() {
    sim::run(6, |env| async move {
        let directory = open(&env).await;
        let config = LogConfig { class: DurabilityClass::Written, ..LogConfig::default() };
        let mut log = directory.create_log(LOG, config).await.unwrap();
        append(&env, &mut log, 1, &numbered(0, 5000)).await;
        write(&env, &mut log).await.unwrap();
        assert_eq!((log.written(), log.flushed()), (Offset(1), Offset(0)));
        let outcome = log.begin_flush().execute().await;
        let progress = log.finish_flush(outcome, env.now()).unwrap();
        assert_eq!(progress.flushed, Offset(1));
        // A topic that becomes `device` flushes what was plain before it says that anything is flushed.
        append(&env, &mut log, 1, &numbered(1, 5000)).await;
        write(&env, &mut log).await.unwrap();
        log.set_config(LogConfig::default());
        append(&env, &mut log, 1, &numbered(2, 5000)).await;
        write(&env, &mut log).await.unwrap();
        assert_eq!((log.written(), log.flushed()), (Offset(3), Offset(1)));
        maintain(&env, &mut log).await.unwrap();
        assert_eq!(log.flushed(), Offset(3));
    });
}

#[test]
fn memory_runs_short_and_clean_chunks_make_room() {
    let options = sim::Options { region_bytes: 16 << 20, ..sim::Options::new(7) };
    sim::run_with(options, |env| async move {
        let directory = open(&env).await;
        let mut log = directory.create_log(LOG, LogConfig::default()).await.unwrap();
        for number in 0..400 {
            append(&env, &mut log, 1, &numbered(number, 100_000)).await;
            if number % 10 == 0 {
                settle(&env, &mut log).await.unwrap();
            }
        }
        settle(&env, &mut log).await.unwrap();
        assert!(log.metrics().snapshot().evicted_bytes > 0);
        assert_eq!(numbers(&mut log, Offset(0)).await, (0..400).collect::<Vec<_>>());
        let all = env.region().bytes();
        drop(log);
        assert_eq!(env.region().free_bytes(), all, "nothing of a log stays behind");
    });
}

/// A log of 800 batches, each a little above 100,000 bytes, that nobody's memory holds.
async fn cold_log(env: &SimEnv, directory: &Directory<SimEnv>) -> Log<SimEnv> {
    let mut log = directory.create_log(LOG, LogConfig::default()).await.unwrap();
    for number in 0..800 {
        append(env, &mut log, 1, &numbered(number, 100_000)).await;
        settle(env, &mut log).await.unwrap();
    }
    log.drop_cached();
    log
}

/// Reads so many answers one after the other; how many bytes more than was given have been read from the disk then.
async fn bytes_ahead(log: &mut Log<SimEnv>, bytes_max: usize, mut pauses: impl AsyncFnMut()) -> Vec<u64> {
    let (before, bound) = (log.metrics().snapshot().disk_read_bytes, log.log_end());
    let mut offset = Offset(0);
    let mut ahead = Vec::new();
    for _ in 0..8 {
        let request = ReadRequest { offset, bound, bytes_max, first_batch_whole: true };
        offset = read(log, request).await.unwrap().1;
        let given = u64::try_from(offset.0).unwrap() * 100_000;
        ahead.push((log.metrics().snapshot().disk_read_bytes - before - given) >> 20);
        pauses().await;
    }
    ahead
}

#[test]
fn a_reader_that_waits_for_the_disk_has_more_and_more_read_ahead() {
    let options = sim::Options { region_bytes: 128 << 20, ..sim::Options::new(7) };
    sim::run_with(options, |env| async move {
        let directory = open(&env).await;
        let mut log = cold_log(&env, &directory).await;
        let ahead = bytes_ahead(&mut log, 4 << 20, async || {}).await;
        assert_eq!(ahead[0], 0, "who comes for the first time may not come again");
        let most = ahead.iter().copied().max().unwrap();
        assert!((4..7).contains(&ahead[1]) && (28..36).contains(&most), "{ahead:?} MiB");
    });
}

#[test]
fn a_reader_that_needn_t_wait_has_little_read_ahead() {
    let options = sim::Options { region_bytes: 128 << 20, ..sim::Options::new(7) };
    sim::run_with(options, |env| async move {
        let directory = open(&env).await;
        let mut log = cold_log(&env, &directory).await;
        let ahead = bytes_ahead(&mut log, 1 << 20, async || env.sleep(Duration::from_secs(1)).await).await;
        assert!(ahead[2..].iter().all(|is| (4..10).contains(is)), "{ahead:?} MiB");
    });
}

#[test]
fn reading_ahead_evicts_nothing_and_leaves_memory_free() {
    let options = sim::Options { region_bytes: 64 << 20, ..sim::Options::new(7) };
    sim::run_with(options, |env| async move {
        let directory = open(&env).await;
        let mut log = cold_log(&env, &directory).await;
        let name = TopicPartition { partition: PartitionIndex(1), ..LOG };
        let mut tail = directory.create_log(name, LogConfig::default()).await.unwrap();
        for number in 0..600 {
            append(&env, &mut tail, 1, &numbered(number, 100_000)).await;
            settle(&env, &mut tail).await.unwrap();
        }
        let evicted = log.metrics().snapshot().evicted_bytes;
        let ahead = bytes_ahead(&mut log, 1 << 20, async || {}).await;
        assert!(ahead[1..].iter().all(|is| (1..8).contains(is)), "{ahead:?} MiB ahead, of a region that a cache has filled");
        assert!(
            env.region().free_bytes() >= env.region().bytes() / 16 - (1 << 20),
            "{} bytes are free",
            env.region().free_bytes()
        );
        assert_eq!(log.metrics().snapshot().evicted_bytes, evicted, "a tail reader's pieces stay");
    });
}

#[test]
fn an_idle_tail_is_dropped_and_appends_go_on_behind_it() {
    sim::run(8, |env| async move {
        let directory = open(&env).await;
        let mut log = directory.create_log(LOG, LogConfig::default()).await.unwrap();
        for number in 0..20 {
            append(&env, &mut log, 1, &numbered(number, 1500)).await;
            settle(&env, &mut log).await.unwrap();
            env.sleep(Duration::from_secs(30)).await;
            maintain(&env, &mut log).await.unwrap();
            log.drop_cached();
            assert_eq!(env.region().free_bytes(), env.region().bytes());
        }
        assert_eq!(numbers(&mut log, Offset(0)).await, (0..20).collect::<Vec<_>>());
    });
}

#[test]
fn the_flush_policy_is_measured() {
    sim::run(8, |env| async move {
        let directory = open(&env).await;
        let measured = storage::flush::measure(&env, directory.path()).await.unwrap();
        assert!(!measured.each_write.is_zero() && !measured.grouped.is_zero());
        let names = env.disk().list(directory.path()).await.unwrap();
        assert!(names.iter().all(|entry| !entry.name.contains("measure")));
    });
}
