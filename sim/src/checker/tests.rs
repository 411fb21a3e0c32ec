use super::*;

/// A history in the making: each operation takes one tick unless it says otherwise.
#[derive(Default)]
struct History {
    clock: u64,
    operations: Vec<Operation>,
}

impl History {
    fn push(&mut self, outcome: Outcome, action: Action) -> &mut Self {
        self.clock += 10;
        self.operations.push(Operation { start: self.clock, end: self.clock + 5, outcome, action });
        self
    }

    fn send(&mut self, value: u64, offset: i64) -> &mut Self {
        self.push(Outcome::Ok, send(value, Some(offset), Class::Device))
    }

    fn poll(&mut self, consumer: u64, position: i64, values: &[u64]) -> &mut Self {
        let records = (position..).zip(values).map(|(offset, &value)| Seen { offset, value, timestamp: 100 + offset });
        let records = records.collect();
        self.push(Outcome::Ok, Action::Poll { partition: "t/0".into(), consumer, position, records })
    }

    fn down(&mut self, fault: Fault) -> &mut Self {
        self.push(Outcome::Ok, Action::Down { fault })
    }

    fn heal(&mut self) -> &mut Self {
        self.push(Outcome::Ok, Action::Heal)
    }

    fn watermarks(&mut self, log_start: i64, high_watermark: i64) -> &mut Self {
        self.push(Outcome::Ok, Action::Watermarks { partition: "t/0".into(), log_start, high_watermark })
    }

    fn found(&self) -> Vec<Anomaly> {
        check(&self.operations, Replication::SINGLE)
    }
}

fn send(value: u64, offset: Option<i64>, class: Class) -> Action {
    Action::Send { partition: "t/0".into(), value, acks: Acks::All, class, producer: Some(1), offset }
}

macro_rules! assert_found {
    ($history:expr, $($pattern:pat),+) => {
        let found = $history.found();
        assert!(matches!(found.as_slice(), [$($pattern),+]), "{found:?}");
    };
}

#[test]
fn a_clean_history_is_clean() {
    let mut history = History::default();
    history.send(1, 0).send(2, 1).poll(7, 0, &[1]).push(Outcome::Unknown, send(3, None, Class::Device));
    history.down(Fault::PowerCutAll).watermarks(0, 3).push(Outcome::Failed, send(4, None, Class::Device)).send(5, 3);
    history.poll(7, 1, &[2, 3]).heal().poll(8, 0, &[1, 2, 3, 5]).send(6, 4).poll(8, 4, &[6]).watermarks(0, 5);
    history.push(Outcome::Ok, Action::Lookup { partition: "t/0".into(), timestamp: 102, offset: 2 });
    history.push(Outcome::Ok, Action::Lookup { partition: "t/0".into(), timestamp: 900, offset: -1 });
    assert_eq!(history.found(), []);
}

#[test]
fn one_offset_with_two_values() {
    let mut history = History::default();
    history.send(1, 0).push(Outcome::Unknown, send(2, None, Class::Device)).poll(7, 0, &[2]);
    assert_found!(history, Anomaly::InconsistentOffset { offset: 0, values: (1, 2), .. });
}

#[test]
fn one_value_at_two_offsets() {
    let mut history = History::default();
    history.send(1, 0).poll(7, 0, &[1, 1]);
    assert_found!(history, Anomaly::Duplicate { value: 1, offsets: (0, 1), .. });
}

#[test]
fn a_lost_and_an_unseen_write() {
    let mut history = History::default();
    history.send(1, 0).send(2, 1).send(3, 2).send(4, 3).poll(7, 0, &[1, 2]).heal();
    let records = [(0, 1), (1, 2), (3, 4)].map(|(offset, value)| Seen { offset, value, timestamp: -1 }).to_vec();
    history.push(Outcome::Ok, Action::Poll { partition: "t/0".into(), consumer: 8, position: 0, records });
    assert_found!(history, Anomaly::PollSkip { expected: 2, got: 3, .. }, Anomaly::LostWrite { value: 3, offset: 2, .. });
    let mut history = History::default();
    history.send(1, 0).send(2, 1).heal().poll(7, 0, &[1]);
    assert_found!(history, Anomaly::Unseen { value: 2, offset: 1, .. });
}

#[test]
fn a_record_polled_once_has_vanished() {
    let mut history = History::default();
    history.push(Outcome::Unknown, send(1, None, Class::Device)).poll(7, 0, &[1]).down(Fault::PowerCutAll).heal().poll(8, 0, &[]);
    assert_found!(history, Anomaly::Vanished { value: 1, offset: 0, .. });
}

#[test]
fn a_failed_or_unsent_value_is_polled() {
    let mut history = History::default();
    history.push(Outcome::Failed, send(1, None, Class::Device)).poll(7, 0, &[1]);
    assert_found!(history, Anomaly::FailedRead { value: 1, .. });
    let mut history = History::default();
    history.poll(7, 0, &[9]);
    assert_found!(history, Anomaly::NeverSent { value: 9, .. });
}

#[test]
fn a_consumer_skips_and_goes_back() {
    let mut history = History::default();
    history.send(1, 0).send(2, 1).send(3, 2).poll(7, 0, &[1]).poll(7, 2, &[3]);
    assert_found!(history, Anomaly::PollSkip { consumer: 7, expected: 1, got: 2, .. });
    let mut history = History::default();
    history.send(1, 0).send(2, 1).poll(7, 0, &[1, 2]).poll(7, 1, &[2]);
    assert_found!(history, Anomaly::PollBackwards { consumer: 7, expected: 2, got: 1, .. });
}

#[test]
fn a_jump_to_the_log_start_is_no_skip() {
    let mut history = History::default();
    history.send(1, 0).send(2, 1).send(3, 2).poll(7, 0, &[1]).watermarks(2, 3).poll(7, 2, &[3]);
    assert_eq!(history.found(), []);
}

#[test]
fn sends_of_one_producer_land_swapped() {
    let mut history = History::default();
    history.push(Outcome::Unknown, send(1, None, Class::Device));
    history.push(Outcome::Unknown, send(2, None, Class::Device));
    history.poll(7, 0, &[2, 1]);
    assert_found!(history, Anomaly::SendOutOfOrder { first: (1, 1), second: (2, 0), .. });
}

#[test]
fn an_offset_below_what_was_acknowledged() {
    let mut history = History::default();
    history.send(1, 5);
    let Action::Send { partition, value, acks, class, .. } = send(2, None, Class::Device) else { unreachable!() };
    history.push(Outcome::Ok, Action::Send { partition, value, acks, class, producer: Some(2), offset: Some(3) });
    assert_found!(history, Anomaly::StaleOffset { value: 2, offset: 3, acknowledged: 5, .. });
}

#[test]
fn watermarks_go_back() {
    let mut history = History::default();
    history.watermarks(2, 9).watermarks(1, 8);
    assert_found!(
        history,
        Anomaly::WatermarkRegress { what: "high watermark", from: 9, to: 8, .. },
        Anomaly::WatermarkRegress { what: "log start", from: 2, to: 1, .. }
    );
}

#[test]
fn overlapping_operations_claim_nothing() {
    let mut history = History::default();
    history.watermarks(0, 9).watermarks(0, 8);
    history.operations[1].start = history.operations[0].start;
    assert_eq!(history.found(), []);
}

#[test]
fn a_lookup_disagrees_with_the_scan() {
    let mut history = History::default();
    history.send(1, 0).send(2, 1).heal().poll(7, 0, &[1, 2]);
    history.push(Outcome::Ok, Action::Lookup { partition: "t/0".into(), timestamp: 101, offset: 0 });
    assert_found!(history, Anomaly::WrongLookup { timestamp: 101, found: 0, scanned: 1, .. });
}

#[test]
fn what_never_succeeds_after_the_heal_is_stuck() {
    let mut history = History::default();
    history.send(1, 0).heal().poll(7, 0, &[1]);
    history.push(Outcome::Unknown, send(2, None, Class::Device)).push(Outcome::Failed, send(3, None, Class::Device));
    assert_found!(history, Anomaly::Stuck { operation: "send", attempts: 2, .. });
}

#[test]
fn the_written_class_may_lose_at_a_power_cut_and_not_at_a_kill() {
    let run = |class, fault| {
        let mut history = History::default();
        history.push(Outcome::Ok, send(1, Some(0), class)).push(Outcome::Ok, send(2, Some(1), class)).watermarks(0, 2);
        history.poll(7, 0, &[1, 2]).down(fault).watermarks(0, 1);
        history.push(Outcome::Ok, send(3, Some(1), class)).heal().poll(8, 0, &[1, 3]);
        history.found()
    };
    assert_eq!(run(Class::Written, Fault::PowerCutAll), []);
    for (class, fault) in [(Class::Written, Fault::KillAll), (Class::Device, Fault::PowerCutAll), (Class::Device, Fault::KillOne)]
    {
        let found = run(class, fault);
        assert!(found.iter().any(|anomaly| matches!(anomaly, Anomaly::InconsistentOffset { .. })), "{found:?}");
        assert!(found.iter().any(|anomaly| matches!(anomaly, Anomaly::StaleOffset { .. })), "{found:?}");
        assert!(found.iter().any(|anomaly| matches!(anomaly, Anomaly::WatermarkRegress { .. })), "{found:?}");
        assert!(found.iter().any(|anomaly| matches!(anomaly, Anomaly::Vanished { .. })), "{found:?}");
    }
}

#[test]
fn an_acknowledgement_on_its_way_at_the_power_cut_promises_no_more() {
    let mut history = History::default();
    history.push(Outcome::Ok, send(1, Some(0), Class::Written)).down(Fault::PowerCutAll);
    let struck = history.operations[1].start;
    history.operations[0].end = struck + 3;
    history.push(Outcome::Ok, send(2, Some(0), Class::Written)).heal().poll(8, 0, &[2]);
    assert_eq!(history.found(), []);
}

#[test]
fn histories_are_lines_of_json() {
    let mut kept = History::default();
    kept.send(1, 0).poll(7, 0, &[1]).down(Fault::PowerCutAll).heal().watermarks(0, 1);
    let mut bytes = Vec::new();
    history::write(&mut bytes, &kept.operations).unwrap();
    assert_eq!(history::read(bytes.as_slice()).unwrap(), kept.operations);
    let line =
        r#"{"start":1,"end":2,"outcome":"ok","do":"send","partition":"a/0","value":3,"acks":"all","class":"device","offset":4}"#;
    assert_eq!(history::read(line.as_bytes()).unwrap().len(), 1);
    assert!(history::read(&b"{}"[..]).unwrap_err().to_string().starts_with("line 1"));
}

#[test]
fn a_long_history_takes_little_time() {
    let mut history = History::default();
    for value in 0..100_000 {
        history.send(value, i64::try_from(value).unwrap());
    }
    let all: Vec<u64> = (0..100_000).collect();
    history.heal();
    for (index, part) in all.chunks(500).enumerate() {
        history.poll(7, i64::try_from(index * 500).unwrap(), part);
    }
    assert_eq!(history.found(), []);
}
