//! The native protocol's messages: plain structs outside, frozen archived types inside.
//!
//! Pure; called by handlers (requests in, replies out) and by clients (the reverse). Layout on the wire:
//! `docs/PROTOCOL.md`.
//!
//! Invariants:
//! - One module per kind. In it, one archived type per (kind, version, direction) that no other shares and that never
//!   changes: its golden bytes are in the tests. A new layout is a new version with a type of its own.
//! - Archived types are made of integers, lists of bytes, lists of integers and lists of structs of these. No strings,
//!   options, enums, maps, recursion or sharing, so that a client can be written from the page alone.
//! - Bytes are always read through the checked accessor. Nothing is allocated beyond a small multiple of the body.

mod delete_records;
mod error_reply;
mod fetch;
mod fields;
mod hello;
mod init_producer;
mod list_offsets;
mod metadata;
mod produce;
mod topics;

pub use delete_records::{
    DeleteBefore, DeleteRecordsPartition, DeleteRecordsPartitionReply, DeleteRecordsReply, DeleteRecordsRequest,
};
pub use error_reply::ErrorReply;
pub use fetch::{FetchPartition, FetchPartitionReply, FetchReply, FetchRequest, IsolationLevel};
pub use fields::NativeError;
pub use hello::{HelloReply, HelloRequest, KindVersions};
pub use init_producer::{InitProducerReply, InitProducerRequest};
pub use list_offsets::{ListOffsetsPartition, ListOffsetsPartitionReply, ListOffsetsReply, ListOffsetsRequest, OffsetSpec};
pub use metadata::{MetadataPartition, MetadataReply, MetadataRequest, MetadataTopic};
pub use produce::{ProduceBatch, ProduceReply, ProduceRequest, ProduceRequestView, ProduceResult};
pub use topics::{
    AlterTopicReply, AlterTopicRequest, CreateTopicReply, CreateTopicRequest, DeleteTopicReply, DeleteTopicRequest,
};

/// The version of the native protocol as a whole, as Hello negotiates it.
pub const PROTOCOL_VERSION: u16 = 1;

/// What a frame asks for, or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Kind {
    /// Negotiates versions; the first request of a connection.
    Hello = 0,
    /// Makes a topic.
    CreateTopic = 1,
    /// Removes a topic and its data.
    DeleteTopic = 2,
    /// Describes topics and where their partitions are.
    Metadata = 3,
    /// Appends record batches.
    Produce = 4,
    /// Reads record batches.
    Fetch = 5,
    /// Finds offsets by timestamp, and the first and last ones.
    ListOffsets = 6,
    /// Gives an idempotent producer its identity.
    InitProducer = 7,
    /// Changes settings of a topic.
    AlterTopic = 8,
    /// Deletes the records of partitions below an offset.
    DeleteRecords = 9,
}

impl Kind {
    /// Every kind, by number.
    pub const ALL: [Kind; 10] = [
        Kind::Hello,
        Kind::CreateTopic,
        Kind::DeleteTopic,
        Kind::Metadata,
        Kind::Produce,
        Kind::Fetch,
        Kind::ListOffsets,
        Kind::InitProducer,
        Kind::AlterTopic,
        Kind::DeleteRecords,
    ];

    /// The number on the wire.
    #[must_use]
    pub fn number(self) -> u16 {
        self as u16
    }

    /// The kind with this number.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Kind> {
        Kind::ALL.get(usize::from(number)).copied()
    }

    /// The versions of its body that this code speaks, first and last.
    #[must_use]
    pub fn versions(self) -> (u16, u16) {
        match self {
            Kind::Hello
            | Kind::CreateTopic
            | Kind::DeleteTopic
            | Kind::Metadata
            | Kind::Produce
            | Kind::Fetch
            | Kind::ListOffsets
            | Kind::InitProducer
            | Kind::AlterTopic
            | Kind::DeleteRecords => (1, 1),
        }
    }

    /// Whether this code speaks that version of its body.
    #[must_use]
    pub fn speaks(self, version: u16) -> bool {
        let (first, last) = self.versions();
        (first..=last).contains(&version)
    }

    /// The kind's name in logs and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Hello => "hello",
            Kind::CreateTopic => "create_topic",
            Kind::DeleteTopic => "delete_topic",
            Kind::Metadata => "metadata",
            Kind::Produce => "produce",
            Kind::Fetch => "fetch",
            Kind::ListOffsets => "list_offsets",
            Kind::InitProducer => "init_producer",
            Kind::AlterTopic => "alter_topic",
            Kind::DeleteRecords => "delete_records",
        }
    }
}

#[cfg(test)]
mod tests;
