//! Issue and completion of each block request of one device, from the kernel's trace events, on the monotonic clock.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use crate::real::pause;

/// Copies a tracing instance's events to a file while the device is used.
pub struct Tracer {
    instance: PathBuf,
    stop: Arc<AtomicBool>,
    reader: Option<JoinHandle<std::io::Result<()>>>,
}

impl Tracer {
    /// Switches the events of `device` (major, minor) on in a fresh tracing instance, and follows them.
    ///
    /// # Errors
    /// The kernel refuses a setting.
    pub fn start(instance: &Path, device: (u32, u32), out: &Path) -> Result<Tracer> {
        let set = |name: &str, value: &str| {
            fs::write(instance.join(name), value).with_context(|| instance.join(name).display().to_string())
        };
        set("trace_clock", "mono")?;
        set("buffer_size_kb", "16384")?;
        for event in ["block_rq_issue", "block_rq_complete"] {
            let number = device.0 << 20 | device.1;
            set(&format!("events/block/{event}/filter"), &format!("dev == {number} && !(rwbs ~ \"R*\")"))?;
            set(&format!("events/block/{event}/enable"), "1")?;
        }
        let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits())?;
        let pipe = OpenOptions::new().read(true).custom_flags(nonblocking).open(instance.join("trace_pipe"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let (file, flag) = (File::create(out)?, Arc::clone(&stop));
        let reader = std::thread::Builder::new().name("trace".into()).spawn(move || follow(pipe, file, &flag))?;
        Ok(Tracer { instance: instance.to_owned(), stop, reader: Some(reader) })
    }

    /// Stops; everything that was traced is in the file.
    ///
    /// # Errors
    /// The copy failed on the way.
    pub fn finish(mut self) -> Result<()> {
        self.end().context("the block trace")
    }

    fn end(&mut self) -> Result<()> {
        let Some(reader) = self.reader.take() else { return Ok(()) };
        let off = fs::write(self.instance.join("tracing_on"), "0");
        self.stop.store(true, Ordering::Release);
        reader.join().map_err(|_| anyhow!("its reader panicked"))??;
        Ok(off?)
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

fn follow(mut pipe: File, mut out: File, stop: &AtomicBool) -> std::io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let last = stop.load(Ordering::Acquire);
        loop {
            match pipe.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => out.write_all(&buffer[..count])?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if last {
            return Ok(());
        }
        pause(Duration::from_millis(10));
    }
}

/// When something began and ended, in monotonic nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// Handed to the device.
    pub issue: u64,
    /// Completed by it.
    pub done: u64,
}

/// First sector and count of sectors of a write.
pub type Extent = (u64, u64);

/// All requests of a trace.
#[derive(Debug, Default)]
pub struct Requests {
    /// Writes by extent, in order of issue.
    pub writes: HashMap<Extent, VecDeque<Interval>>,
    /// Flushes, in order of completion.
    pub flushes: Vec<Interval>,
    /// Writes that the device failed.
    pub failed: usize,
}

/// One event.
struct Event {
    at: u64,
    issue: bool,
    kind: String,
    extent: Extent,
    error: i32,
}

/// Reads one line; `None` if it is no block event.
fn parse_line(line: &str) -> Option<Result<Event>> {
    let (head, tail) = line.split_once(": block_rq_")?;
    let parse = || -> Option<Event> {
        let (seconds, micros) = head.rsplit(' ').next()?.split_once('.')?;
        let at = (seconds.parse::<u64>().ok()? * 1_000_000 + micros.parse::<u64>().ok()?) * 1000;
        // issue:    7,0 WS 4096 () 0 + 8 none,0,0 [program]
        // complete: 7,0 WS () 0 + 8 none,0,0 [0]
        let (name, rest) = tail.split_once(": ")?;
        let kind = rest.split(' ').nth(1)?.to_owned();
        let mut numbers = rest.split_once(") ")?.1.split(' ').filter(|word| !word.is_empty());
        let sector = numbers.next()?.parse().ok()?;
        let sectors = numbers.nth(1)?.parse().ok()?;
        let issue = name == "issue";
        let error = if issue { 0 } else { rest.trim_end().rsplit(' ').next()?.trim_matches(['[', ']']).parse().ok()? };
        Some(Event { at, issue, kind, extent: (sector, sectors), error })
    };
    Some(parse().ok_or_else(|| anyhow!("a block event that can't be read: {line}")))
}

impl Requests {
    /// Reads the text of a trace.
    ///
    /// # Errors
    /// Events were lost, a line can't be read, or a request has no completion: such a trace judges nothing.
    pub fn parse(text: &str) -> Result<Requests> {
        let mut requests = Requests::default();
        let mut open: HashMap<Extent, VecDeque<u64>> = HashMap::new();
        let mut flush = None;
        for line in text.lines() {
            ensure!(!(line.contains("LOST") && line.contains("EVENTS")), "the kernel lost block events: {line}");
            let Some(event) = parse_line(line) else { continue };
            let event = event?;
            if event.kind.starts_with("FF") {
                match (event.issue, flush.take()) {
                    (true, _) => flush = Some(event.at),
                    (false, Some(issue)) => requests.flushes.push(Interval { issue, done: event.at }),
                    (false, None) => {}
                }
            } else if event.extent.1 == 0 {
                // The end of a request whose data was reported before.
            } else if event.issue {
                open.entry(event.extent).or_default().push_back(event.at);
            } else if let Some(issue) = open.get_mut(&event.extent).and_then(VecDeque::pop_front) {
                if event.error == 0 {
                    requests.writes.entry(event.extent).or_default().push_back(Interval { issue, done: event.at });
                } else if event.kind.trim_start_matches('F').starts_with('W') {
                    requests.failed += 1;
                }
            }
        }
        let unfinished: usize = open.values().map(VecDeque::len).sum();
        ensure!(unfinished == 0, "{unfinished} block requests have no completion");
        requests.flushes.sort_by_key(|flush| flush.done);
        Ok(requests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "\
 kworker/0:1H-9 [000] ..... 10.000100: block_rq_issue: 7,0 WS 4096 () 800 + 8 none,0,0 [kworker/0:1H]
 kworker/0:1H-9 [000] ..... 10.000300: block_rq_complete: 7,0 WS () 800 + 8 none,0,0 [0]
 kworker/0:1H-9 [000] ..... 10.000400: block_rq_issue: 7,0 FF 0 () 0 + 0 none,0,0 [kworker/0:1H]
 kworker/0:1H-9 [000] ..... 10.000900: block_rq_complete: 7,0 FF () 0 + 0 none,0,0 [0]
 kworker/0:1H-9 [000] ..... 10.000901: block_rq_complete: 7,0 FWS () 0 + 0 none,0,0 [0]
";

    #[test]
    fn writes_and_flushes_get_their_times() {
        let requests = Requests::parse(TRACE).unwrap();
        assert_eq!(requests.writes[&(800, 8)], [Interval { issue: 10_000_100_000, done: 10_000_300_000 }]);
        assert_eq!(requests.flushes, [Interval { issue: 10_000_400_000, done: 10_000_900_000 }]);
    }

    #[test]
    fn a_trace_with_holes_is_refused() {
        let unfinished = TRACE.lines().next().unwrap();
        assert!(Requests::parse(unfinished).unwrap_err().to_string().contains("no completion"));
        assert!(Requests::parse("CPU:0 [LOST 12 EVENTS]").unwrap_err().to_string().contains("lost"));
        assert!(Requests::parse("x: block_rq_issue: nonsense").unwrap_err().to_string().contains("can't be read"));
    }

    #[test]
    fn a_failed_write_is_counted_and_covers_nothing() {
        let requests = Requests::parse(&TRACE.replace("800 + 8 none,0,0 [0]", "800 + 8 none,0,0 [-5]")).unwrap();
        assert_eq!((requests.failed, requests.writes.len()), (1, 0));
    }
}
