// SPDX-License-Identifier: Apache-2.0
//! Closed forms: what a link, a tier, a step should cost.
//!
//! Owns the formulas, each with its rounding, its source and its errors, and one model that is fed with
//! measurements while a run goes on ([`RateModel`]). Engine, simulator and reports call the same functions,
//! so a forecast and its run can differ in their inputs only.
//!
//! Refuses to measure: figures are arguments, and one that nobody measured is `None`, never 0.
//!
//! | file | what it answers |
//! |---|---|
//! | `tier` | how long one sample takes out of a tier, a peer's tier, the origin |
//! | `curve` | what the origin yields to so many readers, a tier to so many threads |
//! | `epoch` | no epoch is shorter, no policy reads less |
//! | `step` | how soon the next steps may come |
//! | `network` | how long a step takes whose gradients cross a network, by each policy |
//! | `reads` | how many samples a rank reads how often; `ratio`: thresholds without rounding |
//! | `stream` | when each sample of a rank's stream is there, and when it is consumed |
//! | `fifo` | what a cache without foresight misses |
//! | `rate` | how long a fetch takes by the run's own measurements, and which source is fastest |

#![deny(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "pure: time, files and randomness are arguments"
)]

mod curve;
mod epoch;
mod error;
mod fifo;
mod network;
mod rate;
mod ratio;
mod reads;
mod step;
mod stream;
mod tier;

pub use curve::{OriginCurve, ThreadCurve};
pub use epoch::{Bound, Demand, Limit, OriginCaps, epoch_bound, later_demand, least_origin_reads};
pub use error::ModelError;
pub use fifo::fifo_miss_rate;
pub use network::{
    Compat, Framing, GradientStep, Layer, Link, Policy, RequiredBandwidth, ServerMix, Timeline, Transfer,
    packet_delay,
};
pub use rate::{Candidate, RateModel, choose, choose_in_time};
pub use ratio::Ratio;
pub use reads::{AccessFrequency, OtherRank, some_other_reads_at_least, some_other_reads_at_most};
pub use step::{StepTimes, step_time};
pub use stream::{SourceRate, Staging, StreamRead, StreamTimes, stream_times};
pub use tier::{origin_fetch_time, peer_fetch_time, tier_fetch_time};
