//! One assigned partition: where it is read, and what is known about it. Synchronous; owned by its consumer.
//!
//! Invariants: `position <= fetch position`; both move back only by a seek, which raises the generation. A resting partition
//! isn't fetched, nor is one with an error on its way to the application.

use std::sync::Arc;

use protocol::ids::{CoreId, LeaderEpoch, Offset, PartitionIndex, TopicId};

use crate::client::{Position, TopicRoute};
use crate::error::ConsumeError;

/// Where reading goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Still to be looked up.
    Unresolved(Position),
    Resolved {
        position: Offset,
        fetch_position: Offset,
    },
}

/// An assigned partition.
#[derive(Debug)]
pub(super) struct Assigned {
    pub topic: Arc<str>,
    pub topic_id: TopicId,
    pub partition: PartitionIndex,
    pub core: CoreId,
    pub leader_epoch: LeaderEpoch,
    pub generation: u64,
    pub high_watermark: Option<Offset>,
    /// Bytes of its batches that wait to be decoded.
    pub fetched_bytes: usize,
    /// The route is out of date.
    pub stale: bool,
    resting: bool,
    /// An error waits behind what was fetched.
    held: bool,
    place: Place,
}

impl Assigned {
    pub fn new(route: &TopicRoute, partition: PartitionIndex, position: Position) -> Assigned {
        let (core, leader_epoch) = route.of(partition).expect("the caller has checked the partition");
        Assigned {
            topic: route.name.clone(),
            topic_id: route.topic_id,
            partition,
            core,
            leader_epoch,
            generation: 0,
            high_watermark: None,
            fetched_bytes: 0,
            stale: false,
            resting: false,
            held: false,
            place: place_of(position),
        }
    }

    pub fn seek(&mut self, position: Position) {
        self.generation += 1;
        self.resting = false;
        self.held = false;
        self.place = place_of(position);
    }

    /// What is still to be looked up, if anything.
    pub fn unresolved(&self) -> Option<Position> {
        match self.place {
            Place::Unresolved(position) if !self.resting => Some(position),
            _ => None,
        }
    }

    pub fn resolve(&mut self, offset: Offset) {
        self.place = Place::Resolved { position: offset, fetch_position: offset };
    }

    pub fn position(&self) -> Option<Offset> {
        match self.place {
            Place::Unresolved(_) => None,
            Place::Resolved { position, .. } => Some(position),
        }
    }

    /// The offset to ask for, if the partition may be fetched.
    pub fn fetchable(&self) -> Option<Offset> {
        match self.place {
            Place::Resolved { fetch_position, .. } if !self.resting && !self.held && !self.stale => Some(fetch_position),
            _ => None,
        }
    }

    /// A batch that ends before `next` has arrived.
    pub fn arrived(&mut self, next: Offset) {
        let Place::Resolved { fetch_position, .. } = &mut self.place else {
            unreachable!("only resolved partitions are fetched");
        };
        assert!(next > *fetch_position, "fetches move forward: {next} behind {fetch_position}");
        *fetch_position = next;
    }

    /// All below `next` was given out.
    pub fn passed(&mut self, next: Offset) {
        let Place::Resolved { position, fetch_position } = &mut self.place else {
            unreachable!("records come from resolved partitions");
        };
        assert!(next >= *position && next <= *fetch_position, "{position} <= {next} <= {fetch_position}");
        *position = next;
    }

    /// No fetches until a seek.
    pub fn rest(&mut self) {
        self.generation += 1;
        self.resting = true;
    }

    /// No fetches until the error that waits behind what was fetched is given out.
    pub fn hold(&mut self) {
        self.held = true;
    }

    pub fn is_resting(&self) -> bool {
        self.resting
    }

    /// Takes over where the topic's partitions are now. False if this is another topic of the same name.
    pub fn follow(&mut self, route: &TopicRoute) -> bool {
        let same = route.topic_id == self.topic_id;
        self.topic_id = route.topic_id;
        if let Some((core, leader_epoch)) = route.of(self.partition) {
            self.core = core;
            self.leader_epoch = leader_epoch;
            self.stale = false;
        }
        same
    }

    pub fn corrupt(&self, offset: Offset, reason: String) -> ConsumeError {
        ConsumeError::Corrupt { topic: self.topic.to_string(), partition: self.partition, offset, reason }
    }
}

fn place_of(position: Position) -> Place {
    match position {
        Position::Offset(offset) => Place::Resolved { position: offset, fetch_position: offset },
        other => Place::Unresolved(other),
    }
}
