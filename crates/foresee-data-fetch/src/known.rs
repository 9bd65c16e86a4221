// SPDX-License-Identifier: Apache-2.0
//! State of each request, of each range in flight, and of each attempt at it. The queue moves them from state to state.

use foresee_units::{Bytes, Nanos, ReadOutcome};

use crate::request::{AttemptId, Part, Request};

#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) retries: u64,
    pub(crate) hedges: u64,
    pub(crate) hedge_wins: u64,
    pub(crate) hedged_bytes: u64,
    pub(crate) throttles: u64,
    pub(crate) moved: Bytes,
    pub(crate) over_read: u64,
}

/// A request that has not ended.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) request: Request,
    pub(crate) arrived: Nanos,
    pub(crate) tries: u32,
    /// Failed tries, including throttled ones, which determine the pause.
    pub(crate) setbacks: u32,
    /// Failed tries without throttled ones, which count towards `max_tries`.
    pub(crate) faults: u32,
    /// A span with this part failed for a reason that a single part may have caused.
    pub(crate) alone: bool,
    pub(crate) state: State,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum State {
    Ready,
    Pausing { until: Nanos, failed: Nanos },
    Flying { span: u64 },
    Failed { outcome: ReadOutcome, elapsed: Nanos },
}

/// One range that is being read, by one or two attempts.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) object: u64,
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) parts: Vec<Part>,
    pub(crate) tries: u32,
    pub(crate) began: Nanos,
    /// The earliest deadline of its parts; zero once a consumer waits.
    pub(crate) deadline: Nanos,
    pub(crate) first: Option<AttemptId>,
    pub(crate) hedge: Option<AttemptId>,
    pub(crate) alarm: Option<Nanos>,
}

impl Span {
    pub(crate) fn attempts(&self) -> impl Iterator<Item = AttemptId> {
        self.first.into_iter().chain(self.hedge)
    }
}

/// An attempt in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    /// Its span; `None` if the span is no longer wanted.
    pub(crate) span: Option<u64>,
    pub(crate) began: Nanos,
    pub(crate) len: u64,
    pub(crate) hedge: bool,
}
