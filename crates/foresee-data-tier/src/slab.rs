// SPDX-License-Identifier: Apache-2.0
//! Entries of one address space and their pins: the bookkeeping of RAM and disk.
//!
//! Space is free once its sample is removed *and* its last pin is dropped, so that no reader sees another sample's
//! bytes, in memory or in a file. The slab does not contain the bytes, takes no lock and does no I/O.

mod extents;
mod slot_table;

use foresee_units::SampleId;

use crate::op::{SampleKey, TagHash};
pub use extents::Extents;
use slot_table::{SetNumber, SlotTable};

/// The size of a sample of `len` bytes in granules, and the alignment of its start.
pub(crate) type Layout = fn(len: u64) -> (u64, u64);

/// Samples in an address space counted in granules.
#[derive(Debug)]
pub(crate) struct Slab {
    extents: Extents,
    table: SlotTable,
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    layout: Layout,
    total: u64,
    /// Granules of samples that are removed but still pinned.
    reclaimable: u64,
}

/// A sample's number while it is entries or pinned; reused afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotId(u32);

/// A sample's position, pinned for the caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pinned {
    pub(crate) slot: SlotId,
    /// First granule; without meaning if the sample has no granules.
    pub(crate) at: u64,
    /// Bytes.
    pub(crate) len: u64,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    id: SampleId,
    tag: TagHash,
    at: u64,
    len: u64,
    pins: u32,
    set: SetNumber,
    state: SlotState,
    /// Whether its granules may be reused; a position on a disk can turn out to be unusable.
    is_usable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    /// Its bytes are being written; it cannot be found.
    Filling,
    Listed,
    /// Waits for its last pin to be dropped.
    Removed,
    Vacant,
}

impl Slab {
    /// Create an empty address space; [`Slab::extend`] adds granules.
    pub(crate) fn new(layout: Layout) -> Self {
        Self {
            extents: Extents::default(),
            table: SlotTable::default(),
            slots: Vec::new(),
            vacant: Vec::new(),
            layout,
            total: 0,
            reclaimable: 0,
        }
    }

    /// Add `len` free granules from `start`.
    pub(crate) fn extend(&mut self, start: u64, len: u64) {
        self.extents.release(start, len);
        self.total += len;
    }

    /// Number of granules.
    pub(crate) const fn total(&self) -> u64 {
        self.total
    }

    /// Number of free granules.
    pub(crate) const fn free(&self) -> u64 {
        self.extents.free()
    }

    /// Allocated granules, including those of removed but pinned samples.
    pub(crate) const fn used(&self) -> u64 {
        self.total - self.extents.free()
    }

    /// Granules that are free once the last pins of removed samples are dropped.
    pub(crate) const fn reclaimable(&self) -> u64 {
        self.reclaimable
    }

    /// The share of the free space outside of its longest extent.
    #[cfg(test)]
    #[expect(clippy::cast_precision_loss, reason = "a share: 53 bits are plenty")]
    pub(crate) fn fragmentation(&self) -> f64 {
        match self.extents.free() {
            0 => 0.0,
            free => 1.0 - self.extents.largest() as f64 / free as f64,
        }
    }

    /// Memory of the tables, in bytes.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        // Each free extent is in two trees of two words per entry, which are about two thirds full.
        self.slots.capacity() * size_of::<Slot>()
            + self.vacant.capacity() * size_of::<u32>()
            + self.table.memory()
            + self.extents.count() * 2 * 24
    }

    /// Allocate space for a sample of `len` bytes; it is pinned, and cannot be found until [`Slab::publish`]. `None`:
    /// no space.
    pub(crate) fn allocate(&mut self, key: SampleKey, len: u64) -> Option<Pinned> {
        let (granules, align) = (self.layout)(len);
        let at = if granules == 0 { 0 } else { self.extents.allocate(granules, align)? };
        let placed = self.insert(key, len, at);
        if placed.is_none() && granules > 0 {
            self.extents.release(at, granules);
        }
        placed
    }

    /// Insert a sample into granules of [`Slab::allocate_run`] or [`Slab::allocate_at`]; it cannot be found yet
    /// either.
    pub(crate) fn insert(&mut self, key: SampleKey, len: u64, at: u64) -> Option<Pinned> {
        let set = self.table.number_set(key.fingerprint)?;
        let slot = Slot {
            id: key.id,
            tag: key.tag,
            at,
            len,
            pins: 1,
            set,
            state: SlotState::Filling,
            is_usable: true,
        };
        let number = if let Some(number) = self.vacant.pop() {
            self.slots[number as usize] = slot;
            number
        } else {
            // The table stores number + 1 in 32 bits.
            let number = u32::try_from(self.slots.len()).ok().filter(|number| *number < u32::MAX)?;
            self.slots.push(slot);
            number
        };
        Some(Pinned { slot: SlotId(number), at, len })
    }

    /// Make an allocated sample available, in place of an earlier one with its id.
    pub(crate) fn publish(&mut self, slot: SlotId) {
        let Slot { id, set, state, .. } = &mut self.slots[slot.0 as usize];
        assert_eq!(*state, SlotState::Filling, "a sample is published once");
        *state = SlotState::Listed;
        if let Some(former) = self.table.insert(*set, *id, slot.0) {
            self.unlist(SlotId(former));
        }
    }

    /// Pin the sample with `key`.
    pub(crate) fn pin(&mut self, key: &SampleKey) -> Option<Pinned> {
        let found = self.find(key)?;
        let slot = &mut self.slots[found.0 as usize];
        slot.pins = slot.pins.checked_add(1)?;
        Some(Pinned { slot: found, at: slot.at, len: slot.len })
    }

    /// Drop one pin. The space of a removed sample is free with its last pin.
    pub(crate) fn unpin(&mut self, slot: SlotId) {
        let Slot { pins, state, len, .. } = &mut self.slots[slot.0 as usize];
        *pins = pins.checked_sub(1).expect("each pin ends once");
        if *pins == 0 && *state != SlotState::Listed {
            if *state == SlotState::Removed {
                self.reclaimable -= (self.layout)(*len).0;
            }
            self.free_slot(slot);
        }
    }

    /// Remove the sample with `key`; return whether it existed.
    pub(crate) fn remove(&mut self, key: &SampleKey) -> bool {
        self.find(key).inspect(|slot| self.remove_slot(*slot)).is_some()
    }

    /// Remove the sample in `slot` if it is still available.
    pub(crate) fn remove_slot(&mut self, slot: SlotId) {
        let Slot { id, set, state, .. } = self.slots[slot.0 as usize];
        if state == SlotState::Listed {
            self.table.remove(set, id);
            self.unlist(slot);
        }
    }

    /// Remove the pinned sample in `slot`, and its granules permanently: the address space shrinks.
    pub(crate) fn mark_unusable(&mut self, slot: SlotId) {
        self.remove_slot(slot);
        self.slots[slot.0 as usize].is_usable = false;
    }

    /// Allocate an extent of up to `most` granules for several samples.
    pub(crate) fn allocate_run(&mut self, least: u64, most: u64) -> Option<(u64, u64)> {
        self.extents.allocate_between(least, most)
    }

    /// Allocate the given granules if they are free.
    pub(crate) fn allocate_at(&mut self, start: u64, len: u64) -> bool {
        self.extents.allocate_at(start, len)
    }

    /// Release granules into which no sample was inserted.
    pub(crate) fn release(&mut self, start: u64, len: u64) {
        self.extents.release(start, len);
    }

    /// All available samples, as (key, first granule, bytes).
    pub(crate) fn entries(&self) -> impl Iterator<Item = (SampleKey, u64, u64)> + '_ {
        self.slots.iter().filter(|slot| slot.state == SlotState::Listed).map(|slot| {
            let fingerprint = self.table.set(slot.set);
            (SampleKey { fingerprint, id: slot.id, tag: slot.tag }, slot.at, slot.len)
        })
    }

    fn find(&self, key: &SampleKey) -> Option<SlotId> {
        let slot = self.table.get(self.table.find_set(key.fingerprint)?, key.id)?;
        (self.slots[slot as usize].tag == key.tag).then_some(SlotId(slot))
    }

    fn unlist(&mut self, slot: SlotId) {
        let Slot { pins, state, len, .. } = &mut self.slots[slot.0 as usize];
        *state = SlotState::Removed;
        if *pins == 0 {
            self.free_slot(slot);
        } else {
            self.reclaimable += (self.layout)(*len).0;
        }
    }

    fn free_slot(&mut self, slot: SlotId) {
        let Slot { at, len, state, is_usable, .. } = &mut self.slots[slot.0 as usize];
        *state = SlotState::Vacant;
        let granules = (self.layout)(*len).0;
        if *is_usable {
            self.extents.release(*at, granules);
        } else {
            self.total -= granules;
        }
        self.vacant.push(slot.0);
    }
}
