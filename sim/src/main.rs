//! The simulator's command line: run seeds, show that the canaries are found, check a history file.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Parser, Subcommand, ValueEnum};
use sim::checker::check;
use sim::checker::history;
use sim::checker::promise::Replication;
use sim::disk::Sectors;
use sim::runner::{Batch, Summary, run_batch, run_canary};
use sim::scenario::{CANARIES, Scenario, Settings, capture_panics, run_seed};

/// Deterministic simulation of Corelane: one seed is one run.
#[derive(Parser)]
#[command(name = "sim")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run seeds; the exit code says whether all were good.
    Run(RunArguments),
    /// Switch each planted bug on, and demand that it is found.
    Canaries {
        /// Seeds per canary, at most.
        #[arg(long, default_value_t = 1_000)]
        seeds: u64,
        /// The scenarios; all by default.
        #[arg(long)]
        scenario: Option<ScenarioName>,
        /// Threads.
        #[arg(long, default_value_t = threads())]
        threads: usize,
    },
    /// Check a history of JSON lines.
    Check {
        /// The history.
        file: PathBuf,
        /// Replicas of a partition.
        #[arg(long, default_value_t = 1)]
        replicas: u32,
        /// In-sync replicas that an acknowledgement of all counts at least.
        #[arg(long, default_value_t = 1)]
        in_sync_min: u32,
    },
}

#[derive(clap::Args)]
struct RunArguments {
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// How many seeds.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// End after this many seconds, whatever is left.
    #[arg(long)]
    seconds: Option<u64>,
    /// The scenario; all in turn by default.
    #[arg(long)]
    scenario: Option<ScenarioName>,
    /// A planted bug to switch on.
    #[arg(long)]
    canary: Option<String>,
    /// What survives of a cut write; drawn from the seed by default. `shearing` promises nothing and is only reported.
    #[arg(long)]
    sectors: Option<SectorsName>,
    /// Print the trace to standard error.
    #[arg(long)]
    trace: bool,
    /// Write the history of each run to this file, as JSON lines (the last run stays).
    #[arg(long)]
    history: Option<PathBuf>,
    /// Run each seed twice and compare the traces.
    #[arg(long)]
    twice: bool,
    /// Threads.
    #[arg(long, default_value_t = threads())]
    threads: usize,
}

#[derive(Clone, Copy, ValueEnum)]
enum ScenarioName {
    Storage,
    Node,
    Cores,
}

#[derive(Clone, Copy, ValueEnum)]
enum SectorsName {
    #[value(name = "4096")]
    Atomic4K,
    #[value(name = "512")]
    Atomic512,
    Shearing,
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn scenarios(name: Option<ScenarioName>) -> Vec<Scenario> {
    match name {
        Some(ScenarioName::Storage) => vec![Scenario::Storage],
        Some(ScenarioName::Node) => vec![Scenario::Node],
        Some(ScenarioName::Cores) => vec![Scenario::Cores],
        None => vec![Scenario::Storage, Scenario::Node, Scenario::Cores],
    }
}

/// Seeds that a scenario gets for a canary that another has found.
const SEEDS_ONCE_FOUND: u64 = 100;

fn main() -> anyhow::Result<ExitCode> {
    capture_panics();
    match Arguments::parse().command {
        Command::Run(arguments) => run(&arguments),
        Command::Canaries { seeds, scenario, threads } => canaries(seeds, &scenarios(scenario), threads),
        Command::Check { file, replicas, in_sync_min } => check_file(&file, Replication { replicas, in_sync_min }),
    }
}

fn run(arguments: &RunArguments) -> anyhow::Result<ExitCode> {
    let canary = match &arguments.canary {
        None => None,
        Some(name) => {
            let known = CANARIES.iter().find(|(word, _)| word == name);
            Some(known.with_context(|| format!("no canary is called {name}; there are {:?}", CANARIES.map(|(word, _)| word)))?.1)
        }
    };
    let sectors = arguments.sectors.map(|name| match name {
        SectorsName::Atomic4K => Sectors::Atomic4K,
        SectorsName::Atomic512 => Sectors::Atomic512,
        SectorsName::Shearing => Sectors::Shearing,
    });
    let batch = Batch {
        scenarios: scenarios(arguments.scenario),
        from: arguments.from,
        seeds: arguments.seeds,
        time_max: arguments.seconds.map(Duration::from_secs),
        canary,
        sectors,
        print_trace: arguments.trace,
        twice: arguments.twice,
        threads: if arguments.trace { 1 } else { arguments.threads },
    };
    let summary = run_batch(&batch);
    if let Some(path) = &arguments.history {
        let settings = Settings { scenario: batch.scenarios[0], seed: arguments.from, canary, sectors, print_trace: false };
        let file = File::create(path).with_context(|| format!("can't write {}", path.display()))?;
        history::write(file, &run_seed(settings).history)?;
    }
    print_summary(&summary);
    let only_reported = sectors == Some(Sectors::Shearing);
    Ok(if summary.failed.is_empty() || only_reported { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_summary(summary: &Summary) {
    for failed in &summary.failed {
        println!("{failed}");
    }
    println!(
        "seeds run {}, failed {}, simulated hours {:.4}, operations {}, crashes {}, trace of all {:016x}",
        summary.seeds,
        summary.failed.len(),
        summary.simulated_hours(),
        summary.operations,
        summary.crashes,
        summary.trace_hash
    );
}

/// Each canary must be found by one scenario within `seeds`; how fast the others find it is said, not demanded.
fn canaries(seeds: u64, scenarios: &[Scenario], threads: usize) -> anyhow::Result<ExitCode> {
    let mut all_found = true;
    for (name, canary) in CANARIES {
        let mut found = false;
        for scenario in scenarios {
            let word = scenario.name();
            let seeds = if found { seeds.min(SEEDS_ONCE_FOUND) } else { seeds };
            match run_canary(canary, *scenario, seeds, threads) {
                Some(report) => {
                    found = true;
                    let first = report.failures.first().map_or("", String::as_str);
                    println!("{name} ({word}): found after {} seeds: {first}", report.settings.seed);
                }
                None => println!("{name} ({word}): not found in {seeds} seeds"),
            }
        }
        if !found {
            all_found = false;
            println!("{name}: NOT found by any scenario");
        }
    }
    Ok(if all_found { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check_file(path: &PathBuf, replication: Replication) -> anyhow::Result<ExitCode> {
    let file = File::open(path).with_context(|| format!("can't read {}", path.display()))?;
    let operations = history::read(BufReader::new(file)).with_context(|| format!("{} is no history", path.display()))?;
    let anomalies = check(&operations, replication);
    for anomaly in &anomalies {
        println!("{anomaly}");
    }
    println!("{} operations, {} anomalies", operations.len(), anomalies.len());
    Ok(if anomalies.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
