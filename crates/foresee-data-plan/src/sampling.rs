// SPDX-License-Identifier: Apache-2.0
//! The fraction of the samples that a dry run of a policy uses.

use foresee_units::{Bytes, GAMMA};

/// The samples of a dry run: one in `2^shift`, chosen by a hash of the id, so that a sample is used with all its
/// accesses or not at all (SHARDS: Waldspurger et al., FAST 2015, section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sampling {
    shift: u32,
}

impl Sampling {
    pub(crate) const ALL: Self = Self { shift: 0 };

    /// The sampling with the fewest halvings that reduce `accesses` to at most `most`.
    pub(crate) fn at_most(most: usize, accesses: usize) -> Self {
        let ratio = accesses.div_ceil(most.max(1)).max(1);
        Self { shift: ratio.next_power_of_two().trailing_zeros() }
    }

    pub(crate) fn includes(self, id: u32) -> bool {
        // Fibonacci hashing: the upper bits of the product depend on all bits of the id.
        let hash = u64::from(id).wrapping_add(1).wrapping_mul(GAMMA);
        self.shift == 0 || hash >> (64 - self.shift) == 0
    }

    pub(crate) fn share(self, bytes: Bytes) -> Bytes {
        Bytes::new(bytes.get() >> self.shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sampling_has_about_its_share_of_the_samples() {
        assert!((0..1000).all(|id| Sampling::ALL.includes(id)));
        assert_eq!(Sampling::at_most(100, 100), Sampling::ALL);
        let eighth = Sampling::at_most(100, 701);
        assert_eq!(eighth.share(Bytes::new(800)), Bytes::new(100));
        let taken = (0..80_000).filter(|id| eighth.includes(*id)).count();
        assert!((9_500..10_500).contains(&taken), "{taken} of 80,000");
    }
}
