// SPDX-License-Identifier: Apache-2.0
//! Samples in memory: one slab per rank, filled and read on the caller's thread.
//!
//! Owns the slab's bytes, their book-keeping and the pins that let a reader use them in place. Unlike in other tiers,
//! nothing here waits: a read is a `memcpy`, or no copy at all with [`RamTier::pin`]. The tier does not evict: a sample
//! that does not fit is [`ReadOutcome::Full`], and the planner decides what leaves.

mod cgroup;
mod memory_map;
mod pages;

pub use cgroup::memory_limit;

use std::fmt;
use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use foresee_units::{Bytes, Nanos, ReadOutcome};

use crate::completion::Completions;
use crate::memory::{Keeper, Payload};
use crate::op::{Detail, Done, Op, SampleKey, Ticket};
use crate::slab::{Pinned, Slab};
use crate::{Tier, TierFacts};
use memory_map::MemoryMap;
use pages::Pages;

/// Every sample starts on a cache line.
const GRANULE: u64 = 64;

/// Up to here a copy is shorter than taking the lock a second time.
const COPY_UNDER_LOCK: usize = 4096;

/// Samples in one slab of memory. Clones share it; several data sets may.
#[derive(Clone)]
pub struct RamTier {
    shared: Arc<Shared>,
    completions: Completions,
}

/// Why there is no slab.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RamError {
    /// The kernel refused the mapping.
    #[error("cannot map {capacity} of memory for the ram tier: {source}; lower `ram=`")]
    Map {
        /// What was asked for.
        capacity: Bytes,
        /// The kernel's reason.
        source: io::Error,
    },
}

/// A sample held in place: its bytes, unchanging as long as this lives, also when the sample is forgotten
/// or replaced meanwhile. The slab's memory outlives its pins, whatever happens to the tier.
pub struct RamPin {
    shared: Arc<Shared>,
    pinned: Pinned,
}

struct Shared {
    map: MemoryMap,
    books: Mutex<Books>,
}

struct Books {
    slab: Slab,
    pages: Pages,
    closed: bool,
}

impl RamTier {
    /// A sample takes its size rounded up to a multiple of this.
    pub const GRANULE: Bytes = Bytes::new(GRANULE);

    /// A slab of `capacity`, rounded down to 64 bytes. Memory is used as samples come, not now.
    pub fn new(capacity: Bytes, completions: Completions) -> Result<Self, RamError> {
        let failed = |source| RamError::Map { capacity, source };
        let granules = capacity.get() / GRANULE;
        let len =
            usize::try_from(granules * GRANULE).map_err(|_| failed(io::ErrorKind::OutOfMemory.into()))?;
        let map = MemoryMap::new(len.max(1)).map_err(failed)?;
        let mut slab = Slab::new(|len| (len.div_ceil(GRANULE), 1));
        slab.extend(0, granules);
        let books = Mutex::new(Books { slab, pages: Pages::new(), closed: false });
        Ok(Self { shared: Arc::new(Shared { map, books }), completions })
    }

    /// The sample in place, or `None` if it is not here (or the tier is closed). Takes the lock once.
    pub fn pin(&self, key: &SampleKey) -> Option<RamPin> {
        let pinned = self.shared.books().pin(key)?;
        Some(RamPin::new(&self.shared, pinned))
    }

    /// [`RamTier::pin`] for a whole batch under one lock; one answer per key, in order, at the end of `into`.
    pub fn pin_many(&self, keys: &[SampleKey], into: &mut Vec<Option<RamPin>>) {
        let mut books = self.shared.books();
        into.extend(keys.iter().map(|key| books.pin(key).map(|pinned| RamPin::new(&self.shared, pinned))));
    }

    /// Copies the whole sample to `dest`: `Ok`, `Absent`, `Cancelled` (closed), or `Corrupt` if it is not as
    /// long as `dest`; then it has been dropped.
    pub fn read_into(&self, key: &SampleKey, dest: &mut [u8]) -> ReadOutcome {
        let whole = dest.len() as u64;
        self.shared.read(key, 0, dest, |len| len == whole)
    }

    /// Keeps a copy of `bytes`: `Ok`, `Cancelled` (closed) or `Full`. `Full` may pass without anything being
    /// dropped, namely when [`RamTier::held_by_pins`] is not zero.
    pub fn write_from(&self, key: &SampleKey, bytes: &[u8]) -> ReadOutcome {
        self.shared.write(key, bytes)
    }

    /// Forgets the sample: `Ok`, `Absent` or `Cancelled` (closed). It cannot be found any more at once; its
    /// room is free with its last pin.
    pub fn drop_key(&self, key: &SampleKey) -> ReadOutcome {
        self.shared.forget(key)
    }

    /// Room of samples that are forgotten but pinned: part of `used`, free when the pins go.
    pub fn held_by_pins(&self) -> Bytes {
        Bytes::new(self.shared.books().slab.lingering() * GRANULE)
    }

    /// The share of the free room that its longest stretch cannot serve: 0 in one piece, towards 1 in crumbs.
    pub fn fragmentation(&self) -> f64 {
        self.shared.books().slab.fragmentation()
    }

    /// How many samples are held.
    pub fn samples(&self) -> u64 {
        self.shared.books().slab.samples()
    }

    /// Memory of the tables beside the slab, about 50 bytes per sample held.
    pub fn table_bytes(&self) -> Bytes {
        Bytes::new(self.shared.books().slab.memory() as u64)
    }

    fn carry_out(&self, op: Op) -> (Ticket, ReadOutcome, u64) {
        match op {
            Op::Read { ticket, key, offset, mut dest } => {
                let end = offset.checked_add(dest.len() as u64);
                let fits = |len| end.is_some_and(|end| end <= len);
                let outcome = self.shared.read(&key, offset, dest.as_mut_slice(), fits);
                let moved = if outcome == ReadOutcome::Ok { dest.len() as u64 } else { 0 };
                (ticket, outcome, moved)
            }
            Op::Write { ticket, key, payload } => {
                let outcome = self.shared.write(&key, payload.as_slice());
                let moved = if outcome == ReadOutcome::Ok { payload.as_slice().len() as u64 } else { 0 };
                (ticket, outcome, moved)
            }
            Op::Drop { ticket, key } => (ticket, self.shared.forget(&key), 0),
        }
    }
}

impl Tier for RamTier {
    /// Complete when it returns; its `Done` is on the queue by then.
    fn submit(&self, op: Op) {
        let began = Instant::now();
        let (ticket, outcome, moved) = self.carry_out(op);
        self.completions.push(Done {
            ticket,
            outcome,
            bytes: Bytes::new(moved),
            queued: Nanos::ZERO,
            service: began.elapsed().into(),
            detail: Detail::default(),
        });
    }

    /// Nothing is ever under way here.
    fn cancel(&self, _ticket: Ticket) {}

    fn facts(&self) -> TierFacts {
        let books = self.shared.books();
        TierFacts {
            place: "ram".to_owned(),
            capacity: Bytes::new(books.slab.total() * GRANULE),
            used: Bytes::new(books.slab.used() * GRANULE),
            in_flight: 0,
        }
    }

    fn close(&self, _grace: Nanos) {
        self.shared.books().closed = true;
    }
}

impl fmt::Debug for RamTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RamTier").field("facts", &self.facts()).finish()
    }
}

impl RamPin {
    fn new(shared: &Arc<Shared>, pinned: Pinned) -> Self {
        Self { shared: Arc::clone(shared), pinned }
    }

    /// The sample as something to be written elsewhere, without a copy.
    pub fn into_payload(self) -> Payload {
        let bytes = NonNull::from(&*self);
        let keeper: Keeper = Arc::new(self);
        // SAFETY: the keeper is the pin, and pinned bytes stay where and what they are.
        unsafe { Payload::new(bytes.cast(), bytes.len(), keeper) }
    }
}

impl Deref for RamPin {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the pin keeps the range from being filled anew until it is dropped.
        unsafe { self.shared.bytes(self.pinned) }
    }
}

impl Drop for RamPin {
    fn drop(&mut self) {
        self.shared.books().slab.unpin(self.pinned.slot);
    }
}

impl fmt::Debug for RamPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RamPin").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Books {
    fn pin(&mut self, key: &SampleKey) -> Option<Pinned> {
        if self.closed { None } else { self.slab.pin(key) }
    }
}

impl Shared {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies from `offset` on if the sample's length `fits`, else drops it: its length is not its key's.
    fn read(&self, key: &SampleKey, offset: u64, dest: &mut [u8], fits: impl Fn(u64) -> bool) -> ReadOutcome {
        let mut books = self.books();
        if books.closed {
            return ReadOutcome::Cancelled;
        }
        let Some(pinned) = books.slab.pin(key) else { return ReadOutcome::Absent };
        if !fits(pinned.len) {
            books.slab.forget_slot(pinned.slot);
            books.slab.unpin(pinned.slot);
            return ReadOutcome::Corrupt;
        }
        let from = usize::try_from(offset).expect("inside the slab");
        if dest.len() <= COPY_UNDER_LOCK {
            // SAFETY: pinned, hence unchanging.
            dest.copy_from_slice(&unsafe { self.bytes(pinned) }[from..from + dest.len()]);
        } else {
            drop(books);
            // SAFETY: as above.
            dest.copy_from_slice(&unsafe { self.bytes(pinned) }[from..from + dest.len()]);
            books = self.books();
        }
        books.slab.unpin(pinned.slot);
        ReadOutcome::Ok
    }

    fn write(&self, key: &SampleKey, bytes: &[u8]) -> ReadOutcome {
        let mut books = self.books();
        if books.closed {
            return ReadOutcome::Cancelled;
        }
        if let Some(pinned) = books.slab.pin(key) {
            books.slab.unpin(pinned.slot);
            if pinned.len == bytes.len() as u64 {
                return ReadOutcome::Ok; // Equal keys mean equal bytes.
            }
        }
        let Some(pinned) = books.slab.place(*key, bytes.len() as u64) else { return ReadOutcome::Full };
        let began = self.enter_pages(&mut books, pinned).then(thread_time);
        if bytes.len() > COPY_UNDER_LOCK {
            drop(books);
            // SAFETY: a placed range is inside, taken by nobody else, and unseen until it is published.
            unsafe { self.fill(pinned, bytes) };
            books = self.books();
        } else {
            // SAFETY: as above.
            unsafe { self.fill(pinned, bytes) };
        }
        if let Some(began) = began {
            books.pages.observe(bytes.len(), thread_time().saturating_sub(began));
        }
        books.slab.publish(pinned.slot);
        books.slab.unpin(pinned.slot);
        ReadOutcome::Ok
    }

    /// Gives memory that is filled for the first time its kind of pages; whether some of this is.
    fn enter_pages(&self, books: &mut Books, pinned: Pinned) -> bool {
        let (at, len) = range_of(pinned);
        let entry = books.pages.enter(&(at..at + len), self.map.len());
        if let Some((range, kind)) = entry.advise {
            self.map.advise(&range, kind);
        }
        entry.is_fresh
    }

    fn forget(&self, key: &SampleKey) -> ReadOutcome {
        let mut books = self.books();
        if books.closed {
            ReadOutcome::Cancelled
        } else if books.slab.forget(key) {
            ReadOutcome::Ok
        } else {
            ReadOutcome::Absent
        }
    }

    /// # Safety
    /// `pinned` is pinned and published for as long as the slice lives.
    unsafe fn bytes(&self, pinned: Pinned) -> &[u8] {
        let (at, len) = range_of(pinned);
        // SAFETY: the slab gives out ranges inside the map only; nobody fills a published one.
        unsafe { self.map.bytes(at, len) }
    }

    /// # Safety
    /// `pinned` is placed, not yet published, and this is the only filler.
    unsafe fn fill(&self, pinned: Pinned, bytes: &[u8]) {
        // SAFETY: inside, as above; seen by nobody before it is published.
        unsafe { self.map.fill(range_of(pinned).0, bytes) }
    }
}

/// What this thread has computed so far, page faults included: not how long it was kept from it.
fn thread_time() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let nanos = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
    Nanos::new(u64::try_from(nanos).unwrap_or(0))
}

/// In bytes; a sample of none lies at the start.
fn range_of(pinned: Pinned) -> (usize, usize) {
    let bytes = |value: u64| usize::try_from(value).expect("inside the slab, whose length is a usize");
    (bytes(pinned.at * GRANULE), bytes(pinned.len))
}

#[cfg(test)]
mod tests;
