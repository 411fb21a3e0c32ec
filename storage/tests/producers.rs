//! Snapshots of idempotent producers: with what recovery tells besides, they are the state of the log that is there, no more and no less.
#![allow(clippy::unwrap_used, reason = "a test fails where it must")]

mod support;

use protocol::batch::{BatchView, ProducerFields, stamp_producer};
use protocol::ids::{BrokerEpoch, Offset, ProducerEpoch, ProducerId, Sequence};
use runtime::{Disk, Env};
use sim::{Crash, SimEnv};
use storage::{AppendError, Log, LogConfig, ProducerReplay, ReplayedBatch};
use support::*;

/// A state that can tell any difference: the offsets of all batches that it was told of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Told(Vec<i64>);

impl Told {
    fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|base| base.to_le_bytes()).collect()
    }
}

impl ProducerReplay for Told {
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
        assert!(self.0.is_empty(), "a snapshot comes first");
        self.0 = snapshot.as_chunks().0.iter().map(|base| i64::from_le_bytes(*base)).collect();
        Ok(())
    }

    fn replay(&mut self, batch: ReplayedBatch) {
        assert_eq!((batch.producer, batch.epoch, batch.records), (ProducerId(5), ProducerEpoch(0), 1));
        self.0.push(batch.base.0);
    }

    fn snapshot(&self) -> Vec<u8> {
        self.bytes()
    }
}

fn batch(number: u64, bytes: usize) -> Vec<u8> {
    let mut batch = numbered(number, bytes);
    let base_sequence = Sequence(i32::try_from(number).unwrap());
    let fields =
        ProducerFields { producer_id: ProducerId(5), producer_epoch: ProducerEpoch(0), base_sequence, ..ProducerFields::NONE };
    stamp_producer(&mut batch, fields);
    batch
}

fn note_roll(log: &mut Log<SimEnv>, told: &Told) {
    if log.wants_producers_at_roll() {
        log.note_producers_at_roll(told.bytes());
    }
}

async fn maintain_once(env: &SimEnv, log: &mut Log<SimEnv>, told: &Told) -> bool {
    if log.wants_producers() {
        log.note_producers(told.bytes());
    }
    let plan = log.begin_maintenance(env.now(), env.wall_clock());
    note_roll(log, told);
    let Some(plan) = plan else { return false };
    let outcome = plan.execute().await;
    log.finish_maintenance(outcome, env.now()).unwrap();
    true
}

async fn produce(env: &SimEnv, log: &mut Log<SimEnv>, told: &mut Told, epoch: i32, number: u64, bytes: usize) {
    let batch = batch(number, bytes);
    let view = BatchView::whole(&batch).unwrap();
    loop {
        match log.begin_append(&view, stamp(env, epoch)) {
            Ok(appended) => {
                note_roll(log, told);
                told.0.push(appended.base.0);
                return;
            }
            Err(AppendError::NotReady { .. }) => {
                write(env, log).await.unwrap();
                maintain_once(env, log, told).await;
            }
            Err(AppendError::TooManyUnwritten { .. } | AppendError::NoMemory { .. }) => write(env, log).await.unwrap(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Half of all histories keep nothing that can go.
fn config(seed: u64) -> LogConfig {
    LogConfig { retention_bytes: seed.is_multiple_of(2).then_some(0), ..small_segments() }
}

async fn retain(env: &SimEnv, log: &mut Log<SimEnv>) {
    if let Some(start) = log.retention_start(env.wall_clock(), log.flushed()) {
        log.plan_start(start);
    }
    if let Some(plan) = log.begin_removal() {
        let outcome = plan.execute().await;
        log.finish_removal(outcome).unwrap();
    }
}

fn history(seed: u64) {
    sim::run(seed, move |env| async move {
        let mut env = env;
        let mut number = 0;
        let mut told = Told::default();
        for start in 1..6 {
            let directory = open(&env).await;
            let mut log = if start == 1 {
                directory.create_log(LOG, config(seed)).await.unwrap()
            } else {
                let mut found = Told::default();
                let log = directory.recover_log(LOG, config(seed), &mut found, |_| {}).await.unwrap().log;
                let there: Vec<i64> = (0..log.log_end().0).collect();
                assert_eq!(found.0, there, "start {start}: one record a batch, each of the producer");
                told = found;
                log
            };
            for _ in 0..env.workload().below(80) {
                match env.workload().below(10) {
                    0..6 => {
                        let bytes = [100, 3000, 20_000, 150_000][env.workload().index(4)];
                        produce(&env, &mut log, &mut told, start, number, bytes).await;
                        number += 1;
                    }
                    6 | 7 => write(&env, &mut log).await.unwrap(),
                    8 => drop(maintain_once(&env, &mut log, &told).await),
                    _ => env.sleep(std::time::Duration::from_millis(env.workload().below(40_000))).await,
                }
                if env.workload().chance(1, 6) {
                    let (entry, start) = (log.checkpoint_entry(), log.planned_start());
                    directory.write_checkpoint(BrokerEpoch(1), vec![entry]).await.unwrap();
                    log.start_is_durable(start);
                }
                if env.workload().chance(1, 4) {
                    retain(&env, &mut log).await;
                }
            }
            drop((log, directory));
            env.crash(if env.workload().chance(1, 2) { Crash::PowerCut } else { Crash::Kill });
            env = env.restart();
        }
    });
}

#[test]
fn t48_a_snapshot_and_what_is_behind_it_are_all_batches_of_the_log() {
    for seed in 0..300 {
        history(seed);
    }
}

#[test]
fn the_producers_of_a_log_that_has_aged_out_whole_stay_known() {
    sim::run(1, |env| async move {
        let config = LogConfig { segment_ms: 1000, retention_bytes: Some(0), ..LogConfig::default() };
        let directory = open(&env).await;
        let mut log = directory.create_log(LOG, config).await.unwrap();
        let mut told = Told::default();
        for number in 0..5 {
            produce(&env, &mut log, &mut told, 1, number, 3000).await;
        }
        write(&env, &mut log).await.unwrap();
        env.sleep(std::time::Duration::from_secs(2)).await;
        while maintain_once(&env, &mut log, &told).await {}
        retain(&env, &mut log).await;
        directory.write_checkpoint(BrokerEpoch(1), vec![log.checkpoint_entry()]).await.unwrap();
        log.start_is_durable(log.planned_start());
        retain(&env, &mut log).await;
        assert_eq!((log.log_start(), log.segment_count()), (Offset(5), 1));
        let names: Vec<_> = env.disk().list(&log_path()).await.unwrap().into_iter().map(|entry| entry.name).collect();
        assert_eq!(names, ["00000000000000000005.log", "producers"]);
        drop((log, directory));
        env.crash(Crash::PowerCut);
        let mut found = Told::default();
        let log = open(&env.restart()).await.recover_log(LOG, config, &mut found, |_| {}).await.unwrap().log;
        assert_eq!((found, log.log_start(), log.log_end()), (told, Offset(5), Offset(5)));
    });
}

#[test]
fn a_snapshot_that_is_gone_or_damaged_costs_a_longer_scan_only() {
    for damage in [None, Some(vec![1, 2, 3])] {
        sim::run(1, move |env| async move {
            let directory = open(&env).await;
            let mut log = directory.create_log(LOG, small_segments()).await.unwrap();
            let mut told = Told::default();
            for number in 0..200 {
                produce(&env, &mut log, &mut told, 1, number, 12_000).await;
            }
            write(&env, &mut log).await.unwrap();
            env.sleep(std::time::Duration::from_secs(31)).await;
            while maintain_once(&env, &mut log, &told).await {}
            directory.write_checkpoint(BrokerEpoch(1), vec![log.checkpoint_entry()]).await.unwrap();
            drop((log, directory));
            env.crash(Crash::Kill);
            let env = env.restart();
            let path = log_path().join("producers");
            match damage {
                None => env.disk().remove_file(&path).await.unwrap(),
                Some(bytes) => env.disk().replace_file(&path, bytes).await.unwrap(),
            }
            let mut found = Told::default();
            let log = open(&env).await.recover_log(LOG, small_segments(), &mut found, |_| {}).await.unwrap().log;
            assert_eq!((found, log.log_end()), (told, Offset(200)));
        });
    }
}
