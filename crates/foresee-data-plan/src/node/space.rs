// SPDX-License-Identifier: Apache-2.0
//! The next read, and the space for it: which copies leave the memory and the disk, and which are written to disk.

use foresee_units::Bytes;

use super::NodePlanner;
use super::action::{EntryId, NodeAction, NodeTier};
use super::consumer::TimeUntil;
use super::residents::{Pool, flag, pools_of};
use crate::next_use::narrow;

/// Share of the memory for entries that are written to disk before they leave it.
const EARLY_SHARE: u64 = 8;

/// Whether bytes are free in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FreeSpace {
    Ready,
    /// When the writes in flight have ended.
    AfterWrite,
    /// When a read or a write in flight has ended, a pin was released, or uses have moved away.
    AfterRelease,
}

/// What memory is freed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpaceFor {
    /// A request: pins whose time is over are taken back, and at last reserved entries leave.
    Request,
    /// An entry that another node sends.
    Offer,
    /// An announced access at this time: only entries used later leave.
    ReadAhead(TimeUntil),
}

impl NodePlanner {
    /// Fit the tiers into their capacities, and start the read of the first request that waits; return whether that
    /// changed anything.
    ///
    /// Only the first may have space made for it. So a large entry waits no longer than a small one.
    pub(super) fn advance(&mut self) -> bool {
        let before = self.actions.len();
        while self.residents.disk.used > self.residents.disk.limits.capacity
            && let Some(victim) = self
                .residents
                .disk_victim(None, &self.consumers)
                .or_else(|| self.residents.reserved_victim(NodeTier::Disk, &self.consumers))
        {
            self.evict(victim, NodeTier::Disk);
        }
        let mut space = self.make_space(Bytes::ZERO, SpaceFor::Request);
        if let Some(&first) = self.waiting.first()
            && let Some(entry) = self.entry_of(first)
        {
            let memory = &self.residents.memory;
            let cost = memory.limits.cost(self.residents.size(entry));
            if cost > memory.limits.capacity {
                self.fail_waiting(entry);
            } else {
                space = self.make_space(cost, SpaceFor::Request);
                if space == FreeSpace::Ready {
                    self.start_read(first, entry);
                }
            }
        }
        self.is_blocked = space == FreeSpace::AfterRelease;
        self.actions.len() > before
    }

    /// Remove a copy that is in no use.
    pub(super) fn evict(&mut self, entry: u32, tier: NodeTier) {
        let size = self.residents.size(entry);
        if tier == NodeTier::Memory {
            self.residents.memory.remove(size);
            self.residents.update(entry, 0, flag::IN_MEMORY | flag::AHEAD, &self.consumers);
        } else {
            self.residents.disk.remove(size);
            self.residents.update(entry, 0, flag::ON_DISK, &self.consumers);
        }
        self.actions.push_back(NodeAction::Evict { entry: EntryId(entry), tier });
    }

    /// Evict entries until `cost` bytes are free in memory, as far as that is possible now.
    pub(super) fn make_space(&mut self, cost: Bytes, purpose: SpaceFor) -> FreeSpace {
        let after = if let SpaceFor::ReadAhead(time) = purpose { Some(time) } else { None };
        loop {
            let memory = &self.residents.memory;
            let capacity = memory.limits.capacity;
            if memory.used + cost <= capacity {
                return FreeSpace::Ready;
            }
            if memory.used.saturating_sub(self.bytes_being_stored()) + cost <= capacity {
                return FreeSpace::AfterWrite;
            }
            if let Some(victim) = self.residents.memory_victim(after, &self.consumers) {
                if self.make_disk_space(victim) {
                    self.store(victim, true);
                } else {
                    self.evict(victim, NodeTier::Memory);
                }
            } else if purpose != SpaceFor::Request || !(self.take_back_oldest() || self.drop_reserved()) {
                return FreeSpace::AfterRelease;
            }
        }
    }

    /// Evict a reserved entry from the memory if nothing else will leave it: a request does not wait for ever. Returns whether
    /// one was evicted.
    fn drop_reserved(&mut self) -> bool {
        if !self.residents.has_only_reserved() {
            return false;
        }
        let victim = self.residents.reserved_victim(NodeTier::Memory, &self.consumers);
        if let Some(victim) = victim {
            self.evict(victim, NodeTier::Memory);
        }
        victim.is_some()
    }

    /// Write every entry that only the memory holds to the disk, in order of the entries, while that has free space.
    pub(super) fn store_all(&mut self) {
        for entry in 0..narrow(self.residents.len()) {
            let disk = &self.residents.disk;
            if self.is_unsaved(entry) && disk.limits.cost(self.residents.size(entry)) <= disk.free() {
                self.store(entry, false);
            }
        }
    }

    /// Write entries that were read from the origin to the disk while they stay in memory, if the disk can hold all entries.
    /// Entries being written cannot leave the memory, so they wait for each other; one is always written.
    pub(super) fn store_early(&mut self) {
        let most = Bytes::new(self.residents.memory.limits.capacity.get() / EARLY_SHARE);
        while let Some(&entry) = self.unsaved.front() {
            let disk = &self.residents.disk;
            let size = self.residents.size(entry);
            let can_hold_all = self.data_cost.disk <= disk.limits.capacity;
            let is_unsaved = self.is_unsaved(entry) && disk.limits.cost(size) <= disk.free();
            if can_hold_all && is_unsaved {
                if !self.storing_early.is_zero() && self.storing_early + size > most {
                    return;
                }
                self.store(entry, false);
            }
            self.unsaved.pop_front();
        }
    }

    /// Whether only the memory holds an entry, and it is not being written.
    fn is_unsaved(&self, entry: u32) -> bool {
        self.residents.is(entry, flag::IN_MEMORY)
            && !self.residents.is(entry, flag::ON_DISK)
            && !self.residents.is(entry, flag::STORING)
    }

    /// Whether an attached consumer may announce more accesses.
    fn may_announce(&self) -> bool {
        let attached = |consumer: &usize| self.consumers.get(*consumer).is_some();
        (0..self.consumers.slots()).filter(attached).any(|one| !self.residents.accesses.has_ended(one))
    }

    /// Bytes of memory that are free to leave when their writes end.
    fn bytes_being_stored(&self) -> Bytes {
        let is_leaving = |entry: u32, leaves: bool| {
            leaves && self.residents.is(entry, flag::IN_MEMORY) && !self.residents.is(entry, flag::PINNED)
        };
        let leaving = self.storing.iter().filter(|&(&entry, &leaves)| is_leaving(entry, leaves));
        leaving.map(|(&entry, _)| self.residents.memory.limits.cost(self.residents.size(entry))).sum()
    }

    /// Write an entry to the disk. `leaves`: whether it leaves the memory then.
    fn store(&mut self, entry: u32, leaves: bool) {
        self.storing.insert(entry, leaves);
        if !leaves {
            self.storing_early += self.residents.size(entry);
        }
        self.residents.disk.add(self.residents.size(entry));
        self.residents.update(entry, flag::STORING, 0, &self.consumers);
        self.actions.push_back(NodeAction::Store { entry: EntryId(entry) });
    }

    /// Whether the disk should hold a copy of a victim of the memory: there is free space, or there are copies used
    /// later, which then leave; for a reserved one any copy that is not. All of the space is found before anything leaves.
    fn make_disk_space(&mut self, victim: u32) -> bool {
        let disk = &self.residents.disk;
        let (cost, capacity) = (disk.limits.cost(self.residents.size(victim)), disk.limits.capacity);
        let is_held = self.residents.is(victim, flag::ON_DISK) || self.residents.is(victim, flag::STORING);
        if is_held || cost > capacity {
            return false;
        }
        let is_reserved = self.residents.is(victim, flag::RESERVED);
        let next = self.residents.next_use(victim, &self.consumers);
        if disk.used + cost <= capacity {
            // An entry without an announced use may still get one.
            return is_reserved || next.is_some() || self.may_announce();
        }
        let after = if is_reserved {
            None
        } else {
            let Some((time, owner)) = next else { return false };
            let protected = self.residents.owned_bytes(owner.consumer, pools_of(NodeTier::Disk)) + cost;
            if protected > self.residents.stalled_bytes_max && self.consumers.stands_still(owner.consumer) {
                return false;
            }
            Some(time)
        };
        let mut used = disk.used;
        let mut leaving = Vec::new();
        while used + cost > capacity
            && let Some(entry) = self.residents.disk_victim(after, &self.consumers)
        {
            self.residents.withdraw(entry, Pool::Disk);
            used -= self.residents.disk.limits.cost(self.residents.size(entry));
            leaving.push(entry);
        }
        let is_enough = used + cost <= capacity;
        for entry in leaving {
            if is_enough {
                self.evict(entry, NodeTier::Disk);
            } else {
                self.residents.update(entry, 0, 0, &self.consumers);
            }
        }
        is_enough
    }
}
