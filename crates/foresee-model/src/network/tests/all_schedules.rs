// SPDX-License-Identifier: Apache-2.0
//! Theorem 1 of the paper by exhaustive search: no schedule of a small step ends before Mercury's.

use foresee_testkit::property;
use proptest::prelude::*;

use super::{link, small_steps};
use crate::network::{GradientStep, Policy};

proptest! {
    #![proptest_config(property(600))]

    #[test]
    fn no_schedule_of_unit_packets_is_faster_than_mercury(step in small_steps(4, 2, 3)) {
        let best = Search::new(&step).fastest();
        let mercury = step.time(Policy::Mercury, link(1.0)).unwrap();
        prop_assert!((best - mercury).abs() < 1e-12, "{best} instead of {mercury}");
    }
}

#[test]
fn the_search_finds_the_known_time_of_example_a() {
    let layer = |bytes| crate::network::Layer {
        bytes: foresee_units::Bytes::new(bytes),
        backward: 2.0,
        forward: 1.0,
        update: 0.0,
    };
    let step = GradientStep::new([1, 4, 3].map(layer)).unwrap();
    assert!((Search::new(&step).fastest() - 11.0).abs() < f64::EPSILON);
}

/// All assignments of each second of the link to a ready layer with bytes left, or to none.
struct Search<'a> {
    step: &'a GradientStep,
    /// Bytes that were not sent.
    left: Vec<u64>,
    /// When each layer landed.
    received: Vec<f64>,
    /// Seconds that the link may idle although a layer is ready.
    idle: u32,
    fastest: f64,
}

impl<'a> Search<'a> {
    fn new(step: &'a GradientStep) -> Self {
        let left: Vec<u64> = step.layers().iter().map(|layer| layer.bytes.get()).collect();
        Self { step, left, received: step.ready.clone(), idle: 1, fastest: f64::INFINITY }
    }

    fn fastest(mut self) -> f64 {
        self.from(0.0);
        self.fastest
    }

    fn from(&mut self, now: f64) {
        if self.left.iter().all(|left| *left == 0) {
            self.fastest = self.fastest.min(self.end());
            return;
        }
        let mut is_any_ready = false;
        for l in 0..self.left.len() {
            if self.left[l] == 0 || self.step.ready[l] > now {
                continue;
            }
            is_any_ready = true;
            let before = self.received[l];
            self.left[l] -= 1;
            self.received[l] = now + 1.0;
            self.from(now + 1.0);
            self.left[l] += 1;
            self.received[l] = before;
        }
        if !is_any_ready {
            self.from(now + 1.0);
        } else if self.idle > 0 {
            self.idle -= 1;
            self.from(now + 1.0);
            self.idle += 1;
        }
    }

    /// Equations (4) and (5).
    fn end(&self) -> f64 {
        let mut now = 0.0_f64;
        for (l, layer) in self.step.layers().iter().enumerate() {
            now = now.max(self.received[l]) + layer.update + layer.forward;
        }
        now
    }
}
