// SPDX-License-Identifier: Apache-2.0
//! Copies into the caches, and out of them again when the plan says so.
//!
//! Memory takes a copy at once. The disk tier gathers small samples at once, too, but reads a large one while it
//! writes: that one is given memory of its own, because the batch may be the consumer's by then. No batch ever
//! waits for a cache. A disk that cannot keep up is given so many copies, and as many more as the staging buffer has
//! idle room for, which is most of it where the origin is what everybody waits for; then further ones are given up.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use foresee_data_plan::TierIndex;
use foresee_data_tier::{Detail, DiskTier, Done, Op, Payload, RamTier, Tier};
use foresee_units::{Bytes, Nanos, ReadOutcome, SampleId, Source};

use super::Driver;
use super::fetch::{About, drop_ticket, write_ticket};
use crate::reads::{Read, Want};

/// The caches in the planner's order: memory first, then disk.
#[derive(Debug)]
pub(super) struct Tiers {
    pub(super) ram: Option<Arc<RamTier>>,
    pub(super) disk: Option<Arc<DiskTier>>,
}

impl Tiers {
    pub(super) fn ram_at(&self, tier: TierIndex) -> Option<&Arc<RamTier>> {
        self.ram.as_ref().filter(|_| tier == TierIndex(0))
    }

    pub(super) fn ram_index(&self) -> Option<TierIndex> {
        self.ram.as_ref().map(|_| TierIndex(0))
    }

    pub(super) fn disk_index(&self) -> Option<TierIndex> {
        self.disk.as_ref().map(|_| TierIndex(u8::from(self.ram.is_some())))
    }
}

/// A copy on its way to the disk tier.
#[derive(Debug)]
struct DiskCopy {
    sample: SampleId,
    /// The batch it came with, for the metrics.
    slot: u64,
    payload: Payload,
    /// Whether the payload lies in memory of its own. Else it lies in the batch, and the disk tier's answer, which
    /// comes before the batch is handed over, ends the copy or gives it memory of its own.
    own: bool,
    /// The plan has dropped it meanwhile: to be forgotten as soon as it is written.
    unwanted: bool,
}

/// All of them, by the number of their write.
#[derive(Debug, Default)]
pub(super) struct DiskCopies {
    under_way: HashMap<u64, DiskCopy>,
    by_sample: HashMap<SampleId, u64>,
    /// Those that the disk tier had no hand free for, in their order.
    refused: VecDeque<u64>,
    /// The disk tier has ended something since they were last offered.
    disk_moved: bool,
    /// Bytes in memory of their own, and how many there may be in any case.
    own_bytes: u64,
    room: Bytes,
    next: u64,
}

impl DiskCopy {
    fn len(&self) -> u64 {
        self.payload.as_slice().len() as u64
    }
}

impl DiskCopies {
    pub(super) fn new(room: Bytes) -> Self {
        Self { room, ..Self::default() }
    }

    /// What of so many bytes of copies the staging buffer has to lend.
    const fn beyond_room(&self, bytes: u64) -> Bytes {
        Bytes::new(bytes).saturating_sub(self.room)
    }

    fn of_sample(&mut self, sample: SampleId) -> Option<(u64, &mut DiskCopy)> {
        if self.by_sample.is_empty() {
            return None;
        }
        let number = *self.by_sample.get(&sample)?;
        Some((number, self.under_way.get_mut(&number)?))
    }

    /// Something ended on the disk: there may be room for what was refused.
    pub(super) fn note_moved(&mut self) {
        self.disk_moved = true;
    }

    fn remove(&mut self, number: u64) -> Option<DiskCopy> {
        let copy = self.under_way.remove(&number)?;
        self.by_sample.remove(&copy.sample);
        if copy.own {
            self.own_bytes -= copy.len();
        }
        Some(copy)
    }
}

impl Driver {
    /// Puts a sample that has just arrived into `tier`.
    pub(super) fn keep(&mut self, read: &Read, tier: TierIndex) {
        if self.tiers.ram_at(tier).is_none() {
            return self.keep_on_disk(read);
        }
        // SAFETY: all reads of the span have ended, and the batch has not been handed over.
        let bytes: &[u8] = unsafe { read.buffer.slice_mut(read.offset, read.len) };
        self.keep_in_memory(read.sample, read.spot.slot, tier, bytes);
    }

    /// The sample did not come: no tier gets it.
    pub(super) fn keep_not(&mut self, read: &Read) {
        for tier in read.keep.iter() {
            self.planner.handle_lost(read.sample, tier);
        }
    }

    fn keep_in_memory(&mut self, sample: SampleId, slot: u64, tier: TierIndex, bytes: &[u8]) {
        let Some(ram) = self.tiers.ram_at(tier) else { return };
        let begun = self.now();
        let outcome = ram.write_from(&self.data.key(sample), bytes);
        if outcome == ReadOutcome::Ok {
            self.in_memory += 1;
        } else {
            self.planner.handle_lost(sample, tier);
        }
        let done = Done {
            ticket: write_ticket(0),
            outcome,
            bytes: Bytes::new(bytes.len() as u64),
            queued: Nanos::ZERO,
            service: self.now().saturating_sub(begun),
            detail: Detail::default(),
        };
        self.book(foresee_ledger::Op::Write, Source::Ram, About::one(sample, slot), &done);
    }

    fn keep_on_disk(&mut self, read: &Read) {
        if let Some((_, copy)) = self.copies.of_sample(read.sample) {
            // Dropped by the plan and wanted again before its write has ended: the same bytes.
            copy.unwanted = false;
            return;
        }
        // SAFETY: all reads of the span have ended, and nobody writes it before the batch is handed over; by then
        // the disk tier has answered, and this payload is gone.
        let payload = unsafe { read.buffer.payload(read.offset, read.len) };
        let number = self.copies.next;
        self.copies.next += 1;
        let (sample, slot) = (read.sample, read.spot.slot);
        self.copies.by_sample.insert(sample, number);
        self.copies.under_way.insert(number, DiskCopy { sample, slot, payload, own: false, unwanted: false });
        if (read.len as u64) < DiskTier::LARGE.get() || self.give_own_memory(number) {
            self.write_to_disk(number);
        }
    }

    /// Gives a copy memory of its own, or gives the copy up where too many have: `false`.
    fn give_own_memory(&mut self, number: u64) -> bool {
        let Some(copy) = self.copies.under_way.get(&number) else { return false };
        if copy.own {
            return true;
        }
        let (sample, len, taken) = (copy.sample, copy.len(), self.copies.own_bytes);
        if taken > 0 && !self.staging.borrow_room(self.copies.beyond_room(taken + len)) {
            self.copies.remove(number);
            self.lost_on_disk(sample);
            return false;
        }
        let Some(copy) = self.copies.under_way.get_mut(&number) else { return false };
        copy.payload = Payload::from_vec(copy.payload.as_slice().to_vec());
        copy.own = true;
        self.copies.own_bytes += len;
        true
    }

    fn write_to_disk(&mut self, number: u64) {
        let (Some(copy), Some(disk)) = (self.copies.under_way.get(&number), &self.tiers.disk) else { return };
        let (key, payload) = (self.data.key(copy.sample), copy.payload.clone());
        disk.submit(Op::Write { ticket: write_ticket(number), key, payload });
    }

    pub(super) fn write_ended(&mut self, number: u64, done: &Done) {
        let Some(copy) = self.copies.under_way.get(&number) else { return };
        let (sample, slot, unwanted) = (copy.sample, copy.slot, copy.unwanted);
        if matches!(done.outcome, ReadOutcome::Throttled { .. }) && !unwanted {
            if self.give_own_memory(number) {
                self.copies.refused.push_back(number);
            }
            return;
        }
        self.copies.note_moved();
        self.book(foresee_ledger::Op::Write, Source::Disk, About::one(sample, slot), done);
        self.copies.remove(number);
        self.staging.borrow_room(self.copies.beyond_room(self.copies.own_bytes));
        if unwanted {
            self.drop_on_disk(sample);
        } else if done.outcome != ReadOutcome::Ok {
            self.lost_on_disk(sample);
        }
    }

    /// Offers again what the disk tier had no hand free for, once something there has ended: to ask before would
    /// only keep asking.
    pub(super) fn retry_writes(&mut self) {
        if self.copies.refused.is_empty() || !(self.completions.take_nudge() | self.copies.disk_moved) {
            return;
        }
        self.copies.disk_moved = false;
        for _ in 0..self.copies.refused.len() {
            if let Some(number) = self.copies.refused.pop_front() {
                self.write_to_disk(number);
            }
        }
    }

    /// Serves a sample, and the faster tiers that keep it, from a copy that is still on its way to the disk tier; whether
    /// there was one.
    pub(super) fn copy_under_way(&mut self, want: &Want) -> bool {
        let &Want { sample, spot, offset, len, keep } = want;
        let Some((_, copy)) = self.copies.of_sample(sample) else { return false };
        let payload = copy.payload.clone();
        let stage = self.staging.get(spot.slot).expect("the batch is being planned");
        let buffer = Arc::clone(&stage.buffer);
        if self.give_memory(&buffer) {
            // SAFETY: the span of this sample is its own, and no read of it has begun.
            unsafe { buffer.slice_mut(offset, len) }.copy_from_slice(payload.as_slice());
        }
        for tier in keep.iter() {
            self.keep_in_memory(sample, spot.slot, tier, payload.as_slice());
        }
        true
    }

    fn lost_on_disk(&mut self, sample: SampleId) {
        let (Some(tier), Some(disk)) = (self.tiers.disk_index(), &self.tiers.disk) else { return };
        let capacity = disk.room();
        self.planner.handle_lost(sample, tier);
        self.set_room(tier, capacity);
    }

    /// Follows the part of the shared memory that is this loader's: it changes as loaders come and go.
    pub(super) fn follow_budget(&mut self) {
        let room = self.member.room();
        if room != self.room
            && let Some(tier) = self.tiers.ram_index()
        {
            self.room = room;
            self.set_room(tier, room);
        }
    }

    fn set_room(&mut self, tier: TierIndex, room: Bytes) {
        let mut evicted = Vec::new();
        self.planner.handle_room(tier, room, &mut evicted);
        for (sample, tier) in evicted {
            self.forget(sample, tier);
        }
    }

    /// The plan drops a copy: it may be there, or still be on its way.
    pub(super) fn forget(&mut self, sample: SampleId, tier: TierIndex) {
        if self.reads.of_sample(sample).is_some_and(|read| read.keep.remove(tier)) {
            return;
        }
        if let Some(ram) = self.tiers.ram_at(tier) {
            if ram.drop_key(&self.data.key(sample)) == ReadOutcome::Ok {
                self.in_memory = self.in_memory.saturating_sub(1);
            }
            return;
        }
        if let Some((number, copy)) = self.copies.of_sample(sample) {
            copy.unwanted = true;
            if let Some(place) = self.copies.refused.iter().position(|&refused| refused == number) {
                self.copies.refused.remove(place);
                self.copies.remove(number);
            }
            return;
        }
        self.drop_on_disk(sample);
    }

    /// Whether every sample of the data set lies in memory.
    pub(super) fn all_in_memory(&self) -> bool {
        self.in_memory == self.data.index().len()
    }

    fn drop_on_disk(&self, sample: SampleId) {
        if let Some(disk) = &self.tiers.disk {
            disk.submit(Op::Drop { ticket: drop_ticket(sample.0), key: self.data.key(sample) });
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
