// SPDX-License-Identifier: Apache-2.0
//! What nodes tell each other about samples. A sample itself is a data frame.

use foresee_units::Nanos;
use serde::{Deserialize, Serialize};

use super::ListOf;

/// Maximum number of samples in one request.
pub const SAMPLE_REQUESTS_MAX: usize = 4096;

/// A message between two nodes. Samples have the numbers that they have in the index of the data set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SampleMessage {
    /// Send these samples, up to [`SAMPLE_REQUESTS_MAX`], by deadline. A sample that is requested already has another deadline
    /// from now on.
    Request(#[serde(with = "ListOf::<SAMPLE_REQUESTS_MAX>")] Vec<SampleRequest>),
    /// A requested sample is no longer wanted. It may be on its way.
    Withdraw(u64),
    /// A requested sample is not here yet: the sender is reading or receiving it.
    Later(u64),
    /// A requested sample is not here, and will not be.
    Missing(u64),
    /// A sample that the receiver should hold is here. It is requested or declined.
    Offer(u64),
    /// An offered sample is not wanted.
    Decline(u64),
    /// The sender has all samples of its accesses before this position. It is repeated, as a heartbeat.
    Passed(u64),
    /// The sender's plan of all accesses before a position has this hash.
    Checkpoint {
        /// Position in the order of all accesses.
        position: u64,
        /// Hash of the plan.
        hash: u64,
    },
}

/// A request for a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleRequest {
    /// The sample.
    pub sample: u64,
    /// The access for which it is read, in the order of all accesses of the job.
    pub position: u64,
    /// Time until it is needed, in nanoseconds, because two nodes have no common clock; `None` if it is not known.
    pub within: Option<u64>,
}

impl SampleRequest {
    /// The time at which it is needed, in the clock of the node that has received it at `now`; [`Nanos::MAX`] if it is not known.
    pub fn deadline(&self, now: Nanos) -> Nanos {
        self.within.map_or(Nanos::MAX, |within| now.saturating_add(Nanos::new(within)))
    }
}
