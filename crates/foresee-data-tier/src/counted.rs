// SPDX-License-Identifier: Apache-2.0
//! A tier that counts operations and bytes of another one, by kind and by outcome.
//!
//! Tests and benchmarks count all tiers alike this way, independent of a tier's own metrics. It changes no operation.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foresee_units::{Bytes, Nanos, ReadOutcome};

use crate::completion::Completions;
use crate::op::{Op, Ticket};
use crate::relay::Relay;
use crate::{Tier, TierFacts};

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// [`Op::Read`].
    Read,
    /// [`Op::Write`].
    Write,
    /// [`Op::Drop`].
    Drop,
}

impl OpKind {
    /// The kind of `op`.
    pub const fn of(op: &Op) -> Self {
        match op {
            Op::Read { .. } => Self::Read,
            Op::Write { .. } => Self::Write,
            Op::Drop { .. } => Self::Drop,
        }
    }
}

/// Operations of one kind that ended one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// How many.
    pub ops: u64,
    /// Payload bytes they moved, those of failed attempts included.
    pub bytes: Bytes,
}

/// The wrapper.
pub struct Counted {
    inner: Arc<dyn Tier>,
    relay: Relay,
    books: Arc<Mutex<Books>>,
}

#[derive(Default)]
struct Books {
    kinds: HashMap<Ticket, OpKind>,
    counts: HashMap<(OpKind, &'static str), Count>,
}

impl Counted {
    /// Wraps the place that `open` makes; its ends reach `completions` when they are counted.
    pub fn new(completions: Completions, open: impl FnOnce(Completions) -> Arc<dyn Tier>) -> Self {
        let books = Arc::new(Mutex::new(Books::default()));
        let ledger = Arc::clone(&books);
        let (relay, queue) = Relay::new(completions, move |done| {
            let mut books = lock(&ledger);
            if let Some(kind) = books.kinds.remove(&done.ticket) {
                let count = books.counts.entry((kind, done.outcome.name())).or_default();
                count.ops += 1;
                count.bytes += done.bytes;
            }
            done
        });
        Self { inner: open(queue), relay, books }
    }

    /// What ended so; the contents of `outcome` do not matter.
    pub fn count(&self, kind: OpKind, outcome: ReadOutcome) -> Count {
        lock(&self.books).counts.get(&(kind, outcome.name())).copied().unwrap_or_default()
    }

    /// All that ended, whatever way.
    pub fn total(&self, kind: OpKind) -> Count {
        let books = lock(&self.books);
        let counts = books.counts.iter().filter(|((counted, _), _)| *counted == kind);
        counts.fold(Count::default(), |sum, (_, count)| Count {
            ops: sum.ops + count.ops,
            bytes: sum.bytes + count.bytes,
        })
    }
}

#[deny(clippy::missing_trait_methods, reason = "a forgotten method would silently bypass the wrapper")]
impl Tier for Counted {
    fn submit(&self, op: Op) {
        self.submit_many(vec![op]);
    }

    fn submit_many(&self, ops: Vec<Op>) {
        {
            let mut books = lock(&self.books);
            for op in &ops {
                self.relay.desk().admit();
                self.relay.send_inside();
                books.kinds.insert(op.ticket(), OpKind::of(op));
            }
        }
        self.inner.submit_many(ops);
    }

    fn cancel(&self, ticket: Ticket) {
        self.inner.cancel(ticket);
    }

    fn facts(&self) -> TierFacts {
        TierFacts { in_flight: self.relay.desk().in_flight(), ..self.inner.facts() }
    }

    fn close(&self, grace: Nanos) {
        self.inner.close(grace);
        self.relay.close(grace);
    }
}

impl fmt::Debug for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counted").field("inner", &self.inner).finish_non_exhaustive()
    }
}

fn lock(books: &Mutex<Books>) -> MutexGuard<'_, Books> {
    books.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance;
    use crate::origin::shelf::{self, open_directory, read};

    #[test]
    fn counting_keeps_the_reading_promises() {
        conformance::read_half(|completions, samples| {
            let mut stocked = None;
            let counted = Counted::new(completions, |queue| {
                let inside = open_directory(queue, samples, 4);
                let tier = Arc::clone(&inside.tier);
                stocked = Some(inside);
                tier
            });
            conformance::Stocked { tier: Arc::new(counted), ..stocked.expect("it was opened") }
        });
    }

    #[test]
    fn reads_are_counted_by_outcome() {
        let (counted, queue) = shelf::queued(|completions| {
            Counted::new(completions, |queue| open_directory(queue, &[vec![7; 5], vec![8; 9]], 2).tier)
        });
        assert_eq!(read(&counted, &queue, 0, 5).0.outcome, ReadOutcome::Ok);
        assert_eq!(read(&counted, &queue, 1, 9).0.outcome, ReadOutcome::Ok);
        assert_eq!(read(&counted, &queue, 2, 3).0.outcome, ReadOutcome::Absent);
        assert_eq!(counted.count(OpKind::Read, ReadOutcome::Ok), Count { ops: 2, bytes: Bytes::new(14) });
        assert_eq!(counted.count(OpKind::Read, ReadOutcome::Absent).ops, 1);
        assert_eq!(counted.total(OpKind::Read), Count { ops: 3, bytes: Bytes::new(14) });
        assert_eq!(counted.total(OpKind::Write), Count::default());
    }
}
