// SPDX-License-Identifier: Apache-2.0
//! The byte stream under the frames: TCP, or TLS over it.
//!
//! It is a trait, so that frames and handshake exist once, and one suite, `process_tests`, checks every stream.
//! Its rules differ from the standard library's on purpose:
//!
//! - One thread may send while another receives; no lock of both is held over a wait.
//! - The socket itself blocks; each call states whether it may wait. Thus an epoll of the sending thread and a blocking
//!   read of the receiving thread can share it.
//! - A stream may retain accepted bytes (TLS does). They count as unsent, and `flush` sends them.
//!
//! Frames are unknown here.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use crate::tcp::Tcp;

/// How long a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    Never,
    /// Until a deadline; one that has passed is like [`Wait::Never`], but is reported as late.
    Until(Instant),
    /// Without limit. Closing the connection ends the wait.
    Forever,
}

impl Wait {
    /// Wait for a duration from now on.
    pub fn within(time: impl Into<Duration>) -> Self {
        // A duration that overflows the clock is no limit.
        Instant::now().checked_add(time.into()).map_or(Self::Forever, Self::Until)
    }

    /// Whether it ends before `other`.
    pub fn is_before(self, other: Self) -> bool {
        match (self.left(), other.left()) {
            (Some(left), Some(limit)) => left < limit,
            (left, None) => left.is_some(),
            (None, Some(_)) => false,
        }
    }

    /// Time left: `None` without a limit, zero when it is over.
    pub(crate) fn left(self) -> Option<Duration> {
        match self {
            Self::Never => Some(Duration::ZERO),
            Self::Until(deadline) => Some(deadline.saturating_duration_since(Instant::now())),
            Self::Forever => None,
        }
    }
}

/// A connected stream of bytes.
pub(crate) trait Transport: Send + Sync + fmt::Debug {
    /// Accept bytes from the front of `slices`, at least one unless all are empty; return their number.
    ///
    /// # Errors
    /// `WouldBlock` if the call must not wait, `TimedOut` at the deadline; nothing was accepted then.
    fn send(&self, slices: &[IoSlice<'_>], wait: Wait) -> io::Result<usize>;

    /// Pass retained bytes to the system.
    ///
    /// # Errors
    /// As `send`; some bytes may have been sent.
    fn flush(&self, wait: Wait) -> io::Result<()>;

    /// Fill `slices` from the front with received bytes, at least one; return their number. 0: the peer has
    /// ended, or this side has closed.
    ///
    /// `whole`: the caller needs all bytes, so it need not be woken for fewer. This is a hint: fewer may be
    /// returned.
    ///
    /// # Errors
    /// `WouldBlock` if the call must not wait, `TimedOut` at the deadline; nothing was consumed then.
    fn receive(&self, slices: &mut [IoSliceMut<'_>], wait: Wait, whole: bool) -> io::Result<usize>;

    /// Retained bytes that the system does not know of.
    fn held(&self) -> usize;

    /// 32 bytes that only the two ends of an encrypted stream know; `None` without encryption.
    fn binding(&self) -> Option<[u8; 32]>;

    /// The socket, for kernel data and options.
    fn tcp(&self) -> &Tcp;

    /// End both directions: waiting calls return, later ones fail.
    fn shutdown(&self) {
        self.tcp().shutdown();
    }
}

#[cfg(test)]
pub(crate) mod process_tests;
