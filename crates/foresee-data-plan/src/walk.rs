// SPDX-License-Identifier: Apache-2.0
//! The decision of one access at a time: copies held, cached and evicted.
//!
//! It is separate from the planner's interface, because the choice of a policy runs the same code over the same
//! window before any access is planned.

mod trial;

use std::collections::VecDeque;
use std::sync::Arc;

use foresee_units::{Bytes, SampleId};

use crate::hint;
use crate::next_use::{NONE, WINDOW_MAX, Window, narrow};
use crate::policy::Policy;
use crate::room::{Room, SampleSizes, Sizes, TierIndex};
use crate::victims::{Copies, NOWHERE, Scope, Victim, Victims};

/// Notes beyond twice the copies of a tier that trigger no clean-up, so that small tiers do not sort at every
/// access.
const NOTES_SLACK: usize = 1024;

/// The announced window and the copies held, as of one of its accesses.
pub(crate) struct Walk {
    pub(crate) window: Window,
    sizes: Sizes,
    /// By sample: the tier that holds it, or `NOWHERE`.
    place: Vec<u8>,
    rooms: Vec<Room>,
    victims: Vec<Victims>,
    /// Whether `victims` contain the next uses of the copies. Until space first runs out there is no query, and
    /// planning takes a few table look-ups.
    tracked: bool,
    /// Victims of the current tier, and of the best tier so far; reused memory.
    scratch: [Vec<Victim>; 2],
}

/// The source of an access, and the tier that caches its bytes: a tier, or `NOWHERE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) source: u8,
    pub(crate) keep: u8,
}

impl Walk {
    /// `samples` is `sizes.count()`, which must fit the tables.
    pub(crate) fn new(sizes: Arc<dyn SampleSizes>, samples: usize, rooms: Vec<Room>) -> Self {
        Self {
            window: Window::new(samples),
            sizes: Sizes::new(sizes),
            place: vec![NOWHERE; samples],
            victims: vec![Victims::default(); rooms.len()],
            rooms,
            tracked: false,
            scratch: [Vec::new(), Vec::new()],
        }
    }

    /// Decide the access at `offset` of the window; all earlier ones must be decided.
    ///
    /// Evicted copies are appended to `evict`; they are evicted before the new one is written.
    pub(crate) fn step(
        &mut self,
        offset: usize,
        policy: Policy,
        evict: &mut Vec<(SampleId, TierIndex)>,
    ) -> Decision {
        let (id, next) = self.window.access(offset);
        let held = self.place[id as usize];
        if held != NOWHERE {
            if self.tracked {
                self.victims[usize::from(held)].remove_known(self.window.position(offset), &self.window);
            }
            self.note(id, held, next);
            return Decision { source: held, keep: NOWHERE };
        }
        if self.tracked {
            for victims in &mut self.victims {
                victims.miss(self.window.position(offset));
            }
        }
        let keep = self.make_room(offset, id, next, policy, evict);
        if keep != NOWHERE {
            self.hold(id, keep);
            self.note(id, keep, next);
        }
        Decision { source: NOWHERE, keep }
    }

    /// Prefetch the data for the decision of the access at `offset`, if there is one.
    pub(crate) fn expect(&self, offset: usize) {
        if offset < self.window.len() {
            let (id, next) = self.window.access(offset);
            hint::expect(&self.place, id as usize);
            self.sizes.expect(id);
            if next == NONE {
                // A copy of it gets a note.
                self.window.expect(id);
            }
        }
    }

    /// Whether the access at `offset` finds no free space, although a tier could hold its sample.
    pub(crate) fn is_crowded_by(&self, offset: usize) -> bool {
        let (id, next) = self.window.access(offset);
        if self.place[id as usize] != NOWHERE || next == NONE {
            return false;
        }
        let size = self.size(id);
        let fits = |room: &Room| room.limits.cost(size) <= room.limits.capacity;
        let free = |room: &Room| room.limits.cost(size) <= room.free();
        self.rooms.iter().any(fits) && !self.rooms.iter().any(free)
    }

    /// A copy was found in `tier`, before the first access is decided. The caller has checked that it fits.
    pub(crate) fn find(&mut self, id: u32, tier: u8) {
        self.hold(id, tier);
        // Announced copies are inserted with all others on the first query.
        if !self.window.is_announced(id) {
            self.note(id, tier, NONE);
        }
    }

    /// The copy in `tier` was lost.
    pub(crate) fn lose(&mut self, id: u32, tier: u8) {
        self.let_go(id, self.size(id), tier);
        if self.tracked && self.window.is_announced(id) {
            self.victims[usize::from(tier)].lose_known(id);
        }
    }

    /// Append accesses and return their number; copies whose next use they reveal are moved in the order of
    /// victims.
    ///
    /// # Panics
    /// If an id is not in the data set, or the window would exceed `WINDOW_MAX`.
    pub(crate) fn announce(&mut self, accesses: &mut dyn Iterator<Item = SampleId>) -> usize {
        if self.window.is_aged() {
            self.renew_stamps();
        }
        let start = self.window.len();
        self.window.reserve(accesses.size_hint().0);
        let mut expected = VecDeque::with_capacity(hint::AHEAD + 1);
        for SampleId(id) in accesses {
            let sample = usize::try_from(id).unwrap_or(usize::MAX);
            let samples = self.place.len();
            assert!(sample < samples, "sample {id} was announced, but the data set has {samples}");
            self.window.expect(narrow(sample));
            hint::expect(&self.place, sample);
            expected.push_back(narrow(sample));
            if expected.len() > hint::AHEAD
                && let Some(id) = expected.pop_front()
            {
                self.announce_one(id);
            }
        }
        for id in expected {
            self.announce_one(id);
        }
        let len = self.window.len();
        assert!(len as u64 <= WINDOW_MAX, "more than {WINDOW_MAX} accesses are announced");
        if self.tracked && self.victims.iter().any(|victims| victims.span() < len) {
            self.track(0..len);
        }
        len - start
    }

    fn announce_one(&mut self, id: u32) {
        let revealed = self.window.announce(id);
        if let (true, Some(position), tier) = (self.tracked, revealed, self.place[id as usize])
            && tier != NOWHERE
        {
            let victims = &mut self.victims[usize::from(tier)];
            // If there are too many for the set, all of them are inserted again.
            if self.window.len() <= victims.span() {
                victims.insert_farthest(position);
            }
        }
    }

    /// Drop the announced accesses; copies stay, with an unknown next use.
    pub(crate) fn restart(&mut self) {
        self.window.forget();
        self.tracked = false;
        self.victims.fill_with(Victims::default);
        for (sample, &tier) in self.place.iter().enumerate() {
            if tier != NOWHERE {
                self.victims[usize::from(tier)].push_unknown(narrow(sample), &self.window);
            }
        }
    }

    /// Sort copies that were never consumed into their canonical order.
    pub(crate) fn settle(&mut self) {
        let Self { victims, place, window, sizes, .. } = self;
        for (tier, victims) in (0_u8..).zip(victims) {
            victims.sort_unknown(&Copies { tier, place, window, sizes });
        }
    }

    /// Set a tier's capacity and evict the excess, farthest next use first.
    pub(crate) fn resize(&mut self, tier: u8, capacity: Bytes, evict: &mut Vec<(SampleId, TierIndex)>) {
        self.rooms[usize::from(tier)].limits.capacity = capacity;
        while self.rooms[usize::from(tier)].used > capacity {
            self.ensure_tracked();
            let everything = Scope { after: None, known: true };
            let Self { victims, place, window, sizes, .. } = self;
            let copies = Copies { tier, place, window, sizes };
            let victim = victims[usize::from(tier)].leaving(everything, copies).next();
            let victim = victim.expect("a tier in use holds a copy, and every copy is among the victims");
            self.evict(victim, tier, evict);
        }
    }

    pub(crate) fn place(&self, sample: usize) -> u8 {
        self.place.get(sample).copied().unwrap_or(NOWHERE)
    }

    pub(crate) fn rooms(&self) -> &[Room] {
        &self.rooms
    }

    /// The size of the sample.
    pub(crate) fn size(&self, id: u32) -> Bytes {
        self.sizes.of(id)
    }

    pub(crate) fn table_bytes(&self) -> u64 {
        let victims: u64 = self.victims.iter().map(Victims::table_bytes).sum();
        self.window.table_bytes() + self.place.capacity() as u64 + victims
    }

    /// A tier for the new sample `id`, whose next use is `next`, or `NOWHERE` for a bypass.
    fn make_room(
        &mut self,
        offset: usize,
        id: u32,
        next: u32,
        policy: Policy,
        evict: &mut Vec<(SampleId, TierIndex)>,
    ) -> u8 {
        if next == NONE && self.window.has_ended() {
            return NOWHERE;
        }
        let size = self.size(id);
        for (tier, room) in (0_u8..).zip(&self.rooms) {
            if room.limits.cost(size) <= room.free() {
                return tier;
            }
        }
        // Without an announced use the new sample, consumed last of all, would be evicted first.
        if next == NONE {
            return NOWHERE;
        }
        self.ensure_tracked();
        let next = self.window.offset(next);
        let newcomer = Newcomer { offset, next, size, gain: worth(size, next - offset) };
        let mut best = None;
        for tier in 0..narrow_tier(self.rooms.len()) {
            let lost = self.propose(tier, &newcomer, policy);
            if let Some(lost) = lost
                && best.is_none_or(|(least, _)| lost < least)
            {
                best = Some((lost, tier));
                self.scratch.swap(0, 1);
            }
        }
        let Some((_, tier)) = best else { return NOWHERE };
        for index in 0..self.scratch[1].len() {
            self.evict(self.scratch[1][index], tier, evict);
        }
        tier
    }

    /// Find victims in `tier` for the new sample, into `scratch[0]`, and return the value lost with them; `None`
    /// if no set of them is worth it.
    ///
    /// The value is origin bytes saved per access of occupation, `size / distance of the next use`. Of two
    /// samples of one size, the one used sooner has the higher value; a large one is compared with several small
    /// ones by value per space. Every victim is used later than the new sample. Without this rule drawn runs of
    /// unequal sizes read 0.4 % less, but near hits turn into misses.
    fn propose(&mut self, tier: u8, newcomer: &Newcomer, policy: Policy) -> Option<u128> {
        let index = usize::from(tier);
        let room = self.rooms[index];
        let cost = room.limits.cost(newcomer.size);
        if cost > room.limits.capacity {
            return None;
        }
        let scope = match policy {
            Policy::NextUse => Scope { after: Some(newcomer.next), known: true },
            Policy::Pin if self.window.has_ended() => Scope { after: None, known: false },
            Policy::Pin => return None,
        };
        let need = cost.saturating_sub(room.free());
        let Self { victims, place, window, sizes, scratch: [chosen, _], .. } = self;
        let worth_of = |victim: Victim| match victim.offset {
            Some(next) => worth(victim.size, next - newcomer.offset),
            None if window.has_ended() => 0,
            None => worth(victim.size, window.len() - newcomer.offset),
        };
        chosen.clear();
        let (mut freed, mut lost) = (Bytes::ZERO, 0);
        for victim in victims[index].leaving(scope, Copies { tier, place, window, sizes }) {
            freed += room.limits.cost(victim.size);
            lost += worth_of(victim);
            chosen.push(victim);
            if freed >= need || lost >= newcomer.gain {
                break;
            }
        }
        if freed > need && chosen.len() > 1 {
            // A late, large victim can make earlier ones unnecessary: spare those used soonest.
            for index in (0..chosen.len()).rev() {
                let cost = room.limits.cost(chosen[index].size);
                if freed.saturating_sub(cost) >= need {
                    freed -= cost;
                    lost -= worth_of(chosen[index]);
                    chosen.remove(index);
                }
            }
        }
        (freed >= need && lost < newcomer.gain).then_some(lost)
    }

    /// Insert a copy into its tier's victims by its next use.
    fn note(&mut self, id: u32, tier: u8, next: u32) {
        let Self { victims, place, window, sizes, rooms, tracked, .. } = self;
        let victims = &mut victims[usize::from(tier)];
        if next == NONE {
            victims.push_unknown(id, window);
            if victims.notes() > 2 * rooms[usize::from(tier)].copies + NOTES_SLACK {
                victims.compact(&Copies { tier, place, window, sizes });
            }
        } else if *tracked {
            victims.insert_known(id, next, window, sizes);
        }
    }

    /// Positions wrap: no old position may be mistaken for a new one, and no old note for a valid one.
    fn renew_stamps(&mut self) {
        let Self { victims, place, window, sizes, .. } = self;
        for (tier, victims) in (0_u8..).zip(victims.iter_mut()) {
            victims.compact(&Copies { tier, place, window, sizes });
        }
        window.forget_consumed();
        for victims in victims {
            victims.stamp(window);
        }
    }

    fn hold(&mut self, id: u32, tier: u8) {
        let size = self.size(id);
        self.rooms[usize::from(tier)].take(size);
        self.place[id as usize] = tier;
    }

    fn let_go(&mut self, id: u32, size: Bytes, tier: u8) {
        self.rooms[usize::from(tier)].give_back(size);
        self.place[id as usize] = NOWHERE;
    }

    /// Evict a victim.
    fn evict(&mut self, victim: Victim, tier: u8, evict: &mut Vec<(SampleId, TierIndex)>) {
        self.let_go(victim.id, victim.size, tier);
        if let Some(offset) = victim.offset {
            self.victims[usize::from(tier)].remove_known(self.window.position(offset), &self.window);
        }
        evict.push((SampleId(u64::from(victim.id)), TierIndex(tier)));
    }

    fn ensure_tracked(&mut self) {
        if !self.tracked {
            self.track(0..self.window.len());
        }
    }

    /// Insert the next uses at these offsets of the window, ascending, for copies that have one there.
    fn track(&mut self, offsets: impl Iterator<Item = usize> + Clone) {
        for victims in &mut self.victims {
            victims.reset_known(self.window.len());
        }
        self.tracked = true;
        let Self { victims, place, window, .. } = self;
        let mut later = offsets.clone().skip(hint::AHEAD);
        // One bit per sample: its next use is inserted.
        let mut filed = vec![0_u64; place.len().div_ceil(64)];
        for offset in offsets {
            if let Some(later) = later.next() {
                hint::expect(place, window.id(later) as usize);
            }
            let sample = window.id(offset) as usize;
            let (tier, word, bit) = (place[sample], &mut filed[sample / 64], 1 << (sample % 64));
            if tier != NOWHERE && *word & bit == 0 {
                *word |= bit;
                victims[usize::from(tier)].insert_farthest(window.position(offset));
            }
        }
    }
}

/// A sample that is being read from the origin and may be cached.
struct Newcomer {
    offset: usize,
    next: usize,
    size: Bytes,
    /// The value of caching it.
    gain: u128,
}

/// The value of a copy per access that it stays: origin bytes by accesses of waiting, scaled so that no two
/// distances of one size are equal. An empty sample counts as one byte, because its request is saved too.
fn worth(size: Bytes, distance: usize) -> u128 {
    (u128::from(size.get().max(1)) << 64) / (distance.max(1) as u128)
}

fn narrow_tier(tiers: usize) -> u8 {
    u8::try_from(tiers).expect("the number of tiers was checked")
}
