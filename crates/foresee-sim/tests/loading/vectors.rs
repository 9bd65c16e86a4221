// SPDX-License-Identifier: Apache-2.0
//! Test vectors of closed forms, simulated: `testdata/models/stream.json` has times of a stream from one source.

use std::num::NonZeroU64;
use std::path::Path;

use foresee_model::Compat;
use foresee_sim::loading::{
    AccessOrder, DataSet, HandOver, Options, OriginReaders, Place, Policy, Scenario, Training,
};
use foresee_units::{Bytes, Nanos};
use serde_json::Value;

use crate::setups::{MEGA, assert_near, count, origin, rate, run, small, tier};

fn vectors() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models/stream.json");
    let vectors: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let stream = vectors["stream"].as_array().unwrap().clone();
    stream.into_iter().filter(|case| case["sources"].as_array().unwrap().len() == 1).collect()
}

/// One rank that reads the vector's samples in order, from an origin with the rate of its source.
fn scenario(case: &Value) -> Scenario {
    let whole = |field: &str| case[field].as_u64().unwrap();
    let sizes = case["sizes"].as_array().unwrap().iter().map(|size| size.as_u64().unwrap()).collect();
    let mut scenario = small();
    scenario.cluster.ranks = 1;
    scenario.cluster.staging = tier(1_000 * MEGA, u32::try_from(whole("threads")).unwrap(), whole("write"));
    scenario.cluster.staging.write = Some(scenario.cluster.staging.read.clone());
    scenario.cluster.origin = origin(&[(1, case["sources"][0]["thread"].as_u64().unwrap())]);
    scenario.data = DataSet::Given(sizes);
    scenario.training = Training {
        batch: 4,
        epochs: 1,
        drop_last: false,
        compute: rate(whole("compute")),
        preprocess: Some(rate(whole("preprocess"))),
    };
    let compat = Compat::named(case["compat"].as_str().unwrap()).unwrap();
    scenario.options = Options { compat, order: AccessOrder::Sequential, ..Options::default() };
    scenario
}

#[test]
fn a_stream_from_the_origin_takes_as_long_as_by_hand() {
    let vectors = vectors();
    assert_eq!(vectors.len(), 4);
    for case in vectors {
        let report = run(&scenario(&case), Policy::StagingBuffer);
        assert_near(report.total, case["total"].as_f64().unwrap(), 1e-9, &case["id"].to_string());
        assert_near(report.stall, report.total - report.compute, 1e-9, "stall");
    }
}

#[test]
fn perfect_never_waits_and_naive_does_everything_in_turn() {
    for case in vectors() {
        let scenario = scenario(&case);
        let fast = case["compute"].as_u64().unwrap() == 200 * MEGA;
        let (perfect, naive) = if fast { (0.04, 0.24) } else { (0.2, 0.4) };
        assert_near(run(&scenario, Policy::Perfect).total, perfect, 1e-9, "perfect");
        assert_near(run(&scenario, Policy::Naive).total, naive, 1e-9, "naive");
    }
}

/// A buffer of 3 MB: the third sample may be fetched only when the first is consumed. The fourth, larger than the
/// buffer, is fetched only when the buffer is empty.
#[test]
fn a_full_staging_buffer_delays_the_next_fetch() {
    let case = vectors().into_iter().find(|case| case["id"] == "origin-physical-200").unwrap();
    let mut scenario = scenario(&case);
    scenario.cluster.staging.capacity = Bytes::new(3 * MEGA);
    // Available at .025, .07; the third fetch begins at .025 and waits for the origin until .06; it is there at .085.
    // The fourth begins when the third is consumed, at .085: fetched at .165, there at .185, consumed until .205.
    assert_near(run(&scenario, Policy::StagingBuffer).total, 0.205, 1e-9, "total");
}

/// Ten samples of 1 MB at 100 MB/s, whose requests take 50 ms each before the first byte.
#[test]
fn a_thread_waits_for_its_request_while_others_go_on() {
    let mut scenario = scenario(&vectors()[0]);
    scenario.cluster.origin = origin(&[(1, 100 * MEGA)]);
    scenario.cluster.origin_latency = Nanos::from_millis(50);
    scenario.data = DataSet::Equal { count: 10, size: Bytes::new(MEGA) };
    (scenario.training.compute, scenario.training.preprocess) = (rate(1_000 * MEGA), None);
    scenario.cluster.staging.write = None;
    scenario.options.compat = Compat::Physical;
    let total = |threads, compat, policy| {
        let mut scenario = scenario.clone();
        (scenario.cluster.staging.threads, scenario.options.compat) = (count(threads), compat);
        run(&scenario, policy).total
    };
    let physical = Compat::Physical;
    assert_near(total(1, physical, Policy::Naive), 10.0 * (0.05 + 0.01 + 0.001), 1e-9, "one after the other");
    assert_near(total(1, physical, Policy::StagingBuffer), 10.0 * 0.06 + 0.001, 1e-9, "one thread ahead");
    // All requests are in flight at once, and their bytes arrive one after the other.
    assert_near(total(10, physical, Policy::StagingBuffer), 0.05 + 10.0 * 0.01 + 0.001, 1e-9, "ten threads");
    for policy in [Policy::Naive, Policy::StagingBuffer] {
        let mut without = scenario.clone();
        without.cluster.origin_latency = Nanos::ZERO;
        without.options.compat = Compat::Paper;
        without.cluster.staging.threads = count(1);
        assert_near(total(1, Compat::Paper, policy), run(&without, policy).total, 1e-12, "to the letter");
    }
}

/// Twelve samples of 1 MB at 1 GB/s from an origin that accepts 100 requests a second: 10 ms each, one after the
/// other.
#[test]
fn an_origin_accepts_a_limited_number_of_requests_per_second() {
    let mut scenario = scenario(&vectors()[0]);
    scenario.cluster.origin = origin(&[(1, 1_000 * MEGA)]);
    scenario.cluster.origin_requests = NonZeroU64::new(100);
    scenario.cluster.staging.write = None;
    scenario.cluster.staging.threads = count(4);
    scenario.data = DataSet::Equal { count: 12, size: Bytes::new(MEGA) };
    (scenario.training.batch, scenario.training.preprocess) = (1, None);
    scenario.training.compute = rate(100_000 * MEGA);
    let total = |ranks, readers, policy, compat| {
        let mut scenario = scenario.clone();
        scenario.cluster.ranks = ranks;
        (scenario.options.readers, scenario.options.compat) = (readers, compat);
        run(&scenario, policy).total
    };
    for readers in OriginReaders::ALL {
        let staged = total(1, readers, Policy::StagingBuffer, Compat::Physical);
        assert_near(staged, 12.0 * 0.01 + 0.001 + 1e-5, 1e-9, readers.name());
        let naive = total(1, readers, Policy::Naive, Compat::Physical);
        assert_near(naive, 12.0 * (0.01 + 0.001 + 1e-5), 1e-9, readers.name());
    }
    // With a common origin the last of two ranks has its sample as soon as one rank would; with half of the
    // origin each, it takes 2 ms.
    let (all, demand) = (OriginReaders::All, OriginReaders::Demand);
    let staged = |readers| total(2, readers, Policy::StagingBuffer, Compat::Physical);
    assert_near(staged(demand), 12.0 * 0.01 + 0.001 + 1e-5, 1e-9, "in common");
    assert_near(staged(all), 6.0 * 0.02 + 0.002 + 1e-5, 1e-9, "half of it each");
    assert_near(total(1, all, Policy::Naive, Compat::Paper), 12.0 * (0.001 + 1e-5), 1e-9, "to the letter");
}

/// Two equal ranks begin together, with eight threads and four samples of 10 ms each. With a pool, a quarter of
/// the threads precedes the other rank's quarter; a loader with one requesting thread issues all of its requests
/// first.
#[test]
fn ranks_that_begin_together_mix_their_requests() {
    let mut scenario = scenario(&vectors()[0]);
    scenario.cluster.ranks = 2;
    scenario.cluster.origin = origin(&[(1, 100 * MEGA)]);
    scenario.cluster.staging.write = None;
    scenario.cluster.staging.threads = count(8);
    scenario.data = DataSet::Equal { count: 8, size: Bytes::new(MEGA) };
    (scenario.training.batch, scenario.training.preprocess) = (4, None);
    scenario.training.compute = rate(100_000 * MEGA);
    scenario.options.compat = Compat::Physical;
    (scenario.options.readers, scenario.options.hand_over) = (OriginReaders::Queue, HandOver::Batch);
    for latency in [0_u32, 5] {
        scenario.cluster.origin_latency = Nanos::from_millis(latency.into());
        let latencies = 1e-3 * f64::from(latency);
        let stall = |policy| run(&scenario, policy).stall - 2.0 * latencies;
        assert_near(stall(Policy::StagingBuffer), 0.06 + 0.08, 1e-9, "two, two, two, two");
        assert_near(stall(Policy::Foresee), 0.04 + 0.08, 1e-9, "four, four");
    }
}

/// Samples are staged at .025, .07, .085 and .18; the step that needs all of them begins then.
#[test]
fn a_batch_that_is_handed_over_whole_waits_for_its_last_sample() {
    let case = vectors().into_iter().find(|case| case["id"] == "origin-physical-200").unwrap();
    let mut scenario = scenario(&case);
    scenario.options.hand_over = HandOver::Batch;
    let report = run(&scenario, Policy::StagingBuffer);
    assert_near(report.total, 0.18 + 0.04, 1e-9, "total");
    assert_near(report.stall, 0.18, 1e-9, "stall");
    assert_near(report.from(Place::Origin).waited, 0.18, 1e-9, "waited for");
    // Batches of one are samples.
    let total = |hand_over| {
        let mut scenario = scenario.clone();
        (scenario.training.batch, scenario.options.hand_over) = (1, hand_over);
        run(&scenario, Policy::StagingBuffer)
    };
    assert_eq!(total(HandOver::Batch), total(HandOver::Sample));
}

/// Two ranks, of which the first reads ten times as much as the second, at 100 MB/s together.
#[test]
fn an_origin_by_demand_gives_unused_capacity_to_the_other_rank() {
    let mut scenario = scenario(&vectors()[0]);
    scenario.cluster.ranks = 2;
    scenario.cluster.origin = origin(&[(1, 100 * MEGA)]);
    scenario.data = DataSet::Given([10 * MEGA, MEGA].repeat(20));
    scenario.cluster.staging.write = None;
    (scenario.training.batch, scenario.training.preprocess) = (1, None);
    scenario.training.compute = rate(100_000 * MEGA);
    scenario.options.compat = Compat::Physical;
    let mut total = |readers, policy| {
        scenario.options.readers = readers;
        run(&scenario, policy).total
    };
    for policy in [Policy::StagingBuffer, Policy::Naive] {
        assert_near(total(OriginReaders::All, policy), 20.0 * 0.2, 1e-2, "half of it each");
        assert_near(total(OriginReaders::Demand, policy), 20.0 * 0.11, 1e-2, "by demand");
    }
}

/// A sample takes 10 ms to transfer and 10 ms to request. If requests are served one after the other, one rank is
/// served while the other requests. If they share the origin, ranks that begin together request together and
/// share it repeatedly.
#[test]
fn ranks_without_overlap_are_served_while_others_request() {
    let mut scenario = scenario(&vectors()[0]);
    scenario.cluster.ranks = 2;
    scenario.cluster.origin = origin(&[(1, 100 * MEGA)]);
    scenario.cluster.origin_latency = Nanos::from_millis(10);
    scenario.cluster.staging.write = None;
    scenario.data = DataSet::Equal { count: 12, size: Bytes::new(MEGA) };
    scenario.training.batch = 6;
    (scenario.training.compute, scenario.training.preprocess) = (rate(1_000 * MEGA), None);
    (scenario.options.compat, scenario.options.readers) = (Compat::Physical, OriginReaders::Queue);
    let report = run(&scenario, Policy::Naive);
    // The first rank requests until .01 and has its samples at .02, .04, ...; the second is served in between.
    assert_near(report.total, 0.13 + 0.006, 1e-9, "total");
    assert_near(report.stall, 0.12 + 0.13, 1e-9, "stall");
    scenario.options.readers = OriginReaders::Demand;
    let report = run(&scenario, Policy::Naive);
    // Six times 10 ms of requests and 20 ms of shared transfers, up to a turn of 0.66 ms each.
    assert_near(report.total, 0.18 + 0.006, 0.03, "total");
}

/// Four requests begin with the run and share the origin: the first sample arrives with the fourth.
#[test]
fn requests_that_begin_together_end_together_by_demand() {
    let mut scenario = scenario(&vectors()[0]);
    scenario.cluster.origin = origin(&[(1, 100 * MEGA)]);
    scenario.cluster.staging.write = None;
    (scenario.cluster.staging.threads, scenario.cluster.staging.capacity) = (count(8), Bytes::new(4 * MEGA));
    scenario.data = DataSet::Equal { count: 8, size: Bytes::new(MEGA) };
    (scenario.training.batch, scenario.training.preprocess) = (1, None);
    scenario.training.compute = rate(100_000 * MEGA);
    scenario.options.compat = Compat::Physical;
    let mut first_wait = |readers| {
        scenario.options.readers = readers;
        let report = run(&scenario, Policy::StagingBuffer);
        // In any order, the origin delivers them all in the same time.
        assert!(report.total >= 0.08 && report.total < 0.082, "{}", report.total);
        report.stall
    };
    assert!((first_wait(OriginReaders::All) - first_wait(OriginReaders::Demand)).abs() < 1e-3);
}

/// Two equal ranks, except that the first sample of one is three times as large. The other has two more samples
/// by then, and stays ahead. It never waits for data again, but for the slower rank at the end of each step.
#[test]
fn a_rank_that_is_ahead_stays_ahead_at_a_common_origin() {
    let mut scenario = scenario(&vectors()[0]);
    scenario.cluster.ranks = 2;
    scenario.cluster.origin = origin(&[(1, 100 * MEGA)]);
    scenario.cluster.staging.write = None;
    (scenario.cluster.staging.threads, scenario.cluster.staging.capacity) = (count(1), Bytes::new(8 * MEGA));
    let mut sizes = vec![MEGA; 40];
    sizes[0] = 3 * MEGA;
    scenario.data = DataSet::Given(sizes);
    (scenario.training.batch, scenario.training.preprocess) = (1, None);
    (scenario.training.epochs, scenario.training.compute) = (1, rate(100 * MEGA));
    let options = &mut scenario.options;
    (options.compat, options.order) = (Compat::Physical, AccessOrder::Sequential);
    (options.readers, options.hand_over) = (OriginReaders::Demand, HandOver::Batch);
    let report = run(&scenario, Policy::StagingBuffer);
    // Both read all the time: 42 MB at 100 MB/s, then the last step computes for 10 ms.
    assert_near(report.total, 0.43, 1e-9, "total");
    // The slower rank waits 60 ms for its first sample, and not for the next two, since it computes for 30 ms on
    // the first. It then waits 10 ms for each of 15; the last two arrive at the full rate, when the other has all
    // of its own. The faster rank waited 20 ms for data, and for the other at the end of each step.
    assert_near(report.stall, 0.06 + 0.15 + 0.02, 1e-2, "stall, but for a turn");
    assert_near(report.barrier, 0.06 + 0.15, 1e-2, "barrier, likewise");
}

/// Space for two samples, batches of one, 10 ms to read and 10 ms to compute: the third sample is requested when
/// the step of the first has ended, and not when it has begun.
#[test]
fn a_batch_that_is_handed_over_whole_occupies_the_buffer_until_its_step_has_ended() {
    let mut scenario = scenario(&vectors()[0]);
    scenario.cluster.origin = origin(&[(1, 100 * MEGA)]);
    scenario.cluster.staging.write = None;
    (scenario.cluster.staging.threads, scenario.cluster.staging.capacity) = (count(2), Bytes::new(2 * MEGA));
    scenario.data = DataSet::Equal { count: 3, size: Bytes::new(MEGA) };
    (scenario.training.batch, scenario.training.preprocess) = (1, None);
    scenario.training.compute = rate(100 * MEGA);
    scenario.options.compat = Compat::Physical;
    // There at .01 and .02; the third begins at .02 and is there at .03, when the second's step ends.
    scenario.options.hand_over = HandOver::Batch;
    assert_near(run(&scenario, Policy::StagingBuffer).total, 0.04, 1e-9, "until the end");
    // With space for one, each is read after the previous step.
    scenario.cluster.staging.capacity = Bytes::new(MEGA);
    assert_near(run(&scenario, Policy::StagingBuffer).total, 0.06, 1e-9, "one at a time");
    scenario.options.hand_over = HandOver::Sample;
    assert_near(run(&scenario, Policy::StagingBuffer).total, 0.04, 1e-9, "while it is computed on");
}
