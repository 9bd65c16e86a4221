// SPDX-License-Identifier: Apache-2.0
//! Published scenarios: bounds, preloading, orders and ratios.

use std::path::Path;

use foresee_model::{Compat, OriginCurve, ThreadCurve};
use foresee_sim::loading::{AccessOrder, Cluster, DataSet, Options, Policy, Scenario, Tier, Training};
use foresee_units::{Bytes, BytesPerSecond, Nanos};
use serde_json::Value;

use crate::setups::{assert_near, count, rate, run, try_run};

pub(crate) fn vectors(name: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models").join(name);
    let vectors: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    vectors["scenarios"].as_array().unwrap().clone()
}

fn whole(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no whole number"))
}

fn short(value: &Value) -> u32 {
    u32::try_from(whole(value)).unwrap()
}

fn points(value: &Value) -> impl Iterator<Item = (u32, BytesPerSecond)> {
    value.as_array().unwrap().iter().map(|point| (short(&point[0]), rate(whole(&point[1]))))
}

fn tier(value: &Value) -> Tier {
    Tier {
        capacity: Bytes::new(whole(&value["capacity"])),
        threads: count(short(&value["threads"])),
        read: ThreadCurve::new(points(&value["read"])).unwrap(),
        write: None,
    }
}

fn scenario(case: &Value, compat: Compat) -> Scenario {
    let (cluster, data, training) = (&case["cluster"], &case["data"], &case["training"]);
    let samples = whole(&data["count"]);
    Scenario {
        cluster: Cluster {
            ranks: short(&cluster["ranks"]),
            staging: tier(&cluster["staging"]),
            tiers: cluster["tiers"].as_array().unwrap().iter().map(tier).collect(),
            origin: OriginCurve::new(points(&cluster["origin"])).unwrap(),
            origin_link: cluster["origin_link"].as_u64().map(rate),
            origin_latency: Nanos::ZERO,
            origin_requests: None,
            peer_link: cluster["peer_link"].as_u64().map(rate),
        },
        data: match data["size"].as_u64() {
            Some(size) => DataSet::Equal { count: samples, size: Bytes::new(size) },
            None => DataSet::Normal {
                count: samples,
                mean: data["mean"].as_f64().unwrap(),
                deviation: data["deviation"].as_f64().unwrap(),
                seed: whole(&data["seed"]),
            },
        },
        training: Training {
            batch: short(&training["batch"]),
            epochs: short(&training["epochs"]),
            drop_last: training["drop_last"].as_bool().unwrap(),
            compute: rate(whole(&training["compute"])),
            preprocess: Some(rate(whole(&training["preprocess"]))),
        },
        options: Options {
            compat,
            order: AccessOrder::Shuffled { seed: whole(&case["seed"]) },
            ..Options::default()
        },
        bucket: None,
    }
}

/// The same scenario with a fraction of the samples and of all capacities: ratios stay, and a test takes seconds.
fn scaled(mut scenario: Scenario, by: u64) -> Scenario {
    match &mut scenario.data {
        DataSet::Equal { count, .. } | DataSet::Normal { count, .. } => *count /= by,
        DataSet::Given(_) => panic!("no scenario lists its sizes"),
    }
    let Cluster { staging, tiers, .. } = &mut scenario.cluster;
    for tier in tiers.iter_mut().chain([staging]) {
        tier.capacity = Bytes::new(tier.capacity.get() / by);
    }
    scenario
}

/// The divisor of a thesis scenario here; the first is small already.
fn scale(case: &Value) -> u64 {
    if case["id"] == "thesis-1" { 1 } else { 10 }
}

pub(crate) fn thesis(case: &Value, compat: Compat) -> Scenario {
    scaled(scenario(case, compat), scale(case))
}

/// Published seconds, at the scale of the scenario.
fn published(case: &Value, policy: Policy) -> Option<f64> {
    case["published"][policy.name()].as_f64().map(|seconds| seconds / to_f64(scale(case)))
}

/// Mean of the maximum of two and of four standard normals.
const LARGEST: [(u32, f64); 2] = [(2, 0.564_190), (4, 1.029_375)];

/// `bound = epochs * steps * (b mu + kappa sigma sqrt(b)) / c`: the barrier waits for the largest batch of all
/// ranks.
fn bound(scenario: &Scenario, mean: f64, largest: f64) -> f64 {
    let DataSet::Normal { count, deviation, .. } = scenario.data else { panic!("sizes are drawn") };
    let training = &scenario.training;
    let batch = f64::from(training.batch);
    let steps = to_f64(count) / f64::from(scenario.cluster.ranks) / batch;
    let step = batch * mean + largest * deviation * batch.sqrt();
    f64::from(training.epochs) * steps * step / to_f64(training.compute.get())
}

#[test]
fn the_time_of_perfect_is_the_published_bound() {
    let closed = [None, Some(3_827.20), Some(7_654.41), Some(15_205.88)];
    for (case, closed) in vectors("loading_thesis.json").iter().zip(closed) {
        let scenario = scenario(case, Compat::Paper);
        let DataSet::Normal { mean, .. } = scenario.data else { panic!("sizes are drawn") };
        let formula = bound(&scenario, mean, LARGEST[1].1);
        if let Some(closed) = closed {
            assert!((formula - closed).abs() < 0.005, "{formula} instead of {closed}");
        }
        let total = run(&scenario, Policy::Perfect).total;
        // Sizes are drawn: the mean of ten thousand, the size of the first scenario, is off by up to a percent.
        let drawn = if case["id"] == "thesis-1" { 0.01 } else { 1e-3 };
        assert_near(total, formula, drawn, "the closed form");
        assert_near(total, case["published"]["perfect"].as_f64().unwrap(), drawn, "the published bound");
    }
}

/// The relative delay of the slowest rank over the mean batch matches the expected maximum of that many normals.
#[test]
fn the_barrier_waits_for_the_largest_of_as_many_batches_as_there_are_ranks() {
    for (ranks, largest) in LARGEST {
        let mut scenario = scenario(&vectors("loading_thesis.json")[1], Compat::Physical);
        scenario.cluster.ranks = ranks;
        let report = run(&scenario, Policy::Perfect);
        let compute = to_f64(scenario.training.compute.get());
        let reads = to_f64(scenario.data.count()) * f64::from(scenario.training.epochs);
        let mean = report.compute * compute / reads;
        let [none, one] = [0.0, 1.0].map(|largest| bound(&scenario, mean, largest));
        // The maximum of a few normals varies by 0.8 around its mean; that of 15,000 steps or more by less than
        // 0.007.
        let waited = (report.total - none) / (one - none);
        assert!((waited - largest).abs() < 0.021, "{ranks} ranks: {waited} instead of {largest}");
    }
}

/// `Compat::Paper`: loading takes bytes of a rank's tier times `(N / t(N) + 1 / beta) / p_j`.
fn preload_seconds(bytes: f64) -> f64 {
    bytes * (4.0 / 146e6 + 1.0 / 200e6) / 2.0
}

/// The thesis prints runtime and bound. Their difference is the load of a rank's shard, or of the part that its
/// tier can hold; the load takes as long here.
#[test]
fn preloading_takes_the_time_of_its_formula_and_of_the_publication() {
    let (memory, disk) = (51.2e9, 102.4e9);
    let optimistic = (Policy::DeepioOptimistic, memory);
    // If memory can hold a shard, the authors' parallel staging loads more than that, for an unknown reason.
    let tiers: [&[(Policy, f64)]; 3] = [
        &[optimistic],
        &[optimistic, (Policy::ParallelStaging, disk)],
        &[optimistic, (Policy::ParallelStaging, disk)],
    ];
    for (case, tiers) in vectors("loading_thesis.json")[1..].iter().zip(tiers) {
        let scenario = scenario(case, Compat::Paper);
        let DataSet::Normal { count, mean, .. } = scenario.data else { panic!("sizes are drawn") };
        let seconds = |policy: Policy| case["published"][policy.name()].as_f64().unwrap();
        for &(policy, capacity) in tiers {
            let what = format!("{} {policy}", case["id"]);
            let printed = seconds(policy) - seconds(Policy::Perfect);
            let shard = to_f64(count) * mean / 4.0;
            assert_near(
                preload_seconds(capacity.min(shard)),
                printed,
                0.004,
                &format!("{what}: the formula"),
            );
            // The authors' disks are full in the third scenario, where memory leaves 98.8 GB of a shard to the
            // disks here.
            let left = if policy == Policy::ParallelStaging { shard - memory } else { shard };
            let init = run(&scenario, policy).init;
            assert_near(init, preload_seconds(capacity.min(left)), 0.004, &format!("{what}: loading"));
        }
    }
}

/// Ratios to `perfect` that agree with published ones, by scenario. The others differ for these reasons:
/// - `naive`, `staging_buffer`: the authors count as readers the ranks that read within a tenth of a second, and this
///   simulation counts all; and their staging buffer has no limit after the first epoch;
/// - `parallel_staging`, `locality_aware`, `nopfs` with reads from disk: their disk gives each thread its whole rate;
/// - `parallel_staging` with memory for a shard: theirs loads 71 GB per rank in the second scenario, of a shard of
///   37.5 GB, for an unknown reason;
/// - `deepio_ordered` beyond memory: theirs does not prefetch uncached samples;
/// - all of the first scenario: a run of seconds, a tenth of which is the first batch.
#[test]
fn ratios_to_the_bound_match_published_ones_under_equal_rules() {
    let agreeing: [(&str, &[Policy]); 3] = [
        (
            "thesis-2",
            &[
                Policy::Nopfs,
                Policy::DeepioOrdered,
                Policy::DeepioOptimistic,
                Policy::LbannDynamic,
                Policy::LbannPreloading,
                Policy::LocalityAware,
            ],
        ),
        ("thesis-3", &[Policy::DeepioOptimistic]),
        ("thesis-4", &[Policy::DeepioOptimistic]),
    ];
    for case in vectors("loading_thesis.json") {
        let scenario = thesis(&case, Compat::Paper);
        let perfect = run(&scenario, Policy::Perfect).total;
        let bound = published(&case, Policy::Perfect).unwrap();
        for &policy in
            agreeing.iter().filter(|(id, _)| case["id"] == **id).flat_map(|(_, policies)| *policies)
        {
            let ratio = run(&scenario, policy).total / perfect;
            let printed = published(&case, policy).unwrap() / bound;
            assert_near(ratio, printed, 0.01, &format!("{} {policy}", case["id"]));
        }
    }
}

/// The order of policies by time, for all published values that are more than 3 % apart; pairs in the other order
/// have their reason in the list above.
#[test]
fn policies_have_the_published_order() {
    let (mut pairs, mut turned) = (0, Vec::new());
    for case in vectors("loading_thesis.json") {
        let scenario = thesis(&case, Compat::Paper);
        let answers = Policy::ALL.into_iter().filter_map(|policy| {
            let printed = published(&case, policy)?;
            Some((policy, printed, run(&scenario, policy).total))
        });
        let answers: Vec<(Policy, f64, f64)> = answers.collect();
        for &(fast, printed_fast, ours_fast) in &answers {
            for &(slow, printed_slow, ours_slow) in &answers {
                if printed_fast * 1.03 < printed_slow {
                    pairs += 1;
                    if ours_fast >= ours_slow {
                        turned.push(format!("{} {fast} {slow}", case["id"].as_str().unwrap()));
                    }
                }
            }
        }
    }
    assert_eq!(pairs, 127);
    let where_memory_holds_a_shard = [
        "thesis-1 deepio_ordered parallel_staging",
        "thesis-1 deepio_optimistic parallel_staging",
        "thesis-1 lbann_preloading parallel_staging",
        "thesis-1 locality_aware parallel_staging",
        "thesis-2 deepio_optimistic parallel_staging",
        "thesis-2 locality_aware parallel_staging",
    ];
    let where_the_rest_is_not_prefetched = [
        "thesis-3 staging_buffer deepio_ordered",
        "thesis-3 parallel_staging deepio_ordered",
        "thesis-4 staging_buffer deepio_ordered",
        "thesis-4 locality_aware deepio_ordered",
    ];
    assert_eq!(turned, [&where_memory_holds_a_shard[..], &where_the_rest_is_not_prefetched[..]].concat());
}

/// The regimes of the published scenarios, at a hundredth of their size.
#[test]
fn published_scenarios_have_their_regime_and_lbann_fits_if_memory_does() {
    for case in vectors("loading_paper.json") {
        let id = case["id"].as_str().unwrap();
        let by = if whole(&case["data"]["count"]) > 100_000 { 100 } else { 1 };
        let scenario = scaled(scenario(&case, Compat::Physical), by);
        let report = run(&scenario, Policy::StagingBuffer);
        let data = to_f64(report.origin_bytes) / f64::from(scenario.training.epochs);
        let ranks = f64::from(scenario.cluster.ranks);
        let capacities: Vec<f64> =
            scenario.cluster.tiers.iter().map(|tier| to_f64(tier.capacity.get())).collect();
        let (memory, all) = (capacities[0], capacities.iter().sum::<f64>());
        let regime = match data {
            data if data <= memory => "memory",
            data if data <= all => "rank",
            data if data <= ranks * all => "ranks",
            _ => "beyond",
        };
        assert_eq!(case["regime"], regime, "{id}");
        let fits = try_run(&scenario, Policy::LbannDynamic).is_ok();
        // `drop_last` leaves a few samples out of what is read.
        assert_eq!(fits, data * 1.001 <= ranks * memory, "{id}");
        let perfect = run(&scenario, Policy::Perfect).total;
        assert!(report.total >= perfect && run(&scenario, Policy::Naive).total > report.total, "{id}");
    }
}

/// A published scenario with about twenty thousand samples.
pub(crate) fn paper(case: &Value, compat: Compat) -> Scenario {
    scaled(scenario(case, compat), (whole(&case["data"]["count"]) / 20_000).max(1))
}

/// The statements of section 6.1 about all its scenarios, on hardware that mostly waits for compute. Policies
/// that prefetch and keep the order reach the bound, those that preload pay only for that, and without
/// prefetching a run takes half as long again (printed for the first scenario: 1.7 times, which its values do not
/// give).
fn assert_that_compute_binds_and_preloading_shows(inputs: &str, compat: Compat) {
    let mut cases = vectors("loading_paper.json");
    cases.retain(|case| case["id"].as_str().unwrap().ends_with(inputs));
    assert_eq!(cases.len(), 6);
    for case in cases {
        let scenario = paper(&case, compat);
        let what = |policy: Policy| format!("{} {} {policy}", case["id"], compat.name());
        let perfect = run(&scenario, Policy::Perfect).total;
        for policy in [Policy::StagingBuffer, Policy::Nopfs, Policy::Foresee] {
            assert_near(run(&scenario, policy).total, perfect, 2e-3, &what(policy));
        }
        for policy in [Policy::DeepioOrdered, Policy::LocalityAware, Policy::LbannPreloading] {
            if let Ok(report) = try_run(&scenario, policy) {
                assert_near(report.total - report.init, perfect, 0.012, &what(policy));
            }
        }
        let naive = run(&scenario, Policy::Naive).total / perfect;
        assert!((1.45..1.75).contains(&naive), "{}: {naive}", what(Policy::Naive));
    }
}

#[test]
fn on_printed_hardware_compute_binds_and_preloading_shows() {
    assert_that_compute_binds_and_preloading_shows("-printed", Compat::Physical);
}

#[test]
fn on_the_scripts_hardware_compute_binds_and_preloading_shows() {
    assert_that_compute_binds_and_preloading_shows("-script", Compat::Physical);
}

#[test]
fn on_printed_hardware_by_the_paper_compute_binds_and_preloading_shows() {
    assert_that_compute_binds_and_preloading_shows("-printed", Compat::Paper);
}

#[test]
fn on_the_scripts_hardware_by_the_paper_compute_binds_and_preloading_shows() {
    assert_that_compute_binds_and_preloading_shows("-script", Compat::Paper);
}

/// Figure 9: five times the compute. The scripts' inputs give 2.06 h where 1.06 h is printed.
#[test]
fn five_times_the_compute_takes_two_hours_at_least() {
    let cases = vectors("loading_paper.json");
    let case = cases.iter().find(|case| case["id"] == "imagenet-22k-script").unwrap();
    let mut scenario = paper(case, Compat::Physical);
    scenario.training.compute = rate(5 * scenario.training.compute.get());
    let report = run(&scenario, Policy::Perfect);
    let share = to_f64(scenario.data.count()) / to_f64(whole(&case["data"]["count"]));
    // The mean of about twenty thousand drawn sizes is off by about a percent.
    assert_near(report.compute / 4.0 / share / 3600.0, 2.06, 0.02, "hours");
}

#[expect(clippy::cast_precision_loss, reason = "bytes, far below 2^53")]
fn to_f64(bytes: u64) -> f64 {
    bytes as f64
}
