//! `corelane doctor`: what is in `crate::doctor`, for people or programs. Ends with 1 if a host wouldn't start.

use std::path::PathBuf;

use clap::Args;

use super::Failure;
use super::output::print;
use crate::config::{SizeText, memory_bytes_default};
use crate::doctor::{DoctorOptions, Level, run as examine};

/// Arguments of `doctor`.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Also look at this data directory and the drive below it; repeatable. It need not exist
    #[arg(long, value_name = "DIR", env = "CORELANE_DATA", value_delimiter = ',')]
    data: Vec<PathBuf>,
    /// The memory that a host would take [default: as `start` takes]
    #[arg(long, value_name = "SIZE", env = "CORELANE_MEMORY")]
    memory: Option<SizeText>,
    /// Don't measure the drives
    #[arg(long)]
    no_measure: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `doctor`.
pub fn run(args: DoctorArgs) -> Result<(), Failure> {
    let memory_bytes = args.memory.map_or_else(memory_bytes_default, |size| size.0);
    let report = examine(&DoctorOptions { data: args.data, memory_bytes, measure: !args.no_measure });
    if args.json {
        print(&report.json())?;
    } else {
        print(&report.text().trim_end())?;
    }
    match report.worst() {
        Level::Failure => Err(Failure::failed("")),
        Level::Good | Level::Note | Level::Warning => Ok(()),
    }
}
