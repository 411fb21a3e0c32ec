use proptest::prelude::*;

use super::*;

const NOW: Timestamp = Timestamp(1_000_000_000);

fn batch(epoch: i16, first: i32, records: u32) -> ProducerBatch {
    ProducerBatch { producer: ProducerId(7), epoch: ProducerEpoch(epoch), first: Sequence(first), records }
}

fn at(base: i64) -> Place {
    Place { base: Offset(base), append_time: Timestamp(base * 10) }
}

/// A partition's log as far as producers see it.
#[derive(Default)]
struct Log {
    producers: Producers,
    end: i64,
    taken: Vec<(ProducerBatch, Place)>,
}

impl Log {
    fn produce(&mut self, batch: ProducerBatch) -> Result<Admission, ProducerRefused> {
        let admission = self.producers.admit(&batch, NOW)?;
        if admission == Admission::New {
            let place = at(self.end);
            self.producers.appended(&batch, place, NOW);
            self.taken.push((batch, place));
            self.end += i64::from(batch.records);
        }
        Ok(admission)
    }

    fn fill(&mut self, epoch: i16, first: i32, batches: u32, records: u32) {
        let mut next = Sequence(first);
        for _ in 0..batches {
            assert_eq!(self.produce(batch(epoch, next.0, records)), Ok(Admission::New), "{next}");
            next = next.plus(records);
        }
    }
}

#[test]
fn t45_each_of_the_last_five_batches_is_known_again_with_its_offset_and_time() {
    let mut log = Log::default();
    log.fill(0, 0, 7, 10);
    for number in 2..7 {
        let known = log.produce(batch(0, number * 10, 10));
        assert_eq!(known, Ok(Admission::Duplicate(at(i64::from(number) * 10))));
    }
    assert_eq!(log.end, 70, "nothing was appended twice");
    assert_eq!(log.produce(batch(0, 70, 10)), Ok(Admission::New), "a duplicate doesn't move the window");
}

#[test]
fn t45_older_batches_and_gaps_have_errors_of_their_own() {
    let mut log = Log::default();
    log.fill(0, 0, 7, 10);
    let old = log.produce(batch(0, 10, 10)).unwrap_err();
    assert!(matches!(old, ProducerRefused::OldDuplicate { first: Sequence(10), .. }), "{old}");
    assert_eq!(old.code(), ErrorCode::DuplicateSequenceNumber);
    let gap = log.produce(batch(0, 80, 10)).unwrap_err();
    assert!(matches!(gap, ProducerRefused::OutOfOrder { first: Sequence(80), expected: Sequence(70), .. }), "{gap}");
    assert_eq!(gap.code(), ErrorCode::OutOfOrderSequenceNumber);
    assert!(gap.to_string().contains("80") && gap.to_string().contains("70"), "{gap}");
}

#[test]
fn records_that_came_in_other_batches_are_refused() {
    let mut log = Log::default();
    log.fill(0, 0, 7, 10);
    for (first, records) in [(60, 11), (65, 5), (60, 5), (15, 10), (19, 2), (69, 1)] {
        let refused = log.produce(batch(0, first, records));
        assert!(matches!(refused, Err(ProducerRefused::OutOfOrder { .. })), "{first} + {records}: {refused:?}");
    }
}

#[test]
fn what_was_never_taken_is_no_duplicate() {
    // The first batch that is known of this producer begins at 100: what was before may never have arrived.
    let mut log = Log::default();
    log.fill(0, 100, 6, 1);
    let refused = log.produce(batch(0, 90, 5));
    assert!(matches!(refused, Err(ProducerRefused::OutOfOrder { .. })), "{refused:?}");
    assert!(matches!(log.produce(batch(0, 100, 1)), Err(ProducerRefused::OldDuplicate { .. })));
}

#[test]
fn t44_sequences_wrap() {
    let mut log = Log::default();
    log.fill(0, i32::MAX - 14, 4, 10);
    assert_eq!(log.produce(batch(0, 25, 1)), Ok(Admission::New));
    let wrapping = log.produce(batch(0, i32::MAX - 4, 10));
    assert_eq!(wrapping, Ok(Admission::Duplicate(at(10))), "the batch that holds the wrap");
    log.fill(0, 26, 3, 1);
    assert!(matches!(log.produce(batch(0, i32::MAX - 14, 10)), Err(ProducerRefused::OldDuplicate { .. })));
    assert_eq!(Sequence(i32::MAX).plus(1), Sequence(0));
    assert_eq!(Sequence(3).since(Sequence(i32::MAX)), 4);
}

#[test]
fn t26_a_batch_that_is_not_appended_changes_nothing() {
    let mut log = Log::default();
    log.fill(0, 0, 2, 10);
    let before = log.producers.clone();
    assert_eq!(log.producers.admit(&batch(0, 20, 10), NOW), Ok(Admission::New));
    assert_eq!(log.producers.admit(&batch(1, 0, 10), NOW), Ok(Admission::New));
    assert_eq!(log.producers, before, "its append failed");
    assert_eq!(log.produce(batch(0, 20, 10)), Ok(Admission::New), "and it is sent again");
}

#[test]
fn a_newer_instance_begins_at_0_and_fences_the_older_one() {
    let mut log = Log::default();
    log.fill(3, 0, 2, 10);
    let late = log.produce(batch(4, 20, 1)).unwrap_err();
    assert!(matches!(late, ProducerRefused::FirstOfEpoch { first: Sequence(20), .. }), "{late}");
    assert_eq!(late.code(), ErrorCode::OutOfOrderSequenceNumber);
    assert_eq!(log.produce(batch(4, 0, 10)), Ok(Admission::New), "the same sequence as the old one's first");
    let fenced = log.produce(batch(3, 20, 10)).unwrap_err();
    assert_eq!(fenced.code(), ErrorCode::InvalidProducerEpoch);
    assert_eq!(log.produce(batch(4, 0, 10)), Ok(Admission::Duplicate(at(20))));
    assert!(matches!(log.produce(batch(4, 20, 1)), Err(ProducerRefused::OutOfOrder { .. })), "of the old epoch nothing is known");
}

#[test]
fn t46_a_producer_that_was_forgotten_goes_on_where_it_was() {
    let mut log = Log::default();
    log.fill(0, 0, 5, 10);
    assert_eq!(log.producers.expire(Timestamp(NOW.0 + 999), 1_000), 0);
    assert_eq!(log.producers.expire(Timestamp(NOW.0 + 1_000), 1_000), 1);
    assert!(log.producers.is_empty());
    assert_eq!(log.produce(batch(0, 50, 10)), Ok(Admission::New));
    assert!(matches!(log.produce(batch(0, 70, 10)), Err(ProducerRefused::OutOfOrder { .. })));
}

#[test]
fn t47_no_more_producers_are_remembered_than_may_and_none_that_may_still_retry_is_given_up() {
    let mut producers = Producers::new();
    let of = |id: usize| ProducerBatch { producer: ProducerId(i64::try_from(id).unwrap()), ..batch(0, 0, 1) };
    for id in 0..PRODUCERS_PER_PARTITION_MAX {
        producers.appended(&of(id), at(0), Timestamp(NOW.0 + i64::try_from(id).unwrap()));
    }
    let one_more = of(PRODUCERS_PER_PARTITION_MAX);
    let soon = Timestamp(NOW.0 + RETRIES_END_MS - 1);
    let refused = producers.admit(&one_more, soon).unwrap_err();
    assert_eq!((refused, refused.code()), (ProducerRefused::TooManyProducers, ErrorCode::ThrottlingQuotaExceeded));
    assert_eq!(producers.admit(&of(5), soon), Ok(Admission::Duplicate(at(0))), "those that are known go on");

    let later = Timestamp(NOW.0 + RETRIES_END_MS);
    assert_eq!(producers.admit(&one_more, later), Ok(Admission::New));
    producers.appended(&one_more, at(1), later);
    assert_eq!(producers.len(), PRODUCERS_PER_PARTITION_MAX);
    assert_eq!(producers.admit(&of(1), later), Ok(Admission::Duplicate(at(0))), "the longest silent one went, no other");
}

#[test]
fn damaged_snapshots_are_refused() {
    let mut log = Log::default();
    log.fill(0, 0, 7, 10);
    let bytes = log.producers.to_snapshot();
    for cut in 0..bytes.len() {
        assert!(Producers::from_snapshot(&bytes[..cut]).is_err(), "cut at {cut}");
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(Producers::from_snapshot(&longer).is_err());
    let mut newer = bytes.clone();
    newer[0] = 2;
    assert_eq!(Producers::from_snapshot(&newer), Err(SnapshotError::Version(2)));
    let mut many = bytes;
    many[2..6].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(Producers::from_snapshot(&many), Err(SnapshotError::Damaged { at: 6, .. })));
}

/// What a client may do: send the next batch, one of the last again, jump, or come back as a new instance.
#[derive(Clone, Debug)]
enum Act {
    Next { producer: i64, records: u32 },
    Again { producer: i64, back: usize },
    Jump { producer: i64, first: i32, records: u32 },
    Restart { producer: i64, records: u32 },
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let producer = 0..3_i64;
    let act = prop_oneof![
        4 => (producer.clone(), 1..20_u32).prop_map(|(producer, records)| Act::Next { producer, records }),
        3 => (producer.clone(), 0..9_usize).prop_map(|(producer, back)| Act::Again { producer, back }),
        1 => (producer.clone(), 0..i32::MAX, 1..20_u32).prop_map(|(producer, first, records)| Act::Jump { producer, first, records }),
        1 => (producer, 1..20_u32).prop_map(|(producer, records)| Act::Restart { producer, records }),
    ];
    proptest::collection::vec(act, 1..120)
}

fn sent(log: &Log, start: i32, act: &Act) -> Option<ProducerBatch> {
    let of = |producer: i64| log.taken.iter().filter(move |(batch, _)| batch.producer.0 == producer).map(|(batch, _)| *batch);
    let made = |producer, epoch, first, records| ProducerBatch { producer: ProducerId(producer), epoch, first, records };
    Some(match *act {
        Act::Next { producer, records } => match of(producer).next_back() {
            Some(last) => made(producer, last.epoch, last.first.plus(last.records), records),
            None => made(producer, ProducerEpoch(0), Sequence(start), records),
        },
        Act::Again { producer, back } => of(producer).rev().nth(back)?,
        Act::Jump { producer, first, records } => made(producer, of(producer).next_back()?.epoch, Sequence(first), records),
        Act::Restart { producer, records } => {
            made(producer, ProducerEpoch(of(producer).next_back()?.epoch.0 + 1), Sequence(0), records)
        }
    })
}

proptest! {
    /// Against a list of all that was taken: each sequence of an epoch is appended once, in order; a batch that is one of the last five of its
    /// epoch gets its first place; a replay of the log on top of a snapshot at any point gives the same state (trap T48).
    #[test]
    fn t48_no_sequence_is_taken_twice_or_out_of_order_and_a_replay_gives_the_same_state(
        start in prop_oneof![Just(0), Just(i32::MAX - 30), 0..i32::MAX],
        acts in acts(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut log = Log::default();
        let mut snapshots = vec![log.producers.to_snapshot()];
        for act in &acts {
            let Some(sent) = sent(&log, start, act) else { continue };
            let before = log.taken.clone();
            let epoch_of = |b: &ProducerBatch| (b.producer, b.epoch) == (sent.producer, sent.epoch);
            let mine: Vec<_> = before.iter().filter(|(b, _)| epoch_of(b)).collect();
            match log.produce(sent) {
                Ok(Admission::New) => {
                    snapshots.push(log.producers.to_snapshot());
                    if let Some((last, _)) = mine.last() {
                        prop_assert_eq!(sent.first, last.first.plus(last.records));
                    }
                }
                Ok(Admission::Duplicate(place)) => {
                    let original = mine.iter().rev().take(PRODUCER_BATCHES_REMEMBERED).find(|(b, _)| *b == sent);
                    prop_assert_eq!(original.map(|(_, place)| *place), Some(place));
                }
                Err(ProducerRefused::OldDuplicate { .. }) => {
                    let next = mine.last().map(|(b, _)| b.first.plus(b.records)).unwrap();
                    let run: u64 = mine.iter().map(|(b, _)| u64::from(b.records)).sum();
                    prop_assert!(u64::from(next.since(sent.first)) <= run, "it was never taken");
                }
                Err(ProducerRefused::Fenced { .. }) => {
                    prop_assert!(before.iter().any(|(b, _)| b.producer == sent.producer && b.epoch > sent.epoch));
                }
                Err(_) => {
                    let known = mine.iter().rev().take(PRODUCER_BATCHES_REMEMBERED).any(|(b, _)| *b == sent);
                    prop_assert!(!known, "one of the last five was refused");
                }
            }
        }
        let from = cut.index(snapshots.len());
        let mut replayed = Producers::from_snapshot(&snapshots[from]).unwrap();
        for (batch, place) in &log.taken[from..] {
            replayed.appended(batch, *place, NOW);
        }
        prop_assert_eq!(replayed, log.producers);
    }
}
