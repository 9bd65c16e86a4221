// SPDX-License-Identifier: Apache-2.0
//! The caches as the driver uses them: memory and disk, copies on their way to the disk, and the memory that is theirs.

use std::collections::VecDeque;
use std::sync::Arc;

use foresee_data_plan::TierIndex;
use foresee_data_tier::{Completions, DiskTier, Done, RamTier};
use foresee_units::Bytes;

use super::Places;
use super::cache_fill::DiskCopies;
use crate::cache::Member;

/// The caches in the planner's order: memory first, then disk.
#[derive(Debug)]
pub(super) struct CacheTiers {
    pub(super) ram: Option<Arc<RamTier>>,
    pub(super) disk: Option<Arc<DiskTier>>,
    pub(super) copies: DiskCopies,
    completions: Completions,
    member: Arc<Member>,
    /// Bytes of memory that the planner counts on.
    capacity: Bytes,
    /// Samples that the memory tier has taken and not lost, of so many.
    in_memory: u64,
    samples: u64,
}

impl CacheTiers {
    /// `samples`: entries of the data set.
    pub(super) fn new(places: Places, member: Arc<Member>, samples: u64) -> Self {
        Self {
            ram: places.ram,
            disk: places.disk,
            copies: DiskCopies::new(places.copies),
            completions: places.completions,
            capacity: member.capacity(),
            member,
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

    /// The memory tier has taken a sample.
    pub(super) const fn note_stored(&mut self) {
        self.in_memory += 1;
    }

    /// The memory tier has lost or dropped a sample.
    pub(super) const fn note_dropped(&mut self) {
        self.in_memory = self.in_memory.saturating_sub(1);
    }

    /// Whether every sample of the data set is in memory.
    pub(super) const fn hold_all_in_memory(&self) -> bool {
        self.in_memory == self.samples
    }

    /// The memory of this loader, if it has changed since the last call: other loaders come and go.
    pub(super) fn take_capacity_change(&mut self) -> Option<(TierIndex, Bytes)> {
        let (tier, capacity) = (self.ram_index()?, self.member.capacity());
        (std::mem::replace(&mut self.capacity, capacity) != capacity).then_some((tier, capacity))
    }

    /// Takes the ends of operations into `done`.
    pub(super) fn drain(&self, done: &mut Vec<Done>) {
        self.completions.drain(done);
    }

    /// Writes that the disk tier refused, once something there has ended since they were last offered. Before that it
    /// would refuse them again.
    pub(super) fn take_refused(&mut self) -> VecDeque<u64> {
        if self.copies.has_refused() && (self.completions.take_nudge() | self.copies.has_moved()) {
            self.copies.take_refused()
        } else {
            VecDeque::new()
        }
    }
}
