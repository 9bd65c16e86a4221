// SPDX-License-Identifier: Apache-2.0
//! A simulated data set: the number and sizes of its samples.
//!
//! It takes four bytes per sample if sizes differ and all are below 4 GiB, and none if they are equal.

use foresee_data_plan::{SampleSizes, hint};
use foresee_units::{Bytes, SampleId, SplitMix64};

use super::draw::normal;
use super::scenario::Faults;

/// Sizes of the samples.
#[derive(Clone, Debug, PartialEq)]
pub enum DataSet {
    /// All samples have one size.
    Equal {
        /// Number of samples.
        count: u64,
        /// Bytes per sample, 1 or more.
        size: Bytes,
    },
    /// Sizes from a normal distribution. Values of 0 and below are drawn again, which raises the mean.
    Normal {
        /// Number of samples.
        count: u64,
        /// Mean in bytes, above 0, before values are drawn again.
        mean: f64,
        /// Standard deviation in bytes, 0 or more.
        deviation: f64,
        /// Equal seeds draw equal sizes.
        seed: u64,
    },
    /// The size of each sample by id; 1 byte or more.
    Given(Vec<u64>),
}

/// Sample ids have 32 bits here, and one value means "none".
const COUNT_MAX: u64 = u32::MAX as u64 - 1;

impl DataSet {
    /// The number of samples.
    pub fn count(&self) -> u64 {
        match self {
            Self::Equal { count, .. } | Self::Normal { count, .. } => *count,
            Self::Given(sizes) => sizes.len() as u64,
        }
    }

    pub(super) fn check(&self, faults: &mut Faults) {
        faults.whole("data.count", self.count(), 1..=COUNT_MAX, "samples");
        match self {
            Self::Equal { size, .. } => faults.whole("data.size", size.get(), 1..=u64::MAX, "bytes"),
            Self::Normal { mean, deviation, .. } => {
                faults.number("data.mean", *mean, *mean > 0.0, "bytes", "finite and above 0");
                faults.number(
                    "data.deviation",
                    *deviation,
                    *deviation >= 0.0,
                    "bytes",
                    "finite and 0 or more",
                );
            }
            Self::Given(sizes) => {
                if sizes.contains(&0) {
                    faults.whole("data.sizes", 0, 1..=u64::MAX, "bytes");
                }
            }
        }
    }

    /// Draw the sizes. The data set must be valid.
    pub(super) fn sizes(&self) -> Sizes {
        match self {
            Self::Equal { count, size } => {
                let count = u32::try_from(*count).expect("the count was checked");
                Sizes {
                    count,
                    total: u128::from(size.get()) * u128::from(count),
                    each: Each::Equal(size.get()),
                }
            }
            Self::Normal { count, mean, deviation, seed } => {
                let mut draw = SplitMix64::new(*seed);
                let count = u32::try_from(*count).expect("the count was checked");
                Sizes::gather((0..count).map(|_| positive_size(*mean, *deviation, &mut draw)))
            }
            Self::Given(sizes) => Sizes::gather(sizes.iter().copied()),
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "above 0, and `as` saturates")]
fn positive_size(mean: f64, deviation: f64, draw: &mut SplitMix64) -> u64 {
    loop {
        let size = deviation.mul_add(normal(draw), mean);
        if size > 0.0 {
            return (size.round() as u64).max(1);
        }
    }
}

/// The drawn sizes.
#[derive(Debug)]
pub(super) struct Sizes {
    count: u32,
    total: u128,
    each: Each,
}

#[derive(Debug)]
enum Each {
    Equal(u64),
    Narrow(Vec<u32>),
    Wide(Vec<u64>),
}

impl Sizes {
    fn gather(sizes: impl ExactSizeIterator<Item = u64>) -> Self {
        let count = sizes.len();
        let mut narrow = Vec::with_capacity(count);
        let mut wide = Vec::new();
        let mut total = 0;
        for size in sizes {
            total += u128::from(size);
            match u32::try_from(size) {
                Ok(size) if wide.is_empty() => narrow.push(size),
                _ => {
                    if wide.is_empty() {
                        wide.reserve_exact(count);
                        wide.extend(narrow.drain(..).map(u64::from));
                    }
                    wide.push(size);
                }
            }
        }
        let each = if wide.is_empty() { Each::Narrow(narrow) } else { Each::Wide(wide) };
        Self { count: u32::try_from(count).expect("the count was checked"), total, each }
    }

    pub(super) fn len(&self) -> u32 {
        self.count
    }

    /// Bytes of all samples.
    #[expect(clippy::cast_precision_loss, reason = "a sum for comparison with capacities")]
    pub(super) fn total(&self) -> f64 {
        self.total as f64
    }

    /// The same as a whole number, for reports.
    pub(super) fn bytes(&self) -> Bytes {
        Bytes::new(u64::try_from(self.total).unwrap_or(u64::MAX))
    }

    #[expect(clippy::cast_precision_loss, reason = "below 2^53 for every sample there is")]
    pub(super) fn get(&self, id: u32) -> f64 {
        match &self.each {
            Each::Equal(size) => *size as f64,
            Each::Narrow(sizes) => f64::from(sizes[id as usize]),
            Each::Wide(sizes) => sizes[id as usize] as f64,
        }
    }

    /// Prefetch the sizes of `ids` into the cache.
    pub(super) fn expect(&self, ids: &[u32]) {
        for &id in ids {
            SampleSizes::prefetch(self, SampleId(u64::from(id)));
        }
    }

    /// The sizes of `ids`, looked up together so that cache misses overlap.
    #[expect(clippy::cast_precision_loss, reason = "below 2^53 for every sample there is")]
    pub(super) fn look_up(&self, ids: &[u32], out: &mut Vec<f64>) {
        out.clear();
        match &self.each {
            Each::Equal(size) => out.resize(ids.len(), *size as f64),
            Each::Narrow(sizes) => out.extend(ids.iter().map(|&id| f64::from(sizes[id as usize]))),
            Each::Wide(sizes) => out.extend(ids.iter().map(|&id| sizes[id as usize] as f64)),
        }
    }
}

impl SampleSizes for Sizes {
    fn count(&self) -> u64 {
        u64::from(self.count)
    }

    fn size(&self, id: SampleId) -> Bytes {
        let place = usize::try_from(id.0).expect("an id below the count");
        Bytes::new(match &self.each {
            Each::Equal(size) => *size,
            Each::Narrow(sizes) => u64::from(sizes[place]),
            Each::Wide(sizes) => sizes[place],
        })
    }

    fn prefetch(&self, id: SampleId) {
        let place = usize::try_from(id.0).unwrap_or(usize::MAX);
        match &self.each {
            Each::Equal(_) => {}
            Each::Narrow(sizes) => hint::prefetch(sizes, place),
            Each::Wide(sizes) => hint::prefetch(sizes, place),
        }
    }

    fn uniform(&self) -> Option<Bytes> {
        match self.each {
            Each::Equal(size) => Some(Bytes::new(size)),
            Each::Narrow(_) | Each::Wide(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_below_one_byte_are_drawn_again_and_raise_the_mean() {
        let data = DataSet::Normal { count: 100_000, mean: 107_700.0, deviation: 100_000.0, seed: 42 };
        let sizes = data.sizes();
        let mean = sizes.total() / 1e5;
        assert!((mean - 133_700.0).abs() < 1_000.0, "{mean}: the mean of a normal cut at 0");
        assert!((0..100_000).all(|id| sizes.get(id) >= 1.0));
    }

    /// Draw a limited number of sizes, and count each for several samples of the data set.
    fn assert_gigabytes(count: u32, mean: f64, deviation: f64, total: f64) {
        let sizes =
            DataSet::Normal { count: u64::from(count.min(2_000_000)), mean, deviation, seed: 42 }.sizes();
        let samples_per_size = f64::from(count) / f64::from(sizes.len());
        let got = sizes.total() * samples_per_size / 1e9;
        // The digits of the expected value, and three standard deviations of such a sum without repeated draws.
        let drawn = 3.0 * deviation * f64::from(sizes.len()).sqrt() * samples_per_size / 1e9;
        assert!((got - total).abs() < 0.5 + drawn, "{got} GB instead of {total}");
    }

    #[test]
    fn imagenet_1k_and_openimages_of_published_scenarios_have_more_than_the_printed_135_and_500_gb() {
        assert_gigabytes(1_281_167, 107_700.0, 100_000.0, 171.0);
        assert_gigabytes(1_743_042, 293_700.0, 200_000.0, 563.0);
    }

    #[test]
    fn imagenet_22k_with_a_deviation_of_100_kb_has_more_than_the_printed_1500_gb() {
        assert_gigabytes(14_197_122, 107_700.0, 100_000.0, 1_898.0);
    }

    #[test]
    fn imagenet_22k_with_a_deviation_of_200_kb_has_more_than_the_printed_1500_gb() {
        assert_gigabytes(14_197_122, 107_700.0, 200_000.0, 2_919.0);
    }

    #[test]
    fn sizes_take_the_narrowest_width_that_holds_them() {
        let sizes = DataSet::Given(vec![1, 2, 3]).sizes();
        assert!(matches!(sizes.each, Each::Narrow(_)) && sizes.bytes() == Bytes::new(6));
        let sizes = DataSet::Given(vec![1, 5 << 32, 3]).sizes();
        assert!(matches!(sizes.each, Each::Wide(_)));
        let mut out = Vec::new();
        sizes.look_up(&[2, 0, 1], &mut out);
        assert_eq!(out, [3.0, 1.0, 5.0 * 4_294_967_296.0]);
        assert_eq!(out, [2, 0, 1].map(|id| sizes.get(id)));
    }
}
