// SPDX-License-Identifier: Apache-2.0
//! One trait and its implementations: ram, disk, origin; and the wrappers throttled, counted, faulty.
//!
//! A tier moves bytes between a place and memory of the caller. [`Tier`] has the guarantees, and the suite in
//! `conformance` tests them. Which sample is read from where, when and how often is decided by the caller and arrives
//! as an [`Op`].

mod completion;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod counted;
mod disk;
mod faulty;
mod identity;
mod list;
mod memory;
mod op;
mod origin;
mod ram;
mod relay;
mod slab;
mod throttled;
mod trial_file;
mod uri;

pub use completion::Completions;
pub use counted::{Count, Counted, OpKind};
pub use disk::{DiskConfig, DiskError, DiskTier, Entries, Held, disk_footprint, sample_checksum};
pub use faulty::{Faults, Faulty};
pub use identity::{EntryKey, OriginIdentity};
pub use list::{ListProgress, Listing, OriginObject, Selection, Unreadable, list};
pub use memory::{Dest, Keeper, Payload, Scratch};
pub use op::{Detail, Done, Fingerprint, Op, SampleKey, TagHash, Ticket};
pub use origin::{
    CachedPages, Locate, Location, OriginError, OriginOptions, PosixOrigin, StoreOrigin, open_origin,
    posix_tag, probe_origin, read_whole,
};
pub use ram::{RamError, RamPin, RamTier, memory_limit};
pub use throttled::{Limits, Throttled};
pub use trial_file::{AlignedBuffer, TrialFile};
pub use uri::{Uri, UriError};

use foresee_units::{Bytes, Nanos};

/// A place that keeps samples.
///
/// Completions go to the [`Completions`] given at construction, never to the caller of [`Tier::submit`].
pub trait Tier: Send + Sync + std::fmt::Debug {
    /// Begins `op`. Never blocks; a place that answers from memory may complete it before it returns.
    ///
    /// Every submitted ticket gets exactly one [`Done`], also after [`Tier::close`], a cancel or a fault.
    fn submit(&self, op: Op);

    /// Begins several, in order. The same as one by one, and cheaper where a place has a queue to lock.
    fn submit_many(&self, ops: Vec<Op>) {
        for op in ops {
            self.submit(op);
        }
    }

    /// Asks for `ticket` to end early. Its `Done` still comes once: [`ReadOutcome::Cancelled`](foresee_units::ReadOutcome::Cancelled) if this was in
    /// time. After that `Done` the tier does not touch the ticket's memory again. Unknown tickets are ignored.
    fn cancel(&self, ticket: Ticket);

    /// How full the place is now; `used <= capacity` at every moment.
    fn facts(&self) -> TierFacts;

    /// Stops the place: finishes or cancels what is under way within `grace`, then refuses. Idempotent.
    fn close(&self, grace: Nanos);
}

/// A tier as it stands now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierFacts {
    /// What the ledger calls this place: `ram`, `disk (buffered)`, `s3://bucket/prefix`.
    pub place: String,
    /// The most that it may hold; `Bytes::MAX` for an origin.
    pub capacity: Bytes,
    /// What it holds, overhead included.
    pub used: Bytes,
    /// Operations submitted and not yet done.
    pub in_flight: u32,
}
