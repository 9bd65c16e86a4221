// SPDX-License-Identifier: Apache-2.0
//! Reads of a sample by one rank over a run, and the number of samples that it reads unusually often.
//!
//! Placement by frequency relies on it: of a million samples that a rank reads 5.6 times on average, tens of
//! thousands are read more than 10 times. Simulations count the same in a drawn order. Fractions are exact
//! ([`Ratio`]), because a threshold has to hold at integers.

use crate::number::{as_f64, check};
use crate::{Compat, ModelError, Ratio};

/// Expected number of samples by reads of one rank, over orders.
///
/// A fixed rank reads a fixed sample `X ~ Binomial(epochs, 1 / ranks)` times. This assumes that each rank reads
/// exactly `1 / ranks` of every epoch, which padding and dropped batches change slightly. Samples are not
/// independent of each other, which does not affect an expectation.
/// Source: nopfs-clairvoyant-prefetching, section 3.1.
///
/// # Examples
/// ```
/// # use foresee_model::{AccessFrequency, Compat};
/// let imagenet = AccessFrequency::new(16, 90, 1_281_167)?;
/// let often = imagenet.expected_above("0.8".parse()?, Compat::Physical);
/// assert!((often - 31_634.6858).abs() < 1e-4); // more than 10.125 times
/// # Ok::<(), foresee_model::ModelError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AccessFrequency {
    ranks: u32,
    epochs: u32,
    samples: u64,
}

impl AccessFrequency {
    /// The frequencies of `samples` samples over `epochs` epochs of `ranks` ranks.
    ///
    /// # Errors
    /// [`ModelError::InvalidInput`] if any of them is 0.
    pub fn new(ranks: u32, epochs: u32, samples: u64) -> Result<Self, ModelError> {
        for (field, value) in [("ranks", ranks.into()), ("epochs", epochs.into()), ("samples", samples)] {
            check(value > 0, field, 0.0, "1 or more")?;
        }
        Ok(Self { ranks, epochs, samples })
    }

    /// Reads per sample and rank on average: `epochs / ranks`.
    pub fn mean(&self) -> f64 {
        f64::from(self.epochs) / f64::from(self.ranks)
    }

    /// The smallest number of reads above `(1 + delta)` times the mean: `floor((1 + delta) mean) + 1`.
    ///
    /// `Compat::Paper` rounds up instead, which differs if the threshold is an integer: the printed limit then
    /// counts samples that are read exactly that often. The text and the thesis mean "more than".
    pub fn least_reads_above(&self, delta: Ratio, compat: Compat) -> u64 {
        let (floor, exact) = scaled(one_plus(delta), delta.denominator(), self.epochs, self.ranks);
        match compat {
            Compat::Physical => floor.saturating_add(1),
            Compat::Paper => floor.saturating_add(u64::from(!exact)),
        }
    }

    /// Expected number of samples that a rank reads more than `(1 + delta)` times the mean.
    pub fn expected_above(&self, delta: Ratio, compat: Compat) -> f64 {
        self.expected_at_least(self.least_reads_above(delta, compat))
    }

    /// Expected number of samples that a rank reads `reads` times or more; 0 beyond the number of epochs.
    ///
    /// Exact to about 1e-13 of its value: Loader's form of the binomial (saddle point, 2000), and the tail summed
    /// from its small end.
    pub fn expected_at_least(&self, reads: u64) -> f64 {
        as_f64(self.samples) * self.tail(reads)
    }

    /// Expected number of samples that a rank reads exactly `reads` times.
    pub fn expected_exactly(&self, reads: u64) -> f64 {
        u32::try_from(reads).map_or(0.0, |reads| as_f64(self.samples) * self.probability(reads))
    }

    /// `P(X >= reads)`.
    fn tail(&self, reads: u64) -> f64 {
        let Ok(reads) = u32::try_from(reads) else { return 0.0 };
        if reads == 0 {
            return 1.0;
        }
        if reads > self.epochs {
            return 0.0;
        }
        if f64::from(reads) > self.mean() {
            self.probability(reads) * self.above(reads)
        } else {
            1.0 - self.probability(reads - 1) * self.below(reads - 1)
        }
    }

    /// `P(X >= from) / P(X = from)`, for `from` above the mean, where terms fall.
    fn above(&self, from: u32) -> f64 {
        let odds = 1.0 / (f64::from(self.ranks) - 1.0);
        let ratio = |k: u32| f64::from(self.epochs - k) / (f64::from(k) + 1.0) * odds;
        let (mut end, mut term) = (from, 1.0);
        while end < self.epochs && term > NEGLIGIBLE {
            term *= ratio(end);
            end += 1;
        }
        (from..end).rev().fold(1.0, |sum, k| sum.mul_add(ratio(k), 1.0))
    }

    /// `P(X <= from) / P(X = from)`, for `from` below the mean, where terms fall downwards.
    fn below(&self, from: u32) -> f64 {
        let odds = f64::from(self.ranks) - 1.0;
        let ratio = |k: u32| f64::from(k) / (f64::from(self.epochs - k) + 1.0) * odds;
        let (mut end, mut term) = (from, 1.0);
        while end > 0 && term > NEGLIGIBLE {
            term *= ratio(end);
            end -= 1;
        }
        (end + 1..=from).fold(1.0, |sum, k| sum.mul_add(ratio(k), 1.0))
    }

    /// `P(X = reads)`. Logarithms of factorials would cancel; their saddle-point form does not.
    fn probability(&self, reads: u32) -> f64 {
        let (n, k) = (f64::from(self.epochs), f64::from(reads));
        let p = 1.0 / f64::from(self.ranks);
        if reads > self.epochs {
            return 0.0;
        }
        if self.ranks == 1 {
            return if reads == self.epochs { 1.0 } else { 0.0 };
        }
        if reads == 0 {
            return (n * (-p).ln_1p()).exp();
        }
        if reads == self.epochs {
            return (n * p.ln()).exp();
        }
        let rest = n - k;
        let log = stirling_error(n)
            - stirling_error(k)
            - stirling_error(rest)
            - deviance(k, n * p)
            - deviance(rest, n * (1.0 - p));
        log.exp() * (n / (2.0 * std::f64::consts::PI * k * rest)).sqrt()
    }
}

/// Terms below this share of the first change no digit of a sum.
const NEGLIGIBLE: f64 = 1e-20;

/// `ln n! - ln(sqrt(2 pi n) (n / e)^n)`.
fn stirling_error(n: f64) -> f64 {
    if n < 16.0 {
        let (mut factorial, mut k) = (1.0, 2.0);
        while k <= n {
            factorial *= k;
            k += 1.0;
        }
        return f64::ln(factorial) - (n + 0.5) * n.ln() + n - 0.5 * (2.0 * std::f64::consts::PI).ln();
    }
    let square = n * n;
    let series = 1.0 / 1188.0 / square;
    let series = (1.0 / 1680.0 - series) / square;
    let series = (1.0 / 1260.0 - series) / square;
    let series = (1.0 / 360.0 - series) / square;
    (1.0 / 12.0 - series) / n
}

/// `x ln(x / mean) + mean - x` without cancellation.
fn deviance(x: f64, mean: f64) -> f64 {
    let away = (x - mean) / (x + mean);
    if away.abs() >= 0.1 {
        return x * (x / mean).ln() + mean - x;
    }
    let mut sum = (x - mean) * away;
    let mut term = 2.0 * x * away;
    let square = away * away;
    let mut odd = 3.0;
    loop {
        term *= square;
        let next = sum + term / odd;
        #[expect(clippy::float_cmp, reason = "the series ends where a term changes nothing")]
        if next == sum {
            return sum;
        }
        sum = next;
        odd += 2.0;
    }
}

/// Consequence of a rank's reads of one sample for those of some other rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherRank {
    /// Reads by this rank: `(1 ± delta) epochs / ranks`, rounded as in the lemma.
    pub here: u64,
    /// The lemma's limit on the reads of some other rank.
    pub limit: u64,
    /// The tight limit, by the pigeonhole principle: `epochs - here` reads go to the `ranks - 1` others.
    pub tight: u64,
}

/// If a rank reads a sample `ceil((1 + delta) epochs / ranks)` times, some other rank reads it at most `limit`
/// times.
///
/// `limit = ceil((ranks - 1 - delta) / (ranks - 1) * epochs / ranks)`.
/// Source: nopfs-clairvoyant-prefetching, lemma 3.1.
///
/// # Errors
/// [`ModelError::InvalidInput`] unless there are 2 ranks and 1 epoch or more and `delta` is `ranks - 1` at most.
/// # Examples
/// ```
/// # use foresee_model::{OtherRank, some_other_reads_at_most};
/// let other = some_other_reads_at_most(4, 10, "1".parse()?)?;
/// assert_eq!(other, OtherRank { here: 5, limit: 2, tight: 1 });
/// # Ok::<(), foresee_model::ModelError>(())
/// ```
pub fn some_other_reads_at_most(ranks: u32, epochs: u32, delta: Ratio) -> Result<OtherRank, ModelError> {
    let others = others(ranks, epochs)?;
    check_delta(delta, u64::from(others), "0 to ranks - 1")?;
    let (floor, exact) = scaled(one_plus(delta), delta.denominator(), epochs, ranks);
    let here = floor + u64::from(!exact);
    // ceil of (others - delta) epochs / (others ranks), as one fraction.
    let left = wide(delta.denominator()) * u128::from(others) - wide(delta.numerator());
    let below = wide(delta.denominator()) * u128::from(others) * u128::from(ranks);
    let limit = narrow((left * u128::from(epochs)).div_ceil(below));
    let tight = u64::from(epochs).saturating_sub(here) / u64::from(others);
    Ok(OtherRank { here, limit, tight })
}

/// If a rank reads a sample `floor((1 - delta) epochs / ranks)` times, some other rank reads it at least `limit`
/// times.
///
/// `limit = floor((ranks - 1 + delta) / (ranks - 1) * epochs / ranks)`. The source prints no range for `delta`
/// here; above 1 the number of reads would be negative.
/// Source: nopfs-clairvoyant-prefetching, lemma 3.1.
///
/// # Errors
/// [`ModelError::InvalidInput`] unless there are 2 ranks and 1 epoch or more and `delta` is 1 at most.
/// # Examples
/// ```
/// # use foresee_model::{OtherRank, some_other_reads_at_least};
/// let other = some_other_reads_at_least(4, 10, "0.2".parse()?)?;
/// assert_eq!(other, OtherRank { here: 2, limit: 2, tight: 3 });
/// # Ok::<(), foresee_model::ModelError>(())
/// ```
pub fn some_other_reads_at_least(ranks: u32, epochs: u32, delta: Ratio) -> Result<OtherRank, ModelError> {
    let others = others(ranks, epochs)?;
    check_delta(delta, 1, "0 to 1")?;
    let fewer = wide(delta.denominator()) - wide(delta.numerator());
    let (here, _) = scaled(fewer, delta.denominator(), epochs, ranks);
    let more = wide(delta.denominator()) * u128::from(others) + wide(delta.numerator());
    let below = wide(delta.denominator()) * u128::from(others) * u128::from(ranks);
    let limit = narrow(more * u128::from(epochs) / below);
    let tight = (u64::from(epochs) - here).div_ceil(u64::from(others));
    Ok(OtherRank { here, limit, tight })
}

/// `floor(factor epochs / ranks)` for `factor / denominator`, and whether the division is exact.
fn scaled(factor: u128, denominator: u64, epochs: u32, ranks: u32) -> (u64, bool) {
    let (above, below) = (factor * u128::from(epochs), wide(denominator) * u128::from(ranks));
    (narrow(above / below), above % below == 0)
}

/// The numerator of `1 + delta`.
fn one_plus(delta: Ratio) -> u128 {
    wide(delta.denominator()) + wide(delta.numerator())
}

fn others(ranks: u32, epochs: u32) -> Result<u32, ModelError> {
    check(ranks >= 2, "ranks", f64::from(ranks), "2 or more")?;
    check(epochs > 0, "epochs", 0.0, "1 or more")?;
    Ok(ranks - 1)
}

fn check_delta(delta: Ratio, most: u64, rule: &'static str) -> Result<f64, ModelError> {
    let holds = wide(delta.numerator()) <= wide(delta.denominator()) * u128::from(most);
    check(holds, "delta", as_f64(delta.numerator()) / as_f64(delta.denominator()), rule)
}

fn wide(value: u64) -> u128 {
    u128::from(value)
}

fn narrow(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use foresee_testkit::property;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn no_ranks_epochs_or_samples_are_refused_by_name() {
        for (ranks, epochs, samples, field) in [(0, 1, 1, "ranks"), (1, 0, 1, "epochs"), (1, 1, 0, "samples")]
        {
            let fault = AccessFrequency::new(ranks, epochs, samples).unwrap_err().to_string();
            assert!(fault.starts_with(field) && fault.contains("1 or more"), "{fault}");
        }
        assert!(some_other_reads_at_most(1, 5, Ratio::new(0, 1).unwrap()).is_err());
        assert!(some_other_reads_at_most(4, 0, Ratio::new(0, 1).unwrap()).is_err());
        assert!(some_other_reads_at_most(4, 5, Ratio::new(31, 10).unwrap()).is_err());
        assert!(some_other_reads_at_least(4, 5, Ratio::new(11, 10).unwrap()).is_err());
    }

    #[test]
    fn one_rank_reads_every_sample_once_an_epoch() {
        let alone = AccessFrequency::new(1, 7, 100).unwrap();
        assert!((alone.expected_at_least(7) - 100.0).abs() < 1e-12);
        assert!(alone.expected_above(Ratio::new(0, 1).unwrap(), Compat::Physical).abs() < 1e-300);
        assert!(alone.expected_at_least(8).abs() < 1e-300);
    }

    proptest! {
        #![proptest_config(property(256))]

        /// Against sums of exact integers, within 128 bits.
        #[test]
        fn tails_agree_with_exact_integers(ranks in 2_u32..9, epochs in 1_u32..40, reads in 0_u64..42) {
            let frequency = AccessFrequency::new(ranks, epochs, 1).unwrap();
            let mut ways = 1_u128; // of C(epochs, k) (ranks - 1)^(epochs - k), k = epochs
            let (mut exact, mut whole) = (0_u128, 0_u128);
            for k in (0..=epochs).rev() {
                let others = u128::from(ranks - 1).pow(epochs - k);
                whole += ways * others;
                exact += if u64::from(k) >= reads { ways * others } else { 0 };
                ways = ways * u128::from(k) / u128::from(epochs - k + 1);
            }
            #[expect(clippy::cast_precision_loss, reason = "a share, to 53 bits")]
            let exact = exact as f64 / whole as f64;
            let tail = frequency.expected_at_least(reads);
            prop_assert!((tail - exact).abs() <= 1e-12 * exact, "{} instead of {}", tail, exact);
        }

        /// The lemma for every distribution of a sample's reads: its limits hold, and so do the tight ones.
        #[test]
        fn some_other_rank_reads_fewer_or_more(
            reads in prop::collection::vec(0_u32..12, 2..7),
            numerator in 0_u64..60,
        ) {
            let (ranks, epochs) = (u32::try_from(reads.len()).unwrap(), reads.iter().sum::<u32>());
            prop_assume!(epochs > 0);
            let delta = Ratio::new(numerator, 10).unwrap();
            let others = |of: usize| reads.iter().enumerate().filter(move |(rank, _)| *rank != of).map(|(_, reads)| u64::from(*reads));
            for (rank, &here) in reads.iter().enumerate() {
                if let Ok(bound) = some_other_reads_at_most(ranks, epochs, delta)
                    && bound.here == u64::from(here)
                {
                    let least = others(rank).min().unwrap();
                    prop_assert!(least <= bound.tight && bound.tight <= bound.limit);
                }
                if let Ok(bound) = some_other_reads_at_least(ranks, epochs, delta)
                    && bound.here == u64::from(here)
                {
                    let most = others(rank).max().unwrap();
                    prop_assert!(most >= bound.tight && bound.tight >= bound.limit);
                }
            }
        }
    }
}
