// SPDX-License-Identifier: Apache-2.0
//! What goes in and out of the planner of a node's cache: identities, settings, actions and refusals.

use foresee_units::{Bytes, Nanos, ReadOutcome, Source};

use crate::capacity::TierCapacity;

/// A byte range that the node may cache. Numbers are dense, in the order of [`handle_entry`](crate::NodePlanner::handle_entry).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId(pub u32);

/// A consumer of the node's cache. The caller numbers consumers from 0 and uses the numbers of detached ones again,
/// because tables are as long as the largest number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConsumerId(pub u32);

/// A tier of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeTier {
    /// The shared memory, through which every answer goes.
    Memory,
    /// The disk cache.
    Disk,
}

/// Settings of the planner of a node's cache.
#[derive(Clone, Debug)]
pub struct NodePlannerConfig {
    /// The shared memory. Entries in flight, pinned and cached count.
    pub memory: TierCapacity,
    /// The disk cache; a capacity of 0 means none. Entries that are being written count.
    pub disk: TierCapacity,
    /// Bound of the look-ahead: 12 bytes per announced access of any consumer. One epoch is always accepted. The
    /// tables by entry (16 bytes each) are additional, see [`table_bytes`](crate::NodePlanner::table_bytes).
    pub table_budget: Bytes,
    /// Announced bytes that are read before they are requested, by all consumers together, in equal shares; at most the
    /// last entry of a share exceeds it. 0 reads nothing ahead. They take space of the memory.
    pub read_ahead: Bytes,
    /// Time per access of a consumer before its first progress; at least 1 ns.
    pub initial_interval: Nanos,
    /// Time without progress after which a consumer stands still. More than the longest regular step: until then its
    /// accesses are as near as if it ran.
    pub stall_grace: Nanos,
    /// Bytes of each tier that stay for a consumer that stands still, if other consumers need the space; 0 or more.
    /// Applies to entries that no running consumer uses sooner.
    pub stalled_bytes_max: Bytes,
    /// Time after which the pin of an answer may be taken back, if requests wait for memory. More than a consumer
    /// needs to copy a batch: a consumer that loses a pin too early has to request again.
    pub pin_timeout: Nanos,
}

/// What the caller has to do next. Actions are executed in order; evictions take effect at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeAction {
    /// Read the entry into memory and report [`handle_read`](crate::NodePlanner::handle_read).
    Read {
        /// The entry, which is not in memory.
        entry: EntryId,
        /// [`Source::Disk`] or [`Source::Origin`].
        from: Source,
        /// Earliest deadline of the requests for it, or the predicted time of its use if none was made yet; [`Nanos::MAX`] if
        /// it is only read because others of its group are.
        deadline: Nanos,
        /// The entry with which it is read: one read of the origin includes all entries with this number. `None` if it is read
        /// alone.
        group: Option<EntryId>,
    },
    /// A read in flight has an earlier deadline, or is late.
    Prioritize {
        /// The entry in flight.
        entry: EntryId,
        /// Earliest deadline of the requests for it.
        deadline: Nanos,
    },
    /// Write the entry from memory to the disk and report [`handle_stored`](crate::NodePlanner::handle_stored).
    Store {
        /// The entry, which stays in memory until the report.
        entry: EntryId,
    },
    /// Delete the copy in this tier.
    Evict {
        /// The entry, which is not pinned in that tier.
        entry: EntryId,
        /// The tier.
        tier: NodeTier,
    },
    /// Answer a request: the entry is in memory, and stays there until
    /// [`handle_release`](crate::NodePlanner::handle_release) or [`NodeAction::TakeBack`].
    Answer {
        /// The consumer of the request.
        consumer: ConsumerId,
        /// Number of the access.
        access: u64,
        /// Its entry.
        entry: EntryId,
        /// The source of the read for one of the requests that waited for it, or for the first one after a read ahead;
        /// [`Source::Ram`] for the others, and for bytes that were in memory.
        source: Source,
    },
    /// Answer a request with a failure; the request is over.
    Fail {
        /// The consumer of the request.
        consumer: ConsumerId,
        /// Number of the access.
        access: u64,
        /// Its entry.
        entry: EntryId,
        /// Outcome of the read; [`ReadOutcome::Full`] if the entry is larger than the memory.
        outcome: ReadOutcome,
    },
    /// The consumer has lost the entry of this answer: mark the slot as changed before it is used again. The consumer
    /// may request the same access again.
    TakeBack {
        /// The consumer of the answer.
        consumer: ConsumerId,
        /// Number of the access.
        access: u64,
        /// Its entry.
        entry: EntryId,
    },
}

impl NodeAction {
    /// The consumer that the action is about.
    pub(super) fn consumer(&self) -> Option<ConsumerId> {
        match *self {
            Self::Answer { consumer, .. } | Self::Fail { consumer, .. } | Self::TakeBack { consumer, .. } => {
                Some(consumer)
            }
            Self::Read { .. } | Self::Prioritize { .. } | Self::Store { .. } | Self::Evict { .. } => None,
        }
    }
}

/// Why an entry or a request is refused; nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NodePlanError {
    /// Sizes are held in 32 bits.
    #[error("an entry of {size} is too large for the node's cache (at most {most}); split it into ranges")]
    EntryTooLarge {
        /// Size of the entry.
        size: Bytes,
        /// Maximum size.
        most: Bytes,
    },
    /// Entries are numbered in 32 bits.
    #[error(
        "the node's cache has {count} entries, which is the most it can plan; index data in larger ranges"
    )]
    TooManyEntries {
        /// Entries so far.
        count: usize,
    },
    /// The access was not announced, or was requested before and not taken back.
    #[error(
        "consumer {consumer} requested access {access}, but its announced accesses are {first} to {end} \
         (exclusive); request announced accesses once and in order"
    )]
    NotAnnounced {
        /// Number of the consumer.
        consumer: u32,
        /// The requested access.
        access: u64,
        /// First announced access.
        first: u64,
        /// One more than the last announced access.
        end: u64,
    },
}
