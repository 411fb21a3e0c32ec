//! Fetch on one core: bounds, limits, the wait in the purgatory and its end.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use cluster::replica::{Acks, Reader};
use common::*;
use protocol::error::{ErrorCode, WireError};
use protocol::ids::{LeaderEpoch, Offset};
use runtime::Env;
use shard::{FetchPartition, FetchRequest, FetchResult};
use sim::{SimEnv, run};

/// Starts a fetch in a task of its own; its answer, once it is there.
fn spawn_fetch(core: &Core, request: FetchRequest) -> Rc<RefCell<Option<FetchResult>>> {
    let answer = Rc::new(RefCell::new(None));
    let (to, shard) = (answer.clone(), core.shard.clone());
    core.env.spawn(async move {
        let result = shard.fetch(request).await;
        *to.borrow_mut() = Some(result);
    });
    answer
}

#[test]
fn t75_a_long_poll_is_woken_by_the_high_watermark_and_not_by_an_append() {
    for seed in 0..20 {
        run(seed, async |env| {
            let core = start_with(&env, 1).await;
            let answer = spawn_fetch(&core, long_poll(0, 0));
            core.sleep(MILLISECOND).await;
            core.slow_disk(1000);
            let ticket = core.append(0, &batch_of(&[b"a"]), Acks::All).unwrap();
            core.sleep(MILLISECOND).await;
            let described = core.shard.describe(partition(0)).unwrap();
            assert_eq!((described.log_end, described.high_watermark), (Offset(1), Offset(0)));
            assert_eq!((described.waiting_fetches, answer.borrow().is_none()), (1, true));
            ticket.await.unwrap();
            core.sleep(MILLISECOND).await;
            assert_eq!(values(answer.borrow().as_ref().unwrap(), 0), [b"a"]);
            assert_eq!(core.shard.metrics().expired_fetches, 0);
        });
    }
}

#[test]
fn a_long_poll_without_data_ends_with_its_wait() {
    run(1, async |env| {
        let core = start_with(&env, 2).await;
        let begin = env.now();
        let wait = Duration::from_millis(500);
        let result = core.fetch(fetch_of(&[(0, 0), (1, 0)], wait)).await;
        let waited = env.now() - begin;
        assert!((wait..wait + MILLISECOND).contains(&waited), "{waited:?}");
        assert!(result.iter().all(|fetched| fetched.as_ref().unwrap().bytes == 0));
        let metrics = core.shard.metrics();
        assert_eq!((metrics.parked, metrics.expired_fetches, metrics.parked_fetches), (1, 1, 0));
    });
}

#[test]
fn t75_t83_t92_a_dropped_fetch_leaves_the_purgatory() {
    run(2, async |env| {
        let core = start_with(&env, 3).await;
        let request = fetch_of(&[(0, 0), (1, 0), (2, 0)], Duration::from_secs(30));
        assert!(core.within(MILLISECOND, core.fetch(request.clone())).await.is_none());
        let metrics = core.shard.metrics();
        assert_eq!((metrics.parked, metrics.parked_fetches, metrics.parked_places), (1, 0, 0));
        assert_eq!(core.shard.describe(partition(1)).unwrap().waiting_fetches, 0);
        // Ten thousand times: nothing piles up, nobody is woken for the dead.
        for _ in 0..10_000 {
            let fetch = core.fetch(request.clone());
            assert!(futures_lite::future::poll_once(fetch).await.is_none());
        }
        assert_eq!(core.shard.metrics().parked_fetches, 0);
        core.produce(0, &batch_of(&[b"a"])).await.unwrap();
    });
}

#[test]
fn min_bytes_are_waited_for_and_no_longer() {
    run(3, async |env| {
        let core = start_with(&env, 2).await;
        let batch = batch_of_bytes(1000);
        let request = FetchRequest { min_bytes: 3 * batch.len(), ..fetch_of(&[(0, 0), (1, 0)], Duration::from_secs(20)) };
        let answer = spawn_fetch(&core, request);
        for index in [0, 1] {
            core.produce(index, &batch).await.unwrap();
            core.sleep(MILLISECOND).await;
            assert!(answer.borrow().is_none(), "two batches aren't enough");
        }
        core.produce(1, &batch).await.unwrap();
        core.sleep(MILLISECOND).await;
        let result = answer.borrow_mut().take().unwrap();
        assert_eq!((batches(&result, 0).len(), batches(&result, 1).len()), (1, 2));
    });
}

#[test]
fn a_fetch_whose_limit_is_reached_does_not_wait_for_min_bytes() {
    run(4, async |env| {
        let core = start_with(&env, 1).await;
        for _ in 0..3 {
            core.produce(0, &batch_of_bytes(1000)).await.unwrap();
        }
        let begin = env.now();
        let request = FetchRequest { min_bytes: 2500, max_bytes: 2500, ..long_poll(0, 0) };
        assert_eq!(batches(&core.fetch(request).await, 0).len(), 2);
        assert!(env.now() - begin < Duration::from_secs(1));
    });
}

#[test]
fn t72_the_first_batch_is_given_whole_and_only_that_one_passes_the_limit() {
    run(5, async |env| {
        let core = start_with(&env, 3).await;
        for index in [1, 2] {
            core.produce(index, &batch_of_bytes(5000)).await.unwrap();
            core.produce(index, &batch_of_bytes(5000)).await.unwrap();
        }
        for _ in 0..20 {
            let request = FetchRequest { max_bytes: 10, ..fetch_of(&[(0, 0), (1, 0), (2, 0)], Duration::ZERO) };
            let result = core.fetch(request).await;
            let given: Vec<usize> = (0..3).map(|position| batches(&result, position).len()).collect();
            assert!(given == [0, 1, 0] || given == [0, 0, 1], "{given:?}");
        }
        // A partition's own limit is as soft, for the first that has data.
        let narrow = FetchPartition { max_bytes: 1, ..from(1, 0) };
        let request = FetchRequest { partitions: [narrow].into_iter().collect(), ..long_poll(1, 0) };
        assert_eq!(batches(&core.fetch(request).await, 0).len(), 1);
    });
}

#[test]
fn t73_no_partition_starves_behind_a_full_answer() {
    run(6, async |env| {
        let core = start_with(&env, 4).await;
        for index in 0..4 {
            core.produce(index, &batch_of_bytes(5000)).await.unwrap();
        }
        let mut served = [0; 4];
        for _ in 0..200 {
            let request = FetchRequest { max_bytes: 10, ..fetch_of(&[(0, 0), (1, 0), (2, 0), (3, 0)], Duration::ZERO) };
            let result = core.fetch(request).await;
            for (position, count) in served.iter_mut().enumerate() {
                *count += batches(&result, position).len();
            }
        }
        assert!(served.iter().all(|&count| count > 20), "{served:?}");
    });
}

#[test]
fn t30_an_offset_inside_a_batch_gives_that_batch_whole() {
    run(7, async |env| {
        let core = start_with(&env, 1).await;
        core.produce(0, &batch_of(&[b"a", b"b", b"c"])).await.unwrap();
        core.produce(0, &batch_of(&[b"d"])).await.unwrap();
        assert_eq!(core.read(0, 1).await, [b"a", b"b", b"c", b"d"]);
        assert_eq!(core.read(0, 3).await, [b"d"]);
        assert!(core.read(0, 4).await.is_empty());
    });
}

#[test]
fn a_consumer_sees_nothing_above_the_high_watermark_and_a_follower_does() {
    run(8, async |env| {
        let core = start_with(&env, 1).await;
        core.produce(0, &batch_of(&[b"a"])).await.unwrap();
        core.slow_disk(10_000);
        let _ticket = core.append(0, &batch_of(&[b"b"]), Acks::All).unwrap();
        for (reader, expected) in [(Reader::Consumer, 1), (Reader::CommittedConsumer, 1), (Reader::Follower, 2)] {
            let result = core.fetch(FetchRequest { reader, ..fetch_of(&[(0, 0)], Duration::ZERO) }).await;
            assert_eq!(values(&result, 0).len(), expected, "{reader:?}");
            let bounds = result[0].as_ref().unwrap().bounds;
            assert_eq!((bounds.log_start, bounds.last_stable, bounds.high_watermark), (Offset(0), Offset(1), Offset(1)));
        }
        // Between the high watermark and the log end is nothing to see, and nothing wrong.
        assert!(core.read(0, 2).await.is_empty());
    });
}

#[test]
fn errors_are_given_at_once_and_beside_the_other_partitions_data() {
    run(9, async |env| {
        let core = start_with(&env, 2).await;
        core.produce(0, &batch_of(&[b"a"])).await.unwrap();
        let code = async |wanted: FetchPartition| {
            let partitions = [from(0, 0), wanted].into_iter().collect();
            let result = core.fetch(FetchRequest { partitions, min_bytes: 1000, ..long_poll(0, 0) }).await;
            assert_eq!(values(&result, 0), [b"a"]);
            result[1].as_ref().unwrap_err().code()
        };
        let begin = env.now();
        assert_eq!(code(from(9, 0)).await, ErrorCode::UnknownTopicOrPartition);
        assert_eq!(code(from(0, 2)).await, ErrorCode::OffsetOutOfRange);
        assert_eq!(code(from(0, -1)).await, ErrorCode::OffsetOutOfRange);
        assert_eq!(code(FetchPartition { leader_epoch: LeaderEpoch(2), ..from(0, 0) }).await, ErrorCode::FencedLeaderEpoch);
        assert_eq!(code(FetchPartition { leader_epoch: LeaderEpoch(4), ..from(0, 0) }).await, ErrorCode::UnknownLeaderEpoch);
        assert!(env.now() - begin < Duration::from_millis(100));
    });
}

#[test]
fn t17_a_fetch_that_waits_at_a_deleted_partition_is_told_so() {
    run(10, async |env| {
        let core = start_with(&env, 2).await;
        let answer = spawn_fetch(&core, fetch_of(&[(0, 0), (1, 0)], Duration::from_secs(30)));
        core.sleep(MILLISECOND).await;
        core.slow_disk(100);
        let ticket = core.append(0, &batch_of(&[b"x"]), Acks::All).unwrap();
        let deleted = core.shard.clone();
        let done = Rc::new(Cell::new(false));
        let to = done.clone();
        env.spawn(async move {
            deleted.delete_partition(partition(0)).await.unwrap();
            to.set(true);
        });
        assert_eq!(ticket.await.unwrap_err().code(), ErrorCode::UnknownTopicOrPartition);
        core.sleep(MILLISECOND).await;
        let result = answer.borrow_mut().take().unwrap();
        assert_eq!(result[0].as_ref().unwrap_err().code(), ErrorCode::UnknownTopicOrPartition);
        assert!(result[1].is_ok());
        core.sleep(Duration::from_secs(5)).await;
        assert!(done.get());
        assert!(!core.directory.has_log(partition(0)).await.unwrap());
        assert!(core.directory.has_log(partition(1)).await.unwrap());
    });
}

/// Many consumers at the tail of few partitions while producers append: each sees every record once, in order, and nothing is left parked.
async fn tail_readers(env: SimEnv) {
    let core = start_with(&env, 3).await;
    let seen: Rc<RefCell<Vec<usize>>> = Rc::new(RefCell::new(vec![0; 12]));
    for reader in 0..12_usize {
        let (shard, seen) = (core.shard.clone(), seen.clone());
        let index = u32::try_from(reader % 3).unwrap();
        env.spawn(async move {
            let mut next = 0;
            while next < 50 {
                let result = shard.clone().fetch(long_poll(index, next)).await;
                for value in values(&result, 0) {
                    assert_eq!(value, next.to_be_bytes());
                    next += 1;
                    seen.borrow_mut()[reader] += 1;
                }
            }
        });
    }
    for number in 0..50_i64 {
        let mut tickets = Vec::new();
        for index in 0..3 {
            tickets.push(core.append(index, &batch_of(&[&number.to_be_bytes()]), Acks::All).unwrap());
        }
        if env.workload().below(2) == 0 {
            for ticket in tickets {
                ticket.await.unwrap();
            }
        }
    }
    core.sleep(Duration::from_secs(2)).await;
    assert_eq!(*seen.borrow(), vec![50; 12]);
    let metrics = core.shard.metrics();
    assert_eq!((metrics.parked_fetches, metrics.parked_places, metrics.expired_fetches), (0, 0, 0));
}

#[test]
fn tail_readers_see_every_record_once() {
    for seed in 0..20 {
        run(seed, tail_readers);
    }
}
