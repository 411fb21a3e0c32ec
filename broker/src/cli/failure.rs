//! How a subcommand fails: the line that people read, and the exit code that programs read.

use corelane_client::{ConnectError, ConsumeError, RequestError, SendError};

use crate::config::ConfigError;

/// The classes of failure that have an exit code of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// Failed or refused.
    Failed,
    /// The command line or the configuration is wrong.
    Usage,
    /// The server can't be reached.
    Unreachable,
    /// Done in part, or the outcome isn't known.
    Partial,
    /// A data directory can't be used.
    Directory,
}

/// A failure of a subcommand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its class.
    pub kind: FailureKind,
    /// What is said; empty if all is said already.
    pub message: String,
}

impl FailureKind {
    /// The exit code.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            FailureKind::Failed => 1,
            FailureKind::Usage => 2,
            FailureKind::Unreachable => 3,
            FailureKind::Partial => 4,
            FailureKind::Directory => 5,
        }
    }
}

impl Failure {
    /// A failure of some class.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Failure {
        Failure { kind, message: message.into() }
    }

    /// Failed or refused.
    pub fn failed(message: impl Into<String>) -> Failure {
        Failure::new(FailureKind::Failed, message)
    }

    /// Wrong usage.
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure::new(FailureKind::Usage, message)
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Failure {
        Failure::usage(error.to_string())
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Failure {
        match &error {
            ConnectError::Address { .. } => Failure::usage(format!("--server {error}")),
            ConnectError::Unreachable { .. } | ConnectError::TimedOut { .. } => {
                Failure::new(FailureKind::Unreachable, format!("{error}; is a host running there? (--server, CORELANE_SERVER)"))
            }
            _ => Failure::failed(error.to_string()),
        }
    }
}

impl From<RequestError> for Failure {
    fn from(error: RequestError) -> Failure {
        match error {
            RequestError::Connect(error) => error.into(),
            RequestError::Refused { code, message } if !message.is_empty() => Failure::failed(format!("{message}: {code}")),
            error if error.is_unknown() => Failure::new(FailureKind::Partial, error.to_string()),
            error => Failure::failed(error.to_string()),
        }
    }
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Failure {
        match error {
            SendError::Metadata(error) => error.into(),
            error => Failure::failed(error.to_string()),
        }
    }
}

impl From<ConsumeError> for Failure {
    fn from(error: ConsumeError) -> Failure {
        match error {
            ConsumeError::Request(error) => error.into(),
            error => Failure::failed(error.to_string()),
        }
    }
}

impl From<std::io::Error> for Failure {
    /// Of standard output. A reader that has seen enough (`head`) is no failure.
    fn from(error: std::io::Error) -> Failure {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Failure::new(FailureKind::Failed, "");
        }
        Failure::failed(format!("can't write the output: {error}"))
    }
}
