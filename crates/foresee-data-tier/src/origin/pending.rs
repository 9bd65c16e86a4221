// SPDX-License-Identifier: Apache-2.0
//! Operations in flight, each of which reports exactly one completion.
//!
//! A [`PendingOp`] that is dropped unfinished reports itself, whether its thread panicked, its task was aborted or
//! its queue was dropped.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use foresee_units::{Bytes, Nanos, ReadOutcome};

use crate::completion::Completions;
use crate::memory::Dest;
use crate::op::{Detail, Done, Ticket};

/// The operations of one origin, and the queue for their completions.
#[derive(Debug)]
pub(crate) struct PendingOps {
    completions: Completions,
    /// Decremented before a `Done` is pushed, so that a reader of the `Done` does not count it.
    in_flight: AtomicU32,
    /// Decremented after that, so that a waiter for zero finds every `Done` in the queue.
    unreported: AtomicU32,
    closing: AtomicBool,
    idle_lock: Mutex<()>,
    idle: Condvar,
}

impl PendingOps {
    pub(crate) fn new(completions: Completions) -> Arc<Self> {
        Arc::new(Self {
            completions,
            in_flight: AtomicU32::new(0),
            unreported: AtomicU32::new(0),
            closing: AtomicBool::new(false),
            idle_lock: Mutex::new(()),
            idle: Condvar::new(),
        })
    }

    /// Number of operations submitted and not completed.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// Whether [`PendingOps::close`] was called.
    pub(crate) fn is_closed(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// Refuse operations from now on.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
    }

    /// Wait until no operation is in flight, at most until `by`; true on success. Only after [`PendingOps::close`].
    pub(crate) fn wait_idle(&self, by: Instant) -> bool {
        let mut idle_lock = self.idle_lock.lock().unwrap_or_else(PoisonError::into_inner);
        while self.unreported.load(Ordering::SeqCst) > 0 {
            let left = by.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            idle_lock = self.idle.wait_timeout(idle_lock, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Count one more operation; [`PendingOps::complete`] must follow.
    pub(crate) fn register(&self) {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        self.unreported.fetch_add(1, Ordering::SeqCst);
    }

    /// Report the completion of one operation.
    pub(crate) fn complete(&self, done: Done) {
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        self.completions.push(done);
        let last = self.unreported.fetch_sub(1, Ordering::SeqCst) == 1;
        if last && self.is_closed() {
            drop(self.idle_lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.idle.notify_all();
        }
    }
}

/// The time after `grace`; far in the future if that overflows.
pub(crate) fn deadline(grace: Nanos) -> Instant {
    let now = Instant::now();
    now.checked_add(grace.into()).unwrap_or_else(|| now + Duration::from_secs(86_400 * 365))
}

/// One operation from submission to completion.
#[derive(Debug)]
pub(crate) struct PendingOp {
    pending_ops: Arc<PendingOps>,
    ticket: Ticket,
    submitted: Instant,
    began: Option<Instant>,
    is_finished: bool,
    /// Memory to fill; dropped before the `Done`.
    pub(crate) dest: Option<Dest>,
    /// Payload bytes moved so far.
    pub(crate) bytes: u64,
    /// Measurements so far.
    pub(crate) detail: Detail,
}

impl PendingOp {
    pub(crate) fn new(to: &Arc<PendingOps>, ticket: Ticket, submitted: Instant, dest: Option<Dest>) -> Self {
        to.register();
        Self {
            pending_ops: Arc::clone(to),
            ticket,
            submitted,
            began: None,
            is_finished: false,
            dest,
            bytes: 0,
            detail: Detail::default(),
        }
    }

    pub(crate) const fn ticket(&self) -> Ticket {
        self.ticket
    }

    pub(crate) const fn submitted(&self) -> Instant {
        self.submitted
    }

    /// Mark the start of the service of this operation.
    pub(crate) fn begin(&mut self) -> Instant {
        *self.began.insert(Instant::now())
    }

    /// Time since [`PendingOp::begin`].
    pub(crate) fn service(&self) -> Duration {
        self.began.map_or(Duration::ZERO, |began| began.elapsed())
    }

    /// Complete the operation.
    pub(crate) fn finish(mut self, outcome: ReadOutcome) {
        self.report(outcome);
    }

    /// Complete the operation with a message.
    pub(crate) fn fail(mut self, outcome: ReadOutcome, message: impl Into<Box<str>>) {
        self.detail.message = Some(message.into());
        self.report(outcome);
    }

    fn report(&mut self, outcome: ReadOutcome) {
        self.is_finished = true;
        self.dest = None;
        let now = Instant::now();
        let began = self.began.unwrap_or(now);
        let done = Done {
            ticket: self.ticket,
            outcome,
            bytes: Bytes::new(self.bytes),
            queued: Nanos::from(began.saturating_duration_since(self.submitted)),
            service: Nanos::from(now.saturating_duration_since(began)),
            detail: std::mem::take(&mut self.detail),
        };
        self.pending_ops.complete(done);
    }
}

impl Drop for PendingOp {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        if std::thread::panicking() {
            self.detail.message =
                Some("a panic ended this read; please report it with the message of the panic".into());
            self.report(ReadOutcome::Failed);
        } else {
            self.report(ReadOutcome::Cancelled);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(completions: &Completions) -> Vec<ReadOutcome> {
        let mut done = Vec::new();
        completions.drain(&mut done);
        done.iter().map(|done| done.outcome).collect()
    }

    #[test]
    fn an_operation_ends_once_when_finished_dropped_or_in_a_panic() {
        let completions = Completions::new(|| {});
        let pending_ops = PendingOps::new(completions.clone());
        let begin = |ticket| PendingOp::new(&pending_ops, Ticket(ticket), deadline(Nanos::ZERO), None);
        begin(1).finish(ReadOutcome::Ok);
        drop(begin(2));
        let unfinished = begin(3);
        let panicked = std::thread::spawn(move || {
            let _unfinished = unfinished;
            panic!("on purpose");
        });
        assert!(panicked.join().is_err());
        assert_eq!(ends(&completions), [ReadOutcome::Ok, ReadOutcome::Cancelled, ReadOutcome::Failed]);
        assert_eq!(pending_ops.in_flight(), 0);
    }

    #[test]
    fn a_wait_ends_with_the_last_operation() {
        let pending_ops = PendingOps::new(Completions::new(|| {}));
        let pending = PendingOp::new(&pending_ops, Ticket(1), deadline(Nanos::ZERO), None);
        pending_ops.close();
        assert!(!pending_ops.wait_idle(deadline(Nanos::ZERO)));
        let thread = std::thread::spawn(move || drop(pending));
        assert!(pending_ops.wait_idle(deadline(Nanos::MAX)));
        thread.join().expect("no panic");
    }
}
