// SPDX-License-Identifier: Apache-2.0
//! Samples that are cached when they are read first, and never leave: each in the fastest tier of one rank with space.
//!
//! Memory: one byte per sample.

use crate::loading::run::Setup;

/// Which tier caches which sample, and the space that is left.
pub(super) struct FirstCome {
    /// By sample: the tier of its rank, or one of the two constants below.
    cached: Vec<u8>,
    tiers: usize,
    /// By rank and tier.
    free_bytes: Vec<f64>,
}

/// Not read yet.
const UNREAD: u8 = u8::MAX;
/// No tier had space when it was read first.
const NOT_CACHED: u8 = u8::MAX - 1;

impl FirstCome {
    #[expect(clippy::cast_precision_loss, reason = "capacities, far below 2^53")]
    pub(super) fn new(setup: &Setup) -> Self {
        let tiers = &setup.scenario.cluster.tiers;
        let of_rank: Vec<f64> = tiers.iter().map(|tier| tier.capacity.get() as f64).collect();
        Self {
            cached: vec![UNREAD; setup.sizes.len() as usize],
            tiers: tiers.len(),
            free_bytes: of_rank.repeat(setup.epochs.ranks),
        }
    }

    /// The tier that caches a sample.
    pub(super) fn tier(&self, id: u32) -> Option<usize> {
        let tier = self.cached[id as usize];
        (tier < NOT_CACHED).then_some(tier.into())
    }

    /// A sample was read, and `rank` caches it if that was the first time; return whether it does since now.
    pub(super) fn cache(&mut self, id: u32, rank: usize, size: f64) -> bool {
        let cached = &mut self.cached[id as usize];
        if *cached != UNREAD {
            return false;
        }
        let free_bytes = &mut self.free_bytes[rank * self.tiers..][..self.tiers];
        let tier = free_bytes.iter().position(|&free| size <= free);
        if let Some(tier) = tier {
            free_bytes[tier] -= size;
        }
        *cached = tier.map_or(NOT_CACHED, |tier| u8::try_from(tier).expect("few tiers"));
        tier.is_some()
    }
}
