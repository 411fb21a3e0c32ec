//! Settings of the client, its producers and its consumers, with their defaults and bounds.

use std::time::Duration;

use protocol::compression::Codec;
use protocol::limits;

/// Settings of a [`Client`](crate::Client): they hold for all connections that it opens.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Name under which the server lists this client (at most 256 bytes).
    pub client_id: String,
    /// Longest time for a connection to be made and greeted.
    pub connect_timeout: Duration,
    /// Longest time for a reply, on top of what a request itself may wait. Then the connection is given up.
    pub request_timeout: Duration,
    /// Age at which cached metadata is asked for again before it is used.
    pub metadata_age_max: Duration,
}

impl Default for ClientConfig {
    fn default() -> ClientConfig {
        ClientConfig {
            client_id: "corelane-client".to_owned(),
            connect_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(30),
            metadata_age_max: Duration::from_secs(300),
        }
    }
}

/// Which copies must hold a batch before it is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acks {
    /// None: the server sends no reply, and a delivery says only that the bytes were handed to the socket.
    None,
    /// The leader.
    Leader,
    /// Every in-sync replica.
    #[default]
    All,
}

impl Acks {
    pub(crate) fn wire(self) -> i8 {
        match self {
            Acks::None => 0,
            Acks::Leader => 1,
            Acks::All => -1,
        }
    }
}

/// What is sent again. Of an idempotent producer a batch whose outcome isn't known is sent again too, unless with [`Retry::Never`]: it lands once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retry {
    /// Nothing: each failure is reported.
    Never,
    /// Batches that the server refused for a passing reason, or that never left: they are in no log, so a retry makes no
    /// duplicate. A batch whose outcome isn't known (the connection broke, or no reply came in time) is reported as
    /// [`DeliveryError::Unknown`](crate::DeliveryError::Unknown).
    #[default]
    Refused,
    /// Also batches whose outcome isn't known: nothing is lost while the server comes back in time, but a record may be
    /// in the log twice.
    RefusedAndUnknown,
}

/// Which partition a record without a key goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NullKeyPartitioner {
    /// One partition until its batch is full or due, then the next: large batches.
    #[default]
    Sticky,
    /// Each record to the next partition.
    RoundRobin,
}

/// Settings of a [`Producer`](crate::Producer).
#[derive(Clone, Debug)]
pub struct ProducerConfig {
    /// Which copies an acknowledgement stands for.
    pub acks: Acks,
    /// How long a batch waits for more records. Zero sends at once; what arrives while the window is full shares a batch.
    pub linger: Duration,
    /// Size at which a batch is sent before its linger ends, in bytes before compression.
    pub batch_bytes: usize,
    /// Largest record that is accepted, in bytes before compression. The topic's `max.message.bytes` bounds the
    /// compressed batch on its own.
    pub record_bytes_max: usize,
    /// Compression of batches.
    pub codec: Codec,
    /// Memory of records that have no result yet, in bytes; then [`Producer::send`](crate::Producer::send) waits.
    pub memory_bytes: usize,
    /// Batches of one partition that are under way at once.
    pub batches_in_flight_max: usize,
    /// Whether the server is to know batches again, so that what is sent twice is in the log once. Counts with [`Acks::All`] only.
    pub idempotent: bool,
    /// What is sent again.
    pub retry: Retry,
    /// Pause before a batch is sent again; doubled each time, up to a second.
    pub retry_backoff: Duration,
    /// Time in which a record gets its result, all retries included.
    pub delivery_timeout: Duration,
    /// How long the server may wait for the in-sync replicas.
    pub ack_timeout: Duration,
    /// Where records without a key go. Records with a key go by murmur2 over the key, as the Java client's do.
    pub null_key_partitioner: NullKeyPartitioner,
}

impl Default for ProducerConfig {
    fn default() -> ProducerConfig {
        ProducerConfig {
            acks: Acks::All,
            linger: Duration::from_millis(10),
            batch_bytes: 64 << 10,
            record_bytes_max: 1 << 20,
            codec: Codec::Zstd,
            memory_bytes: 32 << 20,
            batches_in_flight_max: 5,
            idempotent: true,
            retry: Retry::Refused,
            retry_backoff: Duration::from_millis(20),
            delivery_timeout: Duration::from_secs(120),
            ack_timeout: Duration::from_secs(30),
            null_key_partitioner: NullKeyPartitioner::Sticky,
        }
    }
}

impl ProducerConfig {
    pub(crate) fn is_idempotent(&self) -> bool {
        self.idempotent && self.acks == Acks::All
    }

    /// The first setting that is out of its bounds, in words.
    pub(crate) fn problem(&self) -> Option<String> {
        let batch_max = limits::BATCH_BYTES_CEILING / 2;
        if self.batch_bytes == 0 || self.batch_bytes > batch_max {
            return Some(format!("batch_bytes is {}, allowed are 1 to {batch_max}", self.batch_bytes));
        }
        if self.record_bytes_max == 0 || self.record_bytes_max > batch_max {
            return Some(format!("record_bytes_max is {}, allowed are 1 to {batch_max}", self.record_bytes_max));
        }
        let memory_min = self.record_bytes_max + self.batch_bytes;
        let memory_max = usize::try_from(u32::MAX / 2).unwrap_or(usize::MAX);
        if self.memory_bytes < memory_min || self.memory_bytes > memory_max {
            let asked = self.memory_bytes;
            return Some(format!("memory_bytes is {asked}, allowed are {memory_min} (a record and a batch) to {memory_max}"));
        }
        let window_max = if self.is_idempotent() {
            limits::PRODUCER_BATCHES_REMEMBERED
        } else {
            limits::REQUESTS_IN_FLIGHT_PER_CONNECTION_MAX
        };
        if self.batches_in_flight_max == 0 || self.batches_in_flight_max > window_max {
            let asked = self.batches_in_flight_max;
            let why = if self.is_idempotent() { " of an idempotent producer" } else { "" };
            return Some(format!("batches_in_flight_max is {asked}, allowed are 1 to {window_max}{why}"));
        }
        None
    }
}

/// What a consumer does when its position is outside of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutOfRange {
    /// [`Consumer::next`](crate::Consumer::next) gives an error with the asked and the existing offsets; the application seeks.
    #[default]
    Report,
    /// It goes on at the log's start.
    Start,
    /// It goes on at the log's end.
    End,
}

/// Settings of a [`Consumer`](crate::Consumer).
#[derive(Clone, Debug)]
pub struct ConsumerConfig {
    /// How long the server may hold a fetch that finds nothing.
    pub wait_max: Duration,
    /// Bytes that a fetch waits for, up to `wait_max`.
    pub bytes_min: u32,
    /// Bytes of one reply, over all partitions; a single larger batch still comes whole.
    pub fetch_bytes_max: u32,
    /// Bytes of one partition in one reply; a single larger batch still comes whole.
    pub partition_bytes_max: u32,
    /// Bytes fetched ahead of the application; then no further fetch is sent.
    pub prefetch_bytes_max: usize,
    /// What one batch may decompress to, in bytes; more is refused.
    pub decompressed_bytes_max: usize,
    /// What happens at a position outside of the log.
    pub out_of_range: OutOfRange,
    /// Pause before a fetch is sent again after a passing failure.
    pub retry_backoff: Duration,
}

impl Default for ConsumerConfig {
    fn default() -> ConsumerConfig {
        ConsumerConfig {
            wait_max: Duration::from_millis(500),
            bytes_min: 1,
            fetch_bytes_max: 4 << 20,
            partition_bytes_max: 1 << 20,
            prefetch_bytes_max: 8 << 20,
            decompressed_bytes_max: limits::BATCH_DECOMPRESSED_BYTES_MAX,
            out_of_range: OutOfRange::Report,
            retry_backoff: Duration::from_millis(50),
        }
    }
}

impl ConsumerConfig {
    /// The first setting that is out of its bounds, in words.
    pub(crate) fn problem(&self) -> Option<String> {
        let fetch_max = u32::try_from(limits::FETCH_BYTES_MAX).unwrap_or(u32::MAX);
        for (name, value) in [("fetch_bytes_max", self.fetch_bytes_max), ("partition_bytes_max", self.partition_bytes_max)] {
            if value == 0 || value > fetch_max {
                return Some(format!("{name} is {value}, allowed are 1 to {fetch_max}"));
            }
        }
        let decompressed_max = limits::BATCH_DECOMPRESSED_BYTES_MAX;
        if self.decompressed_bytes_max == 0 || self.decompressed_bytes_max > decompressed_max {
            let asked = self.decompressed_bytes_max;
            return Some(format!("decompressed_bytes_max is {asked}, allowed are 1 to {decompressed_max}"));
        }
        let wait_max = Duration::from_millis(u64::from(limits::FETCH_WAIT_MS_MAX));
        if self.wait_max > wait_max {
            return Some(format!("wait_max is {:?}, at most {wait_max:?} is allowed", self.wait_max));
        }
        None
    }
}
