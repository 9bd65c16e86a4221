// SPDX-License-Identifier: Apache-2.0
//! Shared helpers of the tests: orders, data sets, and the optimum of any cache.

pub(crate) mod hits;

use std::sync::Arc;

use foresee_data_plan::SampleSizes;
use foresee_sim::SizeTable;
use foresee_units::{Bytes, SampleId, SplitMix64};

use hits::HitReport;

/// Return a random place below the length of something in memory.
pub(crate) fn index(draw: &mut SplitMix64, bound: usize) -> usize {
    usize::try_from(draw.below(bound as u64)).expect("below a length")
}

/// The reads of rank `rank` of `world` in `epochs` epochs of shuffled samples.
pub(crate) fn shuffled_epochs(
    samples: u64,
    epochs: usize,
    rank: usize,
    world: usize,
    seed: u64,
) -> Vec<Vec<SampleId>> {
    let mut draw = SplitMix64::new(seed);
    let mut epoch = || {
        let mut order: Vec<SampleId> = (0..samples).map(SampleId).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, index(&mut draw, last + 1));
        }
        order.into_iter().skip(rank).step_by(world).collect()
    };
    (0..epochs).map(|_| epoch()).collect()
}

pub(crate) fn equal(count: u64) -> Arc<dyn SampleSizes> {
    Arc::new(SizeTable::Uniform { count, size: Bytes::new(1) })
}

pub(crate) fn unequal(sizes: &[u64]) -> Arc<dyn SampleSizes> {
    Arc::new(SizeTable::Each(sizes.iter().copied().map(Bytes::new).collect()))
}

pub(crate) fn total(reports: &[HitReport]) -> HitReport {
    let mut sum = HitReport::default();
    for &report in reports {
        sum += report;
    }
    sum
}

/// The minimum of origin bytes with which any cache of `capacity` could serve the accesses, by trying every
/// choice of copies to keep. For at most eight samples.
pub(crate) fn fewest_origin_bytes(accesses: &[SampleId], sizes: &[u64], capacity: u64) -> u64 {
    let sets = 1_usize << sizes.len();
    let set_bytes = |set: usize| -> u64 {
        sizes.iter().enumerate().filter(|(id, _)| set >> id & 1 == 1).map(|(_, size)| size).sum()
    };
    let fits: Vec<bool> = (0..sets).map(|set| set_bytes(set) <= capacity).collect();
    let mut best = vec![u64::MAX; sets];
    best[0] = 0;
    for &SampleId(sample) in accesses {
        let id = usize::try_from(sample).expect("one of eight");
        let mut after = vec![u64::MAX; sets];
        for held in (0..sets).filter(|&held| best[held] < u64::MAX) {
            if held >> id & 1 == 1 {
                after[held] = after[held].min(best[held]);
                continue;
            }
            let read = best[held] + sizes[id];
            after[held] = after[held].min(read);
            // Every subset of the held samples may remain with the new one.
            let mut part = held;
            loop {
                let cached = part | 1 << id;
                if fits[cached] {
                    after[cached] = after[cached].min(read);
                }
                if part == 0 {
                    break;
                }
                part = (part - 1) & held;
            }
        }
        best = after;
    }
    best.into_iter().min().expect("the empty set can always be kept")
}
