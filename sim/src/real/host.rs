//! A `corelane` process: started on a data directory, waited for, stopped or killed. Dropping it kills it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::wait_until;

/// How long a start may take, recovery included.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a clean stop may take before it counts as hung.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// How a host is started.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// The `corelane` binary.
    pub binary: PathBuf,
    /// Its data directory.
    pub data: PathBuf,
    /// Where its log goes.
    pub output: PathBuf,
    /// Region of the core, as the command line takes it.
    pub memory: String,
    /// Cores.
    pub cores: u64,
}

impl HostOptions {
    /// The binary beside the running program, small memory.
    ///
    /// # Errors
    /// There is no such binary: it has to be built first.
    pub fn new(binary: Option<&Path>, data: &Path, output: &Path) -> Result<HostOptions> {
        let beside = std::env::current_exe()?.parent().context("this program lies in a folder")?.join("corelane");
        let binary = binary.map_or(beside, Path::to_owned);
        ensure!(binary.is_file(), "{} isn't there: cargo build --profile ci -p broker", binary.display());
        Ok(HostOptions { binary, data: data.to_owned(), output: output.to_owned(), memory: "256MiB".into(), cores: 1 })
    }
}

/// A running host.
pub struct Host {
    child: Child,
    address: SocketAddr,
    output: PathBuf,
}

impl Host {
    /// Starts it and waits until it serves.
    ///
    /// # Errors
    /// It ended, or didn't say `ready` in time; with the end of its log.
    pub fn start(options: &HostOptions) -> Result<Host> {
        let log = File::options().create(true).append(true).open(&options.output)?;
        let mut child = Command::new(&options.binary)
            .args(["start", "--listen", "127.0.0.1:0", "--json", "--memory", &options.memory, "--data"])
            .arg(&options.data)
            .args(["--core-port", "0", "--cores", &options.cores.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .with_context(|| options.binary.display().to_string())?;
        let stdout = child.stdout.take().context("its output is a pipe")?;
        let (sender, ready) = mpsc::channel();
        std::thread::spawn(move || {
            // Read to the end: a full pipe would stop the host.
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if line.contains("ready") {
                    let _ = sender.send(line);
                }
            }
        });
        let mut host = Host { child, address: SocketAddr::from(([127, 0, 0, 1], 0)), output: options.output.clone() };
        let line = ready.recv_timeout(START_TIMEOUT).map_err(|_| {
            let state = host.child.try_wait().ok().flatten().map_or("still running".to_owned(), |status| status.to_string());
            anyhow!("corelane isn't ready ({state}): {}", host.last_lines())
        })?;
        host.address = address_in(&line).with_context(|| format!("no address in the ready line: {line}"))?;
        Ok(host)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills it with SIGKILL.
    ///
    /// # Errors
    /// It had ended before: it crashed.
    pub fn kill(mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("corelane had ended by itself ({status}): {}", self.last_lines());
        }
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Stops it with SIGTERM and waits for its end.
    ///
    /// # Errors
    /// It ended with an error, or not at all.
    pub fn stop(mut self) -> Result<()> {
        let id = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw).context("a process id")?;
        rustix::process::kill_process(id, rustix::process::Signal::TERM)?;
        let mut status: Option<ExitStatus> = None;
        let ended = wait_until(STOP_TIMEOUT, || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        });
        ensure!(ended, "corelane didn't stop within {} s of SIGTERM: {}", STOP_TIMEOUT.as_secs(), self.last_lines());
        ensure!(status.is_some_and(|status| status.success()), "corelane stopped with {status:?}: {}", self.last_lines());
        Ok(())
    }

    /// The end of its log.
    #[must_use]
    pub fn last_lines(&self) -> String {
        let text = fs::read(&self.output).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The first loopback address in a line.
fn address_in(line: &str) -> Option<SocketAddr> {
    let start = line.find("127.0.0.1:")?;
    let end = line[start + 10..].find(|c: char| !c.is_ascii_digit()).map_or(line.len(), |length| start + 10 + length);
    line[start..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_either_form_of_the_ready_line() {
        let expected = Some(SocketAddr::from(([127, 0, 0, 1], 41234)));
        assert_eq!(address_in("{\"ready\":true,\"native\":\"127.0.0.1:41234\"}"), expected);
        assert_eq!(address_in("ready native=127.0.0.1:41234"), expected);
        assert_eq!(address_in("ready"), None);
    }
}
