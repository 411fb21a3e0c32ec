//! Slices of a region that other cores may read: sent across, kept where they are, and given back from any thread.
//!
//! A core lends ([`ChunkSlice::lend`]) and collects ([`Region::collect`], once per turn of its ring and before it says what is free). Another
//! one reads, clones and drops; it never touches the region, only the stack of what came back.
//!
//! Invariants:
//! - While a loan is out, the region keeps the slice: its bytes don't change, its chunk isn't free, the region isn't unmapped.
//! - The number of a loan is on the stack of returns at most once: it is pushed by the drop of the loan's last clone, and given out again only
//!   when it was collected. So the stack, of as many places as there may be loans, is never full.
//! - The stack is pushed to one by one and taken as a whole, so no push can mistake one state of it for another.

use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use protocol::limits::LOANS_PER_CORE_MAX;
use slab::Slab;

use super::memory::{ChunkSlice, Region, RegionInner, small};
use crate::mesh::bell::Bell;

/// The end of the stack.
const NONE: u32 = u32::MAX;

/// Published bytes of another core's region. Clones are the same loan; the last one gives it back, wherever it is dropped.
#[derive(Clone)]
pub struct Loan {
    lent: Arc<Lent>,
    start: u32,
    length: u32,
}

struct Lent {
    /// The first byte of the slice.
    address: NonNull<u8>,
    length: u32,
    number: u32,
    returns: Arc<Returns>,
}

/// A region's side of its loans.
pub(super) struct Lending {
    out: RefCell<Slab<ChunkSlice>>,
    returns: Arc<Returns>,
}

/// The stack of the numbers that came back.
struct Returns {
    head: AtomicU32,
    /// By number: the one below it.
    next: Box<[AtomicU32]>,
    /// The region's core goes to sleep while a task waits for memory.
    wanted: AtomicBool,
    bell: Option<Arc<Bell>>,
}

// SAFETY: the address is only read from. The bytes there were published before the loan was made, and neither change nor go before its number was
// collected; that happens after the drop of the last clone, through the release of the push and the acquire of the collection.
unsafe impl Send for Lent {}
// SAFETY: as above; all that a shared reference allows is to read.
unsafe impl Sync for Lent {}

impl ChunkSlice {
    /// Lends the slice to other cores.
    ///
    /// # Errors
    /// The slice, if as many loans of its region are out as may be.
    pub fn lend(self) -> Result<Loan, ChunkSlice> {
        let region = Region(self.memory.region.clone());
        let lending = region.0.lending.get_or_init(|| Lending::new(&region.0));
        if lending.out.borrow().len() == LOANS_PER_CORE_MAX {
            region.collect();
        }
        let mut out = lending.out.borrow_mut();
        if out.len() == LOANS_PER_CORE_MAX {
            return Err(self);
        }
        let (address, length) = (NonNull::from(&self[..]).cast(), small(self.len()));
        let number = u32::try_from(out.insert(self)).expect("loans are few");
        let lent = Lent { address, length, number, returns: lending.returns.clone() };
        Ok(Loan { lent: Arc::new(lent), start: 0, length })
    }
}

impl Region {
    /// Takes in what other cores have given back. Whether there was something.
    pub fn collect(&self) -> bool {
        let Some(lending) = self.0.lending.get() else { return false };
        let returns = &lending.returns;
        if returns.head.load(Ordering::Relaxed) == NONE {
            return false;
        }
        let mut number = returns.head.swap(NONE, Ordering::Acquire);
        while number != NONE {
            let next = returns.next[number as usize].load(Ordering::Relaxed);
            let slice = lending.out.borrow_mut().remove(number as usize);
            drop(slice);
            number = next;
        }
        true
    }

    /// Loans that were not given back, or not collected.
    #[must_use]
    pub fn loans(&self) -> usize {
        self.0.lending.get().map_or(0, |lending| lending.out.borrow().len())
    }

    /// What wakes this region's core.
    pub(super) fn install_bell(&self, bell: Arc<Bell>) {
        assert!(self.0.lending.get().is_none() && self.0.bell.set(bell).is_ok(), "a region's bell comes first, and once");
    }

    /// The core goes to sleep: what comes back wakes it, if a task waits for memory. Whether something came back already.
    pub(super) fn falls_asleep(&self) -> bool {
        let Some(lending) = self.0.lending.get() else { return false };
        if lending.out.borrow().is_empty() || !self.0.freed.is_awaited() {
            return false;
        }
        lending.returns.wanted.store(true, Ordering::SeqCst);
        lending.returns.head.load(Ordering::SeqCst) != NONE
    }

    /// The core is awake.
    pub(super) fn wakes_up(&self) {
        if let Some(lending) = self.0.lending.get() {
            lending.returns.wanted.store(false, Ordering::Relaxed);
        }
    }
}

impl Lending {
    fn new(region: &RegionInner) -> Lending {
        let returns = Returns {
            head: AtomicU32::new(NONE),
            next: (0..LOANS_PER_CORE_MAX).map(|_| AtomicU32::new(NONE)).collect(),
            wanted: AtomicBool::new(false),
            bell: region.bell.get().cloned(),
        };
        Lending { out: RefCell::default(), returns: Arc::new(returns) }
    }
}

impl Returns {
    fn push(&self, number: u32) {
        let next = &self.next[number as usize];
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            next.store(head, Ordering::Relaxed);
            match self.head.compare_exchange_weak(head, number, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        // Either this sees that it is wanted, or the core, which looks after it has said so, sees what was pushed.
        if self.wanted.load(Ordering::SeqCst)
            && self.wanted.swap(false, Ordering::SeqCst)
            && let Some(bell) = &self.bell
            && bell.ring()
        {
            bell.sound_alarm();
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.returns.push(self.number);
    }
}

impl Loan {
    /// A part of the loan.
    ///
    /// # Panics
    /// If `range` is not inside.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Loan {
        assert!(range.start <= range.end && range.end <= self.length as usize, "{range:?} of {} bytes", self.length);
        Loan { lent: self.lent.clone(), start: self.start + small(range.start), length: small(range.end - range.start) }
    }
}

impl Deref for Loan {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the address and length are of a slice that its region keeps, unchanged, until the loan that this holds a part of came back.
        let whole = unsafe { std::slice::from_raw_parts(self.lent.address.as_ptr(), self.lent.length as usize) };
        &whole[self.start as usize..(self.start + self.length) as usize]
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Loan({} bytes, number {})", self.length, self.lent.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lent(region: &Region, bytes: &[u8]) -> Loan {
        let mut chunk = region.take(bytes.len()).unwrap();
        chunk.append(bytes);
        chunk.freeze().lend().unwrap()
    }

    #[test]
    fn lent_memory_is_free_when_the_last_clone_is_gone_on_any_thread() {
        let region = Region::map(16 << 20).unwrap();
        let all = region.free_bytes();
        let loan = lent(&region, b"abcdef");
        let part = loan.slice(1..5).slice(1..3);
        drop(loan);
        assert_eq!((region.free_bytes(), region.loans()), (all - 4096, 1));
        std::thread::spawn(move || assert_eq!(&*part, b"cd")).join().unwrap();
        assert_eq!(region.loans(), 1, "it was given back, and not collected");
        assert_eq!((region.free_bytes(), region.loans()), (all, 0));
    }

    #[test]
    fn as_many_loans_as_may_be_are_refused_until_one_comes_back() {
        let region = Region::map(16 << 20).unwrap();
        let mut chunk = region.take(4096).unwrap();
        chunk.append(b"x");
        let mut loans: Vec<Loan> = (0..LOANS_PER_CORE_MAX).map(|_| chunk.slice(0..1).lend().unwrap()).collect();
        let refused = chunk.slice(0..1).lend().unwrap_err();
        loans.pop();
        assert_eq!(&*refused.lend().unwrap(), b"x");
        drop((loans, chunk));
        assert_eq!(region.free_bytes(), region.bytes());
    }

    #[test]
    fn a_region_that_goes_first_stays_mapped() {
        let region = Region::map(16 << 20).unwrap();
        let loan = lent(&region, b"still here");
        drop(region);
        assert_eq!(&*loan, b"still here");
        // Nothing is out by the time this one goes, though nobody has collected: it is unmapped.
        let region = Region::map(16 << 20).unwrap();
        let inner = std::rc::Rc::downgrade(&region.0);
        drop(lent(&region, b"back"));
        drop(region);
        assert_eq!(inner.strong_count(), 0);
    }

    #[test]
    fn loans_come_back_from_many_threads_at_once_and_none_is_lost() {
        const THREADS: usize = 4;
        const ROUNDS: u32 = 20_000;
        let region = Region::map(16 << 20).unwrap();
        let all = region.free_bytes();
        let (senders, threads): (Vec<_>, Vec<_>) = (0..THREADS)
            .map(|_| {
                let (sender, receiver) = std::sync::mpsc::sync_channel::<(u32, Loan)>(64);
                let read = move || {
                    while let Ok((round, loan)) = receiver.recv() {
                        assert_eq!(*loan, [round.to_le_bytes(), round.to_le_bytes()].concat());
                    }
                };
                (sender, std::thread::spawn(read))
            })
            .unzip();
        for round in 0..ROUNDS {
            let loan = lent(&region, &[round.to_le_bytes(), round.to_le_bytes()].concat());
            for sender in &senders {
                sender.send((round, loan.clone())).unwrap();
            }
            region.collect();
        }
        drop(senders);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!((region.free_bytes(), region.loans()), (all, 0));
    }
}
