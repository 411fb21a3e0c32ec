//! Appends, writes, rolls and reads of one log on the simulator's disk.
#![allow(clippy::unwrap_used, reason = "a test fails where it must")]

mod support;

use protocol::ids::Offset;
use runtime::Env;
use storage::{LogConfig, Metrics, ReadRequest};
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
        let metrics = directory_metrics(&env, &log);
        assert_eq!(metrics.crossing_writes, 0);
        log.drop_cached();
        assert_eq!(numbers(&mut log, Offset(0)).await, expected);
        assert_eq!(env.disk_counters().crossing_writes, 0);
    });
}

fn directory_metrics(_env: &sim::SimEnv, log: &storage::Log<sim::SimEnv>) -> storage::MetricsSnapshot {
    let metrics: Metrics = log.metrics();
    metrics.snapshot()
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
