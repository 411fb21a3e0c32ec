//! The order rule, without a network.

use super::*;
use crate::config::ProducerConfig;
use crate::delivery::Delivery;
use crate::record::Record;
use protocol::batch::BatchView;
use protocol::ids::Timestamp;

struct Fixture {
    queue: Queue,
    now: Instant,
}

impl Fixture {
    fn new(window: usize, retry: Retry) -> Fixture {
        let policy = Policy {
            idempotent: false,
            window,
            retry,
            backoff: Duration::from_millis(10),
            delivery_timeout: Duration::from_secs(10),
        };
        Fixture { queue: Queue::new("t".into(), PartitionIndex(0), policy), now: Instant::now() }
    }

    /// Puts one batch of one record into the queue.
    fn put(&mut self) -> Delivery {
        let config = ProducerConfig { delivery_timeout: Duration::from_secs(10), ..ProducerConfig::default() };
        let outcome = BatchOutcome::new("t".into(), PartitionIndex(0));
        let mut open = OpenBatch::new(&config, outcome.clone(), self.now);
        open.push(&Record::value("v"), Timestamp(0), 100).unwrap();
        *self.queue.open_mut() = Some(open);
        self.queue.close_open();
        Delivery::new(outcome, 0)
    }

    /// Sends all that may leave; their numbers.
    fn send(&mut self) -> Vec<u64> {
        let mut sent = Vec::new();
        while let Some(batch) = self.queue.next_batch(self.now) {
            sent.push(self.queue.sent(batch, 1));
        }
        sent
    }

    /// One that belongs to an idempotent producer, of which the server knows a batch.
    fn idempotent(window: usize, retry: Retry) -> Fixture {
        let mut fixture = Fixture::new(window, retry);
        fixture.queue.sequences = Some(Sequences::new());
        fixture.queue.policy.idempotent = true;
        assert!(fixture.queue.lacks_producer());
        let first = fixture.put();
        assert!(fixture.send().is_empty(), "nobody has said who sends");
        assert!(fixture.queue.give_producer(ProducerId(7)));
        assert_eq!(fixture.send_stamped(), [(0, 0, 0)]);
        fixture.end(0, accepted(0));
        assert!(matches!(first.try_result(), Some(Ok(_))));
        fixture
    }

    /// Sends all that may leave: number, producer epoch and sequence of each.
    fn send_stamped(&mut self) -> Vec<(u64, i16, i32)> {
        let mut sent = Vec::new();
        while let Some(batch) = self.queue.next_batch(self.now) {
            let view = BatchView::whole(&batch.bytes).unwrap();
            view.verify_crc().unwrap();
            assert_eq!(view.producer_id(), ProducerId(7));
            let (epoch, sequence) = (view.producer_epoch().0, view.base_sequence().0);
            sent.push((self.queue.sent(batch, 1), epoch, sequence));
        }
        sent
    }

    fn end(&mut self, sequence: u64, attempt: Attempt) {
        self.queue.attempt_ended(sequence, attempt, self.now);
    }
}

fn accepted(offset: i64) -> Attempt {
    Attempt::Accepted { base_offset: Some(Offset(offset)), append_time: None }
}

fn refused() -> Attempt {
    Attempt::Refused { code: ErrorCode::NotEnoughReplicas, message: String::new() }
}

fn lost() -> Attempt {
    Attempt::Unknown { reason: "lost".to_owned() }
}

#[test]
fn the_window_bounds_what_is_under_way() {
    let mut fixture = Fixture::new(3, Retry::Refused);
    let _deliveries: Vec<_> = (0..5).map(|_| fixture.put()).collect();
    assert_eq!(fixture.send(), [0, 1, 2]);
    fixture.end(1, accepted(1));
    assert_eq!(fixture.send(), [3]);
}

#[test]
fn a_refused_batch_waits_for_those_behind_it_and_fails_when_one_is_accepted() {
    let mut fixture = Fixture::new(3, Retry::Refused);
    let deliveries: Vec<_> = (0..4).map(|_| fixture.put()).collect();
    fixture.send();
    fixture.end(0, refused());
    assert!(deliveries[0].try_result().is_none(), "a later batch may still be refused too");
    assert!(fixture.send().is_empty(), "nothing new leaves while one waits");
    fixture.end(1, accepted(0));
    assert!(matches!(deliveries[0].try_result(), Some(Err(DeliveryError::Overtaken { .. }))));
    assert!(matches!(deliveries[1].try_result(), Some(Ok(_))));
    fixture.end(2, accepted(1));
    assert_eq!(fixture.send(), [3]);
}

#[test]
fn all_refused_go_again_in_order_after_a_pause() {
    let mut fixture = Fixture::new(3, Retry::Refused);
    let deliveries: Vec<_> = (0..4).map(|_| fixture.put()).collect();
    fixture.send();
    // In any order of replies.
    fixture.end(2, refused());
    fixture.end(0, refused());
    fixture.end(1, refused());
    assert!(fixture.send().is_empty(), "a pause first");
    assert_eq!(fixture.queue.next_event(), Some(fixture.now + Duration::from_millis(10)));
    fixture.now += Duration::from_millis(10);
    assert_eq!(fixture.send(), [3, 4, 5]);
    for (offset, sequence) in [3, 4, 5].into_iter().enumerate() {
        fixture.end(sequence, accepted(i64::try_from(offset).unwrap()));
    }
    for (index, delivery) in deliveries.iter().take(3).enumerate() {
        let delivered = delivery.try_result().unwrap().unwrap();
        assert_eq!(delivered.offset, Some(Offset(i64::try_from(index).unwrap())));
    }
}

#[test]
fn an_unknown_outcome_counts_as_overtaking() {
    let mut fixture = Fixture::new(3, Retry::Refused);
    let deliveries: Vec<_> = (0..2).map(|_| fixture.put()).collect();
    fixture.send();
    fixture.end(0, refused());
    fixture.end(1, lost());
    assert!(matches!(deliveries[0].try_result(), Some(Err(DeliveryError::Overtaken { .. }))));
    assert!(matches!(deliveries[1].try_result(), Some(Err(DeliveryError::Unknown { .. }))));
}

#[test]
fn what_may_have_been_appended_is_never_reported_as_failed() {
    let mut fixture = Fixture::new(1, Retry::RefusedAndUnknown);
    let delivery = fixture.put();
    fixture.send();
    fixture.end(0, lost());
    fixture.now += Duration::from_secs(1);
    assert_eq!(fixture.send(), [1]);
    fixture.end(1, Attempt::Refused { code: ErrorCode::InvalidRecord, message: String::new() });
    assert!(matches!(delivery.try_result(), Some(Err(DeliveryError::Unknown { .. }))));

    let delivery = fixture.put();
    fixture.send();
    fixture.end(2, lost());
    fixture.now += Duration::from_secs(20);
    fixture.queue.expire(fixture.now);
    assert!(matches!(delivery.try_result(), Some(Err(DeliveryError::Unknown { .. }))));
}

#[test]
fn without_retries_each_failure_is_final() {
    let mut fixture = Fixture::new(2, Retry::Never);
    let deliveries: Vec<_> = (0..2).map(|_| fixture.put()).collect();
    fixture.send();
    fixture.end(0, refused());
    fixture.end(1, Attempt::NotSent { reason: "closed".to_owned() });
    assert!(matches!(deliveries[0].try_result(), Some(Err(DeliveryError::Refused { .. }))));
    assert!(matches!(deliveries[1].try_result(), Some(Err(DeliveryError::NotSent { .. }))));
    assert!(fixture.queue.is_empty());
    assert_eq!(fixture.queue.take_freed_bytes(), 200);
}

#[test]
fn what_is_in_flight_keeps_the_partition_on_its_connection() {
    let mut fixture = Fixture::new(2, Retry::Refused);
    let _deliveries = [fixture.put(), fixture.put()];
    let batch = fixture.queue.next_batch(fixture.now).unwrap();
    let sequence = fixture.queue.sent(batch, 1);
    assert!(fixture.queue.may_use(1) && !fixture.queue.may_use(2));
    fixture.end(sequence, accepted(0));
    assert!(fixture.queue.may_use(2));
}

#[test]
fn ending_settles_every_batch_once() {
    let mut fixture = Fixture::new(2, Retry::Refused);
    let deliveries: Vec<_> = (0..5).map(|_| fixture.put()).collect();
    fixture.send();
    fixture.end(0, refused());
    fixture.queue.end();
    assert!(fixture.queue.is_empty());
    assert!(deliveries.iter().all(|delivery| matches!(delivery.try_result(), Some(Err(_)))));
    assert_eq!(fixture.queue.take_freed_bytes(), 500);
    fixture.end(1, accepted(0));
}

fn out_of_order() -> Attempt {
    Attempt::Refused { code: ErrorCode::OutOfOrderSequenceNumber, message: String::new() }
}

#[test]
fn batches_have_one_run_of_sequences_and_keep_them_when_they_go_again() {
    let mut fixture = Fixture::idempotent(3, Retry::Refused);
    let deliveries: Vec<_> = (0..3).map(|_| fixture.put()).collect();
    assert_eq!(fixture.send_stamped(), [(1, 0, 1), (2, 0, 2), (3, 0, 3)]);
    fixture.end(1, lost());
    fixture.end(2, Attempt::Refused { code: ErrorCode::RequestTimedOut, message: String::new() });
    fixture.end(3, Attempt::NotSent { reason: "closed".to_owned() });
    fixture.now += Duration::from_secs(1);
    assert_eq!(fixture.send_stamped(), [(4, 0, 1), (5, 0, 2), (6, 0, 3)]);
    for (offset, sequence) in [4, 5, 6].into_iter().enumerate() {
        fixture.end(sequence, accepted(i64::try_from(offset).unwrap()));
    }
    assert!(deliveries.iter().all(|delivery| matches!(delivery.try_result(), Some(Ok(_)))));
}

#[test]
fn until_the_server_knows_the_producer_one_batch_is_under_way() {
    let mut fixture = Fixture::new(3, Retry::Refused);
    fixture.queue.sequences = Some(Sequences::new());
    fixture.queue.policy.idempotent = true;
    fixture.queue.give_producer(ProducerId(7));
    let _deliveries: Vec<_> = (0..3).map(|_| fixture.put()).collect();
    assert_eq!(fixture.send_stamped(), [(0, 0, 0)]);
    fixture.end(0, refused());
    fixture.now += Duration::from_secs(1);
    assert_eq!(fixture.send_stamped(), [(1, 0, 0)]);
    fixture.end(1, accepted(0));
    assert_eq!(fixture.send_stamped(), [(2, 0, 1), (3, 0, 2)]);
}

#[test]
fn a_batch_that_is_refused_for_what_is_missing_before_it_goes_again_behind_that() {
    let mut fixture = Fixture::idempotent(3, Retry::Refused);
    let deliveries: Vec<_> = (0..2).map(|_| fixture.put()).collect();
    fixture.send();
    fixture.end(1, refused());
    fixture.end(2, out_of_order());
    fixture.now += Duration::from_secs(1);
    assert_eq!(fixture.send_stamped(), [(3, 0, 1), (4, 0, 2)]);
    fixture.end(3, accepted(1));
    fixture.end(4, accepted(2));
    assert!(deliveries.iter().all(|delivery| matches!(delivery.try_result(), Some(Ok(_)))));
}

#[test]
fn what_the_server_has_lost_begins_a_new_epoch_with_the_batch_that_it_refused() {
    let mut fixture = Fixture::idempotent(3, Retry::Refused);
    let deliveries: Vec<_> = (0..3).map(|_| fixture.put()).collect();
    assert_eq!(fixture.send_stamped(), [(1, 0, 1), (2, 0, 2), (3, 0, 3)]);
    fixture.end(1, lost());
    fixture.end(2, lost());
    fixture.end(3, lost());
    fixture.now += Duration::from_secs(1);
    assert_eq!(fixture.send_stamped(), [(4, 0, 1), (5, 0, 2), (6, 0, 3)]);
    // The power cut has taken the batch before them too, which was acknowledged.
    for sequence in [4, 5, 6] {
        fixture.end(sequence, out_of_order());
    }
    fixture.now += Duration::from_secs(1);
    assert_eq!(fixture.send_stamped(), [(7, 1, 0)]);
    fixture.end(7, accepted(0));
    assert_eq!(fixture.send_stamped(), [(8, 1, 1), (9, 1, 2)]);
    fixture.end(8, accepted(1));
    fixture.end(9, accepted(2));
    assert!(deliveries.iter().all(|delivery| matches!(delivery.try_result(), Some(Ok(_)))));
}

#[test]
fn without_retries_a_batch_out_of_order_has_failed() {
    let mut fixture = Fixture::idempotent(1, Retry::Never);
    let delivery = fixture.put();
    fixture.send();
    fixture.end(1, out_of_order());
    assert!(matches!(delivery.try_result(), Some(Err(DeliveryError::Refused { .. }))));
}

#[test]
fn a_batch_that_fails_for_good_lets_those_behind_it_begin_a_new_epoch() {
    let mut fixture = Fixture::idempotent(3, Retry::Refused);
    let deliveries: Vec<_> = (0..4).map(|_| fixture.put()).collect();
    assert_eq!(fixture.send().len(), 3);
    fixture.end(1, Attempt::Refused { code: ErrorCode::InvalidRecord, message: String::new() });
    assert!(fixture.send().is_empty(), "nothing leaves behind the gap while something is under way");
    fixture.end(2, out_of_order());
    fixture.end(3, out_of_order());
    fixture.now += Duration::from_secs(1);
    assert_eq!(fixture.send_stamped(), [(4, 1, 0)]);
    fixture.end(4, accepted(1));
    assert_eq!(fixture.send_stamped(), [(5, 1, 1), (6, 1, 2)]);
    fixture.end(5, accepted(2));
    fixture.end(6, accepted(3));
    assert!(matches!(deliveries[0].try_result(), Some(Err(DeliveryError::Refused { .. }))));
    assert!(deliveries[1..].iter().all(|delivery| matches!(delivery.try_result(), Some(Ok(_)))));
}

#[test]
fn a_batch_that_runs_out_of_time_is_a_gap_too() {
    let mut fixture = Fixture::idempotent(1, Retry::Refused);
    let late = fixture.put();
    fixture.send();
    fixture.end(1, lost());
    fixture.now += Duration::from_secs(20);
    fixture.queue.expire(fixture.now);
    assert!(matches!(late.try_result(), Some(Err(DeliveryError::Unknown { .. }))));
    let _next = fixture.put();
    assert_eq!(fixture.send_stamped(), [(2, 1, 0)]);
}

#[test]
fn a_batch_that_the_server_has_had_long_ago_counts_as_delivered() {
    let mut fixture = Fixture::idempotent(1, Retry::Refused);
    let delivery = fixture.put();
    fixture.send();
    fixture.end(1, Attempt::Refused { code: ErrorCode::DuplicateSequenceNumber, message: String::new() });
    assert_eq!(delivery.try_result().unwrap().unwrap().offset, None);
}
