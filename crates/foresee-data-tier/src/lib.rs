// SPDX-License-Identifier: Apache-2.0
//! The trait [`Tier`] and its implementations: RAM, local disk, and origins (directories, buckets, the Hugging Face
//! hub, web servers).
//!
//! A tier moves bytes between its storage and memory of the caller. [`Tier`] states the guarantees, and the suite in
//! `conformance` tests them. The caller decides which sample is read or written, when and how often, and submits an
//! [`Op`] for it.

mod completion;
#[cfg(test)]
mod conformance;
mod credentials;
mod direct_file;
mod disk;
mod identity;
mod list;
mod memory;
mod op;
mod origin;
mod ram;
mod slab;
#[cfg(test)]
mod test_support;
mod uri;

pub use completion::Completions;
pub use credentials::{
    CredentialReply, CredentialRequest, CredentialResult, CredentialSource, Credentials, ObtainedCredentials,
    set_credential_source,
};
pub use direct_file::{AlignedBuffer, DirectFile};
pub use disk::{
    CacheContent, CacheDirectory, CachedSample, CorruptEntry, DiskConfig, DiskError, DiskTier, Entries,
    EntryFault, PartitionFacts, PartitionUser, Removal, SampleFiles, SampleFilesConfig, Verification,
    disk_footprint, is_on_nfs, sample_checksum,
};
pub use identity::{EntryKey, OriginIdentity};
pub use list::{ListProgress, Listing, OriginObject, Selection, Unreadable, list};
pub use memory::{Dest, MemoryOwner, Payload, Scratch};
pub use op::{Detail, Done, Fingerprint, Op, SampleKey, TagHash, Ticket};
pub use origin::{
    CachedPages, Locate, Location, ObjectReader, OriginError, OriginOptions, PosixOrigin, StoreOrigin,
    open_origin, posix_tag, probe_origin,
};
pub use ram::{RamError, RamPin, RamTier, memory_limit};
pub use slab::Extents;
pub use uri::{Uri, UriError};

use foresee_units::{Bytes, Nanos};

/// Storage of samples.
///
/// Completions go to the [`Completions`] given at construction, never to the caller of [`Tier::submit`].
pub trait Tier: Send + Sync + std::fmt::Debug {
    /// Start `op`. Never blocks; a tier in memory may complete it before it returns.
    ///
    /// Every submitted ticket gets exactly one [`Done`], even after [`Tier::close`], a cancel or a fault.
    fn submit(&self, op: Op);

    /// Start several operations in order, which is cheaper if a tier locks a queue.
    fn submit_many(&self, ops: Vec<Op>) {
        for op in ops {
            self.submit(op);
        }
    }

    /// Request an early end of `ticket`. Its one `Done` has
    /// [`ReadOutcome::Cancelled`](foresee_units::ReadOutcome::Cancelled) if the request was in time. After that `Done`
    /// the tier does not access the ticket's memory. Unknown tickets are ignored.
    fn cancel(&self, ticket: Ticket);

    /// The current state; `used <= capacity` at all times.
    fn facts(&self) -> TierFacts;

    /// Finish or cancel the operations in flight within `grace`, then refuse new ones. Idempotent.
    fn close(&self, grace: Nanos);
}

/// The current state of a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierFacts {
    /// Name of the tier in the ledger: `ram`, `disk (buffered)`, `s3://bucket/prefix`.
    pub place: String,
    /// Maximum of `used`; `Bytes::MAX` for an origin.
    pub capacity: Bytes,
    /// Bytes stored, including overhead.
    pub used: Bytes,
    /// Operations submitted and not yet completed.
    pub in_flight: u32,
}
