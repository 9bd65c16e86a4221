// SPDX-License-Identifier: Apache-2.0
//! Window policies: a window by hand, limits for large data sets, and the published value of a window.

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
    miss: Nanos::from_secs(3),
    download: Nanos::from_secs(3),
    link: Nanos::ZERO,
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

/// A link of one second per sample. Both requests of half and half begin at 0, and the bytes of the second follow
/// those of the first. The miss shares the link with two downloads, which takes two seconds more and delays both
/// requests by one.
#[test]
fn requests_and_misses_share_the_link() {
    let shared = Bucket { link: Nanos::from_secs(1), ..BUCKET };
    let report = run(&by_hand(shared), Policy::FiftyFifty);
    // Due at 3 and 5, then at 4 and 6: a miss to 5, a hit to 6, compute to 16, two hits.
    assert_near(report.stall, 8.0, 1e-12, "loads");
    assert_eq!(report.from(foresee_sim::loading::Place::Origin).samples, 1);
    assert_eq!(run(&by_hand(shared), Policy::Direct), run(&by_hand(BUCKET), Policy::Direct));
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

/// Three nodes and two epochs of many samples: the second epoch has the misses of the closed form.
#[test]
fn the_misses_of_a_fifo_cache_match_its_limit() {
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

/// Compute time that is long compared with downloads: half and half hides nearly all of them, a whole window at a
/// time does not.
#[test]
fn half_and_half_hides_the_waits_of_a_whole_window() {
    let bucket = Bucket {
        miss: Nanos::from_millis(30),
        download: Nanos::from_millis(30),
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

/// The set-up of section V: three nodes, two epochs, batches of 512; 42,000 samples of MNIST with 14.7 s of
/// compute per epoch over all nodes, 35,000 of CIFAR-10 with 147.2 s. Times are those of Table I for an image of
/// 784 bytes: 15.7 ms at 49.80 kB/s for a single download, 44.5 ms for each of 16 at 281.73 kB/s together.
fn published(samples: u64, epoch_millis: u64, bucket: Bucket) -> Scenario {
    let bucket = Bucket {
        miss: Nanos::new(15_743_000),
        download: Nanos::new(44_525_000),
        parallel: count(16),
        ..bucket
    };
    let mut scenario = scenario(samples, 512, 1, bucket);
    // Samples of a thousand bytes, so that a rate in whole bytes is precise enough.
    scenario.data = DataSet::Equal { count: samples, size: Bytes::new(1_000) };
    scenario.training.compute = rate(samples / 3 * 1_000_000 / epoch_millis);
    (scenario.cluster.ranks, scenario.training.epochs) = (3, 2);
    scenario.options.order = AccessOrder::Distributed { seed: 1 };
    scenario
}

/// Half and half reduces the loading time of direct reads from the bucket by 85.6 (MNIST) and 93.5 % (CIFAR-10).
/// The paper omits two times, which are chosen here: 50 ms for a page of 1,000 names, and 0.5 ms for a hit. They
/// reproduce both values at once, which does not prove that they are the authors'.
#[test]
fn half_and_half_reduces_loading_as_published() {
    for (samples, epoch_millis, cut) in [(42_000, 14_700, 0.856), (35_000, 147_200, 0.935)] {
        let bucket = Bucket {
            listing: Nanos::from_millis(samples / 1_000 * 50),
            hit: Nanos::new(500_000),
            cache: Some(2_048),
            fetch: None,
            ..BUCKET
        };
        let scenario = published(samples, epoch_millis, bucket);
        let [direct, half] = [Policy::Direct, Policy::FiftyFifty].map(|policy| run(&scenario, policy).stall);
        let simulated = 1.0 - half / direct;
        assert!((simulated - cut).abs() < 0.01, "{simulated} instead of {cut}");
    }
}

/// While a window is downloaded, a node continues with misses, each a single download. A window of 1,024 takes 64
/// times as long as one of its 16 parallel downloads, and 181 misses fit in: 17.7 %. At the time of a parallel
/// download only 64 would fit in, 6.3 %.
#[test]
fn a_miss_takes_as_long_as_a_download_alone() {
    let share = |policy, cache, fetch, miss: Option<Nanos>| {
        let window = Bucket { hit: Nanos::ZERO, cache: Some(cache), fetch: Some(fetch), ..BUCKET };
        let mut scenario = published(35_000, 147_200, window);
        scenario.training.epochs = 1;
        if let (Some(bucket), Some(miss)) = (&mut scenario.bucket, miss) {
            bucket.miss = miss;
        }
        let report = run(&scenario, policy);
        #[expect(clippy::cast_precision_loss, reason = "a share")]
        let missed = report.from(foresee_sim::loading::Place::Origin).samples as f64 / 35_001.0;
        missed
    };
    assert_near(share(Policy::FullFetch, 1024, 1024, None), 0.178, 0.003, "a whole window");
    let parallel = Some(Nanos::new(44_525_000));
    assert_near(share(Policy::FullFetch, 1024, 1024, parallel), 0.063, 0.01, "misses as slow as downloads");
    assert_near(share(Policy::FiftyFifty, 2048, 1024, None), 0.0156, 0.005, "half and half");
    assert_near(share(Policy::FullFetch, 512, 1024, None), 0.489, 0.002, "a cache below the window");
}

#[test]
fn nodes_without_shared_resources_wait_for_each_other_only_at_a_barrier() {
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
