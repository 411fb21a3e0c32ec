//! The metadata log: what a cluster knows of its hosts, topics and placements, as records ([`record`]) and the state that
//! they add up to ([`image`]). The controller appends records and applies them once they are durable; every host applies the
//! same records in the same order and has the same image.
//!
//! Invariants: the byte form of a record is frozen by golden tests; a changed meaning takes a new type or type version. Applying is
//! deterministic and either takes a record whole or refuses it and changes nothing.

pub mod config;
pub mod image;
pub mod placement;
pub mod record;

pub use config::{ConfigError, TopicConfig};
pub use image::{ApplyError, Image, PartitionImage, Placement, TopicImage};
pub use record::{DecodeError, MetadataRecord};
