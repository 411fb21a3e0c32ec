//! Offsets by name and time on one core.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use cluster::metadata::TopicConfig;
use cluster::replica::{Acks, NO_EPOCH, Reader};
use common::*;
use protocol::batch::{BatchBuilder, RecordFields};
use protocol::compression::Codec;
use protocol::error::{ErrorCode, WireError};
use protocol::ids::{LeaderEpoch, Offset, Timestamp};
use protocol::native::OffsetSpec;
use sim::run;

fn stamped(timestamps: &[i64]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Codec::None);
    for &timestamp in timestamps {
        let timestamp = Timestamp(timestamp);
        builder.push(&RecordFields { timestamp, key: None, value: Some(b"x"), headers: &[] }).unwrap();
    }
    builder.finish().unwrap()
}

async fn list(core: &Core, at: OffsetSpec) -> Option<(i64, i64)> {
    let found = core.shard.list_offsets(partition(0), at, Reader::Consumer, NO_EPOCH).await.unwrap();
    found.map(|(offset, timestamp)| (offset.0, timestamp.0))
}

#[test]
fn t34_a_time_finds_the_first_record_that_is_as_young_and_visible() {
    for seed in 0..40 {
        run(seed, async |env| {
            let core = start_with(&env, 1).await;
            let at = |timestamp| OffsetSpec::AtOrAfter(Timestamp(timestamp));
            assert_eq!(list(&core, at(0)).await, None, "an empty log");
            assert_eq!(list(&core, OffsetSpec::Earliest).await, Some((0, -1)));
            assert_eq!(list(&core, OffsetSpec::Latest).await, Some((0, -1)));
            core.produce(0, &stamped(&[100, 300, 200])).await.unwrap();
            core.produce(0, &stamped(&[150, 400])).await.unwrap();
            assert_eq!(list(&core, at(0)).await, Some((0, 100)));
            assert_eq!(list(&core, at(101)).await, Some((1, 300)));
            assert_eq!(list(&core, at(301)).await, Some((4, 400)));
            assert_eq!(list(&core, at(401)).await, None, "younger than all");
            assert_eq!(list(&core, OffsetSpec::Latest).await, Some((5, -1)));
            // What isn't below the high watermark isn't there.
            core.slow_disk(10_000);
            let _ticket = core.append(0, &stamped(&[500]), Acks::All).unwrap();
            assert_eq!(list(&core, OffsetSpec::Latest).await, Some((5, -1)));
            // The slow look-up may end after the write; what it takes in is told when it begins.
            assert_eq!(list(&core, at(401)).await, None);
        });
    }
}

#[test]
fn t03_offsets_are_listed_for_the_current_leader_epoch_only() {
    run(2, async |env| {
        let core = start_with(&env, 1).await;
        let code = async |index, epoch| {
            let listed =
                core.shard.list_offsets(partition(index), OffsetSpec::Latest, Reader::Consumer, LeaderEpoch(epoch)).await;
            listed.err().map(|error| error.code())
        };
        assert_eq!(code(0, 2).await, Some(ErrorCode::FencedLeaderEpoch));
        assert_eq!(code(0, 4).await, Some(ErrorCode::UnknownLeaderEpoch));
        assert_eq!(code(1, 3).await, Some(ErrorCode::UnknownTopicOrPartition));
        assert_eq!(code(0, 3).await, None);
    });
}

#[test]
fn the_latest_offset_waits_for_the_min_in_sync_replicas() {
    run(3, async |env| {
        let core = start(&env).await;
        core.create(0, TopicConfig::default()).await;
        core.produce(0, &stamped(&[100])).await.unwrap();
        core.shard.stop().await;
        env.crash(sim::Crash::Kill);
        let env = env.restart();
        let core = start(&env).await;
        let config = TopicConfig { min_in_sync_replicas: 2, ..TopicConfig::default() };
        core.shard.open_partition(core.place(0), config, |_| {}).await.unwrap();
        let listed = core.shard.list_offsets(partition(0), OffsetSpec::Latest, Reader::Consumer, NO_EPOCH).await;
        assert_eq!(listed.unwrap_err().code(), ErrorCode::LeaderNotAvailable);
        core.shard.reconfigure(partition(0), TopicConfig::default());
        assert_eq!(list(&core, OffsetSpec::Latest).await, Some((1, -1)));
        assert_eq!(core.read(0, 0).await.len(), 1);
        assert_eq!(core.shard.describe(partition(0)).unwrap().high_watermark, Offset(1));
    });
}
