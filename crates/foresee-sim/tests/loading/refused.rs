// SPDX-License-Identifier: Apache-2.0
//! Errors of invalid scenarios: field, value, unit and rule, all faults at once.

use foresee_model::Compat;
use foresee_sim::loading::{Bucket, DataSet, HandOver, OriginReaders, Policy, Run, RunError, Scenario};
use foresee_units::{Bytes, Nanos};

use crate::setups::{count, rate, small, try_run};

/// The error message of a modified scenario.
fn fault(change: impl FnOnce(&mut Scenario)) -> String {
    let mut scenario = small();
    change(&mut scenario);
    let error = scenario.check().unwrap_err();
    assert_eq!(error.faults.len(), 1, "{error}");
    assert_eq!(Run::new(&scenario, Policy::Perfect).unwrap_err(), RunError::Scenario(error.clone()));
    error.to_string()
}

const BUCKET: Bucket = Bucket {
    miss: Nanos::from_millis(1),
    download: Nanos::from_millis(1),
    link: Nanos::ZERO,
    listing: Nanos::ZERO,
    hit: Nanos::ZERO,
    parallel: std::num::NonZeroU32::MIN,
    cache: Some(10),
    fetch: None,
    threshold: None,
    strict: false,
};

#[test]
fn each_invalid_value_is_named_with_its_unit_and_rule() {
    let normal = |mean, deviation| DataSet::Normal { count: 400, mean, deviation, seed: 1 };
    let faults = [
        (
            fault(|s| s.cluster.ranks = 0),
            "cluster.ranks is 0 ranks, one sample for each; it must be 1 to 400",
        ),
        (fault(|s| s.cluster.ranks = 401), "cluster.ranks is 401"),
        (
            fault(|s| s.cluster.tiers = vec![s.cluster.tiers[0].clone(); 8]),
            "cluster.tiers is 8 tiers; it must be 0 to 7",
        ),
        (
            fault(|s| s.cluster.staging.capacity = Bytes::ZERO),
            "capacity of a tier is 0 bytes; it must be 1 or more",
        ),
        (fault(|s| s.cluster.origin_link = Some(rate(0))), "cluster.origin_link is 0 bytes per second"),
        (fault(|s| s.cluster.peer_link = Some(rate(0))), "cluster.peer_link is 0 bytes per second"),
        (fault(|s| s.training.compute = rate(0)), "training.compute is 0 bytes per second"),
        (fault(|s| s.training.preprocess = Some(rate(0))), "training.preprocess is 0 bytes per second"),
        (fault(|s| s.training.batch = 0), "training.batch is 0 samples"),
        (fault(|s| s.training.epochs = 0), "training.epochs is 0 epochs"),
        (fault(|s| s.data = DataSet::Equal { count: 400, size: Bytes::ZERO }), "data.size is 0 bytes"),
        (fault(|s| s.data = DataSet::Given([vec![1; 399], vec![0]].concat())), "data.sizes is 0 bytes"),
        (fault(|s| s.data = normal(f64::NAN, 1.0)), "data.mean is NaN bytes; it must be finite and above 0"),
        (fault(|s| s.data = normal(-1.0, 1.0)), "data.mean is -1 bytes"),
        (
            fault(|s| s.data = normal(1.0, f64::INFINITY)),
            "data.deviation is inf bytes; it must be finite and 0 or more",
        ),
        (fault(|s| s.bucket = Some(Bucket { cache: Some(0), ..BUCKET })), "bucket.cache is 0 samples"),
        (fault(|s| s.bucket = Some(Bucket { fetch: Some(0), ..BUCKET })), "bucket.fetch is 0 samples"),
        (
            fault(|s| s.bucket = Some(Bucket { threshold: Some(0), strict: true, ..BUCKET })),
            "bucket.threshold is 0 samples",
        ),
    ];
    for (message, expected) in faults {
        assert!(message.starts_with(expected), "{message:?} instead of {expected:?}");
    }
    let short = fault(|s| {
        s.training.drop_last = true;
        s.training.batch = 201;
    });
    assert!(short.starts_with("ranks times training.batch is 402 samples"), "{short}");
    let active = fault(|s| {
        s.options.readers = OriginReaders::Active;
        s.options.compat = Compat::Paper;
    });
    assert_eq!(active, "options.readers is active; it must be all, where compat is paper");
    let batch = fault(|s| {
        s.options.hand_over = HandOver::Batch;
        s.options.compat = Compat::Paper;
    });
    assert_eq!(batch, "options.hand_over is batch; it must be sample, where compat is paper");
}

#[test]
fn an_empty_data_set_is_refused_and_all_faults_are_reported_together() {
    let mut scenario = small();
    scenario.data = DataSet::Given(Vec::new());
    scenario.training.batch = 0;
    let error = scenario.check().unwrap_err();
    let fields: Vec<_> = error.faults.iter().map(|fault| fault.field).collect();
    assert_eq!(fields, ["data.count", "cluster.ranks", "training.batch"]);
    assert_eq!(error.to_string().lines().count(), 3);
}

/// Why `policy` is unsupported, while all others are supported.
fn unsupported(policy: Policy, change: impl FnOnce(&mut Scenario)) -> String {
    let mut scenario = small();
    change(&mut scenario);
    assert!(try_run(&scenario, Policy::StagingBuffer).is_ok());
    match try_run(&scenario, policy) {
        Err(RunError::Unsupported(unsupported)) if unsupported.policy == policy => unsupported.reason,
        other => panic!("{policy}: {other:?}"),
    }
}

#[test]
fn an_unsupported_policy_gives_the_reason_and_others_still_run() {
    for policy in [Policy::LbannDynamic, Policy::LbannPreloading] {
        assert!(unsupported(policy, |_| {}).contains("40.0 MB are more than 2 times 10.0 MB"));
        assert!(unsupported(policy, |s| s.cluster.tiers.clear()).contains("cluster.tiers is empty"));
    }
    for policy in Policy::ALL.into_iter().filter(|policy| policy.reads_bucket()) {
        assert!(unsupported(policy, |_| {}).contains("none was given"));
    }
    for policy in [Policy::DeepioOrdered, Policy::LocalityAware, Policy::Nopfs] {
        assert!(
            unsupported(policy, |s| s.cluster.peer_link = None)
                .contains("cluster.peer_link was not measured")
        );
    }
    for policy in [Policy::DeepioOptimistic, Policy::ParallelStaging] {
        assert!(unsupported(policy, |s| s.cluster.tiers.clear()).contains("cluster.tiers is empty"));
        let tiny = |s: &mut Scenario| s.cluster.tiers = vec![crate::setups::tier(99_999, 1, 1_000)];
        assert!(unsupported(policy, tiny).contains("no tier that holds a single sample"));
    }
    let open = Bucket { cache: None, ..BUCKET };
    assert!(unsupported(Policy::FiftyFifty, |s| s.bucket = Some(open)).contains("bucket.fetch"));
}

#[test]
fn one_rank_needs_no_link_to_peers() {
    let mut scenario = small();
    scenario.cluster.ranks = 1;
    scenario.cluster.peer_link = None;
    scenario.bucket = Some(Bucket { parallel: count(2), ..BUCKET });
    for policy in Policy::ALL {
        if !matches!(policy, Policy::LbannDynamic | Policy::LbannPreloading) {
            assert!(try_run(&scenario, policy).is_ok(), "{policy}");
        }
    }
}

#[test]
fn data_that_cannot_fit_into_memory_is_refused_in_advance() {
    let mut scenario = small();
    scenario.data = DataSet::Equal { count: u64::from(u32::MAX) - 1, size: Bytes::new(1) };
    scenario.training.epochs = u32::MAX;
    for policy in [Policy::Nopfs, Policy::Foresee] {
        let error = Run::new(&scenario, policy).unwrap_err().to_string();
        assert!(error.contains("4294967295 epochs of 4294967294 do not fit into memory"), "{error}");
    }
}
