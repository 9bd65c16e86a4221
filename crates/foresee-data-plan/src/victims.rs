// SPDX-License-Identifier: Apache-2.0
//! Who leaves a tier first: its copies in order of their next use, the farthest at the head.
//!
//! Apart from the planner, which weighs a victim against a newcomer; here is only the order, which must
//! be total, because every rank has to compute one plan:
//! 1. copies without an announced use, the most recently consumed first: within an epoch of a permutation
//!    that one comes back last in expectation, and after the run's end all of them are dead anyway. Copies
//!    never consumed (a warm start) come after those, the larger, then the smaller id first;
//! 2. copies with an announced use, the farthest first; two accesses never share a position.
//!
//! Refuses to look at sizes, room or tiers of others.

use crate::farthest::PositionSet;
use crate::next_use::{NONE, Window};
use crate::walk::Sampling;

/// By sample: the tier that holds it.
pub(crate) const NOWHERE: u8 = u8::MAX;

/// The copies of one tier, in the order in which they would leave.
#[derive(Clone, Debug, Default)]
pub(crate) struct Victims {
    /// Positions of the next uses of the copies that have one. Empty until the first eviction is needed.
    known: PositionSet,
    /// Notes on copies without an announced use, the most recent on top; a note is valid while its copy
    /// is still here and was not announced since.
    unknown: Vec<Note>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    id: u32,
    stamp: u32,
}

impl Note {
    fn is_valid(self, place: &[u8], tier: u8, window: &Window) -> bool {
        place[self.id as usize] == tier && window.stamp(self.id) == self.stamp && window.due(self.id) == NONE
    }
}

/// A copy that may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Victim {
    pub(crate) id: u32,
    /// Distance of its next use from the window's front, if one is announced.
    pub(crate) offset: Option<usize>,
}

impl Victims {
    /// A copy has its next use at `position`.
    pub(crate) fn insert_known(&mut self, position: u32) {
        self.known.insert(position);
    }

    /// A copy's next use is no longer at `position`.
    pub(crate) fn remove_known(&mut self, position: u32) {
        self.known.remove(position);
    }

    /// A copy was consumed, or found at the start, and has no announced use.
    pub(crate) fn push_unknown(&mut self, id: u32, window: &Window) {
        self.unknown.push(Note { id, stamp: window.stamp(id) });
    }

    /// Starts over with a set for `span` positions; the caller inserts what is held.
    pub(crate) fn reset_known(&mut self, span: usize) {
        self.known = PositionSet::with_span(span);
    }

    pub(crate) fn span(&self) -> usize {
        self.known.span()
    }

    /// Only the notes on sampled copies, and no known next use.
    pub(crate) fn sampled(&self, sampling: Sampling) -> Self {
        let unknown = self.unknown.iter().copied().filter(|note| sampling.takes(note.id)).collect();
        Self { known: PositionSet::default(), unknown }
    }

    /// Notes kept; more than twice the copies of the tier is a reason to `compact`.
    pub(crate) fn notes(&self) -> usize {
        self.unknown.len()
    }

    /// Drops the notes that no longer hold.
    pub(crate) fn compact(&mut self, place: &[u8], tier: u8, window: &Window) {
        self.unknown.retain(|note| note.is_valid(place, tier, window));
    }

    /// Brings the copies of a warm start into an order that does not depend on how they were found.
    pub(crate) fn sort_unknown(
        &mut self,
        place: &[u8],
        tier: u8,
        window: &Window,
        size: impl Fn(u32) -> u64,
    ) {
        self.compact(place, tier, window);
        self.unknown.sort_unstable_by_key(|note| (size(note.id), std::cmp::Reverse(note.id)));
        self.unknown.dedup();
    }

    /// Copies to leave, first to leave first. Only those used later than `after` positions from the front
    /// if `after` is given, and only those without an announced use if `known` is false.
    pub(crate) fn iter<'a>(
        &'a self,
        scope: Scope,
        place: &'a [u8],
        tier: u8,
        window: &'a Window,
    ) -> Leaving<'a> {
        let Scope { after, known } = scope;
        let bound = if known { window.len() } else { 0 };
        Leaving { victims: self, notes: self.unknown.len(), bound, after, place, tier, window }
    }

    /// Forgets notes on top that no longer hold, so that `iter` need not step over them again.
    pub(crate) fn trim(&mut self, place: &[u8], tier: u8, window: &Window) {
        while self.unknown.last().is_some_and(|note| !note.is_valid(place, tier, window)) {
            self.unknown.pop();
        }
    }

    pub(crate) fn table_bytes(&self) -> u64 {
        self.known.table_bytes() + self.unknown.capacity() as u64 * 8
    }
}

/// Which copies may be asked to leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope {
    /// Only copies used later than this distance from the front.
    pub(crate) after: Option<usize>,
    /// Also copies with an announced use.
    pub(crate) known: bool,
}

/// Iterator of [`Victims::iter`].
#[derive(Debug)]
pub(crate) struct Leaving<'a> {
    victims: &'a Victims,
    notes: usize,
    bound: usize,
    after: Option<usize>,
    place: &'a [u8],
    tier: u8,
    window: &'a Window,
}

impl Iterator for Leaving<'_> {
    type Item = Victim;

    fn next(&mut self) -> Option<Victim> {
        while self.notes > 0 {
            self.notes -= 1;
            let note = self.victims.unknown[self.notes];
            if note.is_valid(self.place, self.tier, self.window) {
                return Some(Victim { id: note.id, offset: None });
            }
        }
        let front = crate::next_use::position(self.window.first());
        let offset = self.victims.known.farthest(front, self.bound)?;
        if self.after.is_some_and(|after| offset <= after) {
            return None;
        }
        self.bound = offset;
        Some(Victim { id: self.window.access(offset).0, offset: Some(offset) })
    }
}
