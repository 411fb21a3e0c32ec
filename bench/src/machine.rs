//! The machine as a benchmark sees it: clocks, processors and their busy time, the page cache, free space.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::thread::CpuSet;
use rustix::time::{ClockId, Timespec};

/// How often a drive is looked at until it is quiet.
const QUIET_LOOK: Duration = Duration::from_millis(500);
/// Looks one after the other that find it quiet.
const QUIET_LOOKS: u32 = 4;
/// Looks at the most.
const QUIET_LOOKS_MAX: u32 = 120;
/// Operations between two looks of a drive that is quiet: who shares it writes a line now and then.
const QUIET_OPERATIONS_MAX: u64 = 8;

/// Nanoseconds of CLOCK_MONOTONIC; the same in every process.
pub fn now_nanos() -> u64 {
    let Timespec { tv_sec, tv_nsec } = rustix::time::clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(tv_nsec).unwrap_or(0)
}

/// Binds the calling thread to a processor.
pub fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).with_context(|| format!("processor {cpu} can't be used"))
}

/// Starts a thread bound to a processor.
pub fn spawn_pinned<T: Send + 'static>(
    cpu: usize,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> std::thread::JoinHandle<Result<T>> {
    std::thread::spawn(move || {
        pin(cpu)?;
        work()
    })
}

/// The value of a thread that was joined.
pub fn joined<T>(thread: std::thread::JoinHandle<Result<T>>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("a thread of the generator panicked"))?
}

/// Waits without work.
#[allow(clippy::disallowed_methods, reason = "a generator's own thread; no core of a broker")]
pub fn sleep(duration: Duration) {
    std::thread::sleep(duration);
}

/// Milliseconds since the Unix epoch.
#[allow(clippy::disallowed_methods, reason = "records are stamped with the wall clock, as any producer's are")]
pub fn wall_millis() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Seconds since a stamp of [`now_nanos`].
pub fn seconds_since(start_nanos: u64) -> f64 {
    Duration::from_nanos(now_nanos().saturating_sub(start_nanos)).as_secs_f64()
}

/// The unit of /proc: USER_HZ, which Linux promises to be 100 on x86-64 and aarch64 whatever the kernel's own tick is.
const TICKS_PER_SECOND: f64 = 100.0;

/// A processor's clock ticks, from /proc/stat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTicks {
    /// User, system, interrupts. Niced time isn't: it is what keeps the processor awake ([`crate::awake`]).
    pub busy: u64,
    /// All, stolen time included.
    pub total: u64,
}

impl CpuTicks {
    /// What a processor has done so far.
    pub fn read(cpu: usize) -> Result<CpuTicks> {
        let text = std::fs::read_to_string("/proc/stat").context("/proc/stat can't be read")?;
        CpuTicks::parse(&text, cpu).with_context(|| format!("/proc/stat has no line for processor {cpu}"))
    }

    fn parse(text: &str, cpu: usize) -> Option<CpuTicks> {
        let name = format!("cpu{cpu} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&name))?;
        let ticks: Vec<u64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        // user nice system idle iowait irq softirq steal (guest times are part of user and nice)
        let [user, nice, system, idle, iowait, irq, softirq, steal] = *ticks.first_chunk::<8>()?;
        let busy = user + system + irq + softirq;
        Some(CpuTicks { busy, total: busy + nice + idle + iowait + steal })
    }

    /// Busy seconds since `earlier`.
    pub fn busy_seconds_since(&self, earlier: &CpuTicks) -> f64 {
        self.busy.saturating_sub(earlier.busy) as f64 / TICKS_PER_SECOND
    }

    /// Busy part of the time since `earlier`.
    pub fn busy_share_since(&self, earlier: &CpuTicks) -> f64 {
        let total = self.total.saturating_sub(earlier.total);
        if total == 0 { 0.0 } else { self.busy.saturating_sub(earlier.busy) as f64 / total as f64 }
    }
}

/// Processor time of a process, in seconds: user and system, from /proc/PID/stat.
pub fn process_cpu_seconds(pid: u32) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).context("the host's process is gone")?;
    let (_, fields) = text.rsplit_once(')').context("/proc/PID/stat has no name")?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok());
    let (Some(user), Some(system)) = (ticks(11), ticks(12)) else { bail!("/proc/PID/stat is too short") };
    Ok((user + system) as f64 / TICKS_PER_SECOND)
}

/// Writes dirty pages and drops the page cache. Needs root.
pub fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3").context("the page cache can't be dropped (root is needed)")
}

/// Waits until what was written or removed before has left the drive below `path` nothing to do: dirty pages, journals, and the discards
/// that a file system issues some time after the files are gone, in its own threads. What is measured beside those is theirs.
pub fn settle(path: &Path) -> Result<()> {
    rustix::fs::sync();
    let device = std::fs::metadata(path).with_context(|| format!("{}", path.display()))?.dev();
    let stat = format!("/sys/dev/block/{}:{}/stat", rustix::fs::major(device), rustix::fs::minor(device));
    let mut before = operations(&stat);
    let mut quiet = 0;
    for _ in 0..QUIET_LOOKS_MAX {
        sleep(QUIET_LOOK);
        let now = operations(&stat);
        let is_quiet = matches!((before, now), (Some(before), Some(now)) if now - before <= QUIET_OPERATIONS_MAX);
        quiet = if is_quiet || now.is_none() { quiet + 1 } else { 0 };
        if quiet == QUIET_LOOKS {
            return Ok(());
        }
        before = now;
    }
    println!("    the drive below {} has other work: it was not quiet for {QUIET_LOOKS_MAX} looks", path.display());
    Ok(())
}

/// Reads, writes, discards and flushes that the block device has completed; `None` if it isn't one that tells.
fn operations(stat: &str) -> Option<u64> {
    let text = std::fs::read_to_string(stat).ok()?;
    let fields: Vec<u64> = text.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
    Some([0, 4, 11, 15].iter().filter_map(|index| fields.get(*index)).sum())
}

/// Fails unless the file system below `path` has room for `bytes`.
pub fn require_space(path: &Path, bytes: u64) -> Result<()> {
    let space = rustix::fs::statvfs(path).with_context(|| format!("{}", path.display()))?;
    let available = space.f_bavail * space.f_frsize;
    if available < bytes {
        let (needed, available) = (bytesize::ByteSize(bytes), bytesize::ByteSize(available));
        bail!("{} has {available} free, {needed} are needed; give --dir", path.display());
    }
    Ok(())
}

/// Kernel, processors and their model: what a figure is worth nothing without.
pub fn describe() -> String {
    let system = rustix::system::uname();
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split(": ").nth(1));
    let count = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    let model = model.unwrap_or("unknown processor");
    format!("{count} x {model}, {} {}", system.sysname().to_string_lossy(), system.release().to_string_lossy())
}

/// Seeded numbers for the schedule (splitmix64): the same seed gives the same load.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A pause between two events of a Poisson process.
    pub fn exponential(&mut self, rate_per_second: f64) -> Duration {
        let uniform = (self.bits() >> 11) as f64 / (1u64 << 53) as f64;
        Duration::from_secs_f64(-(1.0 - uniform).ln() / rate_per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_leaves_idle_waiting_and_niced_time_out() {
        let text = "cpu  1 2 3 4\ncpu0 10 1 20 500 60 3 4 5 0 0\ncpu10 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(CpuTicks::parse(text, 0), Some(CpuTicks { busy: 37, total: 603 }));
        assert_eq!(CpuTicks::parse(text, 10), Some(CpuTicks { busy: 4, total: 8 }));
        assert_eq!(CpuTicks::parse(text, 1), None);
    }

    #[test]
    fn poisson_pauses_have_the_right_mean() {
        let mut random = Random(7);
        let mean = (0..20_000).map(|_| random.exponential(3000.0).as_secs_f64()).sum::<f64>() / 20_000.0;
        assert!((mean * 3000.0 - 1.0).abs() < 0.03, "{mean}");
    }
}
