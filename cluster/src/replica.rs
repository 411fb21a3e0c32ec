//! One replica of a partition, as its leader sees it: how far the log has got here and on every in-sync replica, what may be
//! read, and when a write is acknowledged.
//!
//! Lives on the owner core, inside `shard::partition`, which alone may call it. The in-sync replicas are a set of hosts; on
//! one host it is that host alone, and everything goes the same way as it will with followers.
//!
//! Invariants, asserted by the one setter ([`ReplicaOffsets::set`]):
//! - log start <= last stable <= high watermark <= log end, and flushed <= written <= log end; none of them goes back;
//! - the high watermark is the lowest progress of the in-sync replicas: `flushed` under the class `device`, `written` under
//!   `written`; it stands still while there are fewer of them than the min in-sync replicas (trap T8).
//!
//! Order of events: `begin_append_allowed`, then the log appends and `appended` tells the new log end; the write completes and
//! `local_progress` tells what came of it; its effects complete the tickets and wake the fetches that wait.

use protocol::error::{ErrorCode, WireError};
use protocol::ids::{DurabilityClass, HostId, LeaderEpoch, Offset};
use smallvec::SmallVec;

#[cfg(test)]
mod tests;

/// The offsets of a replica as plain values, to be given to [`ReplicaOffsets::set`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Positions {
    /// The first offset that may be read.
    pub log_start: Offset,
    /// No transaction is open below it.
    pub last_stable: Offset,
    /// All below is on every in-sync replica.
    pub high_watermark: Offset,
    /// All below is on stable storage here.
    pub flushed: Offset,
    /// The writes of all below have completed here.
    pub written: Offset,
    /// The offset of the next record.
    pub log_end: Offset,
}

/// The offsets of a replica, in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaOffsets(Positions);

impl ReplicaOffsets {
    /// Of a log that was just created or recovered: all that it holds is on stable storage.
    ///
    /// # Panics
    /// If `log_start` is negative or above `log_end`.
    #[must_use]
    pub fn recovered(log_start: Offset, log_end: Offset) -> ReplicaOffsets {
        let mut offsets = ReplicaOffsets::default();
        offsets.set(Positions {
            log_start,
            last_stable: log_start,
            high_watermark: log_start,
            flushed: log_end,
            written: log_end,
            log_end,
        });
        offsets
    }

    /// The values.
    #[must_use]
    pub fn positions(&self) -> Positions {
        self.0
    }

    /// The one place where offsets of a replica change.
    ///
    /// # Panics
    /// If the order of the offsets is broken, or one of them goes back.
    pub fn set(&mut self, next: Positions) {
        let old = self.0;
        assert!(next.log_start <= next.last_stable, "log start above the last stable offset: {next:?}");
        assert!(next.last_stable <= next.high_watermark, "last stable offset above the high watermark: {next:?}");
        assert!(next.high_watermark <= next.log_end, "high watermark above the log end: {next:?}");
        assert!(next.flushed <= next.written, "flushed before it was written: {next:?}");
        assert!(next.written <= next.log_end, "written before it was appended: {next:?}");
        assert!(
            next.log_start >= old.log_start
                && next.last_stable >= old.last_stable
                && next.high_watermark >= old.high_watermark
                && next.flushed >= old.flushed
                && next.written >= old.written
                && next.log_end >= old.log_end,
            "an offset went back: {old:?} to {next:?}"
        );
        self.0 = next;
    }
}

/// What a producer waits for (`acks` of a produce request).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Acks {
    /// 0: nothing; there is no reply.
    None,
    /// 1: the leader has it, in the topic's class.
    Leader,
    /// -1: every in-sync replica has it, in the topic's class.
    All,
}

impl Acks {
    /// From the number of the wire; `None` for any but -1, 0 and 1.
    #[must_use]
    pub fn from_wire(acks: i16) -> Option<Acks> {
        match acks {
            -1 => Some(Acks::All),
            0 => Some(Acks::None),
            1 => Some(Acks::Leader),
            _ => None,
        }
    }
}

/// Who reads, which decides how far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reader {
    /// A consumer with isolation level read_uncommitted: up to the high watermark.
    Consumer,
    /// A consumer with isolation level read_committed: up to the last stable offset.
    CommittedConsumer,
    /// A follower: up to the log end.
    Follower,
}

/// What must be done because of a change, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The high watermark has moved to here: fetches and tickets below it go on.
    HighWatermark(Offset),
    /// This host has everything below in the topic's class: tickets with acks=1 below it go on.
    LocalProgress(Offset),
}

/// The effects of one change.
pub type Effects = SmallVec<[Effect; 2]>;

/// Why a request with a leader epoch is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EpochError {
    /// The client knows an older leadership.
    #[error("leader epoch {asked} is fenced, the partition is at {current}")]
    Fenced {
        /// What the request carries.
        asked: LeaderEpoch,
        /// The partition's.
        current: LeaderEpoch,
    },
    /// The client knows a newer leadership than this host.
    #[error("leader epoch {asked} is not known here yet, the partition is at {current}")]
    Unknown {
        /// What the request carries.
        asked: LeaderEpoch,
        /// The partition's.
        current: LeaderEpoch,
    },
}

impl WireError for EpochError {
    fn code(&self) -> ErrorCode {
        match self {
            EpochError::Fenced { .. } => ErrorCode::FencedLeaderEpoch,
            EpochError::Unknown { .. } => ErrorCode::UnknownLeaderEpoch,
        }
    }
}

/// Why an append is turned away before the log sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendRefused {
    /// The request's leader epoch isn't the partition's.
    #[error(transparent)]
    Epoch(#[from] EpochError),
    /// Fewer in-sync replicas than acks=all needs.
    #[error("{in_sync} in-sync replicas, min.insync.replicas asks for {needed}")]
    NotEnoughReplicas {
        /// In-sync replicas now.
        in_sync: usize,
        /// `min.insync.replicas`.
        needed: u32,
    },
}

impl WireError for AppendRefused {
    fn code(&self) -> ErrorCode {
        match self {
            AppendRefused::Epoch(error) => error.code(),
            AppendRefused::NotEnoughReplicas { .. } => ErrorCode::NotEnoughReplicas,
        }
    }
}

/// How far a host's log has got, in one leader epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InSyncReplica {
    host: HostId,
    written: Offset,
    flushed: Offset,
}

/// What a replica is made from.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaSettings {
    /// This host.
    pub host: HostId,
    /// What an acknowledgement means here.
    pub class: DurabilityClass,
    /// `min.insync.replicas`.
    pub min_in_sync_replicas: u32,
    /// The leadership that this host holds.
    pub leader_epoch: LeaderEpoch,
}

/// A replica that leads its partition.
#[derive(Clone, Debug)]
pub struct Replica {
    settings: ReplicaSettings,
    /// The log end when this leadership began.
    epoch_start: Offset,
    offsets: ReplicaOffsets,
    in_sync: SmallVec<[InSyncReplica; 3]>,
}

impl Replica {
    /// A leader whose in-sync replicas are itself alone. All that its log holds and has on stable storage is readable at once, if
    /// the min in-sync replicas are met.
    #[must_use]
    pub fn new(settings: ReplicaSettings, offsets: ReplicaOffsets) -> Replica {
        let Positions { written, flushed, log_end, .. } = offsets.positions();
        let itself = InSyncReplica { host: settings.host, written, flushed };
        let in_sync = SmallVec::from_iter([itself]);
        let mut replica = Replica { settings, epoch_start: log_end, offsets, in_sync };
        let _ = replica.settle_high_watermark();
        replica
    }

    /// The leadership that this host holds.
    #[must_use]
    pub fn leader_epoch(&self) -> LeaderEpoch {
        self.settings.leader_epoch
    }

    /// What an acknowledgement means here.
    #[must_use]
    pub fn class(&self) -> DurabilityClass {
        self.settings.class
    }

    /// The offsets.
    #[must_use]
    pub fn positions(&self) -> Positions {
        self.offsets.positions()
    }

    /// The in-sync replicas.
    pub fn in_sync_hosts(&self) -> impl Iterator<Item = HostId> + '_ {
        self.in_sync.iter().map(|replica| replica.host)
    }

    /// Compares a request's leader epoch with the partition's; -1 stands for a client that knows none.
    ///
    /// # Errors
    /// Fenced if it is older, unknown if it is newer.
    pub fn check_epoch(&self, asked: LeaderEpoch) -> Result<(), EpochError> {
        let current = self.settings.leader_epoch;
        if asked == NO_EPOCH || asked == current {
            Ok(())
        } else if asked < current {
            Err(EpochError::Fenced { asked, current })
        } else {
            Err(EpochError::Unknown { asked, current })
        }
    }

    /// Whether a batch may be appended.
    ///
    /// # Errors
    /// The leader epoch is another, or acks=all has too few in-sync replicas.
    pub fn begin_append_allowed(&self, acks: Acks, asked: LeaderEpoch) -> Result<(), AppendRefused> {
        self.check_epoch(asked)?;
        if acks == Acks::All && !self.has_min_in_sync_replicas() {
            let needed = self.settings.min_in_sync_replicas;
            return Err(AppendRefused::NotEnoughReplicas { in_sync: self.in_sync.len(), needed });
        }
        Ok(())
    }

    /// The log has been appended to, and ends here now.
    ///
    /// # Panics
    /// If the log end goes back.
    pub fn appended(&mut self, log_end: Offset) {
        self.offsets.set(Positions { log_end, ..self.offsets.positions() });
    }

    /// This host's log has got so far.
    ///
    /// # Panics
    /// If progress goes back, is out of order, or passes the log end.
    pub fn local_progress(&mut self, written: Offset, flushed: Offset) -> Effects {
        let before = self.acknowledged(Acks::Leader);
        self.offsets.set(Positions { written, flushed, ..self.offsets.positions() });
        let host = self.settings.host;
        let itself = self.in_sync.iter_mut().find(|replica| replica.host == host);
        let itself = itself.expect("the leader is one of its in-sync replicas");
        (itself.written, itself.flushed) = (written, flushed);
        let mut effects = self.settle_high_watermark();
        let local = self.acknowledged(Acks::Leader);
        if local > before {
            effects.push(Effect::LocalProgress(local));
        }
        effects
    }

    /// Records below `log_start` are gone (retention, deletion).
    ///
    /// # Panics
    /// If it goes back or passes the high watermark (trap T31).
    pub fn log_start_moved(&mut self, log_start: Offset) {
        let positions = self.offsets.positions();
        let last_stable = positions.last_stable.max(log_start);
        self.offsets.set(Positions { log_start, last_stable, ..positions });
    }

    /// The topic's settings changed.
    pub fn reconfigure(&mut self, class: DurabilityClass, min_in_sync_replicas: u32) -> Effects {
        let before = self.acknowledged(Acks::Leader);
        self.settings.class = class;
        self.settings.min_in_sync_replicas = min_in_sync_replicas;
        let mut effects = self.settle_high_watermark();
        let local = self.acknowledged(Acks::Leader);
        if local > before {
            effects.push(Effect::LocalProgress(local));
        }
        effects
    }

    /// All below this offset counts as acknowledged at this level.
    #[must_use]
    pub fn acknowledged(&self, acks: Acks) -> Offset {
        let positions = self.offsets.positions();
        match acks {
            Acks::None => positions.log_end,
            Acks::Leader => match self.settings.class {
                DurabilityClass::Device => positions.flushed,
                DurabilityClass::Written => positions.written,
            },
            Acks::All => positions.high_watermark,
        }
    }

    /// How far this reader may read, exclusive.
    #[must_use]
    pub fn read_bound(&self, reader: Reader) -> Offset {
        let positions = self.offsets.positions();
        match reader {
            Reader::Consumer => positions.high_watermark,
            Reader::CommittedConsumer => positions.last_stable,
            Reader::Follower => positions.log_end,
        }
    }

    /// The answer to "latest offset", or `None` while the high watermark hasn't reached the start of this leadership: an
    /// earlier answer could be below what an earlier leader has shown.
    #[must_use]
    pub fn latest_offset(&self, reader: Reader) -> Option<Offset> {
        (self.offsets.positions().high_watermark >= self.epoch_start).then(|| self.read_bound(reader))
    }

    fn has_min_in_sync_replicas(&self) -> bool {
        u32::try_from(self.in_sync.len()).is_ok_and(|count| count >= self.settings.min_in_sync_replicas)
    }

    /// Moves the high watermark to the lowest progress of the in-sync replicas.
    fn settle_high_watermark(&mut self) -> Effects {
        let mut effects = Effects::new();
        if !self.has_min_in_sync_replicas() {
            return effects;
        }
        let class = self.settings.class;
        let progress = self.in_sync.iter().map(|replica| match class {
            DurabilityClass::Device => replica.flushed,
            DurabilityClass::Written => replica.written,
        });
        let lowest = progress.min().expect("a leader is one of its in-sync replicas");
        let positions = self.offsets.positions();
        // A topic that went from `written` to `device` may have a high watermark above what is flushed: it waits there.
        if lowest > positions.high_watermark {
            // No transaction is open yet: the last stable offset follows.
            self.offsets.set(Positions { high_watermark: lowest, last_stable: lowest, ..positions });
            effects.push(Effect::HighWatermark(lowest));
        }
        effects
    }
}

/// Stands for "this client knows no leader epoch".
pub const NO_EPOCH: LeaderEpoch = LeaderEpoch(-1);
