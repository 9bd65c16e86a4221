// SPDX-License-Identifier: Apache-2.0
//! Closed forms: expected times of links, tiers and steps.
//!
//! Each formula has its rounding, its source and its errors. One model, [`RateModel`], takes measurements during
//! a run. Engine, simulator and reports call the same functions, so a forecast and its run differ only in their
//! inputs.
//!
//! Measured values are arguments; a value that was not measured is `None`, never 0.
//!
//! | file | content |
//! |---|---|
//! | `tier` | time of one sample from a tier, a peer's tier, the origin |
//! | `curve` | rate of the origin by readers, of a tier by threads |
//! | `epoch` | bounds of an epoch's time and reads |
//! | `step` | durations of the next steps |
//! | `network` | time of a step whose gradients cross a network, by policy |
//! | `reads` | number of samples by reads of one rank; `ratio`: thresholds without rounding |
//! | `stream` | arrival and consumption of each sample of a rank |
//! | `fifo` | miss rate of a cache without foresight |
//! | `number` | conversions, and checks of inputs |
//! | `rate` | time of a fetch from the run's own measurements, and the fastest source |

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
mod number;
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
