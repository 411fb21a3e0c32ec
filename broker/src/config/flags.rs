//! The flags of `corelane start`, each with its environment variable.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::values::{CpuList, SizeText, Spin};

/// Flags of `start`.
#[derive(Args, Clone, Debug, Default)]
pub struct StartFlags {
    /// Data directory; once per drive. Created if absent
    #[arg(long, value_name = "DIR", env = "CORELANE_DATA", value_delimiter = ',')]
    pub data: Vec<PathBuf>,
    /// Refuse a data directory that holds nothing of a host yet, as the place of a drive that is not mounted
    #[arg(long, env = "CORELANE_DATA_MUST_EXIST")]
    pub data_must_exist: bool,
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE", env = "CORELANE_CONFIG")]
    pub config: Option<PathBuf>,
    /// Where the native protocol listens [default: 127.0.0.1:9090; port 0 takes any free port]
    #[arg(long, value_name = "ADDR:PORT", env = "CORELANE_LISTEN")]
    pub listen: Option<SocketAddr>,
    /// Allow a listen address that other machines reach, although clients are not authenticated
    #[arg(long, env = "CORELANE_INSECURE")]
    pub insecure: bool,
    /// Cores: threads that each own some partitions [default: as many as --cpus names, else 1]
    #[arg(long, value_name = "N", env = "CORELANE_CORES")]
    pub cores: Option<usize>,
    /// Pin the cores to these processors, as 0,2 or 0-3; in turn, if there are more cores [default: wherever the system runs them]
    #[arg(long, alias = "cpu", value_name = "LIST", env = "CORELANE_CPUS")]
    pub cpus: Option<CpuList>,
    /// With several cores, core n also listens alone at PORT + n, for clients that go to the owner of a partition [default: 9100;
    /// 0 takes any free ports]
    #[arg(long, value_name = "PORT", env = "CORELANE_CORE_PORT")]
    pub core_port: Option<u16>,
    /// Memory of the cores' regions together, pinned [default: half of the limit of the cgroup or machine, 1GiB at most, but 64MiB for each core]
    #[arg(long, value_name = "SIZE", env = "CORELANE_MEMORY")]
    pub memory: Option<SizeText>,
    /// Free space that the logs of topics leave on each drive, so that all else goes on when it is full [default: a 32nd of the drive, 256MiB at most]
    #[arg(long, value_name = "SIZE", env = "CORELANE_RESERVE")]
    pub reserve: Option<SizeText>,
    /// Poll before sleeping: off, always, or a duration up to 1ms [default: off]
    #[arg(long, value_name = "SPIN", env = "CORELANE_SPIN")]
    pub spin: Option<Spin>,
    /// This host's number in the cluster [default: 1]
    #[arg(long, value_name = "N", env = "CORELANE_HOST_ID")]
    pub host_id: Option<u32>,
    /// What is logged to standard error: error, warn, info, debug, trace, or a filter per module [default: info]
    #[arg(long, value_name = "FILTER", env = "CORELANE_LOG")]
    pub log: Option<String>,
    /// Print the ready line, and log, as JSON
    #[arg(long)]
    pub json: bool,
}
