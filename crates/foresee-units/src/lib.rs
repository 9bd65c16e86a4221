// SPDX-License-Identifier: Apache-2.0
//! The shared nouns: amounts and identities that every crate speaks of.
//!
//! Owns the types and their checked arithmetic, so that bytes are never added to nanoseconds and a rank
//! is never mistaken for a sample. Refuses everything that has an opinion: no formula, no policy, no clock.

#![deny(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "pure: time, files and randomness are arguments"
)]

mod amount;
mod dtype;
mod identity;
mod read;
mod words;

pub use amount::{Bytes, BytesPerSecond, Nanos};
pub use dtype::Dtype;
pub use identity::{Epoch, Rank, SampleId, Step, World, WorldError};
pub use read::{ReadOutcome, Source};
