//! What the machine, or the cgroup around this process, allows.

use std::fs;

use super::{MEMORY_BYTES_DEFAULT_MAX, MEMORY_BYTES_MIN};

/// The region that is taken unless something else is said, in bytes: half of what the cgroup or the machine has, within bounds.
#[must_use]
pub fn memory_bytes_default() -> u64 {
    let limits = [
        number_in("/sys/fs/cgroup/memory.max"),
        number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_of(&text)),
    ];
    bounded(limits.into_iter().flatten().min())
}

fn bounded(limit: Option<u64>) -> u64 {
    limit.map_or(MEMORY_BYTES_MIN, |bytes| (bytes / 2).clamp(MEMORY_BYTES_MIN, MEMORY_BYTES_DEFAULT_MAX))
}

/// The number in a cgroup file; `max` is none.
fn number_in(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn total_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kibibytes| kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_half_within_bounds() {
        assert_eq!(bounded(None), MEMORY_BYTES_MIN);
        assert_eq!(bounded(Some(1 << 20)), MEMORY_BYTES_MIN);
        assert_eq!(bounded(Some(1 << 29)), 1 << 28);
        assert_eq!(bounded(Some(1 << 40)), MEMORY_BYTES_DEFAULT_MAX);
        assert_eq!(total_of("MemFree: 3 kB\nMemTotal:       24000000 kB\n"), Some(24_576_000_000));
    }
}
