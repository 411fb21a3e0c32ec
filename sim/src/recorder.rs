//! Records what clients of a run did and saw, as a history for the checker.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::checker::history::{Action, Fault, Operation, Outcome};

/// A history in the making. A handle. Its clock counts calls, so that no two are at one time.
#[derive(Clone, Default)]
pub struct Recorder(Rc<RefCell<State>>);

#[derive(Default)]
struct State {
    ticks: u64,
    values: u64,
    operations: Vec<Operation>,
    healed: Option<u64>,
    /// Per partition and kind of operation that was begun since the heal: whether one succeeded.
    since_heal: BTreeMap<(String, &'static str), bool>,
}

/// An operation that was begun; unknown until it is ended.
#[derive(Clone, Copy, Debug)]
pub struct Begun(usize);

impl Recorder {
    /// A value that no other send carries.
    #[must_use]
    pub fn value(&self) -> u64 {
        let mut state = self.0.borrow_mut();
        state.values += 1;
        state.values
    }

    /// Notes that an operation begins.
    pub fn begin(&self, action: Action) -> Begun {
        let mut state = self.0.borrow_mut();
        state.ticks += 1;
        let at = state.ticks;
        if action == Action::Heal {
            state.healed = Some(at);
        }
        if let (Some(_), Some((partition, kind))) = (state.healed, action.target()) {
            state.since_heal.entry((partition.to_owned(), kind)).or_default();
        }
        state.operations.push(Operation { start: at, end: at, outcome: Outcome::Unknown, action });
        Begun(state.operations.len() - 1)
    }

    /// Notes how it ended; `settle` puts in what is known now.
    pub fn end(&self, begun: Begun, outcome: Outcome, settle: impl FnOnce(&mut Action)) {
        let mut state = self.0.borrow_mut();
        state.ticks += 1;
        let at = state.ticks;
        let state = &mut *state;
        let operation = &mut state.operations[begun.0];
        operation.end = at;
        operation.outcome = outcome;
        settle(&mut operation.action);
        if outcome == Outcome::Ok
            && state.healed.is_some_and(|healed| operation.start > healed)
            && let Some((partition, kind)) = operation.action.target()
        {
            state.since_heal.insert((partition.to_owned(), kind), true);
        }
    }

    /// An operation that begins and ends at once.
    pub fn note(&self, action: Action) {
        let begun = self.begin(action);
        self.end(begun, Outcome::Ok, |_| {});
    }

    /// A crash.
    pub fn down(&self, fault: Fault) {
        self.note(Action::Down { fault });
    }

    /// Partitions that have taken a record since the heal, and what was tried since then and never succeeded.
    #[must_use]
    pub fn since_heal(&self) -> (usize, Vec<String>) {
        let state = self.0.borrow();
        let tried = &state.since_heal;
        let taking = tried.iter().filter(|&((_, kind), &ok)| ok && *kind == "send").count();
        let failing = tried.iter().filter(|&(_, &ok)| !ok).map(|((partition, kind), _)| format!("{kind} of {partition}"));
        (taking, failing.collect())
    }

    /// Operations so far.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.borrow().operations.len()
    }

    /// The history.
    #[must_use]
    pub fn take(&self) -> Vec<Operation> {
        std::mem::take(&mut self.0.borrow_mut().operations)
    }
}
