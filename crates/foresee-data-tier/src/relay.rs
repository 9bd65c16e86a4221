// SPDX-License-Identifier: Apache-2.0
//! The path of an end from a wrapped tier through its wrapper to the engine.
//!
//! A tier reports to the queue of its construction, so a wrapper that counts or changes ends stands between two queues.
//! One thread runs until the wrapper is gone and every operation handed inside has ended. No end is lost or invented.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use foresee_units::{Bytes, Nanos, ReadOutcome};

use crate::completion::Completions;
use crate::op::{Detail, Done, Ticket};
use crate::origin::flight::{Desk, deadline};

/// A wrapper's side of the way.
#[derive(Debug)]
pub(crate) struct Relay {
    shared: Arc<Shared>,
    desk: Arc<Desk>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Handed to the wrapped place and not yet ended.
    inside: AtomicU32,
    stopped: AtomicBool,
    rung: Mutex<bool>,
    bell: Condvar,
}

impl Relay {
    /// A relay to `outer`, and the queue to construct the wrapped place with. `change` sees each end once.
    ///
    /// # Panics
    /// If the machine refuses a thread.
    pub(crate) fn new(
        outer: Completions,
        mut change: impl FnMut(Done) -> Done + Send + 'static,
    ) -> (Self, Completions) {
        let shared = Arc::new(Shared::default());
        let desk = Desk::new(outer);
        let ringing = Arc::clone(&shared);
        let inner = Completions::new(move || ringing.ring());
        let (waiting, queue, landing) = (Arc::clone(&shared), inner.clone(), Arc::clone(&desk));
        let pass_on = move || {
            let mut ends = Vec::new();
            while waiting.wait() {
                queue.drain(&mut ends);
                for done in ends.drain(..) {
                    landing.land(change(done));
                    waiting.inside.fetch_sub(1, Ordering::SeqCst);
                }
            }
        };
        std::thread::Builder::new()
            .name("foresee-relay".into())
            .spawn(pass_on)
            .expect("the machine allows one more thread");
        (Self { shared, desk }, inner)
    }

    /// Where operations are counted that the wrapper holds or ends itself.
    pub(crate) const fn desk(&self) -> &Arc<Desk> {
        &self.desk
    }

    /// Counts one operation, already on the desk, that goes inside now.
    pub(crate) fn send_inside(&self) {
        self.shared.inside.fetch_add(1, Ordering::SeqCst);
    }

    /// Waits for the last end, which the wrapped place has reported or will.
    pub(crate) fn close(&self, grace: Nanos) {
        self.desk.close();
        self.desk.wait_until(deadline(grace));
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        self.shared.ring();
    }
}

impl Shared {
    fn ring(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.bell.notify_one();
    }

    /// Waits for ends; false when none can come any more.
    fn wait(&self) -> bool {
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if std::mem::take(&mut *rung) {
                return !self.is_over();
            }
            if self.is_over() {
                return false;
            }
            rung = self.bell.wait(rung).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn is_over(&self) -> bool {
        self.stopped.load(Ordering::SeqCst) && self.inside.load(Ordering::SeqCst) == 0
    }
}

/// The end of an operation that a wrapper ends itself.
pub(crate) fn end(ticket: Ticket, submitted: Instant, outcome: ReadOutcome, message: Option<&str>) -> Done {
    Done {
        ticket,
        outcome,
        bytes: Bytes::ZERO,
        queued: Nanos::from(submitted.elapsed()),
        service: Nanos::ZERO,
        detail: Detail { message: message.map(Into::into), ..Detail::default() },
    }
}
