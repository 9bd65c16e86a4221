// SPDX-License-Identifier: Apache-2.0
//! Which copy leaves a tier first: one without an announced use, one of a consumer that stands still and owns too much, or
//! the one that is used latest.

use super::{MEMORY_POOLS, Pool, QUEUES, Residents, pools_of};
use crate::next_use::position;
use crate::node::action::NodeTier;
use crate::node::consumer::{Consumers, TimeUntil};

impl Residents {
    /// The entry to evict first from the memory, if it is used later than `after`.
    ///
    /// A copy that the disk has too costs no read of the origin. So it leaves first, unless another copy is used later
    /// and the disk has free space or unused copies, so that it will be written there. Reserved entries are among the
    /// others if the disk can take them.
    pub(in crate::node) fn memory_victim(
        &mut self,
        after: Option<TimeUntil>,
        consumers: &Consumers,
    ) -> Option<u32> {
        let pools = pools_of(NodeTier::Memory);
        let takes_reserved = self.can_store_reserved();
        let unknown = self
            .unknown(MEMORY_POOLS)
            .or_else(|| if takes_reserved { self.unknown(Pool::ReservedMemory.bit()) } else { None });
        if let Some(entry) = unknown.or_else(|| self.excess(pools, consumers)) {
            return Some(entry);
        }
        let is_later = |one: &(TimeUntil, u32)| after.is_none_or(|after| one.0 > after);
        let duplicate = self.farthest(Pool::Duplicate, consumers).filter(is_later);
        let only = self.farthest(Pool::MemoryOnly, consumers);
        let reserved = if takes_reserved { self.farthest(Pool::ReservedMemory, consumers) } else { None };
        let is_reserved = reserved > only;
        let only = only.max(reserved).filter(is_later);
        let (Some(duplicate), Some(only)) = (duplicate, only) else {
            return duplicate.or(only).map(|(_, entry)| entry);
        };
        let has_space = is_reserved || self.cost(only.1, Pool::Disk) <= self.disk.free();
        let is_stored = only > duplicate && (has_space || self.unknown(Pool::Disk.bit()).is_some());
        Some(if is_stored { only.1 } else { duplicate.1 })
    }

    /// The entry to evict first from the disk, if it is used later than `after`.
    pub(in crate::node) fn disk_victim(
        &mut self,
        after: Option<TimeUntil>,
        consumers: &Consumers,
    ) -> Option<u32> {
        if let Some(entry) =
            self.unknown(Pool::Disk.bit()).or_else(|| self.excess(pools_of(NodeTier::Disk), consumers))
        {
            return Some(entry);
        }
        let (time, entry) = self.farthest(Pool::Disk, consumers)?;
        after.is_none_or(|after| time > after).then_some(entry)
    }

    /// Whether the disk has space for any reserved entry, free or taken by other copies. If it has less, none is written, so
    /// that the choice does not depend on sizes.
    pub(in crate::node) fn can_store_reserved(&self) -> bool {
        self.disk.limits.cost(self.largest) <= self.disk.free() + self.pool_bytes[Pool::Disk as usize]
    }

    /// Whether only reserved entries are in memory, and all of them may leave.
    pub(in crate::node) fn has_only_reserved(&self) -> bool {
        self.memory.used == self.pool_bytes[Pool::ReservedMemory as usize]
    }

    /// The reserved entry that leaves the tier, and with it the node, when no other does.
    pub(in crate::node) fn reserved_victim(&mut self, tier: NodeTier, consumers: &Consumers) -> Option<u32> {
        let pool = if tier == NodeTier::Memory { Pool::ReservedMemory } else { Pool::ReservedDisk };
        self.unknown(pool.bit()).or_else(|| self.farthest(pool, consumers).map(|(_, entry)| entry))
    }

    /// Take an entry out of the order of victims until its next change: a caller that collects several victims.
    pub(in crate::node) fn withdraw(&mut self, entry: u32, pool: Pool) {
        let resident = self.entries[entry as usize];
        if resident.is_known() {
            let owner = self.accesses.locate(resident.owner);
            self.leave(entry, pool.bit(), owner);
        }
        self.entries[entry as usize].pools &= !pool.bit();
        self.pool_bytes[pool as usize] -= self.cost(entry, pool);
    }

    /// The entry unused for longest, of those without an announced use in the pools of a queue.
    fn unknown(&mut self, pools: u8) -> Option<u32> {
        let queue = QUEUES.iter().position(|&of_queue| of_queue == pools).expect("the pools of a queue");
        let notes = &mut self.notes[queue];
        while let Some(note) = notes.front() {
            if self.entries[note.entry as usize].is_noted(note.stamp, pools) {
                return Some(note.entry);
            }
            notes.pop_front();
        }
        None
    }

    /// The farthest entry of a consumer that stands still and owns more than such consumers may.
    fn excess(&mut self, pools: &[Pool], consumers: &Consumers) -> Option<u32> {
        for consumer in 0..self.owned.len() {
            if self.owned_bytes(consumer, pools) <= self.stalled_bytes_max
                || !consumers.stands_still(consumer)
            {
                continue;
            }
            for &pool in pools {
                while self.owned_bytes(consumer, pools) > self.stalled_bytes_max
                    && let Some((bound, entry)) = self.farthest_of(consumer, pool, consumers)
                {
                    if self.is_confirmed(entry, bound, consumers) {
                        return Some(entry);
                    }
                }
            }
        }
        None
    }

    /// The known entry of a pool with the farthest key; of equal ones that with the largest number.
    fn farthest(&mut self, pool: Pool, consumers: &Consumers) -> Option<(TimeUntil, u32)> {
        loop {
            let of_each = (0..self.owned.len()).filter_map(|one| self.farthest_of(one, pool, consumers));
            let (bound, entry) = of_each.max()?;
            if self.is_confirmed(entry, bound, consumers) {
                return Some((bound, entry));
            }
        }
    }

    /// The farthest entry that a consumer owns in a pool.
    fn farthest_of(&self, consumer: usize, pool: Pool, consumers: &Consumers) -> Option<(TimeUntil, u32)> {
        let owned = &self.owned[consumer];
        if owned.count[pool as usize] == 0 {
            return None;
        }
        let first = self.accesses.first(consumer);
        let offset = owned.sets[pool as usize].farthest(position(first), self.accesses.len(consumer))?;
        let number = first + offset as u64;
        let (entry, _) = self.accesses.access(consumer, number);
        // Its uses are compared when no other consumer owns a farther one, mostly some calls later.
        self.prefetch(entry);
        Some((consumers.time_until(consumer, number), entry))
    }

    /// Whether no other consumer uses the entry before its owner does, at `bound`; otherwise it changes its owner.
    fn is_confirmed(&mut self, entry: u32, bound: TimeUntil, consumers: &Consumers) -> bool {
        match self.next_use(entry, consumers) {
            Some((time, sooner)) if time < bound => {
                self.change_owner(entry, Some(sooner));
                false
            }
            _ => true,
        }
    }
}
