// SPDX-License-Identifier: Apache-2.0
//! Wakes a thread that waits for file descriptors.
//!
//! An `eventfd` on Linux, a pipe elsewhere. Apart from the poller because the listener's thread is woken by one too.
//! Refuses to count: two rings before the thread looks are one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Rings from any thread; clones ring the same bell.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Bell>);

#[derive(Debug)]
struct Bell {
    rung: AtomicBool,
    /// Readable while the bell rings.
    listen: OwnedFd,
    /// The pipe's other end, where it has one.
    ring: Option<OwnedFd>,
}

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        let (listen, ring) = {
            use rustix::event::{EventfdFlags, eventfd};
            (eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?, None)
        };
        #[cfg(not(target_os = "linux"))]
        let (listen, ring) = {
            let (listen, ring) = io::pipe()?;
            let (listen, ring) = (OwnedFd::from(listen), OwnedFd::from(ring));
            rustix::io::ioctl_fionbio(&listen, true)?;
            rustix::io::ioctl_fionbio(&ring, true)?;
            (listen, Some(ring))
        };
        Ok(Self(Arc::new(Bell { rung: AtomicBool::new(false), listen, ring })))
    }

    /// Ends the wait under way, or the next one if there is none. Cheap where it was rung and not yet heard.
    pub fn wake(&self) {
        if !self.0.rung.swap(true, Ordering::AcqRel) {
            // It fails only where the bell rings already.
            let _ = rustix::io::write(self.0.ring.as_ref().unwrap_or(&self.0.listen), &1_u64.to_ne_bytes());
        }
    }

    /// Stops ringing; whether it rang. What was told before [`Waker::wake`] can be seen after it.
    pub(crate) fn hear(&self) -> bool {
        let mut bytes = [0_u8; 8];
        let rang = matches!(rustix::io::read(&self.0.listen, &mut bytes), Ok(1..));
        // After reading, and as an exchange: a ring in between writes nothing, and what it told is seen from here on.
        self.0.rung.swap(false, Ordering::AcqRel) | rang
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.listen.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_rings_are_heard_once_and_none_is_lost() {
        let waker = Waker::new().unwrap();
        assert!(!waker.hear());
        for _ in 0..1000 {
            waker.wake();
        }
        assert!(waker.hear());
        assert!(!waker.hear());
        waker.clone().wake();
        assert!(waker.hear());
    }
}
