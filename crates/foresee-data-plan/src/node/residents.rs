// SPDX-License-Identifier: Apache-2.0
//! The entries of both tiers, and the order in which they are evicted.
//!
//! An entry is known if a consumer announced a use of it. Its key is the earliest predicted use by any consumer, and
//! the farthest key is evicted first (Belady's MIN over the node). Keys change with every progress, so none is stored:
//! each known entry belongs to an owner, a consumer that uses it, and is a member of the owner's sets at the position of
//! that use. The owner's time is an upper bound of the key, so the farthest bound is compared with the true key, and
//! the entry changes its owner if another consumer uses it sooner.
//!
//! Entries without an announced use are evicted before all others, the one unused for longest first.
//!
//! Reserved entries, which other nodes read here, have pools of their own: the last copy does not leave the node.

mod eviction;

use std::collections::{BTreeMap, VecDeque};

use foresee_units::{Bytes, Source};

use super::accesses::{Accesses, Use};
use super::action::NodeTier;
use super::consumer::{Consumers, TimeUntil};
use crate::capacity::TierUsage;
use crate::farthest::PositionSet;
use crate::hint;
use crate::next_use::position;

/// Copies of an entry that may be evicted, by the place where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pool {
    /// In memory, while the disk has a copy: its eviction costs no read of the origin.
    Duplicate,
    /// Only in memory.
    MemoryOnly,
    /// On disk.
    Disk,
    /// Only in memory, and reserved: it leaves the memory for the disk alone.
    ReservedMemory,
    /// On disk, and reserved.
    ReservedDisk,
}

const POOLS: [Pool; 5] =
    [Pool::Duplicate, Pool::MemoryOnly, Pool::Disk, Pool::ReservedMemory, Pool::ReservedDisk];
/// Notes beyond twice the entries of a tier that trigger no clean-up.
const NOTES_SLACK: usize = 1024;

impl Pool {
    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The pools whose entries may leave the memory for any other.
const MEMORY_POOLS: u8 = Pool::Duplicate.bit() | Pool::MemoryOnly.bit();
/// The pools of each queue of entries without an announced use.
const QUEUES: [u8; 4] =
    [MEMORY_POOLS, Pool::Disk.bit(), Pool::ReservedMemory.bit(), Pool::ReservedDisk.bit()];

/// The state of an entry.
pub(super) mod flag {
    pub(crate) const IN_MEMORY: u16 = 1;
    /// The disk has a complete copy.
    pub(crate) const ON_DISK: u16 = 1 << 1;
    /// A read into memory is in flight; with `ON_DISK`, from the disk.
    pub(crate) const READING: u16 = 1 << 2;
    /// A write to the disk is in flight.
    pub(crate) const STORING: u16 = 1 << 3;
    /// Pinned by an answer.
    pub(crate) const PINNED: u16 = 1 << 4;
    /// The bytes in memory were lost during the write, so the new copy on disk may be wrong.
    pub(crate) const SUSPECT: u16 = 1 << 5;
    /// It was read ahead from the disk, and not requested since.
    pub(crate) const AHEAD_FROM_DISK: u16 = 1 << 6;
    /// It was read ahead from the origin, and not requested since.
    pub(crate) const AHEAD_FROM_ORIGIN: u16 = 1 << 7;
    /// It was received from another node, and not requested since.
    pub(crate) const AHEAD_FROM_PEER: u16 = 1 << 8;
    pub(crate) const AHEAD: u16 = AHEAD_FROM_DISK | AHEAD_FROM_ORIGIN | AHEAD_FROM_PEER;
    /// Other nodes read it here.
    pub(crate) const RESERVED: u16 = 1 << 9;
    /// Its place in the pools is that of an announced use.
    pub(super) const KNOWN: u16 = 1 << 10;
}

#[derive(Clone, Copy, Debug)]
struct Resident {
    size: u32,
    /// Of a known entry the slot of its owner's access, else the stamp of its last use; valid in a pool.
    owner: u32,
    flags: u16,
    /// Bits of the pools with this entry.
    pools: u8,
    /// Answers that pin it; those beyond the maximum are in `more_pins`.
    pins: u8,
}

impl Resident {
    const fn is_known(self) -> bool {
        self.flags & flag::KNOWN != 0
    }

    /// Whether it is in one of the pools without an announced use, and unused since the note with this stamp.
    fn is_noted(self, stamp: u32, pools: u8) -> bool {
        !self.is_known() && self.pools & pools != 0 && self.owner == stamp
    }
}

/// The owned entries of one consumer, by pool.
#[derive(Debug, Default)]
struct Owned {
    sets: [PositionSet; POOLS.len()],
    /// Bytes in each tier's unit of allocation.
    bytes: [Bytes; POOLS.len()],
    count: [usize; POOLS.len()],
}

/// An entry without an announced use; valid while its stamp is the entry's.
#[derive(Clone, Copy, Debug)]
struct IdleNote {
    entry: u32,
    stamp: u32,
}

/// The entries, the copies in both tiers, and their order.
#[derive(Debug)]
pub(super) struct Residents {
    entries: Vec<Resident>,
    pub(super) accesses: Accesses,
    pub(super) memory: TierUsage,
    pub(super) disk: TierUsage,
    owned: Vec<Owned>,
    /// Entries without an announced use, by queue in order of their last use.
    notes: [VecDeque<IdleNote>; QUEUES.len()],
    stamp: u32,
    /// By entry: pins beyond those that it counts itself.
    more_pins: BTreeMap<u32, usize>,
    /// Bytes of the entries in each pool.
    pool_bytes: [Bytes; POOLS.len()],
    /// Size of the largest entry.
    largest: Bytes,
    pub(super) stalled_bytes_max: Bytes,
}

impl Residents {
    pub(super) fn new(memory: TierUsage, disk: TierUsage, stalled_bytes_max: Bytes) -> Self {
        Self {
            entries: Vec::new(),
            accesses: Accesses::default(),
            memory,
            disk,
            owned: Vec::new(),
            notes: QUEUES.map(|_| VecDeque::new()),
            stamp: 0,
            more_pins: BTreeMap::new(),
            pool_bytes: [Bytes::ZERO; POOLS.len()],
            largest: Bytes::ZERO,
            stalled_bytes_max,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn add_entry(&mut self, size: u32) {
        self.accesses.add_entry();
        self.entries.push(Resident { size, owner: 0, flags: 0, pools: 0, pins: 0 });
        self.largest = self.largest.max(Bytes::new(u64::from(size)));
    }

    pub(super) fn size(&self, entry: u32) -> Bytes {
        Bytes::new(u64::from(self.entries[entry as usize].size))
    }

    pub(super) fn is(&self, entry: u32, flag: u16) -> bool {
        self.entries[entry as usize].flags & flag == flag
    }

    /// The source of an entry in memory: that of its read for the first request after a read ahead.
    pub(super) fn take_read_source(&mut self, entry: u32) -> Source {
        let flags = &mut self.entries[entry as usize].flags;
        let ahead = *flags & flag::AHEAD;
        *flags &= !flag::AHEAD;
        match ahead {
            flag::AHEAD_FROM_DISK => Source::Disk,
            flag::AHEAD_FROM_ORIGIN => Source::Origin,
            flag::AHEAD_FROM_PEER => Source::Peer,
            _ => Source::Ram,
        }
    }

    pub(super) fn attach(&mut self, consumer: usize) {
        self.accesses.attach(consumer);
        if self.owned.len() <= consumer {
            self.owned.resize_with(consumer + 1, Owned::default);
        }
    }

    /// Free the sets of a consumer without announced accesses.
    pub(super) fn detach(&mut self, consumer: usize) {
        self.owned[consumer] = Owned::default();
    }

    /// Set and clear flags of an entry, whose place in the pools follows.
    pub(super) fn update(&mut self, entry: u32, set: u16, clear: u16, consumers: &Consumers) {
        let flags = self.entries[entry as usize].flags & !clear | set;
        self.entries[entry as usize].flags = flags;
        let mut pools = 0;
        let busy = flag::READING | flag::STORING | flag::PINNED;
        let is_reserved = flags & flag::RESERVED != 0;
        let is_on_disk = flags & flag::ON_DISK != 0;
        if flags & flag::IN_MEMORY != 0 && flags & busy == 0 {
            let pool = match (is_on_disk, is_reserved) {
                (true, _) => Pool::Duplicate,
                (false, false) => Pool::MemoryOnly,
                (false, true) => Pool::ReservedMemory,
            };
            pools |= pool.bit();
        }
        if is_on_disk && flags & flag::READING == 0 {
            pools |= if is_reserved { Pool::ReservedDisk } else { Pool::Disk }.bit();
        }
        self.set_pools(entry, pools, consumers);
    }

    /// An answer pins an entry.
    pub(super) fn pin(&mut self, entry: u32, consumers: &Consumers) {
        let resident = &mut self.entries[entry as usize];
        match resident.pins.checked_add(1) {
            Some(pins) => resident.pins = pins,
            None => *self.more_pins.entry(entry).or_default() += 1,
        }
        if !self.is(entry, flag::PINNED) {
            self.update(entry, flag::PINNED, 0, consumers);
        }
    }

    /// An answer no longer pins an entry.
    pub(super) fn unpin(&mut self, entry: u32, consumers: &Consumers) {
        if let Some(more) = self.more_pins.get_mut(&entry) {
            *more -= 1;
            if *more == 0 {
                self.more_pins.remove(&entry);
            }
            return;
        }
        let resident = &mut self.entries[entry as usize];
        resident.pins -= 1;
        if resident.pins == 0 {
            self.update(entry, 0, flag::PINNED, consumers);
        }
    }

    /// Append accesses of entries, which must exist.
    pub(super) fn announce(
        &mut self,
        consumer: usize,
        entries: &mut dyn Iterator<Item = u32>,
        consumers: &Consumers,
    ) {
        self.accesses.reserve(entries.size_hint().0);
        self.reserve(consumer, entries.size_hint().0);
        // Each entry's tables are a cache miss, so they are prefetched: first the entry, then what it points at.
        let mut pending = VecDeque::with_capacity(hint::AHEAD + 1);
        loop {
            let next = entries.next();
            if let Some(entry) = next {
                self.prefetch(entry);
                pending.push_back(entry);
                if let Some(&nearer) = pending.get(hint::AHEAD / 2) {
                    self.accesses.prefetch_ring(nearer);
                }
            }
            if next.is_none() || pending.len() > hint::AHEAD {
                let Some(entry) = pending.pop_front() else { return };
                self.announce_one(consumer, entry, consumers);
            }
        }
    }

    /// Prefetch the tables for accesses after `number`, which the consumer is likely to request soon.
    pub(super) fn prefetch_after(&self, consumer: usize, number: u64) {
        let end = self.accesses.first(consumer) + self.accesses.len(consumer) as u64;
        let far = number + hint::AHEAD as u64;
        if far < end {
            self.prefetch(self.accesses.access(consumer, far).0);
            self.accesses.prefetch_ring(self.accesses.access(consumer, number + hint::AHEAD as u64 / 2).0);
        }
    }

    fn prefetch(&self, entry: u32) {
        hint::prefetch(&self.entries, entry as usize);
        self.accesses.prefetch(entry);
    }

    fn announce_one(&mut self, consumer: usize, entry: u32, consumers: &Consumers) {
        self.reserve(consumer, 1);
        let Some(found) = self.accesses.announce(consumer, entry) else { return };
        let resident = self.entries[entry as usize];
        if resident.pools == 0 {
            return;
        }
        let nearer = !resident.is_known() || {
            let owner = self.accesses.locate(resident.owner);
            consumers.time_until(consumer, found.number) < consumers.time_until(owner.consumer, owner.number)
        };
        if nearer {
            self.change_owner(entry, Some(found));
        }
    }

    /// Make the sets of a consumer as long as its announced accesses and `more`.
    fn reserve(&mut self, consumer: usize, more: usize) {
        let len = self.accesses.len(consumer) + more;
        let owned = &mut self.owned[consumer];
        if len <= owned.sets[0].span() {
            return;
        }
        owned.sets = POOLS.map(|_| PositionSet::with_span(len));
        let first = self.accesses.first(consumer);
        for number in first..first + self.accesses.len(consumer) as u64 {
            let (entry, slot) = self.accesses.access(consumer, number);
            let resident = self.entries[entry as usize];
            if resident.is_known() && resident.owner == slot {
                for pool in POOLS.into_iter().filter(|pool| resident.pools & pool.bit() != 0) {
                    owned.sets[pool as usize].insert(position(number));
                }
            }
        }
    }

    /// Remove the consumer's first announced access and return its entry.
    pub(super) fn advance(&mut self, consumer: usize, consumers: &Consumers) -> Option<u32> {
        let number = self.accesses.first(consumer);
        let (entry, slot) = self.accesses.advance(consumer)?;
        let resident = self.entries[entry as usize];
        if resident.pools != 0 && resident.is_known() && resident.owner == slot {
            self.leave(entry, resident.pools, Use { slot, consumer, number });
            let next = self.next_use(entry, consumers).map(|(_, next)| next);
            self.enter(entry, resident.pools, next);
        }
        Some(entry)
    }

    /// The earliest predicted use of an entry by any consumer.
    pub(super) fn next_use(&self, entry: u32, consumers: &Consumers) -> Option<(TimeUntil, Use)> {
        self.accesses
            .next_uses(entry)
            .map(|one| (consumers.time_until(one.consumer, one.number), one))
            .min_by_key(|(time, one)| (*time, one.consumer))
    }

    /// Bytes of the tier's evictable entries that belong to a consumer.
    pub(super) fn owned_bytes(&self, consumer: usize, pools: &[Pool]) -> Bytes {
        self.owned
            .get(consumer)
            .map_or(Bytes::ZERO, |owned| pools.iter().map(|&pool| owned.bytes[pool as usize]).sum())
    }

    pub(super) fn table_bytes(&self) -> u64 {
        let sets = self.owned.iter().flat_map(|owned| &owned.sets).map(PositionSet::table_bytes);
        let notes: usize = self.notes.iter().map(VecDeque::capacity).sum();
        let tables = self.entries.capacity() * size_of::<Resident>() + notes * size_of::<IdleNote>();
        self.accesses.table_bytes() + sets.sum::<u64>() + tables as u64
    }

    fn set_pools(&mut self, entry: u32, pools: u8, consumers: &Consumers) {
        let resident = self.entries[entry as usize];
        if resident.pools == pools {
            return;
        }
        self.entries[entry as usize].pools = pools;
        for pool in POOLS.into_iter().filter(|pool| (resident.pools ^ pools) & pool.bit() != 0) {
            let cost = self.cost(entry, pool);
            let bytes = &mut self.pool_bytes[pool as usize];
            if pools & pool.bit() != 0 { *bytes += cost } else { *bytes -= cost }
        }
        if resident.pools == 0 {
            let next = self.next_use(entry, consumers).map(|(_, next)| next);
            self.enter(entry, pools, next);
        } else if resident.is_known() {
            let owner = self.accesses.locate(resident.owner);
            self.leave(entry, resident.pools & !pools, owner);
            self.join(entry, pools & !resident.pools, owner);
        } else {
            self.enter(entry, pools, None);
        }
    }

    fn change_owner(&mut self, entry: u32, owner: Option<Use>) {
        let resident = self.entries[entry as usize];
        if resident.is_known() {
            let owner = self.accesses.locate(resident.owner);
            self.leave(entry, resident.pools, owner);
        }
        self.enter(entry, resident.pools, owner);
    }

    /// Enter an entry, which has no owner, into pools.
    fn enter(&mut self, entry: u32, pools: u8, owner: Option<Use>) {
        let resident = &mut self.entries[entry as usize];
        if let Some(owner) = owner {
            resident.flags |= flag::KNOWN;
            resident.owner = owner.slot;
            self.join(entry, pools, owner);
            return;
        }
        resident.flags &= !flag::KNOWN;
        self.stamp = self.stamp.wrapping_add(1);
        resident.owner = self.stamp;
        for queue in (0..QUEUES.len()).filter(|&queue| pools & QUEUES[queue] != 0) {
            self.notes[queue].push_back(IdleNote { entry, stamp: self.stamp });
            self.compact(queue);
        }
    }

    fn join(&mut self, entry: u32, pools: u8, owner: Use) {
        for pool in POOLS.into_iter().filter(|pool| pools & pool.bit() != 0) {
            let cost = self.cost(entry, pool);
            let owned = &mut self.owned[owner.consumer];
            owned.sets[pool as usize].insert(position(owner.number));
            owned.bytes[pool as usize] += cost;
            owned.count[pool as usize] += 1;
        }
    }

    fn leave(&mut self, entry: u32, pools: u8, owner: Use) {
        for pool in POOLS.into_iter().filter(|pool| pools & pool.bit() != 0) {
            let cost = self.cost(entry, pool);
            let owned = &mut self.owned[owner.consumer];
            owned.sets[pool as usize].remove(position(owner.number));
            owned.bytes[pool as usize] -= cost;
            owned.count[pool as usize] -= 1;
        }
    }

    fn cost(&self, entry: u32, pool: Pool) -> Bytes {
        let is_on_disk = matches!(pool, Pool::Disk | Pool::ReservedDisk);
        let tier = if is_on_disk { &self.disk } else { &self.memory };
        tier.limits.cost(self.size(entry))
    }

    /// Drop invalid notes of a queue if they are the majority.
    fn compact(&mut self, queue: usize) {
        let copies = self.memory.copies.max(self.disk.copies);
        if self.notes[queue].len() > 2 * copies + NOTES_SLACK {
            let entries = &self.entries;
            self.notes[queue].retain(|note| entries[note.entry as usize].is_noted(note.stamp, QUEUES[queue]));
        }
    }
}

/// The pools of a tier from which entries leave for others.
pub(super) fn pools_of(tier: NodeTier) -> &'static [Pool] {
    match tier {
        NodeTier::Memory => &[Pool::Duplicate, Pool::MemoryOnly],
        NodeTier::Disk => &[Pool::Disk],
    }
}
