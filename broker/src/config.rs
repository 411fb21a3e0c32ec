//! What `corelane start` runs with: flags over environment (`CORELANE_...`) over a TOML file over defaults.
//!
//! Read once, before the core starts. What is wrong is refused here, with where it stands and what is allowed; nothing
//! is ignored. `Settings` is for the process, `NodeConfig` (in `node`) for the part that the simulator runs too.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

mod file;
mod flags;
mod machine;
#[cfg(test)]
mod tests;
mod values;

pub use file::{FileConfig, KEYS};
pub use flags::StartFlags;
pub use machine::memory_bytes_default;
pub use values::{CpuList, DurationText, SizeText, Spin};

/// Where the native protocol listens, if nobody says so.
pub const LISTEN_DEFAULT: &str = "127.0.0.1:9090";
/// Where core 0 listens alone, if there are several and nobody says so.
pub const CORE_PORT_DEFAULT: u16 = 9100;
/// Smallest region of a core, in bytes.
pub const MEMORY_BYTES_MIN: u64 = 64 << 20;
/// Largest region that is taken without being asked for, in bytes: it is pinned as a whole.
pub const MEMORY_BYTES_DEFAULT_MAX: u64 = 1 << 30;

/// The settings of a process, complete and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Data directories, each on a drive of its own.
    pub data: Vec<PathBuf>,
    /// None of them may be new.
    pub data_must_exist: bool,
    /// Where the native protocol listens.
    pub listen: SocketAddr,
    /// Other addresses than loopback are allowed although nobody is authenticated.
    pub insecure: bool,
    /// Cores.
    pub cores: usize,
    /// The processors that they are pinned to, in turn; any, if empty.
    pub cpus: Vec<usize>,
    /// With several cores, core n also listens at this port + n; 0: any free ports.
    pub core_port: u16,
    /// The cores' regions together, in bytes.
    pub memory_bytes: u64,
    /// Free bytes of each drive that logs of topics leave; a part of the drive, if it isn't given.
    pub reserve_bytes: Option<u64>,
    /// How long the core polls before it sleeps.
    pub spin: Spin,
    /// This host's number.
    pub host_id: u32,
    /// Connections at most.
    pub connections_max: usize,
    /// Connections from one address at most.
    pub connections_per_address_max: usize,
    /// A connection without requests is closed after this.
    pub idle_timeout: Duration,
    /// Partitions of the host at most.
    pub partitions_max: usize,
    /// What is logged to standard error, as `tracing` filters say it.
    pub log: String,
    /// The line `ready` and the log are JSON.
    pub json: bool,
}

/// Why the settings can't be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("can't read the configuration file {path}: {error}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// The file says something that isn't understood.
    #[error("{path}:{line}:{column}: {message}")]
    File {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
        /// What is wrong, and what is allowed.
        message: String,
    },
    /// There is nowhere to keep data.
    #[error("no data directory: give --data DIR, set CORELANE_DATA, or write data = [\"DIR\"] into the configuration file")]
    NoData,
    /// Two data directories are one.
    #[error("the data directory {0} is given twice")]
    DataTwice(PathBuf),
    /// The address can be reached from other machines, and nobody is authenticated.
    #[error(
        "listen address {0} is not a loopback address: as long as clients are not authenticated, only loopback is allowed; \
         listen on 127.0.0.1, or say --insecure if everybody who reaches this address may read and write"
    )]
    NotLoopback(SocketAddr),
    /// A number is out of its range.
    #[error("{name} is {value}, allowed are {min} to {max}")]
    OutOfRange {
        /// The setting.
        name: &'static str,
        /// What was asked for.
        value: String,
        /// The least.
        min: String,
        /// The most.
        max: String,
    },
}

impl Settings {
    /// Joins flags (and environment), file and defaults.
    ///
    /// # Errors
    /// Whatever can't be read or isn't allowed.
    pub fn load(flags: StartFlags) -> Result<Settings, ConfigError> {
        let file = match &flags.config {
            Some(path) => FileConfig::read(path)?,
            None => FileConfig::default(),
        };
        Settings::join(flags, file, machine::memory_bytes_default())
    }

    fn join(flags: StartFlags, file: FileConfig, memory_default: u64) -> Result<Settings, ConfigError> {
        let listen_default = SocketAddr::from(([127, 0, 0, 1], 9090));
        let cpus = flags.cpus.or(file.cpus).map_or_else(Vec::new, |list| list.0);
        let cores = flags.cores.or(file.cores).unwrap_or_else(|| cpus.len().max(1));
        let settings = Settings {
            data: if flags.data.is_empty() { file.data.unwrap_or_default() } else { flags.data },
            data_must_exist: flags.data_must_exist || file.data_must_exist.unwrap_or(false),
            listen: flags.listen.or(file.listen).unwrap_or(listen_default),
            insecure: flags.insecure || file.insecure.unwrap_or(false),
            cores,
            cpus,
            core_port: flags.core_port.or(file.core_port).unwrap_or(CORE_PORT_DEFAULT),
            memory_bytes: flags.memory.or(file.memory).map_or(memory_default.max(MEMORY_BYTES_MIN * cores as u64), |size| size.0),
            reserve_bytes: flags.reserve.or(file.reserve).map(|size| size.0),
            spin: flags.spin.or(file.spin).unwrap_or_default(),
            host_id: flags.host_id.or(file.host_id).unwrap_or(1),
            connections_max: file.connections_max.unwrap_or(protocol::limits::CONNECTIONS_PER_CORE_MAX),
            connections_per_address_max: file
                .connections_per_address_max
                .unwrap_or(protocol::limits::CONNECTIONS_PER_ADDRESS_MAX),
            idle_timeout: file
                .idle_timeout
                .map_or(Duration::from_millis(protocol::limits::CONNECTION_IDLE_TIMEOUT_MS), |text| text.0),
            partitions_max: file.partitions_max.unwrap_or(protocol::limits::PARTITIONS_PER_HOST_MAX),
            log: flags.log.or(file.log).unwrap_or_else(|| "info".into()),
            json: flags.json,
        };
        settings.check()?;
        Ok(settings)
    }

    fn check(&self) -> Result<(), ConfigError> {
        if self.data.is_empty() {
            return Err(ConfigError::NoData);
        }
        for (index, path) in self.data.iter().enumerate() {
            if self.data[..index].iter().any(|earlier| same_directory(earlier, path)) {
                return Err(ConfigError::DataTwice(path.clone()));
            }
        }
        if !self.insecure && !self.listen.ip().is_loopback() {
            return Err(ConfigError::NotLoopback(self.listen));
        }
        in_range("cores", self.cores, 1, protocol::limits::CORES_PER_HOST_MAX)?;
        let last_port = usize::from(self.core_port) + self.cores - 1;
        in_range("core_port + cores - 1", last_port, 0, usize::from(u16::MAX))?;
        let memory_min = MEMORY_BYTES_MIN * self.cores as u64;
        in_range("memory", self.memory_bytes, memory_min, 1 << 40)?;
        in_range("reserve", self.reserve_bytes.unwrap_or(0), 0, 1 << 50)?;
        in_range("connections_max", self.connections_max, 1, 1_000_000)?;
        in_range("connections_per_address_max", self.connections_per_address_max, 1, 1_000_000)?;
        in_range("partitions_max", self.partitions_max, 1, 1_000_000)?;
        in_range("idle_timeout (seconds)", self.idle_timeout.as_secs(), 1, 30 * 24 * 3600)?;
        in_range("host_id", self.host_id, 0, 2_000_000)
    }
}

fn same_directory(left: &std::path::Path, right: &std::path::Path) -> bool {
    match (left.canonicalize(), right.canonicalize()) {
        (Ok(left), Ok(right)) => left == right,
        _ => left == right,
    }
}

fn in_range<T: PartialOrd + std::fmt::Display>(name: &'static str, value: T, min: T, max: T) -> Result<(), ConfigError> {
    if value >= min && value <= max {
        return Ok(());
    }
    Err(ConfigError::OutOfRange { name, value: value.to_string(), min: min.to_string(), max: max.to_string() })
}
