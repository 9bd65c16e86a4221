// SPDX-License-Identifier: Apache-2.0
//! Histograms of reads per sample: counted in an order, and drawn.
//!
//! They complement the expectation of `foresee_model::AccessFrequency`: the same histogram for the order of a
//! run, and for independently drawn samples (Monte Carlo).

use foresee_units::SplitMix64;

use super::order::{AccessOrder, Epochs};

/// A sample is read at most once per epoch, and its reads are counted in 16 bits.
const EPOCHS_MAX: u32 = u16::MAX as u32;

/// Counts the reads of one rank per sample, epoch by epoch, so that a caller may stop in between.
///
/// It takes 2 bytes per sample, in addition to the list of one epoch.
#[derive(Debug)]
pub struct ReadCount {
    shape: Epochs,
    rank: usize,
    counted: u32,
    /// By sample.
    reads: Vec<u16>,
    list: Vec<u32>,
}

impl ReadCount {
    /// Count the reads of `rank` in `epochs` epochs of `order`, over full steps of one sample each.
    ///
    /// # Panics
    /// If `rank` is not one of `ranks`, `samples` is 0, or there are 2^16 epochs or more.
    pub fn new(order: AccessOrder, samples: u32, ranks: u32, epochs: u32, rank: u32) -> Self {
        assert!(rank < ranks && samples > 0, "rank {rank} of {ranks}, {samples} samples");
        assert!(epochs <= EPOCHS_MAX, "{epochs} epochs are counted in 16 bits");
        Self {
            shape: Epochs::new(order, samples, (ranks as usize, 1), epochs, false),
            rank: rank as usize,
            counted: 0,
            reads: vec![0; samples as usize],
            list: Vec::new(),
        }
    }

    /// Count the next epoch; `false` if there is none.
    pub fn count_epoch(&mut self) -> bool {
        let Self { shape, rank, counted, reads, list } = self;
        if *counted == shape.count {
            return false;
        }
        shape.fill(*counted, list);
        for step in 0..shape.steps {
            for &id in &list[shape.batch(step, *rank)] {
                reads[id as usize] += 1;
            }
        }
        *counted += 1;
        true
    }

    /// The number of samples that the rank has read 0, 1, 2, ... times; `epochs + 1` values.
    pub fn histogram(&self) -> Vec<u64> {
        histogram(&self.reads, self.shape.count)
    }
}

/// Return the number of samples that `rank` reads 0, 1, 2, ... times in `epochs` epochs of `order`: a
/// [`ReadCount`] of all epochs.
///
/// # Panics
/// As [`ReadCount::new`].
///
/// # Examples
/// ```
/// # use foresee_sim::loading::{AccessOrder, count_reads};
/// let reads = count_reads(AccessOrder::Shuffled { seed: 7 }, 1_000, 4, 20, 0);
/// assert_eq!(reads.iter().sum::<u64>(), 1_000);
/// let total: u64 = (0..).zip(&reads).map(|(times, samples)| times * samples).sum();
/// assert_eq!(total, 20 * 250);
/// ```
pub fn count_reads(order: AccessOrder, samples: u32, ranks: u32, epochs: u32, rank: u32) -> Vec<u64> {
    let mut count = ReadCount::new(order, samples, ranks, epochs, rank);
    while count.count_epoch() {}
    count.histogram()
}

/// Return the same histogram for samples that are read in each epoch with probability 1 / `ranks`, drawn
/// independently: Monte Carlo.
///
/// # Panics
/// If `ranks` is 0, or there are 2^16 epochs or more.
pub fn draw_reads(seed: u64, samples: u32, ranks: u32, epochs: u32) -> Vec<u64> {
    assert!(epochs <= EPOCHS_MAX, "{epochs} epochs are counted in 16 bits");
    let mut draw = SplitMix64::new(seed);
    let mut reads = || (0..epochs).map(|_| u16::from(draw.below(u64::from(ranks)) == 0)).sum();
    let counts: Vec<u16> = (0..samples).map(|_| reads()).collect();
    histogram(&counts, epochs)
}

/// No order gives a rank a sample twice in an epoch: one that pads only fills up to the number of ranks.
fn histogram(counts: &[u16], epochs: u32) -> Vec<u64> {
    let mut histogram = vec![0; epochs as usize + 1];
    for &count in counts {
        histogram[usize::from(count)] += 1;
    }
    histogram
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_that_pads_gives_no_rank_a_sample_twice_in_an_epoch() {
        for samples in [1, 2, 3, 7, 8, 9, 50] {
            for ranks in [1, 3, 8] {
                for rank in 0..ranks {
                    let order = AccessOrder::Distributed { seed: 3 };
                    let reads = count_reads(order, samples, ranks, 4, rank);
                    assert_eq!((reads.len(), reads.iter().sum()), (5, u64::from(samples)));
                    let total: u64 = (0..).zip(&reads).map(|(times, samples)| times * samples).sum();
                    assert_eq!(total, 4 * u64::from(samples.div_ceil(ranks)));
                }
            }
        }
    }

    #[test]
    fn counting_reports_its_progress() {
        let mut count = ReadCount::new(AccessOrder::Sequential, 6, 2, 3, 0);
        let mut epochs = 0;
        while count.count_epoch() {
            epochs += 1;
            assert_eq!(count.histogram()[epochs], 3, "every other sample, in every epoch");
        }
        assert_eq!(epochs, 3);
    }

    #[test]
    #[should_panic(expected = "65536 epochs are counted in 16 bits")]
    fn more_epochs_than_are_counted_are_refused() {
        count_reads(AccessOrder::Sequential, 1, 1, 1 << 16, 0);
    }
}
