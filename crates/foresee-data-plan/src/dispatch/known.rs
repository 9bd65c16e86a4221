// SPDX-License-Identifier: Apache-2.0
//! What is known of each request, of each range that is being read, and of each attempt at it.
//!
//! Refuses to decide anything: the queue does, and moves these from state to state.

use foresee_units::{Bytes, Nanos};

use super::request::{AttemptId, Fault, Part, Request};

#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    pub(super) retries: u64,
    pub(super) hedges: u64,
    pub(super) hedge_wins: u64,
    pub(super) hedged_bytes: u64,
    pub(super) throttles: u64,
    pub(super) moved: Bytes,
    pub(super) over_read: u64,
}

/// A request that has not ended.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) request: Request,
    pub(super) arrived: Nanos,
    pub(super) tries: u32,
    /// Failed tries, refusals included: what pauses grow with.
    pub(super) setbacks: u32,
    /// Failed tries without refusals: what counts against `max_tries`.
    pub(super) faults: u32,
    /// A span that it was part of failed for a reason that one part alone may have caused.
    pub(super) alone: bool,
    pub(super) state: State,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    Ready,
    Pausing { until: Nanos, failed: Nanos },
    Flying { span: u64 },
    Failed { fault: Fault, elapsed: Nanos },
}

/// One range that is being read, by one attempt or two.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) object: u64,
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) parts: Vec<Part>,
    pub(super) tries: u32,
    pub(super) began: Nanos,
    /// The earliest deadline of its parts; zero once a consumer waits.
    pub(super) deadline: Nanos,
    pub(super) first: Option<AttemptId>,
    pub(super) hedge: Option<AttemptId>,
    pub(super) alarm: Option<Nanos>,
}

impl Span {
    pub(super) fn attempts(&self) -> impl Iterator<Item = AttemptId> {
        self.first.into_iter().chain(self.hedge)
    }
}

/// One attempt under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    /// What it reads; `None` once nobody wants it.
    pub(super) span: Option<u64>,
    pub(super) began: Nanos,
    pub(super) len: u64,
    pub(super) hedge: bool,
}
