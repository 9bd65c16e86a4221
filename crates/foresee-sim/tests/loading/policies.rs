// SPDX-License-Identifier: Apache-2.0
//! Policies on small scenarios computed by hand: copies, reads and times.

use foresee_model::Compat;
use foresee_sim::loading::{AccessOrder, DataSet, Options, Place, Policy, Report, Scenario, WriteCost};

use crate::setups::{assert_near, count, even_tier, origin, rate, run, small, tier};

/// Samples of these sizes in order of their ids, in batches of one, from an origin of ten bytes per second for
/// each rank.
fn scenario(ranks: u32, epochs: u32, sizes: &[u64], tiers: &[u64]) -> Scenario {
    let mut scenario = small();
    scenario.cluster.ranks = ranks;
    scenario.cluster.staging = even_tier(1_000, 1, 1_000_000);
    scenario.cluster.tiers = tiers.iter().map(|&capacity| tier(capacity, 2, 100_000)).collect();
    scenario.cluster.origin = origin(&[(1, 10), (ranks + 1, 10 * u64::from(ranks + 1))]);
    scenario.cluster.peer_link = Some(rate(20_000));
    scenario.data = DataSet::Given(sizes.to_vec());
    scenario.training.batch = 1;
    scenario.training.epochs = epochs;
    scenario.training.compute = rate(1_000);
    scenario.training.preprocess = None;
    scenario.options = Options { order: AccessOrder::Sequential, ..Options::default() };
    scenario
}

fn samples<const N: usize>(report: &Report, places: [Place; N]) -> [u64; N] {
    places.map(|place| report.from(place).samples)
}

const MEMORY: Place = Place::Tier(0);
const DISK: Place = Place::Tier(1);

#[test]
fn each_step_begins_when_the_slowest_rank_ended_the_last_one() {
    let mut scenario = scenario(2, 1, &[1_000, 3_000, 3_000, 1_000], &[]);
    let report = run(&scenario, Policy::Perfect);
    assert_near(report.total, 6.0, 1e-12, "the larger of each pair");
    assert_near(report.barrier, 4.0, 1e-12, "the rest is waited for");
    scenario.options.barrier = false;
    let report = run(&scenario, Policy::Perfect);
    assert_near(report.total, 4.0, 1e-12, "each rank its own");
    assert_near(report.barrier + 1.0, 1.0, 1e-12, "no rank waits");
}

/// Three samples of a second each, two threads that write for half a second: the origin is busy until 3 s.
#[test]
fn preloading_shares_the_origin_among_the_threads_of_a_rank() {
    let mut scenario = scenario(1, 1, &[10, 10, 10], &[100]);
    scenario.training.preprocess = Some(rate(20));
    let init = |scenario: &Scenario| run(scenario, Policy::DeepioOrdered).init;
    assert_near(init(&scenario), 3.5, 1e-12, "physical");
    scenario.options.compat = Compat::Paper;
    assert_near(init(&scenario), 3.0 * 1.5 / 2.0, 1e-12, "to the letter");
    scenario.options.write_cost = WriteCost::None;
    assert_near(init(&scenario), 3.0 / 2.0, 1e-12, "without a write");
    scenario.options.write_cost = WriteCost::Write;
    scenario.cluster.tiers[0] = even_tier(100, 2, 5);
    assert_near(
        init(&scenario),
        3.0 * (1.0 + 4.0) / 2.0,
        1e-12,
        "a write at 2.5 bytes per second and thread",
    );
}

#[test]
fn a_tier_is_closed_by_the_first_sample_that_does_not_fit() {
    let places = |sizes: &[u64], policy| {
        let report = run(&scenario(1, 2, sizes, &[8, 10]), policy);
        samples(&report, [MEMORY, DISK, Place::Origin])
    };
    // The third closes memory, although the fourth would fit; then both go to disk.
    assert_eq!(places(&[4, 3, 9, 1], Policy::NopfsOnAccess), [2, 2, 4]);
    assert_eq!(places(&[4, 3, 9, 1], Policy::ParallelStaging), [4, 4, 0]);
    // The second closes everything.
    assert_eq!(places(&[4, 11, 1], Policy::NopfsOnAccess), [1, 0, 5]);
    assert_eq!(places(&[4, 11, 1], Policy::ParallelStaging), [6, 0, 0]);
    // The planner skips it.
    assert_eq!(places(&[4, 11, 1], Policy::Foresee), [2, 0, 4]);
}

#[test]
fn a_shard_is_read_repeatedly_if_the_order_may_change() {
    // Two of each rank's four samples fit: every epoch reads them four times.
    let scenario = scenario(2, 3, &[4; 8], &[8]);
    let report = run(&scenario, Policy::DeepioOptimistic);
    assert_eq!(samples(&report, [MEMORY, Place::Origin]), [24, 0]);
    assert_eq!((report.covered, report.samples, report.origin_requests), (4, 8, 4));
    assert_near(report.coverage(), 0.5, 1e-12, "half the data set");
}

#[test]
fn with_the_order_kept_a_shard_serves_its_rank_and_peers() {
    // By id, rank 0 reads even samples and rank 1 odd ones, which are their shards.
    let own = run(&scenario(2, 2, &[4; 8], &[16]), Policy::DeepioOrdered);
    assert_eq!(samples(&own, [MEMORY, Place::Peer(0), Place::Origin]), [16, 0, 0]);
    // In batches of two, each rank reads one sample of its own shard and one of its peer's.
    let mut scenario = scenario(2, 2, &[4; 8], &[16]);
    scenario.training.batch = 2;
    let mixed = run(&scenario, Policy::LbannPreloading);
    assert_eq!(samples(&mixed, [MEMORY, Place::Peer(0), Place::Origin]), [8, 8, 0]);
    // Unless samples go to the ranks that hold them.
    let moved = run(&scenario, Policy::LocalityAware);
    assert_eq!(samples(&moved, [MEMORY, Place::Peer(0), Place::Origin]), [16, 0, 0]);
    assert_eq!(moved.covered, 8);
    // Half of each shard fits: samples that no rank holds come from the origin.
    scenario.cluster.tiers = vec![tier(8, 2, 100_000)];
    let half = run(&scenario, Policy::LocalityAware);
    assert_eq!(samples(&half, [MEMORY, Place::Peer(0), Place::Origin]), [8, 0, 8]);
}

#[test]
fn the_first_reader_stores_a_sample_while_memory_is_free() {
    let full = run(&scenario(2, 3, &[4; 8], &[16]), Policy::LbannDynamic);
    assert_eq!(samples(&full, [MEMORY, Place::Origin]), [16, 8]);
    // Rank 0 reads samples of 6 and stores two of four; those of rank 1 all fit.
    let uneven = run(&scenario(2, 3, &[6, 2, 6, 2, 6, 2, 6, 2], &[16]), Policy::LbannDynamic);
    assert_eq!(samples(&uneven, [MEMORY, Place::Origin]), [4 + 8, 8 + 4]);
}

/// Each rank owns every other sample. In batches of one it reads only those, in batches of two also its peer's.
#[test]
fn a_fixed_owner_receives_its_samples_from_their_first_readers_and_keeps_the_first_that_fit() {
    let places = [MEMORY, Place::Peer(0), Place::Origin];
    let own = run(&scenario(2, 3, &[4; 8], &[16]), Policy::HashOwner);
    assert_eq!(samples(&own, places), [16, 0, 8]);
    assert_eq!((own.pushed_samples, own.pushed_bytes), (0, 0));
    let mut scenario = scenario(2, 3, &[4; 8], &[16]);
    scenario.training.batch = 2;
    // One sample at a time, so that no read begins before the copy is visible.
    scenario.cluster.staging = even_tier(4, 1, 1_000_000);
    let mixed = run(&scenario, Policy::HashOwner);
    assert_eq!(samples(&mixed, places), [8, 8, 8]);
    assert_eq!((mixed.pushed_samples, mixed.pushed_bytes), (4, 16));
    scenario.cluster.tiers = vec![tier(8, 2, 100_000)];
    let half = run(&scenario, Policy::HashOwner);
    assert_eq!(samples(&half, places), [4, 4, 16]);
    assert_eq!(half.pushed_bytes, 8);
}

#[test]
fn a_static_share_is_read_whole_and_cached_as_far_as_it_fits() {
    let mut scenario = scenario(2, 3, &[4; 8], &[8]);
    let report = run(&scenario, Policy::StaticShare);
    assert_eq!(samples(&report, [MEMORY, Place::Peer(0), Place::Origin]), [8, 0, 16]);
    assert_eq!((report.covered, report.origin_bytes), (8, 64));
    scenario.options.order = AccessOrder::Shuffled { seed: 3 };
    let shuffled = run(&scenario, Policy::StaticShare);
    assert_eq!(samples(&shuffled, [MEMORY, Place::Origin]), [8, 16]);
    assert_eq!(shuffled.epochs.iter().map(|epoch| epoch.origin_samples).collect::<Vec<_>>(), [8, 4, 4]);
}

/// One thread of a tier and one of staging begin with the first two samples; then each takes those that the other
/// has not begun.
#[test]
fn a_tiers_threads_and_staging_read_a_sample_once() {
    let mut scenario = scenario(1, 2, &[10; 6], &[1_000]);
    scenario.cluster.tiers[0].threads = count(1);
    let report = run(&scenario, Policy::Nopfs);
    assert_eq!(
        (report.origin_requests, report.loads[0].samples + report.from(Place::Origin).samples),
        (6, 6)
    );
    // The origin is never idle, and the last sample is computed for 10 ms; then all samples are in memory, and
    // compute is the bound.
    assert_near(report.epochs[0].end, 6.01, 1e-3, "the first epoch is the origin's");
    assert_near(report.total, 6.07, 1e-3, "the second is compute's");
}

/// A single rank with memory for half of the samples that it reads repeatedly: the planner's own counts.
#[test]
fn the_hits_of_the_planner_are_those_of_its_crate() {
    let scenario = scenario(1, 4, &[10; 40], &[200]);
    let report = run(&scenario, Policy::Foresee);
    assert_eq!(samples(&report, [MEMORY, Place::Origin]), [60, 100]);
    assert_eq!(report.epochs.iter().map(|epoch| epoch.origin_samples).collect::<Vec<_>>(), [40, 20, 20, 20]);
}
