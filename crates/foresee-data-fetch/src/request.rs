// SPDX-License-Identifier: Apache-2.0
//! Inputs and outputs of the fetch queue. A span is a range of an object; the driver maps objects to keys or files.

use foresee_units::{Bytes, Nanos, ReadOutcome};

/// Urgency of a request when time does not suffice for all; smaller is more urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// The consumer waits for it, or is about to.
    Stalling = 0,
    /// It belongs to a batch that is being staged.
    Staging = 1,
    /// It fills a cache ahead of its use.
    Fill = 2,
    /// Validation and other loaders that share the source.
    Other = 3,
}

impl Class {
    /// All classes, the most urgent first.
    pub const ALL: [Self; 4] = [Self::Stalling, Self::Staging, Self::Fill, Self::Other];
}

/// A range of an object with a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The caller's id, unique among requests that have not ended.
    pub ticket: u64,
    /// The object; only equality counts.
    pub object: u64,
    /// First byte wanted.
    pub start: u64,
    /// Number of bytes; 0 is valid, and only yields an answer. `start + len` fits in 64 bits.
    pub len: u64,
    /// Its urgency.
    pub class: Class,
    /// Position inside its class: a smaller one goes first for any deadline. Among equals the deadline counts.
    pub turn: u64,
    /// When it is wanted, on the clock of every `now`; `Nanos::MAX` if unknown. For a batch that is being staged,
    /// the [`ConsumerRate`](crate::ConsumerRate) takes precedence once it is known.
    pub deadline: Nanos,
    /// Requests with one number are joined into one read, whatever their classes, and with no others; `None` for a request
    /// that is joined by class. They are near each other in one object.
    pub group: Option<u64>,
}

impl Request {
    /// The byte after the last one wanted.
    pub(crate) const fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }
}

/// One attempt to read a span; ids are never reused by one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId(pub u64);

/// The bytes of one ticket inside a span. Parts may overlap if requests did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The ticket.
    pub ticket: u64,
    /// Its first byte, relative to the span's first.
    pub offset_in_span: u64,
    /// Number of bytes.
    pub len: u64,
}

/// An action of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read one span, then report it once with `handle_end`.
    Start {
        /// Its id for `handle_end` and `Cancel`.
        attempt: AttemptId,
        /// The object.
        object: u64,
        /// First byte of the span.
        start: u64,
        /// Bytes of the span, including gaps between parts.
        len: u64,
        /// The tickets and their bytes, by position; at least one.
        parts: Vec<Part>,
        /// Number of this try, from 1; a hedge has the number of the try that it duplicates.
        tries: u32,
        /// Whether another attempt for the same span is in flight.
        hedge: bool,
    },
    /// End an attempt early; its `handle_end` must still follow.
    Cancel {
        /// The attempt.
        attempt: AttemptId,
    },
    /// End a ticket without its bytes.
    Fail {
        /// The ticket.
        ticket: u64,
        /// How the last attempt ended.
        outcome: ReadOutcome,
        /// Number of tries.
        tries: u32,
        /// Time since `handle_request`.
        elapsed: Nanos,
    },
}

/// The end of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// How it ended; `Ok` means that the whole span arrived. `Cancelled` without a `Cancel` counts as a transient
    /// fault.
    pub outcome: ReadOutcome,
    /// Bytes moved, also by a failed attempt.
    pub bytes: Bytes,
    /// Time from its start until the source began.
    pub queued: Nanos,
    /// Time from then until the end.
    pub service: Nanos,
}
