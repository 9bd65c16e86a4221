// SPDX-License-Identifier: Apache-2.0
//! What goes into the fetch queue and what comes out of it.
//!
//! Apart from the queue itself, so that a driver reads one page to know the whole grammar. Refuses to say
//! how bytes move: a span is a range of an object, and which key or file that object is, the driver knows.

use foresee_units::{Bytes, Nanos, ReadOutcome};

/// How much a request matters once there is not time for all; smaller is more urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// The consumer stands and waits for it, or is about to.
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

/// One range of one object, wanted by a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The caller's name for it, unique among requests that have not ended.
    pub ticket: u64,
    /// Which object; only equality counts.
    pub object: u64,
    /// First byte wanted.
    pub start: u64,
    /// How many bytes; 0 is legal and fetches nothing but an answer. `start + len` fits in 64 bits.
    pub len: u64,
    /// How much it matters.
    pub class: Class,
    /// Its place among those of its class: a smaller one goes first, whatever the deadlines. Among equals the deadline
    /// counts.
    pub turn: u64,
    /// When it is wanted, on the same clock as every `now`; `Nanos::MAX` if that is not known. Of a batch that is being
    /// staged the consumer's [`Pace`](crate::Pace) says more, once it is known.
    pub deadline: Nanos,
}

impl Request {
    /// The byte after the last one wanted.
    pub(crate) const fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }
}

/// One attempt to read a span, never used twice by one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId(pub u64);

/// Where one ticket's bytes lie inside a span. Parts may overlap if requests did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Whose bytes.
    pub ticket: u64,
    /// Its first byte, counted from the span's first.
    pub offset_in_span: u64,
    /// How many bytes.
    pub len: u64,
}

/// What the driver is to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read one span, then report it with `handle_end`, once.
    Start {
        /// To be named in `handle_end` and `Cancel`.
        attempt: AttemptId,
        /// Which object.
        object: u64,
        /// First byte of the span.
        start: u64,
        /// Bytes of the span, gaps between parts included.
        len: u64,
        /// Who wants which of them, by position; at least one.
        parts: Vec<Part>,
        /// The how-manieth try this is, from 1; a hedge carries the number of the try that it doubles.
        tries: u32,
        /// Whether another attempt for the same span is still under way.
        hedge: bool,
    },
    /// End an attempt early; its `handle_end` still has to come.
    Cancel {
        /// Which one.
        attempt: AttemptId,
    },
    /// A ticket's end without its bytes.
    Fail {
        /// Whose end.
        ticket: u64,
        /// How the last attempt ended.
        outcome: ReadOutcome,
        /// How often it was tried.
        tries: u32,
        /// Since `handle_request`.
        elapsed: Nanos,
    },
}

/// The end of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// How it ended; `Ok`: the whole span arrived. `Cancelled` without a `Cancel` counts as a transient fault.
    pub outcome: ReadOutcome,
    /// Bytes moved, also by a failed attempt.
    pub bytes: Bytes,
    /// From its start until the source began.
    pub queued: Nanos,
    /// From then until the end.
    pub service: Nanos,
}

/// What the end of an attempt settles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Tickets that have their bytes now, by position in the span. Empty for a failed attempt, a lost hedge
    /// and an attempt that nobody wants any more.
    pub won: Vec<u64>,
}
