//! What one core's ring has done, as plain numbers for whoever exports them.

use super::descriptors::DescriptorCounts;
use super::memory::Region;
use super::ring::RingCounts;

/// Counters since the core's start, and a few levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Entries given to the kernel.
    pub submissions: u64,
    /// Completions taken, notifications not counted.
    pub completions: u64,
    /// Entries into the kernel.
    pub enters: u64,
    /// Turns of the driver.
    pub turns: u64,
    /// Times that the core had nothing to do and slept.
    pub sleeps: u64,
    /// Operations submitted again because the kernel asked for it (EINTR, EAGAIN), or copied after a refused zero-copy send.
    pub resubmissions: u64,
    /// Reads, writes and sends that ended short and were continued.
    pub short_transfers: u64,
    /// Cancellations asked for.
    pub cancellations: u64,
    /// Sends tried without a copy.
    pub zero_copy_sends: u64,
    /// Of them, those that the kernel copied all the same.
    pub zero_copy_copied: u64,
    /// Notifications of sends without a copy.
    pub zero_copy_notifications: u64,
    /// Operations in flight or not yet taken.
    pub operations: usize,
    /// Descriptors of files that are open.
    pub descriptors_open: usize,
    /// Files opened.
    pub descriptor_opens: u64,
    /// Descriptors closed to make room for another.
    pub descriptor_evictions: u64,
    /// Bytes of the region that may be used.
    pub region_bytes: usize,
    /// The same, when it has grown.
    pub region_full_bytes: usize,
    /// Bytes of the region that are not lent out.
    pub region_free_bytes: usize,
    /// Bytes of chunks that unfinished sends hold.
    pub region_held_bytes: usize,
}

impl Metrics {
    pub(super) fn new(ring: &RingCounts, descriptors: &DescriptorCounts, region: &Region) -> Metrics {
        let operations = &ring.operations;
        Metrics {
            submissions: operations.submissions,
            completions: operations.completions,
            enters: ring.enters,
            turns: ring.turns,
            sleeps: ring.sleeps,
            resubmissions: operations.resubmissions,
            short_transfers: operations.short_transfers,
            cancellations: operations.cancellations,
            zero_copy_sends: operations.zero_copy_sends,
            zero_copy_copied: operations.zero_copy_copied,
            zero_copy_notifications: operations.notifications,
            operations: ring.in_use,
            descriptors_open: descriptors.open,
            descriptor_opens: descriptors.opens,
            descriptor_evictions: descriptors.evictions,
            region_bytes: region.bytes(),
            region_full_bytes: region.full_bytes(),
            region_free_bytes: region.free_bytes(),
            region_held_bytes: region.held_bytes(),
        }
    }
}
