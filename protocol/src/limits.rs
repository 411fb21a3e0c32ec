//! Every limit of the product, in one place, with the derivation of those that depend on each other.
//!
//! Units are the last word of a name. A limit that an operator may lower or raise says so; the constant is then its default.

/// The block of direct I/O, in bytes.
pub const BLOCK_BYTES: usize = 4096;
/// Largest chunk of a region, in bytes (see `runtime::uring::memory`).
pub const CHUNK_BYTES_MAX: usize = 16 << 20;

/// Largest record batch that any topic may allow, in bytes.
pub const BATCH_BYTES_CEILING: usize = 8 << 20;
/// Largest record batch of a topic by default (`max.message.bytes`), in bytes: Kafka's default.
pub const BATCH_BYTES_DEFAULT: usize = (1 << 20) + 12;
/// Records in one batch, at most.
pub const BATCH_RECORDS_MAX: u32 = 1 << 20;
/// Size of a record batch's header, in bytes.
pub const BATCH_HEADER_BYTES: usize = 61;
/// Headers of one record, at most.
pub const RECORD_HEADERS_MAX: usize = 1024;
/// What a batch may decompress to, in bytes, where anything here decompresses it.
pub const BATCH_DECOMPRESSED_BYTES_MAX: usize = 64 << 20;

/// Body (control fields) of a native frame, at most, in bytes.
pub const FRAME_BODY_BYTES_MAX: usize = 1 << 20;
/// Payload (raw batches) of a native frame, at most, in bytes.
pub const FRAME_PAYLOAD_BYTES_MAX: usize = 12 << 20;
/// Largest native frame, header included, in bytes.
pub const FRAME_BYTES_MAX: usize = 32 + FRAME_BODY_BYTES_MAX + FRAME_PAYLOAD_BYTES_MAX;

/// Connections of one core, at most (settable).
pub const CONNECTIONS_PER_CORE_MAX: usize = 16_384;
/// Connections from one address, at most (settable).
pub const CONNECTIONS_PER_ADDRESS_MAX: usize = 8_192;
/// Requests of one connection that wait for their reply, at most; then its socket isn't read.
pub const REQUESTS_IN_FLIGHT_PER_CONNECTION_MAX: usize = 128;
/// A connection without a complete first request is closed after this, in milliseconds.
pub const FIRST_REQUEST_TIMEOUT_MS: u64 = 10_000;
/// A frame that has begun must end within this, in milliseconds.
pub const PARTIAL_FRAME_TIMEOUT_MS: u64 = 30_000;
/// A connection without requests is closed after this, in milliseconds (settable; Kafka's default).
pub const CONNECTION_IDLE_TIMEOUT_MS: u64 = 600_000;
/// One send (of at most [`SEND_BYTES_MAX`]) to a peer that doesn't read ends the connection after this, in milliseconds.
pub const SEND_TIMEOUT_MS: u64 = 60_000;
/// Bytes of one gathered send, at most; larger replies go out in several.
pub const SEND_BYTES_MAX: usize = 2 << 20;
/// Parts of one gathered send, at most (the kernel allows 1024).
pub const SEND_PARTS_MAX: usize = 512;
/// Bytes of replies of one connection that are unsent or may still come, at most; then its socket isn't read.
/// One request more may have been called before, so a reader that stalls holds at most this and one largest reply.
pub const REPLY_BYTES_PER_CONNECTION_MAX: usize = 16 << 20;
/// The share of a region that receiving leaves to writing: one in this many. Less than what the cache of clean chunks keeps free.
pub const RECEIVE_RESERVE_DIVISOR: usize = 32;
/// Size of a connection's first receive chunk, in bytes.
pub const RECEIVE_CHUNK_BYTES: usize = 256 << 10;
/// Chunks that unfinished zero-copy sends of one connection may hold, in bytes.
pub const ZERO_COPY_BYTES_PER_CONNECTION_MAX: usize = 16 << 20;
/// Smallest part that is sent without a copy, in bytes: below it the notification costs more than the copy.
pub const ZERO_COPY_BYTES_MIN: usize = 16 << 10;
/// The share of a region that unfinished sends may hold before sends are copied: one in this many. The rest is for appends.
pub const ZERO_COPY_REGION_DIVISOR: usize = 2;
/// Connections that a listener has accepted and nobody has asked for, at most; then it stops accepting.
pub const ACCEPTED_CONNECTIONS_WAITING_MAX: usize = 256;

/// Requests of one core to all other cores that are under way, at most, shared evenly among them; but see [`MESH_REQUESTS_PER_PAIR_MIN`].
pub const MESH_REQUESTS_MAX: usize = 8_192;
/// Requests of one core to one other that may be under way at least, on however many cores.
pub const MESH_REQUESTS_PER_PAIR_MIN: usize = 64;
/// Slices of one core's region that other cores may hold at once, at most.
pub const LOANS_PER_CORE_MAX: usize = 16_384;

/// Largest answer to one fetch, in bytes; also bounded by what the client asks.
pub const FETCH_BYTES_MAX: usize = 8 << 20;
/// Longest wait of a fetch, in milliseconds.
pub const FETCH_WAIT_MS_MAX: u32 = 60_000;
/// Fetches of one core that are parked, at most.
pub const PURGATORY_WAITERS_MAX: usize = 65_536;
/// Partitions that the parked fetches of one core wait at, counted once per fetch, at most.
pub const PURGATORY_PLACES_MAX: usize = 1 << 20;

/// Bytes appended to a partition and not yet written, at most; then appends are refused until writes complete.
pub const UNWRITTEN_BYTES_PER_PARTITION_MAX: usize = 32 << 20;
/// Once a partition has this much appended and not yet written, its core calls no more requests until writes complete.
pub const UNWRITTEN_BYTES_BEFORE_BACK_PRESSURE: usize = 16 << 20;
/// Batches of one partition that wait for room in its log (space, memory), in bytes, at most; then appends are refused.
pub const DEFERRED_BYTES_PER_PARTITION_MAX: usize = 16 << 20;
/// Batches of one producer that a partition remembers, to know them again: as many as Kafka's clients have in flight (KIP-98).
pub const PRODUCER_BATCHES_REMEMBERED: usize = 5;
/// Idempotent producers that a partition remembers, at most.
pub const PRODUCERS_PER_PARTITION_MAX: usize = 10_000;
/// A producer that has appended nothing for this long is forgotten, in milliseconds: Kafka's default of `producer.id.expiration.ms`, a day.
pub const PRODUCER_ID_EXPIRATION_MS: u64 = 24 * 3600 * 1000;
/// Writes of one partition in flight.
pub const WRITES_IN_FLIGHT_PER_PARTITION_MAX: usize = 2;
/// Largest group commit, in bytes.
pub const GROUP_COMMIT_BYTES_MAX: usize = 1 << 20;

/// Longest wait for a topic to be created, in milliseconds.
pub const TOPIC_CHANGE_TIMEOUT_MS_MAX: u32 = 120_000;
/// Longest wait for records to be deleted, in milliseconds.
pub const DELETE_RECORDS_TIMEOUT_MS_MAX: u32 = 120_000;
/// Changes of topics that wait for the one under way, at most; then a change is refused. Each may hold a frame's body
/// ([`FRAME_BODY_BYTES_MAX`]), and goes on when its connection has ended.
pub const TOPIC_CHANGES_WAITING_MAX: usize = 64;

/// Cores of a host, at most.
pub const CORES_PER_HOST_MAX: usize = 1024;
/// Topics of a host, at most.
pub const TOPICS_MAX: usize = 100_000;
/// Partitions of one topic, at most.
pub const PARTITIONS_PER_TOPIC_MAX: u32 = 10_000;
/// Partitions of a host, at most (settable).
pub const PARTITIONS_PER_HOST_MAX: usize = 4_000;
/// Length of a topic name, at most, in bytes: Kafka's rule (letters, digits, '.', '_' and '-'; not "." nor "..").
pub const TOPIC_NAME_BYTES_MAX: usize = 249;
/// Configs in one request or description of a topic, at most.
pub const TOPIC_CONFIGS_MAX: usize = 256;
/// Length of a client id, at most, in bytes.
pub const CLIENT_ID_BYTES_MAX: usize = 256;
/// Partitions in one request, at most.
pub const PARTITIONS_PER_REQUEST_MAX: usize = 10_000;

/// Largest end of a log that is found on a disk: a log that takes 10^9 records a second gets there in 146 years, and appends have as much again.
pub const LOG_END_OFFSET_MAX: i64 = 1 << 62;
/// From a segment's base offset to its last offset, and to its last batch's position in bytes, at most: Kafka's indexes have 31 bits.
pub const SEGMENT_REACH_MAX: i64 = (1 << 31) - 1;
/// Size at which a segment rolls by default (`segment.bytes`): Kafka's default, in bytes.
pub const SEGMENT_BYTES_DEFAULT: u64 = 1 << 30;
/// Age at which a segment rolls by default (`segment.ms`), in milliseconds: Kafka's default, seven days.
pub const SEGMENT_MS_DEFAULT: u64 = 7 * 24 * 3600 * 1000;
/// Age from which on segments are deleted by default (`retention.ms`), in milliseconds: Kafka's default, seven days.
pub const RETENTION_MS_DEFAULT: u64 = 7 * 24 * 3600 * 1000;
/// Smallest `segment.bytes`.
pub const SEGMENT_BYTES_MIN: u64 = 1 << 20;
/// Log bytes between two entries of the offset index (`index.interval.bytes`).
pub const INDEX_INTERVAL_BYTES: u64 = 4096;
/// Jobs for the threads off a core that may wait or run; who has another waits.
pub const OFFLOADED_JOBS_MAX: usize = 1024;
/// Threads off a core that lookups by time may take at once, at most: a batch may inflate to [`BATCH_DECOMPRESSED_BYTES_MAX`], and file
/// operations need the others meanwhile.
pub const LOOKUPS_INFLATING_MAX: usize = 1;
/// Descriptors that segment files may take per core, of the LRU.
pub const SEGMENT_DESCRIPTORS_PER_CORE_MAX: usize = 4_096;
/// Largest piece of a file that is freed in one step, in bytes: freeing costs 0.3 ms per MiB and stalls writers.
pub const FREE_STEP_BYTES_MAX: u64 = 32 << 20;

// A batch is copied into one chunk, behind at most one block less a byte that its predecessor left.
const _: () = assert!(BATCH_BYTES_CEILING + BLOCK_BYTES <= CHUNK_BYTES_MAX);
// A frame is received into one chunk, so that its batches are copied once.
const _: () = assert!(FRAME_BYTES_MAX <= CHUNK_BYTES_MAX);
// The largest batch fits a frame.
const _: () = assert!(BATCH_BYTES_CEILING <= FRAME_PAYLOAD_BYTES_MAX);
// The first batch of a fetch is always whole; the answer must fit a frame.
const _: () = assert!(FETCH_BYTES_MAX <= FRAME_PAYLOAD_BYTES_MAX);
// What is appended and unwritten must hold a largest batch in flight and one more.
const _: () = assert!(2 * BATCH_BYTES_CEILING <= UNWRITTEN_BYTES_PER_PARTITION_MAX);
// The frame that was called last before back-pressure still fits.
const _: () = assert!(UNWRITTEN_BYTES_BEFORE_BACK_PRESSURE + FRAME_PAYLOAD_BYTES_MAX <= UNWRITTEN_BYTES_PER_PARTITION_MAX);
// And so it does where its batches have to wait for room.
const _: () = assert!(FRAME_PAYLOAD_BYTES_MAX <= DEFERRED_BYTES_PER_PARTITION_MAX);
