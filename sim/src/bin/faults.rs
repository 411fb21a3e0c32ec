//! Faults on the real path: power cuts replayed from a block-level record, and the process killed under load.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use sim::powercut::prefilled;
use sim::powercut::rig::{self, FileSystem};
use sim::powercut::selftest;
use sim::powercut::session::{self, Plan};
use sim::real::crash::{self, CrashOptions};

/// Power cuts and kills of a real corelane process. Needs root, loop devices and the packages of deploy/scripts/setup.sh
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Record a loaded corelane on a fresh file system, judge the block trace, replay cuts
    Powercut(PowercutArguments),
    /// Replay cuts of what `powercut` recorded in the same work directory
    Again(PowercutArguments),
    /// Make a large log that a power cut ended and leave it mounted, until `clean`; the data directory is DIR/data
    Prefilled {
        #[command(flatten)]
        arguments: PowercutArguments,
        /// Bytes of values in the log, in MiB
        #[arg(long, default_value_t = 10 << 10)]
        mib: u64,
        /// Where it is mounted
        #[arg(long, value_name = "DIR")]
        mount: PathBuf,
    },
    /// Judge the power-cut harness itself with writers whose honesty is known
    Selftest {
        /// Where images and recordings lie
        #[arg(long)]
        workdir: PathBuf,
        /// File system
        #[arg(long, value_enum, default_value = "ext4")]
        file_system: FileSystem,
        /// Torn points
        #[arg(long, default_value_t = 24)]
        points: usize,
    },
    /// Kill a loaded corelane with SIGKILL over and over; its history goes to the checker
    Crash {
        /// Where data and history lie
        #[arg(long)]
        workdir: PathBuf,
        /// The corelane binary [default: beside this program]
        #[arg(long)]
        corelane: Option<PathBuf>,
        /// Kills
        #[arg(long, default_value_t = 20)]
        kills: u32,
        /// Seeds load and moments
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Undo what a killed run left attached
    Clean {
        /// Its work directory
        #[arg(long)]
        workdir: PathBuf,
    },
}

#[derive(Debug, clap::Args)]
struct PowercutArguments {
    /// Where images and recordings lie
    #[arg(long)]
    workdir: PathBuf,
    /// The corelane binary [default: beside this program]
    #[arg(long)]
    corelane: Option<PathBuf>,
    /// File system
    #[arg(long, value_enum, default_value = "ext4")]
    file_system: FileSystem,
    /// Points of each mode
    #[arg(long, default_value_t = 50)]
    points: usize,
    /// How long each of the two loads runs, in milliseconds
    #[arg(long, default_value_t = 6000)]
    load_ms: u64,
    /// Seeds load, cuts and what survives
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl PowercutArguments {
    fn plan(&self) -> Plan {
        Plan {
            binary: self.corelane.clone(),
            file_system: self.file_system,
            load_ms: self.load_ms,
            points: self.points,
            seed: self.seed,
        }
    }
}

fn prepare(workdir: &Path) -> Result<PathBuf> {
    ensure!(rustix::process::geteuid().is_root(), "must be root: loop devices and mounts");
    std::fs::create_dir_all(workdir)?;
    let workdir = std::fs::canonicalize(workdir)?;
    let left = rig::clean(&workdir).context("an earlier run was killed and what it left attached can't be removed")?;
    if left > 0 {
        println!("removed {left} things that a killed run had left attached");
    }
    Ok(workdir)
}

fn run(command: Command) -> Result<(usize, usize)> {
    match command {
        Command::Powercut(arguments) => {
            let result = session::run(&prepare(&arguments.workdir)?, &arguments.plan())?;
            Ok((result.passed, result.failed))
        }
        Command::Again(arguments) => {
            let result = session::again(&prepare(&arguments.workdir)?, &arguments.plan())?;
            Ok((result.passed, result.failed))
        }
        Command::Prefilled { arguments, mib, mount } => {
            prefilled::make(&prepare(&arguments.workdir)?, &arguments.plan(), mib << 20, &mount)?;
            Ok((1, 0))
        }
        Command::Selftest { workdir, file_system, points } => selftest::run(&prepare(&workdir)?, file_system, points),
        Command::Crash { workdir, corelane, kills, seed } => {
            std::fs::create_dir_all(&workdir)?;
            crash::run(&workdir, &CrashOptions { binary: corelane, kills, seed })
        }
        Command::Clean { workdir } => prepare(&workdir).map(|_| (1, 0)),
    }
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok((passed, failed)) => {
            println!("{passed} passed, {failed} failed");
            ExitCode::from(u8::from(failed > 0))
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
