// SPDX-License-Identifier: Apache-2.0
//! The wait of a thread that reports passed time to machines.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

#[derive(Debug, Default)]
pub(crate) struct Timer {
    state: Mutex<TimerState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct TimerState {
    /// An earlier time has to be waited for.
    is_woken: bool,
    is_closed: bool,
}

impl Timer {
    /// Waits until the time, or until it is woken; false once it is closed. `None`: until it is woken.
    pub(crate) fn wait(&self, until: Option<Instant>) -> bool {
        let mut state = self.lock();
        while !state.is_closed && !std::mem::take(&mut state.is_woken) {
            state = match until {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        !state.is_closed
    }

    /// Has the thread look for an earlier time.
    pub(crate) fn wake(&self) {
        self.lock().is_woken = true;
        self.changed.notify_all();
    }

    /// Ends the thread.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, TimerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
