// SPDX-License-Identifier: Apache-2.0
//! Wakes the driver's thread.
//!
//! A wake-up while the thread is awake is stored, so none is lost between a check and a sleep.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

#[derive(Debug, Default)]
pub(crate) struct Waker {
    is_woken: Mutex<bool>,
    woken: Condvar,
}

impl Waker {
    pub(crate) fn wake(&self) {
        let mut is_woken = self.is_woken.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_woken {
            *is_woken = true;
            self.woken.notify_one();
        }
    }

    /// Sleep until woken, or for at most `limit`.
    pub(crate) fn wait(&self, limit: Duration) {
        let mut is_woken = self.is_woken.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_woken {
            is_woken = self.woken.wait_timeout(is_woken, limit).unwrap_or_else(PoisonError::into_inner).0;
        }
        *is_woken = false;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_wake_up_before_the_wait_is_not_lost() {
        let waker = Waker::default();
        waker.wake();
        waker.wait(Duration::MAX);
    }

    #[test]
    fn a_wake_up_from_another_thread_ends_the_wait() {
        let waker = Arc::new(Waker::default());
        let other = Arc::clone(&waker);
        let thread = std::thread::spawn(move || other.wake());
        waker.wait(Duration::MAX);
        thread.join().expect("the thread ends");
    }
}
