// SPDX-License-Identifier: Apache-2.0
//! One cache per node: its host, the client of a loader that consumes from it, and how a loader finds its host, also
//! after that has ended. One listing per node: `listing`. The host's memory: `places`.

mod backoff;
mod client;
mod host;
mod join;
mod listing;
mod peers;
mod places;
mod search;
mod stats;
#[cfg(test)]
pub(crate) mod test_support;

pub(crate) use backoff::is_permanent;
pub use client::{CopyCount, CopyCounts};
pub(crate) use client::{NodeAnnouncement, NodeBatch, NodeClient, NodeEvent};
pub use host::{
    DrawEpoch, HostEnded, HostLogEntry, NodeHost, NodeHostOptions, OtherNodes, PeerJob, PlanKey, SampleSet,
};
pub use join::NodeIdentity;
pub(crate) use join::{JoinProgress, JoinRequest, Joined, host_at, join, leave};
pub use listing::{ListingTurn, NodeListing, leave_listings};
pub use peers::{PeerListener, PeerOptions};
pub(crate) use places::{PublicEntry, SlabPlaces};
#[cfg(test)]
pub(crate) use search::AttachTarget;
pub(crate) use search::{AttachFailure, AttachRetry, Attached, HostSearch};
pub use stats::{NodeHostFacts, NodeStats};

use foresee_units::Nanos;

/// The clock of deadlines, which the processes of a node share: `CLOCK_MONOTONIC`.
pub(crate) fn now() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let nanos = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
    Nanos::new(u64::try_from(nanos).unwrap_or(0))
}
