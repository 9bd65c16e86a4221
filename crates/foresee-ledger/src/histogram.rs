// SPDX-License-Identifier: Apache-2.0
//! A histogram of durations with logarithmic buckets.
//!
//! It has sixteen buckets per power of two, so a quantile is off by at most 1/32 of itself over the whole range,
//! in 8 KiB. `Tally` stores exact sums separately, because they must add up to the epoch.

use foresee_units::Nanos;

const SUB_BITS: u32 = 4;
const SUB: usize = 1 << SUB_BITS;
/// Values below `SUB` have one bucket each; above, each power of two has `SUB` buckets.
const BUCKETS: usize = SUB + (64 - SUB_BITS as usize) * SUB;

/// The number of durations by size.
#[derive(Clone)]
pub struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    total: u64,
    max: Nanos,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: Box::new([0; BUCKETS]), total: 0, max: Nanos::ZERO }
    }
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Histogram")
            .field("total", &self.total)
            .field("max", &self.max)
            .finish_non_exhaustive()
    }
}

impl Histogram {
    /// Count one duration.
    pub fn add(&mut self, duration: Nanos) {
        self.counts[bucket(duration.get())] += 1;
        self.total += 1;
        self.max = self.max.max(duration);
    }

    /// Add the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(other.counts.iter()) {
            *mine += theirs;
        }
        self.total += other.total;
        self.max = self.max.max(other.max);
    }

    /// The number of durations counted.
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// The largest duration, exactly.
    pub const fn max(&self) -> Nanos {
        self.max
    }

    /// The duration that `permille / 1000` of the counted ones do not exceed, within 1/32 of itself; `None`
    /// without any.
    pub fn quantile(&self, permille: u32) -> Option<Nanos> {
        let rank = (u128::from(self.total) * u128::from(permille.min(1000))).div_ceil(1000).max(1);
        if self.total > 0 && rank == u128::from(self.total) {
            return Some(self.max);
        }
        let mut seen = 0_u128;
        for (index, &count) in self.counts.iter().enumerate() {
            seen += u128::from(count);
            if seen >= rank && count > 0 {
                return Some(Nanos::new(middle(index)).min(self.max));
            }
        }
        None
    }
}

const fn bucket(value: u64) -> usize {
    if value < SUB as u64 {
        #[expect(clippy::cast_possible_truncation, reason = "below 16")]
        return value as usize;
    }
    let power = value.ilog2();
    #[expect(clippy::cast_possible_truncation, reason = "below 16 after the mask")]
    let sub = (value >> (power - SUB_BITS)) as usize & (SUB - 1);
    SUB + (power - SUB_BITS) as usize * SUB + sub
}

/// Middle of a bucket.
const fn middle(index: usize) -> u64 {
    if index < SUB {
        return index as u64;
    }
    let shift = ((index - SUB) / SUB) as u64;
    let low = (SUB + (index - SUB) % SUB) as u64;
    (low << shift) + ((1 << shift) >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_s_middle_is_within_a_thirty_second_of_its_values() {
        for value in (0..4000).chain((0..63).flat_map(|p| [(1 << p) - 1, 1 << p, (1 << p) + (1 << p) / 3])) {
            let off = middle(bucket(value)).abs_diff(value);
            assert!(off * 32 <= value.max(1) * 2, "{value} is off by {off}");
        }
        assert!(bucket(u64::MAX) < BUCKETS);
    }

    #[test]
    fn quantiles_are_ordered_and_never_above_the_largest() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(500), None);
        for millis in 1..=100 {
            histogram.add(Nanos::from_millis(millis));
        }
        let at = |permille| histogram.quantile(permille).expect("counted").as_secs_f64();
        assert!((at(500) - 0.050).abs() < 0.003 && (at(990) - 0.099).abs() < 0.004);
        assert_eq!(histogram.quantile(1000), Some(Nanos::from_millis(100)));
        assert!(at(0) <= at(500));
    }

    #[test]
    fn merging_counts_both() {
        let (mut a, mut b) = (Histogram::default(), Histogram::default());
        a.add(Nanos::new(5));
        b.add(Nanos::new(500));
        a.merge(&b);
        assert_eq!((a.total(), a.max()), (2, Nanos::new(500)));
    }
}
