// SPDX-License-Identifier: Apache-2.0
//! Wake-up of a thread that waits for file descriptors.
//!
//! It is an `eventfd` on Linux and a pipe elsewhere. It is separate from the poller because the listener's thread
//! uses it too. Several wake-ups before the thread runs count as one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Wakes the thread, from any thread; clones wake the same one.
#[derive(Clone, Debug)]
pub struct Waker(Arc<WakeEvent>);

#[derive(Debug)]
struct WakeEvent {
    is_pending: AtomicBool,
    /// Readable while a wake-up is pending.
    read_end: OwnedFd,
    /// The write end of the pipe, if it is one.
    write_end: Option<OwnedFd>,
}

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        let (read_end, write_end) = {
            use rustix::event::{EventfdFlags, eventfd};
            (eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?, None)
        };
        #[cfg(not(target_os = "linux"))]
        let (read_end, write_end) = {
            let (read_end, write_end) = io::pipe()?;
            let (read_end, write_end) = (OwnedFd::from(read_end), OwnedFd::from(write_end));
            rustix::io::ioctl_fionbio(&read_end, true)?;
            rustix::io::ioctl_fionbio(&write_end, true)?;
            (read_end, Some(write_end))
        };
        Ok(Self(Arc::new(WakeEvent { is_pending: AtomicBool::new(false), read_end, write_end })))
    }

    /// End the current wait, or the next one if there is none. Cheap while a wake-up is pending.
    pub fn wake(&self) {
        if !self.0.is_pending.swap(true, Ordering::AcqRel) {
            // It fails only if a wake-up is pending.
            let _ = rustix::io::write(
                self.0.write_end.as_ref().unwrap_or(&self.0.read_end),
                &1_u64.to_ne_bytes(),
            );
        }
    }

    /// Clear the pending wake-up; return whether there was one. Writes before [`Waker::wake`] are visible
    /// afterwards.
    pub(crate) fn clear(&self) -> bool {
        let mut bytes = [0_u8; 8];
        let was_written = matches!(rustix::io::read(&self.0.read_end, &mut bytes), Ok(1..));
        // After the read, and as an exchange: a wake-up in between writes nothing, and its data is visible from
        // here on.
        self.0.is_pending.swap(false, Ordering::AcqRel) | was_written
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.read_end.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_wake_ups_count_once_and_none_is_lost() {
        let waker = Waker::new().unwrap();
        assert!(!waker.clear());
        for _ in 0..1000 {
            waker.wake();
        }
        assert!(waker.clear());
        assert!(!waker.clear());
        waker.clone().wake();
        assert!(waker.clear());
    }
}
