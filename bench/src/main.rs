//! `bench`: open-loop load on a host that it starts itself, what the machine allows in the same run, and the ratio of the two.
//!
//! `bench node SET` measures one host on one core; the sets are in [`node`]. The exit code is 1 if a figure misses its "must".
#![forbid(unsafe_code)]

mod awake;
mod limits;
mod load;
mod machine;
mod node;
mod report;
mod server;
mod wire;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Open-loop load, the limits of the machine, and the ratio of the two.
#[derive(Debug, Parser)]
#[command(name = "bench", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// One host: the broker on one processor, the generator on another
    Node(node::NodeArgs),
}

fn main() -> ExitCode {
    let Command::Node(args) = Cli::parse().command;
    match node::run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
