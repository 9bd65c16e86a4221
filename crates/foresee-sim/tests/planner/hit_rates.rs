// SPDX-License-Identifier: Apache-2.0
//! Hit rates that the design relies on, measured on drawn orders. `--nocapture` prints the tables.

#![expect(clippy::print_stdout, reason = "the values are for people to read")]

use foresee_data_plan::PolicyChoice;
use foresee_units::{Bytes, SampleId};

use crate::support::hits::{PolicyKind, simulate};
use crate::support::{equal, shuffled_epochs, total};

const SAMPLES: u64 = 20_000;
const EPOCHS: usize = 10;

/// Hit rates without the first `skip` epochs, with caches of the given thousandths of the data set.
fn hit_rates(kind: PolicyKind, epochs: &[Vec<SampleId>], skip: usize, caches: &[u64]) -> Vec<f64> {
    let rate = |thousandths: &u64| {
        let capacity = Bytes::new(SAMPLES * thousandths / 1000);
        let reports = simulate(kind, epochs, &equal(SAMPLES), capacity);
        total(&reports[skip..]).hit_rate().expect("every epoch has accesses")
    };
    let rates: Vec<f64> = caches.iter().map(rate).collect();
    println!("{kind:?}: {rates:.3?}");
    rates
}

/// Within 0.01 of the expected rates, which come from another drawn order.
fn assert_near(measured: &[f64], expected: &[f64]) {
    assert_eq!(measured.len(), expected.len());
    for (measured, expected) in measured.iter().zip(expected) {
        assert!((measured - expected).abs() < 0.01, "{measured:.4} instead of {expected:.4}");
    }
}

#[test]
fn for_one_rank_pin_is_as_good_as_next_use_and_lru_is_far_from_both() {
    let epochs = shuffled_epochs(SAMPLES, EPOCHS, 0, 1, 1);
    let rates = |kind| hit_rates(kind, &epochs, 1, &[250, 500, 750, 900]);
    assert_near(&rates(PolicyKind::Lru), &[0.035, 0.153, 0.404, 0.670]);
    for kind in [PolicyKind::Pin, PolicyKind::NextUse, PolicyKind::PLANNER] {
        assert_near(&rates(kind), &[0.25, 0.5, 0.75, 0.9]);
    }
}

#[test]
fn for_one_of_eight_ranks_only_next_use_is_near_the_infinite_cache() {
    let epochs = shuffled_epochs(SAMPLES, EPOCHS, 0, 8, 1);
    let rates = |kind| hit_rates(kind, &epochs, 0, &[50, 125, 250, 1000]);
    assert_near(&rates(PolicyKind::Lru), &[0.009, 0.057, 0.164, 0.410]);
    assert_near(&rates(PolicyKind::Pin), &[0.045, 0.113, 0.210, 0.410]);
    for kind in [PolicyKind::NextUse, PolicyKind::PLANNER] {
        assert_near(&rates(kind), &[0.210, 0.315, 0.410, 0.410]);
    }
}

/// The basis of the planner's horizon: a rank reads a sample once per as many accesses as there are samples, and
/// four times that look-ahead suffices.
#[test]
fn a_look_ahead_of_four_accesses_per_sample_is_as_good_as_the_whole_run() {
    let epochs = shuffled_epochs(SAMPLES, 80, 0, 8, 1);
    let rates = |ahead| {
        let kind = PolicyKind::Planner { choice: PolicyChoice::Auto, ahead };
        hit_rates(kind, &epochs, 0, &[50, 125, 250, 500])
    };
    let samples = usize::try_from(SAMPLES).expect("20,000");
    let [short, long, whole] = [samples / 4, 4 * samples, usize::MAX].map(rates);
    for cache in 0..whole.len() {
        assert!(short[cache] <= whole[cache] && long[cache] > whole[cache] - 0.001);
    }
}

#[test]
fn with_a_window_of_a_twentieth_of_the_data_every_copy_still_hits_once_an_epoch() {
    let epochs = shuffled_epochs(SAMPLES, EPOCHS, 0, 1, 1);
    let window = PolicyKind::Planner { choice: PolicyChoice::Auto, ahead: 1024 };
    assert_near(&hit_rates(window, &epochs, 1, &[102, 250, 500, 750, 1000]), &[0.102, 0.25, 0.5, 0.75, 1.0]);
}

#[test]
fn with_equal_hit_rates_the_planner_pins_and_writes_each_copy_once() {
    let epochs = shuffled_epochs(SAMPLES, EPOCHS, 0, 1, 1);
    let half = Bytes::new(SAMPLES / 2);
    let written = |kind| {
        let report = total(&simulate(kind, &epochs, &equal(SAMPLES), half));
        println!(
            "{kind:?}: {} of {SAMPLES} bytes written, {} evictions",
            report.cached_bytes, report.evictions
        );
        report.cached_bytes
    };
    assert_eq!(written(PolicyKind::PLANNER), half);
    let next_use = PolicyKind::Planner { choice: PolicyChoice::NextUse, ahead: usize::MAX };
    assert!(written(next_use) > half && written(PolicyKind::Lru) > half);
}
