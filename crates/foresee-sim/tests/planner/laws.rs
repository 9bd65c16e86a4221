// SPDX-License-Identifier: Apache-2.0
//! Invariants of every plan, for any reports of the engine in between: a second, naive implementation follows and
//! checks each access.

use std::collections::BTreeMap;
use std::sync::Arc;

use foresee_data_plan::{
    Access, NextUse, PlannedSource, Planner, PlannerConfig, PolicyChoice, SampleSizes, TierCapacity,
    TierIndex,
};
use foresee_testkit::property;
use foresee_units::{Bytes, SampleId};
use proptest::prelude::*;

use crate::support::unequal;

/// An operation of the engine on a planner.
#[derive(Clone, Debug)]
enum Action {
    Epoch(Vec<u64>),
    Poll(usize),
    Lose(u64, u8),
    Resize(u8, u64),
    Restart,
}

#[derive(Clone, Debug)]
struct Run {
    sizes: Vec<u64>,
    tiers: Vec<TierCapacity>,
    policy: PolicyChoice,
    held: Vec<(u64, u8)>,
    actions: Vec<Action>,
}

fn action(samples: u64) -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => prop::collection::vec(0..samples, 0..20).prop_map(Action::Epoch),
        6 => (1_usize..15).prop_map(Action::Poll),
        1 => (0..samples + 1, 0_u8..3).prop_map(|(id, tier)| Action::Lose(id, tier)),
        1 => (0_u8..3, 0_u64..80).prop_map(|(tier, capacity)| Action::Resize(tier, capacity)),
        1 => Just(Action::Restart),
    ]
}

fn run() -> impl Strategy<Value = Run> {
    let tier = (0_u64..80, 1_u64..5, 0_u64..3).prop_map(|(capacity, align, overhead)| TierCapacity {
        capacity: Bytes::new(capacity),
        align,
        overhead: Bytes::new(overhead),
    });
    let policy = prop_oneof![Just(PolicyChoice::Auto), Just(PolicyChoice::NextUse), Just(PolicyChoice::Pin)];
    let sizes = prop_oneof![
        prop::collection::vec(0_u64..20, 1..16),
        (1_usize..16, 1_u64..9).prop_map(|(count, size)| vec![size; count]),
    ];
    (sizes, prop::collection::vec(tier, 0..3), policy).prop_flat_map(|(sizes, tiers, policy)| {
        let samples = sizes.len() as u64;
        let held = prop::collection::vec((0..samples + 1, 0_u8..3), 0..6);
        let actions = prop::collection::vec(action(samples), 1..30);
        (held, actions).prop_map(move |(held, actions)| Run {
            sizes: sizes.clone(),
            tiers: tiers.clone(),
            policy,
            held,
            actions,
        })
    })
}

/// The naive implementation: held copies and announced accesses.
struct CacheModel {
    sizes: Arc<dyn SampleSizes>,
    tiers: Vec<TierCapacity>,
    held: BTreeMap<SampleId, TierIndex>,
    announced: Vec<SampleId>,
    planned: u64,
    policy: PolicyChoice,
    equal: bool,
}

impl CacheModel {
    fn used(&self, tier: TierIndex) -> Bytes {
        let here = self.held.iter().filter(|(_, place)| **place == tier);
        here.map(|(id, _)| self.tiers[usize::from(tier.0)].cost(self.sizes.size(*id))).sum()
    }

    /// Accesses until the next announced use.
    fn next(&self, sample: SampleId) -> Option<usize> {
        self.announced.iter().position(|announced| *announced == sample)
    }

    fn check_capacity(&self, planner: &Planner) -> Result<(), TestCaseError> {
        for (tier, limits) in (0_u8..).map(TierIndex).zip(&self.tiers) {
            prop_assert_eq!(planner.used(tier), self.used(tier));
            prop_assert!(self.used(tier) <= limits.capacity, "{:?} holds more than it may", tier);
        }
        for id in (0..=self.sizes.count()).map(SampleId) {
            prop_assert_eq!(planner.holds(id), self.held.get(&id).copied());
        }
        Ok(())
    }

    fn check_access(&mut self, access: &Access, ended: bool) -> Result<(), TestCaseError> {
        let sample = self.announced.remove(0);
        prop_assert_eq!((access.seq, access.sample), (self.planned, sample), "once, in order");
        self.planned += 1;
        let next = self.next(sample);
        let expected = match next {
            Some(distance) => NextUse::At(self.planned + distance as u64),
            None if ended => NextUse::Never,
            None => NextUse::Unknown,
        };
        prop_assert_eq!(access.next_use, expected);
        let source = self.held.get(&sample).copied().map_or(PlannedSource::Origin, PlannedSource::Tier);
        prop_assert_eq!(access.source, source, "held where the plan says");
        if access.fill.is_none() {
            prop_assert!(access.evict.is_empty(), "copies leave only for one that comes");
        }
        for (victim, tier) in &access.evict {
            prop_assert_eq!(self.held.remove(victim), Some(*tier), "only what is held can leave");
            prop_assert_eq!(Some(*tier), access.fill, "copies leave the tier that needs the space");
            let later = self.next(*victim).is_none_or(|victim| victim > next.unwrap_or(usize::MAX));
            prop_assert!(later, "{} leaves for {} and is used sooner", victim, sample);
            if self.policy == PolicyChoice::Pin {
                prop_assert!(ended && self.next(*victim).is_none(), "pin drops only what is dead");
            }
        }
        if self.equal && self.tiers.len() == 1 {
            prop_assert!(access.evict.len() <= 1, "one copy of equal size leaves for another");
        }
        if let Some(tier) = access.fill {
            prop_assert!(access.next_use != NextUse::Never, "never keep what is never used again");
            prop_assert_eq!(self.held.insert(sample, tier), None);
            prop_assert!(self.used(tier) <= self.tiers[usize::from(tier.0)].capacity);
        } else if source == PlannedSource::Origin && access.next_use != NextUse::Never {
            for (tier, limits) in (0_u8..).map(TierIndex).zip(&self.tiers) {
                let free = limits.capacity.saturating_sub(self.used(tier));
                prop_assert!(limits.cost(self.sizes.size(sample)) > free, "bypassed although there is space");
            }
        }
        Ok(())
    }
}

fn follow(run: &Run) -> Result<u64, TestCaseError> {
    let sizes = unequal(&run.sizes);
    let config =
        PlannerConfig { tiers: run.tiers.clone(), policy: run.policy, table_budget: Bytes::new(1 << 20) };
    let mut planner = Planner::new(config, Arc::clone(&sizes)).expect("few samples and tiers");
    let mut model = CacheModel {
        sizes,
        tiers: run.tiers.clone(),
        held: BTreeMap::new(),
        announced: Vec::new(),
        planned: 0,
        policy: run.policy,
        equal: run.sizes.iter().all(|size| *size == run.sizes[0]),
    };
    for &(id, tier) in &run.held {
        if planner.handle_held(SampleId(id), TierIndex(tier)) {
            prop_assert_eq!(model.held.insert(SampleId(id), TierIndex(tier)), None);
        }
    }
    model.check_capacity(&planner)?;
    let mut access = Access::default();
    for action in &run.actions {
        match action {
            Action::Epoch(ids) => {
                planner.handle_epoch(&mut ids.iter().copied().map(SampleId));
                model.announced.extend(ids.iter().copied().map(SampleId));
            }
            Action::Poll(count) => {
                for _ in 0..*count {
                    if planner.poll_access(&mut access) {
                        model.check_access(&access, false)?;
                    } else {
                        prop_assert!(model.announced.is_empty(), "all that is announced is planned");
                    }
                }
            }
            Action::Lose(id, tier) => {
                planner.handle_lost(SampleId(*id), TierIndex(*tier));
                if model.held.get(&SampleId(*id)) == Some(&TierIndex(*tier)) {
                    model.held.remove(&SampleId(*id));
                }
            }
            Action::Resize(tier, capacity) => {
                let mut evicted = Vec::new();
                planner.handle_capacity(TierIndex(*tier), Bytes::new(*capacity), &mut evicted);
                if let Some(limits) = model.tiers.get_mut(usize::from(*tier)) {
                    limits.capacity = Bytes::new(*capacity);
                }
                for (victim, tier) in evicted {
                    prop_assert_eq!(model.held.remove(&victim), Some(tier));
                }
            }
            Action::Restart => {
                planner.handle_restart();
                model.announced.clear();
            }
        }
        model.check_capacity(&planner)?;
    }
    planner.handle_end();
    while planner.poll_access(&mut access) {
        model.check_access(&access, true)?;
    }
    prop_assert!(model.announced.is_empty());
    model.check_capacity(&planner)?;
    Ok(planner.plan_hash())
}

proptest! {
    #![proptest_config(property(4_000))]

    #[test]
    fn every_plan_keeps_the_invariants_and_equal_inputs_make_equal_plans(run in run()) {
        prop_assert_eq!(follow(&run)?, follow(&run)?);
    }

    #[test]
    fn a_lost_copy_costs_exactly_one_more_origin_read(
        samples in 1_u64..20,
        epochs in prop::collection::vec(any::<prop::sample::Index>(), 1..80),
        lost_at in any::<prop::sample::Index>(),
    ) {
        let accesses: Vec<SampleId> = epochs.iter().map(|draw| SampleId(draw.index(usize::try_from(samples).unwrap()) as u64)).collect();
        let lost_at = lost_at.index(accesses.len());
        let reads = |lose: bool| {
            let tiers = vec![TierCapacity { capacity: Bytes::new(samples * 64), align: 64, overhead: Bytes::new(40) }];
            let config = PlannerConfig { tiers, policy: PolicyChoice::Auto, table_budget: Bytes::new(1 << 20) };
            let mut planner = Planner::new(config, unequal(&vec![3; usize::try_from(samples).unwrap()])).unwrap();
            planner.handle_epoch(&mut accesses.iter().copied());
            planner.handle_end();
            let (mut access, mut origin, mut used_again) = (Access::default(), 0, false);
            while planner.poll_access(&mut access) {
                origin += u64::from(access.source == PlannedSource::Origin);
                if access.seq == lost_at as u64 {
                    used_again = access.next_use != NextUse::Never;
                    if lose {
                        planner.handle_lost(access.sample, TierIndex(0));
                    }
                }
            }
            (origin, used_again)
        };
        let ((whole, used_again), (holed, _)) = (reads(false), reads(true));
        prop_assert_eq!(holed, whole + u64::from(used_again));
    }
}
