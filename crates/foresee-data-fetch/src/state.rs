// SPDX-License-Identifier: Apache-2.0
//! State of each request, of each range in flight, and of each attempt at it.

use foresee_units::{Nanos, ReadOutcome};

use crate::request::{AttemptId, Part, Request};

/// A request that has not ended.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) request: Request,
    pub(crate) arrived: Nanos,
    pub(crate) tries: u32,
    /// Failed tries, including throttled ones, which determine the pause.
    pub(crate) failures_in_a_row: u32,
    /// Failed tries without throttled ones, which count towards `max_tries`.
    pub(crate) faults: u32,
    /// Whether it is read by itself, because a span with it failed and a single part may have caused that.
    pub(crate) is_single: bool,
    pub(crate) state: RequestState,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum RequestState {
    Ready,
    Pausing { until: Nanos, failed: Nanos },
    InFlight { span: u64 },
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
    /// When it is considered for a hedge.
    pub(crate) hedge_at: Option<Nanos>,
}

impl Span {
    pub(crate) fn attempts(&self) -> impl Iterator<Item = AttemptId> {
        self.first.into_iter().chain(self.hedge)
    }
}

/// An attempt in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    /// Its span; `None` if the span is no longer wanted.
    pub(crate) span: Option<u64>,
    pub(crate) began: Nanos,
    pub(crate) len: u64,
    pub(crate) is_hedge: bool,
}
