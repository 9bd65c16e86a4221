// SPDX-License-Identifier: Apache-2.0
//! How many samples a rank reads how often: counted in an order, and drawn.
//!
//! Beside the expectation of `foresee_model::AccessFrequency`: the same histogram for the order that a run will have,
//! and for samples that are drawn one by one.

use super::draw::Draw;
use super::order::{AccessOrder, Epochs};

/// How many samples `rank` reads 0, 1, 2, ... times in `epochs` epochs of `order`, over full steps of one sample each.
///
/// The histogram has `epochs + 1` entries, more where an order pads; 2 bytes per sample while it is counted.
///
/// # Panics
/// If `rank` is not one of `ranks`, or `samples` is 0.
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
    assert!(rank < ranks && samples > 0, "rank {rank} of {ranks}, {samples} samples");
    let shape = Epochs::new(order, samples, (ranks as usize, 1), epochs, false);
    let mut counts = vec![0_u16; samples as usize];
    let mut list = Vec::new();
    for epoch in 0..epochs {
        shape.fill(epoch, &mut list);
        for step in 0..shape.steps {
            for &id in &list[shape.batch(step, rank as usize)] {
                counts[id as usize] = counts[id as usize].saturating_add(1);
            }
        }
    }
    histogram(&counts, epochs)
}

/// The same for samples that are read in each epoch with a chance of one in `ranks`, drawn one by one: Monte Carlo.
///
/// # Panics
/// If `ranks` is 0.
pub fn draw_reads(seed: u64, samples: u32, ranks: u32, epochs: u32) -> Vec<u64> {
    let mut draw = Draw::new(seed);
    let mut reads = || (0..epochs).map(|_| u16::from(draw.below(u64::from(ranks)) == 0)).sum();
    let counts: Vec<u16> = (0..samples).map(|_| reads()).collect();
    histogram(&counts, epochs)
}

fn histogram(counts: &[u16], epochs: u32) -> Vec<u64> {
    let mut histogram = vec![0; epochs as usize + 1];
    for &count in counts {
        let place = usize::from(count);
        if place >= histogram.len() {
            histogram.resize(place + 1, 0);
        }
        histogram[place] += 1;
    }
    histogram
}
