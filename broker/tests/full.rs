//! A host on a drive that fills up: a real file system of 256 MiB.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests run a process in real time")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use support::{Host, Scratch};

/// Bytes of the file system.
const DRIVE_BYTES: u64 = 256 << 20;

/// A small drive: a file system in a file, mounted. Unmounted when dropped.
struct Drive(PathBuf);

impl Drive {
    /// `None`, and said aloud, where this process may not mount.
    fn mount(scratch: &Scratch) -> Option<Drive> {
        let (image, mount) = (scratch.join("drive.img"), scratch.join("drive"));
        if !rustix::process::geteuid().is_root() {
            println!("not tested: mounting a drive needs root");
            return None;
        }
        std::fs::File::create(&image).unwrap().set_len(DRIVE_BYTES).unwrap();
        std::fs::create_dir(&mount).unwrap();
        run(Command::new("mkfs.ext4").arg("-q").arg(&image));
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&mount));
        Some(Drive(mount))
    }

    fn data(&self) -> PathBuf {
        self.0.join("data")
    }

    fn free(&self) -> u64 {
        let space = rustix::fs::statvfs(&self.0).unwrap();
        space.f_bavail * space.f_frsize
    }

    /// Takes all that is left but so many bytes, into a file of somebody else's.
    fn take_all_but(&self, left: u64) -> PathBuf {
        let path = self.0.join("of-somebody-else");
        let bytes = self.free().saturating_sub(left);
        let file = std::fs::File::create(&path).unwrap();
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes.max(4096)).unwrap();
        path
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}

fn lines(numbers: std::ops::Range<u32>) -> String {
    numbers.map(|number| format!("{number:01000}\n")).collect()
}

/// Produces thousands of lines at a time until the host refuses; how many are acknowledged, and what was said.
fn fill(host: &Host, topic: &str, from: u32) -> (u32, String) {
    for thousand in 0..1000 {
        let (first, last) = (from + thousand * 4000, from + (thousand + 1) * 4000);
        let arguments = ["produce", topic, "--compression", "none", "--delivery-timeout", "2s", "--json"];
        let output = host.run_with_input(&arguments, lines(first..last).as_bytes());
        if !output.status.success() {
            let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            let delivered = u32::try_from(summary["delivered"].as_u64().unwrap()).unwrap();
            return (first + delivered, String::from_utf8(output.stderr).unwrap());
        }
    }
    panic!("4 GB fit on a drive of {DRIVE_BYTES} bytes");
}

fn records(host: &Host, topic: &str) -> u64 {
    host.json(&["topic", "describe", topic])["records"].as_u64().unwrap()
}

#[test]
fn a_full_drive_refuses_batches_keeps_all_else_going_and_serves_again() {
    let scratch = Scratch::new();
    let Some(drive) = Drive::mount(&scratch) else { return };
    let host = Host::start(&drive.data());
    let old = ["topic", "create", "old", "--config", "segment.bytes=16777216"];
    host.text(&old);
    host.text(&["topic", "create", "new"]);
    let sent = lines(0..40_000);
    host.text_with_input(&["produce", "old", "--compression", "none"], sent.as_bytes());
    let (delivered, said) = fill(&host, "new", 0);
    assert!(delivered > 80_000, "{delivered}: {said}");
    assert!(said.contains("bytes short") && said.contains("kept in reserve"), "{said}");
    assert!(said.contains(drive.data().to_str().unwrap()), "the drive is named: {said}");
    assert!(drive.free() >= DRIVE_BYTES / 40, "{} are left of the reserve", drive.free());
    // Reads and all that is not an append go on.
    assert!(host.text(&["consume", "old"]) == sent, "what was acknowledged is there");
    assert!(records(&host, "new") >= u64::from(delivered));
    let (code, said) = host.fails(&["topic", "create", "third"]);
    assert!(code == 1 && said.contains("bytes short"), "{code} {said}");
    host.text(&["topic", "alter", "old", "--config", "retention.ms=86400000"]);
    // Somebody else takes the reserve, too: still nothing fails, also across a kill.
    let foreign = drive.take_all_but(0);
    assert_eq!(host.text(&["consume", "old", "--from", "39999"]), lines(39_999..40_000));
    host.kill();
    let host = Host::start(&drive.data());
    assert_eq!(host.text(&["consume", "old", "--from", "39999"]), lines(39_999..40_000));
    assert!(records(&host, "new") >= u64::from(delivered));
    std::fs::remove_file(foreign).unwrap();
    // A recovery gives back what was allocated ahead.
    fill(&host, "new", 0);
    let produce = ["produce", "new", "--compression", "none", "--delivery-timeout", "60s"];
    // Space is made under load: appends go on, and nobody told the host or the producer to.
    std::thread::scope(|scope| {
        let load = scope.spawn(|| host.run_with_input(&produce, lines(0..8000).as_bytes()));
        std::thread::sleep(Duration::from_secs(1));
        assert!(!load.is_finished(), "there is no space yet");
        host.text(&["topic", "delete-records", "old", "--before", "end"]);
        let output = load.join().unwrap();
        assert!(output.status.success(), "{output:?}");
    });
    let found = host.text(&["consume", "new", "--from", "0", "--count", &delivered.to_string()]);
    assert!(found == lines(0..delivered), "all that was acknowledged, in its order");
    let (took, code, log) = host.stop();
    assert!(code == 0 && took < Duration::from_secs(10), "{code} {took:?} {log}");
    assert!(Path::new(&drive.data()).join("clean-stop").exists());
}
