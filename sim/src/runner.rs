//! Runs many seeds on several threads, each seed wholly on one.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use runtime::Canary;

use crate::disk::Sectors;
use crate::random::mix;
use crate::scenario::{CANARIES, Scenario, SeedReport, Settings, run_seed};

/// Failures printed per seed, at most.
const FAILURES_SHOWN: usize = 5;

/// Seeds to run.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The scenarios, each with every seed.
    pub scenarios: Vec<Scenario>,
    /// The first seed.
    pub from: u64,
    /// How many.
    pub seeds: u64,
    /// No run starts after this time.
    pub time_max: Option<Duration>,
    /// A planted bug.
    pub canary: Option<Canary>,
    /// The sectors of all disks, if not the seeds' own.
    pub sectors: Option<Sectors>,
    /// Print the traces.
    pub print_trace: bool,
    /// Run each seed twice and compare.
    pub twice: bool,
    /// Threads.
    pub threads: usize,
}

impl Batch {
    /// `seeds` seeds from `from` on, on one thread.
    #[must_use]
    pub fn new(scenarios: &[Scenario], from: u64, seeds: u64) -> Batch {
        Batch {
            scenarios: scenarios.to_vec(),
            from,
            seeds,
            time_max: None,
            canary: None,
            sectors: None,
            print_trace: false,
            twice: false,
            threads: 1,
        }
    }
}

/// A seed that failed.
#[derive(Clone, Debug)]
pub struct Failed(pub SeedReport);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = &self.0.settings;
        let name = settings.scenario.name();
        writeln!(f, "FAILED seed {} of {name}: {} findings", settings.seed, self.0.failures.len())?;
        for failure in self.0.failures.iter().take(FAILURES_SHOWN) {
            writeln!(f, "    {failure}")?;
        }
        write!(
            f,
            "    again: cargo run -p sim --profile ci -- run --scenario {name} --from {} --seeds 1 --trace",
            settings.seed
        )?;
        if let Some((word, _)) = CANARIES.iter().find(|(_, canary)| Some(*canary) == settings.canary) {
            write!(f, " --canary {word}")?;
        }
        match settings.sectors {
            None => Ok(()),
            Some(Sectors::Atomic4K) => write!(f, " --sectors 4096"),
            Some(Sectors::Atomic512) => write!(f, " --sectors 512"),
            Some(Sectors::Shearing) => write!(f, " --sectors shearing"),
        }
    }
}

/// How a batch went.
#[derive(Debug, Default)]
pub struct Summary {
    /// Runs.
    pub seeds: u64,
    /// Those that failed, by seed.
    pub failed: Vec<Failed>,
    /// Virtual nanoseconds in all.
    pub time_ns: u128,
    /// Operations in the histories.
    pub operations: u64,
    /// Crashes survived.
    pub crashes: u64,
    /// Of all traces, whatever their order.
    pub trace_hash: u64,
}

impl Summary {
    /// Virtual time in hours.
    #[must_use]
    pub fn simulated_hours(&self) -> f64 {
        Duration::from_nanos(u64::try_from(self.time_ns).unwrap_or(u64::MAX)).as_secs_f64() / 3600.0
    }

    fn add(&mut self, report: SeedReport) {
        self.seeds += 1;
        self.time_ns += u128::from(report.time_ns);
        self.operations += report.operations;
        self.crashes += report.crashes;
        self.trace_hash ^= mix(report.trace_hash ^ report.settings.seed);
        if !report.failures.is_empty() {
            self.failed.push(Failed(report));
        }
    }
}

/// Runs all seeds of a batch.
#[must_use]
pub fn run_batch(batch: &Batch) -> Summary {
    let summary = Mutex::new(Summary::default());
    each_seed(batch, |settings| {
        let mut report = run_seed(settings);
        if batch.twice {
            let again = run_seed(settings);
            if again.trace_hash != report.trace_hash {
                let (one, other) = (report.trace_hash, again.trace_hash);
                report.failures.push(format!("the same seed gave two traces: {one:016x} and {other:016x}"));
            }
        }
        report.history = Vec::new();
        summary.lock().expect("no run panics here").add(report);
        true
    });
    let mut summary = summary.into_inner().expect("no run panics here");
    summary.failed.sort_by_key(|failed| failed.0.settings.seed);
    summary
}

/// Runs seeds from 1 on with a planted bug until one finds it; that run.
#[must_use]
pub fn run_canary(canary: Canary, scenario: Scenario, seeds: u64, threads: usize) -> Option<SeedReport> {
    let found: Mutex<Option<SeedReport>> = Mutex::new(None);
    let batch = Batch { canary: Some(canary), threads, ..Batch::new(&[scenario], 1, seeds) };
    each_seed(&batch, |settings| {
        let report = run_seed(settings);
        if report.failures.is_empty() {
            return true;
        }
        let mut found = found.lock().expect("no run panics here");
        if found.as_ref().is_none_or(|first| first.settings.seed > settings.seed) {
            *found = Some(report);
        }
        false
    });
    found.into_inner().expect("no run panics here")
}

/// Calls `run` with each seed's settings, in order, until it says no or the time is over.
fn each_seed(batch: &Batch, run: impl Fn(Settings) -> bool + Sync) {
    #[allow(clippy::disallowed_methods, reason = "bounds the time that a batch takes for real; no run sees it")]
    let begun = Instant::now();
    let next = AtomicU64::new(0);
    let over = AtomicBool::new(false);
    let total = batch.seeds * batch.scenarios.len() as u64;
    let work = || {
        while !over.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= total || batch.time_max.is_some_and(|limit| begun.elapsed() >= limit) {
                return;
            }
            let scenarios = batch.scenarios.len() as u64;
            let scenario = batch.scenarios[usize::try_from(number % scenarios).expect("few scenarios")];
            let seed = batch.from + number / scenarios;
            let (canary, sectors, print_trace) = (batch.canary, batch.sectors, batch.print_trace);
            if !run(Settings { scenario, seed, canary, sectors, print_trace }) {
                over.store(true, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..batch.threads.max(1) {
            scope.spawn(work);
        }
        work();
    });
}
