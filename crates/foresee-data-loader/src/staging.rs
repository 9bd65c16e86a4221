// SPDX-License-Identifier: Apache-2.0
//! The staging line: batches on their way to the consumer, in its order.
//!
//! Space is reserved when a batch is opened, so reads may end in any order and nothing fragments. The limit is in bytes,
//! and it is the only backpressure. It counts batches that are ready but not taken, and those that the consumer still
//! holds, up to half of the limit: a consumer that never drops its batches does not stop the loader.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use foresee_units::{Bytes, Epoch, SampleId, Step};

use crate::batch::{Batch, Fault};
use crate::batch_queue::QueueEntry;
use crate::buffer::Buffer;

/// Batches of few bytes or none, and ends of epochs, take no capacity that counts, but a page of memory: they are bounded
/// by number.
const SLOTS_MAX: usize = 1 << 12;

/// Batches held by the consumer that are remembered: the latest ones.
const HELD_MAX: usize = 64;

/// Bytes on their way when all samples lie in memory: less than a common last-level cache.
const NEAR_LIMIT: Bytes = Bytes::new(8 << 20);

/// A batch that is not complete yet.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) epoch: Epoch,
    pub(crate) step: Step,
    pub(crate) start: u64,
    pub(crate) last: bool,
    pub(crate) samples: Vec<SampleId>,
    /// Entries of the samples, as many of each: what is read and planned.
    pub(crate) ids: Vec<SampleId>,
    /// One per sample.
    pub(crate) labels: Vec<i64>,
    /// One per entry, and the end.
    pub(crate) offsets: Vec<u64>,
    pub(crate) buffer: Arc<Buffer>,
    /// By entry.
    pub(crate) faults: Vec<Fault>,
    /// Samples whose source has been decided.
    pub(crate) planned: usize,
    /// Of these, how many have no bytes yet.
    pub(crate) pending: usize,
}

impl Stage {
    /// Where a sample's bytes go.
    pub(crate) fn span(&self, place: usize) -> (usize, usize) {
        let at =
            |index: usize| usize::try_from(self.offsets[index]).expect("a buffer fits the address space");
        (at(place), at(place + 1) - at(place))
    }

    pub(crate) fn bytes(&self) -> Bytes {
        Bytes::new(*self.offsets.last().expect("offsets end with the length"))
    }

    fn complete(&self) -> bool {
        self.planned == self.ids.len() && self.pending == 0
    }

    fn into_batch(mut self) -> Batch {
        self.faults.sort_by_key(|fault| fault.place);
        let parts = self.ids.len().checked_div(self.samples.len()).unwrap_or(1);
        if parts > 1 {
            // A sample is one range of bytes to whoever gets it, and has one fault: that of its first entry.
            self.offsets = self.offsets.into_iter().step_by(parts).collect();
            for fault in &mut self.faults {
                fault.place /= parts;
            }
            self.faults.dedup_by_key(|fault| fault.place);
        }
        Batch {
            epoch: self.epoch,
            step: self.step,
            start: self.start,
            last: self.last,
            ids: self.samples,
            labels: self.labels,
            offsets: self.offsets,
            faults: self.faults,
            turns: Vec::new(),
            buffer: self.buffer,
        }
    }
}

#[derive(Debug)]
enum Slot {
    Batch(Stage),
    End(Epoch),
}

/// A batch that has left the line.
#[derive(Debug, Default)]
struct Lent {
    bytes: Bytes,
    /// Whether anybody has it still; an epoch's end nobody has.
    memory: Weak<Buffer>,
}

/// The line of batches.
#[derive(Debug)]
pub(crate) struct Staging {
    slots: VecDeque<Slot>,
    /// Number of the first slot; slots are numbered through the loader's whole life.
    first: u64,
    limit: Bytes,
    /// Bytes in `slots` and in `handed`.
    used: Bytes,
    /// What was handed over and is not known to be taken.
    handed: VecDeque<Lent>,
    /// Batches that the consumer took; it may have given some back.
    held: VecDeque<Lent>,
    /// Capacity that copies on their way to the disk tier have borrowed.
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
            handed: VecDeque::new(),
            held: VecDeque::new(),
            borrowed: Bytes::ZERO,
            taken: 0,
        }
    }

    /// Whether a batch of `bytes`, or an epoch's end, may be opened now. One always may.
    ///
    /// `near`: nothing has to be fetched from afar, so there is no latency to hide. Then a few batches are enough, one if
    /// they are large, and their memory, used again and again, stays in the processor's caches.
    pub(crate) fn has_capacity(&mut self, bytes: Bytes, near: bool) -> bool {
        let slots = self.slots.len() + self.handed.len();
        let (taken, limit) =
            if near { (self.used, self.limit.min(NEAR_LIMIT)) } else { (self.used_capacity(), self.limit) };
        slots < SLOTS_MAX && (self.used == Bytes::ZERO || taken.saturating_add(bytes) <= limit)
    }

    /// Lends idle capacity, `bytes` in all from now on; `false` where there is not so much.
    pub(crate) fn borrow_capacity(&mut self, bytes: Bytes) -> bool {
        let others = self.used_capacity().saturating_sub(self.borrowed);
        let fits = bytes <= self.borrowed || others.saturating_add(bytes) <= self.limit;
        if fits {
            self.borrowed = bytes;
        }
        fits
    }

    fn used_capacity(&mut self) -> Bytes {
        self.used.saturating_add(self.held_bytes()).saturating_add(self.borrowed)
    }

    /// Bytes that the consumer has taken and not given back, as far as they count.
    fn held_bytes(&mut self) -> Bytes {
        self.held.retain(|lent| lent.memory.strong_count() > 0);
        let bytes: Bytes = self.held.iter().map(|lent| lent.bytes).sum();
        bytes.min(Bytes::new(self.limit.get() / 2))
    }

    pub(crate) fn open(&mut self, stage: Stage) {
        self.used += stage.bytes();
        self.slots.push_back(Slot::Batch(stage));
    }

    pub(crate) fn end_epoch(&mut self, epoch: Epoch) {
        self.slots.push_back(Slot::End(epoch));
    }

    /// Number of the slot that was opened last.
    pub(crate) fn newest(&self) -> u64 {
        self.first + self.slots.len() as u64 - 1
    }

    /// The batch that is still being planned, if any: always the last one.
    pub(crate) fn planning(&mut self) -> Option<&mut Stage> {
        match self.slots.back_mut() {
            Some(Slot::Batch(stage)) if stage.planned < stage.ids.len() => Some(stage),
            _ => None,
        }
    }

    /// A batch by number; `None` once it has left the line.
    pub(crate) fn get(&mut self, number: u64) -> Option<&mut Stage> {
        let place = usize::try_from(number.checked_sub(self.first)?).ok()?;
        match self.slots.get_mut(place)? {
            Slot::Batch(stage) => Some(stage),
            Slot::End(_) => None,
        }
    }

    /// The batch that the consumer gets next, with its number.
    pub(crate) fn head(&mut self) -> Option<(u64, &mut Stage)> {
        match self.slots.front_mut() {
            Some(Slot::Batch(stage)) => Some((self.first, stage)),
            _ => None,
        }
    }

    /// Takes out whatever is complete, in order.
    pub(crate) fn take_ready(&mut self, ready: &mut Vec<QueueEntry>) {
        loop {
            match self.slots.front() {
                Some(Slot::Batch(stage)) if stage.complete() => {}
                Some(Slot::End(_)) => {}
                _ => return,
            }
            self.first += 1;
            match self.slots.pop_front() {
                Some(Slot::Batch(stage)) => {
                    self.handed
                        .push_back(Lent { bytes: stage.bytes(), memory: Arc::downgrade(&stage.buffer) });
                    ready.push(QueueEntry::Batch(stage.into_batch()));
                }
                Some(Slot::End(epoch)) => {
                    self.handed.push_back(Lent::default());
                    ready.push(QueueEntry::End(epoch));
                }
                None => return,
            }
        }
    }

    /// Follows the number of entries taken since the generation began.
    pub(crate) fn note_taken(&mut self, taken: u64) {
        while self.taken < taken {
            self.taken += 1;
            let lent = self.handed.pop_front().unwrap_or_default();
            self.used -= lent.bytes;
            if self.held.len() == HELD_MAX {
                self.held.pop_front();
            }
            self.held.push_back(lent);
        }
    }

    /// The slot that the consumer takes next.
    pub(crate) fn next(&self) -> u64 {
        self.first.saturating_sub(self.handed.len() as u64)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Slots and bytes on their way, ready ones included.
    pub(crate) fn depth(&self) -> (usize, Bytes) {
        (self.slots.len() + self.handed.len(), self.used)
    }

    /// Discards everything: the consumer began an epoch elsewhere.
    pub(crate) fn clear(&mut self) {
        self.first += self.slots.len() as u64;
        self.slots.clear();
        self.handed.clear();
        self.used = Bytes::ZERO;
        self.taken = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::BufferPool;

    const BATCH: usize = 1 << 16;

    fn open(staging: &mut Staging, pool: &Arc<BufferPool>) -> Arc<Buffer> {
        let buffer = pool.lend(BATCH);
        staging.open(Stage {
            epoch: Epoch(0),
            step: Step(0),
            start: 0,
            last: false,
            samples: vec![SampleId(0)],
            ids: vec![SampleId(0)],
            labels: vec![-1],
            offsets: vec![0, BATCH as u64],
            buffer: Arc::clone(&buffer),
            faults: Vec::new(),
            planned: 1,
            pending: 0,
        });
        buffer
    }

    #[test]
    fn batches_that_the_consumer_holds_take_capacity_but_never_more_than_half() {
        let batch = Bytes::new(BATCH as u64);
        let pool = Arc::new(BufferPool::new(Bytes::new(1 << 20), Arc::default()));
        let mut staging = Staging::new(Bytes::new(4 * BATCH as u64));
        let mut held: Vec<_> = (0..4).map(|_| open(&mut staging, &pool)).collect();
        assert!(!staging.has_capacity(batch, false), "four batches are on their way");
        let mut ready = Vec::new();
        staging.take_ready(&mut ready);
        staging.note_taken(3);
        ready.clear();
        assert!(staging.has_capacity(batch, false), "three that it holds count as two");
        held.push(open(&mut staging, &pool));
        assert!(!staging.has_capacity(batch, false));
        held.drain(..2);
        assert!(staging.has_capacity(batch, false), "it has given two back");
    }

    #[test]
    fn idle_capacity_can_be_borrowed_and_is_missing_until_it_is_given_back() {
        let batch = Bytes::new(BATCH as u64);
        let pool = Arc::new(BufferPool::new(Bytes::new(1 << 20), Arc::default()));
        let mut staging = Staging::new(batch + batch);
        let _held = open(&mut staging, &pool);
        assert!(!staging.borrow_capacity(batch + batch), "one batch is on its way");
        assert!(staging.borrow_capacity(batch));
        assert!(!staging.has_capacity(batch, false));
        assert!(staging.borrow_capacity(Bytes::ZERO));
        assert!(staging.has_capacity(batch, false));
    }

    #[test]
    fn one_batch_may_always_be_opened() {
        let pool = Arc::new(BufferPool::new(Bytes::new(1 << 20), Arc::default()));
        let mut staging = Staging::new(Bytes::new(1));
        assert!(staging.has_capacity(Bytes::new(BATCH as u64), false));
        let _held = open(&mut staging, &pool);
        assert!(!staging.has_capacity(Bytes::ZERO, false));
    }
}
