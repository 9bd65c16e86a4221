// SPDX-License-Identifier: Apache-2.0
//! `keyed-1`: a permutation that is computed in both directions instead of stored.
//!
//! It is for data sets whose list would not fit into memory, and for the query that is expensive in a list: at
//! which position of an epoch is this sample? Below n = 1024, where a network of so few bits is not random enough,
//! it is the list of [`randperm`].
//!
//! The definition is frozen under its name: a change of one constant is a new name, because saved positions refer
//! to it.
//!
//! ```text
//! b = max(2, bits of n - 1),  lo = b / 2,  hi = b - lo;   x = H * 2^lo + L
//! 8 half-rounds, alternately  H ^= F(L + k_i) mod 2^hi,   L ^= F(H + k_i) mod 2^lo
//! F(v) = mix(v) >> 17,  mix = the finaliser of splitmix64
//! k_i = mix(s + (i + 1) g),  s = mix(mix(seed + g) + epoch),  g = 0x9E3779B97F4A7C15
//! while x >= n: repeat        (cycle walking: under two rounds on average)
//! ```

use std::sync::Arc;

use foresee_units::{Epoch, GAMMA, SampleId, mix};

use crate::{Ids, Mt19937, OrderError, randperm};

/// Minimum n for the network; below it, torch's permutation seeded with `seed + epoch` is used.
const NETWORK_FROM: u64 = 1024;
const HALF_ROUNDS: usize = 8;

/// A random permutation of 0 to n - 1 for one (seed, epoch), with constant time and memory for each query.
#[derive(Clone, Debug)]
pub struct Keyed {
    n: u64,
    permutation: Permutation,
}

#[derive(Clone, Debug)]
enum Permutation {
    Network { low_bits: u32, low: u64, high: u64, keys: [u64; HALF_ROUNDS] },
    Table { forward: Arc<[u64]>, inverse: Arc<[u64]> },
}

impl Keyed {
    /// The permutation of `n` ids for `seed` and `epoch`; any n up to 2^64 - 1.
    ///
    /// # Errors
    /// Only those of [`randperm`], below n = 1024.
    pub fn new(n: u64, seed: u64, epoch: Epoch) -> Result<Self, OrderError> {
        let permutation = if n < NETWORK_FROM {
            Permutation::table(n, seed, epoch)?
        } else {
            Permutation::network(n, seed, epoch)
        };
        Ok(Self { n, permutation })
    }

    /// The number of ids.
    pub fn n(&self) -> u64 {
        self.n
    }

    /// The sample at `position`.
    ///
    /// # Panics
    /// If `position` is not below n.
    pub fn id(&self, position: u64) -> SampleId {
        assert!(position < self.n, "position {position} of {}", self.n);
        SampleId(self.permutation.cycle(position, self.n, Permutation::forward))
    }

    /// The position of sample `id`: the inverse of [`id`](Self::id).
    ///
    /// # Panics
    /// If `id` is not below n.
    pub fn position(&self, id: SampleId) -> u64 {
        assert!(id.0 < self.n, "sample {id} of {}", self.n);
        self.permutation.cycle(id.0, self.n, Permutation::inverse)
    }
}

impl Permutation {
    fn table(n: u64, seed: u64, epoch: Epoch) -> Result<Self, OrderError> {
        let ids: Ids = randperm(n, &mut Mt19937::new(seed.wrapping_add(epoch.0)))?;
        let forward: Arc<[u64]> = ids.iter().map(|id| id.0).collect();
        let mut inverse = vec![0; forward.len()];
        for (position, &id) in (0..).zip(forward.iter()) {
            inverse[small(id)] = position;
        }
        Ok(Self::Table { forward, inverse: inverse.into() })
    }

    fn network(n: u64, seed: u64, epoch: Epoch) -> Self {
        let bits = (u64::BITS - (n - 1).leading_zeros()).max(2);
        let low_bits = bits / 2;
        let mut stream = mix(mix(seed.wrapping_add(GAMMA)).wrapping_add(epoch.0));
        let keys = std::array::from_fn(|_| {
            stream = stream.wrapping_add(GAMMA);
            mix(stream)
        });
        Self::Network { low_bits, low: (1 << low_bits) - 1, high: (1 << (bits - low_bits)) - 1, keys }
    }

    /// Follow the cycle to a value of the data set, which exists because the start is one.
    fn cycle(&self, from: u64, n: u64, step: impl Fn(&Self, u64) -> u64) -> u64 {
        let mut value = step(self, from);
        while value >= n {
            value = step(self, value);
        }
        value
    }

    fn forward(&self, value: u64) -> u64 {
        match self {
            Self::Network { low_bits, low, high, keys } => {
                let (mut h, mut l) = (value >> low_bits, value & low);
                for pair in keys.chunks_exact(2) {
                    h ^= scramble(l, pair[0]) & high;
                    l ^= scramble(h, pair[1]) & low;
                }
                h << low_bits | l
            }
            Self::Table { forward, .. } => forward[small(value)],
        }
    }

    fn inverse(&self, value: u64) -> u64 {
        match self {
            Self::Network { low_bits, low, high, keys } => {
                let (mut h, mut l) = (value >> low_bits, value & low);
                for pair in keys.chunks_exact(2).rev() {
                    l ^= scramble(h, pair[1]) & low;
                    h ^= scramble(l, pair[0]) & high;
                }
                h << low_bits | l
            }
            Self::Table { inverse, .. } => inverse[small(value)],
        }
    }
}

fn scramble(half: u64, key: u64) -> u64 {
    mix(half.wrapping_add(key)) >> 17
}

fn small(value: u64) -> usize {
    usize::try_from(value).expect("tables are smaller than 1024")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_small_n_is_a_bijection_with_its_inverse() {
        // These include every power of two below 4096 and its neighbours.
        for n in (0..=1025).chain((1026..=4097).step_by(9)).chain([2047, 2048, 2049, 4095, 4096]) {
            let keyed = Keyed::new(n, n * 7919, Epoch(n % 5)).unwrap();
            let mut seen = vec![false; small(n)];
            for position in 0..n {
                let id = keyed.id(position);
                assert!(!std::mem::replace(&mut seen[small(id.0)], true), "{id} twice in {n}");
                assert_eq!(keyed.position(id), position, "n {n}");
            }
        }
    }

    #[test]
    fn giant_data_sets_need_no_memory() {
        for n in [1_000_000_000_000, (1 << 63) + 1, u64::MAX] {
            let keyed = Keyed::new(n, 3, Epoch(1)).unwrap();
            for position in (0..1000).map(|i| i * (n / 1000)).chain([n - 1]) {
                assert_eq!(keyed.position(keyed.id(position)), position, "n {n}");
            }
        }
    }

    #[test]
    fn keyed_1_is_frozen() {
        let ids = |n, seed, epoch| {
            let keyed = Keyed::new(n, seed, Epoch(epoch)).unwrap();
            [0, 1, 2, n - 1].map(|position| keyed.id(position).0)
        };
        assert_eq!(ids(10, 0, 0), [4, 1, 7, 2]);
        assert_eq!(ids(1024, 0, 0), [363, 113, 626, 840]);
        assert_eq!(ids(1_281_167, 42, 3), [1_006_541, 982_731, 56_743, 52_968]);
        assert_eq!(
            ids(1_000_000_000_000, 7, 1),
            [197_396_478_948, 306_136_929_672, 326_977_921_662, 838_617_276_200]
        );
    }

    /// Chi-square of `counts` against a uniform distribution, divided by the degrees of freedom.
    fn chi2(counts: &[u32]) -> f64 {
        let mean = counts.iter().map(|&c| f64::from(c)).sum::<f64>()
            / f64::from(u32::try_from(counts.len()).unwrap());
        let sum: f64 = counts.iter().map(|&c| (f64::from(c) - mean).powi(2) / mean).sum();
        sum / f64::from(u32::try_from(counts.len() - 1).unwrap())
    }

    #[test]
    fn first_ids_pairs_and_second_differences_are_uniform_over_seeds() {
        let n = 1024 + 476;
        let [mut first, mut pairs, mut seconds] = [(); 3].map(|()| vec![0_u32; small(n)]);
        for seed in 0..150_000 {
            let keyed = Keyed::new(n, seed, Epoch(seed % 3)).unwrap();
            let [a, b, c] = [0, 1, 2].map(|position| keyed.id(position).0);
            first[small(a)] += 1;
            pairs[small((b + n - a) % n)] += 1;
            seconds[small((a + c + 2 * n - 2 * b) % n)] += 1;
        }
        // No two ids are equal, so the difference 0 cannot occur among pairs.
        assert_eq!(pairs[0], 0);
        // Standard deviation sqrt(2 / 1500) = 0.037; the bound is five of them.
        for (what, figure) in
            [("first", chi2(&first)), ("pairs", chi2(&pairs[1..])), ("seconds", chi2(&seconds))]
        {
            assert!((0.8..1.2).contains(&figure), "{what}: {figure}");
        }
    }
}
