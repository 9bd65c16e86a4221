// SPDX-License-Identifier: Apache-2.0
//! The bytes of cached samples: in private memory, or in memory that worker processes copy from.

use std::fmt;
use std::sync::Arc;

use foresee_data_node::{
    LENGTH_BYTES, LocationTable, NodeError, SAMPLE_ALIGN, SampleCachePeer, SlabMemory, SlabOptions,
};
use foresee_data_plan::EntryId;
use foresee_units::{Bytes, SampleId};
use rustc_hash::FxHashMap;

use crate::node::{PublicEntry, SlabPlaces};
use crate::origin_reads::ReadMemory as _;

/// Bytes of all cached samples.
#[derive(Debug)]
pub(super) enum SampleStore {
    /// Of this process alone.
    Private(FxHashMap<SampleId, Arc<[u8]>>),
    /// In a slab, with a table of locations.
    Shared(SharedStore),
}

/// Samples in a slab, each after its length.
pub(super) struct SharedStore {
    slab: Arc<SlabMemory>,
    places: SlabPlaces,
    table: LocationTable,
    /// Bytes of each sample in the slab, with its length.
    lengths: FxHashMap<SampleId, Bytes>,
}

/// Bytes that a sample of `len` bytes occupies in a cache.
pub(super) fn footprint(len: usize) -> Bytes {
    let stored = (len + LENGTH_BYTES) as u64;
    Bytes::new(stored.next_multiple_of(SAMPLE_ALIGN))
}

impl SampleStore {
    /// A copy of the bytes of a sample; `None` without the sample.
    pub(super) fn get(&self, sample: SampleId) -> Option<Arc<[u8]>> {
        match self {
            Self::Private(samples) => samples.get(&sample).cloned(),
            Self::Shared(store) => {
                let payload = store.places.payload(entry(sample), *store.lengths.get(&sample)?)?;
                Some(payload.as_slice()[LENGTH_BYTES..].into())
            }
        }
    }

    /// Insert a sample that is not there; `false` if the memory has no contiguous place for it.
    pub(super) fn insert(&mut self, sample: SampleId, bytes: &[u8]) -> bool {
        match self {
            Self::Private(samples) => {
                samples.insert(sample, bytes.into());
                true
            }
            Self::Shared(store) => store.insert(sample, bytes),
        }
    }

    /// Remove a sample.
    pub(super) fn remove(&mut self, sample: SampleId) {
        match self {
            Self::Private(samples) => drop(samples.remove(&sample)),
            Self::Shared(store) => {
                if let Some(len) = store.lengths.remove(&sample) {
                    store.places.release(entry(sample), PublicEntry { table: &store.table, sample }, len);
                }
            }
        }
    }

    /// Move all samples into memory of `capacity` that worker processes can map, for a dataset of `count` samples.
    ///
    /// # Errors
    /// The system refuses the memory: the samples stay where they are.
    pub(super) fn share(&mut self, count: u64, capacity: Bytes) -> Result<(), NodeError> {
        let Self::Private(samples) = self else { return Ok(()) };
        let data = Bytes::new(capacity.get().max(1).next_multiple_of(SAMPLE_ALIGN));
        let slab = Arc::new(SlabMemory::create(&SlabOptions { data, available: None, huge_pages: false })?);
        let mut places = SlabPlaces::new(Arc::clone(&slab));
        places.add_entries(usize::try_from(count).expect("samples of a Python dataset"));
        let table = LocationTable::create(count)?;
        let mut store = SharedStore { slab, places, table, lengths: FxHashMap::default() };
        for (&sample, bytes) in samples.iter() {
            if !store.insert(sample, bytes) {
                return Err(NodeError::NoMemory {
                    bytes: capacity,
                    why: std::io::ErrorKind::OutOfMemory.into(),
                });
            }
        }
        *self = Self::Shared(store);
        Ok(())
    }

    /// Let a worker process map the memory.
    ///
    /// # Errors
    /// As [`SampleCachePeer::accept`].
    pub(super) fn accept(&self, peer: &SampleCachePeer) -> Result<(), NodeError> {
        match self {
            Self::Private(_) => unreachable!("the host starts after the memory is shared"),
            Self::Shared(store) => peer.accept(&store.slab, &store.table),
        }
    }
}

impl SharedStore {
    fn insert(&mut self, sample: SampleId, bytes: &[u8]) -> bool {
        let len = Bytes::new((LENGTH_BYTES + bytes.len()) as u64);
        // A system that refuses memory is treated as a cache without space.
        let Ok(Some(range)) = self.places.allocate(entry(sample), len) else { return false };
        // SAFETY: the range is of this sample alone, which is not published yet.
        let mut dest = unsafe { range.dest() };
        let (length, data) = dest.as_mut_slice().split_at_mut(LENGTH_BYTES);
        length.copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        data.copy_from_slice(bytes);
        self.lengths.insert(sample, len);
        self.places.publish(entry(sample), PublicEntry { table: &self.table, sample });
        true
    }
}

impl fmt::Debug for SharedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedStore").field("samples", &self.lengths.len()).finish_non_exhaustive()
    }
}

fn entry(sample: SampleId) -> EntryId {
    EntryId(u32::try_from(sample.0).expect("ids of a planned sample fit"))
}
