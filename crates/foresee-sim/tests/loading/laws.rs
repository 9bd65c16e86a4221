// SPDX-License-Identifier: Apache-2.0
//! Invariants of every policy, over hundreds of drawn scenarios.

#![expect(clippy::cast_precision_loss, reason = "counts and sizes, all small")]

use std::num::NonZeroU64;

use foresee_model::{
    AccessFrequency, Compat, OriginCurve, SourceRate, Staging, StreamRead, StreamTimes, stream_times,
};
use foresee_sim::loading::{
    AccessOrder, Bucket, DataSet, HandOver, OriginReaders, Place, Policy, Progress, Report, Run, RunError,
    Scenario, WriteCost, count_reads, draw_reads,
};
use foresee_testkit::property;
use foresee_units::{Bytes, Nanos};
use proptest::prelude::*;
use proptest::sample::select;

use crate::setups::{assert_near, count, even_tier, origin, rate, run, small, tier, try_run};

fn data() -> impl Strategy<Value = DataSet> {
    prop_oneof![
        (5_u64..80, 1_u64..200).prop_map(|(count, size)| DataSet::Equal { count, size: Bytes::new(size) }),
        prop::collection::vec(1_u64..200, 5..80).prop_map(DataSet::Given),
        (5_u64..80, 0_u64..9).prop_map(|(count, seed)| DataSet::Normal {
            count,
            mean: 90.0,
            deviation: 60.0,
            seed
        }),
    ]
}

fn order() -> impl Strategy<Value = AccessOrder> {
    prop_oneof![
        (0_u64..99).prop_map(|seed| AccessOrder::Shuffled { seed }),
        (0_u64..99).prop_map(|seed| AccessOrder::Distributed { seed }),
        Just(AccessOrder::Sequential),
    ]
}

prop_compose! {
    /// Any small scenario: capacity for nothing to everything, and sources of any speed.
    pub(crate) fn scenario()(
        data in data(),
        (ranks, batch, epochs) in (1_u32..5, 1_u32..6, 1_u32..5),
        tiers in prop::collection::vec((1_u64..6_000, 1_u32..4, 50_u64..5_000, any::<bool>()), 0..4),
        (capacity, threads) in (1_u64..3_000, 1_u32..5),
        points in prop::collection::btree_map(1_u32..6, 10_u64..2_000, 1..4),
        (link, peers) in (prop::option::of(20_u64..2_000), 20_u64..5_000),
        (compute, preprocess) in (20_u64..3_000, prop::option::of(50_u64..3_000)),
        (compat, order, barrier, drop_last) in (select(&Compat::ALL[..]), order(), any::<bool>(), any::<bool>()),
        (readers, hand_over) in (select(&OriginReaders::ALL[..]), select(&HandOver::ALL[..])),
        (latency, requests) in (0_u64..300, prop::option::of(1_u64..200)),
        write_cost in select(&[WriteCost::Preprocess, WriteCost::Write, WriteCost::None][..]),
        (cache, fetch) in (prop::option::of(1_u64..40), 1_u64..20),
        reads_peers in any::<bool>(),
    ) -> Scenario {
        let mut scenario = small();
        let cluster = &mut scenario.cluster;
        cluster.ranks = ranks;
        cluster.staging = even_tier(capacity, threads, 4_000);
        cluster.tiers = tiers
            .into_iter()
            .map(|(capacity, threads, speed, even)| if even { even_tier } else { tier }(capacity, threads, speed))
            .collect();
        cluster.origin = origin(&points.into_iter().collect::<Vec<_>>());
        cluster.origin_link = link.map(rate);
        cluster.origin_latency = Nanos::from_millis(latency);
        cluster.origin_requests = requests.and_then(NonZeroU64::new);
        cluster.peer_link = Some(rate(peers));
        scenario.data = data;
        let training = &mut scenario.training;
        (training.batch, training.epochs) = (batch, epochs);
        (training.compute, training.preprocess) = (rate(compute), preprocess.map(rate));
        training.drop_last = drop_last && u64::from(ranks * batch) <= scenario.data.count();
        let options = &mut scenario.options;
        (options.compat, options.order, options.barrier) = (compat, order, barrier);
        options.write_cost = write_cost;
        options.peers = reads_peers && cluster.tiers.len() <= 2;
        if compat == Compat::Physical {
            (options.readers, options.hand_over) = (readers, hand_over);
        }
        scenario.bucket = Some(Bucket {
            miss: Nanos::from_millis(70),
            download: Nanos::from_millis(70),
            link: Nanos::ZERO,
            listing: Nanos::from_millis(20),
            hit: Nanos::from_millis(5),
            parallel: count(3),
            cache,
            fetch: Some(fetch),
            threshold: None,
            strict: false,
        });
        scenario
    }
}

/// Each policy's report, without unsupported policies.
fn reports(scenario: &Scenario) -> Vec<Report> {
    let answer = |policy| match try_run(scenario, policy) {
        Ok(report) => Some(report),
        Err(RunError::Unsupported(_)) => None,
        Err(error) => panic!("{policy}: {error}"),
    };
    Policy::ALL.into_iter().filter_map(answer).collect()
}

fn reads(report: &Report) -> u64 {
    report.reads.iter().map(|(_, reads)| reads.samples).sum()
}

/// Reads of all epochs: those of `staging_buffer`, which reads nothing twice and omits nothing.
fn reads_of_the_order(scenario: &Scenario) -> u64 {
    reads(&run(scenario, Policy::StagingBuffer))
}

proptest! {
    #![proptest_config(property(400))]

    #[test]
    fn every_read_is_served_once_and_every_second_is_counted_once(scenario in scenario()) {
        let expected = reads_of_the_order(&scenario);
        for report in reports(&scenario) {
            let policy = report.policy;
            if policy != Policy::Perfect {
                prop_assert_eq!(reads(&report), expected, "{}", policy);
            }
            let ranks = f64::from(report.ranks);
            let booked = ranks * report.init + report.compute + report.stall + report.barrier;
            prop_assert!((booked - ranks * report.total).abs() <= 1e-9 * booked, "{}", policy);
            prop_assert!(report.stall >= 0.0 && report.barrier >= -1e-9 && report.finished);
            let waited: f64 = report.reads.iter().map(|(_, reads)| reads.waited).sum();
            prop_assert!((waited - report.stall).abs() <= 1e-9 * report.stall.max(1.0));
            let ends: Vec<f64> = report.epochs.iter().map(|epoch| epoch.end).collect();
            prop_assert!(ends.is_sorted() && ends.last() == Some(&report.total), "{}", policy);
            let stalls: f64 = report.epochs.iter().map(|epoch| epoch.stall).sum();
            prop_assert!((stalls - report.stall).abs() <= 1e-9 * report.total * ranks, "{}", policy);
            let seen_all = report.covered == report.samples;
            prop_assert!(seen_all || scenario.training.drop_last || !policy.keeps_order() , "{}", policy);
            prop_assert!(report.coverage() <= 1.0 && report.covered > 0);
        }
    }

    #[test]
    fn no_policy_that_keeps_the_order_is_faster_than_perfect(scenario in scenario()) {
        let reports = reports(&scenario);
        let perfect = reports[0].total;
        for report in reports.iter().filter(|report| report.policy.keeps_order()) {
            prop_assert!(report.total >= perfect * (1.0 - 1e-12), "{}", report.policy);
            prop_assert!((report.compute - reports[0].compute).abs() <= 1e-9 * report.compute);
        }
    }

    #[test]
    fn the_origin_never_exceeds_its_rate(mut scenario in scenario()) {
        scenario.options.compat = Compat::Physical;
        scenario.options.readers = OriginReaders::All;
        let ranks = scenario.cluster.ranks;
        let link = scenario.cluster.origin_link.map_or(f64::INFINITY, |link| link.get() as f64);
        let yields = f64::from(ranks) * scenario.cluster.origin.share(f64::from(ranks)).unwrap().min(link);
        let threads: u32 = scenario.cluster.tiers.iter().map(|tier| tier.threads.get()).sum();
        for report in reports(&scenario).iter().filter(|report| !report.policy.reads_bucket()) {
            // A tier's thread may still load when training ends: no sample has more than 400 bytes.
            let in_flight = if report.policy == Policy::Nopfs { 400.0 * f64::from(threads * ranks) } else { 0.0 };
            let least = (report.origin_bytes as f64 - in_flight) / yields;
            prop_assert!(least <= report.total * (1.0 + 1e-9), "{}: {} of {}", report.policy, least, report.total);
        }
    }

    #[test]
    fn a_common_origin_never_exceeds_its_rate(
        mut scenario in scenario(),
        readers in select(&[OriginReaders::Demand, OriginReaders::Queue][..]),
    ) {
        (scenario.options.compat, scenario.options.readers) = (Compat::Physical, readers);
        let link = scenario.cluster.origin_link.map_or(f64::INFINITY, |link| link.get() as f64);
        let yields = |readers| f64::from(readers) * scenario.cluster.origin.share(f64::from(readers)).unwrap();
        let most = (1..=scenario.cluster.ranks).map(yields).fold(0.0, f64::max);
        let most = most.min(f64::from(scenario.cluster.ranks) * link);
        // Threads of tiers use estimates.
        let exact = |report: &&Report| !report.policy.reads_bucket() && report.policy != Policy::Nopfs;
        for report in reports(&scenario).iter().filter(exact) {
            let trained = (report.total - report.init) * (1.0 + 1e-9);
            let loaded: u64 = report.loads.iter().map(|load| load.bytes).sum();
            let least = (report.origin_bytes - loaded) as f64 / most;
            prop_assert!(least <= trained, "{}: {} of {}", report.policy, least, trained);
            let loads: u64 = report.loads.iter().map(|load| load.samples).sum();
            let most = scenario.cluster.origin_requests.map_or(f64::INFINITY, |most| most.get() as f64);
            let least = (report.origin_requests - loads) as f64 / most;
            prop_assert!(least <= trained, "{}: {} requests of {}", report.policy, least, trained);
        }
    }

    #[test]
    fn equal_runs_have_equal_reports_for_any_stepping(scenario in scenario(), steps in 1_u64..9) {
        for policy in Policy::ALL {
            let Ok(whole) = try_run(&scenario, policy) else { continue };
            let mut run = Run::new(&scenario, policy).unwrap();
            let (mut last, mut total) = (0, 0.0);
            loop {
                match run.advance(steps) {
                    Progress::Preparing { done, of } => prop_assert!(done <= of),
                    Progress::Training { done, of } => {
                        prop_assert!(done >= last && done < of);
                        last = done;
                    }
                    Progress::Finished => break,
                }
                prop_assert!(!run.report().finished && run.report().total >= total);
                total = run.report().total;
            }
            prop_assert_eq!(run.report(), whole);
        }
    }
}

/// One rank with unlimited buffers, and copies of the first samples by id in a tier, so that its sources are
/// known.
fn one_rank(sizes: Vec<u64>, threads: u32, compat: Compat, held: u64) -> Scenario {
    let mut scenario = small();
    scenario.cluster.ranks = 1;
    scenario.cluster.staging = even_tier(1_000_000, threads, 4_000);
    scenario.cluster.tiers = vec![tier(sizes.iter().sum::<u64>() * held / 100 + 1, 2, 700)];
    scenario.cluster.origin = origin(&[(1, 90)]);
    scenario.training.batch = u32::try_from(sizes.len()).unwrap();
    scenario.training.compute = rate(150);
    scenario.training.preprocess = Some(rate(500));
    scenario.data = DataSet::Given(sizes);
    scenario.options.compat = compat;
    scenario.options.order = AccessOrder::Sequential;
    scenario
}

/// The closed form of the same scenario: samples held by `deepio_ordered` come from its tier.
fn closed(scenario: &Scenario, held: u64) -> StreamTimes {
    let DataSet::Given(sizes) = &scenario.data else { panic!("sizes are given") };
    let threads = scenario.cluster.staging.threads;
    let staging = Staging::new(threads, Some(500.0), Some(4_000.0)).unwrap();
    let curve: &OriginCurve = &scenario.cluster.origin;
    let sources =
        [SourceRate::origin(None, curve, 1.0).unwrap(), SourceRate::local(700.0, count(2)).unwrap()];
    let reads: Vec<StreamRead> = (0..scenario.training.epochs)
        .flat_map(|_| (0_u64..).zip(sizes))
        .map(|(id, &size)| StreamRead { size: size as f64, source: usize::from(id < held) })
        .collect();
    stream_times(&staging, &sources, &reads, 150.0, scenario.options.compat).unwrap()
}

proptest! {
    #![proptest_config(property(400))]

    #[test]
    fn the_paper_is_at_most_the_closed_form_and_that_at_most_the_event_simulation(
        sizes in prop::collection::vec(1_u64..60, 1..40),
        threads in 1_u32..6,
        percent in 0_u64..100,
    ) {
        let play = |compat| {
            let scenario = one_rank(sizes.clone(), threads, compat, percent);
            let report = run(&scenario, Policy::DeepioOrdered);
            let held = report.loads[0].samples;
            (report.total - report.init, closed(&scenario, held).total)
        };
        let ((paper, paper_closed), (events, physical_closed)) = (play(Compat::Paper), play(Compat::Physical));
        prop_assert!((paper - paper_closed).abs() <= 1e-9 * paper, "{} by events, {} closed", paper, paper_closed);
        prop_assert!(paper <= physical_closed * (1.0 + 1e-12) && physical_closed <= events * (1.0 + 1e-12));
        if threads == 1 {
            prop_assert!((events - paper).abs() <= 1e-9 * paper);
        }
    }
}

/// Reads of a drawn order, and of independently drawn samples, have the expected frequency, within five standard
/// deviations.
#[test]
fn drawn_reads_are_as_frequent_as_expected() {
    let (ranks, epochs, samples) = (16, 90, 100_000);
    let expected = AccessFrequency::new(ranks, epochs, u64::from(samples)).unwrap();
    let often = expected.expected_above("0.8".parse().unwrap(), Compat::Physical);
    for histogram in [
        count_reads(AccessOrder::Shuffled { seed: 11 }, samples, ranks, epochs, 3),
        count_reads(AccessOrder::Distributed { seed: 11 }, samples, ranks, epochs, 0),
        draw_reads(11, samples, ranks, epochs),
    ] {
        assert_eq!(histogram.iter().sum::<u64>(), u64::from(samples));
        let counted = histogram[11..].iter().sum::<u64>() as f64;
        assert!((counted - often).abs() < 5.0 * often.sqrt(), "{counted} instead of {often}");
    }
}

#[test]
fn fewer_readers_get_a_larger_share_and_an_idle_rank_does_not_wait() {
    let mut scenario = small();
    let all = run(&scenario, Policy::Foresee);
    scenario.options.readers = OriginReaders::Active;
    let active = run(&scenario, Policy::Foresee);
    assert!(active.total <= all.total && active.origin_requests == all.origin_requests);
    scenario.options.barrier = false;
    assert!(run(&scenario, Policy::Foresee).total <= active.total);
}

/// With capacity for everything, no policy with a cache reads the origin after one epoch.
#[test]
fn with_capacity_for_everything_the_origin_is_read_once_per_sample() {
    let mut scenario = small();
    scenario.cluster.tiers[0].capacity = Bytes::new(50_000_000);
    scenario.cluster.ranks = 1;
    for policy in
        [Policy::LbannDynamic, Policy::LbannPreloading, Policy::NopfsOnAccess, Policy::Nopfs, Policy::Foresee]
    {
        let report = run(&scenario, policy);
        let once = report.origin_requests;
        assert_eq!(once, 400, "{policy}");
    }
    let none = run(&scenario, Policy::NopfsPrestaged);
    assert_eq!((none.origin_requests, none.from(Place::Tier(0)).samples), (0, 1_600));
    assert_near(none.hit_rate().unwrap(), 1.0, 1e-12, "hits");
}

/// Throughput with a cache of a share of the data: the origin's rate, divided by the uncached share (`SiloD`).
#[test]
fn a_cached_share_multiplies_the_origins_rate() {
    let mut scenario = small();
    scenario.cluster.ranks = 1;
    scenario.cluster.tiers.truncate(1);
    scenario.training.compute = rate(5_000_000_000);
    scenario.training.preprocess = None;
    for (percent, uncached) in [(0, 1.0), (25, 0.75), (50, 0.5), (75, 0.25)] {
        scenario.cluster.tiers[0].capacity = Bytes::new(400_000 * percent + 1);
        let report = run(&scenario, Policy::Foresee);
        let later = report.epochs[3].end - report.epochs[0].end;
        assert_near(later, 3.0 * 40e6 * uncached / 40e6, 0.02, "three epochs of 40 MB at 40 MB/s");
    }
}

/// By the paper, a place's seconds are its bytes by the rate of a thread, shared by `p_0` threads. The sum over
/// reads is the sum over samples, each weighted by its reads.
#[test]
fn the_seconds_of_a_place_are_its_bytes_by_its_rate() {
    let mut scenario = small();
    scenario.options.compat = Compat::Paper;
    let report = run(&scenario, Policy::NopfsPrestaged);
    let rates = [
        (Place::Origin, 30e6),
        (Place::Tier(0), 1_000e6),
        (Place::Tier(1), 200e6),
        (Place::Peer(0), 500e6),
        (Place::Peer(1), 200e6),
    ];
    for (place, rate) in rates {
        let reads = report.from(place);
        assert_near(reads.seconds + 1.0, reads.bytes as f64 / rate / 2.0 + 1.0, 1e-9, "seconds");
    }
    assert_eq!(report.reads.iter().map(|(_, reads)| reads.bytes).sum::<u64>(), 4 * 40_000_000);
}

/// Runs share nothing: a caller may run several in parallel, and each has the result that it has alone.
#[test]
fn runs_may_be_stepped_in_threads_of_their_caller() {
    let scenario = small();
    let together: Vec<Report> = std::thread::scope(|scope| {
        let policies = Policy::ALL.into_iter().filter(|policy| !policy.reads_bucket());
        let threads: Vec<_> = policies
            .map(|policy| {
                scope.spawn({
                    let scenario = &scenario;
                    move || try_run(scenario, policy)
                })
            })
            .collect();
        threads.into_iter().filter_map(|thread| thread.join().unwrap().ok()).collect()
    });
    assert_eq!(together.len(), 13);
    for report in together {
        assert_eq!(report, run(&scenario, report.policy));
    }
}
