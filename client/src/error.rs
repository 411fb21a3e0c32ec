//! An error per operation, with the numbers in it.

use std::io;
use std::time::Duration;

use protocol::error::ErrorCode;
use protocol::ids::{Offset, PartitionIndex};
use thiserror::Error;

/// Why a connection couldn't be made.
#[derive(Debug, Clone, Error)]
pub enum ConnectError {
    /// The address isn't `HOST:PORT`, or the name has no address.
    #[error("{server}: {reason}")]
    Address {
        /// What was asked for.
        server: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The system refused.
    #[error("{server} can't be reached: {reason} ({kind:?})")]
    Unreachable {
        /// The address.
        server: String,
        /// The system's class of error.
        kind: io::ErrorKind,
        /// The system's words.
        reason: String,
    },
    /// Nothing came in time.
    #[error("{server} didn't greet within {limit:?}")]
    TimedOut {
        /// The address.
        server: String,
        /// The time it had.
        limit: Duration,
    },
    /// The server answered, but not in a dialect that this client speaks.
    #[error("{server} doesn't speak the native protocol this client knows: {reason}")]
    Greeting {
        /// The address.
        server: String,
        /// What was wrong.
        reason: String,
    },
}

/// Why a request has no (good) reply.
#[derive(Debug, Clone, Error)]
pub enum RequestError {
    /// No connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The connection broke before the request left: the server hasn't seen it.
    #[error("the connection to {server} broke before the request left: {reason}")]
    NotSent {
        /// The address.
        server: String,
        /// What broke it.
        reason: String,
    },
    /// The connection broke after (a part of) the request left: whether the server did it isn't known.
    #[error("the connection to {server} broke while a reply was awaited, the outcome isn't known: {reason}")]
    Lost {
        /// The address.
        server: String,
        /// What broke it.
        reason: String,
    },
    /// No reply in time: whether the server did it isn't known. The connection was given up.
    #[error("{server} didn't reply within {limit:?}, the outcome isn't known")]
    TimedOut {
        /// The address.
        server: String,
        /// The time it had.
        limit: Duration,
    },
    /// The server refused the request.
    #[error("refused with {code}: {message}")]
    Refused {
        /// The reason as a code.
        code: ErrorCode,
        /// The reason in words.
        message: String,
    },
    /// The request breaks a limit of the protocol; nothing was sent.
    #[error("the request can't be sent: {reason}")]
    Invalid {
        /// Which limit.
        reason: String,
    },
    /// The reply doesn't follow the protocol.
    #[error("{server} sent a reply that can't be read: {reason}")]
    Malformed {
        /// The address.
        server: String,
        /// What is wrong.
        reason: String,
    },
    /// The server knows no such topic.
    #[error("there is no topic {topic}")]
    UnknownTopic {
        /// The name.
        topic: String,
    },
    /// The topic has fewer partitions.
    #[error("topic {topic} has {partitions} partitions, {partition} isn't one of them")]
    UnknownPartition {
        /// The topic's name.
        topic: String,
        /// The partition that was asked for.
        partition: PartitionIndex,
        /// How many there are.
        partitions: u32,
    },
}

impl RequestError {
    /// Whether the same request may succeed later without anybody doing anything about it.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match self {
            RequestError::Connect(ConnectError::Unreachable { .. } | ConnectError::TimedOut { .. }) => true,
            RequestError::NotSent { .. } | RequestError::Lost { .. } | RequestError::TimedOut { .. } => true,
            RequestError::Refused { code, .. } => is_passing(*code),
            _ => false,
        }
    }

    /// Whether the server may have done what was asked although no reply came.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self, RequestError::Lost { .. } | RequestError::TimedOut { .. } | RequestError::Malformed { .. })
    }
}

/// Codes whose cause passes by itself; what was asked is certainly not done.
pub(crate) fn is_passing(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::LeaderNotAvailable
            | ErrorCode::NotLeaderOrFollower
            | ErrorCode::BrokerNotAvailable
            | ErrorCode::NotEnoughReplicas
            | ErrorCode::NotController
            | ErrorCode::FencedLeaderEpoch
            | ErrorCode::UnknownLeaderEpoch
            | ErrorCode::ThrottlingQuotaExceeded
            | ErrorCode::UnknownTopicId
    )
}

/// Codes that say that the server may have appended although it reports an error.
pub(crate) fn is_unknown(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::RequestTimedOut
            | ErrorCode::NotEnoughReplicasAfterAppend
            | ErrorCode::KafkaStorageError
            | ErrorCode::NetworkException
            | ErrorCode::UnknownServerError
    )
}

/// Why a record wasn't taken by [`Producer::send`](crate::Producer::send): it is not on its way.
#[derive(Debug, Clone, Error)]
pub enum SendError {
    /// The topic or partition couldn't be looked up.
    #[error(transparent)]
    Metadata(#[from] RequestError),
    /// The record alone is larger than the producer accepts.
    #[error("a record of {bytes} bytes, at most {allowed} are accepted (record_bytes_max)")]
    RecordTooLarge {
        /// Its size before compression.
        bytes: usize,
        /// The setting.
        allowed: usize,
    },
    /// More headers than a record may have.
    #[error("a record with {headers} headers, at most {allowed} are allowed")]
    TooManyHeaders {
        /// How many it has.
        headers: usize,
        /// The protocol's limit.
        allowed: usize,
    },
    /// A timestamp below zero.
    #[error("a record's timestamp is {timestamp_ms}, below zero")]
    InvalidTimestamp {
        /// The timestamp.
        timestamp_ms: i64,
    },
    /// No batch can hold the record.
    #[error("no batch can hold the record: {reason}")]
    Refused {
        /// Why.
        reason: String,
    },
    /// The producer was closed.
    #[error("the producer is closed")]
    Closed,
}

/// Why a record that was on its way wasn't delivered, or may not have been.
#[derive(Debug, Clone, Error)]
pub enum DeliveryError {
    /// The server refused the record's batch: it is in no log.
    #[error("{topic}/{partition} refused the batch with {code}: {message}")]
    Refused {
        /// The topic's name.
        topic: String,
        /// The partition.
        partition: PartitionIndex,
        /// The reason as a code.
        code: ErrorCode,
        /// The reason in words.
        message: String,
    },
    /// Refused for a passing reason, and not sent again since a later batch of the partition was accepted meanwhile: the
    /// record is in no log, and sending it again now would change the order.
    #[error("{topic}/{partition} refused the batch with {code}, and later batches were accepted: {message}")]
    Overtaken {
        /// The topic's name.
        topic: String,
        /// The partition.
        partition: PartitionIndex,
        /// The reason as a code.
        code: ErrorCode,
        /// The reason in words.
        message: String,
    },
    /// Whether the record is in the log isn't known.
    #[error("{topic}/{partition}: whether the batch was appended isn't known: {reason}")]
    Unknown {
        /// The topic's name.
        topic: String,
        /// The partition.
        partition: PartitionIndex,
        /// What happened to the request.
        reason: String,
    },
    /// The batch couldn't be sent; the record is in no log.
    #[error("{topic}/{partition}: the batch couldn't be sent: {reason}")]
    NotSent {
        /// The topic's name.
        topic: String,
        /// The partition.
        partition: PartitionIndex,
        /// Why.
        reason: String,
    },
    /// The delivery timeout passed before the batch could be sent (again); the record is in no log.
    #[error("{topic}/{partition}: not delivered within {limit:?}; the last failure: {reason}")]
    TimedOut {
        /// The topic's name.
        topic: String,
        /// The partition.
        partition: PartitionIndex,
        /// The time it had.
        limit: Duration,
        /// The last failure, or what it waited for.
        reason: String,
    },
    /// The producer was dropped, or closed by force, before the batch was sent; the record is in no log.
    #[error("{topic}/{partition}: the producer ended before the batch was sent")]
    ProducerEnded {
        /// The topic's name.
        topic: String,
        /// The partition.
        partition: PartitionIndex,
    },
}

impl DeliveryError {
    /// Whether the record may be in the log all the same.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self, DeliveryError::Unknown { .. })
    }
}

/// Why [`Consumer::next`](crate::Consumer::next) has no record. The consumer stays usable; what to do is said per case.
#[derive(Debug, Clone, Error)]
pub enum ConsumeError {
    /// A request failed for good. Passing failures are retried inside.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// No partition is assigned, or all rest after an error: nothing would ever come.
    #[error("no partition is assigned to the consumer, or all rest after an error until a seek")]
    NothingAssigned,
    /// The partition isn't assigned to this consumer.
    #[error("{topic}/{partition} isn't assigned to the consumer")]
    NotAssigned {
        /// The topic's name.
        topic: String,
        /// The partition.
        partition: PartitionIndex,
    },
    /// The position is outside of the log; the partition rests until a seek.
    #[error("{topic}/{partition}: offset {asked} is outside of the log, which has {log_start} to {high_watermark}")]
    OffsetOutOfRange {
        /// The topic's name.
        topic: String,
        /// The partition.
        partition: PartitionIndex,
        /// The consumer's position.
        asked: Offset,
        /// The first offset that exists.
        log_start: Offset,
        /// The end of what consumers see, exclusive.
        high_watermark: Offset,
    },
    /// The topic was deleted and made again under its name: the position means nothing in the new one. The partition rests
    /// until a seek, which then reads the new topic.
    #[error("{topic}/{partition}: the topic was deleted and made again")]
    TopicReplaced {
        /// The topic's name.
        topic: String,
        /// The partition.
        partition: PartitionIndex,
    },
    /// A batch fails its check (CRC, counts, compression); the partition rests until a seek.
    #[error("{topic}/{partition}: the batch at offset {offset} is damaged: {reason}")]
    Corrupt {
        /// The topic's name.
        topic: String,
        /// The partition.
        partition: PartitionIndex,
        /// Its base offset, or the position if that can't be read.
        offset: Offset,
        /// What is wrong.
        reason: String,
    },
    /// The server refuses to serve the partition; it rests until a seek.
    #[error("{topic}/{partition}: the fetch was refused with {code}")]
    Refused {
        /// The topic's name.
        topic: String,
        /// The partition.
        partition: PartitionIndex,
        /// The reason as a code.
        code: ErrorCode,
    },
}
