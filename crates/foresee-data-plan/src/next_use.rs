// SPDX-License-Identifier: Apache-2.0
//! The announced window: which accesses are ahead, and when each sample is used next.
//!
//! Apart from the planner: links are a matter of the order alone, whatever is held. Announcing an access
//! and consuming one are O(1) and touch dense tables only, 8 bytes per sample and 8 per announced access.
//!
//! Positions are access numbers modulo 2^31, so no table is ever renumbered in a run of any length; they
//! are compared by their distance from the window's front only.

use std::collections::VecDeque;

use crate::hint;

/// "No announced use", in every table of positions.
pub(crate) const NONE: u32 = u32::MAX;
/// Positions are numbers modulo `MODULUS`, and a window is never longer than half of it.
const MODULUS: u64 = 1 << 31;
/// The most accesses that may be announced and not yet planned.
pub(crate) const WINDOW_MAX: u64 = MODULUS / 2;
/// Bytes per announced access.
pub(crate) const BYTES_PER_ACCESS: u64 = 8;

/// When a sample is used next, as far as the planner knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextUse {
    /// At this access; numbers as in [`Access::seq`](crate::Access::seq).
    At(u64),
    /// Not within the announced window; sorts after every known use.
    Unknown,
    /// Not again in this run: its end was announced.
    Never,
}

/// The announced accesses and the next use of every sample.
#[derive(Debug)]
pub(crate) struct Window {
    /// Samples of the announced accesses, in order.
    ids: VecDeque<u32>,
    /// Parallel to `ids`: position of the next announced access of the same sample.
    next: VecDeque<u32>,
    /// By sample: its first and its last announced access.
    uses: Vec<Uses>,
    /// Number of the access at the front: how many were consumed.
    first: u64,
    ended: bool,
}

/// Of one sample, side by side: who looks at one of them needs the other.
#[derive(Clone, Copy, Debug)]
struct Uses {
    /// Position of its first announced access.
    due: u32,
    /// Position of its last announced access, which may be consumed by now.
    last: u32,
}

impl Uses {
    const NONE: Self = Self { due: NONE, last: NONE };
}

impl Window {
    pub(crate) fn new(samples: usize) -> Self {
        Self {
            ids: VecDeque::new(),
            next: VecDeque::new(),
            uses: vec![Uses::NONE; samples],
            first: 0,
            ended: false,
        }
    }

    /// Makes room for as many accesses more.
    pub(crate) fn reserve(&mut self, accesses: usize) {
        self.ids.reserve_exact(accesses);
        self.next.reserve_exact(accesses);
    }

    /// Appends an access of the sample; its position, if it is the sample's next use.
    pub(crate) fn announce(&mut self, id: u32) -> Option<u32> {
        let position = self.position(self.ids.len());
        let Uses { due, last } = self.uses[id as usize];
        self.ids.push_back(id);
        self.next.push_back(NONE);
        if due == NONE {
            self.uses[id as usize] = Uses { due: position, last: position };
            return Some(position);
        }
        let previous = self.offset(last);
        self.next[previous] = position;
        self.uses[id as usize].last = position;
        None
    }

    /// The sample's uses will be asked for soon.
    pub(crate) fn expect(&self, id: u32) {
        hint::expect(&self.uses, id as usize);
    }

    /// Every sample without an announced use is from now on never used again.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    /// Forgets what was announced; `first` goes on counting.
    pub(crate) fn forget(&mut self) {
        self.ids.clear();
        self.next.clear();
        self.uses.fill(Uses::NONE);
        self.ended = false;
    }

    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Number of the access at the front.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Sample and next position of the access at `offset` from the front.
    pub(crate) fn access(&self, offset: usize) -> (u32, u32) {
        (self.ids[offset], self.next[offset])
    }

    /// The sample's next use becomes `next`: the access before it is being consumed.
    pub(crate) fn consume(&mut self, id: u32, next: u32) {
        self.uses[id as usize].due = next;
    }

    /// The front access is consumed; the window moves on.
    pub(crate) fn advance(&mut self) {
        self.ids.pop_front();
        self.next.pop_front();
        self.first += 1;
    }

    /// Takes back `consume` of the accesses at `offsets`, which ascend: all of a sample's in the window, or none.
    pub(crate) fn rewind(&mut self, offsets: &[usize]) {
        for &offset in offsets.iter().rev() {
            self.uses[self.ids[offset] as usize].due = self.position(offset);
        }
    }

    /// Position of the sample's next announced use, or `NONE`.
    pub(crate) fn due(&self, id: u32) -> u32 {
        self.uses[id as usize].due
    }

    /// Changes whenever the sample is announced: tells an old note about it from a new one.
    pub(crate) fn stamp(&self, id: u32) -> u32 {
        self.uses[id as usize].last
    }

    /// Sample of the access at `offset` from the front.
    pub(crate) fn id(&self, offset: usize) -> u32 {
        self.ids[offset]
    }

    /// Position of the access at `offset` from the front.
    pub(crate) fn position(&self, offset: usize) -> u32 {
        position(self.first + offset as u64)
    }

    /// How far a position of the window lies from its front.
    pub(crate) fn offset(&self, position: u32) -> usize {
        (position.wrapping_sub(self.position(0)) & MASK) as usize
    }

    /// As if so many accesses had been consumed already; nothing may be announced.
    #[cfg(test)]
    pub(crate) fn start_at(&mut self, first: u64) {
        self.first = first;
    }

    pub(crate) fn table_bytes(&self) -> u64 {
        let words = self.ids.capacity() + self.next.capacity() + 2 * self.uses.capacity();
        words as u64 * 4
    }
}

const MASK: u32 = (1 << 31) - 1;

/// The position of an access number.
pub(crate) fn position(number: u64) -> u32 {
    u32::try_from(number % MODULUS).expect("below 2^31")
}

/// A sample's place in the tables as 32 bits; the planner was refused more samples at its start.
pub(crate) fn narrow(sample: usize) -> u32 {
    u32::try_from(sample).expect("sample ids were checked to fit in 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announce(window: &mut Window, ids: &[u32]) {
        for &id in ids {
            window.announce(id);
        }
    }

    #[test]
    fn each_access_is_linked_to_the_next_of_its_sample_across_announcements() {
        let mut window = Window::new(3);
        announce(&mut window, &[0, 1, 0]);
        announce(&mut window, &[1, 2, 0]);
        let links: Vec<_> = (0..window.len()).map(|offset| window.access(offset)).collect();
        assert_eq!(links, [(0, 2), (1, 3), (0, 5), (1, NONE), (2, NONE), (0, NONE)]);
        assert_eq!([0, 1, 2].map(|id| window.due(id)), [0, 1, 4]);
    }

    #[test]
    fn a_use_announced_after_the_last_one_was_consumed_is_revealed() {
        let mut window = Window::new(2);
        announce(&mut window, &[1]);
        window.consume(1, NONE);
        window.advance();
        assert_eq!(window.due(1), NONE);
        announce(&mut window, &[0, 1]);
        assert_eq!((window.due(1), window.offset(window.due(1))), (2, 1));
    }

    #[test]
    fn positions_wrap_and_distances_stay_right() {
        let mut window = Window::new(2);
        window.start_at(MODULUS - 1);
        announce(&mut window, &[0, 1, 0, 1]);
        assert_eq!(window.access(0), (0, 1));
        assert_eq!(window.offset(window.due(1)), 1);
        assert_eq!(window.offset(window.access(1).1), 3);
    }

    #[test]
    fn rewinding_restores_what_consuming_changed() {
        let mut window = Window::new(2);
        announce(&mut window, &[0, 1, 0]);
        for offset in 0..window.len() {
            let (id, next) = window.access(offset);
            window.consume(id, next);
        }
        assert_eq!(window.due(0), NONE);
        window.rewind(&[0, 1, 2]);
        assert_eq!((window.due(0), window.due(1)), (0, 1));
    }
}
