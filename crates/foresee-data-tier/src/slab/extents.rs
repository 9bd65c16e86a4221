// SPDX-License-Identifier: Apache-2.0
//! Free ranges of an address space: best fit, joined with their neighbours when they are returned.
//!
//! RAM and disk share it, and a model tests it alone. It counts in granules of the owner's choice. Nothing is moved:
//! free space that is scattered stays so, and [`Extents::largest`] reports the largest range.

use std::collections::{BTreeMap, BTreeSet};

/// The free stretches of one address space.
#[derive(Debug, Default)]
pub(crate) struct Extents {
    /// Start to length. No two touch: neighbours are joined.
    by_start: BTreeMap<u64, u64>,
    /// The same as (length, start): the best fit is the first at or above a length, lowest address first.
    by_len: BTreeSet<(u64, u64)>,
    free: u64,
}

impl Extents {
    /// Free granules in all.
    pub(crate) const fn free(&self) -> u64 {
        self.free
    }

    /// The longest free stretch.
    pub(crate) fn largest(&self) -> u64 {
        self.by_len.last().map_or(0, |(len, _)| *len)
    }

    /// How many free stretches there are.
    pub(crate) fn count(&self) -> usize {
        self.by_start.len()
    }

    /// Takes `len` granules at a multiple of `align` (1 or more) out of the shortest stretch that has them.
    pub(crate) fn take(&mut self, len: u64, align: u64) -> Option<u64> {
        debug_assert!(len > 0, "nothing needs no room");
        let (stretch_len, stretch, start) =
            self.by_len.range((len, 0)..).find_map(|(stretch_len, stretch)| {
                let start = stretch.checked_next_multiple_of(align)?;
                let end = start.checked_add(len)?;
                (end <= stretch + stretch_len).then_some((*stretch_len, *stretch, start))
            })?;
        self.remove(stretch, stretch_len);
        self.insert(stretch, start - stretch);
        self.insert(start + len, stretch + stretch_len - start - len);
        Some(start)
    }

    /// Takes `most` granules, or if no stretch has as many, the longest one, or `None` if that is below `least`.
    pub(crate) fn take_between(&mut self, least: u64, most: u64) -> Option<(u64, u64)> {
        let len = self.largest().min(most);
        if len < least || len == 0 {
            return None;
        }
        self.take(len, 1).map(|start| (start, len))
    }

    /// Makes `len` granules from `start` free.
    ///
    /// # Panics
    /// If some of them are free already: two owners of one place is a defect that must not spread.
    pub(crate) fn give(&mut self, start: u64, len: u64) {
        if len == 0 {
            return;
        }
        let (mut start, mut len) = (start, len);
        if let Some((&before, &before_len)) = self.by_start.range(..=start).next_back() {
            assert!(before + before_len <= start, "granule {start} was free already");
            if before + before_len == start {
                self.remove(before, before_len);
                start = before;
                len += before_len;
            }
        }
        if let Some((&after, &after_len)) = self.by_start.range(start..).next() {
            assert!(start + len <= after, "granule {after} was free already");
            if start + len == after {
                self.remove(after, after_len);
                len += after_len;
            }
        }
        self.insert(start, len);
    }

    /// Takes exactly `len` granules from `start`, if all of them are free.
    pub(crate) fn take_at(&mut self, start: u64, len: u64) -> bool {
        let Some((&stretch, &stretch_len)) = self.by_start.range(..=start).next_back() else { return false };
        let inside = start.checked_add(len).is_some_and(|end| end <= stretch + stretch_len);
        if inside && len > 0 {
            self.remove(stretch, stretch_len);
            self.insert(stretch, start - stretch);
            self.insert(start + len, stretch + stretch_len - start - len);
        }
        inside
    }

    fn insert(&mut self, start: u64, len: u64) {
        if len > 0 {
            self.by_start.insert(start, len);
            self.by_len.insert((len, start));
            self.free += len;
        }
    }

    fn remove(&mut self, start: u64, len: u64) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
        self.free -= len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foresee_testkit::property;
    use proptest::prelude::*;

    fn of(len: u64) -> Extents {
        let mut extents = Extents::default();
        extents.give(0, len);
        extents
    }

    fn range(start: u64, len: u64) -> std::ops::Range<usize> {
        let at = |granule: u64| usize::try_from(granule).expect("a small space");
        at(start)..at(start + len)
    }

    #[test]
    fn the_shortest_stretch_that_fits_is_taken() {
        let mut extents = Extents::default();
        for (start, len) in [(0, 10), (100, 4), (200, 6)] {
            extents.give(start, len);
        }
        assert_eq!(extents.take(4, 1), Some(100));
        assert_eq!(extents.take(4, 1), Some(200));
        assert_eq!(extents.take(9, 1), Some(0));
        assert_eq!(extents.take(9, 1), None);
        assert_eq!((extents.free(), extents.largest()), (3, 2));
    }

    #[test]
    fn an_aligned_hole_of_the_exact_length_is_found_behind_a_crooked_one() {
        let mut extents = Extents::default();
        extents.give(1, 64);
        extents.give(128, 64);
        assert_eq!(extents.take(64, 64), Some(128));
        assert_eq!(extents.take(64, 64), None);
        assert_eq!(extents.take(64, 1), Some(1));
    }

    #[test]
    #[should_panic(expected = "was free already")]
    fn giving_back_twice_is_a_defect() {
        of(10).give(3, 2);
    }

    proptest! {
        #![proptest_config(property(256))]

        #[test]
        fn a_granule_has_one_owner_and_all_come_back(
            steps in prop::collection::vec((0_u8..4, 1_u64..40, 0_u32..4), 1..200)
        ) {
            const ALL: usize = 512;
            let mut extents = of(ALL as u64);
            let mut owner = [false; ALL];
            let mut held: Vec<(u64, u64)> = Vec::new();
            for (what, len, align) in steps {
                let taken = match what {
                    0 | 1 => extents.take(len, 1 << align).map(|start| (start, len)),
                    2 => extents.take_between(len.min(8), len),
                    _ => {
                        if !held.is_empty() {
                            let (start, len) = held.swap_remove(usize::try_from(len).expect("small") % held.len());
                            owner[range(start, len)].fill(false);
                            extents.give(start, len);
                        }
                        None
                    }
                };
                if let Some((start, len)) = taken {
                    let range = range(start, len);
                    prop_assert!(owner[range.clone()].iter().all(|taken| !taken));
                    owner[range].fill(true);
                    held.push((start, len));
                }
                // Free is what the owners left, and the longest gap is the largest stretch: neighbours join.
                let gaps: Vec<usize> = owner.split(|taken| *taken).map(<[bool]>::len).collect();
                prop_assert_eq!(extents.free(), gaps.iter().sum::<usize>() as u64);
                prop_assert_eq!(extents.largest(), gaps.iter().copied().max().unwrap_or(0) as u64);
                prop_assert_eq!(extents.count(), gaps.iter().filter(|gap| **gap > 0).count());
            }
            for (start, len) in held {
                extents.give(start, len);
            }
            prop_assert_eq!((extents.free(), extents.count()), (ALL as u64, 1));
        }
    }
}
