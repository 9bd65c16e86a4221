// SPDX-License-Identifier: Apache-2.0
//! What nodes of a job tell each other. Samples themselves travel apart from these messages.

use foresee_units::{Nanos, SampleId};

/// A message from one node to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerMessage {
    /// Send these samples, by deadline. A sample that is requested already has another deadline from now on.
    Request(Vec<PeerRequest>),
    /// A requested sample is no longer wanted. It may be on its way.
    Withdraw(SampleId),
    /// A requested sample is not here yet: the sender is reading or receiving it.
    Later(SampleId),
    /// A requested sample is not here, and will not be.
    Missing(SampleId),
    /// A sample that the receiver should hold is here. It is requested or declined.
    Offer(SampleId),
    /// An offered sample is not wanted.
    Decline(SampleId),
    /// The sender has fetched all samples of its accesses before this position, and reads nothing for them any more.
    /// It is repeated, so that the receiver knows that the sender is alive.
    Passed(u64),
    /// The sender's plan of all accesses before `position` has this hash.
    Checkpoint {
        /// Position in the order of all accesses.
        position: u64,
        /// Hash of the plan.
        hash: u64,
    },
}

/// A request for a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerRequest {
    /// The sample.
    pub sample: SampleId,
    /// The access for which it is read, in the order of all accesses of the job.
    pub position: u64,
    /// When it is needed, in the clock of the node that handles the message; [`Nanos::MAX`] if that is not known. On the wire it
    /// is the time that is left.
    pub deadline: Nanos,
}
