// SPDX-License-Identifier: Apache-2.0
//! Repeatable chance: a whole run follows from one number, which a failure names.

/// `SplitMix64`.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 0 to `sides - 1`.
    pub(crate) fn below(&mut self, sides: usize) -> usize {
        usize::try_from(self.bits() % (sides as u64)).expect("below a usize")
    }

    pub(crate) fn one_in(&mut self, sides: usize) -> bool {
        self.below(sides) == 0
    }

    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    /// A random selection in random order.
    pub(crate) fn some_of<T: Clone>(&mut self, from: &[T]) -> Vec<T> {
        let mut left: Vec<T> = from.iter().filter(|_| !self.one_in(4)).cloned().collect();
        let mut shuffled = Vec::new();
        while !left.is_empty() {
            shuffled.push(left.swap_remove(self.below(left.len())));
        }
        shuffled
    }

    /// Values whose sums depend on their order.
    pub(crate) fn value(&mut self) -> f32 {
        self.pick(&[1e8, -1e8, 1.0, -0.0, 0.1, 3.0e-39, -7.25])
    }
}
