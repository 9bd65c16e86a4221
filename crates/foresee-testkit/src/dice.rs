// SPDX-License-Identifier: Apache-2.0
//! Reproducible random choices from one seed, which a failure prints.

use foresee_units::SplitMix64;

/// Random choices from a seed.
#[derive(Clone, Debug)]
pub struct Dice(SplitMix64);

impl Dice {
    /// Create the generator of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// Return 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next()
    }

    /// Return a number from 0 to `bound - 1`.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.bits() % (bound as u64)).expect("below a usize")
    }

    /// Return true with a probability of one in `cases`.
    pub fn one_in(&mut self, cases: usize) -> bool {
        self.below(cases) == 0
    }

    /// Return one of the elements.
    ///
    /// # Panics
    /// If `from` is empty.
    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    /// Return a random subset in random order.
    pub fn some_of<T: Clone>(&mut self, from: &[T]) -> Vec<T> {
        let mut left: Vec<T> = from.iter().filter(|_| !self.one_in(4)).cloned().collect();
        let mut shuffled = Vec::new();
        while !left.is_empty() {
            shuffled.push(left.swap_remove(self.below(left.len())));
        }
        shuffled
    }

    /// Return one of several values whose sums depend on their order.
    pub fn value(&mut self) -> f32 {
        self.pick(&[1e8, -1e8, 1.0, -0.0, 0.1, 3.0e-39, -7.25])
    }
}
