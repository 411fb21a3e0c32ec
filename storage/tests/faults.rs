//! Disks that fail, and logs that stop.
#![allow(clippy::unwrap_used, reason = "a test fails where it must")]

mod support;

use std::time::Duration;

use protocol::batch::BatchView;
use protocol::ids::{BrokerEpoch, DurabilityClass, METADATA_TOPIC, Offset, PartitionIndex, TopicPartition};
use runtime::{Disk, Durability, Env, File};
use sim::{Crash, DiskFaults, SimEnv};
use storage::{AppendError, Directory, Fault, FlushPolicy, Log, LogConfig, ReadError, ReadRequest, StorageConfig};
use support::*;

const ALWAYS: u64 = 1_000_000;

#[test]
fn t21_after_a_failed_write_nothing_is_appended_or_acknowledged() {
    sim::run(1, |env| async move {
        let directory = open(&env).await;
        let mut log = directory.create_log(LOG, LogConfig::default()).await.unwrap();
        for number in 0..10 {
            append(&env, &mut log, 1, &numbered(number, 5000)).await;
        }
        write(&env, &mut log).await.unwrap();
        let before = log.progress();
        append(&env, &mut log, 1, &numbered(10, 5000)).await;
        env.set_disk_faults(DiskFaults { write_errors_ppm: ALWAYS, ..DiskFaults::default() });
        let error = write(&env, &mut log).await.unwrap_err();
        assert_eq!(error.operation, "write");
        env.set_disk_faults(DiskFaults::default());
        // The disk is well again; the log stays stopped.
        let bytes = numbered(11, 5000);
        let (batch, _) = BatchView::split(&bytes).unwrap();
        assert!(matches!(log.begin_append(&batch, stamp(&env, 1)), Err(AppendError::Stopped(_))));
        assert!(log.begin_write(env.now()).is_none());
        assert!(log.begin_maintenance(env.now(), env.wall_clock()).is_none());
        assert_eq!(log.progress(), before);
        drop((log, directory));
        env.crash(Crash::Kill);
        let env = env.restart();
        let mut log = open(&env).await.recover_log(LOG, LogConfig::default(), &mut (), |_| {}).await.unwrap().log;
        let found = numbers(&mut log, Offset(0)).await;
        assert!(found.len() == 10 || found.len() == 11, "{found:?}");
        assert_eq!(found, (0..u64::try_from(found.len()).unwrap()).collect::<Vec<_>>());
        append(&env, &mut log, 2, &numbered(77, 5000)).await;
        settle(&env, &mut log).await.unwrap();
        assert_eq!(numbers(&mut log, Offset(0)).await.last(), Some(&77));
    });
}

#[test]
fn t21_a_write_that_succeeds_behind_a_failed_one_moves_nothing() {
    sim::run(3, |env| async move {
        let directory = open(&env).await;
        let mut log = directory.create_log(LOG, LogConfig::default()).await.unwrap();
        append(&env, &mut log, 1, &numbered(0, 150_000)).await;
        let first = log.begin_write(env.now()).unwrap();
        let second = log.begin_write(env.now()).unwrap();
        assert!(log.begin_write(env.now()).is_none(), "two writes are out");
        let second = second.execute().await;
        assert_eq!(log.finish_write(second).unwrap().written, Offset(0));
        env.set_disk_faults(DiskFaults { write_errors_ppm: ALWAYS, ..DiskFaults::default() });
        let first = first.execute().await;
        log.finish_write(first).unwrap_err();
        assert_eq!(log.written(), Offset(0));
        assert_eq!(log.flushed(), Offset(0));
    });
}

#[test]
fn t22_a_failed_flush_is_never_tried_again() {
    for grouped in [false, true] {
        sim::run(1, move |env| async move {
            let directory = open(&env).await;
            let class = if grouped { DurabilityClass::Device } else { DurabilityClass::Written };
            directory.set_storage(StorageConfig { flush_policy: FlushPolicy::Grouped, ..StorageConfig::default() });
            let mut log = directory.create_log(LOG, LogConfig { class, ..LogConfig::default() }).await.unwrap();
            append(&env, &mut log, 1, &numbered(0, 5000)).await;
            env.set_disk_faults(DiskFaults { flush_errors_ppm: ALWAYS, ..DiskFaults::default() });
            if grouped {
                write(&env, &mut log).await.unwrap_err();
            } else {
                write(&env, &mut log).await.unwrap();
                assert_eq!(log.written(), Offset(1));
                let outcome = log.begin_flush().execute().await;
                log.finish_flush(outcome, env.now()).unwrap_err();
            }
            env.set_disk_faults(DiskFaults::default());
            assert_eq!(log.flushed(), Offset(0));
            // A flush that is asked for again must not succeed over what the first has lost.
            let outcome = log.begin_flush().execute().await;
            log.finish_flush(outcome, env.now()).unwrap_err();
            assert_eq!(log.flushed(), Offset(0));
            assert!(log.failure().is_some());
        });
    }
}

#[test]
fn t22_a_flush_that_fails_for_lack_of_space_stops_the_log() {
    for operation in ["write", "flush", "allocate", "persisting indexes"] {
        sim::run(1, move |env| async move {
            let directory = open(&env).await;
            let class = if operation == "flush" { DurabilityClass::Written } else { DurabilityClass::Device };
            directory.set_storage(StorageConfig { flush_policy: FlushPolicy::Grouped, ..StorageConfig::default() });
            let mut log = directory.create_log(LOG, LogConfig { class, ..LogConfig::default() }).await.unwrap();
            append(&env, &mut log, 1, &numbered(0, 5000)).await;
            if operation != "write" {
                write(&env, &mut log).await.unwrap();
                maintain(&env, &mut log).await.unwrap();
            }
            append(&env, &mut log, 1, &numbered(1, 5000)).await;
            if operation != "write" {
                write(&env, &mut log).await.unwrap();
                maintain(&env, &mut log).await.unwrap();
            }
            let flushed = log.flushed();
            env.set_disk_faults(DiskFaults { flush_errors_ppm: ALWAYS, flush_errors_are_full: true, ..DiskFaults::default() });
            match operation {
                "write" => drop(write(&env, &mut log).await),
                "flush" => {
                    let outcome = log.begin_flush().execute().await;
                    log.finish_flush(outcome, env.now()).unwrap_err();
                }
                "allocate" => drop(try_append(&env, &mut log, 1, &numbered(2, 400_000)).await.unwrap_err()),
                _ => {
                    env.sleep(Duration::from_secs(60)).await;
                    maintain(&env, &mut log).await.unwrap_err();
                }
            }
            let failure = log.failure().expect("it isn't taken for a full disk, which one waits for");
            assert_eq!(failure.operation, operation, "{failure}");
            assert!(failure.to_string().contains("No space left"), "{failure}");
            env.set_disk_faults(DiskFaults::default());
            env.sleep(Duration::from_secs(2)).await;
            assert!(log.begin_maintenance(env.now(), env.wall_clock()).is_none(), "nothing is tried again");
            assert_eq!((log.flushed(), log.lacks_space()), (flushed, false));
        });
    }
}

#[test]
fn t22_recovery_writes_again_what_a_failed_flush_may_have_lost() {
    // In the active segment, in one before it that isn't sealed, and in what recovery reads in two pieces.
    let cases = [(80, small_segments()), (95, small_segments()), (95, LogConfig::default())];
    for (seed, (batches, segments)) in (0..30).zip(cases.into_iter().cycle()) {
        sim::run(seed, move |env| async move {
            let config = LogConfig { class: DurabilityClass::Written, ..segments };
            let directory = open(&env).await;
            let mut log = directory.create_log(LOG, config).await.unwrap();
            for number in 0..batches {
                append(&env, &mut log, 1, &numbered(number, 12_000)).await;
                if number == 75 {
                    settle(&env, &mut log).await.unwrap();
                }
            }
            write(&env, &mut log).await.unwrap();
            assert_eq!(log.written(), log.log_end());
            env.set_disk_faults(DiskFaults { flush_errors_ppm: ALWAYS, ..DiskFaults::default() });
            let outcome = log.begin_flush().execute().await;
            log.finish_flush(outcome, env.now()).unwrap_err();
            env.set_disk_faults(DiskFaults::default());
            drop((log, directory));
            // The drive still shows what it has lost, and the process that knew of it is gone.
            env.crash(Crash::Kill);
            let env = env.restart();
            let mut log = open(&env).await.recover_log(LOG, config, &mut (), |_| {}).await.unwrap().log;
            let given_out = numbers(&mut log, Offset(0)).await;
            assert_eq!(given_out, (0..batches).collect::<Vec<_>>());
            assert_eq!(log.flushed(), log.log_end());
            drop(log);
            env.crash(Crash::PowerCut);
            let env = env.restart();
            let mut log = open(&env).await.recover_log(LOG, config, &mut (), |_| {}).await.unwrap().log;
            assert_eq!(numbers(&mut log, Offset(0)).await, given_out);
        });
    }
}

#[test]
fn t22_a_failed_flush_stops_every_log_of_its_directory() {
    for seed in 0..20 {
        sim::run(seed, |env| async move {
            let directory = open(&env).await;
            let config = LogConfig { class: DurabilityClass::Written, ..LogConfig::default() };
            let names = [0, 1, 2].map(|partition| TopicPartition { partition: PartitionIndex(partition), ..LOG });
            let mut failing = directory.create_log(names[0], config).await.unwrap();
            let mut other = directory.create_log(names[1], config).await.unwrap();
            let mut durable = directory.create_log(names[2], LogConfig::default()).await.unwrap();
            for log in [&mut failing, &mut other] {
                append(&env, log, 1, &numbered(1, 9000)).await;
                write(&env, log).await.unwrap();
            }
            append(&env, &mut durable, 1, &numbered(1, 9000)).await;
            // Out when the flush fails; what it has written may be in the drive's cache, and its own flush come afterwards.
            let out = durable.begin_write(env.now()).unwrap();
            env.set_disk_faults(DiskFaults { flush_errors_ppm: ALWAYS, ..DiskFaults::default() });
            let outcome = failing.begin_flush().execute().await;
            failing.finish_flush(outcome, env.now()).unwrap_err();
            env.set_disk_faults(DiskFaults::default());

            let out = out.execute().await;
            durable.finish_write(out).unwrap_err();
            assert_eq!(durable.progress().flushed, Offset(0));
            let outcome = other.begin_flush().execute().await;
            let failure = other.finish_flush(outcome, env.now()).unwrap_err();
            assert!(failure.to_string().contains(&names[0].to_string()), "{failure}");
            assert_eq!(other.flushed(), Offset(0));
            let bytes = numbered(2, 100);
            let (batch, _) = BatchView::split(&bytes).unwrap();
            assert!(matches!(other.begin_append(&batch, stamp(&env, 1)), Err(AppendError::Stopped(_))));
            assert!(other.begin_maintenance(env.now(), env.wall_clock()).is_none());
            let entries = vec![other.checkpoint_entry()];
            directory.write_checkpoint(BrokerEpoch(1), entries).await.unwrap_err();
            // Another directory goes on: it may lie on another drive.
            let elsewhere = Directory::open(&env, "/elsewhere".into(), request(&env)).await.unwrap();
            let mut log = elsewhere.create_log(LOG, LogConfig::default()).await.unwrap();
            append(&env, &mut log, 1, &numbered(3, 100)).await;
            settle(&env, &mut log).await.unwrap();
            assert_eq!(log.flushed(), Offset(1));
        });
    }
}

#[test]
fn t22_a_failed_flush_is_told_before_a_later_durable_write_is_acknowledged() {
    for seed in 0..20 {
        sim::run(seed, |env| async move {
            let directory = open(&env).await;
            let config = LogConfig { class: DurabilityClass::Written, ..small_segments() };
            let other = TopicPartition { partition: PartitionIndex(1), ..LOG };
            let mut durable = directory.create_log(other, LogConfig::default()).await.unwrap();
            let mut failing = directory.create_log(LOG, config).await.unwrap();
            while failing.segment_count() == 1 {
                append(&env, &mut failing, 1, &numbered(1, 12_000)).await;
            }
            write(&env, &mut failing).await.unwrap();
            append(&env, &mut durable, 1, &numbered(1, 9000)).await;
            // Two files: the first flush fails, a second would take seconds.
            let plan = failing.begin_flush();
            env.set_disk_faults(DiskFaults { flush_errors_ppm: ALWAYS, ..DiskFaults::default() });
            let flush = async {
                let outcome = plan.execute().await;
                failing.finish_flush(outcome, env.now()).unwrap_err();
            };
            let acknowledged = async {
                env.set_disk_faults(DiskFaults { slowness: 100_000, ..DiskFaults::default() });
                env.sleep(Duration::from_millis(50)).await;
                env.set_disk_faults(DiskFaults::default());
                durable.begin_write(env.now()).is_some()
            };
            let (_, acknowledged) = futures_lite::future::zip(flush, acknowledged).await;
            assert!(!acknowledged, "a durable write begins after the failed flush");
            assert_eq!(durable.flushed(), Offset(0));
        });
    }
}

/// A log with a segment to seal and another log. Does `before` pieces of maintenance, begins the next one, lets the other log's flush fail
/// if `fails`, and goes on with it; the manifests that there are then.
async fn manifests_after(env: sim::SimEnv, before: usize, fails: bool) -> usize {
    let directory = open(&env).await;
    let other = TopicPartition { partition: PartitionIndex(1), ..LOG };
    let config = LogConfig { class: DurabilityClass::Written, ..LogConfig::default() };
    let mut failing = directory.create_log(other, config).await.unwrap();
    append(&env, &mut failing, 1, &numbered(1, 9000)).await;
    write(&env, &mut failing).await.unwrap();
    let config = LogConfig { class: DurabilityClass::Written, ..small_segments() };
    let mut log = directory.create_log(LOG, config).await.unwrap();
    while log.segment_count() == 1 {
        append(&env, &mut log, 1, &numbered(1, 12_000)).await;
    }
    write(&env, &mut log).await.unwrap();
    for _ in 0..before {
        let Some(plan) = log.begin_maintenance(env.now(), env.wall_clock()) else { break };
        log.finish_maintenance(plan.execute().await, env.now()).unwrap();
    }
    let plan = log.begin_maintenance(env.now(), env.wall_clock());
    if fails {
        env.set_disk_faults(DiskFaults { flush_errors_ppm: ALWAYS, ..DiskFaults::default() });
        let outcome = failing.begin_flush().execute().await;
        failing.finish_flush(outcome, env.now()).unwrap_err();
        env.set_disk_faults(DiskFaults::default());
    }
    if let Some(plan) = plan {
        let result = log.finish_maintenance(plan.execute().await, env.now());
        assert!(fails || result.is_ok());
    }
    let names = env.disk().list(&log_path()).await.unwrap();
    names.iter().filter(|name| name.name.ends_with("manifest")).count()
}

#[test]
fn t22_a_segment_is_not_sealed_behind_a_failed_flush() {
    let manifests = |fails| (0..8).map(|before| sim::run(9, move |env| manifests_after(env, before, fails))).collect::<Vec<_>>();
    let sealed = manifests(false).into_iter().position(|count| count > 0).expect("one of the pieces of maintenance seals");
    let behind = manifests(true);
    assert!(behind[..=sealed].iter().all(|count| *count == 0), "manifests behind a failed flush: {behind:?}");
}

#[test]
fn t22_a_failed_sync_of_a_checkpoint_or_a_name_stops_every_log_of_its_directory() {
    for seed in 0..20 {
        for operation in ["checkpoint", "create", "delete", "rename"] {
            sim::run(seed, move |env| async move {
                let directory = open(&env).await;
                let config = LogConfig { class: DurabilityClass::Written, ..small_segments() };
                let names = [0, 1, 2].map(|partition| TopicPartition { partition: PartitionIndex(partition), ..LOG });
                let mut log = directory.create_log(names[0], config).await.unwrap();
                let mut other = directory.create_log(names[1], config).await.unwrap();
                // The next write of this one names a segment.
                while other.segment_count() == 1 {
                    append(&env, &mut other, 1, &numbered(1, 12_000)).await;
                }
                append(&env, &mut log, 1, &numbered(1, 9000)).await;
                write(&env, &mut log).await.unwrap();
                env.set_disk_faults(DiskFaults { flush_errors_ppm: ALWAYS, ..DiskFaults::default() });
                match operation {
                    "checkpoint" => {
                        // A second one waits for the first, and isn't begun any more.
                        let checkpoint = || directory.write_checkpoint(BrokerEpoch(1), Vec::new());
                        let (first, second) = futures_lite::future::zip(checkpoint(), checkpoint()).await;
                        assert!(first.is_err() && second.is_err());
                        assert_eq!(env.disk_counters().errors, 1);
                    }
                    "create" => drop(directory.create_log(names[2], config).await.err().unwrap()),
                    "delete" => {
                        drop(other);
                        drop(directory.delete_log(names[1]).await.unwrap_err());
                    }
                    _ => drop(write(&env, &mut other).await.unwrap_err()),
                }
                env.set_disk_faults(DiskFaults::default());
                let outcome = log.begin_flush().execute().await;
                log.finish_flush(outcome, env.now()).unwrap_err();
                assert_eq!(log.flushed(), Offset(0));
                assert!(log.begin_maintenance(env.now(), env.wall_clock()).is_none());
                directory.write_checkpoint(BrokerEpoch(1), Vec::new()).await.unwrap_err();
                directory.stop_cleanly(BrokerEpoch(1)).await.unwrap_err();
            });
        }
    }
}

#[test]
fn a_checkpoint_that_fails_before_it_is_flushed_stops_nothing() {
    let faults = [
        DiskFaults { name_errors_ppm: ALWAYS, ..DiskFaults::default() },
        DiskFaults { bytes_taken: 1 << 30, ..DiskFaults::default() },
    ];
    for faults in faults {
        sim::run(1, move |env| async move {
            let directory = open(&env).await;
            let mut log = directory.create_log(LOG, LogConfig::default()).await.unwrap();
            env.set_disk_faults(faults);
            directory.write_checkpoint(BrokerEpoch(1), vec![log.checkpoint_entry()]).await.unwrap_err();
            env.set_disk_faults(DiskFaults::default());
            append(&env, &mut log, 1, &numbered(0, 100)).await;
            settle(&env, &mut log).await.unwrap();
            directory.write_checkpoint(BrokerEpoch(1), vec![log.checkpoint_entry()]).await.unwrap();
            assert_eq!(log.flushed(), Offset(1));
        });
    }
}

#[test]
fn t23_checkpoints_that_fail_leave_the_last_one_that_counts() {
    for seed in 0..40 {
        sim::run(seed, |env| async move {
            let directory = open(&env).await;
            let (log, others) = checkpointed_among_many(&env, &directory).await;
            // Each of these may fail before its bytes are written or before they are flushed; the power then goes.
            env.set_disk_faults(DiskFaults { name_errors_ppm: ALWAYS * 3 / 4, ..DiskFaults::default() });
            let mut failed = 0;
            while failed < 6 {
                let result = directory.write_checkpoint(BrokerEpoch(1), entries_of(&log, &others)).await;
                failed = if result.is_err() { failed + 1 } else { 0 };
            }
            drop(others);
            env.set_disk_faults(DiskFaults::default());
            drop((log, directory));
            env.crash(Crash::PowerCut);
            let env = env.restart();
            let recovered = open(&env).await.recover_log(LOG, LogConfig::default(), &mut (), |_| {}).await.unwrap();
            assert!(recovered.scanned < 8 * 9200, "no checkpoint counted: {} bytes were scanned", recovered.scanned);
        });
    }
}

#[test]
fn a_batch_larger_than_a_part_of_the_free_space_is_taken_if_it_fits() {
    for (free, fits) in [(3 << 20, true), (400 << 10, false)] {
        sim::run(1, move |env| async move {
            let directory = open(&env).await;
            let mut log = directory.create_log(LOG, small_segments()).await.unwrap();
            for number in 0..4 {
                append(&env, &mut log, 1, &numbered(number, 200_000)).await;
            }
            settle(&env, &mut log).await.unwrap();
            let space = env.disk().space(&root()).await.unwrap();
            env.set_disk_faults(DiskFaults { bytes_taken: space.available - free, ..DiskFaults::default() });
            let result = try_append(&env, &mut log, 1, &numbered(9, 900_000)).await;
            assert_eq!((result.is_ok(), log.lacks_space()), (fits, !fits), "{result:?}");
        });
    }
}

#[test]
fn logs_of_topics_leave_a_reserve_and_the_metadata_log_takes_it() {
    sim::run(1, |env| async move {
        let directory = open(&env).await;
        directory.set_storage(StorageConfig { reserve_bytes: 8 << 20, ..StorageConfig::default() });
        let mut log = directory.create_log(LOG, small_segments()).await.unwrap();
        let metadata = TopicPartition { topic: METADATA_TOPIC, partition: PartitionIndex(0) };
        let mut metadata = directory.create_log(metadata, small_segments()).await.unwrap();
        let space = env.disk().space(&root()).await.unwrap();
        env.set_disk_faults(DiskFaults { bytes_taken: space.available - (12 << 20), ..DiskFaults::default() });
        let mut number = 0;
        let refused = loop {
            match try_append(&env, &mut log, 1, &numbered(number, 100_000)).await {
                Ok(_) => number += 1,
                Err(error) => break error,
            }
        };
        let left = env.disk().space(&root()).await.unwrap().available;
        assert!((8 << 20..9 << 20).contains(&left) && number > 10, "{left} after {number}: {refused}");
        let words = log.shortage().unwrap();
        assert!(words.starts_with("the drive of /data/") && words.contains("bytes short"), "{words}");
        assert!(words.contains("8388608 are kept in reserve"), "{words}");
        let other = TopicPartition { partition: PartitionIndex(7), ..LOG };
        let error = directory.create_log(other, LogConfig::default()).await.err().expect("a new log has a segment");
        assert!(error.to_string().contains("kept in reserve"), "{error}");
        // What keeps the host going has it: to the last block.
        for number in 0..60 {
            append(&env, &mut metadata, 1, &numbered(number, 100_000)).await;
        }
        settle(&env, &mut log).await.unwrap();
        directory.write_checkpoint(BrokerEpoch(1), vec![log.checkpoint_entry()]).await.unwrap();
        // And as soon as there is more than that, appends go on.
        env.set_disk_faults(DiskFaults::default());
        env.sleep(Duration::from_secs(2)).await;
        append(&env, &mut log, 1, &numbered(number, 100_000)).await;
        assert_eq!(log.shortage(), None);
        settle(&env, &mut log).await.unwrap();
        assert_eq!(numbers(&mut log, Offset(0)).await, (0..=number).collect::<Vec<_>>());
    });
}

#[test]
fn a_full_disk_refuses_appends_and_serves_on_when_space_returns() {
    sim::run(1, |env| async move {
        let directory = open(&env).await;
        let mut log = directory.create_log(LOG, small_segments()).await.unwrap();
        env.set_disk_faults(DiskFaults { bytes_taken: 1 << 30, ..DiskFaults::default() });
        let mut number = 0;
        let error = loop {
            match try_append(&env, &mut log, 1, &numbered(number, 20_000)).await {
                Ok(_) => number += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, AppendError::NotReady { .. }), "{error}");
        assert!(log.failure().is_none());
        write(&env, &mut log).await.unwrap();
        assert_eq!(numbers(&mut log, Offset(0)).await.len(), usize::try_from(number).unwrap());
        env.set_disk_faults(DiskFaults::default());
        env.sleep(Duration::from_secs(2)).await;
        append(&env, &mut log, 1, &numbered(number, 20_000)).await;
    });
}

/// How many files of the log have such a name.
async fn count_named(env: &SimEnv, ending: &str) -> usize {
    env.disk().list(&log_path()).await.unwrap().iter().filter(|entry| entry.name.ends_with(ending)).count()
}

/// A log of two segments, of which the first isn't sealed yet, on a disk that has just become full; and the number of its batches. With
/// `persisted` the index files have room for what comes, so that only the manifest lacks space.
async fn unsealed_on_a_full_disk(env: &SimEnv, directory: &Directory<SimEnv>, persisted: bool) -> (Log<SimEnv>, u64) {
    let mut log = directory.create_log(LOG, small_segments()).await.unwrap();
    let mut number = 0;
    while log.segment_count() == 1 {
        append(env, &mut log, 1, &numbered(number, 12_000)).await;
        number += 1;
        if number == 40 && persisted {
            env.sleep(Duration::from_secs(60)).await;
            settle(env, &mut log).await.unwrap();
        }
    }
    for _ in 0..2 {
        directory.write_checkpoint(BrokerEpoch(1), vec![log.checkpoint_entry()]).await.unwrap();
    }
    env.set_disk_faults(DiskFaults { bytes_taken: 1 << 30, ..DiskFaults::default() });
    (log, number)
}

#[test]
fn a_full_disk_postpones_indexes_and_manifests() {
    for seed in 0..20 {
        sim::run(seed, move |env| async move {
            let directory = open(&env).await;
            let other = TopicPartition { partition: PartitionIndex(1), ..LOG };
            drop(directory.create_log(other, small_segments()).await.unwrap());
            let (mut log, mut batches) = unsealed_on_a_full_disk(&env, &directory, seed % 2 == 1).await;
            for _ in 0..5 {
                settle(&env, &mut log).await.unwrap();
                assert_eq!(log.flushed(), log.log_end(), "what fits is taken and flushed");
                log.drop_cached();
                assert_eq!(numbers(&mut log, Offset(0)).await, (0..batches).collect::<Vec<_>>());
                append(&env, &mut log, 1, &numbered(batches, 12_000)).await;
                batches += 1;
                env.sleep(Duration::from_secs(40)).await;
                directory.write_checkpoint(BrokerEpoch(1), vec![log.checkpoint_entry()]).await.unwrap();
            }
            directory.delete_log(other).await.unwrap();
            settle(&env, &mut log).await.unwrap();
            assert!(log.begin_maintenance(env.now(), env.wall_clock()).is_none(), "it isn't tried again at once");
            assert_eq!((log.failure().is_none(), count_named(&env, ".manifest").await), (true, 0));
            let space_returns = seed % 4 < 2;
            if space_returns {
                env.set_disk_faults(DiskFaults::default());
                env.sleep(Duration::from_secs(2)).await;
                settle(&env, &mut log).await.unwrap();
                assert_eq!(count_named(&env, ".manifest").await, 1);
            }
            drop((log, directory));
            env.crash(Crash::PowerCut);
            let env = env.restart();
            env.set_disk_faults(DiskFaults::default());
            let recovered = open(&env).await.recover_log(LOG, small_segments(), &mut (), |_| {}).await.unwrap();
            assert_eq!(recovered.scanned < 1 << 19, space_returns, "{} bytes were scanned", recovered.scanned);
            let mut log = recovered.log;
            assert_eq!(numbers(&mut log, Offset(0)).await, (0..batches).collect::<Vec<_>>());
            assert_eq!(count_named(&env, ".tmp").await, 0);
            settle(&env, &mut log).await.unwrap();
            assert_eq!(count_named(&env, ".manifest").await, 1);
        });
    }
}

#[test]
fn t35_every_batch_that_comes_from_the_disk_is_checked() {
    sim::run(1, |env| async move {
        let directory = open(&env).await;
        let mut log = directory.create_log(LOG, LogConfig::default()).await.unwrap();
        for number in 0..5 {
            append(&env, &mut log, 1, &numbered(number, 6000)).await;
        }
        settle(&env, &mut log).await.unwrap();
        log.drop_cached();
        let path = root().join("topics").join(LOG.topic.to_string()).join("0/00000000000000000000.log");
        let file = env.disk().file(path, false);
        let (_, chunk) = file.read(env.region().take(4096).unwrap(), 8192, 4096).await;
        let mut bytes = chunk.as_bytes().to_vec();
        bytes[2000] ^= 1;
        let mut chunk = env.region().take(4096).unwrap();
        chunk.append(&bytes);
        file.write(chunk.freeze(), 8192, Durability::Device).await.unwrap();
        let request = ReadRequest { offset: Offset(0), bound: Offset(5), bytes_max: 1 << 20, first_batch_whole: true };
        // What lies before the damage is served; who goes on from there gets the error.
        assert_eq!(read(&mut log, request).await.unwrap().1, Offset(1));
        let error = read(&mut log, ReadRequest { offset: Offset(1), ..request }).await.map(|(_, next)| next).unwrap_err();
        let size = u64::try_from(numbered(0, 6000).len()).unwrap();
        assert!(matches!(error, ReadError::Corrupt { position, fault: Fault::Crc { .. }, .. } if position == size), "{error}");
    });
}

#[test]
fn t35_stamping_leaves_the_crc_as_the_producer_made_it() {
    sim::run(1, |env| async move {
        let directory = open(&env).await;
        let mut log = directory.create_log(LOG, LogConfig::default()).await.unwrap();
        append(&env, &mut log, 9, &numbered(0, 100)).await;
        let sent = numbered(1, 100);
        append(&env, &mut log, 9, &sent).await;
        settle(&env, &mut log).await.unwrap();
        log.drop_cached();
        let bytes = read_all(&mut log, Offset(1), 1 << 20).await.unwrap();
        let batch = batches(&bytes)[0];
        assert_eq!((batch.base_offset(), batch.leader_epoch().0), (Offset(1), 9));
        assert_eq!(batch.crc(), BatchView::split(&sent).unwrap().0.crc());
        assert_eq!(bytes[21..], sent[21..]);
    });
}
