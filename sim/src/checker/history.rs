//! Histories: what clients did and saw, one operation a line of JSON when it is kept in a file.
//!
//! Times are any numbers that one clock gave (nanoseconds, or a counter): `start` before the request leaves, `end` after the answer
//! came. A send that timed out is *unknown*, never *failed*; an answer that promises that nothing was written is *failed*.

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It happened.
    Ok,
    /// It definitely didn't.
    Failed,
    /// Nobody can say: a timeout, a broken connection.
    Unknown,
}

/// The acknowledgement that a send asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Acks {
    /// None.
    None,
    /// The leader's.
    Leader,
    /// All in-sync replicas'.
    All,
}

/// The durability class of a partition's topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Acknowledged when flushed.
    Device,
    /// Acknowledged when written.
    Written,
}

/// A fault that takes hosts down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// kill -9 of one host.
    KillOne,
    /// kill -9 of all hosts.
    KillAll,
    /// A power cut of one host.
    PowerCutOne,
    /// A power cut of all hosts.
    PowerCutAll,
}

/// A record as a consumer saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Its offset.
    pub offset: i64,
    /// The value that one send carried.
    pub value: u64,
    /// Its timestamp; -1 if the history doesn't say.
    #[serde(default = "unknown_timestamp")]
    pub timestamp: i64,
}

fn unknown_timestamp() -> i64 {
    -1
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Action {
    /// One record was sent.
    Send {
        /// The partition, by any name.
        partition: String,
        /// Unique in the history.
        value: u64,
        /// The acknowledgement asked for.
        acks: Acks,
        /// The class of the topic.
        class: Class,
        /// Sends of one producer to one partition must land in the order they began, and each at most once. Without it, a value may land twice
        /// (a retry without idempotence).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        producer: Option<u64>,
        /// The offset acknowledged; none for `acks` none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        offset: Option<i64>,
    },
    /// A consumer asked for records from an offset on.
    Poll {
        /// The partition.
        partition: String,
        /// Polls of one consumer follow each other without a gap.
        consumer: u64,
        /// The offset asked for.
        position: i64,
        /// What came, from `position` on.
        records: Vec<Seen>,
    },
    /// A host told a partition's bounds.
    Watermarks {
        /// The partition.
        partition: String,
        /// The first offset kept.
        log_start: i64,
        /// Exclusive bound of what consumers see.
        high_watermark: i64,
    },
    /// The first record at or after a timestamp was asked for. Checked after [`Action::Heal`] only, when nothing is sent any more.
    Lookup {
        /// The partition.
        partition: String,
        /// The timestamp asked for.
        timestamp: i64,
        /// The offset found; -1 for none.
        offset: i64,
    },
    /// Hosts went down, at `start`.
    Down {
        /// How.
        fault: Fault,
    },
    /// All faults have ended; what follows must succeed, and the polls that follow read everything from the log's start.
    Heal,
}

impl Action {
    /// The partition that it is about and what it asks of it.
    #[must_use]
    pub fn target(&self) -> Option<(&str, &'static str)> {
        match self {
            Action::Send { partition, .. } => Some((partition, "send")),
            Action::Poll { partition, .. } => Some((partition, "poll")),
            Action::Watermarks { partition, .. } => Some((partition, "watermarks")),
            Action::Lookup { partition, .. } => Some((partition, "lookup")),
            Action::Down { .. } | Action::Heal => None,
        }
    }
}

/// One line of a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// When it began.
    pub start: u64,
    /// When its outcome was known.
    pub end: u64,
    /// The outcome.
    pub outcome: Outcome,
    /// What was done.
    #[serde(flatten)]
    pub action: Action,
}

/// Reads a history of JSON lines; empty lines are skipped.
///
/// # Errors
/// What reading says, and the number of a line that isn't an operation.
pub fn read(from: impl BufRead) -> io::Result<Vec<Operation>> {
    let mut operations = Vec::new();
    for (index, line) in from.lines().enumerate() {
        let line = line?;
        if line.trim().is_empty() {
            continue;
        }
        let operation = serde_json::from_str(&line)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("line {}: {error}", index + 1)))?;
        operations.push(operation);
    }
    Ok(operations)
}

/// Writes a history as JSON lines.
///
/// # Errors
/// What writing says.
pub fn write(mut to: impl Write, operations: &[Operation]) -> io::Result<()> {
    for operation in operations {
        serde_json::to_writer(&mut to, operation)?;
        to.write_all(b"\n")?;
    }
    Ok(())
}
