// SPDX-License-Identifier: Apache-2.0
//! The completion queue that all tiers of an engine share.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::op::Done;

/// A queue of `Done`s. Clones share it.
///
/// It is bounded because a `Done` exists only for a submitted ticket, and the submitter bounds the number of tickets.
#[derive(Clone)]
pub struct Completions {
    shared: Arc<QueueState>,
}

struct QueueState {
    done: Mutex<Vec<Done>>,
    is_writable: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Completions {
    /// Create a queue that calls `wake` when it becomes non-empty. `wake` must be quick and must not drain the queue.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            shared: Arc::new(QueueState {
                done: Mutex::default(),
                is_writable: AtomicBool::new(false),
                wake: Box::new(wake),
            }),
        }
    }

    /// Add one completion.
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

    /// Wake the reader without a completion: a tier that answered
    /// [`ReadOutcome::Throttled`](foresee_units::ReadOutcome::Throttled) accepts writes again.
    pub fn notify_writable(&self) {
        self.shared.is_writable.store(true, Ordering::Release);
        (self.shared.wake)();
    }

    /// Whether [`notify_writable`](Self::notify_writable) was called since the last call.
    pub fn take_writable(&self) -> bool {
        self.shared.is_writable.swap(false, Ordering::AcqRel)
    }

    /// Move all completions to the end of `into`.
    pub fn drain(&self, into: &mut Vec<Done>) {
        into.append(&mut self.shared.done.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl fmt::Debug for Completions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completions").finish_non_exhaustive()
    }
}
