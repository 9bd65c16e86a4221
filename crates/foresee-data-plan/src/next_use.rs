// SPDX-License-Identifier: Apache-2.0
//! The announced window: upcoming accesses, and the next use of each sample.
//!
//! It is separate from the planner because links depend on the order alone. Announcing an access is O(1) in dense
//! tables, with 4 bytes per sample and 8 per announced access. Consuming one uses no table: each access has the
//! position of its sample's next access.
//!
//! Positions are access numbers modulo 2^31, so no table is ever renumbered in a run of any length. They are only
//! compared by their distance from the window's front.

use std::collections::VecDeque;

use crate::hint;

/// "No announced use", in every table of positions.
pub(crate) const NONE: u32 = u32::MAX;
/// Positions are numbers modulo `MODULUS`, and a window has at most half that length.
const MODULUS: u64 = 1 << 31;
/// Maximum number of accesses that may be announced and not yet planned.
pub(crate) const WINDOW_MAX: u64 = MODULUS / 2;
/// Bytes per announced access.
pub(crate) const BYTES_PER_ACCESS: u64 = 8;

/// The next use of a sample, as far as it is announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextUse {
    /// At this access; numbers as in [`Access::seq`](crate::Access::seq).
    At(u64),
    /// Not within the announced window; sorts after every known use.
    Unknown,
    /// Not again in this run, whose end was announced.
    Never,
}

/// The announced accesses and the next use of each sample.
#[derive(Debug)]
pub(crate) struct Window {
    /// Samples of the announced accesses, in order.
    ids: VecDeque<u32>,
    /// Parallel to `ids`: position of the next announced access of the same sample.
    next: VecDeque<u32>,
    /// By sample: position of its last announced access, which may be consumed already.
    last: Vec<u32>,
    /// Number of the access at the front, which is the number of consumed accesses.
    first: u64,
    /// The access up to which consumed positions were cleared from `last`.
    cleared_at: u64,
    ended: bool,
}

impl Window {
    pub(crate) fn new(samples: usize) -> Self {
        Self {
            ids: VecDeque::new(),
            next: VecDeque::new(),
            last: vec![NONE; samples],
            first: 0,
            cleared_at: 0,
            ended: false,
        }
    }

    /// Reserve memory for this many further accesses.
    pub(crate) fn reserve(&mut self, accesses: usize) {
        self.ids.reserve_exact(accesses);
        self.next.reserve_exact(accesses);
    }

    /// Append an access of the sample; return its position if it is the sample's next use.
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

    /// The offset of the access at `position`, unless it is consumed.
    fn announced(&self, position: u32) -> Option<usize> {
        Some(self.offset(position)).filter(|&offset| position != NONE && offset < self.ids.len())
    }

    /// Whether so many accesses were consumed since [`clear_consumed`](Self::clear_consumed) that their
    /// positions, which wrap, could soon be mistaken for announced ones.
    pub(crate) fn is_aged(&self) -> bool {
        self.first - self.cleared_at >= WINDOW_MAX
    }

    /// Clear the positions of consumed accesses.
    pub(crate) fn clear_consumed(&mut self) {
        self.cleared_at = self.first;
        for id in 0..self.last.len() {
            if self.announced(self.last[id]).is_none() {
                self.last[id] = NONE;
            }
        }
    }

    /// Prefetch the sample's last announced access.
    pub(crate) fn prefetch(&self, id: u32) {
        hint::prefetch(&self.last, id as usize);
    }

    /// End the run: samples without an announced use are never used again.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    /// Drop the announced accesses; `first` continues.
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

    /// Consume the front access.
    pub(crate) fn advance(&mut self) {
        self.ids.pop_front();
        self.next.pop_front();
        self.first += 1;
    }

    /// A value that changes whenever the sample is announced, by which stale notes are detected.
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

    /// Distance of a position of the window from its front.
    pub(crate) fn offset(&self, position: u32) -> usize {
        (position.wrapping_sub(self.position(0)) & MASK) as usize
    }

    /// Advance the window by this many accesses; nothing may be announced.
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

/// A sample's index as 32 bits; the planner's constructor rejects more samples.
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
    fn a_use_announced_after_the_last_one_was_consumed_is_the_next_use() {
        let mut window = Window::new(2);
        assert_eq!([window.announce(1), window.announce(1)], [Some(0), None]);
        window.advance();
        assert!(window.is_announced(1));
        window.advance();
        assert!(!window.is_announced(1));
        assert_eq!([window.announce(0), window.announce(1), window.announce(1)], [Some(2), Some(3), None]);
    }

    #[test]
    fn positions_wrap_and_distances_stay_correct() {
        let mut window = Window::new(2);
        window.start_at(MODULUS - 1);
        announce(&mut window, &[0, 1, 0, 1]);
        assert_eq!(window.access(0), (0, 1));
        assert_eq!(window.offset(window.access(0).1), 2);
        assert_eq!(window.offset(window.access(1).1), 3);
    }

    #[test]
    fn accesses_consumed_long_ago_are_not_mistaken_for_announced_ones() {
        let mut window = Window::new(3);
        announce(&mut window, &[0, 1, 1]);
        (0..2).for_each(|_| window.advance());
        assert!(!window.is_aged());
        window.start_at(WINDOW_MAX);
        assert!(window.is_aged());
        window.start_at(2);
        window.clear_consumed();
        assert_eq!([0, 1, 2].map(|id| window.stamp(id)), [NONE, 2, NONE]);
    }
}
