//! Scenarios: random work, crashes and faults from one seed, then a heal, a final catch-up and the checker's verdict.

mod batches;
#[cfg(feature = "node")]
mod client;
#[cfg(feature = "node")]
pub mod node;
pub mod storage;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use runtime::Canary;

use crate::checker::history::Operation;
use crate::checker::promise::Replication;
use crate::checker::{Anomaly, check};
use crate::disk::{DiskFaults, Sectors};
use crate::env::{Options, try_run};
use crate::random::Stream;

/// What is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scenario {
    /// One core's logs, driven directly.
    Storage,
    /// A whole host of one core, with clients over the network.
    Node,
    /// The same with one to four cores, as many as each start draws.
    Cores,
}

impl Scenario {
    /// Its word on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Scenario::Storage => "storage",
            Scenario::Node => "node",
            Scenario::Cores => "cores",
        }
    }
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// What is run.
    pub scenario: Scenario,
    /// Everything follows from it.
    pub seed: u64,
    /// The fault of the program that is switched on.
    pub canary: Option<Canary>,
    /// The disk's sectors; drawn from the seed if not said.
    pub sectors: Option<Sectors>,
    /// Print the trace.
    pub print_trace: bool,
}

/// What a scenario gives back.
pub struct Ran {
    /// The history for the checker.
    pub history: Vec<Operation>,
    /// Crashes survived.
    pub crashes: u64,
    /// What the scenario itself found wrong.
    pub wrong: Vec<String>,
}

/// How one seed went.
#[derive(Clone, Debug)]
pub struct SeedReport {
    /// The run.
    pub settings: Settings,
    /// What was wrong; empty if nothing.
    pub failures: Vec<String>,
    /// Hash of the trace; 0 if the run panicked.
    pub trace_hash: u64,
    /// Virtual nanoseconds.
    pub time_ns: u64,
    /// Operations in the history.
    pub operations: u64,
    /// Crashes survived.
    pub crashes: u64,
    /// The history.
    pub history: Vec<Operation>,
}

/// Cores of a host at most.
#[cfg(feature = "node")]
const CORES_MAX: u64 = 4;

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
    static RUNS: Cell<bool> = const { Cell::new(false) };
}

/// Keeps the messages of panics inside runs for their reports, instead of printing them (all are with `RUST_BACKTRACE=full`).
pub fn capture_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !RUNS.get() || std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value == "full") {
                before(info);
            }
            PANIC.with(|panic| *panic.borrow_mut() = Some(info.to_string()));
        }));
    });
}

/// The sectors of a seed's disk. Shearing drives are asked for by name only: nothing is promised on them.
#[must_use]
pub fn sectors_of(seed: u64) -> Sectors {
    if Stream::new(seed, "sectors").chance(1, 2) { Sectors::Atomic4K } else { Sectors::Atomic512 }
}

/// Runs one seed.
#[must_use]
pub fn run_seed(settings: Settings) -> SeedReport {
    let options = Options {
        sectors: settings.sectors.unwrap_or_else(|| sectors_of(settings.seed)),
        canaries: settings.canary.into_iter().collect(),
        print_trace: settings.print_trace,
        ..Options::new(settings.seed)
    };
    let mut report =
        SeedReport { settings, failures: Vec::new(), trace_hash: 0, time_ns: 0, operations: 0, crashes: 0, history: Vec::new() };
    RUNS.set(true);
    let finished = catch_unwind(AssertUnwindSafe(|| match settings.scenario {
        Scenario::Storage => try_run(options, storage::run),
        #[cfg(feature = "node")]
        Scenario::Node => try_run(options, |env| node::run(env, 1)),
        #[cfg(feature = "node")]
        Scenario::Cores => try_run(options, |env| node::run(env, CORES_MAX)),
        #[cfg(not(feature = "node"))]
        Scenario::Node | Scenario::Cores => panic!("built without the scenarios of a node"),
    }));
    RUNS.set(false);
    match finished {
        Err(_) => {
            let message = PANIC.with(|panic| panic.borrow_mut().take()).unwrap_or_else(|| "a panic".into());
            report.failures.push(message);
        }
        Ok(Err(error)) => report.failures.push(error.to_string()),
        Ok(Ok(finished)) => {
            let ran = finished.value;
            report.trace_hash = finished.trace_hash;
            report.time_ns = finished.time_ns;
            report.operations = ran.history.len() as u64;
            report.crashes = ran.crashes;
            report.failures.extend(ran.wrong);
            report.failures.extend(check(&ran.history, Replication::SINGLE).iter().map(Anomaly::to_string));
            report.history = ran.history;
        }
    }
    report
}

/// One kind of disk fault, drawn.
fn disk_faults_of(stream: &Stream, bytes_taken: u64) -> DiskFaults {
    let mut faults = DiskFaults::default();
    match stream.below(6) {
        0 => faults.write_errors_ppm = 3_000,
        1 => faults.flush_errors_ppm = 10_000,
        2 => faults.read_errors_ppm = 10_000,
        3 => faults.name_errors_ppm = 10_000,
        4 => faults.bytes_taken = bytes_taken,
        _ => faults.slowness = 5,
    }
    faults
}

/// The canaries, by their words on the command line.
pub const CANARIES: [(&str, Canary); 4] = [
    ("ack-before-flush", Canary::AckBeforeFlush),
    ("recovery-without-epoch-check", Canary::RecoveryWithoutEpochCheck),
    ("reuse-of-buffer-in-flight", Canary::ReuseOfBufferInFlight),
    ("index-one-entry-behind", Canary::IndexOneEntryBehind),
];
