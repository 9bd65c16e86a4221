// SPDX-License-Identifier: Apache-2.0
//! All tiers of a rank, and their relation: tiers that share the samples, and tiers that cache on top of another.
//!
//! Normally a sample is in one tier at most, so that all tiers together hold as much as possible (*exclusive*),
//! and the planner manages all of them. If the slowest tier outlives the run and can hold the whole data set, it
//! stores all samples from the origin, and the faster ones cache on top (*inclusive*). This costs nothing within
//! the run: a copy moves up as soon as it is read, and the next run finds the whole data set.
//!
//! For the planner, storage below its tiers is the source of a miss. A tier that stores everything needs no
//! decisions.

use std::sync::Arc;

use foresee_units::{Bytes, SampleId};

use crate::access_planner::StorageBelow;
use crate::capacity::{SampleSizes, TierCapacity, TierIndex, TierUsage, all_fit};
use crate::error::PlanError;
use crate::planner::{Access, PlannedSource, Planner, PlannerConfig};
use crate::read_group::GroupStart;

/// A set of local tiers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierSet(u8);

impl TierSet {
    /// Maximum number of tiers in a set.
    const MAX: u8 = 8;

    /// The set of one tier.
    pub const fn of(tier: TierIndex) -> Self {
        Self(1 << tier.0)
    }

    /// Whether `tier` is in the set.
    pub const fn contains(self, tier: TierIndex) -> bool {
        self.0 & Self::of(tier).0 != 0
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Add all tiers of `others`.
    pub const fn add(&mut self, others: Self) {
        self.0 |= others.0;
    }

    /// Remove `tier`; return whether it was in the set.
    pub const fn remove(&mut self, tier: TierIndex) -> bool {
        let was_in = self.contains(tier);
        self.0 &= !Self::of(tier).0;
        was_in
    }

    /// The tiers, fastest first.
    pub fn iter(self) -> impl Iterator<Item = TierIndex> {
        (0..Self::MAX).map(TierIndex).filter(move |&tier| self.contains(tier))
    }
}

/// One planned access, as [`Access`], with a set of caching tiers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HierarchyAccess {
    /// The sample to read.
    pub sample: SampleId,
    /// Its source.
    pub source: PlannedSource,
    /// The tiers that cache the bytes; none for a hit in the fastest, and for a bypass.
    pub fills: TierSet,
    /// Copies to evict before the new ones are written; never the sample itself.
    pub evict: Vec<(SampleId, TierIndex)>,
    /// Small neighbours to read from the origin together with the sample, and the tiers that cache them; after that they are
    /// held. Empty unless the source is the origin.
    pub ahead: Vec<(SampleId, TierSet)>,
}

/// The lifetime of the slowest tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowestTier {
    /// It ends with the run.
    OfThisRun,
    /// It outlives the run, so its copies serve the next one.
    Durable,
    /// It serves its initial copies; none is added.
    ReadOnly,
}

/// Plans all tiers of this rank. Reports and queries are those of [`Planner`]; tiers have one common numbering.
#[derive(Debug)]
pub struct HierarchyPlanner {
    planner: Planner,
    access: Access,
    /// The slowest tier, if it is planned without evictions.
    backing: Option<BackingTier>,
    group_start: GroupStart,
}

impl HierarchyPlanner {
    /// Create a planner without copies and order.
    ///
    /// # Errors
    /// As [`Planner::new`]; more than 8 tiers are too many.
    pub fn new(
        mut config: PlannerConfig,
        slowest: SlowestTier,
        sizes: Arc<dyn SampleSizes>,
    ) -> Result<Self, PlanError> {
        let count = config.tiers.len();
        let last = u8::try_from(count.saturating_sub(1)).ok().filter(|&last| last < TierSet::MAX);
        let Some(last) = last.map(TierIndex) else {
            return Err(PlanError::TooManyTiers { count, most: usize::from(TierSet::MAX) });
        };
        let backing = match slowest {
            SlowestTier::OfThisRun => None,
            SlowestTier::Durable => config.tiers.pop_if(|tier| all_fit(&*sizes, *tier)),
            SlowestTier::ReadOnly => config.tiers.pop(),
        };
        let is_read_only = slowest == SlowestTier::ReadOnly;
        let backing = backing.map(|limits| BackingTier::new(last, limits, is_read_only, Arc::clone(&sizes)));
        let group_start = GroupStart::new(sizes.count());
        Ok(Self { planner: Planner::new(config, sizes)?, access: Access::default(), backing, group_start })
    }

    /// As [`Planner::handle_held`].
    pub fn handle_held(&mut self, id: SampleId, tier: TierIndex) -> bool {
        match self.backing_at(tier) {
            Some(backing) => !backing.holds(id) && backing.store(id),
            None => self.planner.handle_held(id, tier),
        }
    }

    /// As [`Planner::wants_epoch`].
    pub fn wants_epoch(&self) -> bool {
        self.planner.wants_epoch()
    }

    /// As [`Planner::handle_epoch`].
    ///
    /// # Panics
    /// As there.
    pub fn handle_epoch(&mut self, ids: &mut dyn Iterator<Item = SampleId>) {
        self.planner.handle_epoch(ids);
    }

    /// As [`Planner::handle_end`].
    pub fn handle_end(&mut self) {
        self.planner.handle_end();
    }

    /// As [`Planner::poll_access`]: the source is the fastest tier with the sample, and all faster tiers that
    /// want it cache it.
    pub fn poll_access(&mut self, out: &mut HierarchyAccess) -> bool {
        if !self.planner.poll_access(&mut self.access) {
            return false;
        }
        let Access { sample, source, fill, evict, .. } = &mut self.access;
        (out.sample, out.source) = (*sample, *source);
        out.fills = fill.map_or_else(TierSet::default, TierSet::of);
        out.evict.clear();
        out.evict.append(evict);
        // A hit in a faster tier is not written to the slowest: a copy lost there is restored by the next read
        // from below.
        if let Some(backing) = &mut self.backing
            && out.source == PlannedSource::Origin
        {
            if backing.holds(out.sample) {
                out.source = PlannedSource::Tier(backing.tier);
            } else if !backing.is_read_only && backing.store(out.sample) {
                out.fills.add(TierSet::of(backing.tier));
            }
        }
        out.ahead.clear();
        if out.source == PlannedSource::Origin && self.group_start.is_grouped() {
            self.planner.read_ahead(out.sample, &mut self.backing, &mut out.ahead);
            if !out.ahead.is_empty() {
                self.group_start.handle_group();
            }
        }
        true
    }

    /// As [`Planner::handle_lost`].
    pub fn handle_lost(&mut self, id: SampleId, tier: TierIndex) {
        match self.backing_at(tier) {
            Some(backing) => backing.remove(id),
            None => self.planner.handle_lost(id, tier),
        }
    }

    /// As [`Planner::handle_capacity`].
    pub fn handle_capacity(
        &mut self,
        tier: TierIndex,
        capacity: Bytes,
        evicted: &mut Vec<(SampleId, TierIndex)>,
    ) {
        match self.backing_at(tier) {
            Some(backing) => backing.resize(capacity, evicted),
            None => self.planner.handle_capacity(tier, capacity, evicted),
        }
    }

    /// As [`Planner::handle_restart`].
    pub fn handle_restart(&mut self) {
        self.planner.handle_restart();
        self.group_start.restart();
    }

    /// Whether `tier` holds the sample, as of the last polled access.
    pub fn holds(&self, id: SampleId, tier: TierIndex) -> bool {
        let backing = self.backing.as_ref().is_some_and(|backing| backing.tier == tier && backing.holds(id));
        backing || self.planner.holds(id) == Some(tier)
    }

    /// As [`Planner::used`].
    pub fn used(&self, tier: TierIndex) -> Bytes {
        match &self.backing {
            Some(backing) if backing.tier == tier => backing.usage.used,
            _ => self.planner.used(tier),
        }
    }

    /// Bytes of all tables.
    pub fn table_bytes(&self) -> Bytes {
        self.planner.table_bytes() + self.backing.as_ref().map_or(Bytes::ZERO, BackingTier::table_bytes)
    }

    /// As [`Planner::plan_hash`]. The copies of the slowest tier follow from the same order and reports.
    pub fn plan_hash(&self) -> u64 {
        self.planner.plan_hash()
    }

    fn backing_at(&mut self, tier: TierIndex) -> Option<&mut BackingTier> {
        self.backing.as_mut().filter(|backing| backing.tier == tier)
    }
}

/// A tier without evictions: it can hold everything, or serves its initial copies only.
struct BackingTier {
    tier: TierIndex,
    /// Whether nothing is added to the initial copies.
    is_read_only: bool,
    usage: TierUsage,
    sizes: Arc<dyn SampleSizes>,
    /// One bit per sample.
    held: Vec<u64>,
}

impl BackingTier {
    fn new(tier: TierIndex, limits: TierCapacity, is_read_only: bool, sizes: Arc<dyn SampleSizes>) -> Self {
        let words = usize::try_from(sizes.count().div_ceil(64)).unwrap_or(usize::MAX);
        Self { tier, is_read_only, usage: TierUsage::new(limits), sizes, held: vec![0; words] }
    }

    fn holds(&self, id: SampleId) -> bool {
        let (word, bit) = bit_of(id);
        self.held.get(word).is_some_and(|held| held & bit != 0)
    }

    /// Store a sample that is not held; `false` if it does not fit or does not exist.
    fn store(&mut self, id: SampleId) -> bool {
        if id.0 >= self.sizes.count() {
            return false;
        }
        let size = self.sizes.size(id);
        let fits = self.usage.limits.cost(size) <= self.usage.free();
        if fits {
            let (word, bit) = bit_of(id);
            self.held[word] |= bit;
            self.usage.add(size);
        }
        fits
    }

    fn remove(&mut self, id: SampleId) {
        if self.holds(id) {
            let (word, bit) = bit_of(id);
            self.held[word] &= !bit;
            self.usage.remove(self.sizes.size(id));
        }
    }

    /// Any copies may be evicted when space is short, because all are equal; those of the highest ids are.
    fn resize(&mut self, capacity: Bytes, evicted: &mut Vec<(SampleId, TierIndex)>) {
        self.usage.limits.capacity = capacity;
        let mut ids = (0..self.sizes.count()).rev().map(SampleId);
        while self.usage.used > capacity
            && let Some(id) = ids.next()
        {
            if self.holds(id) {
                self.remove(id);
                evicted.push((id, self.tier));
            }
        }
    }

    fn table_bytes(&self) -> Bytes {
        Bytes::new(8 * self.held.capacity() as u64)
    }
}

impl StorageBelow for Option<BackingTier> {
    fn is_writable(&self) -> bool {
        self.as_ref().is_some_and(|backing| !backing.is_read_only)
    }

    fn holds(&self, id: SampleId) -> bool {
        self.as_ref().is_some_and(|backing| backing.holds(id))
    }

    fn store(&mut self, id: SampleId) -> TierSet {
        let is_writable = self.is_writable();
        let backing = self.as_mut().filter(|_| is_writable);
        backing
            .and_then(|backing| backing.store(id).then_some(backing.tier))
            .map_or_else(TierSet::default, TierSet::of)
    }
}

impl std::fmt::Debug for BackingTier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackingTier")
            .field("tier", &self.tier)
            .field("usage", &self.usage)
            .finish_non_exhaustive()
    }
}

fn bit_of(id: SampleId) -> (usize, u64) {
    (usize::try_from(id.0 / 64).unwrap_or(usize::MAX), 1 << (id.0 % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::PolicyChoice;

    const RAM: TierIndex = TierIndex(0);
    const DISK: TierIndex = TierIndex(1);

    struct Ones(u64);

    impl SampleSizes for Ones {
        fn count(&self) -> u64 {
            self.0
        }
        fn size(&self, _: SampleId) -> Bytes {
            Bytes::new(1)
        }
        fn uniform(&self) -> Option<Bytes> {
            Some(Bytes::new(1))
        }
    }

    fn hierarchy(samples: u64, capacities: [u64; 2], slowest: SlowestTier) -> HierarchyPlanner {
        let tier =
            |capacity| TierCapacity { capacity: Bytes::new(capacity), align: 1, overhead: Bytes::ZERO };
        let config = PlannerConfig {
            tiers: capacities.map(tier).to_vec(),
            policy: PolicyChoice::Auto,
            table_budget: Bytes::new(1 << 20),
        };
        HierarchyPlanner::new(config, slowest, Arc::new(Ones(samples))).expect("a small plan")
    }

    #[test]
    fn a_read_only_tier_serves_its_copies_and_gets_no_new_ones() {
        let mut planner = hierarchy(4, [1, 2], SlowestTier::ReadOnly);
        assert!(planner.handle_held(SampleId(1), DISK) && planner.handle_held(SampleId(3), DISK));
        let sources: Vec<_> = plan(&mut planner, &[0, 1, 2, 3])
            .into_iter()
            .map(|(source, fills)| {
                assert!(!fills.contains(DISK));
                source
            })
            .collect();
        let disk = PlannedSource::Tier(DISK);
        assert_eq!(sources, [PlannedSource::Origin, disk, PlannedSource::Origin, disk]);
        // A damaged copy is not replaced.
        planner.handle_lost(SampleId(1), DISK);
        planner.handle_end();
        assert!(!planner.holds(SampleId(1), DISK) && planner.holds(SampleId(3), DISK));
    }

    fn plan(planner: &mut HierarchyPlanner, ids: &[u64]) -> Vec<(PlannedSource, TierSet)> {
        planner.handle_epoch(&mut ids.iter().copied().map(SampleId));
        let mut access = HierarchyAccess::default();
        let mut planned = Vec::new();
        while planner.poll_access(&mut access) {
            planned.push((access.source, access.fills));
        }
        planned
    }

    fn both() -> TierSet {
        let mut both = TierSet::of(RAM);
        both.add(TierSet::of(DISK));
        both
    }

    #[test]
    fn a_tier_with_capacity_for_all_stores_all_and_the_faster_one_caches_on_top() {
        let mut planner = hierarchy(3, [2, 3], SlowestTier::Durable);
        let first = plan(&mut planner, &[0, 1, 2]);
        assert_eq!(first.iter().map(|(_, fills)| fills.contains(DISK)).collect::<Vec<_>>(), [true; 3]);
        assert_eq!(
            (first[0].1, planner.used(RAM), planner.used(DISK)),
            (both(), Bytes::new(2), Bytes::new(3))
        );
        let second = plan(&mut planner, &[0, 1, 2]);
        let from: Vec<_> = second.iter().map(|&(source, _)| source).collect();
        assert!(!from.contains(&PlannedSource::Origin), "{from:?}");
        assert_eq!(from.iter().filter(|&&source| source == PlannedSource::Tier(RAM)).count(), 2);
    }

    #[test]
    fn memory_on_top_is_planned_as_if_there_were_no_disk_and_the_origin_is_read_once_per_sample() {
        const SAMPLES: u64 = 97;
        let mut inclusive = hierarchy(SAMPLES, [40, SAMPLES], SlowestTier::Durable);
        let mut alone = hierarchy(SAMPLES, [40, 0], SlowestTier::Durable);
        let mut origin = 0;
        for epoch in 1..=8 {
            // Each epoch goes over all samples at a stride of its own, and reads some of them twice.
            let ids: Vec<u64> =
                (0..SAMPLES + 30).map(|position| (position * (3 * epoch + 2) + epoch) % SAMPLES).collect();
            let (with, without) = (plan(&mut inclusive, &ids), plan(&mut alone, &ids));
            for (&(source, fills), (lone, lone_fills)) in with.iter().zip(without) {
                let in_memory = PlannedSource::Tier(RAM);
                assert_eq!(
                    (source == in_memory, fills.contains(RAM)),
                    (lone == in_memory, lone_fills.contains(RAM))
                );
                origin += u64::from(source == PlannedSource::Origin);
            }
        }
        assert_eq!(origin, SAMPLES);
    }

    #[test]
    fn tiers_that_cannot_hold_everything_share_the_samples() {
        let mut planner = hierarchy(4, [1, 2], SlowestTier::Durable);
        let fills: Vec<_> =
            plan(&mut planner, &[0, 1, 2, 3, 0, 1, 2, 3])[..4].iter().map(|&(_, fills)| fills).collect();
        let none = TierSet::default();
        assert_eq!(fills, [TierSet::of(RAM), TierSet::of(DISK), TierSet::of(DISK), none]);
    }

    #[test]
    fn copies_on_disk_from_an_earlier_run_move_up_when_they_are_read() {
        let mut planner = hierarchy(2, [2, 2], SlowestTier::Durable);
        assert!(planner.handle_held(SampleId(0), DISK) && planner.handle_held(SampleId(1), DISK));
        let warm = plan(&mut planner, &[0, 1, 0, 1]);
        let (disk, ram) =
            ((PlannedSource::Tier(DISK), TierSet::of(RAM)), (PlannedSource::Tier(RAM), TierSet::default()));
        assert_eq!(warm, [disk, disk, ram, ram]);
    }

    #[test]
    fn a_lost_copy_is_restored_by_the_next_read_from_below() {
        let mut planner = hierarchy(2, [1, 2], SlowestTier::Durable);
        plan(&mut planner, &[0, 1, 0]);
        let holder = u64::from(!planner.holds(SampleId(0), RAM));
        planner.handle_lost(SampleId(holder), DISK);
        assert!(!planner.holds(SampleId(holder), DISK));
        assert_eq!(plan(&mut planner, &[holder]), [(PlannedSource::Tier(RAM), TierSet::default())]);
        assert!(!planner.holds(SampleId(holder), DISK));
        planner.handle_lost(SampleId(holder), RAM);
        let again = plan(&mut planner, &[holder, holder]);
        assert_eq!((again[0].0, again[0].1.contains(DISK)), (PlannedSource::Origin, true));
    }

    #[test]
    fn a_reduced_tier_reports_its_victims_with_its_own_number() {
        let mut planner = hierarchy(3, [1, 3], SlowestTier::Durable);
        plan(&mut planner, &[0, 1, 2]);
        let mut evicted = Vec::new();
        planner.handle_capacity(DISK, Bytes::new(1), &mut evicted);
        assert_eq!(evicted.iter().map(|&(_, tier)| tier).collect::<Vec<_>>(), [DISK, DISK]);
        assert_eq!(planner.used(DISK), Bytes::new(1));
    }
}
