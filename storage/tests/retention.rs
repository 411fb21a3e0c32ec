//! Whole segments leave a log by age and size; what is kept is there after any crash, and what has left frees its space.
#![allow(clippy::unwrap_used, reason = "a test fails where it must")]

mod support;

use std::time::Duration;

use protocol::batch::BatchView;
use protocol::ids::{BrokerEpoch, DurabilityClass, Offset, Timestamp};
use runtime::{Disk, Env};
use sim::{Crash, SimEnv};
use storage::{Directory, Log, LogConfig, LookupStep, ProducerReplay, ReadError, ReadRequest, ReadStep, ReplayedBatch};
use support::*;

/// Nobody's producers.
struct Nobody;

impl ProducerReplay for Nobody {
    fn restore(&mut self, _: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn replay(&mut self, _: ReplayedBatch) {}

    fn snapshot(&self) -> Vec<u8> {
        Vec::new()
    }
}

fn by_size(bytes: u64) -> LogConfig {
    LogConfig { retention_bytes: Some(bytes), ..small_segments() }
}

fn by_age(ms: u64) -> LogConfig {
    LogConfig { retention_ms: Some(ms), ..small_segments() }
}

/// Moves the start to where retention has it, up to the limit, or what is on stable storage.
fn retain(env: &SimEnv, log: &mut Log<SimEnv>, limit: Option<Offset>) -> bool {
    let start = log.retention_start(env.wall_clock(), limit.unwrap_or(log.flushed()));
    if let Some(start) = start {
        log.plan_start(start);
    }
    start.is_some()
}

async fn checkpoint(directory: &Directory<SimEnv>, log: &mut Log<SimEnv>) {
    let (entry, start) = (log.checkpoint_entry(), log.planned_start());
    directory.write_checkpoint(BrokerEpoch(1), vec![entry]).await.unwrap();
    log.start_is_durable(start);
}

/// Removes what may be removed; how many segments.
async fn remove(log: &mut Log<SimEnv>) -> usize {
    let mut removed = 0;
    while let Some(plan) = log.begin_removal() {
        let outcome = plan.execute().await;
        log.finish_removal(outcome).unwrap();
        removed += 1;
    }
    removed
}

/// All that an owner does each second.
async fn round(env: &SimEnv, directory: &Directory<SimEnv>, log: &mut Log<SimEnv>) {
    settle(env, log).await.unwrap();
    while retain(env, log, None) {
        checkpoint(directory, log).await;
        remove(log).await;
        maintain(env, log).await.unwrap();
    }
    remove(log).await;
}

async fn files(env: &SimEnv) -> Vec<String> {
    env.disk().list(&log_path()).await.unwrap().into_iter().map(|entry| entry.name).collect()
}

#[test]
fn a_size_keeps_as_many_whole_segments_as_it_needs() {
    sim::run(1, |env| async move {
        let directory = open(&env).await;
        let mut log = directory.create_log(LOG, by_size(3 << 20)).await.unwrap();
        for number in 0..1000 {
            append(&env, &mut log, 1, &numbered(number, 9000)).await;
            if number % 10 == 0 {
                round(&env, &directory, &mut log).await;
            }
        }
        round(&env, &directory, &mut log).await;
        let kept = log.size_bytes();
        assert!((3 << 20..4 << 20).contains(&kept), "{kept}");
        let start = log.log_start();
        assert_eq!(numbers(&mut log, start).await, (u64::try_from(start.0).unwrap()..1000).collect::<Vec<_>>());
        let bases = files(&env).await.into_iter().filter(|name| name.ends_with(".log")).collect::<Vec<_>>();
        assert_eq!(bases.len(), log.segment_count(), "{bases:?}");
        assert_eq!(bases[0], format!("{:020}.log", start.0));
        let metrics = log.metrics().snapshot();
        assert_eq!(metrics.removed_bytes, metrics.appended_bytes - kept);
        // A changed setting acts at once.
        log.set_config(by_size(0));
        round(&env, &directory, &mut log).await;
        assert_eq!(log.segment_count(), 1, "the active segment stays");
    });
}

#[test]
fn t33_a_quiet_log_ages_out_whole() {
    sim::run(2, |env| async move {
        let directory = open(&env).await;
        let mut log = directory.create_log(LOG, by_age(60_000)).await.unwrap();
        let wall = env.wall_clock().0;
        for _ in 0..300 {
            append(&env, &mut log, 1, &batch_at(&[wall, wall - 5], 6000)).await;
        }
        env.sleep(Duration::from_secs(59)).await;
        round(&env, &directory, &mut log).await;
        assert_eq!(log.log_start(), Offset(0), "not yet");
        env.sleep(Duration::from_secs(2)).await;
        round(&env, &directory, &mut log).await;
        assert_eq!((log.log_start(), log.log_end(), log.size_bytes()), (Offset(600), Offset(600), 0));
        drop((log, directory));
        env.crash(Crash::PowerCut);
        let env = env.restart();
        let directory = open(&env).await;
        let mut log = directory.recover_log(LOG, by_age(60_000), &mut Nobody, |_| {}).await.unwrap().log;
        assert_eq!((log.log_start(), log.log_end()), (Offset(600), Offset(600)));
        append(&env, &mut log, 2, &numbered(600, 100)).await;
        settle(&env, &mut log).await.unwrap();
        assert_eq!(numbers(&mut log, Offset(600)).await, [600]);
    });
}

#[test]
fn t32_ages_count_from_the_append_where_timestamps_are_far_from_it() {
    for (timestamp, seed) in [(i64::MAX - 1, 3), (4_000_000_000_000, 4), (0, 5), (5, 6), (-1, 7)] {
        sim::run(seed, move |env| async move {
            let directory = open(&env).await;
            let mut log = directory.create_log(LOG, by_age(60_000)).await.unwrap();
            for number in 0..150 {
                append(&env, &mut log, 1, &batch_at(&[timestamp], 12_000)).await;
                if number == 149 {
                    // Of sealed segments it has to be read, and of what a recovery has scanned it counts from there.
                    settle(&env, &mut log).await.unwrap();
                    checkpoint(&directory, &mut log).await;
                }
            }
            drop((log, directory));
            env.crash(Crash::Kill);
            let env = env.restart();
            let directory = open(&env).await;
            let mut log = directory.recover_log(LOG, by_age(60_000), &mut Nobody, |_| {}).await.unwrap().log;
            env.sleep(Duration::from_secs(55)).await;
            round(&env, &directory, &mut log).await;
            assert_eq!(log.log_start(), Offset(0), "{timestamp}");
            env.sleep(Duration::from_secs(10)).await;
            round(&env, &directory, &mut log).await;
            assert_eq!(log.log_start(), Offset(150), "{timestamp}");
        });
    }
}

#[test]
fn t31_nothing_leaves_above_the_limit() {
    sim::run(8, |env| async move {
        let directory = open(&env).await;
        let mut log = directory.create_log(LOG, by_size(0)).await.unwrap();
        for number in 0..400 {
            append(&env, &mut log, 1, &numbered(number, 9000)).await;
        }
        settle(&env, &mut log).await.unwrap();
        for limit in [0, 1, 115, 116, 117, 118, 250, 400] {
            retain(&env, &mut log, Some(Offset(limit)));
            assert!(log.planned_start() <= Offset(limit), "{} above {limit}", log.planned_start());
        }
        assert!(log.planned_start() > Offset(250));
    });
}

#[test]
fn files_go_once_a_checkpoint_says_so_and_reads_end_with_the_log_start() {
    sim::run(9, |env| async move {
        let directory = open(&env).await;
        let mut log = directory.create_log(LOG, by_size(1 << 20)).await.unwrap();
        for number in 0..400 {
            append(&env, &mut log, 1, &numbered(number, 9000)).await;
        }
        settle(&env, &mut log).await.unwrap();
        log.drop_cached();
        let request = ReadRequest { offset: Offset(3), bound: Offset(400), bytes_max: 1000, first_batch_whole: true };
        let Ok(ReadStep::Disk(under_way)) = log.begin_read(request) else { panic!("nothing is in memory") };
        let before = files(&env).await;
        assert!(retain(&env, &mut log, None));
        assert_eq!(remove(&mut log).await, 0, "no checkpoint says it");
        assert_eq!(files(&env).await, before);
        let entry = log.checkpoint_entry();
        let start = log.planned_start();
        assert!(log.begin_read(request).is_ok(), "what is told to be gone stays gone, also after a crash");
        directory.write_checkpoint(BrokerEpoch(1), vec![entry]).await.unwrap();
        log.start_is_durable(start);
        let refused = log.begin_read(request).err();
        assert!(matches!(refused, Some(ReadError::OutOfRange { asked: Offset(3), .. })), "{refused:?}");
        assert!(remove(&mut log).await > 0);
        let left = files(&env).await;
        assert!(!left.iter().any(|name| name.starts_with("00000000000000000000.")), "{left:?}");
        // One that was planned before ends, with the bytes or without.
        match log.finish_read(under_way.execute().await) {
            Ok(ReadStep::Ready(result)) => assert_eq!(number_of(&BatchView::split(&joined(&result.slices)).unwrap().0), 3),
            Ok(ReadStep::Disk(_)) => panic!("a read ends"),
            Err(error) => assert!(matches!(error, ReadError::Io { .. }), "{error}"),
        }
    });
}

#[test]
fn a_segment_that_is_being_removed_is_never_one_of_the_log_in_part() {
    sim::run(11, |env| async move {
        let directory = open(&env).await;
        let mut log = directory.create_log(LOG, by_size(1 << 20)).await.unwrap();
        for number in 0..400 {
            append(&env, &mut log, 1, &numbered(number, 9000)).await;
        }
        settle(&env, &mut log).await.unwrap();
        retain(&env, &mut log, None);
        checkpoint(&directory, &mut log).await;
        let removal = async {
            remove(&mut log).await;
        };
        let watch = async {
            loop {
                let names = files(&env).await;
                for base in names.iter().filter_map(|name| name.strip_suffix(".log")) {
                    let sealed = base < "00000000000000000300";
                    let whole =
                        ["manifest", "index", "timeindex"].iter().all(|extension| names.contains(&format!("{base}.{extension}")));
                    assert!(whole || !sealed, "{base}.log without all of its files: {names:?}");
                }
            }
        };
        futures_lite::future::or(removal, watch).await;
        assert_eq!(log.metrics().snapshot().removed_segments, 2);
    });
}

#[test]
fn t94_appends_go_on_while_a_segment_is_removed() {
    sim::run(10, |env| async move {
        let directory = open(&env).await;
        let mut log = directory.create_log(LOG, by_size(1 << 20)).await.unwrap();
        for number in 0..400 {
            append(&env, &mut log, 1, &numbered(number, 9000)).await;
        }
        settle(&env, &mut log).await.unwrap();
        assert!(retain(&env, &mut log, None));
        checkpoint(&directory, &mut log).await;
        let slow = log.begin_removal().unwrap();
        assert!(log.begin_removal().is_none(), "one at a time");
        let segments = log.segment_count();
        for number in 400..800 {
            append(&env, &mut log, 1, &numbered(number, 9000)).await;
        }
        settle(&env, &mut log).await.unwrap();
        assert!(log.segment_count() > segments + 2, "segments roll and are sealed meanwhile");
        let outcome = slow.execute().await;
        log.finish_removal(outcome).unwrap();
        let start = log.log_start();
        assert_eq!(numbers(&mut log, start).await.last(), Some(&799));
    });
}

#[test]
fn t29_a_log_that_begins_inside_a_batch_gives_the_whole_batch() {
    // In a sealed segment, and in the last one.
    for (start, crash) in [(Offset(400), Crash::Kill), (Offset(898), Crash::PowerCut)] {
        sim::run(12, move |env| async move {
            let directory = open(&env).await;
            let mut log = directory.create_log(LOG, by_size(1 << 30)).await.unwrap();
            for _ in 0..300 {
                append(&env, &mut log, 1, &batch_at(&[30, 10, 20], 3000)).await;
            }
            settle(&env, &mut log).await.unwrap();
            log.plan_start(start);
            checkpoint(&directory, &mut log).await;
            remove(&mut log).await;
            let whole = |read: Result<(Vec<u8>, Offset), ReadError>| {
                let (bytes, next) = read.unwrap();
                let first = BatchView::split(&bytes).unwrap().0;
                (first.base_offset(), first.record_count(), next)
            };
            let batch = Offset(start.0 / 3 * 3);
            let request = ReadRequest { offset: start, bound: Offset(900), bytes_max: 1, first_batch_whole: true };
            assert_eq!(whole(read(&mut log, request).await), (batch, 3, batch.plus(3)), "out of memory or not");
            log.drop_cached();
            assert_eq!(whole(read(&mut log, request).await), (batch, 3, batch.plus(3)), "from the disk");
            let below = log.begin_read(ReadRequest { offset: Offset(start.0 - 1), ..request }).err();
            assert!(matches!(below, Some(ReadError::OutOfRange { log_start, .. }) if log_start == start), "{below:?}");
            // A record of the batch that lies below isn't found by its time.
            for (time, expected) in [(0, (start, 10)), (15, (start.plus(1), 20))] {
                let step = log.begin_lookup(Timestamp(time), Offset(900)).unwrap();
                let LookupStep::Disk(plan) = step else { panic!("it is on disk") };
                let LookupStep::Ready(found) = log.finish_lookup(plan.execute().await).unwrap() else { panic!("one round") };
                assert_eq!(found.map(|(offset, timestamp)| (offset, timestamp.0)), Some(expected), "at {time}");
            }
            env.crash(crash);
            let env = env.restart();
            let directory = open(&env).await;
            let mut again = directory.recover_log(LOG, by_size(1 << 30), &mut Nobody, |_| {}).await.unwrap().log;
            assert_eq!((again.log_start(), again.log_end()), (start, Offset(900)));
            assert_eq!(whole(read(&mut again, request).await), (batch, 3, batch.plus(3)), "after a crash");
        });
    }
}

#[test]
fn a_log_begins_later_only_where_all_below_is_on_stable_storage() {
    sim::run(13, |env| async move {
        let directory = open(&env).await;
        let written = LogConfig { class: DurabilityClass::Written, ..by_size(1 << 30) };
        let mut log = directory.create_log(LOG, written).await.unwrap();
        for number in 0..20 {
            append(&env, &mut log, 1, &numbered(number, 100)).await;
        }
        write(&env, &mut log).await.unwrap();
        assert!(log.flushed() < Offset(10), "nothing flushes it before its time");
        log.plan_start(Offset(10));
        assert_eq!(
            log.planned_start(),
            Offset(0),
            "a crash may take what is written, and then the log would end before it begins"
        );
        maintain(&env, &mut log).await.unwrap();
        assert_eq!((log.flushed(), log.planned_start()), (Offset(20), Offset(10)), "maintenance flushes at once");
        checkpoint(&directory, &mut log).await;
        assert_eq!(log.log_start(), Offset(10));
    });
}

/// Appends, rounds and crashes in any order: the log never ends or begins where it mustn't, and nothing is left behind.
fn history(seed: u64) {
    sim::run(seed, move |env| async move {
        let mut env = env;
        let mut durable_start = Offset(0);
        let mut acknowledged = Offset(0);
        let config = if seed.is_multiple_of(2) { by_size(2 << 20) } else { by_age(20_000) };
        for start in 1..6 {
            let directory = open(&env).await;
            let mut log = if start == 1 {
                directory.create_log(LOG, config).await.unwrap()
            } else {
                directory.recover_log(LOG, config, &mut Nobody, |_| {}).await.unwrap().log
            };
            assert!(log.log_start() >= durable_start, "the start went back from {durable_start} to {}", log.log_start());
            assert!(log.log_end() >= acknowledged, "the end went back from {acknowledged} to {}", log.log_end());
            let from = log.log_start();
            let there = numbers(&mut log, from).await;
            assert_eq!(there, (u64::try_from(from.0).unwrap()..u64::try_from(log.log_end().0).unwrap()).collect::<Vec<_>>());
            for _ in 0..env.workload().below(120) {
                match env.workload().below(12) {
                    0..6 => {
                        let bytes = [100, 3000, 20_000, 150_000][env.workload().index(4)];
                        let number = u64::try_from(log.log_end().0).unwrap();
                        let age = i64::try_from(env.workload().below(30_000)).unwrap();
                        let mut batch = numbered(number, bytes);
                        set_timestamp(&mut batch, env.wall_clock().0 - age);
                        append(&env, &mut log, start, &batch).await;
                    }
                    6 | 7 => write(&env, &mut log).await.unwrap(),
                    8 => maintain(&env, &mut log).await.unwrap(),
                    9 => env.sleep(Duration::from_millis(env.workload().below(20_000))).await,
                    10 if env.workload().chance(1, 2) => drop(retain(&env, &mut log, None)),
                    10 => {
                        // Records are deleted: the log begins anywhere, maybe inside a segment, and where nothing is flushed yet.
                        let range = log.progress().written.0 - log.log_start().0;
                        let further = env.workload().below(u64::try_from(range).unwrap() + 1);
                        log.plan_start(log.log_start().plus(u32::try_from(further).unwrap()));
                    }
                    _ => {
                        checkpoint(&directory, &mut log).await;
                        durable_start = log.log_start();
                        if let Some(plan) = log.begin_removal() {
                            let removal = async { Some(plan.execute().await) };
                            let limit = Duration::from_micros(env.workload().below(2000));
                            let crash = async {
                                env.sleep(limit).await;
                                None
                            };
                            match futures_lite::future::or(removal, crash).await {
                                Some(outcome) => log.finish_removal(outcome).unwrap(),
                                None => break,
                            }
                        }
                    }
                }
                acknowledged = log.flushed();
            }
            drop((log, directory));
            env.crash(if env.workload().chance(1, 2) { Crash::PowerCut } else { Crash::Kill });
            env = env.restart();
        }
        let directory = open(&env).await;
        let mut log = directory.recover_log(LOG, by_size(0), &mut Nobody, |_| {}).await.unwrap().log;
        round(&env, &directory, &mut log).await;
        let bases = files(&env).await.into_iter().filter_map(|name| name.get(..20)?.parse::<i64>().ok()).collect::<Vec<_>>();
        // The one that the log begins in may begin below.
        let below: std::collections::BTreeSet<_> = bases.iter().filter(|base| **base < log.log_start().0).collect();
        assert!(below.len() <= 1, "left behind {bases:?} below {}", log.log_start());
    });
}

/// Gives a batch of one record another timestamp.
fn set_timestamp(batch: &mut [u8], timestamp: i64) {
    batch[27..35].copy_from_slice(&timestamp.to_be_bytes());
    batch[35..43].copy_from_slice(&timestamp.to_be_bytes());
    let crc = crc32c::crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
    assert_eq!(BatchView::split(batch).unwrap().0.max_timestamp(), Timestamp(timestamp));
}

#[test]
fn what_is_kept_is_there_after_any_crash() {
    for seed in 0..300 {
        history(seed);
    }
}
