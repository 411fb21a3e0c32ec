//! Produce on one core: order, levels of acknowledgement, refusals, what waits and what fails.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use cluster::metadata::TopicConfig;
use cluster::replica::{Acks, NO_EPOCH};
use common::*;
use protocol::batch::BatchView;
use protocol::compression::Codec;
use protocol::error::{ErrorCode, WireError};
use protocol::ids::{DurabilityClass, LeaderEpoch, Offset};
use runtime::Env;
use shard::{ProduceError, ProduceRequest};
use sim::{DiskFaults, run};

#[test]
fn what_is_acknowledged_is_read_back() {
    run(1, async |env| {
        let core = start_with(&env, 1).await;
        let first = core.produce(0, &batch_of(&[b"a", b"b"])).await.unwrap();
        let second = core.produce(0, &batch_of(&[b"c"])).await.unwrap();
        assert_eq!((first.base_offset, second.base_offset), (Offset(0), Offset(2)));
        assert_eq!(core.read(0, 0).await, [b"a", b"b", b"c"]);
        assert_eq!(core.read(0, 2).await, [b"c"]);
        let described = core.shard.describe(partition(0)).unwrap();
        assert_eq!((described.high_watermark, described.log_end, described.leader_epoch), (Offset(3), Offset(3), EPOCH));
        assert_eq!(described.waiting_tickets, 0);
    });
}

#[test]
fn each_level_of_acknowledgement_waits_for_what_it_promises() {
    run(2, async |env| {
        let core = start_with(&env, 1).await;
        core.slow_disk(1000);
        let none = core.append(0, &batch_of(&[b"none"]), Acks::None).unwrap();
        let leader = core.append(0, &batch_of(&[b"leader"]), Acks::Leader).unwrap();
        let all = core.append(0, &batch_of(&[b"all"]), Acks::All).unwrap();
        assert!(none.is_settled() && !leader.is_settled() && !all.is_settled());
        assert_eq!(none.await.unwrap().base_offset, Offset(0));
        core.sleep(MILLISECOND).await;
        assert!(!leader.is_settled() && !all.is_settled(), "nothing is written yet");
        let described = core.shard.describe(partition(0)).unwrap();
        assert_eq!((described.high_watermark, described.flushed, described.log_end), (Offset(0), Offset(0), Offset(3)));
        assert_eq!(leader.await.unwrap().base_offset, Offset(1));
        assert_eq!(all.await.unwrap().base_offset, Offset(2));
        let described = core.shard.describe(partition(0)).unwrap();
        assert_eq!((described.high_watermark, described.flushed), (Offset(3), Offset(3)));
    });
}

#[test]
fn class_written_acknowledges_before_the_flush() {
    run(3, async |env| {
        let core = start(&env).await;
        core.create(0, TopicConfig { durability: DurabilityClass::Written, ..TopicConfig::default() }).await;
        core.produce(0, &batch_of(&[b"a"])).await.unwrap();
        let described = core.shard.describe(partition(0)).unwrap();
        assert_eq!((described.high_watermark, described.flushed), (Offset(1), Offset(0)));
    });
}

#[test]
fn acknowledgements_come_in_the_order_of_appends() {
    for seed in 0..20 {
        run(seed, async |env| {
            let core = start_with(&env, 2).await;
            let order: Rc<RefCell<Vec<(u32, i64)>>> = Rc::default();
            for round in 0..200_u64 {
                let index = u32::from(env.workload().below(3) == 0);
                let acks = if env.workload().below(2) == 0 { Acks::All } else { Acks::Leader };
                let size = usize::try_from(env.workload().below(20_000)).unwrap();
                let ticket = core.append(index, &batch_of_bytes(size), acks).unwrap();
                let order = order.clone();
                env.spawn(async move {
                    let produced = ticket.await.unwrap();
                    order.borrow_mut().push((index, produced.base_offset.0));
                });
                if round % 7 == 0 {
                    core.sleep(Duration::from_micros(env.workload().below(300))).await;
                }
            }
            core.sleep(Duration::from_secs(1)).await;
            let order = order.borrow();
            assert_eq!(order.len(), 200);
            // Tasks run in any order in one turn; the tickets themselves are settled in order, see the unit tests.
            for index in [0, 1] {
                let mut offsets: Vec<i64> = order.iter().filter(|(i, _)| *i == index).map(|(_, offset)| *offset).collect();
                offsets.sort_unstable();
                let count = i64::try_from(offsets.len()).unwrap();
                assert_eq!(offsets, (0..count).collect::<Vec<_>>());
            }
        });
    }
}

#[test]
fn a_ticket_ends_with_its_timeout() {
    run(4, async |env| {
        let core = start_with(&env, 1).await;
        core.slow_disk(100_000);
        let timeout = Duration::from_millis(250);
        let request = ProduceRequest { partition: partition(0), acks: Acks::All, leader_epoch: NO_EPOCH, timeout };
        let batch = batch_of(&[b"late"]);
        let begin = env.now();
        let ticket = core.shard.produce(request, &BatchView::whole(&batch).unwrap()).unwrap();
        let error = ticket.await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::RequestTimedOut);
        let waited = env.now() - begin;
        assert!((timeout..timeout + 5 * MILLISECOND).contains(&waited), "{waited:?}");
        assert_eq!(core.shard.describe(partition(0)).unwrap().waiting_tickets, 0);
    });
}

#[test]
fn timeouts_of_zero_do_not_have_all_tickets_looked_at_each_time() {
    run(4, async |env| {
        let core = start_with(&env, 2).await;
        core.slow_disk(100_000);
        let batch = batch_of(&[b"late"]);
        let begin = env.now();
        for _ in 0..100 {
            let (acks, timeout) = (Acks::All, Duration::ZERO);
            let request = ProduceRequest { partition: partition(0), acks, leader_epoch: NO_EPOCH, timeout };
            drop(core.shard.produce(request, &BatchView::whole(&batch).unwrap()).unwrap());
            core.sleep(MILLISECOND / 10).await;
        }
        let elapsed = env.now() - begin;
        let ticks = u64::try_from(elapsed.as_millis()).unwrap() / 2;
        let scans = core.shard.metrics().ticket_scans;
        assert!((1..=ticks + 1).contains(&scans), "{scans} in {elapsed:?}");
        let request =
            ProduceRequest { partition: partition(1), acks: Acks::All, leader_epoch: NO_EPOCH, timeout: Duration::ZERO };
        let ticket = core.shard.produce(request, &BatchView::whole(&batch).unwrap()).unwrap();
        let error = core.within(3 * MILLISECOND, ticket).await.unwrap().unwrap_err();
        assert_eq!(error.code(), ErrorCode::RequestTimedOut);
    });
}

/// What counts is what came over the wire and goes into the log: compressed, with its header.
#[test]
fn t78_the_largest_batch_is_enforced_on_its_size_on_the_wire() {
    run(6, async |env| {
        let core = start(&env).await;
        let much = vec![0; 50 << 10];
        let little: Vec<u8> = std::iter::repeat_with(|| u8::try_from(env.workload().below(256)).unwrap()).take(600).collect();
        let compressed = compressed_batch_of(Codec::Zstd, &[&much]);
        let dense = compressed_batch_of(Codec::Zstd, &[&little]);
        assert!(compressed.len() < 600 && dense.len() > 600, "{}, {}", compressed.len(), dense.len());
        core.create(0, TopicConfig { batch_bytes_max: 600, ..TopicConfig::default() }).await;
        core.produce(0, &compressed).await.unwrap();
        let refused = core.append(0, &dense, Acks::All).err().unwrap();
        assert_eq!(refused.code(), ErrorCode::MessageTooLarge);
        let message = refused.to_string();
        assert!(message.contains(&dense.len().to_string()) && message.contains("600"), "{message}");
        // The limit itself is allowed.
        core.create(1, TopicConfig { batch_bytes_max: dense.len(), ..TopicConfig::default() }).await;
        core.produce(1, &dense).await.unwrap();
        core.create(2, TopicConfig { batch_bytes_max: dense.len() - 1, ..TopicConfig::default() }).await;
        assert_eq!(core.append(2, &dense, Acks::All).err().map(|error| error.code()), Some(ErrorCode::MessageTooLarge));
    });
}

#[test]
fn batches_that_break_a_rule_are_refused_alone() {
    run(5, async |env| {
        let core = start_with(&env, 1).await;
        core.create(1, TopicConfig { batch_bytes_max: 1000, compression: Some(Codec::Zstd), ..TopicConfig::default() }).await;
        let code = |index, batch: &[u8]| core.append(index, batch, Acks::All).err().map(|error| error.code());
        assert_eq!(code(1, &batch_of_bytes(2000)), Some(ErrorCode::MessageTooLarge));
        assert_eq!(code(1, &batch_of_bytes(10)), Some(ErrorCode::UnsupportedCompressionType));
        assert_eq!(code(2, &batch_of_bytes(10)), Some(ErrorCode::UnknownTopicOrPartition));
        let mut damaged = batch_of(&[b"damaged"]);
        *damaged.last_mut().unwrap() ^= 1;
        assert_eq!(code(0, &damaged), Some(ErrorCode::CorruptMessage));
        assert_eq!(core.produce(0, &batch_of(&[b"good"])).await.unwrap().base_offset, Offset(0));
        let metrics = core.shard.metrics();
        assert_eq!((metrics.produce_batches, metrics.refused_batches), (5, 4));
    });
}

#[test]
fn t03_a_produce_of_another_leader_epoch_is_turned_away() {
    run(6, async |env| {
        let core = start_with(&env, 1).await;
        let batch = batch_of(&[b"x"]);
        let produce = |leader_epoch| {
            let timeout = Duration::from_secs(1);
            let request = ProduceRequest { partition: partition(0), acks: Acks::All, leader_epoch, timeout };
            core.shard.produce(request, &BatchView::whole(&batch).unwrap())
        };
        assert_eq!(produce(LeaderEpoch(2)).err().unwrap().code(), ErrorCode::FencedLeaderEpoch);
        assert_eq!(produce(LeaderEpoch(4)).err().unwrap().code(), ErrorCode::UnknownLeaderEpoch);
        produce(EPOCH).unwrap().await.unwrap();
    });
}

#[test]
fn too_few_in_sync_replicas_refuse_acks_all_only() {
    run(7, async |env| {
        let core = start(&env).await;
        core.create(0, TopicConfig { min_in_sync_replicas: 2, ..TopicConfig::default() }).await;
        let refused = core.append(0, &batch_of(&[b"x"]), Acks::All).err().unwrap();
        assert_eq!(refused.code(), ErrorCode::NotEnoughReplicas);
        core.append(0, &batch_of(&[b"x"]), Acks::Leader).unwrap().await.unwrap();
        assert!(core.read(0, 0).await.is_empty(), "below the min in-sync replicas nothing becomes visible");
    });
}

#[test]
fn t22_a_failed_durable_write_stops_every_partition_of_its_directory() {
    run(7, async |env| {
        let core = start_with(&env, 3).await;
        for index in 0..3 {
            core.produce(index, &batch_of(&[b"before"])).await.unwrap();
        }
        env.set_disk_faults(DiskFaults { write_errors_ppm: 1_000_000, ..DiskFaults::default() });
        assert_eq!(core.produce(0, &batch_of(&[b"lost"])).await.unwrap_err().code(), ErrorCode::KafkaStorageError);
        core.heal_disk();
        // The write's flush may be what failed, and with it what others have written: their next flush would not tell.
        let refused = core.append(1, &batch_of(&[b"after"]), Acks::All).err().unwrap();
        assert!(matches!(refused, ProduceError::Stopped(_)), "{refused}");
        // One that nobody asks for anything is told too.
        core.sleep(Duration::from_secs(3)).await;
        assert_eq!(core.shard.metrics().stopped_partitions, 3);
        assert_eq!(core.fetch(long_poll(2, 0)).await[0].as_ref().unwrap_err().code(), ErrorCode::KafkaStorageError);
        let report = core.shard.stop().await;
        assert_eq!((report.flushed, report.failed.len()), (0, 3));
    });
}

#[test]
fn t22_a_failed_write_without_a_flush_stops_its_partition_and_no_other() {
    run(8, async |env| {
        let core = start(&env).await;
        for index in 0..2 {
            core.create(index, TopicConfig { durability: DurabilityClass::Written, ..TopicConfig::default() }).await;
        }
        core.produce(0, &batch_of(&[b"before"])).await.unwrap();
        core.produce(1, &batch_of(&[b"before"])).await.unwrap();
        env.set_disk_faults(DiskFaults { write_errors_ppm: 1_000_000, ..DiskFaults::default() });
        let error = core.produce(0, &batch_of(&[b"lost"])).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::KafkaStorageError);
        core.heal_disk();
        // The disk is well again, but what it lost isn't known: nothing more is appended or acknowledged here.
        let refused = core.append(0, &batch_of(&[b"after"]), Acks::All).err().unwrap();
        assert!(matches!(refused, ProduceError::Stopped(_)), "{refused}");
        let read = core.fetch(long_poll(0, 0)).await;
        assert_eq!(read[0].as_ref().unwrap_err().code(), ErrorCode::KafkaStorageError);
        assert!(core.shard.describe(partition(0)).unwrap().stopped.unwrap().contains("stopped"));
        core.produce(1, &batch_of(&[b"after"])).await.unwrap();
        assert_eq!(core.read(1, 0).await, [b"before".to_vec(), b"after".to_vec()]);
        assert_eq!(core.shard.metrics().stopped_partitions, 1);
    });
}

#[test]
fn t22_tickets_and_fetches_that_wait_at_a_failing_partition_are_answered() {
    run(9, async |env| {
        let core = start_with(&env, 1).await;
        let shard = core.shard.clone();
        let answered = Rc::new(RefCell::new(None));
        let to = answered.clone();
        env.spawn(async move {
            let result = shard.fetch(long_poll(0, 0)).await;
            *to.borrow_mut() = Some(result[0].as_ref().unwrap_err().code());
        });
        core.sleep(MILLISECOND).await;
        assert_eq!(core.shard.metrics().parked_fetches, 1);
        env.set_disk_faults(DiskFaults { write_errors_ppm: 1_000_000, ..DiskFaults::default() });
        let tickets: Vec<_> = (0..10).map(|_| core.append(0, &batch_of(&[b"x"]), Acks::All).unwrap()).collect();
        for ticket in tickets {
            assert_eq!(ticket.await.unwrap_err().code(), ErrorCode::KafkaStorageError);
        }
        core.sleep(MILLISECOND).await;
        assert_eq!(*answered.borrow(), Some(ErrorCode::KafkaStorageError));
        assert_eq!(core.shard.metrics().parked_fetches, 0);
    });
}

#[test]
fn t83_t92_dropped_tickets_leave_nothing() {
    run(10, async |env| {
        let core = start_with(&env, 1).await;
        core.slow_disk(1000);
        let tickets: Vec<_> = (0..100).map(|_| core.append(0, &batch_of_bytes(1000), Acks::All).unwrap()).collect();
        assert_eq!(core.shard.describe(partition(0)).unwrap().waiting_tickets, 100);
        drop(tickets);
        assert_eq!(core.shard.describe(partition(0)).unwrap().waiting_tickets, 0);
        core.heal_disk();
        // The batches themselves were taken, and are written.
        core.sleep(Duration::from_secs(2)).await;
        assert_eq!(core.shard.describe(partition(0)).unwrap().high_watermark, Offset(100));
        core.shard.delete_partition(partition(0)).await.unwrap();
        drop(core);
        env.sleep(Duration::from_secs(2)).await;
        assert_eq!(env.region().free_bytes(), env.region().bytes());
    });
}

#[test]
fn batches_that_find_no_room_wait_in_their_order() {
    for seed in 0..20 {
        run(seed, async |env| {
            let core = start_with(&env, 1).await;
            // More than a new log has space for: allocation must come first.
            let sizes = [600_000, 10, 900_000, 20, 30];
            let tickets: Vec<_> = sizes.iter().map(|&size| core.append(0, &batch_of_bytes(size), Acks::All).unwrap()).collect();
            assert!(core.within(MILLISECOND / 100, core.shard.ready()).await.is_none(), "no request comes meanwhile");
            for (offset, ticket) in (0..).zip(tickets) {
                assert_eq!(ticket.await.unwrap().base_offset, Offset(offset));
            }
            core.shard.ready().await;
            let found: Vec<usize> = core.read(0, 0).await.iter().map(Vec::len).collect();
            assert_eq!(found, sizes[..2].to_vec(), "up to the limit of the fetch");
        });
    }
}

#[test]
fn a_full_disk_refuses_batches_and_serves_reads_until_there_is_space() {
    run(11, async |env| {
        let core = start_with(&env, 1).await;
        core.produce(0, &batch_of(&[b"before"])).await.unwrap();
        core.sleep(Duration::from_secs(3)).await;
        env.set_disk_faults(DiskFaults { bytes_taken: u64::MAX / 2, ..DiskFaults::default() });
        let mut refused = None;
        for _ in 0..100 {
            if let Err(error) = core.produce(0, &batch_of_bytes(100_000)).await {
                refused = Some(error);
                break;
            }
        }
        let error = refused.expect("the disk is full");
        assert!(matches!(error, ProduceError::NoSpace { .. }), "{error}");
        assert!(error.code().is_retriable());
        assert_eq!(core.read(0, 0).await[0], b"before");
        core.shard.ready().await;
        core.heal_disk();
        core.sleep(Duration::from_secs(3)).await;
        for _ in 0..10 {
            core.produce(0, &batch_of_bytes(100_000)).await.unwrap();
        }
    });
}
