// SPDX-License-Identifier: Apache-2.0
//! Failures of a ring: what the other side broke, or what the caller asked too much of.

/// Failure of a ring. All but [`RingError::TooLong`] end the attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages show the fields by their names")]
#[non_exhaustive]
pub enum RingError {
    /// A counter that the other side may write has an impossible value.
    #[error(
        "the other side set the {counter} of a ring to {found}, which is no multiple of 8 from {least} to {most}; end the attachment"
    )]
    Counter {
        /// `head` or `tail`.
        counter: &'static str,
        found: u64,
        /// The last valid value.
        least: u64,
        most: u64,
    },
    /// A message whose length exceeds the bytes that were written.
    #[error(
        "the other side announces a message of {found} bytes, where {available} bytes of a ring are written; end the attachment"
    )]
    Length {
        found: u64,
        /// Bytes from the message's length to the tail.
        available: u64,
    },
    /// The head of a ring's memory is not that of this version and direction.
    #[error(
        "a ring has {field} {found:#x} instead of {expected:#x}; run one version of Foresee on this node"
    )]
    Header { field: &'static str, found: u64, expected: u64 },
    /// The caller's message does not fit into an empty ring.
    #[error("a message has {length} bytes, and a ring takes {max}; split it, or choose a larger ring")]
    TooLong { length: usize, max: usize },
    /// A capacity that no ring can have.
    #[error(
        "a ring of {found} bytes is not possible; choose a power of two from {least} to {most}",
        least = super::control::CAPACITY_MIN,
        most = super::control::CAPACITY_MAX
    )]
    Capacity { found: u64 },
    /// The memory is too small, or does not begin at a cache line.
    #[error(
        "{found} bytes of memory at {start:#x} cannot hold the rings; they need {needed}, from a multiple of 64"
    )]
    Memory { found: usize, needed: usize, start: usize },
}
