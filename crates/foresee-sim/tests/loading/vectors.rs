// SPDX-License-Identifier: Apache-2.0
//! The vectors of closed forms, played: `testdata/models/stream.json` has times of a stream from one source.

use std::path::Path;

use foresee_model::Compat;
use foresee_sim::loading::{AccessOrder, DataSet, Options, Policy, Scenario, Training};
use serde_json::Value;

use crate::setups::{MEGA, assert_near, origin, rate, run, small, tier};

fn vectors() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models/stream.json");
    let vectors: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let stream = vectors["stream"].as_array().unwrap().clone();
    stream.into_iter().filter(|case| case["sources"].as_array().unwrap().len() == 1).collect()
}

/// One rank that reads what the vector says, in its order, from an origin that yields what its source does.
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

/// A buffer of 3 MB: the third sample may be fetched only when the first is consumed, the fourth, larger than the
/// buffer, only when it is empty.
#[test]
fn a_full_staging_buffer_holds_the_next_fetch_back() {
    let case = vectors().into_iter().find(|case| case["id"] == "origin-physical-200").unwrap();
    let mut scenario = scenario(&case);
    scenario.cluster.staging.capacity = foresee_units::Bytes::new(3 * MEGA);
    // Available at .025, .07; the third fetch begins at .025 and waits for the origin until .06; it is there at .085.
    // The fourth begins when the third is consumed, at .085: fetched at .165, there at .185, consumed until .205.
    assert_near(run(&scenario, Policy::StagingBuffer).total, 0.205, 1e-9, "total");
}
