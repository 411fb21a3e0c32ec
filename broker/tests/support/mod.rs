//! A real `corelane` process in a directory of its own, and what tests ask of it.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, dead_code, reason = "tests run a process in real time")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use protocol::frame::{FrameFields, FrameHeader, HEADER_BYTES, encode_frame};
use protocol::native::{ErrorReply, HelloRequest, Kind};
use serde_json::Value;

/// A directory that goes with the test.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("host-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn corelane() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_corelane"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CORELANE_")) {
        command.env_remove(name);
    }
    command
}

/// A process that is killed when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running host; killed when dropped.
pub struct Host {
    child: Process,
    pub ready: Value,
    log: std::thread::JoinHandle<String>,
}

impl Host {
    pub fn start(data: &Path) -> Host {
        Host::start_with(data, &[])
    }

    pub fn start_with(data: &Path, more: &[&str]) -> Host {
        let mut child = corelane()
            .args(["start", "--listen", "127.0.0.1:0", "--json", "--data"])
            .arg(data)
            .args(if more.contains(&"--memory") { &[][..] } else { &["--memory", "64MiB"] })
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut error = child.stderr.take().unwrap();
        let log = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = error.read_to_string(&mut text);
            text
        });
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if line.is_empty() {
            let _ = child.wait();
            panic!("the host didn't start: {}", log.join().unwrap());
        }
        Host { child: Process(child), ready: serde_json::from_str(&line).unwrap(), log }
    }

    pub fn address(&self) -> String {
        self.ready["native"].as_str().unwrap().to_owned()
    }

    /// Where each core listens alone.
    pub fn core_addresses(&self) -> Vec<String> {
        let ports = self.ready["core_ports"].as_array().unwrap();
        ports.iter().map(|port| format!("127.0.0.1:{port}")).collect()
    }

    /// Runs a client subcommand against this host.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.run_with_input(arguments, b"")
    }

    pub fn run_with_input(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut child = corelane()
            .args(arguments)
            .args(["--server", &self.address()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        let writer = std::thread::spawn(move || {
            let _ = stdin.write_all(&input);
        });
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        output
    }

    /// The same, and its standard output; it must succeed.
    pub fn text(&self, arguments: &[&str]) -> String {
        self.text_with_input(arguments, b"")
    }

    pub fn text_with_input(&self, arguments: &[&str], input: &[u8]) -> String {
        let output = self.run_with_input(arguments, input);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.text(&[arguments, &["--json"]].concat())).unwrap()
    }

    /// The exit code and standard error of a subcommand that must fail.
    pub fn fails(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.run(arguments);
        assert!(!output.status.success(), "{arguments:?} succeeded: {output:?}");
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    }

    pub fn is_running(&mut self) -> bool {
        self.child.0.try_wait().unwrap().is_none()
    }

    pub fn kill(mut self) -> String {
        self.child.0.kill().unwrap();
        self.child.0.wait().unwrap();
        self.log.join().unwrap()
    }

    /// SIGTERM; gives the time to the end, the exit code and the log.
    pub fn stop(mut self) -> (Duration, i32, String) {
        let began = Instant::now();
        let pid = rustix::process::Pid::from_child(&self.child.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = self.child.0.wait().unwrap();
        (began.elapsed(), status.code().unwrap(), self.log.join().unwrap())
    }
}

/// A start that must fail; gives exit code and standard error.
pub fn start_fails(arguments: &[&str]) -> (i32, String) {
    let output = corelane().arg("start").args(arguments).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// A native connection, a byte at a time if need be.
pub struct Raw(pub TcpStream);

impl Raw {
    pub fn connect(host: &Host) -> Raw {
        Raw::connect_to(&host.address())
    }

    pub fn connect_to(address: &str) -> Raw {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_nodelay(true).unwrap();
        Raw(stream)
    }

    pub fn greeted(host: &Host) -> Raw {
        Raw::greeted_at(&host.address())
    }

    pub fn greeted_at(address: &str) -> Raw {
        let mut raw = Raw::connect_to(address);
        let hello = HelloRequest {
            client_id: "test".into(),
            client_software: "test".into(),
            version_min: 1,
            version_max: 1,
            features: 0,
        };
        raw.send(Kind::Hello, 0, &hello.encode_body(), b"");
        let (header, _, _) = raw.reply().unwrap();
        assert!(!header.is_error());
        raw
    }

    pub fn send(&mut self, kind: Kind, correlation: u64, body: &[u8], payload: &[u8]) {
        let fields = FrameFields::request(kind, 1, correlation).with_payload(payload.len());
        let frame = encode_frame(&fields, body).unwrap();
        self.0.write_all(&[&frame, payload].concat()).unwrap();
    }

    /// Header, body and payload of the next reply; `None` if the connection was closed.
    pub fn reply(&mut self) -> Option<(FrameHeader, Vec<u8>, Vec<u8>)> {
        let mut head = [0; HEADER_BYTES];
        self.0.read_exact(&mut head).ok()?;
        let header = FrameHeader::parse(&head).unwrap();
        let mut body = vec![0; header.body_bytes()];
        self.0.read_exact(&mut body).ok()?;
        header.verify(&body).unwrap();
        let mut payload = vec![0; header.payload_bytes()];
        self.0.read_exact(&mut payload).ok()?;
        Some((header, body, payload))
    }

    pub fn error(&mut self) -> ErrorReply {
        let (header, body, _) = self.reply().unwrap();
        assert!(header.is_error());
        ErrorReply::decode_body(&body).unwrap()
    }

    pub fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        matches!(self.0.read(&mut byte), Ok(0)) || self.0.read(&mut byte).is_err()
    }
}
