// SPDX-License-Identifier: Apache-2.0
//! Operations of a tier and their completions.

use foresee_units::{Bytes, Nanos, ReadOutcome, SampleId};

use crate::memory::{Dest, Payload};

/// Identity of a data set's content: the index's fingerprint, 128 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; 16]);

/// Hash of the origin's tag of one object (`ETag`, or size, time and inode): 64-bit xxh3 of its bytes.
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

/// The caller's name for one operation, unique among those in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// One operation.
#[derive(Debug)]
pub enum Op {
    /// Fill `dest` with the sample's bytes from `offset` on; the length of `dest` is the number of bytes.
    Read {
        /// Echoed in the `Done`.
        ticket: Ticket,
        /// The sample.
        key: SampleKey,
        /// The first byte, relative to the sample's first byte.
        offset: u64,
        /// Destination; dropped before the `Done` is sent.
        dest: Dest,
    },
    /// Store a copy. A tier without free capacity returns [`ReadOutcome::Full`] and stores nothing.
    Write {
        /// Echoed in the `Done`.
        ticket: Ticket,
        /// The sample; a copy under the same id is replaced.
        key: SampleKey,
        /// All bytes of the sample.
        payload: Payload,
    },
    /// Remove the copy; [`ReadOutcome::Absent`] if there is none.
    Drop {
        /// Echoed in the `Done`.
        ticket: Ticket,
        /// The sample.
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

/// The completion of one operation.
#[derive(Clone, Debug)]
pub struct Done {
    /// The operation's ticket.
    pub ticket: Ticket,
    /// Its outcome. A copy that is `Corrupt` has been removed.
    pub outcome: ReadOutcome,
    /// Payload bytes moved, including those of a failed attempt.
    pub bytes: Bytes,
    /// Time from `submit` until the tier started the operation.
    pub queued: Nanos,
    /// Time from then until the completion.
    pub service: Nanos,
    /// Further measurements.
    pub detail: Detail,
}

/// Measurements that explain a `Done`; `None` means not measured.
#[derive(Clone, Debug, Default)]
pub struct Detail {
    /// Time to open the object (POSIX), part of `service`.
    pub open: Option<Nanos>,
    /// Time to query the object's size and version separately from its bytes (POSIX), part of `service`.
    pub stat: Option<Nanos>,
    /// Time until the first byte of the body, part of `service`.
    pub first_byte: Option<Nanos>,
    /// HTTP status.
    pub status: Option<u16>,
    /// Error message, without credentials or presigned parts.
    pub message: Option<Box<str>>,
}
