// SPDX-License-Identifier: Apache-2.0
//! What can be asked of a tier, and how it answers.

use foresee_units::{Bytes, Nanos, ReadOutcome, SampleId};

use crate::memory::{Dest, Payload};

/// Identity of a data set's content listing: the index's fingerprint, 128 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; 16]);

/// The origin's tag of one object (`ETag`, or size, time and inode), as a 64-bit xxh3 of its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TagHash(pub u64);

/// One version of one sample; equal keys mean equal bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SampleKey {
    /// The data set.
    pub fingerprint: Fingerprint,
    /// The sample in it.
    pub id: SampleId,
    /// The version of its object at the origin.
    pub tag: TagHash,
}

/// The caller's name for one operation, unique among those under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// One thing to do.
#[derive(Debug)]
pub enum Op {
    /// Fill `dest` with the sample's bytes from `offset` on; `dest` decides how many.
    Read {
        /// Echoed in the `Done`.
        ticket: Ticket,
        /// What to read.
        key: SampleKey,
        /// First byte wanted, counted from the sample's first.
        offset: u64,
        /// Where to; given back by dropping it before the `Done` is sent.
        dest: Dest,
    },
    /// Keep a copy. A tier that has no room for it answers [`ReadOutcome::Full`] and keeps nothing.
    Write {
        /// Echoed in the `Done`.
        ticket: Ticket,
        /// What is written; a copy under the same id is replaced.
        key: SampleKey,
        /// The whole sample.
        payload: Payload,
    },
    /// Forget the copy; forgetting what is not there is [`ReadOutcome::Absent`].
    Drop {
        /// Echoed in the `Done`.
        ticket: Ticket,
        /// What to forget.
        key: SampleKey,
    },
}

impl Op {
    /// The operation's ticket.
    pub const fn ticket(&self) -> Ticket {
        match self {
            Self::Read { ticket, .. } | Self::Write { ticket, .. } | Self::Drop { ticket, .. } => *ticket,
        }
    }
}

/// The end of one operation.
#[derive(Clone, Debug)]
pub struct Done {
    /// Whose end this is.
    pub ticket: Ticket,
    /// How it ended. A copy that turns out to be `Corrupt` has been dropped.
    pub outcome: ReadOutcome,
    /// Payload bytes moved, also by a failed attempt.
    pub bytes: Bytes,
    /// From `submit` until the place began.
    pub queued: Nanos,
    /// From then until the end.
    pub service: Nanos,
    /// What else is known.
    pub detail: Detail,
}

/// Facts that explain a `Done`; absent means not measured.
#[derive(Clone, Debug, Default)]
pub struct Detail {
    /// Time to open the object (POSIX), part of `service`.
    pub open: Option<Nanos>,
    /// Time to ask for the object's size and version apart from its bytes (POSIX), part of `service`.
    pub stat: Option<Nanos>,
    /// Time until the first byte of the body, part of `service`.
    pub first_byte: Option<Nanos>,
    /// HTTP status.
    pub status: Option<u16>,
    /// The fault in words, without credentials or presigned parts.
    pub message: Option<Box<str>>,
}
