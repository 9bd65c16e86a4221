// SPDX-License-Identifier: Apache-2.0
//! Requests and their answers: the order in which requests wait, pins, and reports of reads, writes and losses.

use std::collections::VecDeque;

use foresee_units::{Bytes, Nanos, ReadOutcome, Source};

use super::NodePlanner;
use super::action::{ConsumerId, EntryId, NodeAction, NodePlanError, NodeTier};
use super::consumer::{Consumer, ConsumerRequest, DEADLINE_MAX, RequestState};
use super::residents::flag;
use crate::next_use::narrow;

/// Notes of released pins beyond the number of pins that trigger no clean-up.
const PINS_SLACK: usize = 1024;

/// An entry that is waited for or being read.
#[derive(Debug, Default)]
pub(super) struct ActiveEntry {
    /// Consumers and accesses that wait for it.
    waiters: Vec<(usize, u64)>,
    /// Source and deadline of the read in flight.
    pub(super) read: Option<(Source, Nanos)>,
}

/// A request that waits for the start of a read, in order of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WaitingRequest {
    pub(super) deadline: Nanos,
    pub(super) turn: u64,
    pub(super) consumer: usize,
    pub(super) access: u64,
}

/// The pins in order of their answers; those released are dropped later.
#[derive(Debug, Default)]
pub(super) struct Pins {
    notes: VecDeque<PinNote>,
    count: usize,
}

#[derive(Clone, Copy, Debug)]
struct PinNote {
    since: Nanos,
    consumer: usize,
    access: u64,
}

impl Pins {
    /// Time of the oldest answer that is pinned, or an earlier one.
    pub(super) fn oldest(&self) -> Option<Nanos> {
        self.notes.front().map(|note| note.since)
    }
}

impl NodePlanner {
    /// The consumer requests one of its announced accesses; earlier ones that it did not request are skipped. An
    /// access whose answer was taken back may be requested again.
    ///
    /// `deadline` is the time at which the consumer needs the entry; one in the past counts as now, and one more than
    /// 60 s ahead as 60 s ahead. The answer is [`NodeAction::Answer`] or [`NodeAction::Fail`].
    ///
    /// # Errors
    /// [`NodePlanError::NotAnnounced`] without any effect.
    pub fn handle_request(
        &mut self,
        consumer: ConsumerId,
        access: u64,
        deadline: Nanos,
        now: Nanos,
    ) -> Result<(), NodePlanError> {
        self.consumers.advance_to(now);
        let index = consumer.0 as usize;
        let entry = self.take_access(index, access).ok_or_else(|| {
            let announced = self.announced(consumer);
            NodePlanError::NotAnnounced {
                consumer: consumer.0,
                access,
                first: announced.start,
                end: announced.end,
            }
        })?;
        if self.residents.is(entry, flag::IN_MEMORY) {
            let source = self.residents.take_read_source(entry);
            self.answer(index, access, entry, source);
            return Ok(());
        }
        let now = self.consumers.now();
        let deadline = deadline.clamp(now, now + DEADLINE_MAX);
        let base = self.turn;
        let Some(one) = self.consumers.get_mut(index) else { return Ok(()) };
        let turn = base.max(one.turn) + 1;
        one.turn = turn;
        let state = RequestState::Waiting { deadline, turn };
        one.requests.insert(access, ConsumerRequest { entry, state });
        let active = self.active.entry(entry).or_default();
        active.waiters.push((index, access));
        match &mut active.read {
            None => {
                self.waiting.insert(WaitingRequest { deadline, turn, consumer: index, access });
            }
            Some((_, earliest)) if deadline < *earliest => {
                *earliest = deadline;
                self.actions.push_back(NodeAction::Prioritize { entry: EntryId(entry), deadline });
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// The consumer has copied the entries of its next `count` announced accesses from memory without requests. Returns
    /// their bytes.
    ///
    /// # Errors
    /// [`NodePlanError::NotAnnounced`] without any effect.
    pub fn handle_hits(
        &mut self,
        consumer: ConsumerId,
        count: u64,
        now: Nanos,
    ) -> Result<Bytes, NodePlanError> {
        self.consumers.advance_to(now);
        let index = consumer.0 as usize;
        if self.consumers.get(index).is_none() {
            return Ok(Bytes::ZERO);
        }
        let announced = self.announced(consumer);
        if count > announced.end - announced.start {
            let access = announced.start.saturating_add(count - 1);
            let (consumer, first, end) = (consumer.0, announced.start, announced.end);
            return Err(NodePlanError::NotAnnounced { consumer, access, first, end });
        }
        let mut bytes = Bytes::ZERO;
        for access in announced.start..announced.start + count {
            self.residents.prefetch_after(index, access);
            bytes += self.pass_next(index).unwrap_or(Bytes::ZERO);
        }
        Ok(bytes)
    }

    /// The consumer needs a requested access at `deadline`, which may be sooner than it said. Its read in flight is
    /// prioritized if that is sooner than its deadline, or if that has passed. Without effect if it is answered already.
    pub fn handle_deadline(&mut self, consumer: ConsumerId, access: u64, deadline: Nanos, now: Nanos) {
        self.consumers.advance_to(now);
        let (index, now) = (consumer.0 as usize, self.consumers.now());
        let Some(request) = self.consumers.get_mut(index).and_then(|one| one.requests.get_mut(access)) else {
            return;
        };
        let RequestState::Waiting { deadline: before, turn } = request.state else { return };
        let deadline = deadline.max(now).min(before);
        request.state = RequestState::Waiting { deadline, turn };
        let entry = request.entry;
        if self.waiting.remove(&WaitingRequest { deadline: before, turn, consumer: index, access }) {
            self.waiting.insert(WaitingRequest { deadline, turn, consumer: index, access });
        } else if let Some(ActiveEntry { read: Some((_, earliest)), .. }) = self.active.get_mut(&entry)
            && (deadline < *earliest || *earliest <= now)
        {
            *earliest = deadline.min(*earliest);
            let deadline = *earliest;
            self.actions.push_back(NodeAction::Prioritize { entry: EntryId(entry), deadline });
        }
    }

    /// The consumer no longer needs the answer of this access. A request that still waits is withdrawn.
    pub fn handle_release(&mut self, consumer: ConsumerId, access: u64) {
        let index = consumer.0 as usize;
        let Some(one) = self.consumers.get_mut(index) else { return };
        if let Some(request) = one.requests.remove(access) {
            self.end_request(index, access, request);
        }
    }

    /// A read has ended, or an entry that another node sends has arrived. After a failed read of the disk, the copy is lost
    /// and the origin is read. The origin is read, too, if the other node fails. After a failed read of the origin, all
    /// requests for the entry fail. Ignored if no read of the entry is in flight.
    pub fn handle_read(&mut self, entry: EntryId, outcome: ReadOutcome, now: Nanos) {
        self.consumers.advance_to(now);
        let EntryId(entry) = entry;
        let Some(active) = self.active.get_mut(&entry) else { return };
        let Some((source, _)) = active.read.take() else { return };
        let mut waiters = std::mem::take(&mut active.waiters);
        if outcome == ReadOutcome::Ok {
            let first = match source {
                _ if !waiters.is_empty() => flag::PINNED,
                Source::Disk => flag::AHEAD_FROM_DISK,
                Source::Peer => flag::AHEAD_FROM_PEER,
                _ => flag::AHEAD_FROM_ORIGIN,
            };
            self.residents.update(entry, flag::IN_MEMORY | first, flag::READING, &self.consumers);
            waiters.sort_by_key(|&(consumer, access)| self.order_of(consumer, access));
            let sources = std::iter::once(source).chain(std::iter::repeat(Source::Ram));
            for ((consumer, access), source) in waiters.into_iter().zip(sources) {
                self.answer(consumer, access, entry, source);
            }
            if source != Source::Disk {
                self.unsaved.push_back(entry);
            }
            self.store_early();
        } else {
            self.residents.memory.remove(self.residents.size(entry));
            self.residents.update(entry, 0, flag::READING, &self.consumers);
            if source == Source::Origin {
                self.fail(entry, waiters, outcome);
            } else {
                if source == Source::Disk {
                    self.lose_disk_copy(entry);
                }
                for &(consumer, access) in &waiters {
                    self.waiting.extend(self.order_of(consumer, access));
                }
                if let Some(active) = self.active.get_mut(&entry) {
                    active.waiters = waiters;
                }
            }
        }
        self.settle(entry);
    }

    /// A write to the disk has ended. A failed one of an entry that was to leave the memory evicts it there, unless it is in
    /// use. Ignored if none is in flight.
    pub fn handle_stored(&mut self, entry: EntryId, outcome: ReadOutcome, now: Nanos) {
        self.consumers.advance_to(now);
        let EntryId(entry) = entry;
        let Some(leaves) = self.storing.remove(&entry) else { return };
        if !leaves {
            self.storing_early -= self.residents.size(entry);
        }
        self.end_store(entry, outcome, leaves);
        self.store_early();
    }

    fn end_store(&mut self, entry: u32, outcome: ReadOutcome, leaves: bool) {
        let is_suspect = self.residents.is(entry, flag::SUSPECT);
        if outcome == ReadOutcome::Ok && !is_suspect {
            self.residents.update(entry, flag::ON_DISK, flag::STORING, &self.consumers);
            return;
        }
        self.residents.disk.remove(self.residents.size(entry));
        self.residents.update(entry, 0, flag::STORING | flag::SUSPECT, &self.consumers);
        if is_suspect {
            self.actions.push_back(NodeAction::Evict { entry: EntryId(entry), tier: NodeTier::Disk });
        } else if leaves && !self.residents.is(entry, flag::PINNED) {
            // A second write would fail like the first.
            self.evict(entry, NodeTier::Memory);
        }
    }

    /// A copy was lost: it was corrupt, or the system took its space. Answers from a lost copy in memory are taken
    /// back. Ignored if the tier holds no complete copy.
    pub fn handle_lost(&mut self, entry: EntryId, tier: NodeTier, now: Nanos) {
        self.consumers.advance_to(now);
        if !self.holds(entry, tier) {
            return;
        }
        let EntryId(entry) = entry;
        if tier == NodeTier::Disk {
            self.lose_disk_copy(entry);
            return;
        }
        for consumer in 0..self.consumers.slots() {
            let requests = self.consumers.get(consumer).into_iter().flat_map(|one| one.requests.iter());
            let pinned = requests
                .filter(|(_, one)| one.entry == entry && matches!(one.state, RequestState::Pinned { .. }));
            for access in pinned.map(|(access, _)| access).collect::<Vec<_>>() {
                self.take_back(consumer, access);
            }
        }
        let suspect = if self.residents.is(entry, flag::STORING) { flag::SUSPECT } else { 0 };
        self.residents.memory.remove(self.residents.size(entry));
        self.residents.update(entry, suspect, flag::IN_MEMORY | flag::AHEAD, &self.consumers);
    }

    /// End the waiting requests of a consumer, and with `pinned` all requests.
    pub(super) fn drop_requests(&mut self, consumer: usize, pinned: bool) {
        let Some(one) = self.consumers.get_mut(consumer) else { return };
        let ends =
            |request: &ConsumerRequest| pinned || matches!(request.state, RequestState::Waiting { .. });
        for (access, request) in one.requests.remove_if(ends) {
            self.end_request(consumer, access, request);
        }
    }

    /// Start the read for the waiting requests of an entry; its memory is free.
    pub(super) fn start_read(&mut self, first: WaitingRequest, entry: u32) {
        self.turn = self.turn.max(first.turn);
        self.leave_queue(entry);
        self.begin_read(entry, first.deadline);
    }

    /// Read an entry that is not in memory, and its group with it; its memory is free.
    pub(super) fn begin_read(&mut self, entry: u32, deadline: Nanos) {
        let is_on_disk = self.residents.is(entry, flag::ON_DISK);
        let from = if is_on_disk { Source::Disk } else { Source::Origin };
        self.note_read(entry, from, deadline);
        let others = if is_on_disk { Vec::new() } else { self.begin_group(entry) };
        let group = (!others.is_empty()).then_some(EntryId(entry));
        self.actions.push_back(NodeAction::Read { entry: EntryId(entry), from, deadline, group });
        self.actions.extend(others.into_iter().map(|(other, deadline)| NodeAction::Read {
            entry: EntryId(other),
            from,
            deadline,
            group,
        }));
    }

    /// The requests for an entry wait for the start of its read no longer. Returns the earliest of their deadlines;
    /// [`Nanos::MAX`] without any.
    pub(super) fn start_waiting(&mut self, entry: u32) -> Nanos {
        let waiters = self.active.get(&entry).into_iter().flat_map(|active| &active.waiters);
        let deadlines = waiters.filter_map(|&(consumer, access)| self.order_of(consumer, access));
        let earliest = deadlines.map(|request| request.deadline).min();
        self.leave_queue(entry);
        earliest.unwrap_or(Nanos::MAX)
    }

    /// An entry is being read, for the requests that wait for it.
    pub(super) fn note_read(&mut self, entry: u32, from: Source, deadline: Nanos) {
        self.active.entry(entry).or_default().read = Some((from, deadline));
        self.residents.memory.add(self.residents.size(entry));
        self.residents.update(entry, flag::READING, 0, &self.consumers);
    }

    /// Fail the waiting requests of an entry that is larger than the memory.
    pub(super) fn fail_waiting(&mut self, entry: u32) {
        self.leave_queue(entry);
        let waiters = self.active.get_mut(&entry).map(|active| std::mem::take(&mut active.waiters));
        self.fail(entry, waiters.unwrap_or_default(), ReadOutcome::Full);
        self.settle(entry);
    }

    /// Take back the oldest pin if its time is over; return whether it was.
    pub(super) fn take_back_oldest(&mut self) -> bool {
        self.drop_released_pins();
        let Some(&PinNote { since, consumer, access }) = self.pins.notes.front() else { return false };
        if self.consumers.now() < since + self.pin_timeout {
            return false;
        }
        self.take_back(consumer, access);
        true
    }

    /// The entry of a request that waits.
    pub(super) fn entry_of(&self, request: WaitingRequest) -> Option<u32> {
        let requests = &self.consumers.get(request.consumer)?.requests;
        requests.get(request.access).map(|one| one.entry)
    }

    /// Consume the announced access, or one that was taken back; return its entry.
    fn take_access(&mut self, consumer: usize, access: u64) -> Option<u32> {
        let one = self.consumers.get_mut(consumer)?;
        if let Some(request) = one.requests.get(access) {
            return (request.state == RequestState::TakenBack).then_some(request.entry);
        }
        if !self.announced(ConsumerId(narrow(consumer))).contains(&access) {
            return None;
        }
        let (entry, _) = self.residents.accesses.access(consumer, access);
        self.residents.prefetch_after(consumer, access);
        if self.residents.is(entry, flag::IN_MEMORY) {
            // Pinned first, so that its place in the order is not computed twice.
            self.residents.update(entry, flag::PINNED, 0, &self.consumers);
        }
        while self.residents.accesses.first(consumer) <= access {
            if self.pass_next(consumer).is_none() {
                break;
            }
        }
        Some(entry)
    }

    /// Remove the consumer's first announced access; return the size of its entry.
    fn pass_next(&mut self, consumer: usize) -> Option<Bytes> {
        let number = self.residents.accesses.first(consumer);
        let passed = self.residents.advance(consumer, &self.consumers)?;
        let size = self.residents.size(passed);
        if let Some(one) = self.consumers.get_mut(consumer) {
            one.read_ahead.pass(number, size);
        }
        Some(size)
    }

    fn answer(&mut self, consumer: usize, access: u64, entry: u32, source: Source) {
        let since = self.consumers.now();
        let Some(one) = self.consumers.get_mut(consumer) else { return };
        one.requests.insert(access, ConsumerRequest { entry, state: RequestState::Pinned { since } });
        self.residents.pin(entry, &self.consumers);
        self.pins.count += 1;
        self.pins.notes.push_back(PinNote { since, consumer, access });
        if self.pins.notes.len() > 2 * self.pins.count + PINS_SLACK {
            let Self { pins, consumers, .. } = self;
            pins.notes.retain(|note| is_pinned(consumers.get(note.consumer), *note));
        }
        self.actions.push_back(NodeAction::Answer {
            consumer: ConsumerId(narrow(consumer)),
            access,
            entry: EntryId(entry),
            source,
        });
    }

    fn fail(&mut self, entry: u32, waiters: Vec<(usize, u64)>, outcome: ReadOutcome) {
        for (consumer, access) in waiters {
            if let Some(one) = self.consumers.get_mut(consumer) {
                one.requests.remove(access);
            }
            let consumer = ConsumerId(narrow(consumer));
            self.actions.push_back(NodeAction::Fail { consumer, access, entry: EntryId(entry), outcome });
        }
    }

    /// Free what a request, which the consumer no longer has, holds.
    fn end_request(&mut self, consumer: usize, access: u64, request: ConsumerRequest) {
        match request.state {
            RequestState::Pinned { .. } => self.unpin(request.entry),
            RequestState::TakenBack => {}
            RequestState::Waiting { deadline, turn } => {
                self.waiting.remove(&WaitingRequest { deadline, turn, consumer, access });
                if let Some(active) = self.active.get_mut(&request.entry) {
                    active.waiters.retain(|&waiter| waiter != (consumer, access));
                }
                self.settle(request.entry);
            }
        }
    }

    fn take_back(&mut self, consumer: usize, access: u64) {
        let Some(request) = self.consumers.get_mut(consumer).and_then(|one| one.requests.get_mut(access))
        else {
            return;
        };
        request.state = RequestState::TakenBack;
        let entry = request.entry;
        self.unpin(entry);
        let consumer = ConsumerId(narrow(consumer));
        self.actions.push_back(NodeAction::TakeBack { consumer, access, entry: EntryId(entry) });
    }

    fn unpin(&mut self, entry: u32) {
        self.pins.count -= 1;
        self.residents.unpin(entry, &self.consumers);
    }

    /// Forget that the entry is active, if it is not waited for or being read.
    fn settle(&mut self, entry: u32) {
        if let Some(active) = self.active.get(&entry)
            && active.waiters.is_empty()
            && active.read.is_none()
        {
            self.active.remove(&entry);
        }
    }

    /// Remove the requests of an entry from those that wait for a read.
    fn leave_queue(&mut self, entry: u32) {
        let waiters = self.active.get(&entry).into_iter().flat_map(|active| &active.waiters);
        for request in
            waiters.filter_map(|&(consumer, access)| self.order_of(consumer, access)).collect::<Vec<_>>()
        {
            self.waiting.remove(&request);
        }
    }

    fn lose_disk_copy(&mut self, entry: u32) {
        if self.residents.is(entry, flag::ON_DISK) {
            self.residents.disk.remove(self.residents.size(entry));
            self.residents.update(entry, 0, flag::ON_DISK, &self.consumers);
        }
    }

    /// The place of a waiting request in the order of service.
    fn order_of(&self, consumer: usize, access: u64) -> Option<WaitingRequest> {
        match self.consumers.get(consumer)?.requests.get(access)?.state {
            RequestState::Waiting { deadline, turn } => {
                Some(WaitingRequest { deadline, turn, consumer, access })
            }
            _ => None,
        }
    }

    fn drop_released_pins(&mut self) {
        while let Some(note) = self.pins.notes.front()
            && !is_pinned(self.consumers.get(note.consumer), *note)
        {
            self.pins.notes.pop_front();
        }
    }
}

/// Whether the answer of a note is still pinned.
fn is_pinned(consumer: Option<&Consumer>, note: PinNote) -> bool {
    let request = consumer.and_then(|one| one.requests.get(note.access));
    request.is_some_and(|one| one.state == RequestState::Pinned { since: note.since })
}
