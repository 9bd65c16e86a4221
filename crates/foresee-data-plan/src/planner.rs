// SPDX-License-Identifier: Apache-2.0
//! The planner's face: facts go in through `handle_*`, planned accesses come out of `poll_access`.
//!
//! Apart from the walk, so that what the engine may say and ask stands on one page. One planner plans the
//! tiers of one rank.

use std::fmt;
use std::sync::Arc;

use foresee_units::{Bytes, SampleId};

use crate::choice::{Policy, PolicyChoice, choose};
use crate::error::PlanError;
use crate::next_use::{BYTES_PER_ACCESS, NONE, NextUse, WINDOW_MAX, narrow};
use crate::room::{Room, SampleSizes, TierIndex, TierRoom, cost_of_all};
use crate::victims::NOWHERE;
use crate::walk::Walk;

/// A window has room for an epoch of one rank alone; the tables would then take 17 GB.
const SAMPLES_MAX: u64 = WINDOW_MAX;
/// Of a tier byte, 255 means "nowhere" and 254 marks an eviction in the hash.
const TIERS_MAX: usize = 254;
/// How far ahead next uses are worth knowing, in accesses per sample of the data set. A rank of N meets
/// each sample once in N epochs on average, whatever N: once per as many accesses as there are samples.
/// After four times as many, e^-4 = 2 % of the samples have not come up, and those sort last anyway.
const HORIZON_ACCESSES_PER_SAMPLE: u64 = 4;

/// What a planner is given at its start.
#[derive(Clone, Debug)]
pub struct PlannerConfig {
    /// The local tiers, fastest first; none means that every access reads the origin.
    pub tiers: Vec<TierRoom>,
    /// Who leaves when room is short.
    pub policy: PolicyChoice,
    /// Bounds the look-ahead: 8 bytes per announced access. One epoch is always accepted, however small
    /// the budget; the tables by sample (9 bytes each) come on top, see [`Planner::table_bytes`].
    pub table_budget: Bytes,
}

/// Where an access reads its sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// From a local tier that holds it.
    Tier(TierIndex),
    /// From the origin.
    #[default]
    Origin,
}

/// One planned access. To be carried out in this order: read, evict, keep; then no tier ever exceeds
/// its room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Number of the access, from 0, counted over the whole life of the planner.
    pub seq: u64,
    /// The sample to read.
    pub sample: SampleId,
    /// Where it is read.
    pub source: Source,
    /// The tier that keeps the bytes read from the origin; `None` for a hit, and for a bypass.
    pub keep: Option<TierIndex>,
    /// When this sample is used next.
    pub next_use: NextUse,
    /// Copies to drop before `keep` is written. Never the sample itself.
    pub evict: Vec<(SampleId, TierIndex)>,
}

impl Default for Access {
    /// A place to plan into.
    fn default() -> Self {
        Self {
            seq: 0,
            sample: SampleId(0),
            source: Source::Origin,
            keep: None,
            next_use: NextUse::Unknown,
            evict: Vec::new(),
        }
    }
}

/// Plans this rank's accesses, one after the other, from what was announced.
///
/// The plan depends on what is known when an access is polled, so announce first: as long as
/// [`wants_epoch`](Self::wants_epoch) says so and the order has one, hand it the next epoch; then poll.
///
/// Two things are left to the engine. It polls ahead of consumption and may carry out an access late,
/// early or never: what of the plan did not come true it reports with [`handle_lost`](Self::handle_lost).
/// And a copy leaves a tier at its place in the plan: whoever still has to read it for an earlier access
/// reads first.
///
/// A copy is never moved between its tiers. A move reads one tier and writes another to spare, at best, one
/// read of the slower one; the newcomer, whose bytes are in hand anyway, takes the place instead. Where a
/// tier holds everything, copies in faster ones lie on top of it: see [`PlannerStack`](crate::PlannerStack).
pub struct Planner {
    walk: Walk,
    choice: PolicyChoice,
    policy: Option<Policy>,
    /// Most accesses that the table budget lets be announced.
    affordable: u64,
    /// Room that the whole data set takes, in the tier where it takes most.
    data_cost: Bytes,
    samples: usize,
    /// Accesses of the latest epoch, and the guess for the next.
    epoch_len: u64,
    /// Whether copies found at the start are in order; facts of the start are accepted until then.
    settled: bool,
    hash: u64,
}

impl Planner {
    /// A planner that holds nothing and knows no order yet. Asks for every size once unless they are
    /// uniform.
    pub fn new(config: PlannerConfig, sizes: Arc<dyn SampleSizes>) -> Result<Self, PlanError> {
        let count = sizes.count();
        if count > SAMPLES_MAX {
            return Err(PlanError::TooManySamples { count, most: SAMPLES_MAX });
        }
        if config.tiers.len() > TIERS_MAX {
            return Err(PlanError::TooManyTiers { count: config.tiers.len(), most: TIERS_MAX });
        }
        let samples = usize::try_from(count)
            .map_err(|_| PlanError::TooManySamples { count, most: usize::MAX as u64 })?;
        let dearest =
            |size: Bytes| config.tiers.iter().map(|tier| tier.cost(size)).max().unwrap_or(Bytes::ZERO);
        let data_cost = cost_of_all(&*sizes, dearest);
        let rooms = config.tiers.into_iter().map(Room::new).collect();
        Ok(Self {
            walk: Walk::new(sizes, samples, rooms),
            choice: config.policy,
            policy: config.policy.fixed(),
            affordable: (config.table_budget.get() / BYTES_PER_ACCESS).min(WINDOW_MAX),
            data_cost,
            samples,
            epoch_len: 0,
            settled: false,
            hash: HASH_SEED,
        })
    }

    /// A tier holds this sample from an earlier run. Before the first poll only.
    ///
    /// Returns whether the planner counts on it; `false` if it does not fit, is held already, is no
    /// sample or tier of this plan, or planning has begun: then drop the copy.
    pub fn handle_held(&mut self, id: SampleId, tier: TierIndex) -> bool {
        let (Some(sample), Some(room)) = (self.sample(id), self.walk.rooms().get(usize::from(tier.0))) else {
            return false;
        };
        let fits = room.limits.cost(self.walk.size(sample)) <= room.free();
        if self.settled || !fits || self.holds(id).is_some() {
            return false;
        }
        self.walk.add(sample, tier.0);
        true
    }

    /// Whether the next epoch should be announced before the next poll: less is known than is worth
    /// knowing, and the table budget has room for as many accesses as the latest epoch had.
    ///
    /// An empty epoch changes nothing, so whoever announces epochs without end has to stop at one.
    pub fn wants_epoch(&self) -> bool {
        let ahead = self.walk.window.len() as u64;
        if self.walk.window.has_ended() {
            return false;
        }
        // Where everything fits nothing is ever evicted, and one pass ahead shows what is used again.
        let per_sample = if self.is_roomy() { 1 } else { HORIZON_ACCESSES_PER_SAMPLE };
        let horizon = self.samples as u64 * per_sample;
        ahead == 0 || (ahead < horizon && ahead + self.epoch_len <= self.affordable)
    }

    /// This rank's accesses of the next epoch, in order.
    ///
    /// # Panics
    /// If an id is not of the data set, more than 2^30 accesses are announced and not planned, or the
    /// run's end was announced before.
    pub fn handle_epoch(&mut self, ids: &mut dyn Iterator<Item = SampleId>) {
        assert!(!self.walk.window.has_ended(), "an epoch was announced after the run's end");
        self.epoch_len = self.walk.announce(ids) as u64;
    }

    /// The run ends after the announced epochs: a sample without an announced use is never used again.
    pub fn handle_end(&mut self) {
        self.walk.window.end();
    }

    /// Plans the next access into `out`, reusing its list; `false`, with `out` untouched, if none is
    /// announced.
    pub fn poll_access(&mut self, out: &mut Access) -> bool {
        if self.walk.window.len() == 0 {
            return false;
        }
        self.settle();
        if self.policy.is_none() && self.walk.is_crowded_by(0) {
            self.policy = Some(choose(&mut self.walk, self.samples));
        }
        // Before room first runs out both policies do the same.
        let policy = self.policy.unwrap_or(Policy::NextUse);
        let (id, next) = self.walk.window.access(0);
        out.evict.clear();
        let decision = self.walk.step(0, policy, &mut out.evict);
        let seq = self.walk.window.first();
        out.seq = seq;
        out.sample = SampleId(u64::from(id));
        out.source = tier(decision.source).map_or(Source::Origin, Source::Tier);
        out.keep = tier(decision.keep);
        out.next_use = match next {
            NONE if self.walk.window.has_ended() => NextUse::Never,
            NONE => NextUse::Unknown,
            next => NextUse::At(seq + self.walk.window.offset(next) as u64),
        };
        self.walk.window.advance();
        self.fold(u64::from(id) << 16 | u64::from(decision.source) << 8 | u64::from(decision.keep));
        for &(SampleId(id), TierIndex(tier)) in &out.evict {
            self.fold(id << 16 | u64::from(tier) << 8 | EVICTED);
        }
        true
    }

    /// A hole: a write failed, a copy was corrupt, or left under pressure. Nothing happens if the plan
    /// does not count on that copy.
    pub fn handle_lost(&mut self, id: SampleId, tier: TierIndex) {
        if let Some(sample) = self.sample(id)
            && self.holds(id) == Some(tier)
        {
            self.walk.remove(sample, tier.0);
        }
    }

    /// A tier's room changed: the disk is full, the memory is needed elsewhere, or there is room again.
    /// Copies that no longer fit, farthest next use first, go to the end of `evicted`. A tier that this
    /// plan does not have is passed over.
    pub fn handle_room(
        &mut self,
        tier: TierIndex,
        capacity: Bytes,
        evicted: &mut Vec<(SampleId, TierIndex)>,
    ) {
        if usize::from(tier.0) >= self.walk.rooms().len() {
            return;
        }
        self.settle();
        let known = evicted.len();
        self.walk.resize(tier.0, capacity, evicted);
        for &(SampleId(id), TierIndex(tier)) in &evicted[known..] {
            self.fold(id << 16 | u64::from(tier) << 8 | EVICTED);
        }
    }

    /// Consumption goes on elsewhere (an early break, a resume): the announced future is forgotten, the
    /// holdings and the chosen policy stay, and numbers go on where they were.
    pub fn handle_restart(&mut self) {
        self.walk.restart();
        self.epoch_len = 0;
        self.settled = false;
    }

    /// The tier that holds the sample, as of the last polled access.
    pub fn holds(&self, id: SampleId) -> Option<TierIndex> {
        tier(self.walk.place(usize::try_from(id.0).unwrap_or(usize::MAX)))
    }

    /// Room taken in a tier, overhead and alignment included, as of the last polled access.
    pub fn used(&self, tier: TierIndex) -> Bytes {
        self.walk.rooms().get(usize::from(tier.0)).map_or(Bytes::ZERO, |room| room.used)
    }

    /// The policy followed; `None` while [`PolicyChoice::Auto`] had no reason to choose, because
    /// everything found room so far.
    pub fn policy(&self) -> Option<Policy> {
        self.policy
    }

    /// Accesses announced and not yet planned.
    pub fn announced(&self) -> u64 {
        self.walk.window.len() as u64
    }

    /// Bytes of all tables at present.
    pub fn table_bytes(&self) -> Bytes {
        Bytes::new(self.walk.table_bytes())
    }

    /// A hash of every decision so far. Equal for equal inputs on every machine and in every build; not
    /// meant to withstand forgery.
    pub fn plan_hash(&self) -> u64 {
        self.hash
    }

    fn is_roomy(&self) -> bool {
        self.walk.rooms().iter().map(|room| room.limits.capacity).sum::<Bytes>() >= self.data_cost
    }

    fn sample(&self, id: SampleId) -> Option<u32> {
        usize::try_from(id.0).ok().filter(|&sample| sample < self.samples).map(narrow)
    }

    fn settle(&mut self) {
        if !self.settled {
            self.walk.settle();
            self.settled = true;
        }
    }

    fn fold(&mut self, word: u64) {
        // Multiply and fold the upper half back: each word changes all bits of what follows.
        let mixed = (self.hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash = mixed ^ (mixed >> 32);
    }
}

impl fmt::Debug for Planner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Planner")
            .field("samples", &self.samples)
            .field("rooms", &self.walk.rooms())
            .field("choice", &self.choice)
            .field("policy", &self.policy)
            .field("planned", &self.walk.window.first())
            .field("announced", &self.walk.window.len())
            .field("hash", &self.hash)
            .finish_non_exhaustive()
    }
}

/// Any value but 0, which the first word would leave at 0 for sample 0.
const HASH_SEED: u64 = 0x666f_7265_7365_6521;
/// Tells an eviction from an access in the hash; no access keeps in a tier of this number.
const EVICTED: u64 = 0xfe;

fn tier(byte: u8) -> Option<TierIndex> {
    (byte != NOWHERE).then_some(TierIndex(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sizes(Vec<u64>);

    impl SampleSizes for Sizes {
        fn count(&self) -> u64 {
            self.0.len() as u64
        }

        fn size(&self, id: SampleId) -> Bytes {
            Bytes::new(self.0[usize::try_from(id.0).unwrap()])
        }

        fn uniform(&self) -> Option<Bytes> {
            None
        }
    }

    const RAM: TierIndex = TierIndex(0);
    const DISK: TierIndex = TierIndex(1);

    fn planner(sizes: &[u64], capacities: &[u64]) -> Planner {
        let room =
            |capacity: &u64| TierRoom { capacity: Bytes::new(*capacity), align: 1, overhead: Bytes::ZERO };
        let config = PlannerConfig {
            tiers: capacities.iter().map(room).collect(),
            policy: PolicyChoice::NextUse,
            table_budget: Bytes::new(1 << 20),
        };
        Planner::new(config, Arc::new(Sizes(sizes.to_vec()))).unwrap()
    }

    fn announce(planner: &mut Planner, ids: &[u64]) {
        planner.handle_epoch(&mut ids.iter().copied().map(SampleId));
    }

    fn drain(planner: &mut Planner) -> Vec<Access> {
        std::iter::from_fn(|| {
            let mut access = Access::default();
            planner.poll_access(&mut access).then_some(access)
        })
        .collect()
    }

    fn sources(accesses: &[Access]) -> Vec<Source> {
        accesses.iter().map(|access| access.source).collect()
    }

    #[test]
    fn the_copy_used_farthest_ahead_leaves_for_one_used_sooner() {
        let mut planner = planner(&[1, 1, 1], &[2]);
        announce(&mut planner, &[0, 1, 2, 2, 0, 1]);
        planner.handle_end();
        let plan = drain(&mut planner);
        assert_eq!(plan[2].evict, [(SampleId(1), RAM)]);
        assert_eq!((plan[2].keep, plan[2].next_use), (Some(RAM), NextUse::At(3)));
        let hit = Source::Tier(RAM);
        assert_eq!(
            sources(&plan),
            [Source::Origin, Source::Origin, Source::Origin, hit, hit, Source::Origin]
        );
        assert_eq!((plan[5].keep, plan[5].next_use), (None, NextUse::Never));
    }

    #[test]
    fn no_copy_leaves_for_a_sample_used_later() {
        let mut planner = planner(&[1, 1], &[1]);
        announce(&mut planner, &[0, 1, 0, 1]);
        planner.handle_end();
        let plan = drain(&mut planner);
        assert_eq!((plan[1].keep, plan[1].evict.len()), (None, 0));
        assert_eq!(plan[2].source, Source::Tier(RAM));
    }

    #[test]
    fn the_fastest_tier_with_room_is_filled_first() {
        let mut planner = planner(&[1; 4], &[1, 2]);
        announce(&mut planner, &[0, 1, 2, 3, 0, 1, 2, 3]);
        planner.handle_end();
        let keeps: Vec<_> = drain(&mut planner)[..4].iter().map(|access| access.keep).collect();
        assert_eq!(keeps, [Some(RAM), Some(DISK), Some(DISK), None]);
    }

    #[test]
    fn without_a_known_next_use_the_most_recently_consumed_goes_first() {
        let mut planner = planner(&[1; 4], &[3]);
        announce(&mut planner, &[0, 1, 2]);
        drain(&mut planner);
        announce(&mut planner, &[3, 3]);
        let plan = drain(&mut planner);
        assert_eq!(plan[0].evict, [(SampleId(2), RAM)]);
        assert_eq!((planner.holds(SampleId(0)), planner.holds(SampleId(3))), (Some(RAM), Some(RAM)));
    }

    #[test]
    fn a_sample_larger_than_every_budget_passes_by() {
        let mut planner = planner(&[100, 1], &[10]);
        announce(&mut planner, &[0, 1, 0, 1]);
        let plan = drain(&mut planner);
        assert_eq!([plan[0].keep, plan[1].keep], [None, Some(RAM)]);
        assert_eq!(plan[2].source, Source::Origin);
    }

    #[test]
    fn several_small_copies_leave_for_a_big_one_only_if_it_pays_its_room() {
        // The big one comes back at once; the small ones hardly ever.
        let mut eager = planner(&[4, 1, 1, 1, 1], &[4]);
        announce(&mut eager, &[1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4]);
        eager.handle_end();
        assert_eq!(drain(&mut eager)[4].evict.len(), 4);
        // As many bytes saved, later, for less room: the small ones stay.
        let mut wary = planner(&[4, 1, 1, 1, 1], &[4]);
        announce(&mut wary, &[1, 2, 3, 4, 0, 1, 2, 3, 4, 0]);
        wary.handle_end();
        assert_eq!(drain(&mut wary)[4].evict, []);
    }

    #[test]
    fn a_warm_start_reads_nothing_twice() {
        let mut planner = planner(&[1; 3], &[2]);
        assert!(planner.handle_held(SampleId(1), RAM));
        assert!(!planner.handle_held(SampleId(1), RAM), "held already");
        assert!(planner.handle_held(SampleId(2), RAM));
        assert!(!planner.handle_held(SampleId(0), RAM), "no room");
        assert!(!planner.handle_held(SampleId(9), RAM), "no such sample");
        assert!(!planner.handle_held(SampleId(0), TierIndex(3)), "no such tier");
        announce(&mut planner, &[2, 1, 0]);
        let hit = Source::Tier(RAM);
        assert_eq!(sources(&drain(&mut planner)), [hit, hit, Source::Origin]);
        assert!(!planner.handle_held(SampleId(0), RAM), "planning has begun");
    }

    #[test]
    fn a_lost_copy_costs_one_more_origin_read() {
        let mut planner = planner(&[1; 2], &[2]);
        announce(&mut planner, &[0, 1]);
        drain(&mut planner);
        planner.handle_lost(SampleId(0), RAM);
        planner.handle_lost(SampleId(1), DISK);
        announce(&mut planner, &[0, 1, 0, 1]);
        let hit = Source::Tier(RAM);
        assert_eq!(sources(&drain(&mut planner)), [Source::Origin, hit, hit, hit]);
    }

    #[test]
    fn a_shrunken_tier_drops_the_farthest_first_and_grows_again() {
        let mut planner = planner(&[1; 3], &[3]);
        announce(&mut planner, &[0, 1, 2, 1, 2, 0]);
        let mut access = Access::default();
        for _ in 0..3 {
            assert!(planner.poll_access(&mut access));
        }
        let mut evicted = Vec::new();
        planner.handle_room(RAM, Bytes::new(1), &mut evicted);
        assert_eq!(evicted, [(SampleId(0), RAM), (SampleId(2), RAM)]);
        assert_eq!(planner.used(RAM), Bytes::new(1));
        planner.handle_room(RAM, Bytes::new(2), &mut evicted);
        announce(&mut planner, &[2, 2]);
        assert!(planner.poll_access(&mut access) && planner.poll_access(&mut access));
        assert_eq!((access.sample, access.keep), (SampleId(2), Some(RAM)));
        planner.handle_room(DISK, Bytes::new(9), &mut evicted);
        assert_eq!(planner.used(DISK), Bytes::ZERO);
    }

    #[test]
    fn after_a_restart_what_is_held_still_serves() {
        let mut planner = planner(&[1; 4], &[2]);
        announce(&mut planner, &[0, 1, 2, 3]);
        let mut access = Access::default();
        for _ in 0..2 {
            planner.poll_access(&mut access);
        }
        planner.handle_restart();
        assert!(!planner.poll_access(&mut access));
        assert!(planner.wants_epoch());
        announce(&mut planner, &[3, 1, 3, 0]);
        let plan = drain(&mut planner);
        assert_eq!((plan[0].seq, plan[0].evict.as_slice()), (2, [(SampleId(0), RAM)].as_slice()));
        assert_eq!(plan[1].source, Source::Tier(RAM));
    }

    #[test]
    fn the_table_budget_bounds_the_look_ahead_but_never_below_one_epoch() {
        let sizes = Arc::new(Sizes(vec![1; 100]));
        let epoch = |planner: &mut Planner| planner.handle_epoch(&mut (0..100).map(SampleId));
        for (budget, epochs) in [(0, 1), (8 * 250, 2), (1 << 20, 4)] {
            let tiers = vec![TierRoom { capacity: Bytes::new(50), align: 1, overhead: Bytes::ZERO }];
            let config =
                PlannerConfig { tiers, policy: PolicyChoice::Auto, table_budget: Bytes::new(budget) };
            let sizes = Arc::<Sizes>::clone(&sizes);
            let mut planner = Planner::new(config, sizes).unwrap();
            let mut announced = 0;
            while planner.wants_epoch() {
                epoch(&mut planner);
                announced += 1;
            }
            assert_eq!(announced, epochs, "budget {budget}");
            assert!(planner.table_bytes() >= Bytes::new(9 * 100 + 8 * planner.announced()));
            planner.handle_end();
            assert!(!planner.wants_epoch());
        }
    }

    #[test]
    fn a_plan_does_not_depend_on_where_its_numbers_are() {
        let plan = |first| {
            let mut planner = planner(&[1; 12], &[5]);
            planner.walk.window.start_at(first);
            let mut decisions = Vec::new();
            for round in 0..40_u64 {
                announce(&mut planner, &[round % 12, round * 7 % 12, round * 5 % 11]);
                if round % 3 == 2 {
                    decisions
                        .extend(drain(&mut planner).into_iter().map(|access| (access.source, access.evict)));
                }
            }
            decisions
        };
        let from_zero = plan(0);
        for lap in 1..5 {
            assert_eq!(plan(lap * WINDOW_MAX - 37), from_zero, "across the end of lap {lap}");
        }
    }

    #[test]
    fn a_data_set_beyond_the_tables_is_refused_with_the_remedy() {
        struct Huge;
        impl SampleSizes for Huge {
            fn count(&self) -> u64 {
                1 << 40
            }
            fn size(&self, _: SampleId) -> Bytes {
                Bytes::new(1)
            }
            fn uniform(&self) -> Option<Bytes> {
                Some(Bytes::new(1))
            }
        }
        let config =
            PlannerConfig { tiers: vec![], policy: PolicyChoice::Auto, table_budget: Bytes::new(1 << 20) };
        let error = Planner::new(config, Arc::new(Huge)).unwrap_err();
        assert!(error.to_string().contains("index it in shards"), "{error}");
    }
}
