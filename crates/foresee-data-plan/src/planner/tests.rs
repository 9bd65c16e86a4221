// SPDX-License-Identifier: Apache-2.0
//! Guarantees of the planner, one per test, on plans small enough to check by hand.

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
    let tier =
        |capacity: &u64| TierCapacity { capacity: Bytes::new(*capacity), align: 1, overhead: Bytes::ZERO };
    let config = PlannerConfig {
        tiers: capacities.iter().map(tier).collect(),
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

fn sources(accesses: &[Access]) -> Vec<PlannedSource> {
    accesses.iter().map(|access| access.source).collect()
}

#[test]
fn the_copy_used_farthest_ahead_is_evicted_for_one_used_sooner() {
    let mut planner = planner(&[1, 1, 1], &[2]);
    announce(&mut planner, &[0, 1, 2, 2, 0, 1]);
    planner.handle_end();
    let plan = drain(&mut planner);
    assert_eq!(plan[2].evict, [(SampleId(1), RAM)]);
    assert_eq!((plan[2].fill, plan[2].next_use), (Some(RAM), NextUse::At(3)));
    let hit = PlannedSource::Tier(RAM);
    assert_eq!(
        sources(&plan),
        [
            PlannedSource::Origin,
            PlannedSource::Origin,
            PlannedSource::Origin,
            hit,
            hit,
            PlannedSource::Origin
        ]
    );
    assert_eq!((plan[5].fill, plan[5].next_use), (None, NextUse::Never));
}

#[test]
fn no_copy_is_evicted_for_a_sample_used_later() {
    let mut planner = planner(&[1, 1], &[1]);
    announce(&mut planner, &[0, 1, 0, 1]);
    planner.handle_end();
    let plan = drain(&mut planner);
    assert_eq!((plan[1].fill, plan[1].evict.len()), (None, 0));
    assert_eq!(plan[2].source, PlannedSource::Tier(RAM));
}

#[test]
fn the_fastest_tier_with_free_space_is_filled_first() {
    let mut planner = planner(&[1; 4], &[1, 2]);
    announce(&mut planner, &[0, 1, 2, 3, 0, 1, 2, 3]);
    planner.handle_end();
    let fills: Vec<_> = drain(&mut planner)[..4].iter().map(|access| access.fill).collect();
    assert_eq!(fills, [Some(RAM), Some(DISK), Some(DISK), None]);
}

#[test]
fn without_a_known_next_use_the_most_recently_consumed_is_evicted_first() {
    let mut planner = planner(&[1; 4], &[3]);
    announce(&mut planner, &[0, 1, 2]);
    drain(&mut planner);
    announce(&mut planner, &[3, 3]);
    let plan = drain(&mut planner);
    assert_eq!(plan[0].evict, [(SampleId(2), RAM)]);
    assert_eq!((planner.holds(SampleId(0)), planner.holds(SampleId(3))), (Some(RAM), Some(RAM)));
}

#[test]
fn a_sample_larger_than_every_capacity_bypasses_the_tiers() {
    let mut planner = planner(&[100, 1], &[10]);
    announce(&mut planner, &[0, 1, 0, 1]);
    let plan = drain(&mut planner);
    assert_eq!([plan[0].fill, plan[1].fill], [None, Some(RAM)]);
    assert_eq!(plan[2].source, PlannedSource::Origin);
}

#[test]
fn several_small_copies_are_evicted_for_a_large_one_only_if_it_saves_more() {
    // The large one returns at once; the small ones rarely.
    let mut eager = planner(&[4, 1, 1, 1, 1], &[4]);
    announce(&mut eager, &[1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4]);
    eager.handle_end();
    assert_eq!(drain(&mut eager)[4].evict.len(), 4);
    // The same bytes saved later, for less space: the small ones stay.
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
    assert!(!planner.handle_held(SampleId(0), RAM), "it does not fit");
    assert!(!planner.handle_held(SampleId(9), RAM), "no such sample");
    assert!(!planner.handle_held(SampleId(0), TierIndex(3)), "no such tier");
    announce(&mut planner, &[2, 1, 0]);
    let hit = PlannedSource::Tier(RAM);
    assert_eq!(sources(&drain(&mut planner)), [hit, hit, PlannedSource::Origin]);
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
    let hit = PlannedSource::Tier(RAM);
    assert_eq!(sources(&drain(&mut planner)), [PlannedSource::Origin, hit, hit, hit]);
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
    planner.handle_capacity(RAM, Bytes::new(1), &mut evicted);
    assert_eq!(evicted, [(SampleId(0), RAM), (SampleId(2), RAM)]);
    assert_eq!(planner.used(RAM), Bytes::new(1));
    planner.handle_capacity(RAM, Bytes::new(2), &mut evicted);
    announce(&mut planner, &[2, 2]);
    assert!(planner.poll_access(&mut access) && planner.poll_access(&mut access));
    assert_eq!((access.sample, access.fill), (SampleId(2), Some(RAM)));
    planner.handle_capacity(DISK, Bytes::new(9), &mut evicted);
    assert_eq!(planner.used(DISK), Bytes::ZERO);
}

#[test]
fn after_a_restart_held_copies_still_give_hits() {
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
    assert_eq!(plan[1].source, PlannedSource::Tier(RAM));
}

#[test]
fn the_table_budget_bounds_the_look_ahead_but_never_below_one_epoch() {
    let sizes = Arc::new(Sizes(vec![1; 100]));
    let epoch = |planner: &mut Planner| planner.handle_epoch(&mut (0..100).map(SampleId));
    for (budget, epochs) in [(0, 1), (8 * 250, 2), (1 << 20, 4)] {
        let tiers = vec![TierCapacity { capacity: Bytes::new(50), align: 1, overhead: Bytes::ZERO }];
        let config = PlannerConfig { tiers, policy: PolicyChoice::Auto, table_budget: Bytes::new(budget) };
        let sizes = Arc::<Sizes>::clone(&sizes);
        let mut planner = Planner::new(config, sizes).unwrap();
        let mut announced = 0;
        while planner.wants_epoch() {
            epoch(&mut planner);
            announced += 1;
        }
        assert_eq!(announced, epochs, "budget {budget}");
        assert!(planner.table_bytes() >= Bytes::new(5 * 100 + 8 * planner.announced()));
        planner.handle_end();
        assert!(!planner.wants_epoch());
    }
}

#[test]
fn a_plan_does_not_depend_on_the_first_access_number() {
    let plan = |first| {
        let mut planner = planner(&[1; 12], &[5]);
        planner.accesses.window.start_at(first);
        let mut decisions = Vec::new();
        for round in 0..40_u64 {
            announce(&mut planner, &[round % 12, round * 7 % 12, round * 5 % 11]);
            if round % 3 == 2 {
                decisions.extend(drain(&mut planner).into_iter().map(|access| (access.source, access.evict)));
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
