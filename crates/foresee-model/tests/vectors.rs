// SPDX-License-Identifier: Apache-2.0
//! The vectors of `testdata/models/`, which other languages read too: the result of each formula with its
//! tolerance.

#![expect(clippy::unwrap_used, reason = "a vector that cannot be read fails its test")]

use std::num::NonZeroU32;
use std::path::Path;

use foresee_model::{
    AccessFrequency, Compat, OriginCurve, SourceRate, Staging, StreamRead, some_other_reads_at_least,
    some_other_reads_at_most, stream_times,
};
use foresee_units::BytesPerSecond;
use serde_json::Value;

fn vectors(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models").join(name);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The cases of one kind, at least one.
fn cases<'a>(vectors: &'a Value, kind: &str) -> &'a [Value] {
    let cases = vectors[kind].as_array().unwrap();
    assert!(!cases.is_empty(), "{kind}");
    cases
}

fn whole(case: &Value, field: &str) -> u64 {
    case[field].as_u64().unwrap_or_else(|| panic!("{field} of {case}"))
}

fn short(case: &Value, field: &str) -> u32 {
    u32::try_from(whole(case, field)).unwrap()
}

fn number(case: &Value, field: &str) -> f64 {
    case[field].as_f64().unwrap_or_else(|| panic!("{field} of {case}"))
}

fn numbers(case: &Value, field: &str) -> Vec<f64> {
    case[field].as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

fn compat(case: &Value) -> Compat {
    Compat::named(case["compat"].as_str().unwrap()).unwrap()
}

fn assert_near(got: f64, expected: f64, case: &Value) {
    let allowed = number(case, "tolerance") * expected.abs();
    assert!((got - expected).abs() <= allowed, "{got} instead of {expected}: {case}");
}

#[test]
fn access_frequencies_match_the_vectors() {
    let vectors = vectors("reads.json");
    let frequency = |case: &Value| {
        AccessFrequency::new(short(case, "ranks"), short(case, "epochs"), whole(case, "samples")).unwrap()
    };
    for case in cases(&vectors, "expected_at_least") {
        assert_near(frequency(case).expected_at_least(whole(case, "reads")), number(case, "expected"), case);
    }
    for case in cases(&vectors, "expected_above") {
        let (frequency, delta) = (frequency(case), case["delta"].as_str().unwrap().parse().unwrap());
        assert_eq!(frequency.least_reads_above(delta, compat(case)), whole(case, "reads"), "{case}");
        assert_near(frequency.expected_above(delta, compat(case)), number(case, "expected"), case);
    }
}

#[test]
fn reads_of_other_ranks_match_the_vectors() {
    for case in cases(&vectors("reads.json"), "some_other_reads") {
        let bound = match case["bound"].as_str().unwrap() {
            "at_most" => some_other_reads_at_most,
            "at_least" => some_other_reads_at_least,
            other => panic!("no bound: {other}"),
        };
        let delta = case["delta"].as_str().unwrap().parse().unwrap();
        let other = bound(short(case, "ranks"), short(case, "epochs"), delta).unwrap();
        let expected = ["here", "limit", "tight"].map(|field| whole(case, field));
        assert_eq!([other.here, other.limit, other.tight], expected, "{case}");
    }
}

#[test]
fn rates_of_the_origin_match_the_vectors() {
    for case in cases(&vectors("stream.json"), "origin_curve") {
        let points = case["points"].as_array().unwrap().iter().map(|point| {
            let [readers, rate] = [0, 1].map(|at| point[at].as_u64().unwrap());
            (u32::try_from(readers).unwrap(), BytesPerSecond::new(rate))
        });
        let curve = OriginCurve::new(points).unwrap();
        for (readers, expected) in numbers(case, "readers").into_iter().zip(numbers(case, "expected")) {
            assert_near(curve.share(readers).unwrap() * readers, expected, case);
        }
    }
}

#[test]
fn times_of_a_stream_match_the_vectors() {
    for case in cases(&vectors("stream.json"), "stream") {
        let staging = Staging::new(
            NonZeroU32::new(short(case, "threads")).unwrap(),
            Some(number(case, "preprocess")),
            Some(number(case, "write")),
        );
        let sources: Vec<_> = cases(case, "sources")
            .iter()
            .map(|source| SourceRate { thread: number(source, "thread"), all: number(source, "all") })
            .collect();
        let reads: Vec<_> = numbers(case, "sizes")
            .into_iter()
            .zip(case["from"].as_array().unwrap())
            .map(|(size, from)| StreamRead { size, source: usize::try_from(from.as_u64().unwrap()).unwrap() })
            .collect();
        let times =
            stream_times(&staging.unwrap(), &sources, &reads, number(case, "compute"), compat(case)).unwrap();
        for (got, field) in [(&times.available, "available"), (&times.consumed, "consumed")] {
            assert_eq!(got.len(), numbers(case, field).len());
            for (got, expected) in got.iter().zip(numbers(case, field)) {
                assert_near(*got, expected, case);
            }
        }
        assert_near(times.total, number(case, "total"), case);
    }
}
