// SPDX-License-Identifier: Apache-2.0
//! The effect of smaller capacities: policies that never gain, over hundreds of drawn scenarios, and examples of
//! policies that do.
//!
//! It is separate from the other invariants because it compares two scenarios. Samples have one size: with
//! different sizes, a large sample that no longer fits may leave its space to several small ones.

use std::num::NonZeroU64;

use foresee_model::OriginCurve;
use foresee_sim::loading::{AccessOrder, DataSet, OriginReaders, Policy, Report, Scenario, Training};
use foresee_testkit::property;
use foresee_units::{Bytes, Nanos};
use proptest::prelude::*;

use crate::laws::scenario;
use crate::setups::{MEGA, count, even_tier, origin, rate, run, small, tier, try_run};

/// Samples of one size, and threads that take one sample after the other. With more threads, a fetch may be late
/// because another one was early and took its thread or its share. For the same reason the origin has fixed
/// shares.
fn even(mut scenario: Scenario, size: u64) -> Scenario {
    scenario.data = DataSet::Equal { count: scenario.data.count(), size: Bytes::new(size) };
    scenario.cluster.staging.threads = count(1);
    for tier in &mut scenario.cluster.tiers {
        tier.threads = count(1);
    }
    scenario.options.readers = OriginReaders::All;
    scenario
}

/// The same scenario with less capacity in every tier.
fn tight(scenario: &Scenario, less: u64) -> Scenario {
    let mut tight = scenario.clone();
    for tier in &mut tight.cluster.tiers {
        tier.capacity = Bytes::new(tier.capacity.get().saturating_sub(less).max(1));
    }
    tight
}

/// Whether a copy in an earlier tier is the faster one, so that more capacity there is worth more.
fn is_faster_first(scenario: &Scenario) -> bool {
    tier_rates(scenario).is_sorted_by(|one, other| one >= other)
}

/// Whether no tier is slower than the origin, so that a hit is never worse than a miss.
fn is_origin_last(scenario: &Scenario) -> bool {
    let origin: &OriginCurve = &scenario.cluster.origin;
    let share = origin.share(f64::from(scenario.cluster.ranks)).unwrap();
    tier_rates(scenario).iter().all(|&rate| rate >= share)
}

fn tier_rates(scenario: &Scenario) -> Vec<f64> {
    scenario.cluster.tiers.iter().map(|tier| tier.read.rate(1).unwrap()).collect()
}

/// Seconds of all fetches.
fn fetching(report: &Report) -> f64 {
    report.reads.iter().map(|(_, reads)| reads.seconds).sum()
}

/// Seconds after loading.
fn training(report: &Report) -> f64 {
    report.total - report.init
}

proptest! {
    #![proptest_config(property(400))]

    #[test]
    fn more_capacity_never_makes_the_planner_read_the_origin_more(
        mut scenario in scenario(),
        size in 1_u64..100,
        less in 1_u64..500,
    ) {
        scenario.data = DataSet::Equal { count: scenario.data.count(), size: Bytes::new(size) };
        let reads = |scenario: &Scenario| run(scenario, Policy::Foresee).origin_requests;
        prop_assert!(reads(&tight(&scenario, less)) >= reads(&scenario));
    }

    #[test]
    fn less_capacity_never_makes_a_run_shorter(
        scenario in scenario(),
        size in 1_u64..100,
        less in 1_u64..500,
    ) {
        let scenario = even(scenario, size);
        prop_assume!(is_faster_first(&scenario));
        let tight = tight(&scenario, less);
        for policy in Policy::ALL {
            let (measure, holds): (fn(&Report) -> f64, bool) = match policy {
                Policy::NopfsPrestaged => (|report| report.total, true),
                // With more capacity a rank is ahead, and may request a sample before its peer's copy is visible.
                Policy::LbannDynamic | Policy::NopfsOnAccess => {
                    (|report| report.total, scenario.cluster.ranks == 1)
                }
                // Not its total, by the example below. With several tiers the faster one may serve more reads
                // when the slower one has less capacity, because copies do not move.
                Policy::Foresee => (fetching, is_origin_last(&scenario) && scenario.cluster.tiers.len() <= 1),
                // Loads before training cost time for any number of later reads.
                Policy::DeepioOrdered
                | Policy::DeepioOptimistic
                | Policy::LbannPreloading
                | Policy::LocalityAware => (training, true),
                // They have no tiers, or are examples below.
                _ => (training, false),
            };
            // If a policy does not support the smaller capacity, there is nothing to compare.
            if holds && let (Ok(wide), Ok(tight)) = (try_run(&scenario, policy), try_run(&tight, policy)) {
                let (wide, tight) = (measure(&wide), measure(&tight));
                prop_assert!(tight >= wide * (1.0 - 1e-9), "{}: {} with less capacity, {} with more", policy, tight, wide);
            }
        }
    }
}

/// One rank with memory for half of the data, single threads, and an origin of 40 MB/s as the bottleneck.
fn alone(epochs: u32) -> Scenario {
    let mut scenario = even(small(), 100_000);
    scenario.cluster.ranks = 1;
    scenario.cluster.tiers = vec![tier(20 * MEGA, 1, 2_000 * MEGA)];
    scenario.training.epochs = epochs;
    scenario
}

/// The total with the given capacity, and with none.
fn with_and_without_capacity(scenario: &Scenario, measure: fn(&Report) -> f64, policy: Policy) -> (f64, f64) {
    let [with, without] =
        [scenario, &tight(scenario, u64::MAX)].map(|scenario| measure(&run(scenario, policy)));
    (with, without)
}

/// In a single epoch nothing is read twice, so loads before training only cost time.
#[test]
fn capacity_that_is_filled_in_vain_makes_a_run_longer() {
    for policy in [Policy::DeepioOrdered, Policy::LocalityAware] {
        let total = |epochs| with_and_without_capacity(&alone(epochs), |report| report.total, policy);
        let (with, without) = total(1);
        assert!(with > 1.05 * without, "{policy}: {with} s, and {without} s without capacity");
        let (with, without) = total(4);
        assert!(with < without, "{policy}: {with} s, and {without} s without capacity, when it pays");
    }
}

/// A tier's single thread preprocesses its loads, and staging waits for it, although its own four threads were
/// faster.
#[test]
fn capacity_that_a_slow_thread_fills_makes_a_single_epoch_longer() {
    let mut scenario = alone(1);
    scenario.training.preprocess = Some(rate(10 * MEGA));
    scenario.cluster.staging.threads = count(4);
    let (with, without) = with_and_without_capacity(&scenario, |report| report.total, Policy::Nopfs);
    assert!(with > 1.05 * without, "{with} s, and {without} s without capacity");
}

/// With less capacity the planner reads the origin at least as often, but at other positions: here four more
/// misses, one by one, while staging holds two samples. This is rare in drawn scenarios.
#[test]
fn capacity_may_move_misses_to_positions_with_a_wait() {
    let mut scenario = even(small(), 75);
    let cluster = &mut scenario.cluster;
    cluster.ranks = 1;
    cluster.staging = even_tier(154, 1, 4_000);
    cluster.tiers = vec![tier(4_004, 1, 1_500)];
    (cluster.origin, cluster.origin_latency) = (origin(&[(1, 105)]), Nanos::from_millis(181));
    cluster.origin_requests = NonZeroU64::new(1);
    scenario.data = DataSet::Equal { count: 75, size: Bytes::new(75) };
    scenario.training =
        Training { batch: 2, epochs: 3, drop_last: true, compute: rate(86), preprocess: None };
    scenario.options.order = AccessOrder::Shuffled { seed: 26 };
    let [with, without] = [&scenario, &tight(&scenario, 105)].map(|scenario| run(scenario, Policy::Foresee));
    assert!(without.origin_requests >= with.origin_requests && fetching(&without) >= fetching(&with));
    assert!(with.total > 1.05 * without.total, "{} s, and {} s with less", with.total, without.total);
}

/// A hit on a disk of half the origin's rate takes longer than the miss that it saves. The planner minimizes
/// reads of the origin, which cost money and delay other ranks, and ignores their duration.
#[test]
fn capacity_in_a_tier_slower_than_the_origin_makes_a_run_longer() {
    let mut scenario = alone(4);
    scenario.cluster.tiers[0] = tier(20 * MEGA, 1, 20 * MEGA);
    let (with, without) = with_and_without_capacity(&scenario, |report| report.total, Policy::Foresee);
    assert!(with > 1.1 * without, "{with} s, and {without} s without capacity");
}

/// A rank that reads only its own copies is faster with fewer copies, if only those in memory remain.
#[test]
fn capacity_on_a_slow_disk_makes_reads_of_own_copies_slower() {
    let mut scenario = alone(4);
    scenario.cluster.origin = origin(&[(1, 400 * MEGA)]);
    scenario.training.compute = rate(400 * MEGA);
    scenario.training.preprocess = None;
    scenario.cluster.tiers.push(tier(40 * MEGA, 1, 20 * MEGA));
    let mut memory_only = scenario.clone();
    memory_only.cluster.tiers[1].capacity = Bytes::new(1);
    let [both, memory] = [&scenario, &memory_only].map(|scenario| run(scenario, Policy::ParallelStaging));
    assert!(training(&both) > 2.0 * training(&memory), "{both:?}, {memory:?}");
    assert!(both.coverage() > 1.9 * memory.coverage());
}
