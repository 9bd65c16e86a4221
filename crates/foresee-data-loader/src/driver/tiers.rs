// SPDX-License-Identifier: Apache-2.0
//! The driver's caches: memory, disk, and copies in flight to the disk.

use std::collections::VecDeque;
use std::sync::Arc;

use foresee_data_plan::TierIndex;
use foresee_data_tier::{Completions, DiskTier, Done, RamTier};
use foresee_units::Bytes;

use super::DriverTiers;
use super::cache_fill::DiskCopies;
use crate::cache::CacheShare;

/// The caches in the planner's order: memory first, then disk.
#[derive(Debug)]
pub(super) struct CacheTiers {
    pub(super) ram: Option<Arc<RamTier>>,
    pub(super) disk: Option<Arc<DiskTier>>,
    pub(super) copies: DiskCopies,
    completions: Completions,
    share: Arc<CacheShare>,
    /// The planner's capacity of the memory tier.
    capacity: Bytes,
    /// Samples of this loader in the memory tier, and samples of the data set.
    in_memory: u64,
    samples: u64,
}

impl CacheTiers {
    /// `samples`: entries of the data set.
    pub(super) fn new(tiers: DriverTiers, samples: u64) -> Self {
        Self {
            ram: tiers.ram,
            disk: tiers.disk,
            copies: DiskCopies::new(tiers.copies),
            completions: tiers.completions,
            capacity: tiers.share.capacity(),
            share: tiers.share,
            in_memory: 0,
            samples,
        }
    }

    pub(super) fn ram_at(&self, tier: TierIndex) -> Option<&Arc<RamTier>> {
        self.ram.as_ref().filter(|_| tier == TierIndex(0))
    }

    pub(super) fn ram_index(&self) -> Option<TierIndex> {
        self.ram.as_ref().map(|_| TierIndex(0))
    }

    pub(super) fn disk_index(&self) -> Option<TierIndex> {
        self.disk.as_ref().map(|_| TierIndex(u8::from(self.ram.is_some())))
    }

    /// The memory tier has stored a sample.
    pub(super) const fn note_stored(&mut self) {
        self.in_memory += 1;
    }

    /// The memory tier has lost or dropped a sample.
    pub(super) const fn note_dropped(&mut self) {
        self.in_memory = self.in_memory.saturating_sub(1);
    }

    /// Whether every sample of the data set is in memory.
    pub(super) const fn all_in_memory(&self) -> bool {
        self.in_memory == self.samples
    }

    /// The capacity of the memory tier, if it has changed since the last call: other loaders join and leave.
    pub(super) fn take_capacity_change(&mut self) -> Option<(TierIndex, Bytes)> {
        let (tier, capacity) = (self.ram_index()?, self.share.capacity());
        (std::mem::replace(&mut self.capacity, capacity) != capacity).then_some((tier, capacity))
    }

    /// Move ended operations to `done`.
    pub(super) fn drain(&self, done: &mut Vec<Done>) {
        self.completions.drain(done);
    }

    /// Take the copies that the disk tier refused, once one of its operations has ended. Before that it would refuse
    /// them again.
    pub(super) fn take_refused(&mut self) -> VecDeque<u64> {
        let copies = &mut self.copies;
        if copies.refused.is_empty() || !(self.completions.take_writable() | copies.has_progress) {
            return VecDeque::new();
        }
        copies.has_progress = false;
        std::mem::take(&mut copies.refused)
    }
}
