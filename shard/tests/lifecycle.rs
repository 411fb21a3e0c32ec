//! Stops, rolls and deletions on one core.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use cluster::metadata::TopicConfig;
use cluster::replica::Acks;
use common::*;
use protocol::error::{ErrorCode, WireError};
use protocol::ids::{BrokerEpoch, CoreId, HostId, LeaderEpoch, Offset};
use runtime::Env;
use shard::{FetchRequest, OpenPartitionError, OpenedPartition, PartitionPlace, ProduceError, Shard, StopReport};
use sim::{DiskFaults, SimEnv, run};
use storage::{ChunkCache, Directory};

#[test]
fn what_cores_tell_each_other_can_cross_threads() {
    fn is_send<T: Send + 'static>() {}
    is_send::<PartitionPlace>();
    is_send::<OpenedPartition>();
    is_send::<FetchRequest>();
    is_send::<StopReport>();
}

/// Another core on the directory of this one.
async fn attach(env: &SimEnv, core: &Core, indexes: &[u32]) -> Core {
    let shared = core.directory.share(|log| indexes.contains(&log.partition.0));
    let directory = Directory::attach(env, shared, CoreId(1), ChunkCache::new(env.region().clone())).await.unwrap();
    let shard = Shard::start(env.clone(), HostId(1), vec![directory.clone()]);
    Core { env: env.clone(), shard, directory }
}

#[test]
fn two_cores_serve_the_partitions_of_one_directory_and_stop_cleanly() {
    run(3, async |env| {
        let first = start_with(&env, 2).await;
        let second = attach(&env, &first, &[]).await;
        for index in 2..5 {
            second.create(index, TopicConfig::default()).await;
        }
        for index in 0..5 {
            let core = if index < 2 { &first } else { &second };
            core.produce(index, &batch_of(&[b"one"])).await.unwrap();
        }
        assert_eq!((first.stop_with(&second).await, second.directory.clean_stop()), (5, None));
        env.crash(sim::Crash::PowerCut);
        let env = env.restart();
        // One of the second core's partitions is the first one's now.
        let first = start(&env).await;
        assert_eq!(first.directory.clean_stop(), Some(BrokerEpoch(1)));
        let second = attach(&env, &first, &[3, 4]).await;
        for index in 0..5 {
            let core = if index < 3 { &first } else { &second };
            assert!(core.directory.take_entry(partition(index)).is_some(), "a checkpoint knows partition {index}");
            core.shard.open_partition(core.place(index), TopicConfig::default(), |_| {}).await.unwrap();
            assert_eq!(core.read(index, 0).await, [b"one"]);
        }
    });
}

impl Core {
    /// Stops both, and leaves the marker; gives the partitions that were flushed.
    async fn stop_with(&self, other: &Core) -> usize {
        let mut flushed = 0;
        for core in [self, other] {
            core.shard.set_broker_epoch(BrokerEpoch(1));
            let report = core.shard.stop().await;
            assert!(report.failed.is_empty(), "{report:?}");
            flushed += report.flushed;
        }
        self.directory.stop_cleanly(BrokerEpoch(1)).await.unwrap();
        flushed
    }
}

#[test]
fn a_stop_writes_and_flushes_everything_within_two_seconds() {
    for seed in 0..20 {
        run(seed, async |env| {
            let core = start_with(&env, 8).await;
            let mut tickets = Vec::new();
            for round in 0..40_u32 {
                tickets.push(core.append(round % 8, &batch_of_bytes(30_000), Acks::All).unwrap());
            }
            let begin = env.now();
            let report = core.shard.stop().await;
            let took = env.now() - begin;
            assert!(took < Duration::from_secs(2), "{took:?}");
            assert_eq!((report.flushed, report.failed.len()), (8, 0), "{report:?}");
            for ticket in tickets {
                // What was appended is acknowledged; what waited for room is refused, and wasn't appended.
                if let Err(error) = ticket.await {
                    assert_eq!(error.code(), ErrorCode::NotLeaderOrFollower);
                }
            }
            let refused = core.append(0, &batch_of(&[b"late"]), Acks::All).err().unwrap();
            assert_eq!(refused.code(), ErrorCode::NotLeaderOrFollower);
            let described = core.shard.describe(partition(0)).unwrap();
            assert_eq!(described.flushed, described.log_end);
        });
    }
}

#[test]
fn a_stop_answers_fetches_that_wait() {
    run(1, async |env| {
        let core = start_with(&env, 1).await;
        let (shard, other) = (core.shard.clone(), env.clone());
        env.spawn(async move {
            other.sleep(MILLISECOND).await;
            shard.stop().await;
        });
        let result = core.fetch(long_poll(0, 0)).await;
        assert_eq!(result[0].as_ref().unwrap_err().code(), ErrorCode::NotLeaderOrFollower);
    });
}

#[test]
fn t33_a_quiet_segment_rolls_by_time() {
    run(2, async |env| {
        let core = start(&env).await;
        core.create(0, TopicConfig { segment_ms: 5_000, ..TopicConfig::default() }).await;
        core.produce(0, &batch_of(&[b"a"])).await.unwrap();
        assert_eq!(core.shard.describe(partition(0)).unwrap().segments, 1);
        core.sleep(Duration::from_secs(10)).await;
        assert_eq!(core.shard.describe(partition(0)).unwrap().segments, 2);
        core.produce(0, &batch_of(&[b"b"])).await.unwrap();
        assert_eq!(core.read(0, 0).await, [b"a", b"b"]);
        assert_eq!(core.shard.describe(partition(0)).unwrap().high_watermark, Offset(2));
    });
}

#[test]
fn what_a_stop_has_flushed_is_there_after_the_next_start() {
    run(3, async |env| {
        let core = start_with(&env, 1).await;
        core.produce(0, &batch_of(&[b"a", b"b"])).await.unwrap();
        core.shard.stop().await;
        env.crash(sim::Crash::PowerCut);
        let env = env.restart();
        let core = start(&env).await;
        core.shard.open_partition(core.place(0), TopicConfig::default(), |_| {}).await.unwrap();
        assert_eq!(core.read(0, 0).await, [b"a", b"b"]);
        assert_eq!(core.produce(0, &batch_of(&[b"c"])).await.unwrap().base_offset, Offset(2));
        let again = core.shard.open_partition(core.place(0), TopicConfig::default(), |_| {}).await.unwrap_err();
        assert_eq!(again.code(), ErrorCode::TopicAlreadyExists);
    });
}

#[test]
fn a_log_ahead_of_its_partition_s_epoch_is_refused() {
    run(4, async |env| {
        let core = start_with(&env, 1).await;
        core.produce(0, &batch_of(&[b"a"])).await.unwrap();
        core.shard.stop().await;
        env.crash(sim::Crash::PowerCut);
        let env = env.restart();
        let core = start(&env).await;
        // As after an older metadata log was restored: what is appended in the lower epoch, the next recovery would cut.
        let place = PartitionPlace { leader_epoch: LeaderEpoch(EPOCH.0 - 1), ..core.place(0) };
        let error = core.shard.open_partition(place, TopicConfig::default(), |_| {}).await.unwrap_err();
        assert!(matches!(error, OpenPartitionError::EpochAhead { found: EPOCH, .. }), "{error}");
        assert_eq!(error.code(), ErrorCode::KafkaStorageError);
        core.shard.open_partition(core.place(0), TopicConfig::default(), |_| {}).await.unwrap();
    });
}

#[test]
fn t22_a_failed_flush_of_a_recovery_stops_every_partition_of_its_directory() {
    run(5, async |env| {
        let core = start_with(&env, 2).await;
        for index in 0..2 {
            core.produce(index, &batch_of(&[b"before"])).await.unwrap();
        }
        env.crash(sim::Crash::Kill);
        let env = env.restart();
        let core = start(&env).await;
        core.shard.open_partition(core.place(0), TopicConfig::default(), |_| {}).await.unwrap();
        core.produce(0, &batch_of(&[b"after"])).await.unwrap();
        env.set_disk_faults(DiskFaults { flush_errors_ppm: 1_000_000, ..DiskFaults::default() });
        let error = core.shard.open_partition(core.place(1), TopicConfig::default(), |_| {}).await.unwrap_err();
        assert!(matches!(error, OpenPartitionError::Recovery { .. }), "{error}");
        core.heal_disk();
        let refused = core.append(0, &batch_of(&[b"lost"]), Acks::All).err().unwrap();
        assert!(matches!(refused, ProduceError::Stopped(_)) && refused.to_string().contains("recovering"), "{refused}");
    });
}

/// Crashes in the middle of appends: what was acknowledged is there, at its offset.
#[test]
fn what_is_acknowledged_survives_a_power_cut() {
    for seed in 0..20 {
        run(seed, async |env| {
            let core = start_with(&env, 1).await;
            let mut acknowledged = Vec::new();
            for number in 0..20_u64 {
                let value = number.to_be_bytes();
                let ticket = core.append(0, &batch_of(&[&value]), Acks::All).unwrap();
                if env.workload().below(4) == 0 {
                    continue;
                }
                acknowledged.push((ticket.await.unwrap().base_offset, value));
            }
            env.crash(sim::Crash::PowerCut);
            let env = env.restart();
            let core = start(&env).await;
            core.shard.open_partition(core.place(0), TopicConfig::default(), |_| {}).await.unwrap();
            let found = core.read(0, 0).await;
            for (offset, value) in acknowledged {
                assert_eq!(found[usize::try_from(offset.0).unwrap()], value);
            }
        });
    }
}
