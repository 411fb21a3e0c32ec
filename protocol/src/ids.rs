//! A number has a type. Conversions are explicit; arithmetic exists only where it has a meaning.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

number!(
    /// Position of a record in a partition's log; the first is 0, each record takes the next. Never negative in a log.
    Offset, i64
);
number!(
    /// Number of a leadership of one partition, rising with every new leader, start and move; -1 where unknown.
    LeaderEpoch, i32
);
number!(
    /// Number of a host's registration, rising with every start.
    BrokerEpoch, i64
);
number!(
    /// Identity of an idempotent producer; -1 for none.
    ProducerId, i64
);
number!(
    /// Fences older instances of a producer id; -1 for none.
    ProducerEpoch, i16
);
number!(
    /// Number of a producer's first record of a batch in one partition; wraps from 2^31 - 1 to 0; -1 for none.
    Sequence, i32
);
number!(
    /// Milliseconds since the Unix epoch; -1 where there is none.
    Timestamp, i64
);
number!(
    /// Index of a partition in its topic, from 0.
    PartitionIndex, u32
);
number!(
    /// Index of a core on its host, from 0.
    CoreId, u16
);
number!(
    /// A machine that runs one `corelane` process.
    HostId, u32
);
number!(
    /// What a Kafka client takes for a broker: host x 1024 + core.
    NodeId, i32
);
number!(
    /// A count of bytes.
    ByteCount, u64
);
number!(
    /// A count of records.
    RecordCount, u32
);

impl Offset {
    /// The offset `records` further on.
    ///
    /// # Panics
    /// If it passes 2^63 - 1.
    #[must_use]
    pub fn plus(self, records: u32) -> Offset {
        self.checked_plus(records).expect("offsets end at 2^63 - 1")
    }

    /// The same, of numbers that a disk gave; `None` if it passes 2^63 - 1.
    #[must_use]
    pub fn checked_plus(self, records: u32) -> Option<Offset> {
        self.0.checked_add(i64::from(records)).map(Offset)
    }
}

impl ProducerId {
    /// No producer id: the batch is not idempotent.
    pub const NONE: ProducerId = ProducerId(-1);
}

impl Sequence {
    /// The sequence `records` further on: after 2^31 - 1 comes 0 (trap T44).
    ///
    /// # Panics
    /// If this is no sequence (-1).
    #[must_use]
    pub fn plus(self, records: u32) -> Sequence {
        let start = u32::try_from(self.0).expect("a sequence is never negative");
        let wrapped = start.wrapping_add(records) & i32::MAX.unsigned_abs();
        Sequence(i32::try_from(wrapped).expect("31 bits"))
    }

    /// How many records further back than this `other` is, counted across the wrap: 0 to 2^31 - 1.
    ///
    /// # Panics
    /// If either is no sequence (-1).
    #[must_use]
    pub fn since(self, other: Sequence) -> u32 {
        let number = |sequence: Sequence| u32::try_from(sequence.0).expect("a sequence is never negative");
        number(self).wrapping_sub(number(other)) & i32::MAX.unsigned_abs()
    }
}

impl Timestamp {
    /// No timestamp.
    pub const NONE: Timestamp = Timestamp(-1);
}

macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u128);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:032x})", stringify!($name), self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = std::num::ParseIntError;

            fn from_str(text: &str) -> Result<$name, Self::Err> {
                u128::from_str_radix(text, 16).map($name)
            }
        }
    };
}

/// What an acknowledgement of a topic's writes means; per topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DurabilityClass {
    /// Flushed to stable storage on every replica that the acknowledgement counts.
    #[default]
    Device,
    /// Completed, unflushed, on those replicas: survives kill -9 and a kernel panic, not a power cut of all.
    Written,
}

impl DurabilityClass {
    /// The configuration's word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DurabilityClass::Device => "device",
            DurabilityClass::Written => "written",
        }
    }
}

random_id!(
    /// Identity of a topic: a topic deleted and created again under its old name has another one.
    TopicId
);
random_id!(
    /// Identity of a cluster.
    ClusterId
);
random_id!(
    /// Identity of a data directory.
    DirectoryId
);

/// The internal partition that holds the metadata log.
pub const METADATA_TOPIC: TopicId = TopicId(1);

/// A partition, by its topic's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// The topic.
    pub topic: TopicId,
    /// The partition in it.
    pub partition: PartitionIndex,
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}
