// SPDX-License-Identifier: Apache-2.0
//! Numbers drawn the same in every language: SplitMix64, and what is made of it.
//!
//! Its state counts up by a constant, so a place far ahead is reached without drawing what lies between. For
//! scenarios and shared vectors; the order of a real run is `foresee-data-order`'s.
//! Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.

use foresee_data_plan::hint;

/// What the state counts up by.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

pub(super) struct Draw(u64);

impl Draw {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// As if so many numbers had been drawn.
    pub(super) const fn skip(self, numbers: u64) -> Self {
        Self(self.0.wrapping_add(STEP.wrapping_mul(numbers)))
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// 0 to `bound - 1`. Its bias, below `bound / 2^64`, is that of the vectors.
    pub(super) const fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// 0 up to, but not, 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits, which is what a double holds")]
    pub(super) const fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Of mean 0 and deviation 1: Box and Muller's, the cosine of each pair.
    pub(super) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (2.0 * std::f64::consts::PI * self.uniform()).cos()
    }
}

/// Shuffles from the end, Fisher and Yates's way; draws one number less than there are places.
pub(super) fn shuffle(places: &mut [u32], draw: &mut Draw) {
    // Drawn some places ahead, so that memory has time to answer.
    let mut others = [0; hint::AHEAD];
    let mut drawn = places.len();
    for last in (1..places.len()).rev() {
        while drawn > 1 && drawn + hint::AHEAD > last + 1 {
            drawn -= 1;
            #[expect(clippy::cast_possible_truncation, reason = "below a length")]
            let other = draw.below(drawn as u64 + 1) as usize;
            others[drawn % hint::AHEAD] = other;
            hint::expect(places, other);
        }
        places.swap(last, others[last % hint::AHEAD]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_numbers_come_out_and_can_be_skipped() {
        let mut draw = Draw::new(1_234_567);
        let first = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([draw.next(), draw.next(), draw.next()], first);
        assert_eq!(Draw::new(1_234_567).skip(2).next(), first[2]);
    }

    #[test]
    fn normals_have_their_mean_and_deviation() {
        let mut draw = Draw::new(3);
        let (mut sum, mut squares) = (0.0, 0.0);
        for _ in 0..100_000 {
            let value = draw.normal();
            sum += value;
            squares += value * value;
        }
        assert!((sum / 1e5).abs() < 0.01 && (squares / 1e5 - 1.0).abs() < 0.02);
    }
}
