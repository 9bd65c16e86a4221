// SPDX-License-Identifier: Apache-2.0
//! Sources of bytes, and outcomes of reads and writes; the ledger saves both by name.

use crate::{Nanos, named_enum};

named_enum! {
    /// A source or destination of bytes; copies of a sample are in `Ram` to `Origin`, nearest first.
    Source {
        /// Unspecified.
        None => "none",
        /// This rank's memory tier.
        Ram => "ram",
        /// This rank's disk tier.
        Disk => "disk",
        /// Another rank's tier.
        Peer => "peer",
        /// The bucket or file system of the data set.
        Origin => "origin",
        /// A read in flight for an earlier sample of the staging buffer.
        Staging => "staging",
        /// The servers of gradients.
        Server => "server",
    }
}

/// The outcome of an operation on a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReadOutcome {
    /// Done in full.
    Ok,
    /// The source does not have the sample (at an origin: the object is missing, HTTP 404).
    Absent,
    /// The bytes fail their checksum or their length.
    Corrupt,
    /// The object is not the version of the index (HTTP 412).
    Changed,
    /// No permission (HTTP 401, 403, EACCES): a retry does not help.
    Denied,
    /// Too many requests (HTTP 429, 503).
    Throttled {
        /// The pause that the source requested.
        retry_after: Option<Nanos>,
    },
    /// A transient fault: reset, timeout, short body, HTTP 5xx. A retry may help.
    Retryable,
    /// No capacity left for a write; the tier is unchanged.
    Full,
    /// Cancelled on request.
    Cancelled,
    /// Any other permanent fault.
    Failed,
}

impl ReadOutcome {
    /// The name in the ledger.
    pub const fn name(self) -> &'static str {
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
