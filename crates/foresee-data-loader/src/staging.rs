// SPDX-License-Identifier: Apache-2.0
//! The staging buffer: batches in the consumer's order, until they are complete.
//!
//! Capacity is reserved when a batch is opened, so reads may end in any order and nothing fragments. The limit is in
//! bytes, and it is the only backpressure. It includes batches that are ready but not taken, and those that the
//! consumer still holds, up to half of the limit: a consumer that never drops its batches does not stop the loader.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use foresee_units::{Bytes, Epoch, SampleId};

use crate::batch::Batch;
use crate::batch_queue::QueueEntry;
use crate::buffer::Buffer;

/// Maximum number of slots: batches of few bytes and ends of epochs use almost no capacity, but a page of memory.
const SLOTS_MAX: usize = 1 << 12;

/// Maximum number of batches held by the consumer that are tracked: the latest ones.
const HELD_MAX: usize = 64;

/// Maximum of staged bytes of samples that are in memory: less than a common last-level cache.
const IN_MEMORY_LIMIT: Bytes = Bytes::new(8 << 20);
/// Maximum of staged bytes of samples that a host has, unless two batches are more: each process of the node stages its own.
const NODE_LIMIT: Bytes = Bytes::new(4 << 20);

/// Where the samples of the next batches are, which decides how many batches are staged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StagedFrom {
    /// In memory of this process. There is no latency to hide: a few batches suffice, one if they are large, and their
    /// reused memory stays in the processor's caches.
    Memory,
    /// At a host that reads ahead: few batches suffice, but one is requested while the one before is consumed.
    Node,
    /// Somewhere with latency.
    Storage,
}

/// A batch that is not complete.
#[derive(Debug)]
pub(crate) struct Stage {
    /// Its `offsets` and `faults` are by entry until it is complete.
    pub(crate) batch: Batch,
    /// Entries of the samples, equally many of each: the units that are planned and read.
    pub(crate) entries: Vec<SampleId>,
    /// Entries with a source.
    pub(crate) planned: usize,
    /// Those of them without bytes.
    pub(crate) pending: usize,
}

impl Stage {
    /// Offset and length of an entry in the batch's memory.
    pub(crate) fn span(&self, index: usize) -> (usize, usize) {
        let at = |index: usize| {
            usize::try_from(self.batch.offsets[index]).expect("a buffer fits the address space")
        };
        (at(index), at(index + 1) - at(index))
    }

    pub(crate) fn is_planned(&self) -> bool {
        self.planned == self.entries.len()
    }

    fn bytes(&self) -> Bytes {
        Bytes::new(*self.batch.offsets.last().expect("offsets end with the length"))
    }

    fn into_batch(self) -> Batch {
        let Self { mut batch, entries, .. } = self;
        batch.faults.sort_by_key(|fault| fault.index);
        let parts = entries.len().checked_div(batch.ids.len()).unwrap_or(1);
        if parts > 1 {
            // For the consumer a sample is one range of bytes with at most one fault: that of its first entry.
            batch.offsets = batch.offsets.into_iter().step_by(parts).collect();
            for fault in &mut batch.faults {
                fault.index /= parts;
            }
            batch.faults.dedup_by_key(|fault| fault.index);
        }
        batch
    }
}

/// An element of the staging buffer.
#[derive(Debug)]
pub(crate) enum Slot {
    Batch(Stage),
    EpochEnd(Epoch),
}

impl Slot {
    pub(crate) fn bytes(&self) -> Bytes {
        match self {
            Self::Batch(stage) => stage.bytes(),
            Self::EpochEnd(_) => Bytes::ZERO,
        }
    }

    fn is_complete(&self) -> bool {
        match self {
            Self::Batch(stage) => stage.is_planned() && stage.pending == 0,
            Self::EpochEnd(_) => true,
        }
    }
}

/// A batch, or the end of an epoch, that was delivered.
#[derive(Debug, Default)]
struct Delivered {
    bytes: Bytes,
    /// Alive while the batch has an owner.
    memory: Weak<Buffer>,
}

/// The slots between the planner and the consumer.
#[derive(Debug)]
pub(crate) struct Staging {
    slots: VecDeque<Slot>,
    /// Number of the first slot; numbers continue for the loader's lifetime.
    first: u64,
    limit: Bytes,
    /// Bytes in `slots` and in `ready`.
    used: Bytes,
    /// Delivered to the queue and not known to be taken.
    ready: VecDeque<Delivered>,
    /// Batches that the consumer took; it may have dropped some.
    held: VecDeque<Delivered>,
    /// Capacity that copies for the disk tier have borrowed.
    borrowed: Bytes,
    taken: u64,
}

impl Staging {
    pub(crate) const fn new(limit: Bytes) -> Self {
        Self {
            slots: VecDeque::new(),
            first: 0,
            limit,
            used: Bytes::ZERO,
            ready: VecDeque::new(),
            held: VecDeque::new(),
            borrowed: Bytes::ZERO,
            taken: 0,
        }
    }

    /// Whether a slot of `bytes` may be opened now. One slot is always allowed.
    pub(crate) fn has_capacity(&mut self, bytes: Bytes, from: StagedFrom) -> bool {
        let (used, limit) = match from {
            StagedFrom::Memory => (self.used, self.limit.min(IN_MEMORY_LIMIT)),
            StagedFrom::Node => {
                let two = bytes.saturating_add(bytes);
                (self.used, self.limit.min(NODE_LIMIT.max(two)))
            }
            StagedFrom::Storage => (self.used_capacity(), self.limit),
        };
        self.depth().0 < SLOTS_MAX && (self.used == Bytes::ZERO || used.saturating_add(bytes) <= limit)
    }

    /// Lend idle capacity, `bytes` in total from now on; `false` if it does not suffice.
    pub(crate) fn borrow_capacity(&mut self, bytes: Bytes) -> bool {
        let others = self.used_capacity().saturating_sub(self.borrowed);
        let fits = bytes <= self.borrowed || others.saturating_add(bytes) <= self.limit;
        if fits {
            self.borrowed = bytes;
        }
        fits
    }

    fn used_capacity(&mut self) -> Bytes {
        self.held.retain(|batch| batch.memory.strong_count() > 0);
        let held: Bytes = self.held.iter().map(|batch| batch.bytes).sum();
        let held = held.min(Bytes::new(self.limit.get() / 2));
        self.used.saturating_add(held).saturating_add(self.borrowed)
    }

    pub(crate) fn open(&mut self, slot: Slot) {
        self.used += slot.bytes();
        self.slots.push_back(slot);
    }

    /// Number of the slot that was opened last.
    pub(crate) fn newest(&self) -> u64 {
        self.first + self.slots.len() as u64 - 1
    }

    /// The batch that is being planned, if any: always the last one.
    pub(crate) fn planning(&mut self) -> Option<&mut Stage> {
        match self.slots.back_mut() {
            Some(Slot::Batch(stage)) if !stage.is_planned() => Some(stage),
            _ => None,
        }
    }

    /// A batch by number; `None` after its delivery.
    pub(crate) fn get(&mut self, number: u64) -> Option<&mut Stage> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        match self.slots.get_mut(index)? {
            Slot::Batch(stage) => Some(stage),
            Slot::EpochEnd(_) => None,
        }
    }

    /// The next batch of the consumer, with its number.
    pub(crate) fn head(&mut self) -> Option<(u64, &mut Stage)> {
        match self.slots.front_mut() {
            Some(Slot::Batch(stage)) => Some((self.first, stage)),
            _ => None,
        }
    }

    /// Move all complete slots to `ready`, in order.
    pub(crate) fn take_ready(&mut self, ready: &mut Vec<QueueEntry>) {
        while self.slots.front().is_some_and(Slot::is_complete)
            && let Some(slot) = self.slots.pop_front()
        {
            self.first += 1;
            let (delivered, entry) = match slot {
                Slot::Batch(stage) => {
                    let memory = Arc::downgrade(&stage.batch.buffer);
                    (Delivered { bytes: stage.bytes(), memory }, QueueEntry::Batch(stage.into_batch()))
                }
                Slot::EpochEnd(epoch) => (Delivered::default(), QueueEntry::EpochEnd(epoch)),
            };
            self.ready.push_back(delivered);
            ready.push(entry);
        }
    }

    /// Update the number of entries taken since the generation began.
    pub(crate) fn note_taken(&mut self, taken: u64) {
        while self.taken < taken {
            self.taken += 1;
            let delivered = self.ready.pop_front().unwrap_or_default();
            self.used -= delivered.bytes;
            if self.held.len() == HELD_MAX {
                self.held.pop_front();
            }
            self.held.push_back(delivered);
        }
    }

    /// The slot that the consumer takes next.
    pub(crate) fn next(&self) -> u64 {
        self.first.saturating_sub(self.ready.len() as u64)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Number of slots and their bytes, including ready ones.
    pub(crate) fn depth(&self) -> (usize, Bytes) {
        (self.slots.len() + self.ready.len(), self.used)
    }

    /// Discard everything, after a seek of the consumer.
    pub(crate) fn clear(&mut self) {
        self.first += self.slots.len() as u64;
        self.slots.clear();
        self.ready.clear();
        self.used = Bytes::ZERO;
        self.taken = 0;
    }
}

#[cfg(test)]
mod tests {
    use foresee_units::Step;

    use super::*;
    use crate::buffer::BufferPool;

    const BATCH: usize = 1 << 16;

    fn open(staging: &mut Staging, pool: &Arc<BufferPool>) -> Arc<Buffer> {
        let buffer = pool.lend(BATCH);
        let batch = Batch {
            epoch: Epoch(0),
            step: Step(0),
            start: 0,
            last: false,
            ids: vec![SampleId(0)],
            labels: vec![-1],
            offsets: vec![0, BATCH as u64],
            faults: Vec::new(),
            stages: Vec::new(),
            buffer: Arc::clone(&buffer),
        };
        staging.open(Slot::Batch(Stage { batch, entries: vec![SampleId(0)], planned: 1, pending: 0 }));
        buffer
    }

    #[test]
    fn batches_that_the_consumer_holds_take_capacity_but_never_more_than_half() {
        let batch = Bytes::new(BATCH as u64);
        let pool = Arc::new(BufferPool::new(Bytes::new(1 << 20), Arc::default()));
        let mut staging = Staging::new(Bytes::new(4 * BATCH as u64));
        let mut held: Vec<_> = (0..4).map(|_| open(&mut staging, &pool)).collect();
        assert!(!staging.has_capacity(batch, StagedFrom::Storage), "four batches are staged");
        let mut ready = Vec::new();
        staging.take_ready(&mut ready);
        staging.note_taken(3);
        ready.clear();
        assert!(staging.has_capacity(batch, StagedFrom::Storage), "three held batches count as two");
        held.push(open(&mut staging, &pool));
        assert!(!staging.has_capacity(batch, StagedFrom::Storage));
        held.drain(..2);
        assert!(staging.has_capacity(batch, StagedFrom::Storage), "two were dropped");
    }

    #[test]
    fn idle_capacity_can_be_borrowed_and_is_unavailable_until_it_is_returned() {
        let batch = Bytes::new(BATCH as u64);
        let pool = Arc::new(BufferPool::new(Bytes::new(1 << 20), Arc::default()));
        let mut staging = Staging::new(batch + batch);
        let _held = open(&mut staging, &pool);
        assert!(!staging.borrow_capacity(batch + batch), "one batch is staged");
        assert!(staging.borrow_capacity(batch));
        assert!(!staging.has_capacity(batch, StagedFrom::Storage));
        assert!(staging.borrow_capacity(Bytes::ZERO));
        assert!(staging.has_capacity(batch, StagedFrom::Storage));
    }

    #[test]
    fn one_batch_may_always_be_opened() {
        let pool = Arc::new(BufferPool::new(Bytes::new(1 << 20), Arc::default()));
        let mut staging = Staging::new(Bytes::new(1));
        assert!(staging.has_capacity(Bytes::new(BATCH as u64), StagedFrom::Storage));
        let _held = open(&mut staging, &pool);
        assert!(!staging.has_capacity(Bytes::ZERO, StagedFrom::Storage));
    }

    #[test]
    fn few_batches_are_staged_of_samples_in_memory() {
        let (pool, mib) = (Arc::new(BufferPool::new(Bytes::new(64 << 20), Arc::default())), |count: u64| {
            Bytes::new(count << 20)
        });
        let mut staging = Staging::new(mib(64));
        let _held = open(&mut staging, &pool);
        for (from, fitting) in [(StagedFrom::Memory, 7), (StagedFrom::Node, 3), (StagedFrom::Storage, 63)] {
            assert!(
                staging.has_capacity(mib(fitting), from) && !staging.has_capacity(mib(64), from),
                "{from:?}"
            );
        }
        assert!(!staging.has_capacity(mib(9), StagedFrom::Memory));
        assert!(staging.has_capacity(mib(9), StagedFrom::Node), "two of them");
    }
}
