// SPDX-License-Identifier: Apache-2.0
//! Where bytes come from, and how a read or a write of a sample ends.
//!
//! Tiers report these, the fetch queue decides by them, and the ledger saves them under the same words.

use crate::{Nanos, words};

words! {
    /// Where bytes came from, or went; copies of a sample are in `Ram` to `Origin`, the nearest first.
    Source {
        /// Nowhere in particular.
        None => "none",
        /// This rank's memory tier.
        Ram => "ram",
        /// This rank's disk tier.
        Disk => "disk",
        /// Another rank's tier.
        Peer => "peer",
        /// The data set's home.
        Origin => "origin",
        /// A read in flight for an earlier sample of the staging buffer.
        Staging => "staging",
        /// The servers of gradients.
        Server => "server",
    }
}

/// How an operation on a sample ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReadOutcome {
    /// Done in full.
    Ok,
    /// The place does not hold the sample (at an origin: the object is missing, HTTP 404).
    Absent,
    /// The bytes fail their checksum or their length.
    Corrupt,
    /// The object is another version than the index says (HTTP 412).
    Changed,
    /// No permission (HTTP 401, 403, EACCES): asking again does not help.
    Denied,
    /// Slow down (HTTP 429, 503).
    Throttled {
        /// How long the source asked to be left alone.
        retry_after: Option<Nanos>,
    },
    /// A transient fault: reset, timeout, short body, HTTP 5xx. Asking again may help.
    Retryable,
    /// No capacity left for a write; the tier is as it was.
    Full,
    /// Ended early, on request.
    Cancelled,
    /// Any other fault that asking again does not mend.
    Failed,
}

impl ReadOutcome {
    /// The spelling in the ledger.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Absent => "absent",
            Self::Corrupt => "corrupt",
            Self::Changed => "changed",
            Self::Denied => "denied",
            Self::Throttled { .. } => "throttled",
            Self::Retryable => "retryable",
            Self::Full => "full",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }
}
