// SPDX-License-Identifier: Apache-2.0
//! Eviction order of a tier: its copies in order of their next use, the farthest first.
//!
//! The planner weighs a victim against a new sample; this file has only the order. It must be total, because
//! every rank has to compute one plan:
//! 1. copies without an announced use, the most recently consumed first: within an epoch of a permutation that one
//!    is expected back last, and after the run's end none is used again. Copies never consumed (a warm start) follow,
//!    larger ones first, then smaller ids first;
//! 2. copies with an announced use, the farthest first; two accesses never share a position.
//!
//! Sizes, capacities and other tiers have no influence.

use foresee_units::Bytes;

use crate::capacity::Sizes;
use crate::farthest::PositionSet;
use crate::next_use::Window;
use crate::sampling::Sampling;

/// By sample: the tier that holds it.
pub(crate) const NO_TIER: u8 = u8::MAX;

/// Number of copies that are looked up together before their eviction. Single look-ups would cost two cache
/// misses each: the sample is anywhere in the window, and its size anywhere in a table. Together these misses
/// overlap.
const AHEAD: usize = 32;

/// The copies of one tier, in eviction order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Victims {
    /// Positions of the next uses of the copies that have one. Empty until the first eviction is needed.
    known: PositionSet,
    /// The farthest of them, the farthest last, [`AHEAD`] at most: no other member of `known` is farther than any
    /// of these. Empty until the first query.
    ahead: Vec<Known>,
    /// Number of lost copies in `known`, whose next uses are unknown until they occur.
    lost: usize,
    /// Notes on copies without an announced use, the most recent on top; a note is valid while its copy is still
    /// held and was not announced since.
    unknown: Vec<Note>,
}

/// A copy with an announced use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    position: u32,
    id: u32,
    size: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    id: u32,
    stamp: u32,
}

impl Note {
    fn is_valid(self, copies: &Copies<'_>) -> bool {
        let Copies { tier_of, tier, window, .. } = *copies;
        tier_of[self.id as usize] == tier && window.stamp(self.id) == self.stamp
    }
}

/// The access planner's tables of a tier's copies, and the tier.
#[derive(Clone, Copy)]
pub(crate) struct Copies<'a> {
    pub(crate) tier: u8,
    pub(crate) tier_of: &'a [u8],
    pub(crate) window: &'a Window,
    pub(crate) sizes: &'a Sizes,
}

/// A candidate for eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Victim {
    pub(crate) id: u32,
    pub(crate) size: Bytes,
    /// Distance of its next use from the window's front, if announced.
    pub(crate) offset: Option<usize>,
}

impl Victims {
    /// A copy of `id` has its next use at `position`.
    pub(crate) fn insert_known(&mut self, id: u32, position: u32, window: &Window, sizes: &Sizes) {
        self.known.insert(position);
        let offset = |position| window.offset(position);
        if self.ahead.first().is_some_and(|nearest| offset(nearest.position) < offset(position)) {
            let at = self.ahead.partition_point(|one| offset(one.position) < offset(position));
            self.ahead.insert(at, Known { position, id, size: sizes.of(id) });
            if self.ahead.len() > AHEAD {
                self.ahead.remove(0);
            }
        }
    }

    /// A copy no longer has its next use at `position`.
    pub(crate) fn remove_known(&mut self, position: u32, window: &Window) {
        self.known.remove(position);
        let offset = |position| window.offset(position);
        if self.ahead.first().is_some_and(|nearest| offset(nearest.position) <= offset(position))
            && let Some(at) = self.ahead.iter().rposition(|one| one.position == position)
        {
            self.ahead.remove(at);
        }
    }

    /// A copy with an announced next use was lost.
    pub(crate) fn mark_lost(&mut self, id: u32) {
        self.lost += 1;
        self.ahead.retain(|one| one.id != id);
    }

    /// The access at `position` found no copy: if one was lost, then this was its next use.
    pub(crate) fn miss(&mut self, position: u32) {
        if self.lost > 0 && self.known.contains(position) {
            self.known.remove(position);
            self.lost -= 1;
        }
    }

    /// A copy without an announced use was consumed, or found at the start.
    pub(crate) fn push_unknown(&mut self, id: u32, window: &Window) {
        self.unknown.push(Note { id, stamp: window.stamp(id) });
    }

    /// Restart with a set for `span` positions; the caller inserts the copies held.
    pub(crate) fn reset_known(&mut self, span: usize) {
        self.known = PositionSet::with_span(span);
        self.ahead.clear();
        self.lost = 0;
    }

    /// A copy has its next use at `position`, which is farther than all so far; it is looked up on the first
    /// query.
    pub(crate) fn insert_farthest(&mut self, position: u32) {
        self.known.insert(position);
        self.ahead.clear();
    }

    pub(crate) fn span(&self) -> usize {
        self.known.span()
    }

    /// The notes on sampled copies, without any known next use.
    pub(crate) fn sampled(&self, sampling: Sampling) -> Self {
        let unknown = self.unknown.iter().copied().filter(|note| sampling.includes(note.id)).collect();
        Self { unknown, ..Self::default() }
    }

    /// Number of notes; above twice the copies of the tier, call `compact`.
    pub(crate) fn notes(&self) -> usize {
        self.unknown.len()
    }

    /// Drop invalid notes.
    pub(crate) fn compact(&mut self, copies: &Copies<'_>) {
        self.unknown.retain(|note| note.is_valid(copies));
    }

    /// Give all notes, which must be valid, the current stamps of their samples.
    pub(crate) fn stamp(&mut self, window: &Window) {
        for note in &mut self.unknown {
            note.stamp = window.stamp(note.id);
        }
    }

    /// Sort the copies of a warm start, so that their order does not depend on how they were found.
    pub(crate) fn sort_unknown(&mut self, copies: &Copies<'_>) {
        self.compact(copies);
        self.unknown.sort_unstable_by_key(|note| (copies.sizes.of(note.id), std::cmp::Reverse(note.id)));
        self.unknown.dedup();
    }

    /// Candidates for eviction, the first to be evicted first. With `after`, only those used later than that many
    /// positions from the front; with `known` false, only those without an announced use. Invalid notes are
    /// dropped on the way.
    pub(crate) fn candidates<'a>(&'a mut self, scope: Scope, copies: Copies<'a>) -> Candidates<'a> {
        self.fill_lookahead(&copies);
        let Scope { after, known } = scope;
        let (ahead, bound) = if known { (self.ahead.len(), copies.window.len()) } else { (0, 0) };
        Candidates { notes: self.unknown.len(), victims: self, ahead, bound, after, copies }
    }

    fn fill_lookahead(&mut self, copies: &Copies<'_>) {
        if !self.ahead.is_empty() {
            return;
        }
        let Copies { tier, tier_of, window, sizes } = *copies;
        let front = window.position(0);
        let mut bound = window.len();
        while self.ahead.len() < AHEAD
            && let Some(offset) = self.known.farthest(front, bound)
        {
            self.ahead.push(Known { position: window.position(offset), id: 0, size: Bytes::ZERO });
            bound = offset;
        }
        for one in &mut self.ahead {
            one.id = window.id(window.offset(one.position));
        }
        if self.lost > 0 {
            self.ahead.retain(|one| tier_of[one.id as usize] == tier);
        }
        for one in &mut self.ahead {
            one.size = sizes.of(one.id);
        }
        self.ahead.reverse();
    }

    pub(crate) fn table_bytes(&self) -> u64 {
        self.known.table_bytes()
            + self.unknown.capacity() as u64 * size_of::<Note>() as u64
            + self.ahead.capacity() as u64 * size_of::<Known>() as u64
    }
}

/// The copies that may be evicted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope {
    /// Only copies used later than this distance from the front.
    pub(crate) after: Option<usize>,
    /// Whether copies with an announced use may be evicted.
    pub(crate) known: bool,
}

/// Iterator of [`Victims::candidates`].
pub(crate) struct Candidates<'a> {
    victims: &'a mut Victims,
    notes: usize,
    ahead: usize,
    bound: usize,
    after: Option<usize>,
    copies: Copies<'a>,
}

impl Iterator for Candidates<'_> {
    type Item = Victim;

    // Inlined, because a return of each victim through memory would add a wait per victim.
    #[inline]
    fn next(&mut self) -> Option<Victim> {
        let Copies { tier, tier_of, window, sizes } = self.copies;
        while self.notes > 0 {
            self.notes -= 1;
            let note = self.victims.unknown[self.notes];
            if note.is_valid(&self.copies) {
                return Some(Victim { id: note.id, size: sizes.of(note.id), offset: None });
            }
            // Only notes that were returned just now are above it.
            self.victims.unknown.remove(self.notes);
        }
        let victim = if self.ahead > 0 {
            self.ahead -= 1;
            let Known { position, id, size } = self.victims.ahead[self.ahead];
            self.bound = window.offset(position);
            Victim { id, size, offset: Some(self.bound) }
        } else {
            let id = loop {
                self.bound = self.victims.known.farthest(window.position(0), self.bound)?;
                let id = window.id(self.bound);
                if self.victims.lost == 0 || tier_of[id as usize] == tier {
                    break id;
                }
            };
            Victim { id, size: sizes.of(id), offset: Some(self.bound) }
        };
        self.after.is_none_or(|after| self.bound > after).then_some(victim)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use foresee_testkit::property;
    use foresee_units::SampleId;
    use proptest::prelude::*;

    use super::*;
    use crate::capacity::SampleSizes;

    const SAMPLES: u32 = 150;

    /// Each sample's size is its number.
    struct Numbered;

    impl SampleSizes for Numbered {
        fn count(&self) -> u64 {
            u64::from(SAMPLES)
        }
        fn size(&self, id: SampleId) -> Bytes {
            Bytes::new(id.0)
        }
        fn uniform(&self) -> Option<Bytes> {
            None
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Change {
        Insert(u32),
        Remove(u32),
        Lose(u32),
        /// Query this many candidates, and evict the first.
        Leave(usize),
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            4 => (0..SAMPLES).prop_map(Change::Insert),
            1 => (0..SAMPLES).prop_map(Change::Remove),
            1 => (0..SAMPLES).prop_map(Change::Lose),
            2 => (1..2 * AHEAD).prop_map(Change::Leave),
        ]
    }

    proptest! {
        #![proptest_config(property(256))]

        /// For any earlier look-ups: each sample is used once, at the position of its number.
        #[test]
        fn candidates_for_eviction_are_the_last_of_a_sorted_set(changes in prop::collection::vec(change(), 1..400)) {
            let sizes = Sizes::new(Arc::new(Numbered));
            let mut window = Window::new(SAMPLES as usize);
            for id in 0..SAMPLES {
                window.announce(id);
            }
            let mut tier_of = vec![NO_TIER; SAMPLES as usize];
            let (mut victims, mut sorted, mut lost) = (Victims::default(), BTreeSet::new(), BTreeSet::new());
            victims.reset_known(window.len());
            for change in changes {
                match change {
                    // A lost copy returns after its next use at the earliest.
                    Change::Insert(id) => if !lost.contains(&id) && sorted.insert(id) {
                        tier_of[id as usize] = 0;
                        victims.insert_known(id, id, &window, &sizes);
                    }
                    Change::Remove(id) => if sorted.remove(&id) {
                        tier_of[id as usize] = NO_TIER;
                        victims.remove_known(id, &window);
                    }
                    Change::Lose(id) => if sorted.remove(&id) {
                        tier_of[id as usize] = NO_TIER;
                        victims.mark_lost(id);
                        lost.insert(id);
                    }
                    Change::Leave(count) => {
                        let copies = Copies { tier: 0, tier_of: &tier_of, window: &window, sizes: &sizes };
                        let all = Scope { after: None, known: true };
                        let candidates: Vec<Victim> = victims.candidates(all, copies).take(count).collect();
                        let expected = sorted.iter().rev().take(count).map(|&id| Victim {
                            id,
                            size: Bytes::new(u64::from(id)),
                            offset: Some(id as usize),
                        });
                        prop_assert_eq!(&candidates, &expected.collect::<Vec<_>>());
                        if let Some(first) = candidates.first() {
                            sorted.remove(&first.id);
                            tier_of[first.id as usize] = NO_TIER;
                            victims.remove_known(first.id, &window);
                        }
                    }
                }
            }
            for id in (0..SAMPLES).filter(|id| !sorted.contains(id)) {
                victims.miss(id);
            }
            prop_assert_eq!(victims.lost, 0);
            prop_assert!((0..SAMPLES).all(|id| victims.known.contains(id) == sorted.contains(&id)));
        }
    }
}
