// SPDX-License-Identifier: Apache-2.0
//! Executes the planner's actions: reads into the slab, copies to the disk, evictions, and answers.

use std::sync::Arc;

use foresee_data_fetch::{Class, Request};
use foresee_data_plan::{EntryId, NodeAction, NodeTier};
use foresee_data_tier::{Done, Op, Tier as _};
use foresee_units::{Bytes, Nanos, ReadOutcome, Source};

use super::{HostDataSet, HostDriver, PlannedRead};
use crate::driver::TicketOwner;
use crate::node::now;
use crate::origin_reads::{OriginEnd, OriginRead, OriginResult, ReadFailure, ReadMemory as _};

use crate::node::places::{PublicEntry, SlabRange};

impl HostDriver {
    pub(super) fn execute(&mut self, action: NodeAction, now: Nanos) {
        match action {
            NodeAction::Read { entry, from, deadline, group } => {
                self.read(PlannedRead { entry, from, deadline, group }, now);
            }
            NodeAction::Prioritize { entry, deadline } => {
                if self.prioritize_held(entry, deadline, now)
                    || self.prioritize_in_exchange(entry, deadline, now)
                {
                    return;
                }
                let queue = self.data_set_of(entry).queue;
                let Some(&number) = self.reads.get(&entry) else { return };
                if deadline <= now {
                    self.queues[queue].reads.handle_urgent(number, now);
                } else {
                    self.queues[queue].reads.handle_wanted(number, 0, deadline);
                }
            }
            NodeAction::Store { entry } => self.store(entry),
            NodeAction::Evict { entry, tier: NodeTier::Memory } => {
                self.release(entry);
            }
            NodeAction::Evict { entry, tier: NodeTier::Disk } => {
                self.data_set_of(entry).drop_from_disk(entry);
            }
            NodeAction::Answer { consumer, access, entry, source } => {
                let location = self.places.publish(entry, self.data_set_of(entry).public(entry));
                let len = self.size(entry);
                if let (Some(location), Some(consumer)) = (location, self.consumer_of(consumer)) {
                    consumer.answer(access, location, len, source, now);
                }
            }
            NodeAction::Fail { consumer, access, outcome, .. } => {
                if let Some(consumer) = self.consumer_of(consumer) {
                    consumer.fail(access, outcome, now);
                }
            }
            // The entry is withdrawn when it leaves its place; until then the consumer copies valid bytes.
            NodeAction::TakeBack { .. } => {}
        }
    }

    // ---- reads

    /// Begin a read, or let it wait for a place in the slab.
    fn read(&mut self, read: PlannedRead, now: Nanos) {
        match self.places.allocate(read.entry, self.size(read.entry)) {
            Ok(Some(range)) => self.read_into(read, range, now),
            Ok(None) => self.unplaced.push_back(read),
            Err(error) => {
                // What the slab has already is what it will have.
                self.memory = self.memory.min(self.places.committed());
                self.planner.handle_capacity(NodeTier::Memory, self.memory, now);
                self.shared.log.add("memory refused", None, vec![("why", error.to_string())]);
                self.unplaced.push_back(read);
            }
        }
    }

    /// Place the reads that wait for contiguous bytes. Free bytes are scattered if samples differ in size; then the
    /// planner evicts until a range is long enough. Returns whether a read has begun or an entry can be evicted.
    pub(super) fn place_waiting(&mut self, now: Nanos) -> bool {
        let Some(&read) = self.unplaced.front() else { return false };
        if let Ok(Some(range)) = self.places.allocate(read.entry, self.size(read.entry)) {
            self.unplaced.pop_front();
            if self.unplaced.is_empty() {
                self.planner.handle_capacity(NodeTier::Memory, self.memory, now);
            }
            self.read_into(read, range, now);
            return true;
        }
        let used = self.planner.used(NodeTier::Memory);
        self.planner.handle_capacity(NodeTier::Memory, used.saturating_sub(Bytes::new(1)), now);
        let mut has_evicted = false;
        while let Some(action) = self.planner.poll_action(now) {
            has_evicted |= matches!(action, NodeAction::Evict { tier: NodeTier::Memory, .. });
            self.execute(action, now);
        }
        has_evicted
    }

    fn read_into(&mut self, read: PlannedRead, range: SlabRange, now: Nanos) {
        let PlannedRead { entry, from, .. } = read;
        let data_set = self.data_set_of(entry);
        if self.size(entry).is_zero() {
            return self.planner.handle_read(entry, ReadOutcome::Ok, now);
        }
        let key = data_set.key(entry);
        if let (Source::Disk, Some(disk)) = (from, data_set.disk.clone()) {
            // SAFETY: the place was just given to this entry, and nothing else accesses it before the read ends.
            let dest = unsafe { range.dest() };
            let ticket = TicketOwner::DiskRead.ticket(entry.0.into());
            self.disk_reads += 1;
            return disk.submit(Op::Read { ticket, key, offset: 0, dest });
        }
        let range = self.read_by_exchange(read, range, now);
        if let Some(range) = range.and_then(|range| self.hold_read(read, range, now)) {
            self.read_origin(read, range, now);
        }
    }

    pub(super) fn read_origin(&mut self, read: PlannedRead, range: SlabRange, now: Nanos) {
        let PlannedRead { entry, deadline, group, .. } = read;
        self.reads_begun += 1;
        let data_set = self.data_set_of(entry);
        let (sample, key) = (data_set.sample(entry), data_set.key(entry));
        let index = data_set.data.index();
        let bytes = index.range(sample);
        let request = Request {
            ticket: self.reads_begun << 32 | u64::from(entry.0),
            // Objects of different data sets are not the same.
            object: u64::from(data_set.first) << 32 | index.object(sample),
            start: bytes.start,
            len: bytes.len,
            class: match deadline {
                Nanos::MAX => Class::Fill,
                deadline if deadline <= now => Class::Stalling,
                _ => Class::Staging,
            },
            turn: 0,
            deadline,
            group: group.map(|EntryId(first)| first.into()),
        };
        let read = OriginRead { origin: Arc::clone(&data_set.origin), key, request, memory: range };
        let queue = data_set.queue;
        self.reads.insert(entry, request.ticket);
        self.queues[queue].reads.handle_request(read, now);
    }

    /// Start reads of the origins, and handle those that have ended; return whether there were any.
    pub(super) fn start_reads(&mut self, now: Nanos) -> bool {
        let mut has_ended = false;
        for queue in 0..self.queues.len() {
            self.queues[queue].reads.start_attempts(now);
            while let Some(end) = self.queues[queue].reads.poll_end() {
                has_ended = true;
                self.handle_origin_read(end);
            }
        }
        has_ended
    }

    pub(super) fn handle_attempt_end(&mut self, queue: usize, done: &Done) {
        self.origin.samples += 1;
        self.origin.bytes += done.bytes;
        self.note_origin_time(done.queued + done.service);
        let (_, attempt) = TicketOwner::of(done.ticket);
        self.queues[queue].reads.handle_done(attempt, done, now());
    }

    fn handle_origin_read(&mut self, OriginEnd { number, memory, result }: OriginEnd<SlabRange>) {
        drop(memory);
        let entry = EntryId(u32::try_from(number & u64::from(u32::MAX)).expect("32 bits"));
        self.reads.remove(&entry);
        let outcome = match result {
            OriginResult::Complete => ReadOutcome::Ok,
            OriginResult::Failed(ReadFailure { outcome, tries, message, .. }) => {
                let data_set = self.data_set_of(entry);
                let uri = data_set.data.uri(data_set.sample(entry));
                let why = message.map_or_else(|| format!("{outcome:?}"), Into::into);
                let fields = vec![("uri", uri), ("why", why), ("tries", tries.to_string())];
                self.shared.log.add("read failed", None, fields);
                outcome
            }
            OriginResult::NoMemory(_) | OriginResult::Withdrawn => ReadOutcome::Cancelled,
        };
        self.end_read(entry, outcome);
    }

    pub(super) fn end_read(&mut self, entry: EntryId, outcome: ReadOutcome) {
        if outcome != ReadOutcome::Ok {
            self.release(entry);
        }
        let now = now();
        self.planner.handle_read(entry, outcome, now);
        self.note_read_end(entry, outcome, now);
    }

    /// Take the place of an entry in the slab back.
    fn release(&mut self, entry: EntryId) {
        let size = self.size(entry);
        self.places.release(entry, HostDataSet::of(&self.data_sets, entry).public(entry), size);
    }

    // ---- disk

    /// Write an entry from the slab to its disk cache.
    pub(super) fn store(&mut self, entry: EntryId) {
        let payload = self.places.payload(entry, self.size(entry));
        let data_set = self.data_set_of(entry);
        match (payload, &data_set.disk) {
            (Some(payload), Some(disk)) => {
                let ticket = TicketOwner::DiskWrite.ticket(entry.0.into());
                disk.submit(Op::Write { ticket, key: data_set.key(entry), payload });
            }
            _ => self.planner.handle_stored(entry, ReadOutcome::Full, now()),
        }
    }

    pub(super) fn handle_disk_end(&mut self, done: &Done) {
        let (owner, number) = TicketOwner::of(done.ticket);
        if owner == TicketOwner::PeerRead {
            return self.handle_peer_read(number, done.outcome);
        }
        let entry = EntryId(u32::try_from(number).expect("the number of an entry"));
        match owner {
            TicketOwner::DiskRead => {
                self.disk_reads -= 1;
                self.end_read(entry, done.outcome);
            }
            TicketOwner::DiskWrite if matches!(done.outcome, ReadOutcome::Throttled { .. }) => {
                self.refused.push_back(entry);
            }
            TicketOwner::DiskWrite => {
                self.planner.handle_stored(entry, done.outcome, now());
                if done.outcome != ReadOutcome::Ok {
                    self.update_disk_capacity();
                }
            }
            TicketOwner::OriginRead | TicketOwner::Removal | TicketOwner::PeerRead => {}
        }
    }

    /// Tell the planner the space that the disk caches have now: after a fault of a disk it is less.
    pub(super) fn update_disk_capacity(&mut self) {
        let disks = self.data_sets.iter().filter_map(|one| one.disk.as_ref());
        let capacity = disks.map(|disk| disk.usable_capacity()).sum();
        self.planner.handle_capacity(NodeTier::Disk, capacity, now());
    }
}

impl HostDataSet {
    fn public(&self, entry: EntryId) -> PublicEntry<'_> {
        PublicEntry { table: &self.locations, sample: self.sample(entry) }
    }

    pub(super) fn drop_from_disk(&self, entry: EntryId) {
        if let Some(disk) = &self.disk {
            let ticket = TicketOwner::Removal.ticket(entry.0.into());
            disk.submit(Op::Drop { ticket, key: self.key(entry) });
        }
    }
}
