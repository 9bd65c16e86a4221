// SPDX-License-Identifier: Apache-2.0
//! Duration of a training step whose gradients cross a network.
//!
//! Layers in order of first use leave the backward pass last first, are pushed to servers, and return as
//! averages; the next forward pass uses each as soon as it was received. Policies differ in the order on the link.
//! Loading is not modelled; `step` covers steps that wait for samples.
//!
//! Every policy has two independent results that check each other: a closed form ([`GradientStep::time`]) and a
//! simulation tensor by tensor ([`GradientStep::timeline`]). Other crates schedule real packets, and are compared
//! with these results.
//!
//! Source of the model: Duan et al., "Mercury: A Simple Transport Layer Scheduler to Accelerate Distributed DNN
//! Training", TPDS 2023 ("the paper"). The closed forms and two corrections are additions. Equation (3) is
//! printed with a sum over all layers, but that of layer `l` begins at `l`. Equation (7) lets all pulls share one
//! downlink for free, as in [`Compat::Paper`] and not in [`Compat::Physical`].
//!
//! | file | content |
//! |---|---|
//! | `step` | inputs of a step, and their sums |
//! | `closed` | step time from sums and running maxima |
//! | `timeline` | times at which each tensor is pushed, pulled and used |
//! | `required` | bandwidth that a goal needs |
//! | `link` | rate of a link for gradients, and the delay by packets of finite size |
//! | `servers` | rates of ranks whose links servers share |

mod closed;
mod link;
mod policy;
mod required;
mod servers;
mod step;
#[cfg(test)]
mod tests;
mod timeline;

pub use link::{Framing, Link, packet_delay};
pub use policy::{Compat, Policy};
pub use required::RequiredBandwidth;
pub use servers::ServerMix;
pub use step::{GradientStep, Layer};
pub use timeline::{Timeline, Transfer};
