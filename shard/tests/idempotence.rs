//! Idempotent producers on one core: retries land once, whatever the disk and the host do between.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::VecDeque;
use std::time::Duration;

use cluster::metadata::TopicConfig;
use cluster::replica::Acks;
use common::*;
use protocol::batch::{BatchBuilder, ProducerFields, RecordFields};
use protocol::compression::Codec;
use protocol::error::{ErrorCode, WireError};
use protocol::ids::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};
use protocol::native::DeleteBefore;
use runtime::Env;
use shard::PartitionPlace;
use sim::{Crash, DiskFaults, SimEnv, run};

/// A batch of `records` records, each of `bytes` bytes that begin with producer and sequence.
fn batch_from(producer: i64, epoch: i16, first: i32, records: u32, bytes: usize) -> Vec<u8> {
    let fields = ProducerFields {
        producer_id: ProducerId(producer),
        producer_epoch: ProducerEpoch(epoch),
        base_sequence: Sequence(first),
        ..ProducerFields::NONE
    };
    let mut builder = BatchBuilder::new(Codec::None).producer(fields);
    for record in 0..records {
        let mut value = producer.to_le_bytes().to_vec();
        value.extend(Sequence(first).plus(record).0.to_le_bytes());
        value.resize(bytes.max(12), 7);
        builder.push(&RecordFields { timestamp: Timestamp(1), key: None, value: Some(&value), headers: &[] }).unwrap();
    }
    builder.finish().unwrap()
}

fn small(producer: i64, epoch: i16, first: i32) -> Vec<u8> {
    batch_from(producer, epoch, first, 2, 100)
}

#[test]
fn t45_a_batch_that_is_sent_again_gets_its_first_offset_and_lands_once() {
    run(1, async |env| {
        let core = start_with(&env, 1).await;
        core.produce(0, &batch_of(&[b"of nobody"])).await.unwrap();
        for batch in 0..6 {
            assert_eq!(core.produce(0, &small(9, 0, batch * 2)).await.unwrap().base_offset.0, i64::from(1 + batch * 2));
        }
        for batch in 1..6 {
            assert_eq!(core.produce(0, &small(9, 0, batch * 2)).await.unwrap().base_offset.0, i64::from(1 + batch * 2));
        }
        let old = core.produce(0, &small(9, 0, 0)).await.unwrap_err();
        assert_eq!(old.code(), ErrorCode::DuplicateSequenceNumber);
        let gap = core.produce(0, &small(9, 0, 14)).await.unwrap_err();
        assert_eq!(gap.code(), ErrorCode::OutOfOrderSequenceNumber);
        assert_eq!(core.shard.describe(partition(0)).unwrap().log_end, Offset(13));
        core.produce(0, &small(9, 1, 0)).await.unwrap();
        let fenced = core.produce(0, &small(9, 0, 12)).await.unwrap_err();
        assert_eq!(fenced.code(), ErrorCode::InvalidProducerEpoch);
    });
}

#[test]
fn t46_a_producer_is_known_after_its_records_were_deleted() {
    run(7, async |env| {
        let core = start_with(&env, 1).await;
        for batch in 0..3 {
            core.produce(0, &small(9, 0, batch * 2)).await.unwrap();
        }
        let deadline = core.env.now() + Duration::from_secs(10);
        let deleted = core.shard.delete_records(&[(partition(0), DeleteBefore::HighWatermark)], deadline).await;
        assert_eq!(*deleted[0].as_ref().unwrap(), Offset(6));
        assert_eq!(core.produce(0, &small(9, 0, 4)).await.unwrap().base_offset, Offset(4), "sent again");
        let core = restart(env, 1, Crash::PowerCut).await;
        assert_eq!(core.produce(0, &small(9, 0, 4)).await.unwrap().base_offset, Offset(4), "sent again, after a crash");
        assert_eq!(core.produce(0, &small(9, 0, 6)).await.unwrap().base_offset, Offset(6));
        assert_eq!(core.produce(0, &small(9, 0, 10)).await.unwrap_err().code(), ErrorCode::OutOfOrderSequenceNumber);
    });
}

#[test]
fn a_batch_that_is_sent_again_is_acknowledged_no_sooner_than_the_first_one() {
    run(2, async |env| {
        let core = start_with(&env, 1).await;
        core.slow_disk(1000);
        let first = core.append(0, &small(9, 0, 0), Acks::All).unwrap();
        let next = core.append(0, &small(9, 0, 2), Acks::All).unwrap();
        let again = core.append(0, &small(9, 0, 0), Acks::All).unwrap();
        let leader = core.append(0, &small(9, 0, 0), Acks::Leader).unwrap();
        core.sleep(MILLISECOND).await;
        assert!(!first.is_settled() && !again.is_settled() && !leader.is_settled(), "nothing is written yet");
        assert_eq!(again.await.unwrap().base_offset, Offset(0));
        assert_eq!(leader.await.unwrap().base_offset, Offset(0));
        assert_eq!((first.await.unwrap().base_offset, next.await.unwrap().base_offset), (Offset(0), Offset(2)));
        // By now it is acknowledged, and no write will come that would tell.
        let late = core.append(0, &small(9, 0, 2), Acks::All).unwrap();
        assert!(late.is_settled());
        assert_eq!(late.await.unwrap().base_offset, Offset(2));
    });
}

#[test]
fn t26_a_batch_for_which_there_was_no_space_is_new_when_it_is_sent_again() {
    run(3, async |env| {
        let core = start_with(&env, 1).await;
        env.set_disk_faults(DiskFaults { bytes_taken: u64::MAX / 2, ..DiskFaults::default() });
        let (mut next, mut refused) = (0, None);
        while refused.is_none() {
            match core.produce(0, &batch_from(9, 0, next, 1, 100_000)).await {
                Ok(_) => next += 1,
                Err(error) => refused = Some(error),
            }
        }
        assert_eq!(refused.unwrap().code(), ErrorCode::KafkaStorageError);
        core.heal_disk();
        core.sleep(Duration::from_secs(3)).await;
        let produced = core.produce(0, &batch_from(9, 0, next, 1, 100_000)).await.unwrap();
        assert_eq!(produced.base_offset, Offset(i64::from(next)));
    });
}

/// A producer that sends each batch until it is acknowledged, and sometimes once more.
struct Sender {
    id: i64,
    next: i32,
    /// Acknowledged: sequence, records and offset of the last batches.
    acknowledged: VecDeque<(i32, u32, Offset)>,
    /// Sent, and not acknowledged when the host went down.
    pending: VecDeque<(i32, u32)>,
}

const BYTES: [usize; 3] = [40, 3_000, 60_000];

fn bytes_of(first: i32) -> usize {
    BYTES[usize::try_from(first).unwrap() % 3]
}

impl Sender {
    async fn send(&mut self, core: &Core, first: i32, records: u32) {
        let batch = batch_from(self.id, 0, first, records, bytes_of(first));
        let produced = core.produce(0, &batch).await.unwrap();
        self.acknowledged.push_back((first, records, produced.base_offset));
        if self.acknowledged.len() > 5 {
            self.acknowledged.pop_front();
        }
    }

    /// The last ones again, then what wasn't acknowledged, in order. What of that had landed counts among the five that are known.
    async fn resume(&mut self, core: &Core) {
        let known = 5 - self.pending.len().min(5);
        let skipped = self.acknowledged.len().saturating_sub(known);
        for (first, records, offset) in self.acknowledged.iter().skip(skipped) {
            let batch = batch_from(self.id, 0, *first, *records, bytes_of(*first));
            assert_eq!(core.produce(0, &batch).await.unwrap().base_offset, *offset, "producer {} sequence {first}", self.id);
        }
        for (first, records) in std::mem::take(&mut self.pending) {
            self.send(core, first, records).await;
        }
    }

    async fn step(&mut self, core: &Core) {
        let random = core.env.workload();
        match random.below(4) {
            0 if !self.acknowledged.is_empty() => {
                let (first, records, offset) = self.acknowledged[random.index(self.acknowledged.len())];
                let batch = batch_from(self.id, 0, first, records, bytes_of(first));
                assert_eq!(core.produce(0, &batch).await.unwrap().base_offset, offset);
            }
            _ => {
                let records = 1 + u32::try_from(random.below(4)).unwrap();
                let first = self.next;
                self.next += i32::try_from(records).unwrap();
                self.send(core, first, records).await;
            }
        }
    }

    /// Sends some whose outcome the host's end hides.
    fn leave(&mut self, core: &Core) {
        for _ in 0..core.env.workload().below(4) {
            let first = self.next;
            self.next += 1;
            self.pending.push_back((first, 1));
            drop(core.append(0, &batch_from(self.id, 0, first, 1, bytes_of(first)), Acks::All).unwrap());
        }
    }
}

async fn restart(env: SimEnv, start: i32, how: Crash) -> Core {
    env.crash(how);
    let core = common::start(&env.restart()).await;
    let place = PartitionPlace { leader_epoch: LeaderEpoch(EPOCH.0 + start), ..core.place(0) };
    core.shard.open_partition(place, settings(), |_| {}).await.unwrap();
    core
}

fn settings() -> TopicConfig {
    TopicConfig { segment_bytes: 1 << 20, ..TopicConfig::default() }
}

/// Values of the log by producer, in order.
async fn sequences(core: &Core, producer: i64) -> Vec<i32> {
    let mut found = Vec::new();
    let mut offset = 0;
    loop {
        let values = core.read(0, offset).await;
        if values.is_empty() {
            return found;
        }
        offset += i64::try_from(values.len()).unwrap();
        for value in values {
            let number = |at: usize, len: usize| value[at..at + len].to_vec();
            if i64::from_le_bytes(number(0, 8).try_into().unwrap()) == producer {
                found.push(i32::from_le_bytes(number(8, 4).try_into().unwrap()));
            }
        }
    }
}

/// Rolls, persisted indexes, checkpoints, kills and power cuts, at any point: each record is in the log once, in order, and each retry gets
/// the first offset.
#[test]
fn t48_retries_land_once_across_rolls_and_crashes() {
    for seed in 0..40 {
        run(seed, async |env| {
            let mut core = start(&env).await;
            core.create(0, settings()).await;
            let mut senders: Vec<Sender> =
                (0..3).map(|id| Sender { id, next: 0, acknowledged: VecDeque::new(), pending: VecDeque::new() }).collect();
            for start in 1..5 {
                for _ in 0..core.env.workload().below(40) {
                    let index = core.env.workload().index(senders.len());
                    senders[index].step(&core).await;
                    if core.env.workload().chance(1, 8) {
                        // Maintenance persists, and a checkpoint follows.
                        core.sleep(Duration::from_millis(core.env.workload().below(60_000))).await;
                    }
                }
                senders.iter_mut().for_each(|sender| sender.leave(&core));
                core.sleep(Duration::from_micros(core.env.workload().below(2_000))).await;
                let how = if core.env.workload().chance(1, 2) { Crash::PowerCut } else { Crash::Kill };
                core = restart(core.env.clone(), start, how).await;
                for sender in &mut senders {
                    sender.resume(&core).await;
                }
            }
            for sender in &senders {
                assert_eq!(sequences(&core, sender.id).await, (0..sender.next).collect::<Vec<_>>(), "producer {}", sender.id);
            }
        });
    }
}
