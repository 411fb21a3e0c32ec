//! The figures of one host: the broker with all its threads on one processor, the generator on another.
//!
//! Each set starts the release binary itself on a data directory of its own, measures, and takes both away again. Limits are
//! measured in the same run: fio's lines on the same file system, an echo and a ring that only sends on the same processors.
//! Processor time is the busy time of the broker's processor in /proc/stat, so nothing else may run there.

mod catch_up;
mod fan_out;
mod idle;
mod latency;
mod restart;
mod throughput;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};

use crate::machine;
use crate::report::Report;
use crate::server::{Scratch, Server, ServerConfig};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Set {
    /// Durable and written produce at full rate, and its processor time
    Produce,
    /// Acknowledgements and end to end under a Poisson load, and fan-out to four tail readers
    Tail,
    /// A cold log read from its start at full rate
    Catchup,
    /// Seconds from start to serving after kill -9, and after a power cut if a data directory is given
    Restart,
    /// Processor time of a host with nothing to do
    Idle,
    /// All of these
    All,
}

/// Flags of `bench node`.
#[derive(Args, Clone, Debug)]
pub struct NodeArgs {
    /// What is measured
    #[arg(value_enum)]
    pub set: Set,
    /// Write the report here, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Small sizes: shows that all works, in a minute; its ratios say little
    #[arg(long)]
    pub quick: bool,
    /// The binary under test
    #[arg(long, value_name = "FILE", env = "CORELANE_BIN", default_value = "target/release/corelane")]
    pub corelane: PathBuf,
    /// Where data directories and fio's files are made: a directory on the drive to be measured
    #[arg(long, value_name = "DIR", env = "CORELANE_BENCH_DIR", default_value = "target/bench-data")]
    pub dir: PathBuf,
    /// The broker's processor
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub broker_cpu: usize,
    /// The generator's processor
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub generator_cpu: usize,
    /// Bytes that the produce figures write [default: 20GiB; 256MiB with --quick]
    #[arg(long, value_name = "SIZE")]
    pub produce_size: Option<bytesize::ByteSize>,
    /// Bytes of the log for catch-up and restart [default: 10GiB; 128MiB with --quick]
    #[arg(long, value_name = "SIZE")]
    pub log_size: Option<bytesize::ByteSize>,
    /// Seconds of the latency load, after its warm-up [default: 30; 3 with --quick]
    #[arg(long, value_name = "SECONDS")]
    pub latency_seconds: Option<f64>,
    /// A data directory as a power cut left it (replayed), to be started too
    #[arg(long, value_name = "DIR")]
    pub power_cut_data: Option<PathBuf>,
    /// A further flag for `corelane start`, as `--server-flag=--spin=50us`; repeatable
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    pub server_flag: Vec<String>,
}

/// Sizes of a run.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    produce_bytes: u64,
    intake_bytes: u64,
    log_bytes: u64,
    fan_out_bytes: u64,
    fio: &'static str,
    fio_block: &'static str,
    echo_round_trips: u64,
    send_seconds: f64,
    latency_warm_up_seconds: f64,
    latency_seconds: f64,
    idle_seconds: f64,
}

/// One run: settings and what was found.
struct Run {
    args: NodeArgs,
    sizes: Sizes,
    report: Report,
}

/// Measures. Whether all that must be is met.
pub fn run(args: &NodeArgs) -> Result<bool> {
    ensure!(args.broker_cpu != args.generator_cpu, "broker and generator need a processor each");
    ensure!(args.corelane.exists(), "{} isn't there: cargo build --release -p broker", args.corelane.display());
    std::fs::create_dir_all(&args.dir).with_context(|| format!("{} can't be made", args.dir.display()))?;
    let sizes = sizes(args);
    let needed = sizes.produce_bytes.max(sizes.log_bytes).max(sizes.fan_out_bytes) + (6 << 30);
    if !args.quick {
        machine::require_space(&args.dir, needed)?;
    }
    let report = Report { machine: machine::describe(), quick: args.quick, ..Report::default() };
    let mut run = Run { args: args.clone(), sizes, report };
    let is_asked = |set: Set| args.set == set || args.set == Set::All;
    // Latencies first: for minutes after tens of GiB were removed, a drive under `discard` stops durable writes now and then.
    if is_asked(Set::Tail) {
        latency::measure(&mut run).context("tail")?;
    }
    if is_asked(Set::Produce) {
        throughput::measure(&mut run).context("produce")?;
    }
    if is_asked(Set::Tail) {
        fan_out::measure(&mut run).context("fan-out")?;
    }
    if is_asked(Set::Catchup) {
        catch_up::measure(&mut run).context("catch-up")?;
    }
    if is_asked(Set::Restart) {
        restart::measure(&mut run).context("restart")?;
    }
    if is_asked(Set::Idle) {
        idle::measure(&mut run).context("idle")?;
    }
    run.report.print();
    if let Some(path) = &args.json {
        run.report.write_json(path)?;
    }
    Ok(run.report.passed())
}

fn sizes(args: &NodeArgs) -> Sizes {
    let mut sizes = if args.quick {
        Sizes {
            produce_bytes: 256 << 20,
            intake_bytes: 1 << 30,
            log_bytes: 128 << 20,
            fan_out_bytes: 128 << 20,
            fio: "128m",
            fio_block: "16m",
            echo_round_trips: 5_000,
            send_seconds: 1.0,
            latency_warm_up_seconds: 0.5,
            latency_seconds: 3.0,
            idle_seconds: 3.0,
        }
    } else {
        Sizes {
            produce_bytes: 20 << 30,
            intake_bytes: 2 << 30,
            log_bytes: 10 << 30,
            fan_out_bytes: 6 << 30,
            fio: "4g",
            fio_block: "512m",
            echo_round_trips: 100_000,
            send_seconds: 5.0,
            latency_warm_up_seconds: 2.0,
            latency_seconds: 30.0,
            idle_seconds: 20.0,
        }
    };
    if let Some(size) = args.produce_size {
        sizes.produce_bytes = size.0;
    }
    if let Some(size) = args.log_size {
        sizes.log_bytes = size.0;
    }
    if let Some(seconds) = args.latency_seconds {
        sizes.latency_seconds = seconds;
    }
    sizes
}

impl Run {
    /// An empty data directory.
    fn scratch(&self, name: &str) -> Result<Scratch> {
        Scratch::new(&self.args.dir, name)
    }

    /// Starts a host on a data directory.
    fn start(&self, scratch: &Scratch) -> Result<Server> {
        let server = Server::start(&self.server_config(scratch.path.clone()))?;
        server.settle_memory()?;
        Ok(server)
    }

    fn server_config(&self, data: PathBuf) -> ServerConfig {
        ServerConfig { binary: self.args.corelane.clone(), data, cpu: self.args.broker_cpu, flags: self.args.server_flag.clone() }
    }
}
