// SPDX-License-Identifier: Apache-2.0
//! Free ranges of an address space: best fit, merged with their neighbours when they are released.
//!
//! It counts in granules of the owner's choice. Nothing is moved, so free space stays scattered; [`Extents::largest`]
//! reports the largest range.

use std::collections::{BTreeMap, BTreeSet};

/// The free extents of one address space.
#[derive(Debug, Default)]
pub struct Extents {
    /// Start to length. No two extents touch: neighbours are merged.
    by_start: BTreeMap<u64, u64>,
    /// The same as (length, start): the best fit is the first at or above a length, lowest address first.
    by_len: BTreeSet<(u64, u64)>,
    free: u64,
}

impl Extents {
    /// Number of free granules.
    pub const fn free(&self) -> u64 {
        self.free
    }

    /// The longest free extent.
    pub fn largest(&self) -> u64 {
        self.by_len.last().map_or(0, |(len, _)| *len)
    }

    /// Number of free extents.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.by_start.len()
    }

    /// Allocate `len` granules at a multiple of `align` (1 or more) from the shortest extent that fits them.
    pub fn allocate(&mut self, len: u64, align: u64) -> Option<u64> {
        debug_assert!(len > 0, "an empty sample needs no extent");
        let (extent_len, extent, start) =
            self.by_len.range((len, 0)..).find_map(|(extent_len, extent)| {
                let start = extent.checked_next_multiple_of(align)?;
                let end = start.checked_add(len)?;
                (end <= extent + extent_len).then_some((*extent_len, *extent, start))
            })?;
        self.remove(extent, extent_len);
        self.insert(extent, start - extent);
        self.insert(start + len, extent + extent_len - start - len);
        Some(start)
    }

    /// Allocate `most` granules, or the longest extent if all are shorter; `None` if that is below `least`.
    pub(crate) fn allocate_between(&mut self, least: u64, most: u64) -> Option<(u64, u64)> {
        let len = self.largest().min(most);
        if len < least || len == 0 {
            return None;
        }
        self.allocate(len, 1).map(|start| (start, len))
    }

    /// Release `len` granules from `start`.
    ///
    /// # Panics
    /// If some of them are free already: two owners of one granule would corrupt data.
    pub fn release(&mut self, start: u64, len: u64) {
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

    /// Allocate exactly `len` granules from `start` if all of them are free.
    pub(crate) fn allocate_at(&mut self, start: u64, len: u64) -> bool {
        let Some((&extent, &extent_len)) = self.by_start.range(..=start).next_back() else { return false };
        let inside = start.checked_add(len).is_some_and(|end| end <= extent + extent_len);
        if inside && len > 0 {
            self.remove(extent, extent_len);
            self.insert(extent, start - extent);
            self.insert(start + len, extent + extent_len - start - len);
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
        extents.release(0, len);
        extents
    }

    fn range(start: u64, len: u64) -> std::ops::Range<usize> {
        let at = |granule: u64| usize::try_from(granule).expect("a small space");
        at(start)..at(start + len)
    }

    #[test]
    fn the_shortest_extent_that_fits_is_allocated() {
        let mut extents = Extents::default();
        for (start, len) in [(0, 10), (100, 4), (200, 6)] {
            extents.release(start, len);
        }
        assert_eq!(extents.allocate(4, 1), Some(100));
        assert_eq!(extents.allocate(4, 1), Some(200));
        assert_eq!(extents.allocate(9, 1), Some(0));
        assert_eq!(extents.allocate(9, 1), None);
        assert_eq!((extents.free(), extents.largest()), (3, 2));
    }

    #[test]
    fn an_aligned_extent_of_the_exact_length_is_found_after_an_unaligned_one() {
        let mut extents = Extents::default();
        extents.release(1, 64);
        extents.release(128, 64);
        assert_eq!(extents.allocate(64, 64), Some(128));
        assert_eq!(extents.allocate(64, 64), None);
        assert_eq!(extents.allocate(64, 1), Some(1));
    }

    #[test]
    #[should_panic(expected = "was free already")]
    fn a_second_release_panics() {
        of(10).release(3, 2);
    }

    proptest! {
        #![proptest_config(property(256))]

        #[test]
        fn each_granule_has_one_owner_and_all_are_released(
            steps in prop::collection::vec((0_u8..4, 1_u64..40, 0_u32..4), 1..200)
        ) {
            const ALL: usize = 512;
            let mut extents = of(ALL as u64);
            let mut owner = [false; ALL];
            let mut held: Vec<(u64, u64)> = Vec::new();
            for (what, len, align) in steps {
                let taken = match what {
                    0 | 1 => extents.allocate(len, 1 << align).map(|start| (start, len)),
                    2 => extents.allocate_between(len.min(8), len),
                    _ => {
                        if !held.is_empty() {
                            let (start, len) = held.swap_remove(usize::try_from(len).expect("small") % held.len());
                            owner[range(start, len)].fill(false);
                            extents.release(start, len);
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
                // Free is what the owners left, and the longest gap is the largest extent: neighbours join.
                let gaps: Vec<usize> = owner.split(|taken| *taken).map(<[bool]>::len).collect();
                prop_assert_eq!(extents.free(), gaps.iter().sum::<usize>() as u64);
                prop_assert_eq!(extents.largest(), gaps.iter().copied().max().unwrap_or(0) as u64);
                prop_assert_eq!(extents.count(), gaps.iter().filter(|gap| **gap > 0).count());
            }
            for (start, len) in held {
                extents.release(start, len);
            }
            prop_assert_eq!((extents.free(), extents.count()), (ALL as u64, 1));
        }
    }
}
