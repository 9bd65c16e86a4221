// SPDX-License-Identifier: Apache-2.0
//! `audit-1`: a sum over the samples handed out, which can be computed in advance.
//!
//! Every sample handed out adds a hash of (seed, epoch, position, sample) modulo 2^128. Sums of ranks, threads
//! and ranges merge in any order. Equal sums mean that each position was handed out once, with its sample, except
//! with a probability of about 2^-128. The sum detects accidents (two ranks with the same samples, a range lost
//! or repeated after a resume); it does not withstand forgery. The definition is frozen under its name:
//!
//! ```text
//! half(c) = a(a(a(a(mix(c), seed), epoch), position), sample),   a(h, x) = mix((h + g) ^ x)
//! h128    = half(1) * 2^64 + half(2),   mix and g as in splitmix64
//! ```

use std::fmt;
use std::iter::Sum;
use std::ops::{AddAssign, Range};

use foresee_units::{Epoch, GAMMA, SampleId, mix};

use crate::ShardedEpoch;

/// The hash of one handed-out sample at its global position.
pub fn h128(seed: u64, epoch: Epoch, position: u64, id: SampleId) -> u128 {
    Prefix::new(seed, epoch).hash(position, id)
}

/// The common part of all samples of an epoch, hashed once.
#[derive(Clone, Copy)]
struct Prefix([u64; 2]);

impl Prefix {
    fn new(seed: u64, epoch: Epoch) -> Self {
        Self([1, 2].map(|half| absorb(absorb(mix(half), seed), epoch.0)))
    }

    fn hash(self, position: u64, id: SampleId) -> u128 {
        let [high, low] = self.0.map(|half| absorb(absorb(half, position), id.0));
        u128::from(high) << 64 | u128::from(low)
    }
}

const fn absorb(hash: u64, word: u64) -> u64 {
    mix(hash.wrapping_add(GAMMA) ^ word)
}

/// A sum of [`h128`] modulo 2^128, and its number of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AuditSum {
    /// The sum.
    pub sum: u128,
    /// Samples.
    pub count: u64,
}

impl AuditSum {
    /// Add one handed-out sample.
    pub fn add(&mut self, seed: u64, epoch: Epoch, position: u64, id: SampleId) {
        self.push(h128(seed, epoch, position, id));
    }

    fn push(&mut self, hash: u128) {
        self.sum = self.sum.wrapping_add(hash);
        self.count += 1;
    }
}

impl AddAssign for AuditSum {
    fn add_assign(&mut self, other: Self) {
        self.sum = self.sum.wrapping_add(other.sum);
        self.count += other.count;
    }
}

impl Sum for AuditSum {
    fn sum<I: Iterator<Item = Self>>(sums: I) -> Self {
        sums.fold(Self::default(), |mut total, sum| {
            total += sum;
            total
        })
    }
}

impl fmt::Display for AuditSum {
    /// `5 samples, 0123456789abcdef0123456789abcdef`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} samples, {:032x}", self.count, self.sum)
    }
}

impl ShardedEpoch {
    /// Return the sum of `positions` once all ranks have handed them out.
    ///
    /// # Panics
    /// If the positions are not within `start..end`.
    pub fn expected_audit(&self, positions: Range<u64>) -> AuditSum {
        let prefix = Prefix::new(self.order().seed(), self.order().epoch());
        let mut sum = AuditSum::default();
        positions.for_each(|position| sum.push(prefix.hash(position, self.id(position))));
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Order;
    use foresee_units::Rank;

    #[test]
    fn the_sums_of_all_ranks_merge_to_the_expected_one() {
        let order = Order::Distributed { n: 101, seed: 3, shuffle: true, drop_last: false };
        let sharded = order.epoch(Epoch(4)).unwrap().shard(8, 16).unwrap();
        let sum: AuditSum = (0..8)
            .map(|rank| {
                let stream = sharded.rank(Rank(rank)).unwrap();
                let mut sum = AuditSum::default();
                (0..stream.len()).for_each(|i| sum.add(3, Epoch(4), stream.position(i), stream.get(i)));
                sum
            })
            .sum();
        assert_eq!(sum, sharded.expected_audit(16..sharded.end()));
        let [mut first, rest] = [16..50, 50..sharded.end()].map(|range| sharded.expected_audit(range));
        first += rest;
        assert_eq!(first, sum);
    }

    #[test]
    fn a_swap_a_loss_and_a_repeat_are_detected() {
        let order = Order::Sequential { n: 10, drop_last: false };
        let expected = order.epoch(Epoch(0)).unwrap().shard(1, 0).unwrap().expected_audit(0..10);
        let handed_out = |ids: [u64; 10]| {
            let mut sum = AuditSum::default();
            (0..).zip(ids).for_each(|(position, id)| sum.add(0, Epoch(0), position, SampleId(id)));
            sum
        };
        assert_eq!(handed_out([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]), expected);
        assert_ne!(handed_out([1, 0, 2, 3, 4, 5, 6, 7, 8, 9]), expected);
        assert_ne!(handed_out([0, 0, 2, 3, 4, 5, 6, 7, 8, 9]), expected);
    }

    #[test]
    fn audit_1_is_frozen() {
        assert_eq!(h128(0, Epoch(0), 0, SampleId(0)), 0x5B9F_F124_AD66_0768_5470_8CC7_F8C3_B550);
        assert_eq!(h128(42, Epoch(3), 1 << 40, SampleId(7)), 0x9B95_1C30_44C2_C4AE_3BC6_DAF8_83C8_C7CB);
    }
}
