//! The report as a whole, and that it agrees with the deployment files.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// A folder with some files, removed at the end.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn with(files: &[(&str, &str)]) -> Folder {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("corelane-doctor-test-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for (name, text) in files {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Folder(folder)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn every_finding_that_is_not_good_says_how_to_mend_it() {
    let folder = Folder::with(&[]);
    let report = run(&DoctorOptions { data: vec![folder.path().to_owned()], memory_bytes: 1 << 28, measure: true });
    assert!(report.findings.len() > 8, "{}", report.text());
    for finding in &report.findings {
        assert_eq!(finding.level == Level::Good, finding.remedy.is_none(), "{finding:?}");
    }
    assert!(report.drives[0].measured.is_some(), "{}", report.text());
    assert!(report.text().contains("durable acknowledgements:"), "{}", report.text());
    let json = report.json();
    assert_eq!(json["findings"].as_array().unwrap().len(), report.findings.len());
    assert!(json["drives"][0]["measured"]["durable_write"]["p50_us"].as_f64().unwrap() > 0.0);
}

fn deploy(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(file)).unwrap()
}

#[test]
fn the_unit_sets_the_limits_that_doctor_asks_for() {
    let unit = deploy("corelane.service");
    let value =
        |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_else(|| panic!("{key} is missing")).to_owned();
    assert_eq!(value("LimitMEMLOCK="), "infinity");
    let descriptors: usize = value("LimitNOFILE=").parse().unwrap();
    assert!(descriptors > protocol::limits::CONNECTIONS_PER_CORE_MAX + protocol::limits::SEGMENT_DESCRIPTORS_PER_CORE_MAX);
    assert!(value("SystemCallFilter=").contains("@system-service"));
    assert!(
        unit.lines().any(|line| line.starts_with("SystemCallFilter=") && line.contains("@io-event"))
            || unit.contains("io_uring_setup")
    );
    assert!(value("ExecStart=").contains("corelane start"));
    assert!(!value("CPUAffinity=").is_empty() || unit.contains("AllowedCPUs="));
    for line in unit.lines().filter(|line| !line.is_empty() && !line.starts_with('#') && !line.starts_with('[')) {
        assert!(line.contains('='), "not a setting: {line}");
    }
}

#[test]
fn the_seccomp_profile_allows_io_uring_and_denies_by_default() {
    let profile: serde_json::Value = serde_json::from_str(&deploy("seccomp.json")).unwrap();
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    let allowed: Vec<&str> = profile["syscalls"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|rule| rule["action"] == "SCMP_ACT_ALLOW")
        .flat_map(|rule| rule["names"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()))
        .collect();
    for call in [
        "io_uring_setup",
        "io_uring_enter",
        "io_uring_register",
        "sched_setaffinity",
        "fallocate",
        "mlock",
        "eventfd2",
        "fdatasync",
    ] {
        assert!(allowed.contains(&call), "{call}");
    }
    for call in ["ptrace", "mount", "kexec_load", "bpf", "init_module"] {
        assert!(!allowed.contains(&call), "{call}");
    }
    let mut sorted = allowed.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), allowed.len(), "a system call stands twice");
}
