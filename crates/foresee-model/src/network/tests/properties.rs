// SPDX-License-Identifier: Apache-2.0
//! Properties over random steps: closed form and timeline agree, policies keep their order, the required
//! bandwidth inverts the time, and no timeline violates a rule of the link.

use foresee_testkit::property;
use foresee_units::{Bytes, GAMMA, mix};
use proptest::prelude::*;

use super::{bandwidths, link, near, real_steps, small_steps};
use crate::network::{Compat, GradientStep, Layer, Policy, RequiredBandwidth, Timeline};
use crate::number::as_f64;

fn policies() -> [Policy; 6] {
    let [oracle, mercury, barrier, fifo_packet, fifo_tensor] = Policy::all(Compat::Physical);
    [oracle, mercury, barrier, fifo_packet, Policy::FifoTensor(Compat::Paper), fifo_tensor]
}

fn steps() -> impl Strategy<Value = (GradientStep, f64)> {
    prop_oneof![
        (small_steps(6, 5, 4), (1..=4_u8).prop_map(f64::from)),
        (real_steps(40), bandwidths()),
        (real_steps(300), bandwidths()),
    ]
}

/// All bytes of a policy are sent once, in order, and never before they are ready.
fn check_links(step: &GradientStep, policy: Policy, timeline: &Timeline, bandwidth: f64) {
    let slack = 1e-9 * timeline.time();
    for (transfers, alone) in
        [(&timeline.uplink, true), (&timeline.downlink, policy != Policy::FifoTensor(Compat::Paper))]
    {
        let mut carried = vec![0.0; step.layers().len()];
        for transfer in transfers {
            carried[transfer.layer] += transfer.end - transfer.start;
            assert!(transfer.start + slack >= timeline.backward[transfer.layer], "{policy}: sent too early");
            assert!(transfer.end <= timeline.pull[transfer.layer] + slack, "{policy}: received too early");
        }
        for (layer, carried) in step.layers().iter().zip(carried) {
            let bytes = as_f64(layer.bytes.get());
            let sent = if policy == Policy::Oracle { 0.0 } else { bytes / bandwidth };
            assert!((carried - sent).abs() <= slack, "{policy}: {carried} s instead of {sent}");
        }
        if alone {
            for pair in transfers.windows(2) {
                assert!(pair[0].end <= pair[1].start + slack, "{policy}: two at once, {pair:?}");
            }
        }
        assert!(transfers.len() <= 2 * step.layers().len(), "more interruptions than layers");
    }
}

proptest! {
    #![proptest_config(property(2_000))]

    #[test]
    fn closed_forms_match_the_simulation_of_the_rules((step, bandwidth) in steps()) {
        for policy in policies() {
            let closed = step.time(policy, link(bandwidth)).unwrap();
            let timeline = step.timeline(policy, link(bandwidth)).unwrap();
            prop_assert!(near(closed, timeline.time()), "{policy}: {closed} and {}", timeline.time());
            // For every policy, the step ends with the latest chain of receipt and remaining compute.
            if policy != Policy::Barrier {
                let chains = timeline.pull.iter().zip(&step.rest).map(|(pull, rest)| pull + rest);
                prop_assert!(near(closed, chains.fold(0.0, f64::max)));
            }
            check_links(&step, policy, &timeline, bandwidth);
        }
    }

    #[test]
    fn policies_keep_their_order_of_speed((step, bandwidth) in steps()) {
        let times = policies().map(|policy| step.time(policy, link(bandwidth)).unwrap());
        for pair in times.windows(2) {
            prop_assert!(pair[0] <= pair[1] * (1.0 + 1e-12), "{times:?}");
        }
        prop_assert!(step.barrier_cost(link(bandwidth)).unwrap() >= 0.0);
        let speed = step.speed(Policy::Mercury, link(bandwidth)).unwrap();
        prop_assert!(speed > 0.0 && speed <= 1.0);
    }

    #[test]
    fn the_required_bandwidth_is_the_one_that_just_reaches_the_goal(
        (step, _) in steps(), goal in prop_oneof![Just(0.99), Just(0.9), 0.01..0.9999_f64], half in any::<bool>()
    ) {
        let efficiency = if half { 0.5 } else { 1.0 };
        for policy in policies() {
            let RequiredBandwidth::AtLeast(rate) = step.required_bandwidth(policy, goal, efficiency).unwrap() else {
                return Err(TestCaseError::fail("every goal below 1 is within reach"));
            };
            if rate == 0.0 {
                prop_assert!(policy == Policy::Oracle || step.bytes().is_zero());
                continue;
            }
            let speed = step.speed(policy, crate::Link::new(rate, efficiency).unwrap()).unwrap();
            prop_assert!(near(speed, goal), "{policy}: {speed} at {rate} B/s instead of {goal}");
            let less = step.speed(policy, crate::Link::new(rate * 0.999, efficiency).unwrap()).unwrap();
            prop_assert!(less < goal, "{policy}: {goal} also with less than {rate} B/s");
        }
    }

    #[test]
    fn more_bandwidth_is_never_slower((step, bandwidth) in steps(), factor in 1.0..10.0_f64) {
        for policy in policies() {
            let one = step.time(policy, link(bandwidth)).unwrap();
            let more = step.time(policy, link(bandwidth * factor)).unwrap();
            prop_assert!(more <= one * (1.0 + 1e-12), "{policy}");
        }
    }

    #[test]
    fn a_goal_of_1_is_reached_exactly_where_the_layers_used_first_travel_for_free(
        (step, _) in steps(), free in 0..4_usize
    ) {
        let layers = step.layers().iter().enumerate().map(|(at, layer)| {
            let bytes = if at < free { Bytes::ZERO } else { layer.bytes };
            Layer { bytes, ..*layer }
        });
        let step = GradientStep::new(layers).unwrap();
        match step.required_bandwidth(Policy::Mercury, 1.0, 1.0).unwrap() {
            RequiredBandwidth::Infeasible { goal, best } => {
                prop_assert_eq!((goal, best), (1.0, 1.0));
                let speed = step.speed(Policy::Mercury, link(1e200)).unwrap();
                prop_assert!(near(speed, 1.0), "approached: {speed}");
            }
            RequiredBandwidth::AtLeast(rate) => {
                let first = step.layers()[0].bytes;
                prop_assert!(first.is_zero(), "the first layer's bytes are always waited for");
                if rate > 0.0 {
                    prop_assert!(near(step.speed(Policy::Mercury, link(rate)).unwrap(), 1.0));
                }
            }
        }
    }
}

#[test]
fn an_invalid_goal_is_refused_and_one_above_1_is_infeasible() {
    let layer = Layer { bytes: Bytes::new(3), backward: 1.0, forward: 1.0, update: 0.0 };
    let step = GradientStep::new([layer]).unwrap();
    for goal in [0.0, -0.5, f64::NAN, f64::INFINITY] {
        assert!(step.required_bandwidth(Policy::Mercury, goal, 1.0).is_err(), "{goal}");
    }
    assert!(step.required_bandwidth(Policy::Mercury, 0.5, 0.0).is_err());
    let beyond = RequiredBandwidth::Infeasible { goal: 1.5, best: 1.0 };
    assert_eq!(step.required_bandwidth(Policy::Oracle, 1.5, 1.0), Ok(beyond));
    assert_eq!(beyond.bytes_per_second(), None);
    let silent = GradientStep::new([Layer { bytes: Bytes::ZERO, ..layer }]).unwrap();
    let need = silent.required_bandwidth(Policy::FifoPacket, 1.0, 1.0);
    assert_eq!(need, Ok(RequiredBandwidth::AtLeast(0.0)));
}

/// Sizes and times drawn by SplitMix64.
fn long_step(layers: u64) -> GradientStep {
    let draw = |at: u64| mix(at.wrapping_mul(GAMMA));
    let seconds = |at| f64::from(u32::try_from(draw(at) >> 44).unwrap()) * 1e-9;
    GradientStep::new((0..layers).map(|l| Layer {
        bytes: Bytes::new(draw(4 * l) % 1_000_000),
        backward: seconds(4 * l + 1),
        forward: seconds(4 * l + 2),
        update: seconds(4 * l + 3),
    }))
    .unwrap()
}

#[test]
fn a_hundred_thousand_layers_take_linear_time() {
    let step = long_step(100_000);
    for policy in policies() {
        let closed = step.time(policy, link(1e9)).unwrap();
        let followed = step.timeline(policy, link(1e9)).unwrap().time();
        assert!(near(closed, followed), "{policy}");
        let need = step.required_bandwidth(policy, 0.99, 1.0).unwrap().bytes_per_second().unwrap();
        if need > 0.0 {
            assert!(near(step.speed(policy, link(need)).unwrap(), 0.99), "{policy}");
        }
    }
}
