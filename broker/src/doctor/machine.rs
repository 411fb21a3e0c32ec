//! The machine: kernel, io_uring, limits of the process, clock, cgroups, processors.

use protocol::limits::{CONNECTIONS_PER_CORE_MAX, SEGMENT_DESCRIPTORS_PER_CORE_MAX};
use runtime::uring::{KERNEL_MIN, Probe, RingProbe};

use super::system::System;
use super::{Finding, Level};

/// Descriptors beside connections and segments: rings, event descriptors, locks, the service thread.
const OTHER_DESCRIPTORS: u64 = 512;
/// Memory beside the region that a host takes: 64 MiB, and 4 KiB for each of 4,000 partitions.
const OTHER_MEMORY_BYTES: u64 = 80 << 20;

pub(super) fn findings(system: &System, probe: &Probe, memory_bytes: u64) -> Vec<Finding> {
    let mut findings = vec![kernel(probe), io_uring(system, probe)];
    if let Ok(ring) = &probe.ring {
        findings.extend(ring_features(ring));
    }
    findings.extend([
        locked_memory(probe, memory_bytes),
        descriptors(probe),
        clock(system),
        memory(system, memory_bytes),
        processors(system),
    ]);
    findings.extend(governor(system));
    findings
}

fn kernel(probe: &Probe) -> Finding {
    let needed = format!("{}, {}.{} or later is needed", probe.kernel, KERNEL_MIN.0, KERNEL_MIN.1);
    if probe.is_kernel_supported() {
        return Finding::good("kernel", needed);
    }
    Finding::bad(
        "kernel",
        Level::Failure,
        needed,
        "install a newer kernel (Debian: apt-get install -t stable-backports linux-image-amd64) and reboot",
    )
}

fn io_uring(system: &System, probe: &Probe) -> Finding {
    let setting = system.number("/proc/sys/kernel/io_uring_disabled");
    match &probe.ring {
        Err(none) => Finding::bad("io_uring", Level::Failure, none.reason.clone(), none.remedy.clone()),
        Ok(_) => match setting {
            Some(1) => Finding::bad(
                "io_uring",
                Level::Note,
                "works for this user, but kernel.io_uring_disabled = 1: only privileged processes and one group may use it",
                "if the service runs as another user: sysctl -w kernel.io_uring_group=$(id -g corelane)",
            ),
            _ => Finding::good("io_uring", "a ring can be set up"),
        },
    }
}

/// Each feature with what a core does where it is missing.
fn ring_features(ring: &RingProbe) -> Vec<Finding> {
    let newer = "run a newer kernel";
    let mut findings = Vec::new();
    let missing: Vec<&str> =
        ring.operations.iter().filter(|(name, there)| !there && *name != "send_zc").map(|(name, _)| *name).collect();
    findings.push(if missing.is_empty() {
        Finding::good("ring operations", format!("all {} that a core uses are there", ring.operations.len()))
    } else {
        Finding::bad("ring operations", Level::Failure, format!("missing: {}; there is no fallback", missing.join(", ")), newer)
    });
    findings.push(if ring.zero_copy {
        Finding::good("zero-copy sends", "there; used from 16 KiB on where the network doesn't copy all the same")
    } else {
        Finding::bad("zero-copy sends", Level::Note, "missing; fallback: plain sends, with a copy per reader", newer)
    });
    findings.push(match &ring.registers_memory {
        Ok(()) => Finding::good("registered memory", "can be registered"),
        Err(error) => Finding::bad(
            "registered memory",
            Level::Warning,
            format!("refused ({error}); fallback: unregistered memory, pinned for each operation"),
            "raise LimitMEMLOCK (unit file) or give CAP_IPC_LOCK: systemctl edit corelane",
        ),
    });
    findings.push(match &ring.registers_files {
        Ok(()) => Finding::good("registered files", "can be registered"),
        Err(error) => Finding::bad("registered files", Level::Failure, format!("refused ({error}); there is no fallback"), newer),
    });
    findings
}

fn locked_memory(probe: &Probe, memory_bytes: u64) -> Finding {
    let mebibytes = |bytes: u64| format!("{} MiB", bytes >> 20);
    let limit =
        if probe.locked_memory_bytes_max == u64::MAX { "no limit".to_owned() } else { mebibytes(probe.locked_memory_bytes_max) };
    if probe.locks_any_memory {
        return Finding::good("memlock", format!("CAP_IPC_LOCK: the limit ({limit}) doesn't count"));
    }
    let found = format!("{limit}; the region of {} is locked", mebibytes(memory_bytes));
    if probe.may_lock(memory_bytes) {
        return Finding::good("memlock", found);
    }
    Finding::bad(
        "memlock",
        Level::Warning,
        format!("{found}; fallback: unregistered memory, slower"),
        "LimitMEMLOCK=infinity in the unit (deploy/corelane.service), or ulimit -l unlimited, or setcap cap_ipc_lock+ep $(command -v corelane)",
    )
}

fn descriptors(probe: &Probe) -> Finding {
    let needed =
        u64::try_from(CONNECTIONS_PER_CORE_MAX + SEGMENT_DESCRIPTORS_PER_CORE_MAX).unwrap_or(u64::MAX) + OTHER_DESCRIPTORS;
    let found = format!("{} per process; a core at its limits takes {needed}", probe.descriptors_max);
    let remedy = "LimitNOFILE=262144 in the unit (deploy/corelane.service), or ulimit -n 262144; or lower --connections-max";
    match probe.descriptors_max {
        limit if limit >= needed => Finding::good("descriptors", found),
        limit if limit >= 4096 => Finding::bad("descriptors", Level::Note, found, remedy),
        _ => Finding::bad("descriptors", Level::Warning, found, remedy),
    }
}

fn clock(system: &System) -> Finding {
    let folder = "/sys/devices/system/clocksource/clocksource0";
    let Some(current) = system.text(&format!("{folder}/current_clocksource")) else {
        return Finding::bad("clock source", Level::Note, "the kernel doesn't say which", "mount /sys");
    };
    if ["tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "xen"].contains(&current.as_str()) {
        return Finding::good("clock source", format!("{current}: read without a system call"));
    }
    let available = system.text(&format!("{folder}/available_clocksource")).unwrap_or_default();
    let remedy = if available.split(' ').any(|name| name == "tsc") {
        format!("echo tsc > {folder}/current_clocksource")
    } else {
        "boot with clocksource=tsc tsc=reliable if the hardware has it".to_owned()
    };
    Finding::bad("clock source", Level::Warning, format!("{current}: every look at the clock is a system call"), remedy)
}

fn memory(system: &System, memory_bytes: u64) -> Finding {
    let limit = system.cgroup("memory").and_then(|group| {
        let file = if group.version == 2 { "memory.max" } else { "memory.limit_in_bytes" };
        system.number(&format!("{}/{file}", group.directory))
    });
    let total = system.text("/proc/meminfo").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kibibytes| kibibytes * 1024)
    });
    // Version 1 says "no limit" with a number near 2^63.
    let Some(bytes) = limit.filter(|bytes| *bytes < 1 << 60).into_iter().chain(total).min() else {
        return Finding::bad("memory", Level::Note, "neither a limit nor a total can be read", "mount /proc");
    };
    let found = format!(
        "{} MiB for this process; the region takes {} MiB, the rest of a host {} MiB",
        bytes >> 20,
        memory_bytes >> 20,
        OTHER_MEMORY_BYTES >> 20
    );
    if memory_bytes + OTHER_MEMORY_BYTES <= bytes {
        return Finding::good("memory", found);
    }
    Finding::bad(
        "memory",
        Level::Failure,
        found,
        "lower --memory, or raise the limit: systemctl set-property corelane MemoryMax=SIZE",
    )
}

/// Processors' worth of time that the cgroup allows, in hundredths; `None` without a quota.
fn quota_percent(system: &System) -> Option<u64> {
    let group = system.cgroup("cpu")?;
    let (quota, period) = if group.version == 2 {
        let text = system.text(&format!("{}/cpu.max", group.directory))?;
        let (quota, period) = text.split_once(' ')?;
        (quota.parse::<u64>().ok()?, period.parse::<u64>().ok()?)
    } else {
        let quota = system.number(&format!("{}/cpu.cfs_quota_us", group.directory))?;
        (quota, system.number(&format!("{}/cpu.cfs_period_us", group.directory))?)
    };
    (quota * 100).checked_div(period)
}

fn processors(system: &System) -> Finding {
    let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    match quota_percent(system) {
        Some(percent) if percent < 200 => Finding::bad(
            "processors",
            Level::Warning,
            format!(
                "{count} usable, but a quota of {percent} %: a core and the service thread are stopped when it is used up, for up to 100 ms"
            ),
            "pin whole processors instead of a quota: systemctl set-property corelane CPUQuota= AllowedCPUs=0-1",
        ),
        Some(percent) => Finding::good("processors", format!("{count} usable, a quota of {percent} %")),
        None if count < 2 => Finding::bad(
            "processors",
            Level::Note,
            "one usable: the service thread runs on the core's processor",
            "give the process a second one (AllowedCPUs= in the unit)",
        ),
        None => Finding::good("processors", format!("{count} usable, no quota")),
    }
}

fn governor(system: &System) -> Option<Finding> {
    let governor = system.text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")?;
    Some(if governor == "performance" {
        Finding::good("frequency", "governor performance")
    } else {
        Finding::bad(
            "frequency",
            Level::Note,
            format!("governor {governor}: a core that wakes up is slow at first"),
            "cpupower frequency-set -g performance",
        )
    })
}

#[cfg(test)]
mod tests {
    use runtime::uring::NoRing;

    use super::*;

    fn probe() -> Probe {
        Probe {
            kernel: "6.8.0".into(),
            kernel_version: Some((6, 8)),
            ring: Err(NoRing { reason: "forbidden (EPERM)".into(), remedy: "allow it".into() }),
            locked_memory_bytes_max: 8 << 20,
            locks_any_memory: false,
            descriptors_max: 1024,
        }
    }

    #[test]
    fn what_a_poor_machine_lacks_is_found_and_can_be_mended() {
        let folder = super::super::tests::Folder::with(&[
            ("proc/self/cgroup", "0::/box\n"),
            ("sys/fs/cgroup/box/cgroup.controllers", "cpu memory\n"),
            ("sys/fs/cgroup/box/memory.max", "134217728\n"),
            ("sys/fs/cgroup/box/cpu.max", "50000 100000\n"),
            ("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n"),
            ("sys/devices/system/clocksource/clocksource0/available_clocksource", "tsc hpet\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"),
        ]);
        let mut poor = probe();
        poor.kernel_version = Some((5, 10));
        let found = findings(&System::at(folder.path()), &poor, 1 << 30);
        for (name, level) in [
            ("kernel", Level::Failure),
            ("io_uring", Level::Failure),
            ("memlock", Level::Warning),
            ("descriptors", Level::Warning),
            ("clock source", Level::Warning),
            ("memory", Level::Failure),
            ("processors", Level::Warning),
            ("frequency", Level::Note),
        ] {
            let finding = found.iter().find(|finding| finding.name == name).unwrap_or_else(|| panic!("{name} is missing"));
            assert_eq!(finding.level, level, "{finding:?}");
            assert!(finding.remedy.is_some(), "{finding:?}");
        }
    }

    #[test]
    fn limits_of_both_cgroup_versions_are_read() {
        let first = super::super::tests::Folder::with(&[
            ("proc/self/cgroup", "4:cpu,cpuacct:/x\n5:memory:/x\n0::/y\n"),
            ("sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "150000\n"),
            ("sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n"),
            ("proc/meminfo", "MemTotal: 4194304 kB\n"),
        ]);
        let system = System::at(first.path());
        assert_eq!(quota_percent(&system), Some(150));
        assert_eq!(memory(&system, 1 << 30).level, Level::Good);
        assert_eq!(memory(&system, 4 << 30).level, Level::Failure);
        let second = super::super::tests::Folder::with(&[
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/cgroup.controllers", "cpu\n"),
            ("sys/fs/cgroup/cpu.max", "max 100000\n"),
        ]);
        assert_eq!(quota_percent(&System::at(second.path())), None);
    }

    #[test]
    fn missing_features_have_their_fallback_said() {
        let ring = RingProbe {
            operations: vec![("read", true), ("send_zc", false)],
            registers_memory: Err("Cannot allocate memory".into()),
            registers_files: Ok(()),
            zero_copy: false,
        };
        let found = ring_features(&ring);
        let bad: Vec<&Finding> = found.iter().filter(|finding| finding.level != Level::Good).collect();
        assert_eq!(bad.len(), 2);
        assert!(bad.iter().all(|finding| finding.found.contains("fallback")), "{bad:?}");
        let without_read = RingProbe { operations: vec![("read", false)], ..ring };
        assert_eq!(ring_features(&without_read)[0].level, Level::Failure);
    }
}
