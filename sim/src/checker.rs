//! The log checker: a history of operations against what may never happen, in O(n log n).
//!
//! One pass in the order of time finds what depends on it (stale offsets, watermarks that go back, skipped polls); one pass
//! per partition over what landed where finds the rest. What a fault may take by the promise (see [`promise`]) is never an anomaly.

pub mod history;
pub mod promise;

use std::collections::BTreeMap;
use std::fmt;

use history::{Acks, Action, Class, Fault, Operation, Outcome, Seen};
use promise::{Replication, survives};

/// What may never be, with where.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are named as the history's")]
pub enum Anomaly {
    /// One offset of a partition was seen with two values, in acknowledgements or polls.
    InconsistentOffset { partition: String, offset: i64, values: (u64, u64) },
    /// One value of a producer that sends once lies at two offsets.
    Duplicate { partition: String, value: u64, offsets: (i64, i64) },
    /// Acknowledged, below what was polled, and read by nobody.
    LostWrite { partition: String, value: u64, offset: i64 },
    /// Acknowledged and unread when all was read at the end.
    Unseen { partition: String, value: u64, offset: i64 },
    /// Polled once, and not there any more when all was read at the end.
    Vanished { partition: String, value: u64, offset: i64 },
    /// The value of a send that failed was polled.
    FailedRead { partition: String, value: u64, offset: i64 },
    /// A value that nobody sent was polled.
    NeverSent { partition: String, value: u64, offset: i64 },
    /// A consumer's polls jumped over offsets.
    PollSkip { partition: String, consumer: u64, expected: i64, got: i64 },
    /// A consumer's polls went back.
    PollBackwards { partition: String, consumer: u64, expected: i64, got: i64 },
    /// Two sends of one producer landed swapped.
    SendOutOfOrder { partition: String, producer: u64, first: (u64, i64), second: (u64, i64) },
    /// A send's offset is not above the highest acknowledged before it began.
    StaleOffset { partition: String, value: u64, offset: i64, acknowledged: i64 },
    /// A high watermark or log start was seen to go back.
    WatermarkRegress { partition: String, what: &'static str, from: i64, to: i64 },
    /// The offset found for a timestamp isn't what a scan finds.
    WrongLookup { partition: String, timestamp: i64, found: i64, scanned: i64 },
    /// An operation that never succeeded after all faults had ended.
    Stuck { partition: String, operation: &'static str, attempts: u64 },
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Everything wrong with a history. Empty: nothing was found.
#[must_use]
pub fn check(operations: &[Operation], replication: Replication) -> Vec<Anomaly> {
    let mut checker = Checker { replication, ..Checker::default() };
    checker.collect(operations);
    checker.walk(operations);
    checker.landed();
    checker.anomalies
}

#[derive(Default)]
struct Checker<'a> {
    replication: Replication,
    anomalies: Vec<Anomaly>,
    /// When which fault struck, in order.
    faults: Vec<(u64, Fault)>,
    heal: Option<u64>,
    partitions: BTreeMap<&'a str, PartitionHistory>,
}

impl Default for Replication {
    fn default() -> Replication {
        Replication::SINGLE
    }
}

#[derive(Default)]
struct PartitionHistory {
    class: Option<Class>,
    sends: BTreeMap<u64, SendSeen>,
    /// Observations of (offset, time, value).
    observations: Vec<Observation>,
    final_records: BTreeMap<i64, Seen>,
    has_final_poll: bool,
    highest_polled: i64,
    log_start: i64,
    lookups: Vec<(i64, i64)>,
    /// After the heal: attempts and successes by operation.
    after_heal: BTreeMap<&'static str, (u64, u64)>,
}

#[derive(Clone, Copy)]
struct SendSeen {
    start: u64,
    outcome: Outcome,
    producer: Option<u64>,
}

#[derive(Clone, Copy)]
struct Observation {
    offset: i64,
    value: u64,
    /// When the operation began: a fault from then on may have come after what the host promised.
    start: u64,
    /// When it was surely so.
    end: u64,
    /// The level that the observation may rely on.
    acks: Acks,
    polled: bool,
}

/// What a partition had reached, in the order of time.
struct Reached {
    acknowledged: BTreeMap<(Acks, Class), i64>,
    high_watermark: i64,
    log_start: i64,
    consumers: BTreeMap<u64, i64>,
}

enum Step<'a> {
    Ended(&'a Operation),
    Began(&'a Operation),
    Down(Fault),
}

impl<'a> Checker<'a> {
    fn collect(&mut self, operations: &'a [Operation]) {
        for operation in operations {
            match &operation.action {
                Action::Down { fault } => self.faults.push((operation.start, *fault)),
                Action::Heal => self.heal = Some(operation.start),
                Action::Send { partition, class, .. } => self.partition(partition).class = Some(*class),
                _ => {}
            }
        }
        self.faults.sort_by_key(|&(at, _)| at);
        for operation in operations {
            self.collect_one(operation);
        }
    }

    fn partition(&mut self, name: &'a str) -> &mut PartitionHistory {
        self.partitions.entry(name).or_insert_with(|| PartitionHistory { highest_polled: -1, ..PartitionHistory::default() })
    }

    fn collect_one(&mut self, operation: &'a Operation) {
        let is_final = self.heal.is_some_and(|heal| operation.start >= heal);
        let Some((name, kind)) = operation.action.target() else { return };
        let history = self.partition(name);
        let ok = operation.outcome == Outcome::Ok;
        if is_final {
            let (attempts, successes) = history.after_heal.entry(kind).or_default();
            *attempts += 1;
            *successes += u64::from(ok);
        }
        match &operation.action {
            Action::Send { value, acks, producer, offset, .. } => {
                let (start, end, outcome) = (operation.start, operation.end, operation.outcome);
                history.sends.insert(*value, SendSeen { start, outcome, producer: *producer });
                if let (true, Some(offset)) = (ok, *offset) {
                    let observation = Observation { offset, value: *value, start, end, acks: *acks, polled: false };
                    history.observations.push(observation);
                }
            }
            Action::Poll { records, .. } if ok => {
                history.has_final_poll |= is_final;
                for seen in records {
                    // What consumers see lies below the high watermark: as good as acknowledged by all.
                    let (offset, value, start, end) = (seen.offset, seen.value, operation.start, operation.end);
                    history.observations.push(Observation { offset, value, start, end, acks: Acks::All, polled: true });
                    history.highest_polled = history.highest_polled.max(offset);
                    if is_final {
                        history.final_records.insert(offset, *seen);
                    }
                }
            }
            Action::Watermarks { log_start, .. } if ok => history.log_start = history.log_start.max(*log_start),
            Action::Lookup { timestamp, offset, .. } if ok && is_final => history.lookups.push((*timestamp, *offset)),
            _ => {}
        }
    }

    /// Whether what an operation found that began at `since` must still be so at `until`.
    fn must_survive(&self, acks: Acks, class: Class, since: u64, until: u64) -> bool {
        let first = self.faults.partition_point(|&(struck, _)| struck < since);
        let last = self.faults.partition_point(|&(struck, _)| struck <= until);
        self.faults[first..last.max(first)].iter().all(|&(_, fault)| survives(acks, class, fault, self.replication))
    }

    fn walk(&mut self, operations: &'a [Operation]) {
        let mut steps: Vec<(u64, u8, Step<'a>)> = Vec::with_capacity(2 * operations.len());
        for operation in operations {
            match &operation.action {
                Action::Down { fault } => steps.push((operation.start, 1, Step::Down(*fault))),
                Action::Heal => {}
                _ => {
                    // What ended at a moment counts for what began at it only if it did so before: ties favour no claim.
                    steps.push((operation.start, 0, Step::Began(operation)));
                    if operation.outcome == Outcome::Ok {
                        steps.push((operation.end, 2, Step::Ended(operation)));
                    }
                }
            }
        }
        steps.sort_by_key(|&(at, order, _)| (at, order));
        let mut reached: BTreeMap<&str, Reached> = BTreeMap::new();
        // What was acknowledged, and which watermarks were seen, when an operation began.
        let mut begun: BTreeMap<*const Operation, (i64, i64, i64)> = BTreeMap::new();
        for (_, _, step) in steps {
            match step {
                Step::Down(fault) => self.forget(&mut reached, fault),
                Step::Began(operation) => {
                    let Some((partition, _)) = operation.action.target() else { continue };
                    let state = reached.entry(partition).or_default();
                    let acknowledged = state.acknowledged.values().copied().max().unwrap_or(-1);
                    begun.insert(operation, (acknowledged, state.high_watermark, state.log_start));
                }
                Step::Ended(operation) => {
                    let Some((partition, _)) = operation.action.target() else { continue };
                    let Some(before) = begun.remove(&std::ptr::from_ref(operation)) else { continue };
                    let state = reached.entry(partition).or_default();
                    judge(operation, before, state, &mut self.anomalies);
                    let (acks, class) = match &operation.action {
                        Action::Send { acks, class, .. } => (*acks, *class),
                        _ => (Acks::All, self.class_of(partition)),
                    };
                    // What a fault may have taken back meanwhile is no bound for what follows.
                    if self.must_survive(acks, class, operation.start, operation.end) {
                        advance(operation, state);
                    }
                }
            }
        }
    }

    fn class_of(&self, partition: &str) -> Class {
        self.partitions.get(partition).and_then(|partition| partition.class).unwrap_or(Class::Device)
    }

    /// A fault takes back what didn't promise to survive it.
    fn forget(&self, reached: &mut BTreeMap<&str, Reached>, fault: Fault) {
        for (name, state) in reached {
            state.acknowledged.retain(|&(acks, class), _| survives(acks, class, fault, self.replication));
            if !survives(Acks::All, self.class_of(name), fault, self.replication) {
                *state = Reached { acknowledged: std::mem::take(&mut state.acknowledged), ..Reached::default() };
            }
        }
    }

    fn landed(&mut self) {
        let partitions = std::mem::take(&mut self.partitions);
        for (name, mut history) in partitions {
            self.offsets_agree(name, &mut history);
            self.values_agree(name, &history);
            self.order_holds(name, &history);
            self.all_there(name, &history);
            self.lookups_agree(name, &history);
            for (&operation, &(attempts, successes)) in &history.after_heal {
                if attempts > 0 && successes == 0 {
                    self.anomalies.push(Anomaly::Stuck { partition: name.to_owned(), operation, attempts });
                }
            }
        }
    }

    fn offsets_agree(&mut self, name: &str, history: &mut PartitionHistory) {
        let class = history.class.unwrap_or(Class::Device);
        history.observations.sort_by_key(|seen| (seen.offset, seen.end));
        for pair in history.observations.windows(2) {
            let (earlier, later) = (pair[0], pair[1]);
            if earlier.offset == later.offset
                && earlier.value != later.value
                && self.must_survive(earlier.acks, class, earlier.start, later.end)
            {
                let values = (earlier.value, later.value);
                self.anomalies.push(Anomaly::InconsistentOffset { partition: name.to_owned(), offset: earlier.offset, values });
            }
        }
    }

    fn values_agree(&mut self, name: &str, history: &PartitionHistory) {
        let class = history.class.unwrap_or(Class::Device);
        let mut by_value: Vec<&Observation> = history.observations.iter().collect();
        by_value.sort_by_key(|seen| (seen.value, seen.offset, seen.end));
        for pair in by_value.windows(2) {
            let (one, other) = (pair[0], pair[1]);
            if one.value != other.value || one.offset == other.offset {
                continue;
            }
            let once = history.sends.get(&one.value).is_none_or(|send| send.producer.is_some());
            let (first, last) = if one.end <= other.end { (one, other) } else { (other, one) };
            if once && self.must_survive(first.acks, class, first.start, last.end) {
                let offsets = (one.offset, other.offset);
                self.anomalies.push(Anomaly::Duplicate { partition: name.to_owned(), value: one.value, offsets });
            }
        }
        let mut last = None;
        for seen in by_value.iter().filter(|seen| seen.polled) {
            if last.replace(seen.value) == Some(seen.value) {
                continue;
            }
            let (partition, value, offset) = (name.to_owned(), seen.value, seen.offset);
            match history.sends.get(&value) {
                None => self.anomalies.push(Anomaly::NeverSent { partition, value, offset }),
                Some(send) if send.outcome == Outcome::Failed => {
                    self.anomalies.push(Anomaly::FailedRead { partition, value, offset });
                }
                Some(_) => {}
            }
        }
    }

    fn order_holds(&mut self, name: &str, history: &PartitionHistory) {
        // Where each value landed last: by poll or by acknowledgement.
        let mut landed: BTreeMap<u64, Observation> = BTreeMap::new();
        for seen in &history.observations {
            let entry = landed.entry(seen.value).or_insert(*seen);
            if seen.end >= entry.end {
                *entry = *seen;
            }
        }
        let mut sends: Vec<(u64, u64, u64, Observation)> = history
            .sends
            .iter()
            .filter_map(|(value, send)| Some((send.producer?, send.start, *value, *landed.get(value)?)))
            .collect();
        sends.sort_by_key(|&(producer, start, _, _)| (producer, start));
        let class = history.class.unwrap_or(Class::Device);
        for pair in sends.windows(2) {
            let ((producer, _, value, first), (other, _, next, second)) = (pair[0], pair[1]);
            let (earlier, later) = if first.end <= second.end { (first, second) } else { (second, first) };
            if producer == other
                && first.offset > second.offset
                && self.must_survive(earlier.acks, class, earlier.start, later.end)
            {
                let (first, second) = ((value, first.offset), (next, second.offset));
                self.anomalies.push(Anomaly::SendOutOfOrder { partition: name.to_owned(), producer, first, second });
            }
        }
    }

    fn all_there(&mut self, name: &str, history: &PartitionHistory) {
        if !history.has_final_poll {
            return;
        }
        let class = history.class.unwrap_or(Class::Device);
        let polled: std::collections::BTreeSet<u64> =
            history.observations.iter().filter(|seen| seen.polled).map(|seen| seen.value).collect();
        let mut last = None;
        for seen in &history.observations {
            if seen.offset < history.log_start || !self.must_survive(seen.acks, class, seen.start, u64::MAX) {
                continue;
            }
            // Sorted by offset: one complaint for each place.
            if last.replace((seen.offset, seen.value)) == Some((seen.offset, seen.value)) {
                continue;
            }
            let (partition, value, offset) = (name.to_owned(), seen.value, seen.offset);
            if history.final_records.get(&offset).is_some_and(|record| record.value == value) {
                continue;
            }
            self.anomalies.push(if polled.contains(&value) {
                Anomaly::Vanished { partition, value, offset }
            } else if offset <= history.highest_polled {
                Anomaly::LostWrite { partition, value, offset }
            } else {
                Anomaly::Unseen { partition, value, offset }
            });
        }
    }

    fn lookups_agree(&mut self, name: &str, history: &PartitionHistory) {
        let mut highest = i64::MIN;
        // (highest timestamp so far, offset where it was reached): both rise.
        let mut reached: Vec<(i64, i64)> = Vec::new();
        // What was read before it left the log isn't found any more.
        for (offset, record) in history.final_records.range(history.log_start..) {
            if record.timestamp > highest {
                highest = record.timestamp;
                reached.push((highest, *offset));
            }
        }
        for &(timestamp, found) in &history.lookups {
            let at = reached.partition_point(|&(reached, _)| reached < timestamp);
            let scanned = reached.get(at).map_or(-1, |&(_, offset)| offset);
            if scanned != found {
                self.anomalies.push(Anomaly::WrongLookup { partition: name.to_owned(), timestamp, found, scanned });
            }
        }
    }
}

impl Default for Reached {
    fn default() -> Reached {
        Reached { acknowledged: BTreeMap::new(), high_watermark: -1, log_start: -1, consumers: BTreeMap::new() }
    }
}

/// Judges an operation that succeeded by what was reached when it began, less what faults took back since.
fn judge(operation: &Operation, before: (i64, i64, i64), state: &Reached, anomalies: &mut Vec<Anomaly>) {
    match &operation.action {
        Action::Send { partition, value, offset: Some(offset), .. } => {
            let acknowledged = before.0.min(state.acknowledged.values().copied().max().unwrap_or(-1));
            if *offset <= acknowledged {
                let (partition, value, offset) = (partition.clone(), *value, *offset);
                anomalies.push(Anomaly::StaleOffset { partition, value, offset, acknowledged });
            }
        }
        Action::Watermarks { partition, log_start, high_watermark } => {
            let high_before = before.1.min(state.high_watermark);
            let start_before = before.2.min(state.log_start);
            for (what, from, to) in [("high watermark", high_before, *high_watermark), ("log start", start_before, *log_start)] {
                if to < from {
                    anomalies.push(Anomaly::WatermarkRegress { partition: partition.clone(), what, from, to });
                }
            }
        }
        Action::Poll { partition, consumer, position, records } => {
            let mut expected = state.consumers.get(consumer).copied().unwrap_or(*position);
            let places = std::iter::once(*position).chain(records.iter().map(|seen| seen.offset));
            for (index, got) in places.enumerate() {
                let (partition, consumer) = (partition.clone(), *consumer);
                if got > expected && got > state.log_start {
                    anomalies.push(Anomaly::PollSkip { partition, consumer, expected, got });
                } else if got < expected {
                    anomalies.push(Anomaly::PollBackwards { partition, consumer, expected, got });
                }
                expected = if index == 0 { got } else { got + 1 };
            }
        }
        _ => {}
    }
}

/// Notes what an operation that succeeded has shown to be reached.
fn advance(operation: &Operation, state: &mut Reached) {
    match &operation.action {
        Action::Send { acks, class, offset: Some(offset), .. } => {
            let highest = state.acknowledged.entry((*acks, *class)).or_insert(-1);
            *highest = (*highest).max(*offset);
        }
        Action::Watermarks { log_start, high_watermark, .. } => {
            state.high_watermark = state.high_watermark.max(*high_watermark);
            state.log_start = state.log_start.max(*log_start);
        }
        Action::Poll { consumer, position, records, .. } => {
            let next = records.last().map_or(*position, |seen| seen.offset + 1);
            state.consumers.insert(*consumer, next);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
