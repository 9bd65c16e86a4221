// SPDX-License-Identifier: Apache-2.0
//! Entries of one address space and their readers: the bookkeeping of RAM and disk.
//!
//! Space is free again when the sample is forgotten *and* its last reader is gone. This rule keeps readers from seeing
//! another sample's bytes, in memory and in a file alike. The slab has none of the bytes, takes no lock and does no
//! I/O: its owner wraps it in a mutex.

mod extents;
mod listing;

use foresee_units::SampleId;

use crate::op::{SampleKey, TagHash};
use extents::Extents;
use listing::{Listing, SetNumber};

/// How much room a sample takes: granules, and the multiple that its start must be of.
pub(crate) type Layout = fn(len: u64) -> (u64, u64);

/// Samples in an address space counted in granules.
#[derive(Debug)]
pub(crate) struct Slab {
    extents: Extents,
    listing: Listing,
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    layout: Layout,
    total: u64,
    /// Granules of samples that are forgotten but still pinned.
    lingering: u64,
    samples: u64,
}

/// A sample's number while it is listed or pinned; reused afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotId(u32);

/// A sample's place, pinned for whoever got it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pinned {
    pub(crate) slot: SlotId,
    /// First granule; without meaning if the sample takes none.
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
    state: State,
    /// Whether its granules may be used again; a place on a disk can turn out unusable.
    sound: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its bytes are on the way; found by nobody.
    Filling,
    Listed,
    /// Waits for its last pin.
    Forgotten,
    Vacant,
}

impl Slab {
    /// An empty space; room comes with [`Slab::extend`].
    pub(crate) fn new(layout: Layout) -> Self {
        Self {
            extents: Extents::default(),
            listing: Listing::default(),
            slots: Vec::new(),
            vacant: Vec::new(),
            layout,
            total: 0,
            lingering: 0,
            samples: 0,
        }
    }

    /// Adds `len` free granules from `start`.
    pub(crate) fn extend(&mut self, start: u64, len: u64) {
        self.extents.give(start, len);
        self.total += len;
    }

    /// Granules in all.
    pub(crate) const fn total(&self) -> u64 {
        self.total
    }

    /// Granules that can be taken now.
    pub(crate) const fn free(&self) -> u64 {
        self.extents.free()
    }

    /// Granules taken, those of forgotten but pinned samples among them.
    pub(crate) const fn used(&self) -> u64 {
        self.total - self.extents.free()
    }

    /// Granules that will be free once the last pins on forgotten samples are gone.
    pub(crate) const fn lingering(&self) -> u64 {
        self.lingering
    }

    /// How many samples can be found.
    pub(crate) const fn samples(&self) -> u64 {
        self.samples
    }

    /// The share of the free room that the longest stretch cannot serve: 0 in one piece, towards 1 in crumbs.
    #[expect(clippy::cast_precision_loss, reason = "a share: 53 bits are plenty")]
    pub(crate) fn fragmentation(&self) -> f64 {
        match self.extents.free() {
            0 => 0.0,
            free => 1.0 - self.extents.largest() as f64 / free as f64,
        }
    }

    /// Memory of the tables, in bytes.
    pub(crate) fn memory(&self) -> usize {
        // Each free stretch stands in two trees of two words an entry, which are about two thirds full.
        self.slots.capacity() * size_of::<Slot>()
            + self.vacant.capacity() * size_of::<u32>()
            + self.listing.memory()
            + self.extents.count() * 2 * 24
    }

    /// Takes room for a sample of `len` bytes: pinned, and unseen until [`Slab::publish`]. `None`: no room.
    pub(crate) fn place(&mut self, key: SampleKey, len: u64) -> Option<Pinned> {
        let (granules, align) = (self.layout)(len);
        let at = if granules == 0 { 0 } else { self.extents.take(granules, align)? };
        let placed = self.enter(key, len, at);
        if placed.is_none() && granules > 0 {
            self.extents.give(at, granules);
        }
        placed
    }

    /// Enters a sample into room that was taken by [`Slab::take_run`] or [`Slab::take_at`]; unseen as above.
    pub(crate) fn enter(&mut self, key: SampleKey, len: u64, at: u64) -> Option<Pinned> {
        let set = self.listing.number_set(key.fingerprint)?;
        let slot =
            Slot { id: key.id, tag: key.tag, at, len, pins: 1, set, state: State::Filling, sound: true };
        let number = if let Some(number) = self.vacant.pop() {
            self.slots[number as usize] = slot;
            number
        } else {
            // The listing keeps number + 1 in 32 bits.
            let number = u32::try_from(self.slots.len()).ok().filter(|number| *number < u32::MAX)?;
            self.slots.push(slot);
            number
        };
        Some(Pinned { slot: SlotId(number), at, len })
    }

    /// Makes a placed sample findable, in place of what stood under its id.
    pub(crate) fn publish(&mut self, slot: SlotId) {
        let Slot { id, set, state, .. } = &mut self.slots[slot.0 as usize];
        assert_eq!(*state, State::Filling, "a sample is published once");
        *state = State::Listed;
        self.samples += 1;
        if let Some(former) = self.listing.put(*set, *id, slot.0) {
            self.samples -= 1;
            self.retire(SlotId(former));
        }
    }

    /// Pins the sample under `key`.
    pub(crate) fn pin(&mut self, key: &SampleKey) -> Option<Pinned> {
        let found = self.find(key)?;
        let slot = &mut self.slots[found.0 as usize];
        slot.pins = slot.pins.checked_add(1)?;
        Some(Pinned { slot: found, at: slot.at, len: slot.len })
    }

    /// Ends one pin. Room of a sample that nobody can find any more is free with its last pin.
    pub(crate) fn unpin(&mut self, slot: SlotId) {
        let Slot { pins, state, len, .. } = &mut self.slots[slot.0 as usize];
        *pins = pins.checked_sub(1).expect("each pin ends once");
        if *pins == 0 && *state != State::Listed {
            if *state == State::Forgotten {
                self.lingering -= (self.layout)(*len).0;
            }
            self.vacate(slot);
        }
    }

    /// Forgets the sample under `key`; whether there was one.
    pub(crate) fn forget(&mut self, key: &SampleKey) -> bool {
        self.find(key).inspect(|slot| self.forget_slot(*slot)).is_some()
    }

    /// Forgets the sample in `slot` if it can still be found there.
    pub(crate) fn forget_slot(&mut self, slot: SlotId) {
        let Slot { id, set, state, .. } = self.slots[slot.0 as usize];
        if state == State::Listed {
            self.listing.remove(set, id);
            self.samples -= 1;
            self.retire(slot);
        }
    }

    /// Forgets the sample in `slot`, which its caller has pinned, and its granules for ever: the space shrinks.
    pub(crate) fn lose(&mut self, slot: SlotId) {
        self.forget_slot(slot);
        self.slots[slot.0 as usize].sound = false;
    }

    /// Takes a stretch of up to `most` granules for several samples to be entered.
    pub(crate) fn take_run(&mut self, least: u64, most: u64) -> Option<(u64, u64)> {
        self.extents.take_between(least, most)
    }

    /// Takes the given granules, if they are free.
    pub(crate) fn take_at(&mut self, start: u64, len: u64) -> bool {
        self.extents.take_at(start, len)
    }

    /// Gives back granules that no sample was entered into.
    pub(crate) fn give(&mut self, start: u64, len: u64) {
        self.extents.give(start, len);
    }

    /// All samples that can be found, as (key, first granule, bytes).
    pub(crate) fn listed(&self) -> impl Iterator<Item = (SampleKey, u64, u64)> + '_ {
        self.slots.iter().filter(|slot| slot.state == State::Listed).map(|slot| {
            let fingerprint = self.listing.set(slot.set);
            (SampleKey { fingerprint, id: slot.id, tag: slot.tag }, slot.at, slot.len)
        })
    }

    fn find(&self, key: &SampleKey) -> Option<SlotId> {
        let slot = self.listing.get(self.listing.find_set(key.fingerprint)?, key.id)?;
        (self.slots[slot as usize].tag == key.tag).then_some(SlotId(slot))
    }

    fn retire(&mut self, slot: SlotId) {
        let Slot { pins, state, len, .. } = &mut self.slots[slot.0 as usize];
        *state = State::Forgotten;
        if *pins == 0 {
            self.vacate(slot);
        } else {
            self.lingering += (self.layout)(*len).0;
        }
    }

    fn vacate(&mut self, slot: SlotId) {
        let Slot { at, len, state, sound, .. } = &mut self.slots[slot.0 as usize];
        *state = State::Vacant;
        let granules = (self.layout)(*len).0;
        if *sound {
            self.extents.give(*at, granules);
        } else {
            self.total -= granules;
        }
        self.vacant.push(slot.0);
    }
}
