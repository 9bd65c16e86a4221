// SPDX-License-Identifier: Apache-2.0
//! How long a training step takes when its gradients cross a network.
//!
//! Owns the model of one step: layers in order of first use leave the backward pass last first, are pushed to
//! servers, come back as averages, and the next forward pass uses each as soon as it has landed. What differs
//! between policies is who goes first on the link. Apart from `step`, which predicts a step that waits for
//! samples: here nothing is loaded.
//!
//! Every policy is answered twice, by a closed form ([`GradientStep::time`]) and by following its rule tensor by
//! tensor ([`GradientStep::timeline`]), so that each checks the other. Refuses to schedule: queues and windows of
//! real packets are other crates' work, and are compared with what stands here.
//!
//! Source of the model: Duan et al., "Mercury: A Simple Transport Layer Scheduler to Accelerate Distributed DNN
//! Training", TPDS 2023 ("the paper"). The closed forms are ours, as are the corrections: equation (3) is printed
//! with a sum over all layers, where that of layer `l` begins at `l`; equation (7) lets all pulls share one
//! downlink for free, which [`Compat::Paper`] keeps and [`Compat::Physical`] does not.
//!
//! | file | what it answers |
//! |---|---|
//! | `step` | which figures a step is made of, and their sums |
//! | `closed` | how long it takes, from sums and running maxima |
//! | `timeline` | when each tensor is pushed, pulled and used |
//! | `required` | what bandwidth a goal needs |
//! | `link` | how many bytes of gradients a link carries, and what packets of finite size cost |
//! | `servers` | what ranks get of their links when servers share them |

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
