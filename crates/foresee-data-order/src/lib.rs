// SPDX-License-Identifier: Apache-2.0
//! The access order: which sample each rank needs at every step of a run.
//!
//! ```text
//! Order --epoch(e)--> EpochOrder --shard(ranks, position)--> ShardedEpoch --rank(r)--> RankStream
//! a few numbers       the list L of one epoch                L[p..], padded            one rank's samples
//! ```
//!
//! The crate reproduces torch's access order bit for bit: its generator ([`Mt19937`]), its two permutations
//! ([`randperm`]) and its samplers ([`Order`], [`RandomSampler`], [`BatchSampler`], [`LoaderDraws`]). It adds a
//! permutation without memory ([`Keyed`]), avoided samples ([`Avoid`]), and a sum that shows that every sample was
//! handed out ([`AuditSum`]). Every result is a function of its arguments, because two ranks must agree on every
//! place of the order; randomness is a seed or a generator's state.

#![deny(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "pure: time, files and randomness are arguments"
)]

mod audit;
mod avoid;
mod epoch;
mod error;
mod ids;
mod keyed;
mod mt19937;
mod order;
mod randperm;
mod sampler;
mod sharding;

pub use audit::{AuditSum, h128};
pub use avoid::Avoid;
pub use epoch::{EpochOrder, Tail};
pub use error::OrderError;
pub use ids::Ids;
pub use keyed::Keyed;
pub use mt19937::{Mt19937, STATE_BYTES};
pub use order::Order;
pub use randperm::randperm;
pub use sampler::{BatchSampler, LoaderDraws, LoaderEpoch, RandomSampler, Until};
pub use sharding::{RankStream, ShardedEpoch};
