// SPDX-License-Identifier: Apache-2.0
//! SplitMix64: a hash of 64 bits and a small generator, equal on every platform and in Python.
//!
//! Frozen: saved orders (`keyed-1`), audits (`audit-1`), placements and scenarios depend on these constants. Not for
//! secrets.
//! Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014, with Stafford's
//! variant 13 of the constants.

/// Increment of the state between two numbers: 2^64 divided by the golden ratio, made odd.
pub const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// Return the finaliser of `value`: a bijection of 64 bits in which every input bit changes every output bit.
pub const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// Generator of the numbers that follow from a seed.
#[derive(Clone, Copy, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Start at `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Return the generator as after `numbers` calls of [`Self::next`], in constant time.
    #[must_use]
    pub const fn skip(self, numbers: u64) -> Self {
        Self(self.0.wrapping_add(GAMMA.wrapping_mul(numbers)))
    }

    /// Return the next 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// Return a number below `bound`, which is 1 or more. Its bias is below `bound / 2^64`.
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Return a number of at least 0 and below 1, with 53 random bits.
    #[expect(clippy::cast_precision_loss, reason = "53 bits, which is what a double holds")]
    pub const fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_from_seed_zero_are_the_published_ones() {
        let mut numbers = SplitMix64::new(0);
        let published = [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4, 0x06C4_5D18_8009_454F];
        assert_eq!([(); 3].map(|()| numbers.next()), published);
        assert_eq!(SplitMix64::new(0).skip(2).next(), published[2]);
    }
}
