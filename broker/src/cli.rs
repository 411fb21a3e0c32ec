//! The command line: what each word means is in the file of its name under `cli/`.
//!
//! Tables are for people, `--json` for programs. What goes wrong is one line on standard error and an exit code of `EXIT_CODES`.

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::config::StartFlags;

mod consume;
mod doctor;
mod failure;
mod log;
pub mod output;
mod produce;
mod topic;

pub use failure::{Failure, FailureKind};

/// Said at the end of `--help`.
const EXIT_CODES: &str = "Exit codes: 0 done; 1 failed or refused; 2 wrong usage or configuration; 3 the server can't be reached; \
4 done in part, or the outcome isn't known; 5 a data directory can't be used.";

/// A distributed message broker.
#[derive(Debug, Parser)]
#[command(name = "corelane", version, about, after_help = EXIT_CODES, max_term_width = 110)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a host in the foreground; prints one line "ready ..." once it serves
    Start(StartFlags),
    /// Create, list, describe, alter and delete topics, and delete their oldest records
    Topic {
        #[command(subcommand)]
        command: topic::TopicCommand,
    },
    /// Send each line of a file, or of standard input, as a record
    Produce(produce::ProduceArgs),
    /// Read records
    Consume(consume::ConsumeArgs),
    /// Look into logs offline
    Log {
        #[command(subcommand)]
        command: log::LogCommand,
    },
    /// Say what this machine gives a host, what it lacks, and how to mend it
    Doctor(doctor::DoctorArgs),
}

/// How a subcommand reaches a host.
#[derive(Args, Clone, Debug)]
pub struct ServerArgs {
    /// The host to talk to
    #[arg(long, value_name = "HOST:PORT", env = "CORELANE_SERVER", default_value = crate::config::LISTEN_DEFAULT)]
    pub server: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Runs the command line of this process; `start` is what runs a host, on the environment that the binary chooses.
#[must_use]
pub fn main(start: impl FnOnce(StartFlags) -> Result<(), Failure>) -> ExitCode {
    let cli = Cli::parse();
    match run(cli.command, start) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                eprintln!("error: {}", failure.message);
            }
            ExitCode::from(failure.kind.code())
        }
    }
}

fn run(command: Command, start: impl FnOnce(StartFlags) -> Result<(), Failure>) -> Result<(), Failure> {
    match command {
        Command::Start(flags) => start(flags),
        Command::Topic { command } => client_runtime(topic::run(command)),
        Command::Produce(args) => client_runtime(produce::run(args)),
        Command::Consume(args) => client_runtime(consume::run(args)),
        Command::Log { command } => log::run(command),
        Command::Doctor(args) => doctor::run(args),
    }
}

/// Runs a client subcommand on a runtime of its own.
fn client_runtime(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::failed(format!("can't start: {error}")))?;
    let result = runtime.block_on(work);
    // A thread that still reads standard input must not keep the process.
    runtime.shutdown_background();
    result
}
