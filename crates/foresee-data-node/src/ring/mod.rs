// SPDX-License-Identifier: Apache-2.0
//! Rings of messages in memory that two processes share and that neither trusts: one writer and one reader each.
//!
//! [`RingPair`] is the interface: both rings of an attachment and the words by which the two sides wake each other.
//! `docs/formats/node-ring.md` has the layout. Every number that the other side can write is read once and checked; a
//! message is copied out before it is parsed. The other side can end the attachment, and nothing else.

mod control;
mod error;
mod memory;
mod queue;
mod wake;

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod loom_tests;
#[cfg(test)]
mod process_tests;
#[cfg(test)]
mod test_support;
#[cfg(test)]
mod tests;

pub use control::{ControlLayout, RING_VERSION, RingPair};
pub use error::RingError;
pub use memory::RingMemory;
pub use queue::{RingReader, RingWriter};
pub use wake::{RingWaiter, RingWaker};
