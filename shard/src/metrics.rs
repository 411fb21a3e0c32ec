//! Plain counters of one core: no atomics, no labels. Read by `metrics` as one value, which may cross threads.

use std::cell::Cell;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What one core has done since its start, and what waits now.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct ShardMetrics {
            $($(#[$doc])* pub $name: u64,)*
            /// Fetches that wait now.
            pub parked_fetches: u64,
            /// Partitions that they wait at, counted once per fetch.
            pub parked_places: u64,
            /// Partitions of the core.
            pub partitions: u64,
            /// Partitions that a failed disk has stopped.
            pub stopped_partitions: u64,
        }

        #[derive(Default)]
        pub(crate) struct Counters { $(pub(crate) $name: Counter,)* }

        impl Counters {
            pub(crate) fn snapshot(&self) -> ShardMetrics {
                ShardMetrics { $($name: self.$name.0.get(),)* ..ShardMetrics::default() }
            }
        }
    };
}

#[derive(Default)]
pub(crate) struct Counter(Cell<u64>);

impl Counter {
    pub(crate) fn add(&self, more: u64) {
        self.0.set(self.0.get() + more);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.get()
    }
}

counters!(
    /// Batches that producers sent.
    produce_batches,
    /// Their bytes.
    produce_bytes,
    /// Batches that were refused.
    refused_batches,
    /// Fetch requests.
    fetches,
    /// Bytes given to fetches.
    fetch_bytes,
    /// Reads of a partition that needed the disk.
    fetch_disk_reads,
    /// Fetches that waited.
    parked,
    /// Fetches that were answered at once because too many waited already.
    purgatory_full,
    /// Fetches whose wait ended with their deadline.
    expired_fetches,
    /// Times that all tickets were looked at for deadlines that have passed.
    ticket_scans,
    /// Writes settled.
    writes,
    /// Times that requests had to wait for writes or for room.
    back_pressure,
    /// Requests, or parts of them, that another core had to serve.
    crossings,
    /// Those that came from another core.
    served_crossings,
);

impl Counters {
    pub(crate) fn count_produce(&self, bytes: usize, taken: bool) {
        self.produce_batches.add(1);
        self.produce_bytes.add(bytes as u64);
        if !taken {
            self.refused_batches.add(1);
        }
    }
}
