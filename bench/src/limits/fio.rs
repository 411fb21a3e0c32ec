//! The disk, by fio. The lines are fixed by the figures' definitions; only the size is smaller in a quick check.
//!
//! It runs on the broker's processor, as the other limits do: a drive's interrupt comes to one processor, and a write that is waited for on
//! another one takes longer by a wake-up across processors.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// What fio found.
#[derive(Clone, Copy, Debug)]
pub struct FioResult {
    /// GiB/s.
    pub gib_per_second: f64,
    /// From submission to completion, in microseconds.
    pub p50_us: f64,
    /// From submission to completion, in microseconds.
    pub p99_us: f64,
}

impl FioResult {
    /// Of several runs of the same line, at least one.
    pub fn mean(runs: &[FioResult]) -> FioResult {
        let mean = |value: fn(&FioResult) -> f64| runs.iter().map(value).sum::<f64>() / runs.len() as f64;
        FioResult {
            gib_per_second: mean(|run| run.gib_per_second),
            p50_us: mean(|run| run.p50_us),
            p99_us: mean(|run| run.p99_us),
        }
    }
}

/// Durable appends of 1 MiB to a new file.
pub const WRITE_DEVICE: &[&str] = &["--rw=write", "--bs=1m", "--iodepth=2", "--sync=dsync", "--fallocate=posix"];
/// The same without a flush.
pub const WRITE_WRITTEN: &[&str] = &["--rw=write", "--bs=1m", "--iodepth=2", "--fallocate=posix"];
/// Durable overwrites of one block, one at a time.
pub const OVERWRITE_BLOCK: &[&str] = &["--rw=write", "--bs=4k", "--iodepth=1", "--sync=dsync", "--overwrite=1"];
/// Sequential reads.
pub const READ: &[&str] = &["--rw=read", "--bs=1m", "--iodepth=4"];

/// Runs one line on processor `cpu`, on a new file in `directory`, which is removed afterwards.
pub fn run(directory: &Path, cpu: usize, line: &[&str], size: &str) -> Result<FioResult> {
    let name = "fio-limit";
    let file = directory.join(format!("{name}.0.0"));
    drop(std::fs::remove_file(&file));
    let output = Command::new("taskset")
        .args(["-c", &cpu.to_string(), "fio"])
        .arg(format!("--name={name}"))
        .arg(format!("--directory={}", directory.display()))
        .args(["--ioengine=io_uring", "--direct=1", "--fixedbufs=1"])
        .arg(format!("--size={size}"))
        .args(line)
        // How it reports, not what it does.
        .args(["--output-format=json", "--lat_percentiles=1", "--clat_percentiles=0"])
        .output()
        .context("taskset can't be started (package util-linux)")?;
    drop(std::fs::remove_file(&file));
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "fio (package fio) failed: {said}{}", String::from_utf8_lossy(&output.stderr));
    parse(&said, line.contains(&"--rw=read"))
}

fn parse(said: &str, read: bool) -> Result<FioResult> {
    let json = said.find('{').map(|start| &said[start..]).context("fio gave no JSON")?;
    let report: Value = serde_json::from_str(json).context("fio's JSON can't be read")?;
    let side = &report["jobs"][0][if read { "read" } else { "write" }];
    let number = |value: &Value, what: &str| value.as_f64().with_context(|| format!("fio's report has no {what}"));
    let percentiles = &side["lat_ns"]["percentile"];
    Ok(FioResult {
        gib_per_second: number(&side["bw_bytes"], "bandwidth")? / (1u64 << 30) as f64,
        p50_us: number(&percentiles["50.000000"], "p50")? / 1000.0,
        p99_us: number(&percentiles["99.000000"], "p99")? / 1000.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_is_read_behind_warnings() {
        let said = "fio: a warning\n{\"jobs\":[{\"write\":{\"bw_bytes\":1073741824,\
            \"lat_ns\":{\"percentile\":{\"50.000000\":58000,\"99.000000\":91000}}}}]}";
        let result = parse(said, false).unwrap();
        assert_eq!((result.gib_per_second, result.p50_us, result.p99_us), (1.0, 58.0, 91.0));
        assert!(parse(said, true).is_err());
        assert!(parse("nothing", false).is_err());
    }
}
