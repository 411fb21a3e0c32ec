//! DeleteRecords on one core.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use cluster::metadata::TopicConfig;
use common::*;
use protocol::error::{ErrorCode, WireError};
use protocol::ids::{DurabilityClass, Offset};
use protocol::native::DeleteBefore;
use runtime::Env;
use shard::DeleteRecordsError;
use sim::{DiskFaults, run};

/// Until maintenance looks at whether a checkpoint is wanted, and a little.
const SOON: Duration = Duration::from_millis(400);

async fn delete(core: &Core, index: u32, before: DeleteBefore) -> Result<i64, DeleteRecordsError> {
    let deadline = core.env.now() + Duration::from_secs(10);
    let mut results = core.shard.delete_records(&[(partition(index), before)], deadline).await;
    results.pop().unwrap().map(|start| start.0)
}

fn up_to(offset: i64) -> DeleteBefore {
    DeleteBefore::Offset(Offset(offset))
}

#[test]
fn t29_records_go_up_to_an_offset_inside_a_batch() {
    run(1, async |env| {
        let core = start_with(&env, 2).await;
        core.produce(0, &batch_of(&[b"a", b"b", b"c"])).await.unwrap();
        core.produce(0, &batch_of(&[b"d"])).await.unwrap();
        core.produce(1, &batch_of(&[b"x"])).await.unwrap();
        let answer = core.within(SOON, delete(&core, 0, up_to(1))).await;
        assert_eq!(answer.expect("a checkpoint is written at once").unwrap(), 1);
        assert_eq!(core.read(0, 1).await, [b"a", b"b", b"c", b"d"], "the whole batch");
        let below = core.fetch(fetch_of(&[(0, 0)], Duration::ZERO)).await;
        assert_eq!(below[0].as_ref().err().map(WireError::code), Some(ErrorCode::OffsetOutOfRange));
        assert_eq!(delete(&core, 0, up_to(0)).await.unwrap(), 1, "nothing is left below");
        let refused = delete(&core, 0, up_to(5)).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::OffsetOutOfRange);
        assert!(refused.to_string().contains("up to 5") && refused.to_string().contains("watermark is 4"), "{refused}");
        assert_eq!(delete(&core, 0, DeleteBefore::HighWatermark).await.unwrap(), 4);
        assert_eq!(core.read(0, 4).await, Vec::<Vec<u8>>::new());
        assert_eq!(delete(&core, 7, up_to(0)).await.unwrap_err().code(), ErrorCode::UnknownTopicOrPartition);
        assert_eq!(core.read(1, 0).await, [b"x"], "another partition keeps its own");
        // It holds after a crash, at which nothing but what is durable is left.
        env.crash(sim::Crash::PowerCut);
        let core = start(&env.restart()).await;
        core.shard.open_partition(core.place(0), TopicConfig::default(), |_| {}).await.unwrap();
        let found = core.shard.describe(partition(0)).unwrap();
        assert_eq!((found.log_start, found.log_end), (Offset(4), Offset(4)));
        assert_eq!(core.produce(0, &batch_of(&[b"e"])).await.unwrap().base_offset, Offset(4));
        assert_eq!(core.read(0, 4).await, [b"e"]);
    });
}

#[test]
fn records_of_the_class_written_are_flushed_before_they_go() {
    run(2, async |env| {
        let core = start(&env).await;
        core.create(0, TopicConfig { durability: DurabilityClass::Written, ..TopicConfig::default() }).await;
        for _ in 0..10 {
            core.produce(0, &batch_of(&[b"a", b"b"])).await.unwrap();
        }
        assert!(core.shard.describe(partition(0)).unwrap().flushed < Offset(15));
        let answer = core.within(SOON, delete(&core, 0, up_to(15))).await;
        assert_eq!(answer.expect("no flush was waited for").unwrap(), 15);
        assert!(core.shard.describe(partition(0)).unwrap().flushed >= Offset(15));
    });
}

#[test]
fn what_is_not_durable_in_time_is_said_to_be_late_and_may_still_come() {
    run(3, async |env| {
        let core = start_with(&env, 1).await;
        core.produce(0, &batch_of(&[b"a", b"b"])).await.unwrap();
        core.slow_disk(1_000_000);
        let late = delete(&core, 0, up_to(1)).await.unwrap_err();
        assert_eq!(late.code(), ErrorCode::RequestTimedOut);
        assert!(late.to_string().contains("begins at 0, and not yet at 1"), "{late}");
        core.heal_disk();
        core.sleep(Duration::from_secs(3600)).await;
        assert_eq!(core.shard.describe(partition(0)).unwrap().log_start, Offset(1));
    });
}

#[test]
fn a_deletion_that_waits_ends_with_its_partition_or_its_host() {
    run(4, async |env| {
        let core = start_with(&env, 3).await;
        for index in 0..3 {
            core.produce(index, &batch_of(&[b"a", b"b"])).await.unwrap();
        }
        core.slow_disk(100_000);
        let after = async |delay, index| {
            core.sleep(Duration::from_millis(delay)).await;
            match index {
                0 => drop(core.shard.delete_partition(partition(0)).await),
                _ => drop(core.shard.stop().await),
            }
        };
        let (gone, stopped, ()) = {
            let first = delete(&core, 0, up_to(1));
            let second = delete(&core, 1, up_to(1));
            let ends = async {
                core.within(Duration::from_secs(1), after(10, 0)).await;
                core.within(Duration::from_secs(1), after(10, 1)).await;
            };
            let both = futures_lite::future::zip(first, second);
            let ((first, second), ()) = futures_lite::future::zip(both, ends).await;
            (first.unwrap_err(), second.unwrap_err(), ())
        };
        assert_eq!(gone.code(), ErrorCode::UnknownTopicOrPartition);
        assert_eq!(stopped.code(), ErrorCode::NotLeaderOrFollower);
    });
}

#[test]
fn a_failed_checkpoint_is_written_again_for_who_waits() {
    run(5, async |env| {
        let core = start_with(&env, 1).await;
        core.produce(0, &batch_of(&[b"a", b"b"])).await.unwrap();
        core.sleep(Duration::from_secs(20)).await;
        env.set_disk_faults(DiskFaults { name_errors_ppm: 1_000_000, ..DiskFaults::default() });
        let heal = async {
            core.sleep(Duration::from_secs(2)).await;
            core.heal_disk();
            std::future::pending().await
        };
        let answer = futures_lite::future::or(delete(&core, 0, up_to(1)), heal).await;
        assert_eq!(answer.unwrap(), 1);
    });
}
