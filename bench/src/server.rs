//! The host under test: the release binary, started on its own data directory and held on one processor with all its threads,
//! so that all that it does counts.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::machine;
use crate::wire::Wire;

/// How long a host may take to stop after SIGTERM.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// How often a host's memory is looked at until it has all of it.
const MEMORY_LOOK: Duration = Duration::from_millis(100);
/// Looks one after the other that find it the same.
const MEMORY_LOOKS: u32 = 5;
/// Looks at the most.
const MEMORY_LOOKS_MAX: u32 = 600;

/// What is started, and where.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The binary.
    pub binary: PathBuf,
    /// The data directory.
    pub data: PathBuf,
    /// The processor.
    pub cpu: usize,
    /// Further flags of `corelane start`.
    pub flags: Vec<String>,
}

/// A running host; killed when dropped.
pub struct Server {
    child: Child,
    output: BufReader<ChildStdout>,
    /// Where it listens.
    pub address: SocketAddr,
    /// From the start of the process to its line `ready`, in seconds.
    pub ready_seconds: f64,
    /// When it was started, by [`machine::now_nanos`].
    pub started_nanos: u64,
}

impl Server {
    /// Starts a host and waits until it says that it serves.
    pub fn start(config: &ServerConfig) -> Result<Server> {
        let log_path = config.data.with_extension("log");
        let log = std::fs::File::create(&log_path).with_context(|| format!("{}", log_path.display()))?;
        let cpu = config.cpu.to_string();
        // It ends with this process, however that ends.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "taskset", "-c", &cpu])
            .arg(&config.binary)
            .arg("start")
            .arg("--data")
            .arg(&config.data);
        command.args(["--listen", "127.0.0.1:0", "--cpu", &cpu, "--json"]).args(&config.flags);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let started_nanos = machine::now_nanos();
        let mut child = command.spawn().context("setpriv can't be started (package util-linux)")?;
        let stdout = child.stdout.take().context("the host has no output")?;
        let mut output = BufReader::new(stdout);
        match wait_ready(&mut output) {
            Ok(address) => {
                let ready_seconds = machine::seconds_since(started_nanos);
                Ok(Server { child, output, address, ready_seconds, started_nanos })
            }
            Err(error) => {
                drop(child.kill());
                drop(child.wait());
                let said = std::fs::read_to_string(&log_path).unwrap_or_default();
                let tail: Vec<&str> = said.lines().rev().take(5).collect();
                let tail = tail.into_iter().rev().collect::<Vec<_>>().join("\n");
                Err(error.context(format!("{} doesn't serve; it said:\n{tail}", config.binary.display())))
            }
        }
    }

    /// Waits until the host has all of its memory: until what it has of it hasn't grown for some looks.
    pub fn settle_memory(&self) -> Result<()> {
        let path = format!("/proc/{}/status", self.pid());
        let (mut before, mut same) = (None, 0);
        for _ in 0..MEMORY_LOOKS_MAX {
            let status = std::fs::read_to_string(&path).with_context(|| path.clone())?;
            let now = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).map(str::to_owned);
            same = if now == before { same + 1 } else { 0 };
            if same == MEMORY_LOOKS {
                return Ok(());
            }
            before = now;
            machine::sleep(MEMORY_LOOK);
        }
        bail!("the host's memory still grew after {MEMORY_LOOKS_MAX} looks")
    }

    /// A greeted connection.
    pub fn connect(&self) -> Result<Wire> {
        Wire::connect(self.address)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// SIGTERM, and waits for a clean end.
    pub fn stop(mut self) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        let pid = pid.context("the host has no process id")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let asked_nanos = machine::now_nanos();
        while machine::seconds_since(asked_nanos) < STOP_LIMIT.as_secs_f64() {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "the host ended with {status}");
                return Ok(());
            }
            machine::sleep(Duration::from_millis(20));
        }
        bail!("the host didn't stop within {STOP_LIMIT:?} of SIGTERM")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Ended already, or nothing can be done about it.
        drop(self.child.kill());
        drop(self.child.wait());
        let _ = &self.output;
    }
}

/// Reads lines until the one that names the address.
fn wait_ready(output: &mut impl BufRead) -> Result<SocketAddr> {
    let mut line = String::new();
    loop {
        line.clear();
        ensure!(output.read_line(&mut line)? > 0, "the host ended before it was ready");
        if let Some(address) = address_in(&line) {
            return Ok(address);
        }
    }
}

/// The first loopback address with a port in a line of text or JSON that says "ready".
fn address_in(line: &str) -> Option<SocketAddr> {
    if !line.contains("ready") {
        return None;
    }
    let start = line.find("127.0.0.1:")?;
    let rest = &line[start..];
    let end = rest.find(|letter: char| !(letter.is_ascii_digit() || letter == '.' || letter == ':'));
    rest[..end.unwrap_or(rest.len())].parse().ok()
}

/// An empty directory for one host; removed with what is in it, and its log, when dropped.
pub struct Scratch {
    /// The directory.
    pub path: PathBuf,
}

impl Scratch {
    /// Makes the directory `name` below `parent`, emptied if it is there.
    pub fn new(parent: &Path, name: &str) -> Result<Scratch> {
        let path = parent.join(name);
        if path.exists() {
            std::fs::remove_dir_all(&path).with_context(|| format!("{} can't be emptied", path.display()))?;
        }
        std::fs::create_dir_all(&path).with_context(|| format!("{} can't be made", path.display()))?;
        Ok(Scratch { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What stays behind is removed by the next run.
        drop(std::fs::remove_dir_all(&self.path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_text_and_json() {
        let expected = Some("127.0.0.1:4242".parse().unwrap());
        assert_eq!(address_in("ready native=127.0.0.1:4242 host=1\n"), expected);
        assert_eq!(address_in("{\"ready\":true,\"native\":\"127.0.0.1:4242\"}\n"), expected);
        assert_eq!(address_in("starting on 127.0.0.1:4242\n"), None);
    }
}
