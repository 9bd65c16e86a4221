// SPDX-License-Identifier: Apache-2.0
//! Rows of one object in a random order: they are read in groups, once each, while there is space for them.

use std::sync::Arc;

use foresee_data_plan::{
    HierarchyAccess, HierarchyPlanner, ObjectRange, PlannedSource, PlannerConfig, PolicyChoice, READ_BLOCK,
    SampleSizes, SlowestTier, TierCapacity, TierIndex, TierSet,
};
use foresee_testkit::{Dice, property};
use foresee_units::{Bytes, SampleId};
use proptest::prelude::*;

/// Rows of `len` bytes behind a header of 128 bytes.
struct Rows {
    len: u64,
    count: u64,
}

impl SampleSizes for Rows {
    fn count(&self) -> u64 {
        self.count
    }
    fn size(&self, _: SampleId) -> Bytes {
        Bytes::new(self.len)
    }
    fn uniform(&self) -> Option<Bytes> {
        Some(Bytes::new(self.len))
    }
    fn grouped_range(&self, SampleId(id): SampleId) -> Option<ObjectRange> {
        (id < self.count).then_some(ObjectRange { object: 0, start: 128 + id * self.len, len: self.len })
    }
}

/// The same rows, which are read alone.
struct Alone(Rows);

impl SampleSizes for Alone {
    fn count(&self) -> u64 {
        self.0.count()
    }
    fn size(&self, id: SampleId) -> Bytes {
        self.0.size(id)
    }
    fn uniform(&self) -> Option<Bytes> {
        self.0.uniform()
    }
}

fn ungrouped(rows: Rows, capacity: u64) -> HierarchyPlanner {
    let tiers = vec![TierCapacity { capacity: Bytes::new(capacity), align: 1, overhead: Bytes::ZERO }];
    let config = PlannerConfig { tiers, policy: PolicyChoice::Auto, table_budget: Bytes::new(1 << 30) };
    HierarchyPlanner::new(config, SlowestTier::OfThisRun, Arc::new(Alone(rows))).expect("a small plan")
}

/// What a run reads from the origin.
#[derive(Debug, Default)]
struct Reads {
    requests: u64,
    /// Bytes of rows, and of rows that no read wants.
    bytes: u64,
    unwanted: u64,
}

fn planner(rows: Rows, capacities: &[u64], slowest: SlowestTier) -> HierarchyPlanner {
    let tier = |&capacity| TierCapacity { capacity: Bytes::new(capacity), align: 1, overhead: Bytes::ZERO };
    let tiers = capacities.iter().map(tier).collect();
    let config = PlannerConfig { tiers, policy: PolicyChoice::Auto, table_budget: Bytes::new(1 << 30) };
    HierarchyPlanner::new(config, slowest, Arc::new(rows)).expect("a small plan")
}

/// Plan all announced accesses; checks the contents of the tiers and their capacities at every access.
fn run(planner: &mut HierarchyPlanner, len: u64, capacities: &[u64], reads: &mut Reads) {
    let mut access = HierarchyAccess::default();
    while planner.poll_access(&mut access) {
        let mut members = vec![access.sample.0];
        for &(sample, fills) in &access.ahead {
            assert!(!fills.is_empty() && access.source == PlannedSource::Origin);
            assert!(fills.iter().all(|tier| planner.holds(sample, tier)));
            members.push(sample.0);
        }
        for (tier, &capacity) in (0..).map(TierIndex).zip(capacities) {
            assert!(planner.used(tier) <= Bytes::new(capacity));
        }
        if access.source == PlannedSource::Origin {
            members.sort_unstable();
            assert!(members.windows(2).all(|pair| pair[0] < pair[1]), "a row is read twice");
            let (first, last) = (members[0], members[members.len() - 1]);
            let span = last - first + 1;
            assert!((span - 1) * len < READ_BLOCK.get());
            reads.requests += 1;
            reads.bytes += span * len;
            reads.unwanted += (span - members.len() as u64) * len;
        }
    }
}

fn shuffled(count: u64, seed: u64) -> Vec<u64> {
    let mut dice = Dice::new(seed);
    let mut ids: Vec<(u64, u64)> = (0..count).map(|id| (dice.bits(), id)).collect();
    ids.sort_unstable();
    ids.into_iter().map(|(_, id)| id).collect()
}

fn announce(planner: &mut HierarchyPlanner, ids: &[u64]) {
    planner.handle_epoch(&mut ids.iter().copied().map(SampleId));
}

#[test]
fn a_small_array_is_one_read() {
    let all = 18_300 * 35;
    for (capacities, slowest) in [
        (&[all][..], SlowestTier::OfThisRun),
        (&[0, all], SlowestTier::Durable),
        (&[all / 4, all], SlowestTier::Durable),
    ] {
        let mut planner = planner(Rows { len: 35, count: 18_300 }, capacities, slowest);
        let mut reads = Reads::default();
        for seed in 0..3 {
            announce(&mut planner, &shuffled(18_300, seed));
            run(&mut planner, 35, capacities, &mut reads);
        }
        assert_eq!((reads.requests, reads.bytes), (1, all), "{capacities:?}");
    }
}

#[test]
fn the_first_rows_of_a_large_array_are_read_alone_except_for_one_group() {
    let (len, count) = (1000, 40_000);
    let mut planner = planner(Rows { len, count }, &[len * count], SlowestTier::OfThisRun);
    announce(&mut planner, &shuffled(count, 1));
    let mut access = HierarchyAccess::default();
    let mut groups = Vec::new();
    while planner.poll_access(&mut access) {
        if access.source == PlannedSource::Origin {
            groups.push(!access.ahead.is_empty());
        }
    }
    assert!(groups[0] && groups[1..=40].iter().all(|&is_group| !is_group));
    assert!(groups.len() < 40 + 2 * 39 && groups[41..].iter().filter(|&&is_group| is_group).count() >= 38);
}

#[test]
fn rows_without_an_announced_use_or_without_space_are_not_read_ahead() {
    let mut planner = planner(Rows { len: 10, count: 100 }, &[500], SlowestTier::OfThisRun);
    announce(&mut planner, &(0..100).step_by(3).collect::<Vec<_>>());
    let mut access = HierarchyAccess::default();
    assert!(planner.poll_access(&mut access));
    assert_eq!(access.ahead, [], "every third row is less than seven of eight");
    planner.handle_restart();
    announce(&mut planner, &(1..100).collect::<Vec<_>>());
    assert!(planner.poll_access(&mut access));
    let ahead: Vec<u64> = access.ahead.iter().map(|&(SampleId(id), _)| id).collect();
    assert_eq!(ahead, (2..50).collect::<Vec<_>>(), "50 rows fit");
    assert!(access.ahead.iter().all(|&(_, fills)| fills == TierSet::of(TierIndex(0))));
}

proptest! {
    #![proptest_config(property(1_000))]

    #[test]
    fn rows_are_read_about_once_in_large_reads_if_they_fit(
        len in 8_u64..4000,
        mib in 1_u64..12,
        seed: u64,
        is_on_disk: bool,
        epochs in 1_u64..4,
    ) {
        let count = ((mib << 20) / len).min(20_000);
        let all = len * count;
        let (capacities, slowest) = if is_on_disk {
            (vec![all / 3, all], SlowestTier::Durable)
        } else {
            (vec![all], SlowestTier::OfThisRun)
        };
        let mut planner = planner(Rows { len, count }, &capacities, slowest);
        let mut reads = Reads::default();
        for epoch in 0..epochs {
            announce(&mut planner, &shuffled(count, seed.wrapping_add(epoch)));
            run(&mut planner, len, &capacities, &mut reads);
        }
        prop_assert!(reads.requests <= all / 1_000_000 + 64, "{reads:?}");
        prop_assert!(reads.bytes * 10 <= all * 12, "{reads:?}");
        prop_assert!(reads.unwanted * 8 <= reads.bytes);
    }

    #[test]
    fn with_less_space_no_more_bytes_are_read_than_without_groups(
        len in 100_u64..4000,
        share in 1_u64..10,
        seed: u64,
    ) {
        let count = (3 << 20) / len.max(1000);
        let capacity = len * count * share / 10;
        let mut bytes = Vec::new();
        for len_of_group in [len, 0] {
            let rows = Rows { len, count };
            let mut planner = match len_of_group {
                0 => ungrouped(rows, capacity),
                _ => planner(rows, &[capacity], SlowestTier::OfThisRun),
            };
            let mut reads = Reads::default();
            for epoch in 0..3 {
                announce(&mut planner, &shuffled(count, seed.wrapping_add(epoch)));
            }
            planner.handle_end();
            run(&mut planner, len, &[capacity], &mut reads);
            bytes.push(reads.bytes - reads.unwanted);
        }
        prop_assert!(bytes[0] * 100 <= bytes[1] * 102, "{bytes:?}");
    }
}
