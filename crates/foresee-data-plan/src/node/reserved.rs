// SPDX-License-Identifier: Apache-2.0
//! Entries that other nodes of a job read here, by the placement that all its nodes have planned, and entries that they send.

use foresee_units::{Nanos, ReadOutcome, Source};

use super::NodePlanner;
use super::action::EntryId;
use super::residents::flag;
use super::space::{FreeSpace, SpaceFor};

impl NodePlanner {
    /// Reserve an entry, or end that: other nodes read it here. Its last copy does not leave the node for entries that are
    /// not reserved; it moves to the disk if the memory is needed. It may be reserved before the node has it.
    ///
    /// A reserved entry is lost if a tier is reduced below what is reserved, if its write fails, or if a request would wait
    /// for ever because only reserved entries are in memory: reserve less than both tiers, and leave memory for what
    /// requests need.
    ///
    /// # Panics
    /// If there is no such entry.
    pub fn handle_reserved(&mut self, entry: EntryId, is_reserved: bool) {
        let (set, clear) = if is_reserved { (flag::RESERVED, 0) } else { (0, flag::RESERVED) };
        self.residents.update(entry.0, set, clear, &self.consumers);
    }

    /// Another node offers the bytes of an entry. Returns whether they can be received now: then execute the actions that
    /// [`poll_action`](Self::poll_action) has, receive the bytes into memory, and report
    /// [`handle_read`](Self::handle_read). Requests that wait for the entry wait for that.
    ///
    /// They cannot if the node has the entry or is reading it, or if there is no memory: then there may be some when a write
    /// has ended or a pin was released.
    ///
    /// # Panics
    /// If there is no such entry.
    pub fn handle_offer(&mut self, entry: EntryId, now: Nanos) -> bool {
        self.consumers.advance_to(now);
        let EntryId(entry) = entry;
        let present = [flag::IN_MEMORY, flag::ON_DISK, flag::READING, flag::STORING];
        if present.into_iter().any(|flag| self.residents.is(entry, flag)) {
            return false;
        }
        let limits = self.residents.memory.limits;
        let cost = limits.cost(self.residents.size(entry));
        if cost > limits.capacity || self.make_space(cost, SpaceFor::Offer) != FreeSpace::Ready {
            return false;
        }
        let deadline = self.start_waiting(entry);
        self.note_read(entry, Source::Peer, deadline);
        true
    }

    /// Another node has sent an entry that is being read: the read has ended.
    pub fn handle_received(&mut self, entry: EntryId, now: Nanos) {
        if let Some((source, _)) = self.active.get_mut(&entry.0).and_then(|active| active.read.as_mut()) {
            *source = Source::Peer;
        }
        self.handle_read(entry, ReadOutcome::Ok, now);
    }

    /// The bytes of an entry in memory are sent to another node: it stays in memory until [`handle_sent`](Self::handle_sent).
    /// Returns `false`, without effect, if it is not in memory.
    ///
    /// # Panics
    /// If there is no such entry.
    pub fn handle_sending(&mut self, entry: EntryId) -> bool {
        let is_here = self.residents.is(entry.0, flag::IN_MEMORY);
        if is_here {
            self.residents.pin(entry.0, &self.consumers);
        }
        is_here
    }

    /// The bytes of an entry are sent, or not needed: once for each [`handle_sending`](Self::handle_sending) that returned
    /// `true`.
    ///
    /// # Panics
    /// If there is no such entry, or it is not being sent and no answer pins it.
    pub fn handle_sent(&mut self, entry: EntryId) {
        self.residents.unpin(entry.0, &self.consumers);
    }
}
