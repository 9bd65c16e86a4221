// SPDX-License-Identifier: Apache-2.0
//! Cache fills: copies of samples into the caches, and their removal when the plan evicts them.
//!
//! The memory tier copies at once. The disk tier copies small samples at once, but reads a large one while it writes:
//! a large sample gets its own memory, because its batch may belong to the consumer by then. No batch waits for a
//! cache. Copies for a slow disk have a budget of memory, and may borrow the idle capacity of the staging buffer,
//! which is most of it if the origin is the bottleneck. Copies beyond that are dropped.

use std::collections::VecDeque;
use std::sync::Arc;

use foresee_data_plan::TierIndex;
use foresee_data_tier::{Detail, DiskTier, Done, Op, Payload, Tier};
use foresee_units::{Bytes, Nanos, ReadOutcome, SampleId, Source};
use rustc_hash::FxHashMap;

use super::Driver;
use super::fetch::EntrySubject;
use super::tickets::TicketOwner;
use crate::reads::{Read, ReadTarget};

/// A copy in flight to the disk tier.
#[derive(Debug)]
struct DiskCopy {
    sample: SampleId,
    /// The batch of its read, for the ledger.
    slot: u64,
    payload: Payload,
    /// Whether the payload has its own memory. Otherwise it is in the batch. The disk tier's answer comes before the
    /// delivery of the batch, and ends the copy or gives it its own memory.
    is_owned: bool,
    /// Whether the plan has evicted it: it is removed after its write.
    is_unwanted: bool,
}

/// All copies in flight, by the number of their write.
#[derive(Debug, Default)]
pub(super) struct DiskCopies {
    in_flight: FxHashMap<u64, DiskCopy>,
    by_sample: FxHashMap<SampleId, u64>,
    /// Copies that the busy disk tier refused, in order.
    pub(super) refused: VecDeque<u64>,
    /// Whether the disk tier has ended an operation since the last retry.
    pub(super) has_progress: bool,
    /// Bytes in own memory.
    owned_bytes: u64,
    /// Bytes in own memory that are always allowed.
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

    fn remove(&mut self, number: u64) -> Option<DiskCopy> {
        let copy = self.in_flight.remove(&number)?;
        self.by_sample.remove(&copy.sample);
        if copy.is_owned {
            self.owned_bytes -= copy.len();
        }
        Some(copy)
    }
}

impl Driver {
    /// Copy a sample that was read into `tier`.
    pub(super) fn fill_cache(&mut self, read: &Read, tier: TierIndex) {
        if self.tiers.ram_at(tier).is_none() {
            return self.fill_disk(read);
        }
        let ReadTarget { sample, position, offset, len, .. } = read.target;
        // SAFETY: all reads of the span have ended, and the batch has not been delivered.
        let bytes: &[u8] = unsafe { read.buffer.slice_mut(offset, len) };
        self.fill_memory(sample, position.slot, tier, bytes);
    }

    /// The sample was not read: no tier gets a copy.
    pub(super) fn cancel_fills(&mut self, read: &Read) {
        for tier in read.target.fills.iter() {
            self.planner.handle_lost(read.target.sample, tier);
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
        let ReadTarget { sample, position, offset, len, .. } = read.target;
        if let Some((_, copy)) = self.tiers.copies.of_sample(sample) {
            // Evicted, and wanted again before its write has ended: the same bytes.
            copy.is_unwanted = false;
            return;
        }
        // SAFETY: all reads of the span have ended, and nothing writes it before the delivery of the batch; by then
        // the disk tier has answered, and this payload is dropped.
        let payload = unsafe { read.buffer.payload(offset, len) };
        let copy = DiskCopy { sample, slot: position.slot, payload, is_owned: false, is_unwanted: false };
        let number = self.tiers.copies.insert(copy);
        if (len as u64) < DiskTier::LARGE.get() || self.own_memory(number) {
            self.write_to_disk(number);
        }
    }

    /// Move a copy to its own memory; without budget, drop the copy and return `false`.
    fn own_memory(&mut self, number: u64) -> bool {
        let copies = &mut self.tiers.copies;
        let (owned, capacity) = (copies.owned_bytes, copies.capacity);
        let Some(copy) = copies.in_flight.get_mut(&number) else { return false };
        if copy.is_owned {
            return true;
        }
        let (sample, total) = (copy.sample, owned + copy.len());
        let borrowed = Bytes::new(total).saturating_sub(capacity);
        if owned > 0 && !self.delivery.staging.borrow_capacity(borrowed) {
            copies.remove(number);
            self.handle_lost_on_disk(sample);
            return false;
        }
        copy.payload = Payload::from_vec(copy.payload.as_slice().to_vec());
        copy.is_owned = true;
        copies.owned_bytes = total;
        true
    }

    fn write_to_disk(&mut self, number: u64) {
        let (Some(copy), Some(disk)) = (self.tiers.copies.in_flight.get(&number), &self.tiers.disk) else {
            return;
        };
        let (key, payload) = (self.data.key(copy.sample), copy.payload.clone());
        disk.submit(Op::Write { ticket: TicketOwner::DiskWrite.ticket(number), key, payload });
    }

    pub(super) fn handle_write_end(&mut self, number: u64, done: &Done) {
        let Some(copy) = self.tiers.copies.in_flight.get(&number) else { return };
        let (sample, slot, is_unwanted) = (copy.sample, copy.slot, copy.is_unwanted);
        if matches!(done.outcome, ReadOutcome::Throttled { .. }) && !is_unwanted {
            if self.own_memory(number) {
                self.tiers.copies.refused.push_back(number);
            }
            return;
        }
        self.tiers.copies.has_progress = true;
        self.record(foresee_ledger::Op::Write, Source::Disk, EntrySubject::one(sample, slot), done);
        self.tiers.copies.remove(number);
        let borrowed = Bytes::new(self.tiers.copies.owned_bytes).saturating_sub(self.tiers.copies.capacity);
        self.delivery.staging.borrow_capacity(borrowed);
        if is_unwanted {
            self.drop_on_disk(sample);
        } else if done.outcome != ReadOutcome::Ok {
            self.handle_lost_on_disk(sample);
        }
    }

    /// Retry the copies that the disk tier refused.
    pub(super) fn retry_writes(&mut self) {
        for number in self.tiers.take_refused() {
            self.write_to_disk(number);
        }
    }

    /// Serve a sample, and the faster tiers that get a copy, from a copy in flight to the disk tier, if there is one.
    pub(super) fn serve_from_disk_copy(&mut self, target: &ReadTarget) -> bool {
        let &ReadTarget { sample, position, offset, len, fills } = target;
        let Some((_, copy)) = self.tiers.copies.of_sample(sample) else { return false };
        let payload = copy.payload.clone();
        let buffer = Arc::clone(&self.delivery.stage(position).batch.buffer);
        if self.delivery.ensure_mapped(&buffer) {
            // SAFETY: the span belongs to this sample alone, and no read of it has begun.
            unsafe { buffer.slice_mut(offset, len) }.copy_from_slice(payload.as_slice());
        }
        for tier in fills.iter() {
            self.fill_memory(sample, position.slot, tier, payload.as_slice());
        }
        true
    }

    fn handle_lost_on_disk(&mut self, sample: SampleId) {
        let (Some(tier), Some(disk)) = (self.tiers.disk_index(), &self.tiers.disk) else { return };
        let capacity = disk.usable_capacity();
        self.planner.handle_lost(sample, tier);
        self.set_capacity(tier, capacity);
    }

    /// Apply a change of this loader's share of memory.
    pub(super) fn update_budget(&mut self) {
        if let Some((tier, capacity)) = self.tiers.take_capacity_change() {
            self.set_capacity(tier, capacity);
        }
    }

    fn set_capacity(&mut self, tier: TierIndex, capacity: Bytes) {
        let mut evicted = Vec::new();
        self.planner.handle_capacity(tier, capacity, &mut evicted);
        for (sample, tier) in evicted {
            self.evict(sample, tier);
        }
    }

    /// Remove a copy that the plan evicts: a stored one, or one in flight.
    pub(super) fn evict(&mut self, sample: SampleId, tier: TierIndex) {
        if self.fetches.reads.of_sample(sample).is_some_and(|(_, read)| read.target.fills.remove(tier)) {
            return;
        }
        if let Some(ram) = self.tiers.ram_at(tier) {
            if ram.drop_key(&self.data.key(sample)) == ReadOutcome::Ok {
                self.tiers.note_dropped();
            }
            return;
        }
        if let Some((number, copy)) = self.tiers.copies.of_sample(sample) {
            copy.is_unwanted = true;
            if let Some(index) = self.tiers.copies.refused.iter().position(|&refused| refused == number) {
                self.tiers.copies.refused.remove(index);
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

    /// Drop this loader's samples from the memory tier, which other loaders may share.
    pub(super) fn clear_memory(&self) {
        let (Some(tier), Some(ram)) = (self.tiers.ram_index(), &self.tiers.ram) else { return };
        for id in (0..self.data.index().len()).map(SampleId) {
            if self.planner.holds(id, tier) {
                ram.drop_key(&self.data.key(id));
            }
        }
    }
}
