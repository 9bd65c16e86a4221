// SPDX-License-Identifier: Apache-2.0
//! Attempts at an origin: their state, their operations, and what the ledger needs of them.

use std::sync::Arc;

use foresee_data_fetch::{AttemptId, Part};
use foresee_data_tier::{Done, Op, Scratch, Tier};
use foresee_units::{Bytes, Nanos};

/// One attempt in flight.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) origin: Arc<dyn Tier>,
    pub(super) parts: Vec<Part>,
    /// `None` if it writes to the memory of its read.
    pub(super) scratch: Option<Arc<Scratch>>,
    pub(super) tries: u32,
    pub(super) is_hedge: bool,
}

/// An attempt to start.
#[derive(Debug)]
pub(super) struct AttemptStart {
    pub(super) id: AttemptId,
    /// First byte of the span in its object, and number of bytes.
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) parts: Vec<Part>,
    pub(super) tries: u32,
    pub(super) is_hedge: bool,
}

/// An ended attempt, for the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttemptSummary {
    /// The number of its first read that has not ended before.
    pub(crate) first: u64,
    /// Number of its reads.
    pub(crate) samples: u32,
    /// Number of the attempt, from 1; a hedge has the next number.
    pub(crate) attempt: u32,
}

/// Operations of one call, by origin: each origin gets them at once.
#[derive(Debug, Default)]
pub(super) struct Submissions(Vec<(Arc<dyn Tier>, Vec<Op>)>);

impl Submissions {
    pub(super) fn add(&mut self, origin: &Arc<dyn Tier>, op: Op) {
        match self.0.iter_mut().find(|(other, _)| Arc::ptr_eq(other, origin)) {
            Some((_, ops)) => ops.push(op),
            None => self.0.push((Arc::clone(origin), vec![op])),
        }
    }

    pub(super) fn submit(&mut self) {
        for (origin, ops) in self.0.drain(..) {
            origin.submit_many(ops);
        }
    }
}

/// The operations of an attempt for the ledger: the open of the object, if it was measured, and the read.
pub(crate) fn ledger_operations(done: &Done) -> impl Iterator<Item = (foresee_ledger::Op, Done)> {
    let open = done
        .detail
        .open
        .map(|open| (foresee_ledger::Op::Open, Done { service: open, bytes: Bytes::ZERO, ..done.clone() }));
    let rest = done.service.saturating_sub(done.detail.open.unwrap_or(Nanos::ZERO));
    let read = (foresee_ledger::Op::Read, Done { service: rest, ..done.clone() });
    open.into_iter().chain(std::iter::once(read))
}
