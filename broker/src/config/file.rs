//! The configuration file. An unknown key is an error that names file, line and the key that was probably meant.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::ConfigError;
use super::values::{CpuList, DurationText, SizeText, Spin};
use crate::likely::likely;

/// Keys of the file, as `FileConfig` reads them.
pub const KEYS: &[&str] = &[
    "data",
    "data_must_exist",
    "listen",
    "insecure",
    "cores",
    "cpus",
    "core_port",
    "memory",
    "reserve",
    "spin",
    "host_id",
    "connections_max",
    "connections_per_address_max",
    "idle_timeout",
    "partitions_max",
    "log",
];

/// What the file says; every key may be absent.
#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct FileConfig {
    /// Data directories.
    pub data: Option<Vec<PathBuf>>,
    /// See `--data-must-exist`.
    pub data_must_exist: Option<bool>,
    /// Where the native protocol listens.
    pub listen: Option<SocketAddr>,
    /// See `--insecure`.
    pub insecure: Option<bool>,
    /// See `--cores`.
    pub cores: Option<usize>,
    /// The processors that cores are pinned to.
    pub cpus: Option<CpuList>,
    /// See `--core-port`.
    pub core_port: Option<u16>,
    /// The cores' regions together.
    pub memory: Option<SizeText>,
    /// See `--reserve`.
    pub reserve: Option<SizeText>,
    /// How long the core polls before it sleeps.
    pub spin: Option<Spin>,
    /// This host's number.
    pub host_id: Option<u32>,
    /// Connections at most.
    pub connections_max: Option<usize>,
    /// Connections from one address at most.
    pub connections_per_address_max: Option<usize>,
    /// A connection without requests is closed after this.
    pub idle_timeout: Option<DurationText>,
    /// Partitions of the host at most.
    pub partitions_max: Option<usize>,
    /// What is logged.
    pub log: Option<String>,
}

impl FileConfig {
    /// Reads and parses a file.
    ///
    /// # Errors
    /// If it can't be read or isn't understood.
    pub fn read(path: &Path) -> Result<FileConfig, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError::Unreadable { path: path.into(), error })?;
        FileConfig::parse(path, &text)
    }

    /// Parses the text of a file; `path` is for messages.
    ///
    /// # Errors
    /// If it isn't understood.
    pub fn parse(path: &Path, text: &str) -> Result<FileConfig, ConfigError> {
        toml::from_str(text).map_err(|error| {
            let (line, column) = position(text, error.span().map_or(0, |span| span.start));
            ConfigError::File { path: path.into(), line, column, message: explain(error.message()) }
        })
    }
}

/// Line and column, from 1, of a byte.
fn position(text: &str, byte: usize) -> (usize, usize) {
    let before = text.get(..byte).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

fn explain(message: &str) -> String {
    let message = message.trim_end();
    let Some(key) = message.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next()) else {
        return message.into();
    };
    match likely(key, KEYS.iter().copied()) {
        Some(meant) => format!("unknown key {key:?}; did you mean {meant:?}?"),
        None => format!("unknown key {key:?}; known are {}", KEYS.join(", ")),
    }
}
