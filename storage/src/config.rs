//! What a log and a data directory are told, as values.

use protocol::ids::DurabilityClass;
use protocol::limits::{INDEX_INTERVAL_BYTES, SEGMENT_BYTES_DEFAULT, SEGMENT_MS_DEFAULT};

/// Settings of one log, from its topic's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// What an acknowledgement means.
    pub class: DurabilityClass,
    /// Size at which a segment rolls, in bytes (at most 2 GiB less one: index positions have 31 bits).
    pub segment_bytes: u64,
    /// Age at which a segment rolls, in milliseconds from its first append.
    pub segment_ms: u64,
    /// Log bytes between two entries of the offset index.
    pub index_interval_bytes: u64,
    /// Age from which on whole segments leave the log, in milliseconds; `None` for no age.
    pub retention_ms: Option<u64>,
    /// Size above which whole segments leave the log, in bytes; `None` for no size.
    pub retention_bytes: Option<u64>,
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig {
            class: DurabilityClass::Device,
            segment_bytes: SEGMENT_BYTES_DEFAULT,
            segment_ms: SEGMENT_MS_DEFAULT,
            index_interval_bytes: INDEX_INTERVAL_BYTES,
            retention_ms: None,
            retention_bytes: None,
        }
    }
}

/// How bytes of the class `device` reach stable storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlushPolicy {
    /// Each write is durable by itself (O_DSYNC; FUA where the drive has it).
    #[default]
    EachWrite,
    /// Plain writes, then one flush that all of them share.
    Grouped,
}

/// Settings of the logs of one core on one drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageConfig {
    /// How bytes reach stable storage.
    pub flush_policy: FlushPolicy,
    /// Rate of one log from which on it streams into unwritten extents, in bytes per second.
    pub streaming_bytes_per_second: u64,
    /// Largest zeroed window ahead of a log's end, in bytes.
    pub window_bytes_max: u64,
    /// Largest step in which a segment's space is allocated ahead, in bytes.
    pub allocation_step_bytes_max: u64,
    /// An active log's last chunk is dropped after this time without an append, in milliseconds.
    pub idle_tail_ms: u64,
    /// Free bytes of the drive that logs of topics leave to what must go on when it is full.
    pub reserve_bytes: u64,
}

impl Default for StorageConfig {
    fn default() -> StorageConfig {
        StorageConfig {
            flush_policy: FlushPolicy::EachWrite,
            streaming_bytes_per_second: 96 << 20,
            window_bytes_max: 4 << 20,
            allocation_step_bytes_max: 128 << 20,
            idle_tail_ms: 10_000,
            reserve_bytes: 0,
        }
    }
}
