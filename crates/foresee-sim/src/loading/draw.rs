// SPDX-License-Identifier: Apache-2.0
//! Normal numbers and shuffles that are equal in every language, for scenarios and shared vectors.
//!
//! The order of a real run comes from `foresee-data-order`.

use foresee_data_plan::hint;
use foresee_units::SplitMix64;

/// Return a number of mean 0 and deviation 1: the cosine of each pair of Box and Muller.
pub(super) fn normal(draw: &mut SplitMix64) -> f64 {
    let radius = (-2.0 * (1.0 - draw.uniform()).ln()).sqrt();
    radius * (2.0 * std::f64::consts::PI * draw.uniform()).cos()
}

/// Shuffle from the end (Fisher and Yates); draws one number less than there are places.
pub(super) fn shuffle(places: &mut [u32], draw: &mut SplitMix64) {
    // Drawn some places ahead, so that memory can be prefetched.
    let mut others = [0; hint::AHEAD];
    let mut drawn = places.len();
    for last in (1..places.len()).rev() {
        while drawn > 1 && drawn + hint::AHEAD > last + 1 {
            drawn -= 1;
            #[expect(clippy::cast_possible_truncation, reason = "below a length")]
            let other = draw.below(drawn as u64 + 1) as usize;
            others[drawn % hint::AHEAD] = other;
            hint::prefetch(places, other);
        }
        places.swap(last, others[last % hint::AHEAD]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_has_the_published_numbers_and_can_skip() {
        let mut draw = SplitMix64::new(1_234_567);
        let first = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([draw.next(), draw.next(), draw.next()], first);
        assert_eq!(SplitMix64::new(1_234_567).skip(2).next(), first[2]);
    }

    #[test]
    fn normals_have_their_mean_and_deviation() {
        let mut draw = SplitMix64::new(3);
        let (mut sum, mut squares) = (0.0, 0.0);
        for _ in 0..100_000 {
            let value = normal(&mut draw);
            sum += value;
            squares += value * value;
        }
        assert!((sum / 1e5).abs() < 0.01 && (squares / 1e5 - 1.0).abs() < 0.02);
    }
}
