// SPDX-License-Identifier: Apache-2.0
//! The model against itself and against the details that it omits: properties over random steps, all schedules of
//! small ones, packets of finite size. `tests/network_golden.rs` has the golden steps.

mod all_schedules;
mod packets;
mod properties;

use foresee_units::Bytes;
use proptest::prelude::*;

use super::{GradientStep, Layer, Link};

/// A link of `bandwidth` bytes per second, all of them for gradients.
fn link(bandwidth: f64) -> Link {
    Link::new(bandwidth, 1.0).unwrap()
}

/// Steps of up to `layers` layers with small whole values: many ties and zeros, and a total time above 0.
fn small_steps(layers: usize, bytes: u64, seconds: u32) -> impl Strategy<Value = GradientStep> {
    let layer = (0..=bytes, 0..=seconds, 0..=seconds, 0..=seconds.div_ceil(2));
    prop::collection::vec(layer, 1..=layers).prop_filter_map("a step takes time", |layers| {
        let layers = layers.into_iter().map(|(bytes, backward, forward, update)| Layer {
            bytes: Bytes::new(bytes),
            backward: backward.into(),
            forward: forward.into(),
            update: update.into(),
        });
        GradientStep::new(layers).ok()
    })
}

/// Steps as of real models: bytes over eight decades, times over five, some of them 0.
fn real_steps(layers: usize) -> impl Strategy<Value = GradientStep> {
    let seconds = || prop_oneof![1 => Just(0.0), 5 => (-6.0_f64..-1.0).prop_map(|power| 10_f64.powf(power))];
    let bytes = prop_oneof![1 => Just(0_u64), 3 => 1..=4096_u64, 3 => 4096..=500_000_000_u64];
    prop::collection::vec((bytes, seconds(), seconds(), seconds()), 1..=layers).prop_filter_map(
        "a step takes time",
        |layers| {
            let layers = layers.into_iter().map(|(bytes, backward, forward, update)| Layer {
                bytes: Bytes::new(bytes),
                backward,
                forward,
                update,
            });
            GradientStep::new(layers).ok()
        },
    )
}

/// Bandwidths from 1 MB/s to 100 GB/s.
fn bandwidths() -> impl Strategy<Value = f64> {
    (6.0_f64..11.0).prop_map(|power| 10_f64.powf(power))
}

/// Whether two values agree to 1e-9 of the larger.
fn near(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-9 * one.abs().max(other.abs())
}
