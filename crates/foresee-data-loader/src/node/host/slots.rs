// SPDX-License-Identifier: Apache-2.0
//! The place of each entry in the slab: its slot, its bytes, and their generation.
//!
//! The generation of a slot is raised when its entry leaves, before its bytes are given to another one. So a consumer
//! that still copies them discards what it copied.

use std::sync::Arc;

use foresee_data_node::{NodeError, SlabMemory};
use foresee_data_plan::{EntryId, hint};
use foresee_data_tier::{Dest, Extents, MemoryOwner, Payload};
use foresee_units::Bytes;

use crate::errors::LoaderError;
use crate::origin_reads::ReadMemory;

/// Every entry starts on a cache line.
pub(super) const GRANULE: u64 = 64;
const NO_SLOT: u32 = u32::MAX;

/// Entries in the slab.
#[derive(Debug)]
pub(super) struct SlabSlots {
    slab: Arc<SlabMemory>,
    /// Free granules.
    extents: Extents,
    /// Slots without an entry that were used before; those from `fresh` on never were.
    vacant: Vec<u32>,
    fresh: u32,
    /// By entry.
    places: Vec<SlotAt>,
}

/// The slot of an entry, and its first byte.
#[derive(Clone, Copy, Debug)]
struct SlotAt {
    slot: u32,
    offset: u64,
}

const NO_PLACE: SlotAt = SlotAt { slot: NO_SLOT, offset: 0 };

/// The bytes of an entry in the slab, which one reader of a source fills.
#[derive(Clone, Debug)]
pub(super) struct SlabRange {
    slab: Arc<SlabMemory>,
    offset: u64,
    len: u64,
}

/// Where consumers find an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryPlace {
    pub(super) slot: u32,
    pub(super) generation: u64,
    pub(super) offset: u64,
}

impl SlabSlots {
    pub(super) fn new(slab: Arc<SlabMemory>) -> Self {
        let mut extents = Extents::default();
        extents.release(0, slab.data_bytes().get() / GRANULE);
        Self { slab, extents, vacant: Vec::new(), fresh: 0, places: Vec::new() }
    }

    /// Add `count` entries without a place.
    pub(super) fn add_entries(&mut self, count: usize) {
        self.places.resize(self.places.len() + count, NO_PLACE);
    }

    /// Give `len` bytes to an entry that has no place; `None` while no free range is long enough, or no slot is free.
    ///
    /// # Errors
    /// [`NodeError::NoMemory`]: the system refuses memory that was never used before. Nothing has changed.
    pub(super) fn allocate(&mut self, entry: EntryId, len: Bytes) -> Result<Option<SlabRange>, NodeError> {
        let granules = len.get().div_ceil(GRANULE);
        let has_slot =
            !self.vacant.is_empty() || u64::from(self.fresh) < self.slab.slots().min(u64::from(NO_SLOT));
        if !has_slot {
            return Ok(None);
        }
        let start = match granules {
            0 => 0,
            _ => match self.extents.allocate(granules, 1) {
                Some(start) => start,
                None => return Ok(None),
            },
        };
        let offset = start * GRANULE;
        let committed = match self.vacant.last() {
            Some(_) => Ok(()),
            None => self.slab.commit_slot(self.fresh.into()),
        };
        if let Err(error) = committed.and_then(|()| self.slab.commit(offset..offset + len.get())) {
            self.extents.release(start, granules);
            return Err(error);
        }
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.fresh += 1;
            self.fresh - 1
        });
        let place = &mut self.places[entry.0 as usize];
        assert_eq!(place.slot, NO_SLOT, "entry {} has a place already", entry.0);
        *place = SlotAt { slot, offset };
        Ok(Some(SlabRange { slab: Arc::clone(&self.slab), offset, len: len.get() }))
    }

    /// Take the place of an entry of `len` bytes back. Nothing may write to it any more.
    pub(super) fn release(&mut self, entry: EntryId, len: Bytes) {
        let place = &mut self.places[entry.0 as usize];
        let SlotAt { slot, offset } = std::mem::replace(place, NO_PLACE);
        if slot == NO_SLOT {
            return;
        }
        self.slab.invalidate(slot.into()).expect("the slot is in the slab of this process");
        self.extents.release(offset / GRANULE, len.get().div_ceil(GRANULE));
        self.vacant.push(slot);
    }

    /// [`place`](Self::place) follows soon.
    pub(super) fn prefetch(&self, entry: EntryId) {
        hint::prefetch(&self.places, entry.0 as usize);
    }

    /// The place of an entry, if it has one.
    pub(super) fn place(&self, entry: EntryId) -> Option<EntryPlace> {
        let SlotAt { slot, offset } = self.places[entry.0 as usize];
        if slot == NO_SLOT {
            return None;
        }
        let generation = self.slab.generation(slot.into()).expect("the slot is in the slab of this process");
        Some(EntryPlace { slot, generation, offset })
    }

    /// The bytes of an entry of `len` bytes that has a place and is complete, to be stored. They do not change while the
    /// entry keeps its place.
    pub(super) fn payload(&self, entry: EntryId, len: Bytes) -> Option<Payload> {
        let offset = self.place(entry)?.offset;
        let range = SlabRange { slab: Arc::clone(&self.slab), offset, len: len.get() };
        let data = range.data();
        // SAFETY: inside the mapping, which the owner keeps; the planner keeps an entry that is being stored in its
        // place, and nothing writes to a complete entry.
        Some(unsafe { Payload::new(data, range.size(), range.slab as MemoryOwner) })
    }

    /// Bytes of memory that the slab has taken from the system.
    pub(super) fn committed(&self) -> Bytes {
        self.slab.committed_bytes()
    }
}

impl ReadMemory for SlabRange {
    /// The slab is mapped, and the range was allocated.
    fn ensure_mapped(&self) -> Result<(), LoaderError> {
        Ok(())
    }

    unsafe fn dest(&self) -> Dest {
        // SAFETY: inside the mapping, which the owner keeps, and exclusive by the caller's contract. Consumers only read
        // it, in other processes.
        unsafe { Dest::new(self.data(), self.size(), Arc::clone(&self.slab) as MemoryOwner) }
    }
}

impl SlabRange {
    fn data(&self) -> std::ptr::NonNull<u8> {
        let data = self.slab.data(self.offset..self.offset + self.len);
        data.expect("the range was allocated in this process").cast()
    }

    fn size(&self) -> usize {
        usize::try_from(self.len).expect("the slab is mapped")
    }
}

#[cfg(test)]
mod tests {
    use foresee_data_node::SlabOptions;

    use super::*;

    fn slots(slots: u64, data: u64) -> SlabSlots {
        let options = SlabOptions { slots, data: Bytes::new(data), available: None, huge_pages: false };
        let mut slots = SlabSlots::new(Arc::new(SlabMemory::create(&options).expect("memory")));
        slots.add_entries(10);
        slots
    }

    #[test]
    fn a_place_is_used_again_under_another_generation() {
        let mut slots = slots(4, 1 << 20);
        let (first, second, len) = (EntryId(3), EntryId(7), Bytes::new(100));
        let range = slots.allocate(first, len).expect("memory").expect("space");
        // SAFETY: nothing else uses the range.
        unsafe { range.dest() }.as_mut_slice().fill(5);
        let before = slots.place(first).expect("a place");
        assert_eq!(slots.payload(first, len).expect("a place").as_slice(), [5; 100]);
        slots.release(first, len);
        assert_eq!((slots.place(first), slots.payload(first, len).is_none()), (None, true));
        slots.allocate(second, len).expect("memory").expect("space");
        let after = slots.place(second).expect("a place");
        assert_eq!((after.slot, after.offset), (before.slot, before.offset));
        assert!(after.generation > before.generation);
    }

    #[test]
    fn neither_slots_nor_bytes_are_given_twice() {
        let mut few = slots(2, 1 << 20);
        for id in 0..2 {
            few.allocate(EntryId(id), Bytes::new(64)).expect("memory").expect("a slot");
        }
        assert!(few.allocate(EntryId(2), Bytes::new(64)).expect("memory").is_none(), "no slot is left");
        let mut small = slots(10, 128);
        small.allocate(EntryId(0), Bytes::new(65)).expect("memory").expect("space");
        assert!(small.allocate(EntryId(1), Bytes::new(1)).expect("memory").is_none(), "no granule is left");
        small.allocate(EntryId(2), Bytes::ZERO).expect("memory").expect("an empty entry needs no bytes");
        small.release(EntryId(0), Bytes::new(65));
        small.allocate(EntryId(1), Bytes::new(128)).expect("memory").expect("space");
    }
}
