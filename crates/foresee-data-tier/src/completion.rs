// SPDX-License-Identifier: Apache-2.0
//! The one queue on which every tier of an engine reports.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::op::Done;

/// Where tiers put their `Done`s. Clones share the queue.
///
/// Bounded by construction: a `Done` exists only for a submitted ticket, and its submitter bounds those.
#[derive(Clone)]
pub struct Completions {
    shared: Arc<Shared>,
}

struct Shared {
    done: Mutex<Vec<Done>>,
    nudged: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Completions {
    /// A queue that calls `wake` when it turns from empty to not empty. `wake` must be quick and not drain.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            shared: Arc::new(Shared {
                done: Mutex::default(),
                nudged: AtomicBool::new(false),
                wake: Box::new(wake),
            }),
        }
    }

    /// Reports one end.
    pub fn push(&self, done: Done) {
        let first = {
            let mut queue = self.shared.done.lock().unwrap_or_else(PoisonError::into_inner);
            queue.push(done);
            queue.len() == 1
        };
        if first {
            (self.shared.wake)();
        }
    }

    /// Wakes the reader without a report: a tier has room again for what it answered [`ReadOutcome::Throttled`](foresee_units::ReadOutcome::Throttled).
    pub fn nudge(&self) {
        self.shared.nudged.store(true, Ordering::Release);
        (self.shared.wake)();
    }

    /// Whether there was a [`nudge`](Self::nudge) since the last time of asking.
    pub fn take_nudge(&self) -> bool {
        self.shared.nudged.swap(false, Ordering::AcqRel)
    }

    /// Moves everything reported so far to the end of `into`.
    pub fn drain(&self, into: &mut Vec<Done>) {
        into.append(&mut self.shared.done.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl fmt::Debug for Completions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completions").finish_non_exhaustive()
    }
}
