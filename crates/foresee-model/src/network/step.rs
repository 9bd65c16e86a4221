// SPDX-License-Identifier: Apache-2.0
//! The inputs of one step, validated once, and the sums that all results use.
//!
//! Validation is here so that no formula meets a NaN; see [`GradientStep::new`].

use foresee_units::Bytes;

use super::{Link, Policy};
use crate::ModelError;
use crate::number::{as_f64, check};

/// One layer: parameters that become ready together in the backward pass and are used together in the forward
/// pass.
///
/// Usually a parameter tensor. Times are seconds, finite and 0 or more.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Layer {
    /// Bytes of its gradient on the wire, in one direction.
    pub bytes: Bytes,
    /// Backward time: from the gradient of the layer used next until this one's is ready.
    pub backward: f64,
    /// Forward time.
    pub forward: f64,
    /// Time of the optimizer's update, between its receipt and its forward.
    pub update: f64,
}

/// One training step of one rank: layers in order of first use by the forward pass.
///
/// Time 0 is the start of the backward pass, with the last layer; the step ends with the last layer's next
/// forward. Immutable.
///
/// # Examples
/// ```
/// # use foresee_model::{Compat, GradientStep, Layer, Link, Policy};
/// # use foresee_units::Bytes;
/// let layer = |bytes| Layer { bytes: Bytes::new(bytes), backward: 2.0, forward: 1.0, update: 0.0 };
/// let step = GradientStep::new([1, 4, 3].map(layer))?;
/// let link = Link::new(1.0, 1.0)?;
/// assert_eq!(step.oracle(), 9.0);
/// assert_eq!(step.time(Policy::Mercury, link)?, 11.0);
/// assert_eq!(step.time(Policy::FifoPacket, link)?, 13.0);
/// assert_eq!(step.time(Policy::FifoTensor(Compat::Physical), link)?, 17.0);
/// # Ok::<(), foresee_model::ModelError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct GradientStep {
    /// In order of first use; never empty.
    layers: Vec<Layer>,
    /// Bytes of all layers before each; one entry more than there are layers.
    pub(super) before: Vec<u64>,
    /// When each gradient is ready: the sum of backward times of this layer and of all used later (equation 3,
    /// corrected).
    pub(super) ready: Vec<f64>,
    /// Remaining compute once each was received: update and forward of this layer and of all used later.
    pub(super) rest: Vec<f64>,
}

impl GradientStep {
    /// Maximum of bytes in one step, 2^52 (4.5 PB): push and pull together are then exact in an `f64`.
    pub const BYTES_MAX: Bytes = Bytes::new(1 << 52);
    /// Minimum of the time of all layers together, a picosecond: below it, a bandwidth could exceed an `f64`.
    pub const TIME_MIN: f64 = 1e-12;

    /// Layers in order of first use.
    ///
    /// # Errors
    /// [`ModelError::Empty`] without a layer; [`ModelError::InvalidLayer`] for a time that is negative, NaN or
    /// infinite; [`ModelError::InvalidInput`] if all times together are below [`Self::TIME_MIN`] or infinite, or
    /// all bytes together above [`Self::BYTES_MAX`].
    pub fn new(layers: impl IntoIterator<Item = Layer>) -> Result<Self, ModelError> {
        let layers: Vec<_> = layers.into_iter().collect();
        if layers.is_empty() {
            return Err(ModelError::Empty { field: "list of layers" });
        }
        for (at, layer) in layers.iter().enumerate() {
            let times = [("backward", layer.backward), ("forward", layer.forward), ("update", layer.update)];
            for (field, value) in times {
                if !(value.is_finite() && value >= 0.0) {
                    let rule = "finite and 0 or more seconds";
                    return Err(ModelError::InvalidLayer { layer: at, field, value, rule });
                }
            }
        }
        let before = bytes_before(&layers)?;
        let ready = sums_from(&layers, |layer| layer.backward);
        let rest = sums_from(&layers, |layer| layer.update + layer.forward);
        let step = Self { layers, before, ready, rest };
        let total = step.oracle();
        let is_valid = total.is_finite() && total >= Self::TIME_MIN;
        check(is_valid, "time of all layers", total, "finite and at least a picosecond")?;
        Ok(step)
    }

    /// Layers in order of first use, as given.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Bytes that one rank pushes in a step, and also pulls.
    pub fn bytes(&self) -> Bytes {
        Bytes::new(self.before[self.layers.len()])
    }

    /// Time of the step with a transfer time of 0, in seconds: the lower bound of all policies.
    pub fn oracle(&self) -> f64 {
        self.ready[0] + self.rest[0]
    }

    /// Fraction of the speed without a network that a policy retains: `oracle / time`, in (0, 1] (equation 9).
    ///
    /// # Errors
    /// As [`time`](Self::time).
    pub fn speed(&self, policy: Policy, link: Link) -> Result<f64, ModelError> {
        Ok(self.oracle() / self.time(policy, link)?)
    }

    /// Cost of a wait for all tensors, in seconds per step: `Barrier` minus `Mercury`.
    ///
    /// Exact clipping by the global norm has this cost, because the norm needs the last gradient before the first
    /// update.
    ///
    /// # Errors
    /// As [`time`](Self::time).
    /// # Examples
    /// ```
    /// # use foresee_model::{GradientStep, Layer, Link};
    /// # use foresee_units::Bytes;
    /// let layer = |bytes| Layer { bytes: Bytes::new(bytes), backward: 2.0, forward: 1.0, update: 0.0 };
    /// let step = GradientStep::new([1, 4, 3].map(layer))?;
    /// assert_eq!(step.barrier_cost(Link::new(1.0, 1.0)?)?, 2.0);
    /// # Ok::<(), foresee_model::ModelError>(())
    /// ```
    pub fn barrier_cost(&self, link: Link) -> Result<f64, ModelError> {
        let cost = self.time(Policy::Barrier, link)? - self.time(Policy::Mercury, link)?;
        Ok(cost.max(0.0)) // both are rounded: never less than nothing
    }

    /// Samples per second of `ranks` ranks that never wait for each other: `ranks * batch / oracle`.
    ///
    /// This is the paper's Linear-Scaling, the speed of a single rank times their number; a policy reaches
    /// [`speed`](Self::speed) times this. `batch` is samples per rank and step.
    pub fn linear_scaling(&self, ranks: u32, batch: u32) -> f64 {
        f64::from(ranks) * f64::from(batch) / self.oracle()
    }

    /// Seconds that each whole layer takes in one direction.
    pub(super) fn one_way(&self, at: usize, bandwidth: f64) -> f64 {
        as_f64(self.layers[at].bytes.get()) / bandwidth
    }

    /// The rate of gradients, if all of them travel in a finite time.
    pub(super) fn checked_rate(&self, link: Link) -> Result<f64, ModelError> {
        let rate = link.rate();
        // Twice, because a tensor of `FifoTensor` is pushed and then pulled.
        let time = 2.0 * as_f64(self.bytes().get()) / rate + self.oracle();
        let rule = "high enough for all bytes to pass in a finite time";
        check(rate > 0.0 && time.is_finite(), "bandwidth", link.bandwidth(), rule)?;
        Ok(rate)
    }
}

fn bytes_before(layers: &[Layer]) -> Result<Vec<u64>, ModelError> {
    let mut before = Vec::with_capacity(layers.len() + 1);
    let mut total = 0_u64;
    before.push(0);
    for layer in layers {
        total = total.saturating_add(layer.bytes.get());
        before.push(total);
    }
    let is_valid = total <= GradientStep::BYTES_MAX.get();
    check(is_valid, "bytes of all layers", as_f64(total), "2^52 at most")?;
    Ok(before)
}

/// For each layer, the sum of a value from it to the last one.
fn sums_from(layers: &[Layer], value_of: impl Fn(&Layer) -> f64) -> Vec<f64> {
    let mut sums = vec![0.0; layers.len()];
    let mut sum = 0.0;
    for (slot, layer) in sums.iter_mut().zip(layers).rev() {
        sum += value_of(layer);
        *slot = sum;
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYER: Layer = Layer { bytes: Bytes::new(5), backward: 1.0, forward: 0.5, update: 0.25 };

    #[test]
    fn sums_run_from_each_layer_to_the_last() {
        let step = GradientStep::new([LAYER; 3]).unwrap();
        assert_eq!(step.ready, [3.0, 2.0, 1.0]);
        assert_eq!(step.rest, [2.25, 1.5, 0.75]);
        assert_eq!(step.before, [0, 5, 10, 15]);
        assert_eq!((step.oracle(), step.bytes()), (5.25, Bytes::new(15)));
        assert!((step.linear_scaling(4, 32) - 128.0 / 5.25).abs() < 1e-12);
    }

    #[test]
    fn an_invalid_value_is_refused_with_its_layer() {
        for value in [-1.0, f64::NAN, f64::INFINITY] {
            for (field, layer) in [
                ("backward", Layer { backward: value, ..LAYER }),
                ("forward", Layer { forward: value, ..LAYER }),
                ("update", Layer { update: value, ..LAYER }),
            ] {
                let error = GradientStep::new([LAYER, layer]).unwrap_err().to_string();
                assert!(error.starts_with(&format!("layer 1: {field} is {value}")), "{error}");
            }
        }
    }

    #[test]
    fn steps_without_layers_of_zero_time_or_of_infinite_time_are_refused() {
        assert_eq!(GradientStep::new([]), Err(ModelError::Empty { field: "list of layers" }));
        let timeless = Layer { bytes: Bytes::new(5), ..Layer::default() };
        assert!(GradientStep::new([timeless]).is_err());
        let long = Layer { backward: f64::MAX, ..LAYER };
        assert!(GradientStep::new([long, long]).is_err());
        for bytes in [GradientStep::BYTES_MAX, Bytes::MAX] {
            let large = Layer { bytes, ..LAYER };
            assert!(GradientStep::new([large, LAYER]).is_err());
        }
        assert!(GradientStep::new([Layer { bytes: GradientStep::BYTES_MAX, ..LAYER }]).is_ok());
    }

    #[test]
    fn a_link_too_slow_for_a_finite_time_is_refused() {
        let step = GradientStep::new([LAYER]).unwrap();
        let error = step.time(Policy::Mercury, Link::new(1e-320, 1.0).unwrap()).unwrap_err();
        assert!(error.to_string().starts_with("bandwidth is 0.000"), "{error}");
        assert!(step.time(Policy::Mercury, Link::new(1e-300, 1.0).unwrap()).is_ok());
    }
}
