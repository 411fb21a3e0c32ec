//! `corelane log dump|verify DIR`: logs read offline, and what is wrong at which byte.
//!
//! DIR is a data directory, a topic's or a log's. Nothing is changed. A directory that a host uses is read all the same, with
//! a warning: what is being written may look torn.

use std::io::{BufWriter, Write, stdout};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use storage::inspect::{self, BatchInfo, Item, Summary};

use super::output::size;
use super::{Failure, FailureKind};

/// What can be done with logs offline.
#[derive(Debug, Subcommand)]
pub enum LogCommand {
    /// Print every segment and batch
    Dump(LogArgs),
    /// Check every byte; prints what is wrong, exit code 1 if anything is
    Verify(LogArgs),
}

/// Arguments of `log dump` and `log verify`.
#[derive(Args, Debug)]
pub struct LogArgs {
    /// A data directory, a topic's directory in it, or a partition's
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Print JSON, an object a line
    #[arg(long)]
    json: bool,
}

/// Runs a `log` subcommand.
pub fn run(command: LogCommand) -> Result<(), Failure> {
    let (args, is_dump) = match command {
        LogCommand::Dump(args) => (args, true),
        LogCommand::Verify(args) => (args, false),
    };
    let unusable = |error: std::io::Error| Failure::new(FailureKind::Directory, format!("{}: {error}", args.directory.display()));
    if let Some(holder) = inspect::holder(&args.directory).map_err(unusable)? {
        eprintln!("warning: the directory is in use ({holder}); what is being written may look torn");
    }
    let mut out = BufWriter::with_capacity(1 << 16, stdout());
    let mut problems = 0;
    for log in inspect::logs_below(&args.directory).map_err(unusable)? {
        let mut failed = Ok(());
        let summary = inspect::inspect(&log, |item| {
            if failed.is_ok() && (is_dump || matches!(item, Item::Problem(_) | Item::Tail(_))) {
                failed = write_item(&mut out, args.json, item);
            }
        });
        failed?;
        let summary = summary.map_err(unusable)?;
        problems += summary.problems;
        write_summary(&mut out, args.json, &log, &summary)?;
    }
    out.flush()?;
    match problems {
        0 => Ok(()),
        1 => Err(Failure::failed("1 problem was found")),
        count => Err(Failure::failed(format!("{count} problems were found"))),
    }
}

fn write_item(out: &mut impl Write, json: bool, item: &Item) -> Result<(), Failure> {
    if json {
        return Ok(writeln!(out, "{}", item_json(item))?);
    }
    match item {
        Item::Segment(segment) => {
            let state = if segment.sealed { "sealed" } else { "unsealed" };
            writeln!(out, "segment {}: base offset {}, {} bytes, {state}", segment.path.display(), segment.base, segment.bytes)?;
        }
        Item::Batch(batch) => write_batch(out, batch)?,
        Item::Tail(tail) => {
            if let Some(fault) = &tail.torn {
                let last = tail.last_written.map_or_else(String::new, |last| format!(", the last byte written is at {last}"));
                writeln!(out, "  torn tail at byte {}: {fault}{last}; the next start cuts it", tail.position)?;
            }
        }
        Item::Problem(problem) => writeln!(out, "PROBLEM {problem}")?,
    }
    Ok(())
}

fn write_batch(out: &mut impl Write, batch: &BatchInfo) -> Result<(), Failure> {
    let header = &batch.header;
    let codec = batch.codec().map_or_else(|| "unknown".into(), |codec| format!("{codec:?}").to_lowercase());
    let crc = if batch.is_crc_good() { "" } else { "  CRC IS WRONG" };
    writeln!(
        out,
        "  byte {}: offsets {} to {}, {} records, {} bytes, leader epoch {}, {codec}, max timestamp {}{crc}",
        batch.position,
        header.base_offset,
        header.last_offset(),
        header.record_count,
        header.size,
        header.leader_epoch,
        header.max_timestamp,
    )?;
    Ok(())
}

fn item_json(item: &Item) -> Value {
    match item {
        Item::Segment(segment) => json!({
            "item": "segment", "path": segment.path, "base_offset": segment.base.0, "bytes": segment.bytes, "sealed": segment.sealed,
        }),
        Item::Batch(batch) => {
            let header = &batch.header;
            json!({
                "item": "batch", "position": batch.position, "base_offset": header.base_offset.0, "last_offset": header.last_offset().0,
                "records": header.record_count, "bytes": header.size, "leader_epoch": header.leader_epoch.0,
                "codec": batch.codec().map(|codec| format!("{codec:?}").to_lowercase()), "attributes": header.attributes,
                "base_timestamp": header.base_timestamp.0, "max_timestamp": header.max_timestamp.0,
                "producer_id": header.producer_id.0, "producer_epoch": header.producer_epoch.0, "base_sequence": header.base_sequence.0,
                "crc": header.crc, "crc_is_good": batch.is_crc_good(),
            })
        }
        Item::Tail(tail) => json!({
            "item": "tail", "position": tail.position, "bytes": tail.bytes, "last_written": tail.last_written,
            "torn": tail.torn.as_ref().map(ToString::to_string),
        }),
        Item::Problem(problem) => json!({
            "item": "problem", "path": problem.path, "position": problem.position, "what": problem.what,
        }),
    }
}

fn write_summary(out: &mut impl Write, json: bool, log: &Path, summary: &Summary) -> Result<(), Failure> {
    let (first, end) = (summary.first_offset.map_or(0, |offset| offset.0), summary.end_offset.map_or(0, |offset| offset.0));
    if json {
        let line = json!({
            "item": "summary", "log": log, "segments": summary.segments, "batches": summary.batches, "records": summary.records,
            "bytes": summary.bytes, "first_offset": first, "end_offset": end, "torn_tails": summary.torn_tails,
            "problems": summary.problems,
        });
        return Ok(writeln!(out, "{line}")?);
    }
    writeln!(
        out,
        "{}: {} segments, {} batches, {} records (offsets {first} to {end}, exclusive), {}, {} torn tails, {} problems",
        log.display(),
        summary.segments,
        summary.batches,
        summary.records,
        size(summary.bytes),
        summary.torn_tails,
        summary.problems,
    )?;
    Ok(())
}
