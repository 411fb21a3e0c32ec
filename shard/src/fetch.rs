//! Fetch, on the owner core: one request over several partitions, and its wait in the purgatory.
//!
//! A pass reads every partition of the request, starting at one drawn at random, so that none starves behind a full answer (T73). The
//! limits are soft: the first batch of the first partition that has any is given whole (T72). What a pass found is the answer if it is
//! enough (min bytes), if a partition has an error, or if the time is over; else it is let go, and the fetch waits until enough bytes
//! have passed its bound or its deadline has come. Dropping the future (a closed connection) takes it out of the purgatory (T75, T83, T92).
//!
//! Bound and data of a partition are of one instant (T55). Between a pass and the wait is no await: bytes that became visible while a
//! pass read from the disk are found by comparing bounds.

use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use cluster::replica::{EpochError, Positions, Reader};
use protocol::error::{ErrorCode, WireError};
use protocol::ids::{LeaderEpoch, Offset, TopicPartition};
use protocol::limits::{FETCH_BYTES_MAX, FETCH_WAIT_MS_MAX};
use runtime::{ChunkSlice, Env, Monotonic};
use smallvec::SmallVec;
use storage::{LogFailure, ReadError, ReadResult, ReadStep};

use crate::partition::{Bounds, Budget};
use crate::purgatory::WaiterKey;
use crate::shard::{PartitionCell, Shard};

/// Partitions read before other tasks get a turn.
const PARTITIONS_PER_TURN: usize = 256;
/// How long a fetch that found no memory waits for some.
const MEMORY_RETRY: Duration = Duration::from_millis(5);

/// What a consumer asks for.
#[derive(Clone, Debug)]
pub struct FetchRequest {
    /// Who reads.
    pub reader: Reader,
    /// How long to wait for `min_bytes`.
    pub max_wait: Duration,
    /// Less than this isn't worth an answer before the wait is over.
    pub min_bytes: usize,
    /// Bytes in all, at most, but for the first batch.
    pub max_bytes: usize,
    /// From where.
    pub partitions: SmallVec<[FetchPartition; 1]>,
}

/// One partition of a fetch.
#[derive(Clone, Copy, Debug)]
pub struct FetchPartition {
    /// The partition.
    pub partition: TopicPartition,
    /// The first record wanted.
    pub offset: Offset,
    /// Bytes of this partition, at most, but for the first batch.
    pub max_bytes: usize,
    /// The leader epoch that the client knows; -1 for none.
    pub leader_epoch: LeaderEpoch,
}

/// Answers, in the order of the request.
pub type FetchResult = SmallVec<[Result<Fetched, FetchError>; 1]>;

/// Whole batches of one partition.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// Offsets at the instant of the read.
    pub bounds: Bounds,
    /// The batches, where they lie.
    pub slices: SmallVec<[ChunkSlice; 4]>,
    /// Their bytes.
    pub bytes: usize,
}

/// Why a partition can't be read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FetchError {
    /// No such partition on this core.
    #[error("partition {partition} is not here")]
    UnknownPartition {
        /// The one asked for.
        partition: TopicPartition,
    },
    /// Another leader epoch.
    #[error(transparent)]
    Epoch(#[from] EpochError),
    /// The offset isn't in the log.
    #[error("offset {asked} is not between {log_start} and {log_end}")]
    OutOfRange {
        /// The one asked for.
        asked: Offset,
        /// Where the log starts.
        log_start: Offset,
        /// Where it ends.
        log_end: Offset,
    },
    /// The leadership has just begun, and what its predecessor has shown isn't known to be here yet.
    #[error("the high watermark of {partition} hasn't reached the start of this leadership")]
    NotYet {
        /// The partition.
        partition: TopicPartition,
    },
    /// The log couldn't be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A failed disk has stopped the partition's log.
    #[error(transparent)]
    Stopped(LogFailure),
    /// The host stops.
    #[error("the host is stopping")]
    Stopping,
}

impl WireError for FetchError {
    fn code(&self) -> ErrorCode {
        match self {
            FetchError::UnknownPartition { .. } => ErrorCode::UnknownTopicOrPartition,
            FetchError::Epoch(error) => error.code(),
            FetchError::OutOfRange { .. } | FetchError::Read(ReadError::OutOfRange { .. }) => ErrorCode::OffsetOutOfRange,
            FetchError::NotYet { .. } => ErrorCode::LeaderNotAvailable,
            FetchError::Read(ReadError::NoMemory { .. }) => ErrorCode::ThrottlingQuotaExceeded,
            FetchError::Read(ReadError::Corrupt { .. }) => ErrorCode::CorruptMessage,
            FetchError::Read(ReadError::Io { .. }) | FetchError::Stopped(_) => ErrorCode::KafkaStorageError,
            FetchError::Stopping => ErrorCode::NotLeaderOrFollower,
        }
    }
}

type Cells<E> = SmallVec<[Option<Rc<PartitionCell<E>>>; 1]>;

/// What one look at all partitions gave.
struct Pass {
    result: FetchResult,
    /// How far the reader could read in each partition; `None` with an error.
    bounds: SmallVec<[Option<Offset>; 1]>,
    bytes: usize,
    has_error: bool,
    /// A partition has more than its answer: the limits are reached, waiting would bring nothing.
    left_some: bool,
    /// A partition had data, and there was no memory to read it into.
    lacked_memory: Option<ReadError>,
}

/// What a read of one partition gave.
struct Read {
    bound: Offset,
    next_offset: Offset,
    fetched: Fetched,
    lacked_memory: Option<ReadError>,
}

impl Pass {
    fn take(&mut self, index: usize, read: Read) -> Fetched {
        self.bounds[index] = Some(read.bound);
        self.bytes += read.fetched.bytes;
        self.left_some |= read.next_offset < read.bound;
        self.lacked_memory = self.lacked_memory.take().or(read.lacked_memory);
        read.fetched
    }
}

enum Parking<'a, E: Env> {
    Parked(Parked<'a, E>),
    /// Something became visible since the pass.
    Moved,
    Full,
}

impl<E: Env> Shard<E> {
    /// Reads, and waits for bytes where there are too few.
    pub async fn fetch(self, request: FetchRequest) -> FetchResult {
        self.counters().fetches.add(1);
        let cells: Cells<E> = request.partitions.iter().map(|wanted| self.cell(wanted.partition)).collect();
        let max_wait = request.max_wait.min(Duration::from_millis(u64::from(FETCH_WAIT_MS_MAX)));
        let deadline = self.env().now() + max_wait;
        let mut parked = false;
        loop {
            let mut pass = self.read_all(&request, &cells).await;
            let is_late = self.env().now() >= deadline;
            if pass.has_error || pass.bytes >= request.min_bytes || (pass.bytes > 0 && pass.left_some) || is_late {
                return self.answer(pass, is_late);
            }
            if pass.lacked_memory.is_some() && pass.bytes == 0 {
                self.env().sleep(MEMORY_RETRY.min(deadline - self.env().now())).await;
                continue;
            }
            match self.park(&request, &cells, &pass, deadline) {
                Parking::Moved => self.env().yield_now().await,
                Parking::Full => {
                    self.counters().purgatory_full.add(1);
                    return self.answer(pass, false);
                }
                Parking::Parked(waiting) => {
                    // Chunks aren't held while waiting.
                    pass.result.clear();
                    if !std::mem::replace(&mut parked, true) {
                        self.counters().parked.add(1);
                    }
                    waiting.await_waking().await;
                }
            }
        }
    }

    fn answer(&self, mut pass: Pass, is_late: bool) -> FetchResult {
        self.counters().fetch_bytes.add(pass.bytes as u64);
        if let Some(error) = pass.lacked_memory.filter(|_| is_late && pass.bytes == 0)
            && let Some(first) = pass.result.first_mut()
        {
            *first = Err(error.into());
        }
        pass.result
    }

    /// Reads every partition once.
    async fn read_all(&self, request: &FetchRequest, cells: &Cells<E>) -> Pass {
        let count = cells.len();
        let mut results: SmallVec<[Option<Result<Fetched, FetchError>>; 1]> = SmallVec::from_elem(None, count);
        let mut pass = Pass {
            result: FetchResult::new(),
            bounds: SmallVec::from_elem(None, count),
            bytes: 0,
            has_error: false,
            left_some: false,
            lacked_memory: None,
        };
        let max_bytes = request.max_bytes.min(FETCH_BYTES_MAX);
        let start = self.first_partition(count);
        for (visited, index) in (start..count).chain(0..start).enumerate() {
            if visited % PARTITIONS_PER_TURN == PARTITIONS_PER_TURN - 1 {
                self.env().yield_now().await;
            }
            let wanted = &request.partitions[index];
            let budget = Budget {
                bytes_max: wanted.max_bytes.min(max_bytes.saturating_sub(pass.bytes)),
                first_batch_whole: pass.bytes == 0,
            };
            let read = match &cells[index] {
                Some(cell) => self.read_one(cell, wanted, request.reader, budget).await,
                None => Err(FetchError::UnknownPartition { partition: wanted.partition }),
            };
            results[index] = Some(read.map(|read| pass.take(index, read)).inspect_err(|_| pass.has_error = true));
        }
        pass.result = results.into_iter().flatten().collect();
        assert_eq!(pass.result.len(), count, "each partition is answered");
        pass
    }

    fn first_partition(&self, count: usize) -> usize {
        match count {
            0 | 1 => 0,
            _ => usize::try_from(self.env().random() % count as u64).expect("below a count of partitions"),
        }
    }

    /// Reads one partition.
    async fn read_one(
        &self,
        cell: &PartitionCell<E>,
        wanted: &FetchPartition,
        reader: Reader,
        budget: Budget,
    ) -> Result<Read, FetchError> {
        let fetching = cell.partition.borrow_mut().begin_fetch(wanted, reader, budget)?;
        let (bound, bounds) = (fetching.bound, fetching.bounds);
        let mut step = Ok(fetching.step);
        let result = loop {
            match step {
                Ok(ReadStep::Ready(result)) => break Ok(result),
                Ok(ReadStep::Disk(plan)) => {
                    self.counters().fetch_disk_reads.add(1);
                    let outcome = plan.execute().await;
                    step = cell.partition.borrow_mut().finish_fetch(outcome);
                }
                Err(error) => break Err(error),
            }
        };
        match result {
            Ok(ReadResult { slices, bytes, next_offset }) => {
                Ok(Read { bound, next_offset, fetched: Fetched { bounds, slices, bytes }, lacked_memory: None })
            }
            Err(error @ ReadError::NoMemory { .. }) => {
                let fetched = Fetched { bounds, slices: SmallVec::new(), bytes: 0 };
                Ok(Read { bound, next_offset: wanted.offset, fetched, lacked_memory: Some(error) })
            }
            Err(error) => {
                // What was read has left the log meanwhile, and its file with it.
                let Positions { log_start, log_end, .. } = cell.partition.borrow().replica().positions();
                if wanted.offset < log_start {
                    return Err(FetchError::OutOfRange { asked: wanted.offset, log_start, log_end });
                }
                tracing::error!(partition = %cell.name, %error, "a read failed");
                Err(error.into())
            }
        }
    }

    /// Lists the fetch at each of its partitions, if nothing has become visible since the pass.
    fn park<'a>(&'a self, request: &FetchRequest, cells: &'a Cells<E>, pass: &Pass, deadline: Monotonic) -> Parking<'a, E> {
        let live = || cells.iter().flatten();
        let bounds = live().zip(pass.bounds.iter());
        let moved = |(cell, bound): (&Rc<PartitionCell<E>>, &Option<Offset>)| {
            cell.partition.borrow().read_bound(request.reader) != *bound
        };
        if self.is_stopping() || bounds.into_iter().any(moved) {
            return Parking::Moved;
        }
        let missing = request.min_bytes.saturating_sub(pass.bytes).max(1) as u64;
        let Some(key) = self.purgatory().borrow_mut().park(deadline, missing, live().count()) else {
            return Parking::Full;
        };
        let places = live().map(|cell| (&**cell, cell.partition.borrow_mut().take_place(key))).collect();
        self.watch(deadline);
        Parking::Parked(Parked { shard: self, key, places })
    }
}

/// A fetch in the purgatory; dropping it takes it out.
struct Parked<'a, E: Env> {
    shard: &'a Shard<E>,
    key: WaiterKey,
    places: SmallVec<[(&'a PartitionCell<E>, usize); 1]>,
}

impl<E: Env> Parked<'_, E> {
    async fn await_waking(self) {
        poll_fn(|context| self.shard.purgatory().borrow_mut().poll(self.key, context)).await;
    }
}

impl<E: Env> Drop for Parked<'_, E> {
    fn drop(&mut self) {
        for (cell, place) in &self.places {
            cell.partition.borrow_mut().leave_place(*place);
        }
        self.shard.purgatory().borrow_mut().leave(self.key);
    }
}
