//! What this machine gives a core, found out without starting one: for `doctor` and for errors that say how to mend things.
//!
//! Called by [`super::environment`] and broker. Nothing here waits for anything.

use std::io;

use rustix::process::{Resource, getrlimit};

use super::environment::CoreError;

/// What the process may lock, in bytes; `u64::MAX` if there is no limit.
pub(super) fn locked_memory_limit() -> u64 {
    getrlimit(Resource::Memlock).current.unwrap_or(u64::MAX)
}

/// Refuses to start below what the executor's own rings need.
pub(super) fn check_locked_memory(needed_bytes: u64) -> Result<(), CoreError> {
    let limit_bytes = locked_memory_limit();
    if limit_bytes < needed_bytes {
        return Err(CoreError::LockedMemory { needed_bytes, limit_bytes });
    }
    Ok(())
}

/// Why a ring can't be made.
pub(super) fn explain_no_ring(error: &io::Error) -> CoreError {
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let (reason, remedy) = match error.raw_os_error() {
        Some(libc::ENOSYS) => ("this kernel has no io_uring (ENOSYS)", "Run a kernel of 6.1 or later with CONFIG_IO_URING"),
        Some(libc::EPERM) if disabled.trim() == "2" => {
            ("it is disabled (kernel.io_uring_disabled = 2)", "Run `sysctl -w kernel.io_uring_disabled=0`")
        }
        Some(libc::EPERM) if disabled.trim() == "1" => (
            "it is for privileged processes only (kernel.io_uring_disabled = 1)",
            "Run `sysctl -w kernel.io_uring_disabled=0`, or put the user into the group of kernel.io_uring_group",
        ),
        Some(libc::EPERM) => (
            "the system call is forbidden (EPERM), as container runtimes do by seccomp",
            "Start the container with a seccomp profile that allows io_uring_setup, io_uring_enter and io_uring_register",
        ),
        Some(libc::EINVAL) => ("this kernel's io_uring is too old (EINVAL)", "Run a kernel of 6.1 or later"),
        Some(libc::ENOMEM) => ("too little memory may be locked (ENOMEM)", "Raise LimitMEMLOCK or give CAP_IPC_LOCK"),
        Some(libc::EMFILE) => ("no descriptor is left (EMFILE)", "Raise the limit of open files (LimitNOFILE)"),
        _ => return CoreError::NoRing { reason: error.to_string(), remedy: "See `corelane doctor`".to_owned() },
    };
    CoreError::NoRing { reason: reason.to_owned(), remedy: remedy.to_owned() }
}
