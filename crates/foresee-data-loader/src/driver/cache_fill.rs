// SPDX-License-Identifier: Apache-2.0
//! Cache fills: copies of samples into the caches, and their removal when the plan evicts them.
//!
//! The memory tier takes a copy at once. The disk tier does so for small samples, but reads a large one while it writes:
//! that one gets memory of its own, because its batch may belong to the consumer by then. No batch ever waits for a cache.
//! Copies for a disk that cannot keep up have a budget of memory, and the idle part of the staging buffer on top of it,
//! which is most of it where the origin is the bottleneck; beyond that, copies are dropped.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use foresee_data_plan::TierIndex;
use foresee_data_tier::{Detail, DiskTier, Done, Op, Payload, Tier};
use foresee_units::{Bytes, Nanos, ReadOutcome, SampleId, Source};

use super::Driver;
use super::fetch::EntrySubject;
use super::tickets::TicketOwner;
use crate::reads::{Read, Want};

/// A copy on its way to the disk tier.
#[derive(Debug)]
struct DiskCopy {
    sample: SampleId,
    /// The batch it came with, for the metrics.
    slot: u64,
    payload: Payload,
    /// Whether the payload is in memory of its own. Else it is in the batch, and the disk tier's answer, which
    /// comes before the batch is handed over, ends the copy or gives it memory of its own.
    own: bool,
    /// The plan has evicted it meanwhile: it is removed as soon as it is written.
    unwanted: bool,
}

/// All of them, by the number of their write.
#[derive(Debug, Default)]
pub(super) struct DiskCopies {
    in_flight: HashMap<u64, DiskCopy>,
    by_sample: HashMap<SampleId, u64>,
    /// Those that the disk tier refused because it was busy, in their order.
    refused: VecDeque<u64>,
    /// The disk tier has ended an operation since they were last offered.
    has_moved: bool,
    /// Bytes in memory of their own.
    own_bytes: u64,
    /// Bytes in memory of their own that are always allowed.
    capacity: Bytes,
    next: u64,
}

impl DiskCopy {
    fn len(&self) -> u64 {
        self.payload.as_slice().len() as u64
    }
}

impl DiskCopies {
    pub(super) fn new(capacity: Bytes) -> Self {
        Self { capacity, ..Self::default() }
    }

    /// The part of `bytes` of copies that the staging buffer has to lend.
    const fn beyond_capacity(&self, bytes: u64) -> Bytes {
        Bytes::new(bytes).saturating_sub(self.capacity)
    }

    fn insert(&mut self, copy: DiskCopy) -> u64 {
        let number = self.next;
        self.next += 1;
        self.by_sample.insert(copy.sample, number);
        self.in_flight.insert(number, copy);
        number
    }

    fn of_sample(&mut self, sample: SampleId) -> Option<(u64, &mut DiskCopy)> {
        if self.by_sample.is_empty() {
            return None;
        }
        let number = *self.by_sample.get(&sample)?;
        Some((number, self.in_flight.get_mut(&number)?))
    }

    /// An operation ended on the disk: it may take what it refused.
    pub(super) const fn note_moved(&mut self) {
        self.has_moved = true;
    }

    pub(super) const fn has_moved(&self) -> bool {
        self.has_moved
    }

    pub(super) fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Takes out the refused copies, to be offered again.
    pub(super) fn take_refused(&mut self) -> VecDeque<u64> {
        self.has_moved = false;
        std::mem::take(&mut self.refused)
    }

    fn remove(&mut self, number: u64) -> Option<DiskCopy> {
        let copy = self.in_flight.remove(&number)?;
        self.by_sample.remove(&copy.sample);
        if copy.own {
            self.own_bytes -= copy.len();
        }
        Some(copy)
    }
}

impl Driver {
    /// Puts a sample that has just arrived into `tier`.
    pub(super) fn fill_cache(&mut self, read: &Read, tier: TierIndex) {
        if self.tiers.ram_at(tier).is_none() {
            return self.fill_disk(read);
        }
        // SAFETY: all reads of the span have ended, and the batch has not been handed over.
        let bytes: &[u8] = unsafe { read.buffer.slice_mut(read.offset, read.len) };
        self.fill_memory(read.sample, read.spot.slot, tier, bytes);
    }

    /// The sample did not come: no tier gets it.
    pub(super) fn cancel_fills(&mut self, read: &Read) {
        for tier in read.fills.iter() {
            self.planner.handle_lost(read.sample, tier);
        }
    }

    fn fill_memory(&mut self, sample: SampleId, slot: u64, tier: TierIndex, bytes: &[u8]) {
        let Some(ram) = self.tiers.ram_at(tier) else { return };
        let begun = self.now();
        let outcome = ram.write_from(&self.data.key(sample), bytes);
        if outcome == ReadOutcome::Ok {
            self.tiers.note_stored();
        } else {
            self.planner.handle_lost(sample, tier);
        }
        let done = Done {
            ticket: TicketOwner::DiskWrite.ticket(0),
            outcome,
            bytes: Bytes::new(bytes.len() as u64),
            queued: Nanos::ZERO,
            service: self.now().saturating_sub(begun),
            detail: Detail::default(),
        };
        self.record(foresee_ledger::Op::Write, Source::Ram, EntrySubject::one(sample, slot), &done);
    }

    fn fill_disk(&mut self, read: &Read) {
        if let Some((_, copy)) = self.tiers.copies.of_sample(read.sample) {
            // Evicted and wanted again before its write has ended: the same bytes.
            copy.unwanted = false;
            return;
        }
        // SAFETY: all reads of the span have ended, and nobody writes it before the batch is handed over; by then
        // the disk tier has answered, and this payload is gone.
        let payload = unsafe { read.buffer.payload(read.offset, read.len) };
        let (sample, slot) = (read.sample, read.spot.slot);
        let number =
            self.tiers.copies.insert(DiskCopy { sample, slot, payload, own: false, unwanted: false });
        if (read.len as u64) < DiskTier::LARGE.get() || self.give_own_memory(number) {
            self.write_to_disk(number);
        }
    }

    /// Gives a copy memory of its own, or gives the copy up where too many have: `false`.
    fn give_own_memory(&mut self, number: u64) -> bool {
        let Some(copy) = self.tiers.copies.in_flight.get(&number) else { return false };
        if copy.own {
            return true;
        }
        let (sample, len, taken) = (copy.sample, copy.len(), self.tiers.copies.own_bytes);
        if taken > 0 && !self.delivery.staging.borrow_capacity(self.tiers.copies.beyond_capacity(taken + len))
        {
            self.tiers.copies.remove(number);
            self.lost_on_disk(sample);
            return false;
        }
        let Some(copy) = self.tiers.copies.in_flight.get_mut(&number) else { return false };
        copy.payload = Payload::from_vec(copy.payload.as_slice().to_vec());
        copy.own = true;
        self.tiers.copies.own_bytes += len;
        true
    }

    fn write_to_disk(&mut self, number: u64) {
        let (Some(copy), Some(disk)) = (self.tiers.copies.in_flight.get(&number), &self.tiers.disk) else {
            return;
        };
        let (key, payload) = (self.data.key(copy.sample), copy.payload.clone());
        disk.submit(Op::Write { ticket: TicketOwner::DiskWrite.ticket(number), key, payload });
    }

    pub(super) fn write_ended(&mut self, number: u64, done: &Done) {
        let Some(copy) = self.tiers.copies.in_flight.get(&number) else { return };
        let (sample, slot, unwanted) = (copy.sample, copy.slot, copy.unwanted);
        if matches!(done.outcome, ReadOutcome::Throttled { .. }) && !unwanted {
            if self.give_own_memory(number) {
                self.tiers.copies.refused.push_back(number);
            }
            return;
        }
        self.tiers.copies.note_moved();
        self.record(foresee_ledger::Op::Write, Source::Disk, EntrySubject::one(sample, slot), done);
        self.tiers.copies.remove(number);
        self.delivery.staging.borrow_capacity(self.tiers.copies.beyond_capacity(self.tiers.copies.own_bytes));
        if unwanted {
            self.drop_on_disk(sample);
        } else if done.outcome != ReadOutcome::Ok {
            self.lost_on_disk(sample);
        }
    }

    /// Offers again what the disk tier refused.
    pub(super) fn retry_writes(&mut self) {
        for number in self.tiers.take_refused() {
            self.write_to_disk(number);
        }
    }

    /// Serves a sample, and the faster tiers that get a copy, from a copy that is still on its way to the disk tier;
    /// whether there was one.
    pub(super) fn serve_from_copy(&mut self, want: &Want) -> bool {
        let &Want { sample, spot, offset, len, fills } = want;
        let Some((_, copy)) = self.tiers.copies.of_sample(sample) else { return false };
        let payload = copy.payload.clone();
        let buffer = Arc::clone(&self.delivery.stage(spot).buffer);
        if self.delivery.take_memory(&buffer) {
            // SAFETY: the span of this sample is its own, and no read of it has begun.
            unsafe { buffer.slice_mut(offset, len) }.copy_from_slice(payload.as_slice());
        }
        for tier in fills.iter() {
            self.fill_memory(sample, spot.slot, tier, payload.as_slice());
        }
        true
    }

    fn lost_on_disk(&mut self, sample: SampleId) {
        let (Some(tier), Some(disk)) = (self.tiers.disk_index(), &self.tiers.disk) else { return };
        let capacity = disk.room();
        self.planner.handle_lost(sample, tier);
        self.set_capacity(tier, capacity);
    }

    /// Follows this loader's part of the shared memory: it changes as loaders come and go.
    pub(super) fn follow_budget(&mut self) {
        if let Some((tier, capacity)) = self.tiers.take_capacity_change() {
            self.set_capacity(tier, capacity);
        }
    }

    fn set_capacity(&mut self, tier: TierIndex, capacity: Bytes) {
        let mut evicted = Vec::new();
        self.planner.handle_room(tier, capacity, &mut evicted);
        for (sample, tier) in evicted {
            self.evict(sample, tier);
        }
    }

    /// Removes a copy that the plan evicts: it may be there, or still be on its way.
    pub(super) fn evict(&mut self, sample: SampleId, tier: TierIndex) {
        if self.fetches.reads.of_sample(sample).is_some_and(|read| read.fills.remove(tier)) {
            return;
        }
        if let Some(ram) = self.tiers.ram_at(tier) {
            if ram.drop_key(&self.data.key(sample)) == ReadOutcome::Ok {
                self.tiers.note_dropped();
            }
            return;
        }
        if let Some((number, copy)) = self.tiers.copies.of_sample(sample) {
            copy.unwanted = true;
            if let Some(place) = self.tiers.copies.refused.iter().position(|&refused| refused == number) {
                self.tiers.copies.refused.remove(place);
                self.tiers.copies.remove(number);
            }
            return;
        }
        self.drop_on_disk(sample);
    }

    fn drop_on_disk(&self, sample: SampleId) {
        if let Some(disk) = &self.tiers.disk {
            disk.submit(Op::Drop {
                ticket: TicketOwner::Removal.ticket(sample.0),
                key: self.data.key(sample),
            });
        }
    }

    /// Gives the slab back what this loader has in it: another loader may share it.
    pub(super) fn clear_memory(&self) {
        let (Some(tier), Some(ram)) = (self.tiers.ram_index(), &self.tiers.ram) else { return };
        for id in (0..self.data.index().len()).map(SampleId) {
            if self.planner.holds(id, tier) {
                ram.drop_key(&self.data.key(id));
            }
        }
    }
}
