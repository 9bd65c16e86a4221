// SPDX-License-Identifier: Apache-2.0
//! A fixed part of the data set for each rank, which shuffles it alone: rank i reads every N-th sample from i on, in the
//! order that these samples have in the epoch's shuffle. A sample is cached at its first read, in the fastest tier with
//! space; those that find none are read from the origin in every epoch.
//!
//! No byte crosses the network, and no batch ever mixes two parts: a weaker shuffle than the one that was asked for. If a
//! rank reads more samples in an epoch than its part has, it begins again.
//!
//! Memory: 9 bytes per sample.

use super::first_come::FirstCome;
use crate::loading::prefetch::{Access, Caching, Supply};
use crate::loading::rates::{ORIGIN, Rates};
use crate::loading::run::Setup;

pub(super) struct StaticShare {
    cached: FirstCome,
    /// Epochs that began.
    epochs: u32,
    list: Vec<u32>,
    /// By rank: its samples in the order of the epoch, and the number of those that it has read.
    parts: Vec<Vec<u32>>,
    read: Vec<usize>,
}

impl StaticShare {
    pub(super) fn new(setup: &Setup) -> Self {
        let ranks = setup.epochs.ranks;
        Self {
            cached: FirstCome::new(setup),
            epochs: 0,
            list: Vec::new(),
            parts: vec![Vec::new(); ranks],
            read: vec![0; ranks],
        }
    }

    /// Draw the order of the next epoch.
    fn begin_epoch(&mut self, setup: &Setup) {
        let ranks = setup.epochs.ranks;
        setup.epochs.fill(self.epochs, &mut self.list);
        self.epochs += 1;
        self.parts.iter_mut().for_each(Vec::clear);
        self.read.fill(0);
        for &id in &self.list {
            self.parts[id as usize % ranks].push(id);
        }
        // An epoch that drops its last batches may have left out the whole part of a rank.
        for (part, rank) in self.parts.iter_mut().zip(0..) {
            if part.is_empty() {
                part.push(rank);
            }
        }
    }
}

impl Caching for StaticShare {
    fn needs_order(&self) -> bool {
        false
    }

    fn distribute(&mut self, setup: &Setup, step: usize, ids: &mut [u32]) {
        if step == 0 {
            self.begin_epoch(setup);
        }
        for rank in 0..setup.epochs.ranks {
            let part = &self.parts[rank];
            for id in &mut ids[setup.epochs.batch_in_step(step, rank)] {
                *id = part[self.read[rank] % part.len()];
                self.read[rank] += 1;
            }
        }
    }

    fn supply(&mut self, access: Access, _: f64, rates: &Rates) -> Supply {
        let tier = self.cached.tier(access.id);
        Supply::From(tier.map_or(ORIGIN, |tier| rates.faster(Rates::local(tier))))
    }

    fn fetched(&mut self, access: Access, size: f64, _: f64) {
        self.cached.cache(access.id, access.rank, size);
    }
}
