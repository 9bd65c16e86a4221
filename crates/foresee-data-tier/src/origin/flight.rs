// SPDX-License-Identifier: Apache-2.0
//! One operation in flight, which reports exactly one end.
//!
//! Tiers run operations on threads, tasks and queues. A [`Flight`] that is dropped unfinished reports itself, whether
//! its thread panicked, its task was aborted or its queue was dropped.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use foresee_units::{Bytes, Nanos, ReadOutcome};

use crate::completion::Completions;
use crate::memory::Dest;
use crate::op::{Detail, Done, Ticket};

/// Where a place's flights start and end.
#[derive(Debug)]
pub(crate) struct Desk {
    completions: Completions,
    /// Falls before a `Done` is pushed, so that who has seen the `Done` does not count it.
    in_flight: AtomicU32,
    /// Falls after, so that who has waited for zero finds every `Done` in the queue.
    owed: AtomicU32,
    closing: AtomicBool,
    gate: Mutex<()>,
    landed: Condvar,
}

impl Desk {
    pub(crate) fn new(completions: Completions) -> Arc<Self> {
        Arc::new(Self {
            completions,
            in_flight: AtomicU32::new(0),
            owed: AtomicU32::new(0),
            closing: AtomicBool::new(false),
            gate: Mutex::new(()),
            landed: Condvar::new(),
        })
    }

    /// Operations submitted and not yet done.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// Whether [`Desk::close`] was called.
    pub(crate) fn is_closed(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// From now on the place refuses.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
    }

    /// Waits until nothing is under way, at most until `by`; true if so. Only after [`Desk::close`].
    pub(crate) fn wait_until(&self, by: Instant) -> bool {
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        while self.owed.load(Ordering::SeqCst) > 0 {
            let left = by.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            gate = self.landed.wait_timeout(gate, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Counts one operation more; [`Desk::land`] must follow.
    pub(crate) fn admit(&self) {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        self.owed.fetch_add(1, Ordering::SeqCst);
    }

    /// Tells the end of one.
    pub(crate) fn land(&self, done: Done) {
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        self.completions.push(done);
        let last = self.owed.fetch_sub(1, Ordering::SeqCst) == 1;
        if last && self.is_closed() {
            drop(self.gate.lock().unwrap_or_else(PoisonError::into_inner));
            self.landed.notify_all();
        }
    }
}

/// The instant that lies `grace` ahead; far away if that cannot be said.
pub(crate) fn deadline(grace: Nanos) -> Instant {
    let now = Instant::now();
    now.checked_add(grace.into()).unwrap_or_else(|| now + Duration::from_secs(86_400 * 365))
}

/// One operation from its submission to its `Done`.
#[derive(Debug)]
pub(crate) struct Flight {
    desk: Arc<Desk>,
    ticket: Ticket,
    submitted: Instant,
    began: Option<Instant>,
    finished: bool,
    /// Memory to fill; goes back before the `Done`.
    pub(crate) dest: Option<Dest>,
    /// Payload bytes moved so far.
    pub(crate) bytes: u64,
    /// What is known so far.
    pub(crate) detail: Detail,
}

impl Flight {
    pub(crate) fn new(to: &Arc<Desk>, ticket: Ticket, submitted: Instant, dest: Option<Dest>) -> Self {
        to.admit();
        Self {
            desk: Arc::clone(to),
            ticket,
            submitted,
            began: None,
            finished: false,
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

    /// Notes that the place turns to it now.
    pub(crate) fn begin(&mut self) -> Instant {
        *self.began.insert(Instant::now())
    }

    /// Since [`Flight::begin`].
    pub(crate) fn service(&self) -> Duration {
        self.began.map_or(Duration::ZERO, |began| began.elapsed())
    }

    /// Ends it.
    pub(crate) fn finish(mut self, outcome: ReadOutcome) {
        self.report(outcome);
    }

    /// Ends it with a reason in words.
    pub(crate) fn fail(mut self, outcome: ReadOutcome, message: impl Into<Box<str>>) {
        self.detail.message = Some(message.into());
        self.report(outcome);
    }

    fn report(&mut self, outcome: ReadOutcome) {
        self.finished = true;
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
        self.desk.land(done);
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        if std::thread::panicking() {
            self.detail.message = Some("the place failed while it served this; please report it".into());
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
    fn a_flight_ends_once_whether_finished_dropped_or_caught_in_a_panic() {
        let completions = Completions::new(|| {});
        let desk = Desk::new(completions.clone());
        let fly = |ticket| Flight::new(&desk, Ticket(ticket), deadline(Nanos::ZERO), None);
        fly(1).finish(ReadOutcome::Ok);
        drop(fly(2));
        let lost = fly(3);
        let panicked = std::thread::spawn(move || {
            let _lost = lost;
            panic!("on purpose");
        });
        assert!(panicked.join().is_err());
        assert_eq!(ends(&completions), [ReadOutcome::Ok, ReadOutcome::Cancelled, ReadOutcome::Failed]);
        assert_eq!(desk.in_flight(), 0);
    }

    #[test]
    fn waiting_ends_when_the_last_flight_lands() {
        let desk = Desk::new(Completions::new(|| {}));
        let flight = Flight::new(&desk, Ticket(1), deadline(Nanos::ZERO), None);
        desk.close();
        assert!(!desk.wait_until(deadline(Nanos::ZERO)));
        let landing = std::thread::spawn(move || drop(flight));
        assert!(desk.wait_until(deadline(Nanos::MAX)));
        landing.join().expect("no panic");
    }
}
