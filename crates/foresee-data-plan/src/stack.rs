// SPDX-License-Identifier: Apache-2.0
//! All tiers of a rank: which of them share the samples out, and which hold them on top of another.
//!
//! Where the slowest tier has no room for the whole data set, every sample lies in one tier at most, so that all of
//! them together hold as much as they can (*exclusive*): one planner sees to them. Where it has, it keeps everything,
//! and the faster ones hold copies on top (*inclusive*): nothing is lost by it within the run, a copy moves up as soon as
//! it is read, and the next run finds the whole data set. Then each side has a planner of its own.
//!
//! Apart from the planner, to which the tiers below its own are simply where a miss reads. Refuses to decide any access
//! itself.

use std::sync::Arc;

use foresee_units::{Bytes, SampleId};

use crate::error::PlanError;
use crate::planner::{Access, Planner, PlannerConfig, Source};
use crate::room::{SampleSizes, TierIndex};

/// A set of local tiers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierSet(u8);

impl TierSet {
    /// Most tiers that a set can tell apart.
    const MOST: u8 = 8;

    /// The set of one.
    pub const fn of(tier: TierIndex) -> Self {
        Self(1 << tier.0)
    }

    /// Whether `tier` is in it.
    pub const fn contains(self, tier: TierIndex) -> bool {
        self.0 & Self::of(tier).0 != 0
    }

    /// Whether none is in it.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Adds all of `others`.
    pub const fn add(&mut self, others: Self) {
        self.0 |= others.0;
    }

    /// Takes `tier` out; whether it was in.
    pub const fn remove(&mut self, tier: TierIndex) -> bool {
        let was_in = self.contains(tier);
        self.0 &= !Self::of(tier).0;
        was_in
    }

    /// Those in it, fastest first.
    pub fn iter(self) -> impl Iterator<Item = TierIndex> {
        (0..Self::MOST).map(TierIndex).filter(move |&tier| self.contains(tier))
    }
}

/// One planned access, as [`Access`] says; several tiers may keep its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StackAccess {
    /// The sample to read.
    pub sample: SampleId,
    /// Where it is read.
    pub source: Source,
    /// The tiers that keep what is read; none for a hit in the fastest, and for a bypass.
    pub keep: TierSet,
    /// Copies to drop before the new ones are written. Never the sample itself.
    pub evict: Vec<(SampleId, TierIndex)>,
}

/// Plans all tiers of this rank. Facts and queries are those of [`Planner`]; tiers are numbered over all of them.
#[derive(Debug)]
pub struct PlannerStack {
    /// Fastest first; all are told the same order.
    layers: Vec<Layer>,
    access: Access,
}

#[derive(Debug)]
struct Layer {
    planner: Planner,
    /// Its tiers' numbers among all: from here, up to there.
    first: u8,
    end: u8,
}

impl PlannerStack {
    /// A stack that holds nothing and knows no order yet.
    ///
    /// # Errors
    /// As [`Planner::new`]; more than 8 tiers are too many.
    pub fn new(config: &PlannerConfig, sizes: &Arc<dyn SampleSizes>) -> Result<Self, PlanError> {
        let tiers = &config.tiers[..];
        let count = u8::try_from(tiers.len())
            .ok()
            .filter(|&count| count <= TierSet::MOST)
            .ok_or(PlanError::TooManyTiers { count: tiers.len(), most: usize::from(TierSet::MOST) })?;
        let layer = |first: u8, end: u8, share: u64| -> Result<Layer, PlanError> {
            let table_budget = Bytes::new(config.table_budget.get() / share);
            let tiers = tiers[usize::from(first)..usize::from(end)].to_vec();
            let config = PlannerConfig { tiers, policy: config.policy, table_budget };
            Ok(Layer { planner: Planner::new(config, Arc::clone(sizes))?, first, end })
        };
        let mut layers = Vec::new();
        if count > 1 {
            let whole = layer(count - 1, count, 2)?;
            if whole.planner.is_roomy() {
                layers = vec![layer(0, count - 1, 2)?, whole];
            }
        }
        if layers.is_empty() {
            layers.push(layer(0, count, 1)?);
        }
        Ok(Self { layers, access: Access::default() })
    }

    /// As [`Planner::handle_held`].
    pub fn handle_held(&mut self, id: SampleId, tier: TierIndex) -> bool {
        self.layer_of(tier).is_some_and(|(layer, own)| layer.planner.handle_held(id, own))
    }

    /// As [`Planner::wants_epoch`]: the fastest tiers, which are short of room first, want to see the farthest.
    pub fn wants_epoch(&self) -> bool {
        self.layers[0].planner.wants_epoch()
    }

    /// As [`Planner::handle_epoch`].
    ///
    /// # Panics
    /// As there.
    pub fn handle_epoch(&mut self, ids: &mut dyn Iterator<Item = SampleId>) {
        if let [only] = &mut self.layers[..] {
            return only.planner.handle_epoch(ids);
        }
        let ids: Vec<SampleId> = ids.collect();
        for layer in &mut self.layers {
            layer.planner.handle_epoch(&mut ids.iter().copied());
        }
    }

    /// As [`Planner::handle_end`].
    pub fn handle_end(&mut self) {
        for layer in &mut self.layers {
            layer.planner.handle_end();
        }
    }

    /// As [`Planner::poll_access`]: read at the fastest tier that has the sample, and kept by all faster ones that want it.
    pub fn poll_access(&mut self, out: &mut StackAccess) -> bool {
        let Self { layers, access, .. } = self;
        out.evict.clear();
        let (mut source, mut keep) = (Source::Origin, TierSet::default());
        for (depth, layer) in layers.iter_mut().enumerate() {
            if !layer.planner.poll_access(access) {
                debug_assert!(depth == 0, "all layers were told the same order");
                return false;
            }
            out.sample = access.sample;
            out.evict.extend(access.evict.iter().map(|&(id, own)| (id, layer.outer(own))));
            match (source, access.source) {
                (Source::Origin, Source::Tier(own)) => source = Source::Tier(layer.outer(own)),
                (Source::Origin, Source::Origin) => {
                    keep.add(access.keep.map_or_else(TierSet::default, |own| TierSet::of(layer.outer(own))));
                }
                // A faster tier gives the bytes, and nothing is written to a slower one for it: what that one has lost
                // it gets with the next read from below.
                (Source::Tier(_), _) => {
                    if let Some(own) = access.keep {
                        layer.planner.handle_lost(access.sample, own);
                    }
                }
            }
        }
        (out.source, out.keep) = (source, keep);
        true
    }

    /// As [`Planner::handle_lost`].
    pub fn handle_lost(&mut self, id: SampleId, tier: TierIndex) {
        if let Some((layer, own)) = self.layer_of(tier) {
            layer.planner.handle_lost(id, own);
        }
    }

    /// As [`Planner::handle_room`].
    pub fn handle_room(
        &mut self,
        tier: TierIndex,
        capacity: Bytes,
        evicted: &mut Vec<(SampleId, TierIndex)>,
    ) {
        if let Some((layer, own)) = self.layer_of(tier) {
            let known = evicted.len();
            layer.planner.handle_room(own, capacity, evicted);
            for (_, tier) in &mut evicted[known..] {
                *tier = layer.outer(*tier);
            }
        }
    }

    /// As [`Planner::handle_restart`].
    pub fn handle_restart(&mut self) {
        for layer in &mut self.layers {
            layer.planner.handle_restart();
        }
    }

    /// Whether `tier` holds the sample, as of the last polled access.
    pub fn holds(&self, id: SampleId, tier: TierIndex) -> bool {
        self.layers
            .iter()
            .any(|layer| layer.own(tier).is_some_and(|own| layer.planner.holds(id) == Some(own)))
    }

    /// As [`Planner::used`].
    pub fn used(&self, tier: TierIndex) -> Bytes {
        let found = self.layers.iter().find_map(|layer| Some(layer.planner.used(layer.own(tier)?)));
        found.unwrap_or(Bytes::ZERO)
    }

    /// Bytes of all tables at present.
    pub fn table_bytes(&self) -> Bytes {
        self.layers.iter().map(|layer| layer.planner.table_bytes()).sum()
    }

    /// As [`Planner::plan_hash`], over all layers.
    pub fn plan_hash(&self) -> u64 {
        self.layers.iter().fold(0, |hash: u64, layer| hash.rotate_left(1) ^ layer.planner.plan_hash())
    }

    fn layer_of(&mut self, tier: TierIndex) -> Option<(&mut Layer, TierIndex)> {
        self.layers.iter_mut().find_map(|layer| layer.own(tier).map(|own| (layer, own)))
    }
}

impl Layer {
    /// A tier's number among this layer's, if it is one of them.
    fn own(&self, tier: TierIndex) -> Option<TierIndex> {
        (self.first..self.end).contains(&tier.0).then(|| TierIndex(tier.0 - self.first))
    }

    fn outer(&self, own: TierIndex) -> TierIndex {
        TierIndex(self.first + own.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choice::PolicyChoice;
    use crate::room::TierRoom;

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

    fn stack(samples: u64, capacities: [u64; 2]) -> PlannerStack {
        let room = |capacity| TierRoom { capacity: Bytes::new(capacity), align: 1, overhead: Bytes::ZERO };
        let config = PlannerConfig {
            tiers: capacities.map(room).to_vec(),
            policy: PolicyChoice::Auto,
            table_budget: Bytes::new(1 << 20),
        };
        let sizes: Arc<dyn SampleSizes> = Arc::new(Ones(samples));
        PlannerStack::new(&config, &sizes).expect("a small plan")
    }

    fn plan(stack: &mut PlannerStack, ids: &[u64]) -> Vec<(Source, TierSet)> {
        stack.handle_epoch(&mut ids.iter().copied().map(SampleId));
        let mut access = StackAccess::default();
        let mut planned = Vec::new();
        while stack.poll_access(&mut access) {
            planned.push((access.source, access.keep));
        }
        planned
    }

    fn both() -> TierSet {
        let mut both = TierSet::of(RAM);
        both.add(TierSet::of(DISK));
        both
    }

    #[test]
    fn a_tier_with_room_for_all_keeps_all_and_the_faster_one_copies_on_top() {
        let mut stack = stack(3, [2, 3]);
        let first = plan(&mut stack, &[0, 1, 2]);
        assert_eq!(first.iter().map(|(_, keep)| keep.contains(DISK)).collect::<Vec<_>>(), [true; 3]);
        assert_eq!((first[0].1, stack.used(RAM), stack.used(DISK)), (both(), Bytes::new(2), Bytes::new(3)));
        let second = plan(&mut stack, &[0, 1, 2]);
        let from: Vec<_> = second.iter().map(|&(source, _)| source).collect();
        assert!(!from.contains(&Source::Origin), "{from:?}");
        assert_eq!(from.iter().filter(|&&source| source == Source::Tier(RAM)).count(), 2);
    }

    #[test]
    fn memory_on_top_is_planned_as_if_there_were_no_disk_and_the_origin_is_read_once_per_sample() {
        const SAMPLES: u64 = 97;
        let mut stacked = stack(SAMPLES, [40, SAMPLES]);
        let mut alone = stack(SAMPLES, [40, 0]);
        let mut origin = 0;
        for epoch in 1..=8 {
            // Each a walk over all samples at a stride of its own, and some of them twice.
            let ids: Vec<u64> =
                (0..SAMPLES + 30).map(|place| (place * (3 * epoch + 2) + epoch) % SAMPLES).collect();
            let (with, without) = (plan(&mut stacked, &ids), plan(&mut alone, &ids));
            for (&(source, keep), (lone, lone_keep)) in with.iter().zip(without) {
                let in_memory = Source::Tier(RAM);
                assert_eq!(
                    (source == in_memory, keep.contains(RAM)),
                    (lone == in_memory, lone_keep.contains(RAM))
                );
                origin += u64::from(source == Source::Origin);
            }
        }
        assert_eq!(origin, SAMPLES);
    }

    #[test]
    fn tiers_that_do_not_hold_all_share_the_samples_out() {
        let mut stack = stack(4, [1, 2]);
        let keeps: Vec<_> =
            plan(&mut stack, &[0, 1, 2, 3, 0, 1, 2, 3])[..4].iter().map(|&(_, keep)| keep).collect();
        let none = TierSet::default();
        assert_eq!(keeps, [TierSet::of(RAM), TierSet::of(DISK), TierSet::of(DISK), none]);
    }

    #[test]
    fn what_the_disk_has_from_an_earlier_run_moves_up_when_it_is_read() {
        let mut stack = stack(2, [2, 2]);
        assert!(stack.handle_held(SampleId(0), DISK) && stack.handle_held(SampleId(1), DISK));
        let warm = plan(&mut stack, &[0, 1, 0, 1]);
        let (disk, ram) = ((Source::Tier(DISK), TierSet::of(RAM)), (Source::Tier(RAM), TierSet::default()));
        assert_eq!(warm, [disk, disk, ram, ram]);
    }

    #[test]
    fn a_hole_below_is_filled_with_the_next_read_from_below_and_not_before() {
        let mut stack = stack(2, [1, 2]);
        plan(&mut stack, &[0, 1, 0]);
        let holder = u64::from(!stack.holds(SampleId(0), RAM));
        stack.handle_lost(SampleId(holder), DISK);
        assert!(!stack.holds(SampleId(holder), DISK));
        assert_eq!(plan(&mut stack, &[holder]), [(Source::Tier(RAM), TierSet::default())]);
        assert!(!stack.holds(SampleId(holder), DISK));
        stack.handle_lost(SampleId(holder), RAM);
        let again = plan(&mut stack, &[holder, holder]);
        assert_eq!((again[0].0, again[0].1.contains(DISK)), (Source::Origin, true));
    }

    #[test]
    fn a_tier_that_shrinks_names_its_victims_by_its_own_number() {
        let mut stack = stack(3, [1, 3]);
        plan(&mut stack, &[0, 1, 2]);
        let mut evicted = Vec::new();
        stack.handle_room(DISK, Bytes::new(1), &mut evicted);
        assert_eq!(evicted.iter().map(|&(_, tier)| tier).collect::<Vec<_>>(), [DISK, DISK]);
        assert_eq!(stack.used(DISK), Bytes::new(1));
    }
}
