//! Offsets by time, and by offset through the indexes, against a linear scan.
#![allow(clippy::unwrap_used, reason = "a test fails where it must")]

mod support;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use protocol::batch::BatchView;
use protocol::ids::{Offset, Timestamp};
use runtime::{Canary, Env};
use sim::{Options, SimEnv};
use storage::{Log, LogConfig, LookupPlan, LookupStep, ReadRequest};
use support::*;

async fn look(log: &mut Log<SimEnv>, timestamp: i64, bound: Offset) -> Option<(i64, i64)> {
    let mut step = log.begin_lookup(Timestamp(timestamp), bound).unwrap();
    loop {
        match step {
            LookupStep::Ready(found) => return found.map(|(offset, timestamp)| (offset.0, timestamp.0)),
            LookupStep::Disk(plan) => {
                let outcome = plan.execute().await;
                step = log.finish_lookup(outcome).unwrap();
            }
        }
    }
}

fn first_at(all: &[i64], timestamp: i64) -> Option<(i64, i64)> {
    let index = all.iter().position(|found| *found >= timestamp)?;
    Some((i64::try_from(index).unwrap(), all[index]))
}

/// A log of several segments with timestamps that go back and forth; all of them, by offset.
async fn disordered(env: &SimEnv, log: &mut Log<SimEnv>, batches: u64) -> Vec<i64> {
    let mut all = Vec::new();
    for step in 0..batches {
        let center = i64::try_from(1_000_000 + step * 50).unwrap();
        let count = env.workload().between(1, 6);
        let timestamps: Vec<i64> =
            (0..count).map(|_| center + i64::try_from(env.workload().below(2000)).unwrap() - 1000).collect();
        append(env, log, 1, &batch_at(&timestamps, 1500)).await;
        all.extend(timestamps);
    }
    settle(env, log).await.unwrap();
    all
}

#[test]
fn t34_a_time_finds_the_first_record_whatever_the_order_of_timestamps() {
    for seed in 0..5 {
        sim::run(seed, |env| async move {
            let directory = open(&env).await;
            let config = small_segments();
            let mut log = directory.create_log(LOG, config).await.unwrap();
            assert_eq!(look(&mut log, 0, Offset(0)).await, None, "an empty log has none");
            let all = disordered(&env, &mut log, 700).await;
            assert!(log.segment_count() > 2);
            let end = log.log_end();
            drop(log);
            for reopened in [false, true] {
                let mut log = directory.recover_log(LOG, config, &mut (), |_| {}).await.unwrap().log;
                for _ in 0..150 {
                    let timestamp = i64::try_from(env.workload().between(998_000, 1_037_000)).unwrap();
                    assert_eq!(look(&mut log, timestamp, end).await, first_at(&all, timestamp), "{timestamp} {reopened}");
                }
                let max = *all.iter().max().unwrap();
                assert_eq!(look(&mut log, max + 1, end).await, None, "nothing is that young");
                assert_eq!(look(&mut log, i64::MIN, end).await, Some((0, all[0])));
            }
        });
    }
}

#[test]
fn t34_a_time_finds_nothing_at_or_above_the_bound() {
    sim::run(9, |env| async move {
        let directory = open(&env).await;
        let mut log = directory.create_log(LOG, LogConfig::default()).await.unwrap();
        for timestamp in [10, 20, 30] {
            append(&env, &mut log, 1, &batch_at(&[timestamp, timestamp + 5], 100)).await;
        }
        assert_eq!(look(&mut log, 10, Offset(6)).await, None, "what isn't written isn't found");
        settle(&env, &mut log).await.unwrap();
        assert_eq!(look(&mut log, 16, Offset(6)).await, Some((2, 20)));
        assert_eq!(look(&mut log, 25, Offset(6)).await, Some((3, 25)));
        assert_eq!(look(&mut log, 21, Offset(2)).await, None);
    });
}

/// A log of `count` batches of `bytes` bytes, the n-th with the timestamps 10 n and 10 n + 5, all on disk only.
async fn stepped(env: &SimEnv, count: i64, bytes: usize) -> Rc<RefCell<Log<SimEnv>>> {
    let directory = open(env).await;
    let mut log = directory.create_log(LOG, LogConfig::default()).await.unwrap();
    for step in 0..count {
        append(env, &mut log, 1, &batch_at(&[10 * step, 10 * step + 5], bytes / 2)).await;
    }
    settle(env, &mut log).await.unwrap();
    log.drop_cached();
    Rc::new(RefCell::new(log))
}

fn plan(log: &Rc<RefCell<Log<SimEnv>>>, timestamp: i64) -> LookupPlan<SimEnv> {
    let bound = log.borrow().log_end();
    match log.borrow_mut().begin_lookup(Timestamp(timestamp), bound).unwrap() {
        LookupStep::Disk(plan) => plan,
        LookupStep::Ready(found) => panic!("{found:?} without the disk"),
    }
}

#[test]
fn lookups_take_one_thread_off_the_core_and_the_others_wait_their_turn() {
    for seed in 0..10 {
        sim::run(seed, |env| async move {
            let log = stepped(&env, 40, 20_000).await;
            let found: Rc<RefCell<BTreeMap<i64, Offset>>> = Rc::default();
            for step in 0..40 {
                let (plan, log, found, env_of_task) = (plan(&log, 10 * step + 1), log.clone(), found.clone(), env.clone());
                // Some are given up while they wait or run.
                let patience = Duration::from_micros(if step % 3 == 0 { env.workload().below(5000) } else { 60_000_000 });
                env.spawn(async move {
                    let given_up = async {
                        env_of_task.sleep(patience).await;
                        None
                    };
                    let outcome = futures_lite::future::or(async { Some(plan.execute().await) }, given_up).await;
                    let step_found = outcome.map(|outcome| log.borrow_mut().finish_lookup(outcome).unwrap());
                    if let Some(LookupStep::Ready(Some((offset, _)))) = step_found {
                        found.borrow_mut().insert(step, offset);
                    }
                });
            }
            env.sleep(Duration::from_secs(30)).await;
            assert_eq!(env.offloaded_at_most(), 1);
            for step in (0..40).filter(|step| step % 3 != 0) {
                assert_eq!(found.borrow()[&step], Offset(2 * step + 1));
            }
        });
    }
}

#[test]
fn lookups_that_wait_hold_no_memory() {
    sim::run(1, |env| async move {
        let bytes = 3 << 20;
        let log = stepped(&env, 8, bytes).await;
        env.slow_offloads(100_000);
        let before = env.region().free_bytes();
        for step in 0..8 {
            let plan = plan(&log, 10 * step);
            env.spawn(async move { drop(plan.execute().await) });
            env.sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(env.offloaded_at_most(), 1);
        let held = before - env.region().free_bytes();
        assert!(held <= 2 * bytes, "{held} bytes are held");
    });
}

#[test]
fn append_times_are_found_too() {
    sim::run(9, |env| async move {
        let directory = open(&env).await;
        let mut log = directory.create_log(LOG, LogConfig::default()).await.unwrap();
        let bytes = batch_at(&[5, 6], 100);
        let (batch, _) = BatchView::split(&bytes).unwrap();
        let with = storage::Stamp { log_append_time: true, ..stamp(&env, 1) };
        let appended = log.begin_append(&batch, with).unwrap();
        assert_eq!(appended.timestamp, with.wall);
        settle(&env, &mut log).await.unwrap();
        assert_eq!(look(&mut log, with.wall.0, Offset(2)).await, Some((0, with.wall.0)));
        log.drop_cached();
        let bytes = read_all(&mut log, Offset(0), 1 << 20).await.unwrap();
        assert_eq!(batches(&bytes)[0].max_timestamp(), with.wall);
    });
}

/// Reads at random offsets of a log of several segments, all from the disk; whether each gave the batch with its offset.
async fn offsets_are_found(env: SimEnv) -> bool {
    let directory = open(&env).await;
    let mut log = directory.create_log(LOG, small_segments()).await.unwrap();
    disordered(&env, &mut log, 700).await;
    let all = read_all(&mut log, Offset(0), 1 << 20).await.unwrap();
    let all: Vec<(i64, i64)> = batches(&all).iter().map(|batch| (batch.base_offset().0, batch.last_offset().0)).collect();
    for _ in 0..300 {
        log.drop_cached();
        let (base, last) = all[env.workload().index(all.len())];
        let offset =
            i64::try_from(env.workload().between(u64::try_from(base).unwrap(), u64::try_from(last).unwrap() + 1)).unwrap();
        let request = ReadRequest { offset: Offset(offset), bound: log.log_end(), bytes_max: 1, first_batch_whole: true };
        let expected = if offset > last { None } else { Some(base) };
        let Ok((bytes, _)) = read(&mut log, request).await else { return false };
        if let Some(expected) = expected
            && batches(&bytes).first().map(|batch| batch.base_offset().0) != Some(expected)
        {
            return false;
        }
    }
    true
}

#[test]
fn indexes_agree_with_a_scan() {
    for seed in 0..10 {
        assert!(sim::run(seed, offsets_are_found), "seed {seed}");
    }
}

#[test]
fn an_index_that_is_one_entry_behind_is_noticed() {
    let options = Options { canaries: vec![Canary::IndexOneEntryBehind], ..Options::new(1) };
    assert!(!sim::run_with(options, offsets_are_found).value);
}
