// SPDX-License-Identifier: Apache-2.0
//! Reads ahead of requests: announced accesses whose entries are not in memory, in order of their predicted times.
//!
//! Each consumer has a window of its next announced accesses, bounded in bytes. Each access in it is looked at once, so
//! an entry that leaves the memory before its use is read by its request.

use foresee_units::{Bytes, Nanos};

use super::NodePlanner;
use super::consumer::TimeUntil;
use super::residents::flag;
use super::space::{FreeSpace, SpaceFor};

/// Accesses looked at per call, so that a long run of entries in memory delays no other fact. The next fact continues.
const LOOKS_MAX: usize = 1024;

/// The window of one consumer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadAhead {
    /// The next access to look at.
    next: u64,
    /// Bytes of the accesses before it that are not requested.
    bytes: Bytes,
}

/// An access to look at.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    time: TimeUntil,
    consumer: usize,
    access: u64,
}

impl ReadAhead {
    /// The consumer's access of `size` bytes was requested or skipped, after all earlier ones.
    pub(super) fn pass(&mut self, access: u64, size: Bytes) {
        if access < self.next {
            self.bytes -= size;
        } else {
            self.next = access + 1;
        }
    }

    /// The consumer's next access is `first`; none before it counts.
    pub(super) fn restart(&mut self, first: u64) {
        *self = Self { next: first, bytes: Bytes::ZERO };
    }

    fn look(&mut self, size: Bytes) {
        self.next += 1;
        self.bytes += size;
    }
}

impl NodePlanner {
    /// Begin the next read ahead of requests, or make space for it; return whether [`poll_action`](Self::poll_action) has
    /// an action for that.
    ///
    /// Call it when `poll_action` has returned `None` and the sources are not busy with reads begun before: what is read
    /// next is decided as late as possible, because predicted times change. An entry leaves the memory only for one that is
    /// used sooner.
    pub fn read_ahead(&mut self, now: Nanos) -> bool {
        self.consumers.advance_to(now);
        let before = self.actions.len();
        let has_all = self.residents.memory.copies == self.residents.len();
        if self.read_ahead_bytes.is_zero() || has_all || !self.waiting.is_empty() {
            return false;
        }
        let share = Bytes::new(self.read_ahead_bytes.get() / self.consumers.attached().max(1) as u64);
        for _ in 0..LOOKS_MAX {
            let Some(Candidate { time, consumer, access }) = self.candidate(share) else { break };
            let (entry, _) = self.residents.accesses.access(consumer, access);
            let size = self.residents.size(entry);
            let limits = self.residents.memory.limits;
            let is_missing =
                !self.residents.is(entry, flag::IN_MEMORY) && !self.residents.is(entry, flag::READING);
            if is_missing && limits.cost(size) <= limits.capacity {
                if self.make_space(limits.cost(size), SpaceFor::ReadAhead(time)) != FreeSpace::Ready {
                    break;
                }
                let deadline = self.consumers.deadline(time);
                self.begin_read(entry, deadline);
            }
            if let Some(one) = self.consumers.get_mut(consumer) {
                one.read_ahead.look(size);
            }
            if self.actions.len() > before {
                break;
            }
        }
        self.actions.len() > before
    }

    /// The access to look at next: of all consumers that make progress and whose windows are not full, the one that is used
    /// first.
    fn candidate(&self, share: Bytes) -> Option<Candidate> {
        (0..self.consumers.slots())
            .filter_map(|consumer| {
                let ReadAhead { next, bytes } = self.consumers.get(consumer)?.read_ahead;
                let accesses = &self.residents.accesses;
                let end = accesses.first(consumer) + accesses.len(consumer) as u64;
                if next >= end || bytes >= share || self.consumers.stands_still(consumer) {
                    return None;
                }
                Some(Candidate { time: self.consumers.time_until(consumer, next), consumer, access: next })
            })
            .min_by_key(|candidate| (candidate.time, candidate.consumer))
    }
}
