//! The promise: which acknowledged records survive which fault. The one table behind the checker and the README.
//!
//! | acks | class | kill -9 of one | kill -9 of all | power cut of one | power cut of all |
//! |---|---|---|---|---|---|
//! | none | any | no | no | no | no |
//! | leader, one replica | `device` | yes | yes | yes | yes |
//! | leader, one replica | `written` | yes | yes | no | no |
//! | leader, more replicas | any | no | no | no | no |
//! | all | `device` | yes | yes | yes | yes |
//! | all | `written` | yes | yes | if two or more replicas are in sync | no |

use super::history::{Acks, Class, Fault};

/// How often the partitions of a history are kept.
#[derive(Clone, Copy, Debug)]
pub struct Replication {
    /// Replicas of a partition.
    pub replicas: u32,
    /// `min.insync.replicas`: replicas that an acknowledgement of all counts at least.
    pub in_sync_min: u32,
}

impl Replication {
    /// One host.
    pub const SINGLE: Replication = Replication { replicas: 1, in_sync_min: 1 };
}

/// Whether a record acknowledged so must be there after the fault.
#[must_use]
pub fn survives(acks: Acks, class: Class, fault: Fault, replication: Replication) -> bool {
    let counted = match acks {
        Acks::None => return false,
        // Another replica may lead after the fault, and it need not have the record.
        Acks::Leader if replication.replicas > 1 => return false,
        Acks::Leader => 1,
        Acks::All => replication.in_sync_min,
    };
    match (class, fault) {
        (Class::Device, _) | (Class::Written, Fault::KillOne | Fault::KillAll) => true,
        (Class::Written, Fault::PowerCutOne) => counted > 1,
        (Class::Written, Fault::PowerCutAll) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weaker_class_loses_at_a_power_cut_only() {
        let many = Replication { replicas: 3, in_sync_min: 2 };
        for fault in [Fault::KillOne, Fault::KillAll, Fault::PowerCutOne, Fault::PowerCutAll] {
            for replication in [Replication::SINGLE, many] {
                assert!(survives(Acks::All, Class::Device, fault, replication));
                assert!(!survives(Acks::None, Class::Device, fault, replication));
            }
            assert!(survives(Acks::Leader, Class::Device, fault, Replication::SINGLE));
            assert!(!survives(Acks::Leader, Class::Device, fault, many));
        }
        assert!(survives(Acks::All, Class::Written, Fault::KillAll, Replication::SINGLE));
        assert!(!survives(Acks::All, Class::Written, Fault::PowerCutOne, Replication::SINGLE));
        assert!(survives(Acks::All, Class::Written, Fault::PowerCutOne, many));
        assert!(!survives(Acks::All, Class::Written, Fault::PowerCutAll, many));
    }
}
