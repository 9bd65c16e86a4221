// SPDX-License-Identifier: Apache-2.0
//! Plan of a node's cache, which any number of consumers share: facts go in through `handle_*`, actions come out of
//! `poll_action`.
//!
//! | file | content |
//! |---|---|
//! | `action` | identities, settings, actions, refusals |
//! | `requests` | requests, answers, pins, and reports of reads |
//! | `read_ahead` | reads of announced accesses before they are requested |
//! | `reserved` | entries that other nodes read here, or send |
//! | `groups` | small neighbours that one read of the origin includes |
//! | `pending` | the requests of one consumer by access number |
//! | `space` | the next read, and the space for it in both tiers |
//! | `residents` | copies in both tiers, and the order of their eviction |
//! | `accesses` | announced accesses, linked by consumer and entry |
//! | `consumer` | progress, rate and predicted times of a consumer |

mod accesses;
mod action;
mod consumer;
mod groups;
mod pending;
mod read_ahead;
mod requests;
mod reserved;
mod residents;
mod space;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use foresee_units::{Bytes, Nanos};

pub use self::action::{ConsumerId, EntryId, NodeAction, NodePlanError, NodePlannerConfig, NodeTier};
use self::consumer::{Consumer, Consumers};
use self::groups::Groups;
use self::requests::{ActiveEntry, Pins, WaitingRequest};
use self::residents::{Residents, flag};
use crate::capacity::TierUsage;
use crate::next_use::narrow;

/// Look-ahead of all consumers together, in accesses per entry, as for the planner of a single rank: consumers with
/// independent orders use an entry once in as many accesses as there are entries, on average.
const HORIZON_ACCESSES_PER_ENTRY: usize = 4;
/// Bytes per announced access.
const BYTES_PER_ACCESS: u64 = 12;
/// Every number but the last, which marks the end of a list.
const ENTRIES_MAX: usize = u32::MAX as usize;

/// Plans the cache of one node: which entries stay, which read starts next, and who gets an answer when.
///
/// Consumers announce their accesses, then request them in order, with deadlines. The planner merges all accesses by
/// predicted time, which follows from each consumer's progress, and evicts the entry that every consumer uses latest.
/// Equal inputs give equal actions.
///
/// An entry is written to the disk when it leaves the memory. If the disk can hold all entries and keeps up, it is written
/// as soon as it is read from the origin: then the disk has it even if the node fails.
///
/// Entries that other nodes of a job read here are [reserved](Self::handle_reserved): their last copy leaves for no other. What is
/// [sent](Self::handle_sending) stays in memory.
///
/// While no request waits for a read, announced accesses are [read ahead](Self::read_ahead), in order of their predicted
/// times.
///
/// A request needs memory before its read starts, and its entry is pinned from the answer to the release. Requests
/// wait for memory in order of their deadlines, and in turns of the consumers between equal ones. Every wait ends: with
/// a read or a write in flight, with a release, or at [`poll_timeout`](Self::poll_timeout), after which pins are taken
/// back.
///
/// The caller's obligations: it executes actions in order, reports every read and write once, and calls
/// [`poll_action`](Self::poll_action) until it returns `None` after each fact and at each timeout. `now` is monotonic;
/// an earlier time counts as the latest one. Reports about consumers that are not attached have no effect.
pub struct NodePlanner {
    residents: Residents,
    consumers: Consumers,
    /// By entry: entries that are waited for or being read.
    active: BTreeMap<u32, ActiveEntry>,
    /// Requests that wait for the start of a read.
    waiting: BTreeSet<WaitingRequest>,
    pins: Pins,
    /// Entries being written to disk, and whether they leave the memory then.
    storing: BTreeMap<u32, bool>,
    /// Bytes of those that stay in memory.
    storing_early: Bytes,
    /// Entries to write early when earlier ones are written; some may have left the memory.
    unsaved: VecDeque<u32>,
    groups: Groups,
    actions: VecDeque<NodeAction>,
    /// Turn of the request served last.
    turn: u64,
    /// Whether the first request waits for memory, after all that can be evicted was.
    is_blocked: bool,
    /// Bytes of all entries in memory and on disk, if they fitted.
    data_cost: TierBytes,
    affordable: u64,
    read_ahead_bytes: Bytes,
    initial_interval: Nanos,
    pin_timeout: Nanos,
}

/// Bytes in each tier.
#[derive(Clone, Copy, Debug, Default)]
struct TierBytes {
    memory: Bytes,
    disk: Bytes,
}

impl NodePlanner {
    /// Create a planner without entries and consumers.
    pub fn new(config: &NodePlannerConfig) -> Self {
        let (memory, disk) = (TierUsage::new(config.memory), TierUsage::new(config.disk));
        Self {
            residents: Residents::new(memory, disk, config.stalled_bytes_max),
            consumers: Consumers::new(config.stall_grace),
            active: BTreeMap::new(),
            waiting: BTreeSet::new(),
            pins: Pins::default(),
            storing: BTreeMap::new(),
            storing_early: Bytes::ZERO,
            unsaved: VecDeque::new(),
            groups: Groups::default(),
            actions: VecDeque::new(),
            turn: 0,
            is_blocked: false,
            data_cost: TierBytes::default(),
            affordable: (config.table_budget.get() / BYTES_PER_ACCESS).min(accesses::ACCESSES_MAX as u64),
            read_ahead_bytes: config.read_ahead,
            initial_interval: config.initial_interval,
            pin_timeout: config.pin_timeout,
        }
    }

    /// Add an entry of `size` bytes, at any time; entries are numbered from 0.
    ///
    /// # Errors
    /// [`NodePlanError::EntryTooLarge`] from 4 GiB on, and [`NodePlanError::TooManyEntries`].
    pub fn handle_entry(&mut self, size: Bytes) -> Result<EntryId, NodePlanError> {
        let most = Bytes::new(u64::from(u32::MAX));
        let bytes = u32::try_from(size.get()).map_err(|_| NodePlanError::EntryTooLarge { size, most })?;
        let count = self.residents.len();
        if count == ENTRIES_MAX {
            return Err(NodePlanError::TooManyEntries { count });
        }
        self.residents.add_entry(bytes);
        self.data_cost.memory += self.residents.memory.limits.cost(size);
        self.data_cost.disk += self.residents.disk.limits.cost(size);
        Ok(EntryId(narrow(count)))
    }

    /// Report that the disk holds a copy of the entry, from an earlier run. Returns whether the planner accepts it:
    /// `false` if it does not fit or there is one; then delete it.
    ///
    /// # Panics
    /// If there is no such entry.
    pub fn handle_held(&mut self, entry: EntryId) -> bool {
        let size = self.residents.size(entry.0);
        let disk = &mut self.residents.disk;
        let is_new = disk.limits.cost(size) <= disk.free();
        if !is_new || self.residents.is(entry.0, flag::ON_DISK) || self.residents.is(entry.0, flag::STORING) {
            return false;
        }
        self.residents.disk.add(size);
        self.residents.update(entry.0, flag::ON_DISK, 0, &self.consumers);
        true
    }

    /// Attach a consumer, whose accesses are numbered from 0. An attached one with this number is detached first.
    pub fn handle_attach(&mut self, consumer: ConsumerId, now: Nanos) {
        self.handle_detach(consumer, now);
        let index = consumer.0 as usize;
        self.residents.attach(index);
        self.consumers.attach(index, Consumer::new(self.initial_interval, self.consumers.now()));
    }

    /// Detach a consumer: its announced accesses, requests and pins end, and actions about them are dropped.
    pub fn handle_detach(&mut self, consumer: ConsumerId, now: Nanos) {
        self.consumers.advance_to(now);
        let index = consumer.0 as usize;
        if self.consumers.get(index).is_none() {
            return;
        }
        self.drop_requests(index, true);
        while self.residents.advance(index, &self.consumers).is_some() {}
        self.residents.detach(index);
        self.consumers.detach(index);
        self.actions.retain(|action| action.consumer() != Some(consumer));
    }

    /// Whether the consumer's next epoch should be announced: its look-ahead is shorter than useful, and the table
    /// budget allows as many accesses as its latest epoch had. Short epochs are windows of a consumer without an order.
    pub fn wants_epoch(&self, consumer: ConsumerId) -> bool {
        let index = consumer.0 as usize;
        let Some(one) = self.consumers.get(index) else { return false };
        let ahead = self.residents.accesses.len(index);
        if self.residents.accesses.has_ended(index) {
            return false;
        }
        let per_entry = if self.fits_all() { 1 } else { HORIZON_ACCESSES_PER_ENTRY };
        let horizon = self.residents.len() * per_entry / self.consumers.attached().max(1);
        let announced = (self.residents.accesses.total() + one.epoch_len) as u64;
        ahead == 0 || (ahead < horizon && announced <= self.affordable)
    }

    /// Announce the consumer's accesses of its next epoch or window, in order.
    ///
    /// # Panics
    /// If an entry does not exist, or more than 2^30 accesses are announced and not requested.
    pub fn handle_epoch(
        &mut self,
        consumer: ConsumerId,
        entries: &mut dyn Iterator<Item = EntryId>,
        now: Nanos,
    ) {
        self.consumers.advance_to(now);
        let index = consumer.0 as usize;
        if self.consumers.get(index).is_none() {
            return;
        }
        let before = self.residents.accesses.len(index);
        let count = self.residents.len();
        let mut entries = entries.map(|EntryId(entry)| {
            assert!((entry as usize) < count, "entry {entry} was announced, but the node has {count}");
            entry
        });
        self.residents.announce(index, &mut entries, &self.consumers);
        self.residents.accesses.resume(index);
        let epoch_len = self.residents.accesses.len(index) - before;
        if let Some(one) = self.consumers.get_mut(index) {
            if one.epoch_len == 0 && epoch_len > 0 {
                self.groups.note_announced();
            }
            one.epoch_len = epoch_len;
        }
    }

    /// The consumer ends after its announced accesses; an epoch announced later revokes it.
    pub fn handle_end(&mut self, consumer: ConsumerId) {
        if self.consumers.get(consumer.0 as usize).is_some() {
            self.residents.accesses.end(consumer.0 as usize);
        }
    }

    /// The consumer continues at another position of its order: announced accesses and waiting requests are dropped,
    /// without answers. Pins stay until their release, and access numbers continue.
    pub fn handle_restart(&mut self, consumer: ConsumerId, now: Nanos) {
        self.consumers.advance_to(now);
        let index = consumer.0 as usize;
        if self.consumers.get(index).is_none() {
            return;
        }
        self.drop_requests(index, false);
        while self.residents.advance(index, &self.consumers).is_some() {}
        self.residents.accesses.resume(index);
        let (first, now) = (self.residents.accesses.first(index), self.consumers.now());
        if let Some(one) = self.consumers.get_mut(index) {
            one.restart(first, now);
        }
    }

    /// The consumer has consumed all accesses before `position`. It takes `interval` per access if it measured that;
    /// otherwise the interval is measured from its reports. Positions before the latest one or beyond the requested
    /// accesses count as those.
    pub fn handle_progress(
        &mut self,
        consumer: ConsumerId,
        position: u64,
        interval: Option<Nanos>,
        now: Nanos,
    ) {
        self.consumers.advance_to(now);
        let (index, now) = (consumer.0 as usize, self.consumers.now());
        if let Some(one) = self.consumers.get_mut(index) {
            one.progress(position.min(self.residents.accesses.first(index)), interval, now);
        }
    }

    /// No consumer is attached: write what only the memory holds to the disk, while that has free space. A host that is
    /// started again finds it there. Without effect while a consumer is attached.
    pub fn handle_idle(&mut self, now: Nanos) {
        self.consumers.advance_to(now);
        if self.consumers.attached() == 0 {
            self.store_all();
        }
    }

    /// Change a tier's capacity. Entries that no longer fit are evicted by the next actions; pinned ones and those in
    /// flight later.
    pub fn handle_capacity(&mut self, tier: NodeTier, capacity: Bytes, now: Nanos) {
        self.consumers.advance_to(now);
        self.usage_mut(tier).limits.capacity = capacity;
    }

    /// The next action at time `now`; `None` until a fact is reported or the time of
    /// [`poll_timeout`](Self::poll_timeout) has come.
    pub fn poll_action(&mut self, now: Nanos) -> Option<NodeAction> {
        self.consumers.advance_to(now);
        while self.actions.is_empty() && self.advance() {}
        self.actions.pop_front()
    }

    /// When to call [`poll_action`](Self::poll_action) again if nothing is reported until then: a pin may be taken
    /// back. Valid after `poll_action` has returned `None`.
    pub fn poll_timeout(&self) -> Option<Nanos> {
        let since = self.pins.oldest().filter(|_| self.is_blocked)?;
        Some(since + self.pin_timeout)
    }

    /// Whether requests wait for memory that is pinned. Valid after [`poll_action`](Self::poll_action) has returned `None`.
    pub const fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Numbers of the consumer's announced accesses that it has not requested; empty if it is not attached.
    pub fn announced(&self, consumer: ConsumerId) -> std::ops::Range<u64> {
        let index = consumer.0 as usize;
        if self.consumers.get(index).is_none() {
            return 0..0;
        }
        let first = self.residents.accesses.first(index);
        first..first + self.residents.accesses.len(index) as u64
    }

    /// The entry of an announced access that was not requested; `None` if there is no such access.
    pub fn announced_entry(&self, consumer: ConsumerId, access: u64) -> Option<EntryId> {
        let is_announced = self.announced(consumer).contains(&access);
        is_announced.then(|| EntryId(self.residents.accesses.access(consumer.0 as usize, access).0))
    }

    /// Whether the tier holds a complete copy of the entry.
    pub fn holds(&self, entry: EntryId, tier: NodeTier) -> bool {
        let flag = if tier == NodeTier::Memory { flag::IN_MEMORY } else { flag::ON_DISK };
        (entry.0 as usize) < self.residents.len() && self.residents.is(entry.0, flag)
    }

    /// Whether the entry is being read or received.
    pub fn is_reading(&self, entry: EntryId) -> bool {
        (entry.0 as usize) < self.residents.len() && self.residents.is(entry.0, flag::READING)
    }

    /// Bytes taken in a tier, with overhead and alignment: copies, and those being read or written.
    pub fn used(&self, tier: NodeTier) -> Bytes {
        match tier {
            NodeTier::Memory => self.residents.memory.used,
            NodeTier::Disk => self.residents.disk.used,
        }
    }

    /// Bytes of the evictable copies in a tier that count as this consumer's. A copy that another consumer uses sooner
    /// is among them until an eviction compares the two.
    pub fn protected(&self, consumer: ConsumerId, tier: NodeTier) -> Bytes {
        self.residents.owned_bytes(consumer.0 as usize, residents::pools_of(tier))
    }

    /// Bytes of the tables by entry and by announced access.
    pub fn table_bytes(&self) -> Bytes {
        Bytes::new(self.residents.table_bytes())
    }

    fn fits_all(&self) -> bool {
        self.data_cost.memory <= self.residents.memory.limits.capacity + self.residents.disk.limits.capacity
    }

    fn usage_mut(&mut self, tier: NodeTier) -> &mut TierUsage {
        match tier {
            NodeTier::Memory => &mut self.residents.memory,
            NodeTier::Disk => &mut self.residents.disk,
        }
    }
}

impl fmt::Debug for NodePlanner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodePlanner")
            .field("entries", &self.residents.len())
            .field("memory", &self.residents.memory)
            .field("disk", &self.residents.disk)
            .field("consumers", &self.consumers.attached())
            .field("announced", &self.residents.accesses.total())
            .field("active", &self.active.len())
            .field("waiting", &self.waiting.len())
            .field("is_blocked", &self.is_blocked)
            .finish_non_exhaustive()
    }
}
