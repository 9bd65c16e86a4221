// SPDX-License-Identifier: Apache-2.0
//! A set of positions with a fast query for the farthest member.
//!
//! It is a tree of bit words with 64 children each. Next uses are distinct positions of a bounded window, so one
//! bit per announced access replaces a heap of (next use, sample) pairs: no stale entries, no comparisons, an
//! eighth of a byte. Indices are positions modulo the set's size; the caller gives the start of the ring.

/// Members are `0..size`, `size` a power of two.
#[derive(Clone, Debug, Default)]
pub(crate) struct PositionSet {
    /// `levels[0]` holds the members; a bit above is set when its word below is not zero.
    levels: Vec<Vec<u64>>,
    size: usize,
}

const WORD: usize = 64;

impl PositionSet {
    /// An empty set for at least `span` consecutive positions.
    pub(crate) fn with_span(span: usize) -> Self {
        let size = span.next_power_of_two().max(WORD);
        let mut levels = Vec::new();
        // One more level than 64-bit words need, so that every bound below the root has a bit to test.
        let mut bits = size;
        while bits > 1 {
            levels.push(vec![0; bits.div_ceil(WORD)]);
            bits = bits.div_ceil(WORD);
        }
        levels.push(vec![0; 1]);
        Self { levels, size }
    }

    /// Number of consecutive positions that the set can distinguish.
    pub(crate) fn span(&self) -> usize {
        self.size
    }

    pub(crate) fn insert(&mut self, position: u32) {
        let mut index = self.index(position);
        for level in &mut self.levels {
            let word = &mut level[index / WORD];
            let was_empty = *word == 0;
            *word |= 1 << (index % WORD);
            if !was_empty {
                return;
            }
            index /= WORD;
        }
    }

    pub(crate) fn remove(&mut self, position: u32) {
        let mut index = self.index(position);
        for level in &mut self.levels {
            let word = &mut level[index / WORD];
            *word &= !(1 << (index % WORD));
            if *word != 0 {
                return;
            }
            index /= WORD;
        }
    }

    pub(crate) fn contains(&self, position: u32) -> bool {
        let index = self.index(position);
        self.size > 0 && self.levels[0][index / WORD] & (1 << (index % WORD)) != 0
    }

    /// Distance from `front` of the farthest member nearer than `bound`; all members must be within `span`
    /// positions from `front` on.
    pub(crate) fn farthest(&self, front: u32, bound: usize) -> Option<usize> {
        if self.size == 0 {
            return None;
        }
        let front = self.index(front);
        let end = (front + bound) & (self.size - 1);
        // The ring may have wrapped: members below `end` are then farther than all at its upper end.
        let index = self.below(end).or_else(|| self.below(self.size))?;
        let offset = index.wrapping_sub(front) & (self.size - 1);
        (offset < bound).then_some(offset)
    }

    pub(crate) fn table_bytes(&self) -> u64 {
        self.levels.iter().map(|level| level.capacity() as u64 * 8).sum()
    }

    fn index(&self, position: u32) -> usize {
        position as usize & (self.size - 1)
    }

    /// The largest member below `bound`, by plain index.
    fn below(&self, bound: usize) -> Option<usize> {
        let mut bound = bound;
        for (height, level) in self.levels.iter().enumerate() {
            let (word, bit) = (bound / WORD, bound % WORD);
            if bit > 0 {
                let lower = level[word] & ((1 << bit) - 1);
                if lower != 0 {
                    return Some(self.descend(height, word * WORD + highest(lower)));
                }
            }
            bound = word;
        }
        None
    }

    /// The largest member under bit `index` of level `height`.
    fn descend(&self, height: usize, mut index: usize) -> usize {
        for level in self.levels[..height].iter().rev() {
            index = index * WORD + highest(level[index]);
        }
        index
    }
}

fn highest(word: u64) -> usize {
    63 - word.leading_zeros() as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use foresee_testkit::property;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(property(256))]

        #[test]
        fn the_farthest_member_is_that_of_a_sorted_set(
            front in 0_u32..100_000,
            span in 1_usize..9_000,
            changes in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..200),
        ) {
            let mut set = PositionSet::with_span(span);
            let mut sorted = BTreeSet::new();
            for (add, offset, bound) in changes {
                let (offset, bound) = (offset.index(span), bound.index(span + 1));
                let position = front + u32::try_from(offset).unwrap();
                if add {
                    set.insert(position);
                    sorted.insert(offset);
                } else {
                    set.remove(position);
                    sorted.remove(&offset);
                }
                prop_assert_eq!(set.contains(position), sorted.contains(&offset));
                prop_assert_eq!(set.farthest(front, bound), sorted.range(..bound).next_back().copied());
                prop_assert_eq!(set.farthest(front, span), sorted.last().copied());
            }
        }
    }

    #[test]
    fn a_window_as_long_as_the_set_finds_every_member() {
        let mut set = PositionSet::with_span(64);
        assert_eq!(set.span(), 64);
        set.insert(5);
        assert_eq!(set.farthest(5, 64), Some(0));
        assert_eq!(set.farthest(6, 64), Some(63));
        assert_eq!(set.farthest(6, 63), None);
    }
}
