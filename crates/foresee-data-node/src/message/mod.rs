// SPDX-License-Identifier: Apache-2.0
//! Messages of the rings: requests of a consumer and answers of the host, each for a whole batch.
//!
//! `docs/formats/node-ring.md` has the bytes. The decoders are strict, so every accepted message has one encoding. Lists
//! of samples are encoded and decoded in place, without memory of their own.

mod consumer;
mod error;
mod fields;
mod host;
mod list;
mod sample;

#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
mod tests;

pub use consumer::{
    Announcement, BatchRelease, BatchRequest, ConsumerMessage, ConsumerProgress, MemoryHits, RepeatRequest,
    UNKNOWN_GENERATION,
};
pub use error::{InvalidField, MessageError};
pub use host::{BatchAnswer, BatchFailure, EpochWanted, HostMessage};
pub use list::{ListElement, MessageList, MessageListIter};
pub use sample::{SampleFailure, SampleLocation};

/// The most samples of a message, and of a batch.
pub const SAMPLES_MAX: usize = 65_536;
