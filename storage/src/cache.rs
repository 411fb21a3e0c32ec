//! The page cache of one core: clean pieces of all its logs, given back oldest first when memory runs short. With it go the counters of the
//! core's storage and the places of its lookups.
//!
//! Pieces arrive once they are written; until then a log keeps them itself. A handle: clones are the same cache.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use hashbrown::HashMap;
use protocol::ids::Offset;
use protocol::limits::LOOKUPS_INFLATING_MAX;
use runtime::local::Places;
use runtime::{Chunk, Region};

use crate::metrics::Metrics;
use crate::piece::{Budget, Found, Piece};

/// Part of the region that is kept free of cached pieces, for receiving and writing.
const RESERVE_DIVISOR: usize = 8;

/// The number of a log within its core's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CacheKey(u64);

/// Clean chunks of all logs of a core.
#[derive(Clone)]
pub struct ChunkCache(Rc<State>);

struct State {
    region: Region,
    metrics: Metrics,
    inflations: Places,
    cached: RefCell<Cached>,
}

#[derive(Default)]
struct Cached {
    logs: HashMap<u64, BTreeMap<Offset, Piece>, foldhash::fast::FixedState>,
    ages: VecDeque<(u64, Offset)>,
    next_key: u64,
    bytes: usize,
}

impl ChunkCache {
    /// An empty cache over the core's region.
    #[must_use]
    pub fn new(region: Region) -> ChunkCache {
        let inflations = Places::new(LOOKUPS_INFLATING_MAX);
        ChunkCache(Rc::new(State { region, metrics: Metrics::default(), inflations, cached: RefCell::default() }))
    }

    /// Bytes of chunks in the cache.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.cached.borrow().bytes
    }

    /// Gives back the oldest clean chunks until `bytes` of them are gone or none is left. Memory that a send still reads
    /// returns to the region when that ends.
    pub fn evict(&self, bytes: usize) {
        let mut evicted = 0;
        while evicted < bytes {
            match self.evict_one() {
                0 => return,
                more => evicted += more,
            }
        }
    }

    /// Counters of the storage of this core.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.0.metrics.clone()
    }

    /// Places for lookups that inflate batches off the core.
    pub(crate) fn inflations(&self) -> &Places {
        &self.0.inflations
    }

    /// The region that the chunks come from.
    pub(crate) fn region(&self) -> &Region {
        &self.0.region
    }

    pub(crate) fn register(&self) -> CacheKey {
        let mut cached = self.0.cached.borrow_mut();
        cached.next_key += 1;
        CacheKey(cached.next_key)
    }

    /// A chunk of the region; clean pieces make room for it.
    pub(crate) fn take(&self, bytes: usize) -> Option<Chunk> {
        loop {
            if let Some(chunk) = self.0.region.take(bytes) {
                return Some(chunk);
            }
            if self.evict_one() == 0 {
                return None;
            }
        }
    }

    pub(crate) fn insert(&self, key: CacheKey, piece: Piece) {
        let mut cached = self.0.cached.borrow_mut();
        cached.bytes += piece.capacity();
        cached.ages.push_back((key.0, piece.first_offset));
        let replaced = cached.logs.entry(key.0).or_default().insert(piece.first_offset, piece.freeze());
        if let Some(replaced) = replaced {
            cached.bytes -= replaced.capacity();
        }
        drop(cached);
        self.keep_reserve();
    }

    pub(crate) fn find(&self, key: CacheKey, offset: Offset, budget: Budget) -> Option<Found> {
        let cached = self.0.cached.borrow();
        let (_, piece) = cached.logs.get(&key.0)?.range(..=offset).next_back()?;
        piece.find(offset, budget)
    }

    pub(crate) fn remove_log(&self, key: CacheKey) {
        let mut cached = self.0.cached.borrow_mut();
        let gone = cached.logs.remove(&key.0).map_or(0, |pieces| pieces.values().map(Piece::capacity).sum());
        cached.bytes -= gone;
    }

    fn keep_reserve(&self) {
        let reserve = self.0.region.bytes() / RESERVE_DIVISOR;
        while self.0.region.free_bytes() < reserve {
            if self.evict_one() == 0 {
                return;
            }
        }
    }

    /// Bytes of the oldest piece, which is gone now; 0 if there was none.
    fn evict_one(&self) -> usize {
        let mut cached = self.0.cached.borrow_mut();
        while let Some((key, first)) = cached.ages.pop_front() {
            let piece = cached.logs.get_mut(&key).and_then(|pieces| pieces.remove(&first));
            if let Some(piece) = piece {
                cached.bytes -= piece.capacity();
                self.0.metrics.evicted_bytes(piece.capacity() as u64);
                return piece.capacity();
            }
        }
        0
    }
}
