// SPDX-License-Identifier: Apache-2.0
//! Which sample each rank needs at every step, for ever.
//!
//! ```text
//! Order --epoch(e)--> EpochOrder --deal(ranks, position)--> Deal --rank(r)--> RankStream
//! a few numbers       the list L of one epoch               L[p..], padded    one rank's samples
//! ```
//!
//! Owns torch's access order, bit for bit: its generator ([`Mt19937`]), its two permutations ([`randperm`]) and
//! what its samplers make of them ([`Order`], [`RandomSampler`], [`BatchSampler`], [`LoaderDraws`]); a permutation of
//! its own that needs no memory ([`Keyed`]); samples that are left out of any of them ([`Avoid`]); who uses a sample next ([`Window`], [`next_use`]); and the sum that
//! shows that every sample was handed out ([`AuditSum`]). Separate, because everything else is computed from it: two
//! ranks that disagree about one place of it disagree about everything.
//!
//! Refuses to know what a sample is, where it lies and when it is needed. Every answer is a function of its
//! arguments; randomness comes in as a seed or as a generator's state.

#![deny(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "pure: time, files and randomness are arguments"
)]

mod audit;
mod avoid;
mod deal;
mod epoch;
mod error;
mod ids;
mod keyed;
mod mt19937;
mod order;
mod randperm;
mod run;
mod sampler;
mod uses;

pub use audit::{AuditSum, h128};
pub use avoid::Avoid;
pub use deal::{Deal, RankIds, RankStream};
pub use epoch::{EpochOrder, Tail};
pub use error::OrderError;
pub use ids::Ids;
pub use keyed::Keyed;
pub use mt19937::{Mt19937, STATE_BYTES};
pub use order::Order;
pub use randperm::randperm;
pub use run::{RunSample, RunStream};
pub use sampler::{BatchSampler, LoaderDraws, LoaderEpoch, RandomSampler, Until};
pub use uses::{Window, access_counts, next_use};
