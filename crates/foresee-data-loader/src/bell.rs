// SPDX-License-Identifier: Apache-2.0
//! What the driver sleeps on: rung by tiers, by the consumer and by `close`, or by a moment that comes.
//!
//! A ring that comes while nobody sleeps is remembered, so no wake-up is lost between a look and a sleep.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Bell {
    pub(crate) fn ring(&self) {
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        if !*rung {
            *rung = true;
            self.heard.notify_one();
        }
    }

    /// Sleeps until rung, or until `limit` has passed; `None` sleeps as long as it takes.
    pub(crate) fn wait(&self, limit: Option<Duration>) {
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        if !*rung {
            rung = match limit {
                Some(limit) => self.heard.wait_timeout(rung, limit).unwrap_or_else(PoisonError::into_inner).0,
                None => self.heard.wait(rung).unwrap_or_else(PoisonError::into_inner),
            };
        }
        *rung = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_ring_before_the_wait_is_not_lost() {
        let bell = Bell::default();
        bell.ring();
        bell.wait(None);
    }

    #[test]
    fn a_ring_from_another_thread_ends_the_wait() {
        let bell = Arc::new(Bell::default());
        let other = Arc::clone(&bell);
        let ringer = std::thread::spawn(move || other.ring());
        bell.wait(None);
        ringer.join().expect("the ringer ends");
    }
}
