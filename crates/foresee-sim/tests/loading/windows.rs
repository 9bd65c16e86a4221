// SPDX-License-Identifier: Apache-2.0
//! Buckets: a window by hand, limits for large data sets, and what a window is worth, published and not.

use foresee_model::fifo_miss_rate;
use foresee_sim::loading::{AccessOrder, Bucket, DataSet, Policy, Report, Scenario, Training};
use foresee_units::{Bytes, Nanos};

use crate::setups::{assert_near, count, rate, run, small, try_run};

/// Samples of one byte, consumed at `compute` of them per second.
fn scenario(samples: u64, batch: u32, compute: u64, bucket: Bucket) -> Scenario {
    let mut scenario = small();
    scenario.cluster.ranks = 1;
    scenario.data = DataSet::Equal { count: samples, size: Bytes::new(1) };
    scenario.training =
        Training { batch, epochs: 1, drop_last: false, compute: rate(compute), preprocess: None };
    scenario.options.order = AccessOrder::Sequential;
    scenario.bucket = Some(bucket);
    scenario
}

const BUCKET: Bucket = Bucket {
    latency: Nanos::from_secs(3),
    listing: Nanos::ZERO,
    hit: Nanos::from_secs(1),
    parallel: std::num::NonZeroU32::new(2).unwrap(),
    cache: None,
    fetch: Some(2),
    threshold: None,
    strict: false,
};

/// Four samples in batches of two, and a step of ten seconds: sizes of ten bytes at two bytes per second.
fn by_hand(bucket: Bucket) -> Scenario {
    let mut scenario = scenario(4, 2, 2, bucket);
    scenario.data = DataSet::Equal { count: 4, size: Bytes::new(10) };
    scenario
}

#[test]
fn a_window_takes_as_long_as_by_hand() {
    let report = run(&by_hand(BUCKET), Policy::FullFetch);
    assert_near(report.total, 28.0, 1e-12, "one window at a time");
    assert_near(report.stall, 8.0, 1e-12, "its load");
    assert_eq!((report.from(foresee_sim::loading::Place::Origin).samples, report.listings), (2, 2));
    let report = run(&by_hand(BUCKET), Policy::FiftyFifty);
    assert_near(report.total, 26.0, 1e-12, "half and half");
    assert_near(report.stall, 6.0, 1e-12, "its load");
    assert_eq!(report.from(foresee_sim::loading::Place::Origin).samples, 1);
}

#[test]
fn a_strict_threshold_is_one_less() {
    let strict = Bucket { threshold: Some(1), strict: true, ..BUCKET };
    assert_eq!(run(&by_hand(strict), Policy::FullFetch), run(&by_hand(BUCKET), Policy::FullFetch));
    let without = Bucket { strict: true, ..BUCKET };
    assert!(try_run(&by_hand(without), Policy::FullFetch).unwrap_err().to_string().contains("strict"));
}

#[test]
fn without_a_window_every_sample_waits_and_a_disk_never_does() {
    let (direct, disk) = (run(&by_hand(BUCKET), Policy::Direct), run(&by_hand(BUCKET), Policy::Disk));
    assert_near(direct.total, 20.0 + 4.0 * 3.0, 1e-12, "direct");
    assert_near(disk.total, 20.0 + 4.0, 1e-12, "disk");
    assert_eq!((direct.origin_requests, disk.origin_requests), (4, 0));
}

/// Three nodes and two epochs of many samples: the second misses what the closed form says.
#[test]
fn a_fifo_cache_misses_what_its_limit_says() {
    let partition = 20_000_u64;
    for (share, printed) in
        [(None, 2.0 / 3.0), (Some(0.75), 0.8870), (Some(0.5), 0.9530), (Some(0.25), 0.9890)]
    {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share"
        )]
        let cache = share.map(|share: f64| (share * partition as f64) as u64);
        let mut scenario = scenario(3 * partition, 512, 1_000_000, Bucket { cache, ..BUCKET });
        scenario.cluster.ranks = 3;
        scenario.training.epochs = 2;
        for order in [AccessOrder::Distributed { seed: 1 }, AccessOrder::Shuffled { seed: 1 }] {
            scenario.options.order = order;
            let report = run(&scenario, Policy::Cache);
            assert_eq!(report.epochs[0].origin_samples, 3 * partition);
            #[expect(clippy::cast_precision_loss, reason = "a share")]
            let missed = report.epochs[1].origin_samples as f64 / (3 * partition) as f64;
            let limit = fifo_miss_rate(3, share.unwrap_or(f64::INFINITY)).unwrap();
            assert!((missed - limit).abs() < 0.003 && (limit - printed).abs() < 5e-5, "{missed}, {limit}");
        }
    }
}

/// Compute that is long beside downloads: half and half hides nearly all of them, a whole window at a time does not.
#[test]
fn half_and_half_hides_what_a_whole_window_waits_for() {
    let bucket = Bucket {
        latency: Nanos::from_millis(30),
        listing: Nanos::from_millis(50),
        hit: Nanos::from_millis(1),
        parallel: count(16),
        cache: Some(1024),
        fetch: None,
        ..BUCKET
    };
    let mut scenario = scenario(20_000, 64, 64, bucket);
    scenario.training.compute = rate(30);
    let stall = |policy| run(&scenario, policy).stall;
    let [direct, cache, full, half, disk] =
        [Policy::Direct, Policy::Cache, Policy::FullFetch, Policy::FiftyFifty, Policy::Disk].map(stall);
    assert!(direct >= cache && cache > full && full > half && half >= disk);
    assert!(1.0 - half / direct > 0.85, "{half} of {direct}");
}

/// Section V: three nodes, two epochs, batches of 512 and a cache of 2,048 samples; 42,000 samples of MNIST on which all
/// nodes compute for 14.7 s an epoch, 35,000 of CIFAR-10 for 147.2 s. Half and half cuts the loading time of reading the
/// bucket directly by 85.6 and 93.5 % there. Table I: 49.80 kB/s, which is 16 ms for an image of 784 bytes, and 5.7 times
/// that with many threads. Not printed, and chosen here: 50 ms for a page of 1,000 names, half a millisecond for a hit; so
/// the rules give both figures at once, but nobody knows whether for the authors' reasons.
#[test]
fn half_and_half_cuts_loading_by_what_was_published() {
    for (samples, epoch_millis, published) in [(42_000, 14_700, 0.856), (35_000, 147_200, 0.935)] {
        let bucket = Bucket {
            latency: Nanos::new(15_740_000),
            listing: Nanos::from_millis(samples / 1_000 * 50),
            hit: Nanos::new(500_000),
            parallel: count(6),
            cache: Some(2_048),
            fetch: None,
            ..BUCKET
        };
        let mut scenario = scenario(samples, 512, 1, bucket);
        // Samples of a thousand bytes, so that a rate in whole bytes is near enough.
        scenario.data = DataSet::Equal { count: samples, size: Bytes::new(1_000) };
        scenario.training.compute = rate(samples / 3 * 1_000_000 / epoch_millis);
        (scenario.cluster.ranks, scenario.training.epochs) = (3, 2);
        scenario.options.order = AccessOrder::Distributed { seed: 1 };
        let [direct, half] = [Policy::Direct, Policy::FiftyFifty].map(|policy| run(&scenario, policy).stall);
        let cut = 1.0 - half / direct;
        assert!((cut - published).abs() < 0.01, "{cut} instead of {published}");
    }
}

#[test]
fn nodes_that_share_nothing_wait_for_one_another_only_at_a_barrier() {
    let mut scenario = scenario(999, 10, 100, Bucket { cache: Some(64), fetch: None, ..BUCKET });
    scenario.cluster.ranks = 3;
    scenario.options.order = AccessOrder::Distributed { seed: 3 };
    let adds_up = |report: &Report| {
        let sum = report.compute + report.stall + report.barrier;
        assert_near(sum, 3.0 * report.total, 1e-9, "seconds of all nodes");
    };
    let together = run(&scenario, Policy::FiftyFifty);
    adds_up(&together);
    scenario.options.barrier = false;
    let apart = run(&scenario, Policy::FiftyFifty);
    adds_up(&apart);
    assert!(apart.total <= together.total);
}
