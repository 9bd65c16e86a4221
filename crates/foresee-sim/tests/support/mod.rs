// SPDX-License-Identifier: Apache-2.0
//! What the tests of this folder share: orders, data sets, and the best that any cache could do.

#![allow(dead_code, reason = "each test file is a crate of its own and uses a part of this")]

use std::sync::Arc;

use foresee_data_plan::SampleSizes;
use foresee_sim::{HitReport, SizeTable};
use foresee_units::{Bytes, SampleId};

/// A sequence of well mixed numbers (`SplitMix64`), the same on every machine.
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `bound`; the bias is far below what any test could see.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Below the length of something in memory.
    pub(crate) fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).expect("below a length")
    }
}

/// What rank `rank` of `world` reads in `epochs` epochs of shuffled samples.
pub(crate) fn shuffled_epochs(
    samples: u64,
    epochs: usize,
    rank: usize,
    world: usize,
    seed: u64,
) -> Vec<Vec<SampleId>> {
    let mut draw = Draw(seed);
    let mut epoch = || {
        let mut order: Vec<SampleId> = (0..samples).map(SampleId).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, draw.index(last + 1));
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

/// The fewest origin bytes with which any cache of `capacity` could serve the accesses: every choice of
/// what to keep and drop is tried. For at most eight samples.
pub(crate) fn fewest_origin_bytes(accesses: &[SampleId], sizes: &[u64], capacity: u64) -> u64 {
    let sets = 1_usize << sizes.len();
    let room = |set: usize| -> u64 {
        sizes.iter().enumerate().filter(|(id, _)| set >> id & 1 == 1).map(|(_, size)| size).sum()
    };
    let fits: Vec<bool> = (0..sets).map(|set| room(set) <= capacity).collect();
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
            // Every part of what is held may stay beside the newcomer.
            let mut part = held;
            loop {
                let kept = part | 1 << id;
                if fits[kept] {
                    after[kept] = after[kept].min(read);
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
