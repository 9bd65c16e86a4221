// SPDX-License-Identifier: Apache-2.0
//! The announced window: which accesses are ahead, and when each sample is used next.
//!
//! Apart from the planner: links are a matter of the order alone, whatever is held. Announcing an access is O(1) and
//! touches dense tables only, 4 bytes per sample and 8 per announced access; consuming one touches none: an access knows
//! the next one of its sample, and nobody needs that of any other sample than the one being consumed.
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
    /// By sample: position of its last announced access, which may be consumed by now.
    last: Vec<u32>,
    /// Number of the access at the front: how many were consumed.
    first: u64,
    /// Up to which access `last` was cleared of those consumed.
    forgotten: u64,
    ended: bool,
}

impl Window {
    pub(crate) fn new(samples: usize) -> Self {
        Self {
            ids: VecDeque::new(),
            next: VecDeque::new(),
            last: vec![NONE; samples],
            first: 0,
            forgotten: 0,
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
        let last = std::mem::replace(&mut self.last[id as usize], position);
        let previous = self.announced(last);
        self.ids.push_back(id);
        self.next.push_back(NONE);
        if let Some(offset) = previous {
            self.next[offset] = position;
        }
        previous.is_none().then_some(position)
    }

    /// Whether an access of the sample is announced and not consumed.
    pub(crate) fn is_announced(&self, id: u32) -> bool {
        self.announced(self.last[id as usize]).is_some()
    }

    /// The offset of what is at `position`, unless that is consumed.
    fn announced(&self, position: u32) -> Option<usize> {
        Some(self.offset(position)).filter(|&offset| position != NONE && offset < self.ids.len())
    }

    /// Whether so much was consumed since [`forget_consumed`](Self::forget_consumed) that its positions could soon be taken
    /// for announced ones: they come round.
    pub(crate) fn is_aged(&self) -> bool {
        self.first - self.forgotten >= WINDOW_MAX
    }

    /// Forgets where consumed accesses were.
    pub(crate) fn forget_consumed(&mut self) {
        self.forgotten = self.first;
        for id in 0..self.last.len() {
            if self.announced(self.last[id]).is_none() {
                self.last[id] = NONE;
            }
        }
    }

    /// The sample's last announced access will be asked for soon.
    pub(crate) fn expect(&self, id: u32) {
        hint::expect(&self.last, id as usize);
    }

    /// Every sample without an announced use is from now on never used again.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    /// Forgets what was announced; `first` goes on counting.
    pub(crate) fn forget(&mut self) {
        self.ids.clear();
        self.next.clear();
        self.last.fill(NONE);
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

    /// The front access is consumed; the window moves on.
    pub(crate) fn advance(&mut self) {
        self.ids.pop_front();
        self.next.pop_front();
        self.first += 1;
    }

    /// Changes whenever the sample is announced: tells an old note about it from a new one.
    pub(crate) fn stamp(&self, id: u32) -> u32 {
        self.last[id as usize]
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
        let words = self.ids.capacity() + self.next.capacity() + self.last.capacity();
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
    }

    #[test]
    fn a_use_announced_after_the_last_one_was_consumed_is_revealed() {
        let mut window = Window::new(2);
        assert_eq!([window.announce(1), window.announce(1)], [Some(0), None]);
        window.advance();
        assert!(window.is_announced(1));
        window.advance();
        assert!(!window.is_announced(1));
        assert_eq!([window.announce(0), window.announce(1), window.announce(1)], [Some(2), Some(3), None]);
    }

    #[test]
    fn positions_wrap_and_distances_stay_right() {
        let mut window = Window::new(2);
        window.start_at(MODULUS - 1);
        announce(&mut window, &[0, 1, 0, 1]);
        assert_eq!(window.access(0), (0, 1));
        assert_eq!(window.offset(window.access(0).1), 2);
        assert_eq!(window.offset(window.access(1).1), 3);
    }

    #[test]
    fn what_was_consumed_long_ago_is_not_taken_for_announced() {
        let mut window = Window::new(3);
        announce(&mut window, &[0, 1, 1]);
        (0..2).for_each(|_| window.advance());
        assert!(!window.is_aged());
        window.start_at(WINDOW_MAX);
        assert!(window.is_aged());
        window.start_at(2);
        window.forget_consumed();
        assert_eq!([0, 1, 2].map(|id| window.stamp(id)), [NONE, 2, NONE]);
    }
}
