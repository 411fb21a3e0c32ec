//! What this machine gives a core, found out without starting one: for `doctor` and for errors that say how to mend things.
//!
//! Called by [`super::environment`] and broker. Nothing here waits for anything, so it can't hang where io_uring is missing.

use std::io;

use io_uring::{IoUring, opcode};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use super::environment::CoreError;
use super::ring::build;

/// The oldest kernel that a core runs on: the first with zero-copy sends of messages and all that the ring is set up with.
pub const KERNEL_MIN: (u32, u32) = (6, 1);

/// What was found.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The kernel's release, as it says it.
    pub kernel: String,
    /// Its version, if the release could be read.
    pub kernel_version: Option<(u32, u32)>,
    /// What the ring can do, or why there is none.
    pub ring: Result<RingProbe, NoRing>,
    /// What the process may lock, in bytes; `u64::MAX` if there is no limit.
    pub locked_memory_bytes_max: u64,
    /// Whether that limit doesn't count for this process (CAP_IPC_LOCK).
    pub locks_any_memory: bool,
    /// Descriptors that the process may have.
    pub descriptors_max: u64,
}

/// What the ring of this kernel can do.
#[derive(Clone, Debug)]
pub struct RingProbe {
    /// The operations that a core uses: name, and whether the kernel has it.
    pub operations: Vec<(&'static str, bool)>,
    /// Whether memory can be registered; else what the kernel said to 64 KiB.
    pub registers_memory: Result<(), String>,
    /// Whether files can be registered; else what the kernel said.
    pub registers_files: Result<(), String>,
    /// Sends without a copy.
    pub zero_copy: bool,
}

/// Why there is no ring.
#[derive(Clone, Debug)]
pub struct NoRing {
    /// What the kernel says, and why it may say so.
    pub reason: String,
    /// What to do about it.
    pub remedy: String,
}

impl Probe {
    /// Whether a region of so many bytes can be registered in all.
    #[must_use]
    pub fn may_lock(&self, bytes: u64) -> bool {
        self.locks_any_memory || fits(bytes, self.locked_memory_bytes_max)
    }

    /// Whether the kernel is new enough.
    #[must_use]
    pub fn is_kernel_supported(&self) -> bool {
        self.kernel_version.is_some_and(|version| version >= KERNEL_MIN)
    }
}

/// What glommio's own three rings lock.
pub(super) const EXECUTOR_LOCKED_BYTES: u64 = 512 << 10;

/// Looks at the machine.
#[must_use]
pub fn probe() -> Probe {
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    Probe {
        kernel_version: version(&kernel),
        kernel,
        ring: build(8).map_err(|error| why_no_ring(&error)).map(|ring| probe_ring(&ring)),
        locked_memory_bytes_max: locked_memory_limit(),
        locks_any_memory: locks_any_memory(),
        descriptors_max: descriptors_limit(),
    }
}

fn probe_ring(ring: &IoUring) -> RingProbe {
    let mut supported = io_uring::Probe::new();
    // A kernel too old to be asked supports nothing that it is asked for.
    let asked = ring.submitter().register_probe(&mut supported).is_ok();
    let operations: Vec<(&'static str, bool)> = [
        ("openat", opcode::OpenAt::CODE),
        ("read", opcode::Read::CODE),
        ("read_fixed", opcode::ReadFixed::CODE),
        ("write", opcode::Write::CODE),
        ("write_fixed", opcode::WriteFixed::CODE),
        ("fsync", opcode::Fsync::CODE),
        ("fallocate", opcode::Fallocate::CODE),
        ("poll_add", opcode::PollAdd::CODE),
        ("recv", opcode::Recv::CODE),
        ("sendmsg", opcode::SendMsg::CODE),
        ("send_zc", opcode::SendZc::CODE),
        ("accept", opcode::Accept::CODE),
        ("msg_ring", opcode::MsgRingData::CODE),
        ("async_cancel", opcode::AsyncCancel::CODE),
    ]
    .into_iter()
    .map(|(name, code)| (name, asked && supported.is_supported(code)))
    .collect();
    let zero_copy = operations.iter().any(|&(name, supported)| name == "send_zc" && supported);
    let text = |error: io::Error| error.to_string();
    let mut memory = vec![0_u8; 64 << 10];
    let entry = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
    // SAFETY: the memory outlives its registration, which ends in the next line; no operation uses it.
    let registers_memory = unsafe { ring.submitter().register_buffers(&[entry]) }.map_err(text);
    let _ = ring.submitter().unregister_buffers();
    let registers_files = ring.submitter().register_files_sparse(8).map_err(text);
    RingProbe { operations, registers_memory, registers_files, zero_copy }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// What the process may lock, in bytes; `u64::MAX` if there is no limit.
pub(super) fn locked_memory_limit() -> u64 {
    getrlimit(Resource::Memlock).current.unwrap_or(u64::MAX)
}

/// Whether the calling thread may have so many bytes registered, as far as its limits tell.
pub(super) fn may_lock(bytes: u64) -> bool {
    locks_any_memory() || fits(bytes, locked_memory_limit())
}

fn fits(bytes: u64, limit_bytes: u64) -> bool {
    bytes.saturating_add(EXECUTOR_LOCKED_BYTES) <= limit_bytes
}

fn locks_any_memory() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK))
}

/// Descriptors that the process may have.
pub(super) fn descriptors_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Refuses to start below what the executor's own rings need.
pub(super) fn check_locked_memory() -> Result<(), CoreError> {
    let limit_bytes = locked_memory_limit();
    if limit_bytes < EXECUTOR_LOCKED_BYTES {
        return Err(CoreError::LockedMemory { needed_bytes: EXECUTOR_LOCKED_BYTES, limit_bytes });
    }
    Ok(())
}

/// Why a ring can't be made, as an error of a core.
pub(super) fn explain_no_ring(error: &io::Error) -> CoreError {
    let NoRing { reason, remedy } = why_no_ring(error);
    CoreError::NoRing { reason, remedy }
}

fn why_no_ring(error: &io::Error) -> NoRing {
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let (reason, remedy) = explain(error, disabled.trim());
    NoRing { reason, remedy: remedy.to_owned() }
}

fn explain(error: &io::Error, disabled: &str) -> (String, &'static str) {
    let (reason, remedy) = match error.raw_os_error() {
        Some(libc::ENOSYS) => ("this kernel has no io_uring (ENOSYS)", "Run a kernel of 6.1 or later with CONFIG_IO_URING"),
        Some(libc::EPERM) if disabled == "2" => {
            ("it is disabled (kernel.io_uring_disabled = 2)", "Run `sysctl -w kernel.io_uring_disabled=0`")
        }
        Some(libc::EPERM) if disabled == "1" => (
            "it is for privileged processes only (kernel.io_uring_disabled = 1)",
            "Run `sysctl -w kernel.io_uring_disabled=0`, or put the user into the group of kernel.io_uring_group",
        ),
        Some(libc::EPERM) => (
            "the system call is forbidden (EPERM), as container runtimes do by seccomp",
            "Allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp profile",
        ),
        Some(libc::EINVAL) => ("this kernel's io_uring is too old (EINVAL)", "Run a kernel of 6.1 or later"),
        Some(libc::ENOMEM) => ("too little memory may be locked (ENOMEM)", "Raise LimitMEMLOCK or give CAP_IPC_LOCK"),
        Some(libc::EMFILE) => ("no descriptor is left (EMFILE)", "Raise the limit of open files (LimitNOFILE)"),
        _ => return (error.to_string(), "Run `corelane doctor`"),
    };
    (reason.to_owned(), remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_what_a_core_needs() {
        let found = probe();
        assert!(found.is_kernel_supported(), "{}", found.kernel);
        let ring = found.ring.unwrap();
        assert!(ring.operations.iter().all(|(_, supported)| *supported), "{ring:?}");
        assert!(ring.zero_copy && ring.registers_memory.is_ok() && ring.registers_files.is_ok(), "{ring:?}");
        assert!(found.descriptors_max > 0);
    }

    #[test]
    fn releases_are_read() {
        assert_eq!(version("6.18.44-fc-v782"), Some((6, 18)));
        assert_eq!(version("5.4.0"), Some((5, 4)));
        assert_eq!(version("linux"), None);
    }

    #[test]
    fn each_refusal_has_its_remedy() {
        for (code, disabled, reason, remedy) in [
            (libc::ENOSYS, "", "ENOSYS", "CONFIG_IO_URING"),
            (libc::EPERM, "2", "= 2", "sysctl"),
            (libc::EPERM, "1", "= 1", "io_uring_group"),
            (libc::EPERM, "0", "seccomp", "io_uring_setup"),
            (libc::ENOMEM, "0", "locked", "LimitMEMLOCK"),
        ] {
            let (said, how) = explain(&io::Error::from_raw_os_error(code), disabled);
            assert!(said.contains(reason) && how.contains(remedy), "{said}: {how}");
        }
    }

    #[test]
    fn a_region_fits_the_limit_or_is_exempt() {
        let mut found = probe();
        found.locked_memory_bytes_max = 8 << 20;
        found.locks_any_memory = false;
        assert!(found.may_lock(4 << 20) && !found.may_lock(8 << 20));
        found.locks_any_memory = true;
        assert!(found.may_lock(1 << 40));
    }
}
