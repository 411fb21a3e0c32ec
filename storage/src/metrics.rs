//! Plain counters of one core's storage. A handle: clones count into the same cells.

use std::cell::Cell;
use std::rc::Rc;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        #[derive(Default)]
        struct Cells { $($name: Cell<u64>),* }

        /// Counts since the start of the core.
        #[derive(Clone, Default)]
        pub struct Metrics(Rc<Cells>);

        /// The counts at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct MetricsSnapshot { $($(#[$doc])* pub $name: u64),* }

        impl Metrics {
            /// The counts now.
            #[must_use]
            pub fn snapshot(&self) -> MetricsSnapshot {
                MetricsSnapshot { $($name: self.0.$name.get()),* }
            }

            $(pub(crate) fn $name(&self, more: u64) {
                self.0.$name.set(self.0.$name.get() + more);
            })*
        }
    };
}

counters!(
    /// Batches appended.
    appended_batches,
    /// Bytes of batches appended.
    appended_bytes,
    /// Writes of log data.
    writes,
    /// Bytes of such writes, whole blocks.
    written_bytes,
    /// Writes that went from written into unwritten blocks; always 0.
    crossing_writes,
    /// Flushes of log files.
    flushes,
    /// Bytes zeroed ahead of logs' ends.
    zeroed_bytes,
    /// Reads answered from chunks in memory.
    cache_hits,
    /// Reads that went to the disk.
    disk_reads,
    /// Bytes read from the disk.
    disk_read_bytes,
    /// Bytes of clean chunks given back under pressure.
    evicted_bytes,
    /// Segments begun because the one before was full or too old.
    rolls,
    /// Segments removed, as retention or a deletion asked.
    removed_segments,
    /// Bytes of batches in them.
    removed_bytes,
    /// Appends refused because space or memory wasn't ready.
    refused_appends,
);
