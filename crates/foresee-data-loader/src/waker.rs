// SPDX-License-Identifier: Apache-2.0
//! Wakes the driver's thread: from tiers, from the consumer, from `close`, or at a moment that comes.
//!
//! A wake-up that comes while the thread is awake is remembered, so none is lost between a check and a sleep.

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

    /// Sleeps until woken, or until `limit` has passed; `None` sleeps as long as it takes.
    pub(crate) fn wait(&self, limit: Option<Duration>) {
        let mut is_woken = self.is_woken.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_woken {
            is_woken = match limit {
                Some(limit) => {
                    self.woken.wait_timeout(is_woken, limit).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.woken.wait(is_woken).unwrap_or_else(PoisonError::into_inner),
            };
        }
        *is_woken = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_wake_up_before_the_wait_is_not_lost() {
        let waker = Waker::default();
        waker.wake();
        waker.wait(None);
    }

    #[test]
    fn a_wake_up_from_another_thread_ends_the_wait() {
        let waker = Arc::new(Waker::default());
        let other = Arc::clone(&waker);
        let thread = std::thread::spawn(move || other.wake());
        waker.wait(None);
        thread.join().expect("the thread ends");
    }
}
