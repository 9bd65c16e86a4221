// SPDX-License-Identifier: Apache-2.0
//! Scenarios for tests, and functions that run them.

use std::num::NonZeroU32;

use foresee_model::{OriginCurve, ThreadCurve};
use foresee_sim::loading::{
    AccessOrder, Cluster, DataSet, Options, Policy, Progress, Report, Run, RunError, Scenario, Tier, Training,
};
use foresee_units::{Bytes, BytesPerSecond, Nanos};

pub(crate) const MEGA: u64 = 1_000_000;

pub(crate) fn rate(value: u64) -> BytesPerSecond {
    BytesPerSecond::new(value)
}

pub(crate) fn count(value: u32) -> NonZeroU32 {
    NonZeroU32::new(value).unwrap()
}

/// A tier of `capacity` bytes that `threads` threads together read at `read` bytes per second.
pub(crate) fn tier(capacity: u64, threads: u32, read: u64) -> Tier {
    let read = ThreadCurve::new([(threads, rate(read))]).unwrap();
    Tier { capacity: Bytes::new(capacity), threads: count(threads), read, write: None }
}

/// A tier with equal read and write rates.
pub(crate) fn even_tier(capacity: u64, threads: u32, speed: u64) -> Tier {
    let even = tier(capacity, threads, speed);
    Tier { write: Some(even.read.clone()), ..even }
}

pub(crate) fn origin(points: &[(u32, u64)]) -> OriginCurve {
    OriginCurve::new(points.iter().map(|&(readers, yields)| (readers, rate(yields)))).unwrap()
}

/// Two ranks, memory for a quarter of the data each, disk for another quarter, and an origin as the bottleneck.
pub(crate) fn small() -> Scenario {
    Scenario {
        cluster: Cluster {
            ranks: 2,
            staging: even_tier(2 * MEGA, 2, 5_000 * MEGA),
            tiers: vec![tier(10 * MEGA, 2, 2_000 * MEGA), tier(10 * MEGA, 1, 200 * MEGA)],
            origin: origin(&[(1, 40 * MEGA), (2, 60 * MEGA)]),
            origin_link: None,
            origin_latency: Nanos::ZERO,
            origin_requests: None,
            peer_link: Some(rate(500 * MEGA)),
        },
        data: DataSet::Equal { count: 400, size: Bytes::new(100_000) },
        training: Training {
            batch: 8,
            epochs: 4,
            drop_last: false,
            compute: rate(50 * MEGA),
            preprocess: Some(rate(200 * MEGA)),
        },
        options: Options { order: AccessOrder::Shuffled { seed: 5 }, ..Options::default() },
        bucket: None,
    }
}

/// The report of the whole run.
pub(crate) fn run(scenario: &Scenario, policy: Policy) -> Report {
    try_run(scenario, policy).unwrap_or_else(|error| panic!("{policy}: {error}"))
}

pub(crate) fn try_run(scenario: &Scenario, policy: Policy) -> Result<Report, RunError> {
    let mut run = Run::new(scenario, policy)?;
    while run.advance(u64::MAX) != Progress::Finished {}
    Ok(run.report())
}

pub(crate) fn assert_near(got: f64, expected: f64, tolerance: f64, what: &str) {
    let deviation = (got - expected).abs() / expected.abs().max(1e-12);
    assert!(deviation <= tolerance, "{what}: {got} instead of {expected}, {deviation:.2e} off");
}
