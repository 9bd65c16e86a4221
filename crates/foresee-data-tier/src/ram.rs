// SPDX-License-Identifier: Apache-2.0
//! Samples in memory: one slab per rank, filled and read on the caller's thread.
//!
//! Nothing here waits: a read is a `memcpy`, or no copy with [`RamTier::pin`]. The tier does not evict: a sample that
//! does not fit is [`ReadOutcome::Full`], and the planner selects victims.

mod cgroup;
mod memory_map;
mod pages;

pub use cgroup::memory_limit;

use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use foresee_units::{Bytes, Nanos, ReadOutcome};

use crate::completion::Completions;
use crate::op::{Detail, Done, Op, SampleKey, Ticket};
use crate::slab::{Pinned, Slab};
use crate::{Tier, TierFacts};
use memory_map::MemoryMap;
use pages::PageSizeChoice;

/// Every sample starts on a cache line.
const GRANULE: u64 = 64;

/// Up to this length a copy takes less time than a second lock.
const COPY_UNDER_LOCK: usize = 4096;

/// Samples in one slab of memory. Clones share it, and so may several data sets.
#[derive(Clone)]
pub struct RamTier {
    shared: Arc<RamMemory>,
    completions: Completions,
}

/// Why a slab cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RamError {
    /// The kernel refused the mapping.
    #[error("cannot map {capacity} of memory for the ram tier: {source}; lower `ram=`")]
    Map {
        /// The requested capacity.
        capacity: Bytes,
        /// The kernel's error.
        source: io::Error,
    },
}

/// A pinned sample: its bytes are unchanged while this value lives, even if the sample is dropped or replaced. The
/// slab's memory outlives its pins, even if the tier is dropped.
pub struct RamPin {
    shared: Arc<RamMemory>,
    pinned: Pinned,
}

struct RamMemory {
    map: MemoryMap,
    state: Mutex<RamState>,
}

struct RamState {
    slab: Slab,
    pages: PageSizeChoice,
    is_closed: bool,
}

impl RamTier {
    /// A sample's size is rounded up to a multiple of this.
    pub const GRANULE: Bytes = Bytes::new(GRANULE);

    /// Create a slab of `capacity`, rounded down to 64 bytes. Memory is allocated when samples are written.
    pub fn new(capacity: Bytes, completions: Completions) -> Result<Self, RamError> {
        let failed = |source| RamError::Map { capacity, source };
        let granules = capacity.get() / GRANULE;
        let len =
            usize::try_from(granules * GRANULE).map_err(|_| failed(io::ErrorKind::OutOfMemory.into()))?;
        let map = MemoryMap::new(len.max(1)).map_err(failed)?;
        let mut slab = Slab::new(|len| (len.div_ceil(GRANULE), 1));
        slab.extend(0, granules);
        let state = Mutex::new(RamState { slab, pages: PageSizeChoice::new(), is_closed: false });
        Ok(Self { shared: Arc::new(RamMemory { map, state }), completions })
    }

    /// Pin a sample; `None` if it is missing or the tier is closed. Takes the lock once.
    pub fn pin(&self, key: &SampleKey) -> Option<RamPin> {
        let mut state = self.shared.state();
        let pinned = if state.is_closed { None } else { state.slab.pin(key) }?;
        Some(RamPin { shared: Arc::clone(&self.shared), pinned })
    }

    /// Copy the whole sample to `dest`: `Ok`, `Absent`, `Cancelled` (closed), or `Corrupt` if its length differs from
    /// that of `dest`; the sample is then removed.
    pub fn read_into(&self, key: &SampleKey, dest: &mut [u8]) -> ReadOutcome {
        let whole = dest.len() as u64;
        self.shared.read(key, 0, dest, |len| len == whole)
    }

    /// Store a copy of `bytes`: `Ok`, `Cancelled` (closed) or `Full`. `Full` is temporary if
    /// [`RamTier::pinned_bytes`] is not zero.
    pub fn write_from(&self, key: &SampleKey, bytes: &[u8]) -> ReadOutcome {
        self.shared.write(key, bytes)
    }

    /// Remove the sample: `Ok`, `Absent` or `Cancelled` (closed). Its space is free once its last pin is dropped.
    pub fn drop_key(&self, key: &SampleKey) -> ReadOutcome {
        self.shared.remove(key)
    }

    /// Space of samples that are removed but still pinned: part of `used`, and free once the pins are dropped.
    pub fn pinned_bytes(&self) -> Bytes {
        Bytes::new(self.shared.state().slab.reclaimable() * GRANULE)
    }

    fn execute(&self, op: Op) -> (Ticket, ReadOutcome, u64) {
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
            Op::Drop { ticket, key } => (ticket, self.shared.remove(&key), 0),
        }
    }
}

impl Tier for RamTier {
    /// Completes before it returns; the `Done` is then in the queue.
    fn submit(&self, op: Op) {
        let began = Instant::now();
        let (ticket, outcome, moved) = self.execute(op);
        self.completions.push(Done {
            ticket,
            outcome,
            bytes: Bytes::new(moved),
            queued: Nanos::ZERO,
            service: began.elapsed().into(),
            detail: Detail::default(),
        });
    }

    /// No operation is ever in flight.
    fn cancel(&self, _ticket: Ticket) {}

    fn facts(&self) -> TierFacts {
        let state = self.shared.state();
        TierFacts {
            place: "ram".to_owned(),
            capacity: Bytes::new(state.slab.total() * GRANULE),
            used: Bytes::new(state.slab.used() * GRANULE),
            in_flight: 0,
        }
    }

    fn close(&self, _grace: Nanos) {
        self.shared.state().is_closed = true;
    }
}

impl fmt::Debug for RamTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RamTier").field("facts", &self.facts()).finish()
    }
}

impl Deref for RamPin {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is not filled again until the pin is dropped.
        unsafe { self.shared.bytes(self.pinned) }
    }
}

impl Drop for RamPin {
    fn drop(&mut self) {
        self.shared.state().slab.unpin(self.pinned.slot);
    }
}

impl fmt::Debug for RamPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RamPin").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl RamMemory {
    fn state(&self) -> MutexGuard<'_, RamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copy from `offset` if `fits` accepts the sample's length; otherwise remove the sample, whose length
    /// contradicts its key.
    fn read(&self, key: &SampleKey, offset: u64, dest: &mut [u8], fits: impl Fn(u64) -> bool) -> ReadOutcome {
        let mut state = self.state();
        if state.is_closed {
            return ReadOutcome::Cancelled;
        }
        let Some(pinned) = state.slab.pin(key) else { return ReadOutcome::Absent };
        if !fits(pinned.len) {
            state.slab.remove_slot(pinned.slot);
            state.slab.unpin(pinned.slot);
            return ReadOutcome::Corrupt;
        }
        let from = usize::try_from(offset).expect("inside the slab");
        if dest.len() <= COPY_UNDER_LOCK {
            // SAFETY: pinned, and therefore unchanged.
            dest.copy_from_slice(&unsafe { self.bytes(pinned) }[from..from + dest.len()]);
        } else {
            drop(state);
            // SAFETY: as above.
            dest.copy_from_slice(&unsafe { self.bytes(pinned) }[from..from + dest.len()]);
            state = self.state();
        }
        state.slab.unpin(pinned.slot);
        ReadOutcome::Ok
    }

    fn write(&self, key: &SampleKey, bytes: &[u8]) -> ReadOutcome {
        let mut state = self.state();
        if state.is_closed {
            return ReadOutcome::Cancelled;
        }
        if let Some(pinned) = state.slab.pin(key) {
            state.slab.unpin(pinned.slot);
            if pinned.len == bytes.len() as u64 {
                return ReadOutcome::Ok; // Equal keys mean equal bytes.
            }
        }
        let Some(pinned) = state.slab.allocate(*key, bytes.len() as u64) else { return ReadOutcome::Full };
        let began = self.prepare_pages(&mut state, pinned).then(thread_time);
        if bytes.len() > COPY_UNDER_LOCK {
            drop(state);
            // SAFETY: an allocated range is inside, exclusive, and not readable until it is published.
            unsafe { self.fill(pinned, bytes) };
            state = self.state();
        } else {
            // SAFETY: as above.
            unsafe { self.fill(pinned, bytes) };
        }
        if let Some(began) = began {
            state.pages.observe(bytes.len(), thread_time().saturating_sub(began));
        }
        state.slab.publish(pinned.slot);
        state.slab.unpin(pinned.slot);
        ReadOutcome::Ok
    }

    /// Set the page size of memory that is filled for the first time; return whether this range contains such memory.
    fn prepare_pages(&self, state: &mut RamState, pinned: Pinned) -> bool {
        let (at, len) = range_of(pinned);
        let entry = state.pages.prepare(&(at..at + len), self.map.len());
        if let Some((range, size)) = entry.advise {
            self.map.advise(&range, size);
        }
        entry.is_fresh
    }

    fn remove(&self, key: &SampleKey) -> ReadOutcome {
        let mut state = self.state();
        if state.is_closed {
            ReadOutcome::Cancelled
        } else if state.slab.remove(key) {
            ReadOutcome::Ok
        } else {
            ReadOutcome::Absent
        }
    }

    /// # Safety
    /// `pinned` is pinned and published for as long as the slice lives.
    unsafe fn bytes(&self, pinned: Pinned) -> &[u8] {
        let (at, len) = range_of(pinned);
        // SAFETY: the slab only allocates ranges inside the map; no code fills a published one.
        unsafe { self.map.bytes(at, len) }
    }

    /// # Safety
    /// `pinned` is allocated, not yet published, and only filled by this call.
    unsafe fn fill(&self, pinned: Pinned, bytes: &[u8]) {
        // SAFETY: inside, as above; not readable before it is published.
        unsafe { self.map.fill(range_of(pinned).0, bytes) }
    }
}

/// CPU time of this thread, including page faults, without the time in which it did not run.
fn thread_time() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let nanos = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
    Nanos::new(u64::try_from(nanos).unwrap_or(0))
}

/// Start and length in bytes; a sample without bytes has start 0.
fn range_of(pinned: Pinned) -> (usize, usize) {
    let bytes = |value: u64| usize::try_from(value).expect("inside the slab, whose length is a usize");
    (bytes(pinned.at * GRANULE), bytes(pinned.len))
}

#[cfg(test)]
mod tests;
