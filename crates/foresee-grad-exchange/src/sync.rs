// SPDX-License-Identifier: Apache-2.0
//! Locks, waits and threads as every file of this crate uses them, and the timer of a session.
//!
//! A poisoned lock is taken all the same: the thread that panicked has reported it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use foresee_wire::WireError;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn wait<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    changed.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn wait_timeout<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    time: Duration,
) -> MutexGuard<'a, T> {
    changed.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner).0
}

/// Start a thread.
///
/// # Errors
/// [`WireError::System`]: the system has no thread left.
pub(crate) fn spawn<T: Send + 'static>(
    name: String,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, WireError> {
    Builder::new().name(name).spawn(work).map_err(no_thread)
}

pub(crate) fn no_thread(why: std::io::Error) -> WireError {
    WireError::System { doing: "starting a thread", why }
}

/// The wait of a thread that reports passed time to sessions.
#[derive(Debug, Default)]
pub(crate) struct Timer {
    state: Mutex<TimerState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct TimerState {
    /// The thread has to wait for an earlier time.
    is_woken: bool,
    is_closed: bool,
}

impl Timer {
    /// Wait until the time, or until the timer is woken; false once it is closed. `None`: no time limit.
    pub(crate) fn wait(&self, until: Option<Instant>) -> bool {
        let mut state = lock(&self.state);
        while !state.is_closed && !std::mem::take(&mut state.is_woken) {
            state = match until {
                None => wait(&self.changed, state),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    wait_timeout(&self.changed, state, left)
                }
            };
        }
        !state.is_closed
    }

    /// Make the thread look for an earlier time.
    pub(crate) fn wake(&self) {
        lock(&self.state).is_woken = true;
        self.changed.notify_all();
    }

    /// End the thread.
    pub(crate) fn close(&self) {
        lock(&self.state).is_closed = true;
        self.changed.notify_all();
    }
}
