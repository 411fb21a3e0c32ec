//! `corelane doctor`: what this machine gives a host, what it lacks, and the command that mends it.
//!
//! Runs on an ordinary thread, before or beside a host; touches nothing but a temporary file in each data directory.
//! Invariants: every finding that isn't good says how to mend it; nothing waits without a bound (a drive that hangs is a
//! finding); a limit of the machine is compared with what the product needs, never with a taste.

mod drive;
mod machine;
mod measure;
mod system;

use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Value, json};

pub use drive::Drive;
pub use measure::{Latency, Measured};
pub use system::System;

/// What to look at.
#[derive(Clone, Debug)]
pub struct DoctorOptions {
    /// Data directories; they needn't exist yet.
    pub data: Vec<PathBuf>,
    /// The region that the host would lock, in bytes.
    pub memory_bytes: u64,
    /// Whether the drives are measured: takes about two seconds each and writes 16 MiB.
    pub measure: bool,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Good,
    /// Worth knowing; costs some speed at most.
    Note,
    /// Works, with a weaker property or much less speed.
    Warning,
    /// A host won't start, or can't keep its promises.
    Failure,
}

impl Level {
    fn mark(self) -> &'static str {
        match self {
            Level::Good => "ok  ",
            Level::Note => "note",
            Level::Warning => "WARN",
            Level::Failure => "FAIL",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What, in a word or two.
    pub name: String,
    /// How bad.
    pub level: Level,
    /// What was found, and what is needed.
    pub found: String,
    /// The command or setting that mends it; none if nothing has to be mended.
    pub remedy: Option<String>,
}

impl Finding {
    fn good(name: &str, found: impl Into<String>) -> Finding {
        Finding { name: name.to_owned(), level: Level::Good, found: found.into(), remedy: None }
    }

    fn bad(name: &str, level: Level, found: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { name: name.to_owned(), level, found: found.into(), remedy: Some(remedy.into()) }
    }
}

/// Everything that was found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The machine, then each data directory.
    pub findings: Vec<Finding>,
    /// The drives under the data directories.
    pub drives: Vec<Drive>,
}

impl Report {
    /// The worst level.
    #[must_use]
    pub fn worst(&self) -> Level {
        self.findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Good)
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        for finding in &self.findings {
            text.push_str(&format!("{}  {}: {}\n", finding.level.mark(), finding.name, finding.found));
            if let Some(remedy) = &finding.remedy {
                text.push_str(&format!("      mend: {remedy}\n"));
            }
        }
        for drive in &self.drives {
            text.push_str(&drive.text());
        }
        let count = |level: Level| self.findings.iter().filter(|finding| finding.level == level).count();
        text.push_str(&format!(
            "{} failures, {} warnings, {} notes\n",
            count(Level::Failure),
            count(Level::Warning),
            count(Level::Note)
        ));
        text
    }

    /// For programs.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({ "worst": self.worst(), "findings": self.findings, "drives": self.drives })
    }
}

/// Looks at the machine and at each data directory.
#[must_use]
pub fn run(options: &DoctorOptions) -> Report {
    let system = System::real();
    let probe = runtime::uring::probe();
    let mut findings = machine::findings(&system, &probe, options.memory_bytes);
    let mut drives = Vec::new();
    for directory in &options.data {
        let (drive, mut found) = drive::examine(&system, directory, options.measure);
        findings.append(&mut found);
        drives.extend(drive);
    }
    Report { findings, drives }
}

#[cfg(test)]
mod tests;
