// SPDX-License-Identifier: Apache-2.0
//! The bound on the delay that the closed form omits: packets of finite size and a window before the link.

use foresee_testkit::property;
use foresee_units::Bytes;
use proptest::prelude::*;

use super::{link, real_steps, small_steps};
use crate::network::{GradientStep, Layer, Policy, packet_delay};
use crate::number::as_f64;

/// A step under Mercury with packets of `packet` bytes and `window` bytes in the socket.
///
/// A packet is chosen when at most `window` bytes are unsent, and cannot be withdrawn. It is pulled when it was
/// pushed completely, one after the other.
fn with_packets(step: &GradientStep, packet: u64, window: f64, rate: f64) -> f64 {
    let mut left: Vec<u64> = step.layers().iter().map(|layer| layer.bytes.get()).collect();
    let mut received = step.ready.clone();
    let (mut now, mut up_free, mut down_free) = (0.0_f64, 0.0_f64, 0.0_f64);
    while left.iter().any(|left| *left > 0) {
        // The time at which the socket has sent all but `window`.
        now = now.max(up_free - window / rate);
        let Some(l) = (0..left.len()).find(|&l| left[l] > 0 && step.ready[l] <= now) else {
            // Layers become ready last first.
            now = *step.ready.iter().rfind(|ready| **ready > now).expect("something is still to come");
            continue;
        };
        let size = left[l].min(packet);
        left[l] -= size;
        up_free = up_free.max(now) + as_f64(size) / rate;
        down_free = down_free.max(up_free) + as_f64(size) / rate;
        received[l] = down_free;
    }
    let mut end = 0.0_f64;
    for (l, layer) in step.layers().iter().enumerate() {
        end = end.max(received[l]) + layer.update + layer.forward;
    }
    end
}

proptest! {
    #![proptest_config(property(3_000))]

    #[test]
    fn packets_and_window_cost_no_more_than_the_bound(
        (step, packet, rate) in prop_oneof![
            (small_steps(6, 12, 4), 1..=4_u64, (1..=3_u8).prop_map(f64::from)),
            (real_steps(12), 10_000_000..=40_000_000_u64, 1e7..1e10_f64),
        ],
        window_packets in 0..=4_u64,
    ) {
        let window = window_packets * packet;
        let closed = step.time(Policy::Mercury, link(rate)).unwrap();
        let real = with_packets(&step, packet, as_f64(window), rate);
        let bound = packet_delay(Bytes::new(window), Bytes::new(packet), link(rate)).unwrap();
        let rounding = 1e-9 * real;
        prop_assert!(real >= closed - rounding, "{real} s beats the closed form, {closed}");
        prop_assert!(real <= closed + bound + rounding, "{real} s, closed form {closed}, bound {bound}");
    }
}

#[test]
fn the_bound_is_nearly_reached() {
    let layer = |bytes, backward, forward| Layer { bytes: Bytes::new(bytes), backward, forward, update: 0.0 };
    // The urgent byte gets ready directly after a packet was chosen with a full window.
    let step = GradientStep::new([layer(1, 3.001, 1000.0), layer(100, 1.0, 0.0)]).unwrap();
    let closed = step.time(Policy::Mercury, link(1.0)).unwrap();
    let delay = with_packets(&step, 1, 2.0, 1.0) - closed;
    assert!(delay > 3.9 && delay <= 4.0, "{delay} of 4 s");
}
