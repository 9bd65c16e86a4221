// SPDX-License-Identifier: Apache-2.0
//! The place of each entry in the slab, and when consumers may know it.
//!
//! An entry is published in the table of its data set when it is answered for the first time, so that the consumer that
//! causes a read is the one for which it counts. It is withdrawn before its bytes are given to another entry: a consumer
//! that still copies them discards what it copied.

use std::sync::Arc;

use foresee_data_node::{LocationTable, NodeError, SAMPLE_ALIGN, SlabLocation, SlabMemory};
use foresee_data_plan::{EntryId, hint};
use foresee_data_tier::{Dest, Extents, MemoryOwner, Payload};
use foresee_units::{Bytes, SampleId};

use crate::errors::LoaderError;
use crate::origin_reads::ReadMemory;

/// The offset of an entry that is not in the slab.
const NO_PLACE: u64 = u64::MAX;

/// Entries in the slab.
#[derive(Debug)]
pub(crate) struct SlabPlaces {
    slab: Arc<SlabMemory>,
    /// Free units of [`SAMPLE_ALIGN`] bytes.
    extents: Extents,
    /// The first byte of each entry, or [`NO_PLACE`].
    offsets: Vec<u64>,
}

/// The bytes of an entry in the slab, which one reader of a source fills.
#[derive(Clone, Debug)]
pub(crate) struct SlabRange {
    slab: Arc<SlabMemory>,
    offset: u64,
    len: u64,
}

/// An entry as its consumers know it: a sample of a data set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PublicEntry<'a> {
    pub(crate) table: &'a LocationTable,
    pub(crate) sample: SampleId,
}

impl SlabPlaces {
    pub(crate) fn new(slab: Arc<SlabMemory>) -> Self {
        let mut extents = Extents::default();
        extents.release(0, slab.data_bytes().get() / SAMPLE_ALIGN);
        Self { slab, extents, offsets: Vec::new() }
    }

    /// Add `count` entries without a place.
    pub(crate) fn add_entries(&mut self, count: usize) {
        self.offsets.resize(self.offsets.len() + count, NO_PLACE);
    }

    /// Give `len` bytes to an entry that has no place; `None` while no free range is long enough.
    ///
    /// # Errors
    /// [`NodeError::NoMemory`]: the system refuses memory that was never used before. Nothing has changed.
    pub(crate) fn allocate(&mut self, entry: EntryId, len: Bytes) -> Result<Option<SlabRange>, NodeError> {
        let units = len.get().div_ceil(SAMPLE_ALIGN);
        let start = match units {
            0 => 0,
            _ => match self.extents.allocate(units, 1) {
                Some(start) => start,
                None => return Ok(None),
            },
        };
        let offset = start * SAMPLE_ALIGN;
        if let Err(error) = self.slab.commit(offset..offset + len.get()) {
            self.extents.release(start, units);
            return Err(error);
        }
        let place = &mut self.offsets[entry.0 as usize];
        assert_eq!(*place, NO_PLACE, "entry {} has a place already", entry.0);
        *place = offset;
        Ok(Some(SlabRange { slab: Arc::clone(&self.slab), offset, len: len.get() }))
    }

    /// Take the place of an entry of `len` bytes back. Nothing may write to it any more.
    pub(crate) fn release(&mut self, entry: EntryId, public: PublicEntry<'_>, len: Bytes) {
        let offset = std::mem::replace(&mut self.offsets[entry.0 as usize], NO_PLACE);
        if offset == NO_PLACE {
            return;
        }
        public.table.withdraw(public.sample).expect("the table is of this process and has the sample");
        self.extents.release(offset / SAMPLE_ALIGN, len.get().div_ceil(SAMPLE_ALIGN));
    }

    /// [`publish`](Self::publish) follows soon.
    pub(crate) fn prefetch(&self, entry: EntryId) {
        hint::prefetch(&self.offsets, entry.0 as usize);
    }

    /// Let consumers find an entry that is complete, and return its location; `None` if it has no place.
    pub(crate) fn publish(&self, entry: EntryId, public: PublicEntry<'_>) -> Option<SlabLocation> {
        let PublicEntry { table, sample } = public;
        let offset = self.offsets[entry.0 as usize];
        if offset == NO_PLACE {
            return None;
        }
        let known = table.get(sample).expect("the table is of this process and has the sample");
        let location = if known.is_valid() { Ok(known) } else { table.publish(sample, offset) };
        Some(location.expect("as above"))
    }

    /// The bytes of an entry of `len` bytes that has a place and is complete, to be stored. They do not change while the
    /// entry keeps its place.
    pub(crate) fn payload(&self, entry: EntryId, len: Bytes) -> Option<Payload> {
        let offset = self.offsets[entry.0 as usize];
        if offset == NO_PLACE {
            return None;
        }
        let range = SlabRange { slab: Arc::clone(&self.slab), offset, len: len.get() };
        let data = range.data();
        // SAFETY: inside the mapping, which the owner keeps; the planner keeps an entry that is being stored in its
        // place, and nothing writes to a complete entry.
        Some(unsafe { Payload::new(data, range.size(), range.slab as MemoryOwner) })
    }

    /// Bytes of memory that the slab has taken from the system.
    pub(crate) fn committed(&self) -> Bytes {
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

    fn places(data: u64) -> SlabPlaces {
        let options = SlabOptions { data: Bytes::new(data), available: None, huge_pages: false };
        let mut places = SlabPlaces::new(Arc::new(SlabMemory::create(&options).expect("memory")));
        places.add_entries(10);
        places
    }

    #[test]
    fn a_place_is_used_again_and_its_first_entry_is_withdrawn() {
        let (mut places, table) = (places(1 << 20), LocationTable::create(10).expect("memory"));
        let public = |sample| PublicEntry { table: &table, sample: SampleId(sample) };
        let (first, second, len) = (EntryId(3), EntryId(7), Bytes::new(100));
        assert_eq!(places.publish(first, public(3)), None);
        let range = places.allocate(first, len).expect("memory").expect("space");
        // SAFETY: nothing else uses the range.
        unsafe { range.dest() }.as_mut_slice().fill(5);
        assert!(!table.get(SampleId(3)).expect("a sample").is_valid(), "it is not answered yet");
        let before = places.publish(first, public(3)).expect("a place");
        assert_eq!(places.publish(first, public(3)), Some(before), "it stays where it is");
        assert_eq!(places.payload(first, len).expect("a place").as_slice(), [5; 100]);
        places.release(first, public(3), len);
        assert!(!table.get(SampleId(3)).expect("a sample").is_valid());
        assert_eq!((places.publish(first, public(3)), places.payload(first, len).is_none()), (None, true));
        places.allocate(second, len).expect("memory").expect("space");
        let after = places.publish(second, public(7)).expect("a place");
        assert_eq!((after.offset(), table.get(SampleId(7)).expect("a sample")), (before.offset(), after));
    }

    #[test]
    fn no_bytes_are_given_twice() {
        let (mut places, table) = (places(128), LocationTable::create(10).expect("memory"));
        places.allocate(EntryId(0), Bytes::new(65)).expect("memory").expect("space");
        assert!(places.allocate(EntryId(1), Bytes::new(1)).expect("memory").is_none(), "no unit is left");
        places.allocate(EntryId(2), Bytes::ZERO).expect("memory").expect("an empty entry needs no bytes");
        places.release(EntryId(0), PublicEntry { table: &table, sample: SampleId(0) }, Bytes::new(65));
        places.allocate(EntryId(1), Bytes::new(128)).expect("memory").expect("space");
    }
}
