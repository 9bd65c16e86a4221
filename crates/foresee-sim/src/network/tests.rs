// SPDX-License-Identifier: Apache-2.0
//! The simulator against closed forms, which it must match for small packets and windows.

use std::num::{NonZeroU32, NonZeroU64};

use foresee_grad_queue::{BYTEPS_PARTITION, Policy, Window};
use foresee_model::ModelError;
use foresee_testkit::property;
use foresee_units::{Bytes, BytesPerSecond, Nanos};
use proptest::prelude::*;

use super::{Layer, Network, simulate_step};

/// Nanoseconds per byte, so that every time is a whole number.
const BYTE: u64 = 8;
const RATE: BytesPerSecond = BytesPerSecond::new(1_000_000_000 / BYTE);

fn network(policy: Policy, packet: u32) -> Network {
    let packet = NonZeroU32::new(packet).unwrap();
    Network { policy, rate: RATE, packet, socket: Bytes::MAX, startup: Nanos::ZERO }
}

/// Length of a step, nanoseconds.
fn total(layers: &[Layer], network: &Network) -> u64 {
    simulate_step(layers, network).unwrap().total.get()
}

/// Closed forms, in nanoseconds; layers count from 0 here and from 1 in the paper.
struct Closed {
    /// End of each layer's backward: the sum of `bp` from it to the last.
    ready: Vec<u64>,
    /// Time of each push, and of each pull.
    send: Vec<u64>,
    /// Time after a layer's pull: the sum of `upd + fp` from it to the last.
    tail: Vec<u64>,
}

impl Closed {
    fn new(layers: &[Layer]) -> Self {
        let suffix = |time: &dyn Fn(&Layer) -> u64| {
            let from = |at: usize| layers[at..].iter().map(time).sum();
            (0..layers.len()).map(from).collect::<Vec<u64>>()
        };
        Self {
            ready: suffix(&|layer| layer.backward.get()),
            send: layers.iter().map(|layer| layer.bytes.get() * BYTE).collect(),
            tail: suffix(&|layer| layer.update.get() + layer.forward.get()),
        }
    }

    fn sent(&self, layers: std::ops::RangeInclusive<usize>) -> u64 {
        self.send[layers].iter().sum()
    }

    /// The maximum of `term(l, k)` over `l <= k`. A layer without bytes never waits, so it has no term of its
    /// own; without any term, the computation time remains.
    fn most(&self, term: impl Fn(usize, usize) -> u64) -> u64 {
        let count = self.send.len();
        let pairs = (0..count).filter(|&l| self.send[l] > 0).flat_map(|l| (l..count).map(move |k| (l, k)));
        pairs.map(|(l, k)| term(l, k)).fold(self.oracle(), u64::max)
    }

    fn oracle(&self) -> u64 {
        self.ready[0] + self.tail[0]
    }

    /// `max_l [ tau_bp[l] + U[l] + q[l] ]`: Duan et al., TPDS 2023, equation (8), solved.
    fn mercury(&self) -> u64 {
        self.most(|l, _| self.ready[l] + self.sent(0..=l) + self.tail[l])
    }

    /// `max_{l <= k} [ tau_bp[k] + U[k] - U[l-1] + q[l] ]`: the same without preemption.
    fn fifo_packet(&self) -> u64 {
        self.most(|l, k| self.ready[k] + self.sent(l..=k) + self.tail[l])
    }

    /// `max_{l <= j <= k} [ tau_bp[k] + S[j..k] / B + S[l..j] / B + q[l] ]`: WFBP with pulls in turn.
    fn fifo_tensor(&self) -> u64 {
        self.most(|l, k| {
            let through = |j: usize| self.ready[k] + self.sent(j..=k) + self.sent(l..=j) + self.tail[l];
            (l..=k).map(through).max().unwrap()
        })
    }
}

/// One of the worked examples, with a second of 1 ms and a link that delivers 1 unit per second.
fn example(bp: [u64; 3], units: [u64; 3], update: u64, fp: [u64; 3]) -> Vec<Layer> {
    let layer = |at: usize| Layer {
        backward: Nanos::new(bp[at] * 1_000_000),
        forward: Nanos::new(fp[at] * 1_000_000),
        update: Nanos::new(update),
        bytes: Bytes::new(units[at] * 125_000),
    };
    (0..3).map(layer).collect()
}

#[test]
fn the_worked_examples_match_the_paper() {
    let a = example([2, 2, 2], [1, 4, 3], 0, [1, 1, 1]);
    let b = example([2, 2, 2], [1, 4, 3], 250_000, [1, 1, 1]);
    let c = example([3, 2, 1], [1, 2, 8], 0, [2, 1, 1]);
    let d = example([1, 2, 2], [1, 4, 3], 0, [1, 2, 2]);
    // Microseconds: WFBP with pulls in turn, packets in order of readiness, packets by class, no network.
    for (layers, wfbp, fifo, mercury, oracle) in [
        (&a, 17_000, 13_000, 11_000, 9_000),
        (&b, 17_750, 13_750, 11_500, 9_750),
        (&c, 24_000, 16_000, 13_000, 10_000),
        (&d, 19_000, 15_000, 13_000, 10_000),
    ] {
        let closed = Closed::new(layers);
        let expected = [closed.fifo_tensor(), closed.fifo_packet(), closed.mercury(), closed.oracle()];
        assert_eq!(expected.map(|time| time / 1_000), [wfbp, fifo, mercury, oracle]);
        assert_eq!(total(layers, &network(Policy::fifo_tensor(), 1_000)), wfbp * 1_000);
        let packets = total(layers, &network(Policy::fifo_packet(), 1_000));
        assert!((fifo * 1_000..=fifo * 1_000 + 2 * 1_000 * BYTE).contains(&packets));
        let ours = Policy::foresee().with_window_bytes(Bytes::ZERO);
        let ours = total(layers, &network(ours, 1_000));
        assert!((mercury * 1_000..=mercury * 1_000 + 2 * 1_000 * BYTE).contains(&ours));
    }
}

#[test]
fn example_a_has_the_packet_order_of_the_paper() {
    let layers = example([2, 2, 2], [1, 4, 3], 0, [1, 1, 1]);
    let network = network(Policy::foresee().with_window_bytes(Bytes::ZERO), 125);
    let times = simulate_step(&layers, &network).unwrap().layers;
    // Layer 3 is pushed in [2, 4), 2 in [4, 6), 1 in [6, 7), the rest of 2 until 9 ms, and of 3 until 10 ms.
    let ms = |time: Nanos| time.get().div_euclid(1_000_000);
    let row = |layer: usize| {
        let times = times[layer];
        [times.ready, times.pushed, times.pulled, times.forward].map(ms)
    };
    assert_eq!([row(0), row(1), row(2)], [[6, 7, 7, 8], [4, 9, 9, 10], [2, 10, 10, 11]]);
}

#[test]
fn the_bound_on_packets_and_window_is_reached() {
    // A layer of one packet gets ready when a window and a packet of a less urgent one are in flight.
    let (packet, window) = (1_000, 3_000);
    let bulk = Layer { backward: Nanos::new(5_000), bytes: Bytes::new(1_000_000), ..Layer::default() };
    let urgent = Layer {
        backward: Nanos::new(1),
        forward: Nanos::new(20_000_000),
        bytes: Bytes::new(packet),
        ..Layer::default()
    };
    let layers = [urgent, bulk];
    let policy = Policy::foresee().with_window_bytes(Bytes::new(window));
    let over = total(&layers, &network(policy, 1_000)) - Closed::new(&layers).mercury();
    assert_eq!(over, (window + 2 * packet) * BYTE - 1);
}

#[test]
fn partitions_pay_their_startup_one_after_the_other() {
    // Credit for one partition: the rate is P / (P / B + startup).
    let (size, startup) = (10_000_u32, Nanos::new(30_000));
    let layer = Layer { bytes: Bytes::new(50 * u64::from(size)), ..Layer::default() };
    let policy = Policy::partition(NonZeroU32::new(size).unwrap(), NonZeroU64::new(u64::from(size)).unwrap());
    let network = Network { startup, ..network(policy, 1_000) };
    let times = simulate_step(&[layer], &network).unwrap();
    assert_eq!(times.layers[0].pushed, Nanos::new(50 * (u64::from(size) * BYTE + startup.get())));
    // Credit for two hides a startup that is shorter than a partition.
    let policy =
        Policy::partition(NonZeroU32::new(size).unwrap(), NonZeroU64::new(2 * u64::from(size)).unwrap());
    let times = simulate_step(&[layer], &Network { policy, ..network }).unwrap();
    assert_eq!(times.layers[0].pushed, Nanos::new(50 * u64::from(size) * BYTE + startup.get()));
}

#[test]
fn errors_name_invalid_inputs() {
    let usual = network(Policy::foresee(), 1);
    let layer = |bytes| Layer { bytes: Bytes::new(bytes), ..Layer::default() };
    assert_eq!(simulate_step(&[], &usual), Err(ModelError::Empty { field: "layers" }));
    let still = Network { rate: BytesPerSecond::new(0), ..usual };
    assert_eq!(simulate_step(&[layer(1)], &still), Err(ModelError::ZeroRate { field: "rate of the link" }));
    let error = simulate_step(&[layer(1 << 32)], &usual).unwrap_err().to_string();
    assert_eq!(error, "bytes of a layer is 4294967296; it must be less than 2^32 packets");
    let large = network(Policy::foresee(), u32::MAX);
    let error = simulate_step(&[layer(u64::MAX / 2), layer(u64::MAX / 2), layer(2)], &large).unwrap_err();
    assert!(matches!(error, ModelError::InvalidInput { field: "bytes of all layers", .. }));
    assert_eq!(total(&[layer(0)], &usual), 0);
}

#[test]
fn above_256_layers_neighbours_share_a_class_and_none_is_lost() {
    let layer = Layer { backward: Nanos::new(1_000), bytes: Bytes::new(1_000), ..Layer::default() };
    let layers = vec![layer; 700];
    let time = total(&layers, &network(Policy::foresee().with_window_bytes(Bytes::ZERO), 100));
    let closed = Closed::new(&layers).mercury();
    assert!((closed..=closed + 200 * BYTE).contains(&time));
}

fn layers() -> impl Strategy<Value = Vec<Layer>> {
    let time = || prop_oneof![1 => Just(0_u64), 4 => 0_u64..400_000];
    let bytes = prop_oneof![1 => Just(0_u64), 4 => 0_u64..60_000];
    let layer = (time(), time(), time(), bytes).prop_map(|(backward, forward, update, bytes)| Layer {
        backward: Nanos::new(backward),
        forward: Nanos::new(forward),
        update: Nanos::new(update),
        bytes: Bytes::new(bytes),
    });
    prop::collection::vec(layer, 1..8)
}

fn within(time: u64, closed: u64, slack_bytes: u64) -> Result<(), TestCaseError> {
    let slack = slack_bytes * BYTE;
    prop_assert!(time >= closed, "{time} ns are less than the closed form's {closed}");
    prop_assert!(time <= closed + slack, "{time} ns are more than {closed} + {slack}");
    Ok(())
}

proptest! {
    #![proptest_config(property(400))]

    #[test]
    fn packets_and_a_window_cost_no_more_than_the_window_and_two_packets(
        layers in layers(), packet in 500_u32..6_000, window in 0_u64..5, more in 0_u64..500,
    ) {
        let window = window * u64::from(packet) + more;
        let closed = Closed::new(&layers).mercury();
        for policy in [Policy::foresee(), Policy::mercury_interface(), Policy::mercury_windowed()] {
            let policy = policy.with_window_bytes(Bytes::new(window));
            within(total(&layers, &network(policy, packet)), closed, window + 2 * u64::from(packet))?;
        }
    }

    #[test]
    fn packets_in_order_of_readiness_match_their_closed_form(
        layers in layers(), packet in 500_u32..6_000,
    ) {
        let closed = Closed::new(&layers);
        let fifo = total(&layers, &network(Policy::fifo_packet(), packet));
        within(fifo, closed.fifo_packet(), 2 * u64::from(packet))?;
        prop_assert_eq!(total(&layers, &network(Policy::fifo_tensor(), packet)), closed.fifo_tensor());
    }

    #[test]
    fn partitions_meet_the_policies_between_which_they_lie(layers in layers(), packet in 100_u32..1_000) {
        let closed = Closed::new(&layers);
        let (size, all) = (NonZeroU32::new(packet).unwrap(), NonZeroU64::MAX);
        let few = Policy::partition(size, NonZeroU64::new(u64::from(packet)).unwrap());
        within(total(&layers, &network(few, 1)), closed.mercury(), 2 * u64::from(packet))?;
        let many = total(&layers, &network(Policy::partition(size, all), 1));
        within(many, closed.mercury(), closed.fifo_packet() - closed.mercury() + 2 * u64::from(packet))?;
        // In order of readiness: layers that get ready at one instant go by class here, and by readiness there.
        if layers.iter().all(|layer| !layer.backward.is_zero()) {
            within(many, closed.fifo_packet(), 2 * u64::from(packet))?;
            let whole = Policy::partition(NonZeroU32::MAX, all);
            prop_assert_eq!(total(&layers, &network(whole, 1)), closed.fifo_tensor());
        }
        let whole = Policy::partition_unbounded(NonZeroU32::MAX);
        prop_assert_eq!(total(&layers, &network(whole, 1)), closed.fifo_tensor());
        let byteps = total(&layers, &network(Policy::partition_unbounded(BYTEPS_PARTITION), 1));
        prop_assert!(byteps <= closed.fifo_tensor());
    }

    #[test]
    fn an_unlimited_socket_undoes_the_order_and_a_small_one_does_not(
        layers in layers(), packet in 500_u32..2_000, socket in 1_u64..10_000,
    ) {
        let closed = Closed::new(&layers);
        let default = network(Policy::mercury(), packet);
        let drowned = total(&layers, &default);
        if layers.iter().all(|layer| !layer.backward.is_zero()) {
            prop_assert_eq!(drowned, total(&layers, &network(Policy::fifo_packet(), packet)));
        }
        let small = total(&layers, &Network { socket: Bytes::new(socket), ..default });
        within(small, closed.mercury(), socket + 3 * u64::from(packet))?;
        // A window has the effect of a small socket, even with a large one.
        let windowed = default.policy.windowed(Window::Interface).with_window_bytes(Bytes::new(socket));
        within(
            total(&layers, &network(windowed, packet)), closed.mercury(), socket + 2 * u64::from(packet),
        )?;
    }

    #[test]
    fn every_policy_ends_and_none_beats_the_oracle(
        layers in layers(), packet in 100_u32..6_000, startup in 0_u64..50_000,
        rate in 1_000_u64..1_000_000_000,
        socket in 0_u64..20_000, window in 0_u64..20_000, credit in 1_u64..20_000,
    ) {
        let oracle = Closed::new(&layers).oracle();
        let size = NonZeroU32::new(packet * 2).unwrap();
        let partition = Policy::partition(size, NonZeroU64::new(credit).unwrap());
        for policy in [
            Policy::foresee(),
            Policy::foresee().with_window_bytes(Bytes::new(window)),
            Policy::mercury(),
            Policy::fifo_tensor(),
            Policy::fifo_packet(),
            Policy::partition_unbounded(size),
            partition,
            partition.windowed(Window::Interface),
            partition.windowed(Window::Interface).with_window_bytes(Bytes::new(window)),
        ] {
            let (startup, socket) = (Nanos::new(startup), Bytes::new(socket));
            let rate = BytesPerSecond::new(rate);
            let network = Network { rate, socket, startup, ..network(policy, packet) };
            let times = simulate_step(&layers, &network).unwrap();
            prop_assert!(times.total.get() >= oracle);
            for (layer, times) in layers.iter().zip(&times.layers) {
                // A busy interval is rounded once, so a part of it may be a nanosecond short.
                let passing = rate.time_for(layer.bytes).unwrap().saturating_sub(Nanos::new(1));
                prop_assert!(times.pushed >= times.ready + passing && times.pulled >= times.pushed);
                prop_assert!(times.forward >= times.pulled + layer.update + layer.forward);
            }
        }
    }
}
