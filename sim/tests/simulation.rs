//! Level L1: deterministic simulation. Regression seeds, fresh seeds for a bounded time, one trace per seed, planted bugs found.
//!
//! `CORELANE_SIM_SECONDS` sets how long fresh seeds run (60 by default).
#![cfg(feature = "node")]

use std::time::{Duration, SystemTime};

use sim::disk::Sectors;
use sim::runner::{Batch, Summary, run_batch, run_canary};
use sim::scenario::{CANARIES, Scenario, Settings, capture_panics, run_seed};

const BOTH: [Scenario; 2] = [Scenario::Storage, Scenario::Node];

/// Seeds that found a bug once. They must stay good.
const REGRESSION_SEEDS: [(Scenario, u64); 7] = [
    // A killed process left names that only the kernel's memory held; the next start built on them, and a power cut took them.
    (Scenario::Storage, 1_796_013_784_157),
    (Scenario::Node, 1_796_013_784_009),
    (Scenario::Node, 1_796_013_784_040),
    // A first start was cut short behind the metadata log's directory, and the host never started again.
    (Scenario::Node, 7),
    // A flush failed, the process was killed, and recovery took for durable what the drive still showed.
    (Scenario::Storage, 1_883_290_181_042_199),
    (Scenario::Node, 1_796_044_124_021),
    // The scenario's own consumer forgot what one request had read when the next one failed.
    (Scenario::Node, 1_796_056_823_037),
];

fn fresh_time() -> Duration {
    let seconds = std::env::var("CORELANE_SIM_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(60))
}

fn print(what: &str, summary: &Summary) {
    println!(
        "{what}: {} seeds, {:.4} simulated hours, {} operations, {} crashes",
        summary.seeds,
        summary.simulated_hours(),
        summary.operations,
        summary.crashes
    );
}

fn assert_good(summary: &Summary) {
    let failed: Vec<String> = summary.failed.iter().map(ToString::to_string).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn regression_seeds_stay_good() {
    capture_panics();
    for (scenario, seed) in REGRESSION_SEEDS {
        assert_good(&run_batch(&Batch::new(&[scenario], seed, 1)));
    }
}

#[test]
fn fresh_seeds_are_good() {
    capture_panics();
    #[allow(clippy::disallowed_methods, reason = "fresh seeds must differ from run to run; a failure prints its seed")]
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let batch = Batch { time_max: Some(fresh_time()), ..Batch::new(&BOTH, now.as_secs() << 20, 100_000) };
    let summary = run_batch(&batch);
    print("fresh seeds", &summary);
    assert!(summary.seeds > 0);
    assert_good(&summary);
}

#[test]
fn one_seed_gives_one_trace() {
    capture_panics();
    let summary = run_batch(&Batch { twice: true, ..Batch::new(&BOTH, 1, 5) });
    assert_good(&summary);
    let again = run_batch(&Batch::new(&BOTH, 1, 5));
    assert_eq!(summary.trace_hash, again.trace_hash);
    assert_ne!(summary.trace_hash, run_batch(&Batch::new(&BOTH, 2, 5)).trace_hash);
}

#[test]
fn planted_bugs_are_found() {
    capture_panics();
    for (name, canary) in CANARIES {
        let found = run_canary(canary, Scenario::Storage, 1_000, 1);
        let report = found.unwrap_or_else(|| panic!("{name} was not found in 1,000 seeds"));
        println!("{name}: found after {} seeds", report.settings.seed);
    }
}

#[test]
fn a_shearing_drive_is_reported_only() {
    capture_panics();
    let mut failed = 0;
    for seed in 1..=10 {
        let sectors = Some(Sectors::Shearing);
        let settings = Settings { scenario: Scenario::Storage, seed, canary: None, sectors, print_trace: false };
        failed += u32::from(!run_seed(settings).failures.is_empty());
    }
    println!("drives that shear sectors: {failed} of 10 seeds lost something, as stated");
}
