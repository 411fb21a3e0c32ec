//! Error codes of the wire: Kafka's numbers, for both dialects. Each operation has an error enum of its own, with the
//! numbers in it, near the operation; here is where such errors become codes.

macro_rules! error_codes {
    ($($name:ident = $number:literal,)*) => {
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
        }
    };
}

error_codes! {
    UnknownServerError = -1,
    None = 0,
    OffsetOutOfRange = 1,
    CorruptMessage = 2,
    UnknownTopicOrPartition = 3,
    InvalidFetchSize = 4,
    LeaderNotAvailable = 5,
    NotLeaderOrFollower = 6,
    RequestTimedOut = 7,
    BrokerNotAvailable = 8,
    MessageTooLarge = 10,
    NetworkException = 13,
    InvalidTopicException = 17,
    RecordListTooLarge = 18,
    NotEnoughReplicas = 19,
    NotEnoughReplicasAfterAppend = 20,
    InvalidRequiredAcks = 21,
    InvalidTimestamp = 32,
    UnsupportedVersion = 35,
    TopicAlreadyExists = 36,
    InvalidPartitions = 37,
    InvalidReplicationFactor = 38,
    InvalidConfig = 40,
    NotController = 41,
    InvalidRequest = 42,
    UnsupportedForMessageFormat = 43,
    OutOfOrderSequenceNumber = 45,
    DuplicateSequenceNumber = 46,
    InvalidProducerEpoch = 47,
    KafkaStorageError = 56,
    UnknownProducerId = 59,
    FencedLeaderEpoch = 74,
    UnknownLeaderEpoch = 75,
    UnsupportedCompressionType = 76,
    InvalidRecord = 87,
    ThrottlingQuotaExceeded = 89,
    UnknownTopicId = 100,
}

impl ErrorCode {
    /// Whether all went well.
    #[must_use]
    pub fn is_none(self) -> bool {
        self == ErrorCode::None
    }
}
