//! Error codes of the wire: Kafka's numbers, for both dialects. Each operation has an error enum of its own, with the
//! numbers in it, near the operation; here is where those of this crate become codes. Enums of other crates implement
//! [`WireError`] beside their definition or where a request is answered.
//!
//! A client shows the error's own words (they carry the numbers) and acts by the code alone.

use crate::batch::BatchError;
use crate::compression::CompressionError;
use crate::frame::FrameError;
use crate::native::{ErrorReply, NativeError};
use crate::topic_name::TopicNameError;

macro_rules! error_codes {
    ($($name:ident = $number:literal, $text:literal, $retry:ident;)*) => {
        /// A result code; 0 is success. The numbers are Kafka's, so that both dialects share one mapping.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(i16)]
        #[allow(missing_docs, reason = "the names are the field's; what each means is said by the error that carries it")]
        pub enum ErrorCode {
            $($name = $number,)*
        }

        impl ErrorCode {
            /// Every code.
            pub const ALL: &[ErrorCode] = &[$(ErrorCode::$name,)*];

            /// The number on the wire.
            #[must_use]
            pub fn number(self) -> i16 {
                self as i16
            }

            /// The code with this number; `UnknownServerError` for one that this side doesn't know.
            #[must_use]
            pub fn from_number(number: i16) -> ErrorCode {
                match number {
                    $($number => ErrorCode::$name,)*
                    _ => ErrorCode::UnknownServerError,
                }
            }

            /// The name in Kafka's documentation, as operators search for it.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(ErrorCode::$name => $text,)*
                }
            }

            /// Whether the same request may succeed when it is sent again, perhaps after new metadata.
            #[must_use]
            pub fn is_retriable(self) -> bool {
                match self {
                    $(ErrorCode::$name => retry!($retry),)*
                }
            }
        }
    };
}

macro_rules! retry {
    (again) => {
        true
    };
    (final) => {
        false
    };
}

error_codes! {
    UnknownServerError = -1, "UNKNOWN_SERVER_ERROR", final;
    None = 0, "NONE", final;
    OffsetOutOfRange = 1, "OFFSET_OUT_OF_RANGE", final;
    CorruptMessage = 2, "CORRUPT_MESSAGE", again;
    UnknownTopicOrPartition = 3, "UNKNOWN_TOPIC_OR_PARTITION", again;
    InvalidFetchSize = 4, "INVALID_FETCH_SIZE", final;
    LeaderNotAvailable = 5, "LEADER_NOT_AVAILABLE", again;
    NotLeaderOrFollower = 6, "NOT_LEADER_OR_FOLLOWER", again;
    RequestTimedOut = 7, "REQUEST_TIMED_OUT", again;
    BrokerNotAvailable = 8, "BROKER_NOT_AVAILABLE", final;
    MessageTooLarge = 10, "MESSAGE_TOO_LARGE", final;
    NetworkException = 13, "NETWORK_EXCEPTION", again;
    InvalidTopicException = 17, "INVALID_TOPIC_EXCEPTION", final;
    RecordListTooLarge = 18, "RECORD_LIST_TOO_LARGE", final;
    NotEnoughReplicas = 19, "NOT_ENOUGH_REPLICAS", again;
    NotEnoughReplicasAfterAppend = 20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", again;
    InvalidRequiredAcks = 21, "INVALID_REQUIRED_ACKS", final;
    InvalidTimestamp = 32, "INVALID_TIMESTAMP", final;
    UnsupportedVersion = 35, "UNSUPPORTED_VERSION", final;
    TopicAlreadyExists = 36, "TOPIC_ALREADY_EXISTS", final;
    InvalidPartitions = 37, "INVALID_PARTITIONS", final;
    InvalidReplicationFactor = 38, "INVALID_REPLICATION_FACTOR", final;
    InvalidConfig = 40, "INVALID_CONFIG", final;
    NotController = 41, "NOT_CONTROLLER", again;
    InvalidRequest = 42, "INVALID_REQUEST", final;
    UnsupportedForMessageFormat = 43, "UNSUPPORTED_FOR_MESSAGE_FORMAT", final;
    OutOfOrderSequenceNumber = 45, "OUT_OF_ORDER_SEQUENCE_NUMBER", final;
    DuplicateSequenceNumber = 46, "DUPLICATE_SEQUENCE_NUMBER", final;
    InvalidProducerEpoch = 47, "INVALID_PRODUCER_EPOCH", final;
    KafkaStorageError = 56, "KAFKA_STORAGE_ERROR", again;
    UnknownProducerId = 59, "UNKNOWN_PRODUCER_ID", final;
    FencedLeaderEpoch = 74, "FENCED_LEADER_EPOCH", again;
    UnknownLeaderEpoch = 75, "UNKNOWN_LEADER_EPOCH", again;
    UnsupportedCompressionType = 76, "UNSUPPORTED_COMPRESSION_TYPE", final;
    InvalidRecord = 87, "INVALID_RECORD", final;
    ThrottlingQuotaExceeded = 89, "THROTTLING_QUOTA_EXCEEDED", again;
    UnknownTopicId = 100, "UNKNOWN_TOPIC_ID", again;
}

impl ErrorCode {
    /// Whether all went well.
    #[must_use]
    pub fn is_none(self) -> bool {
        self == ErrorCode::None
    }
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.name(), self.number())
    }
}

/// An error that a client may see: its words are the message, its code is what the client acts on.
pub trait WireError: std::fmt::Display {
    /// The code on the wire.
    fn code(&self) -> ErrorCode;

    /// The error as the answer to a request that is refused as a whole.
    fn to_reply(&self) -> ErrorReply {
        ErrorReply { code: self.code(), message: self.to_string() }
    }
}

impl WireError for BatchError {
    fn code(&self) -> ErrorCode {
        match self {
            BatchError::Truncated { .. }
            | BatchError::Length { .. }
            | BatchError::TrailingBytes { .. }
            | BatchError::Crc { .. }
            | BatchError::Decompress { .. } => ErrorCode::CorruptMessage,
            BatchError::TooLarge { .. } => ErrorCode::MessageTooLarge,
            BatchError::Codec { .. } | BatchError::CodecNotAllowed { .. } => ErrorCode::UnsupportedCompressionType,
            BatchError::AppendTimeFromProducer | BatchError::Timestamp { .. } => ErrorCode::InvalidTimestamp,
            BatchError::Magic { .. }
            | BatchError::Attributes { .. }
            | BatchError::Control
            | BatchError::Transactional { .. }
            | BatchError::RecordCount { .. }
            | BatchError::LastOffsetDelta { .. }
            | BatchError::ProducerFields { .. }
            | BatchError::MaxTimestamp { .. }
            | BatchError::Record { .. }
            | BatchError::TrailingRecordBytes { .. }
            | BatchError::NoRecordBytes { .. } => ErrorCode::InvalidRecord,
        }
    }
}

impl WireError for CompressionError {
    fn code(&self) -> ErrorCode {
        match self {
            CompressionError::TooLarge { .. } | CompressionError::Corrupt { .. } | CompressionError::TrailingBytes { .. } => {
                ErrorCode::CorruptMessage
            }
            CompressionError::Compress { .. } => ErrorCode::UnknownServerError,
        }
    }
}

impl WireError for FrameError {
    fn code(&self) -> ErrorCode {
        match self {
            FrameError::HeaderVersion { .. } => ErrorCode::UnsupportedVersion,
            FrameError::Crc { .. } => ErrorCode::CorruptMessage,
            FrameError::Magic { .. }
            | FrameError::Flags { .. }
            | FrameError::Reserved { .. }
            | FrameError::BodyTooLarge { .. }
            | FrameError::PayloadTooLarge { .. }
            | FrameError::BodyLength { .. } => ErrorCode::InvalidRequest,
        }
    }
}

impl WireError for NativeError {
    fn code(&self) -> ErrorCode {
        match self {
            NativeError::Layout { .. } | NativeError::Text { .. } | NativeError::Range { .. } | NativeError::TooMany { .. } => {
                ErrorCode::InvalidRequest
            }
        }
    }
}

impl WireError for TopicNameError {
    fn code(&self) -> ErrorCode {
        ErrorCode::InvalidTopicException
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_codes_go_both_ways() {
        for &code in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_number(code.number()), code);
        }
        assert_eq!(ErrorCode::from_number(31_000), ErrorCode::UnknownServerError);
        assert_eq!(ErrorCode::KafkaStorageError.to_string(), "KAFKA_STORAGE_ERROR (56)");
    }

    #[test]
    fn a_refusal_carries_its_numbers() {
        let reply = BatchError::TooLarge { bytes: 2_000_000, allowed: 1_048_588 }.to_reply();
        assert_eq!(reply.code, ErrorCode::MessageTooLarge);
        assert_eq!(reply.message, "batch of 2000000 bytes, 1048588 are allowed");
        let reply = BatchError::Crc { stored: 1, computed: 0xabcd }.to_reply();
        assert_eq!(
            (reply.code, reply.message.as_str()),
            (ErrorCode::CorruptMessage, "batch CRC is 0x0000abcd, the header says 0x00000001")
        );
        let reply = NativeError::Range { field: "acks", found: 2, first: -1, last: 1 }.to_reply();
        assert_eq!((reply.code, reply.message.as_str()), (ErrorCode::InvalidRequest, "acks is 2, -1 to 1 are allowed"));
    }

    #[test]
    fn what_may_be_sent_again_is_told_apart_from_what_may_not() {
        assert!(ErrorCode::NotLeaderOrFollower.is_retriable());
        assert!(ErrorCode::KafkaStorageError.is_retriable());
        assert!(!ErrorCode::InvalidRecord.is_retriable());
        assert!(!ErrorCode::None.is_retriable());
    }
}
