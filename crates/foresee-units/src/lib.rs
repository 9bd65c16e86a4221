// SPDX-License-Identifier: Apache-2.0
//! Types that all crates share: amounts, identities, extents and outcomes of reads, and SplitMix64.
//!
//! Amounts have checked arithmetic, so that bytes are never added to nanoseconds and a rank is never mistaken for a
//! sample. The crate has no formula, no policy and no clock.

#![deny(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "pure: time, files and randomness are arguments"
)]

mod amount;
mod dtype;
mod extent;
mod identity;
mod named_enum;
mod read;
mod splitmix;

pub use amount::{Bytes, BytesPerSecond, Nanos};
pub use dtype::Dtype;
pub use extent::Extent;
pub use identity::{Epoch, NodeIndex, Rank, SampleId, Step, World, WorldError};
pub use read::{ReadOutcome, Source};
pub use splitmix::{GAMMA, SplitMix64, mix};
