// SPDX-License-Identifier: Apache-2.0
//! The byte stream under the frames: TCP, or TLS over it.
//!
//! A trait, so that frames and handshake are written once and one suite, `process_tests`, holds every stream to the same
//! law. Its rules, which differ from the standard library's on purpose:
//!
//! - One thread may send while another receives, without a lock that is held over a wait.
//! - The socket itself blocks; whoever must not wait says so per call. An epoll of a sending thread and a blocking
//!   read of a receiving thread can then share it.
//! - A stream may hold bytes back that it accepted (TLS does). They count as unsent, and `flush` sends them.
//!
//! Refuses to know a frame.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use crate::tcp::Tcp;

/// How long a call may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It takes what is there.
    Never,
    /// Until a moment; one that has passed is like [`Wait::Never`], but reported as late.
    Until(Instant),
    /// As long as the connection lives. Closing it ends the wait.
    Forever,
}

impl Wait {
    /// For a time from now on.
    pub fn within(time: impl Into<Duration>) -> Self {
        // A time too long to be added to the clock is no limit.
        Instant::now().checked_add(time.into()).map_or(Self::Forever, Self::Until)
    }

    /// Whether it ends before `other` does.
    pub fn is_before(self, other: Self) -> bool {
        match (self.left(), other.left()) {
            (Some(left), Some(limit)) => left < limit,
            (left, None) => left.is_some(),
            (None, Some(_)) => false,
        }
    }

    /// Time left: `None` without limit, zero when it is over.
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
    /// Accepts bytes from the front of `slices`, at least one unless all are empty; how many.
    ///
    /// # Errors
    /// `WouldBlock` where it never waits, `TimedOut` at the deadline; nothing was accepted then.
    fn send(&self, slices: &[IoSlice<'_>], wait: Wait) -> io::Result<usize>;

    /// Gives accepted bytes that it holds to the system.
    ///
    /// # Errors
    /// As `send`; some may have gone.
    fn flush(&self, wait: Wait) -> io::Result<()>;

    /// Fills `slices` from the front with what arrived, at least one byte; how many. 0: the peer has ended, or this
    /// side has closed.
    ///
    /// `whole`: the caller needs all of it, so waking up for less is of no use. A hint: less may be returned.
    ///
    /// # Errors
    /// `WouldBlock` where it never waits, `TimedOut` at the deadline; nothing was taken then.
    fn receive(&self, slices: &mut [IoSliceMut<'_>], wait: Wait, whole: bool) -> io::Result<usize>;

    /// Accepted bytes that it holds and the system does not know of.
    fn held(&self) -> usize;

    /// 32 bytes that both ends of an encrypted stream know and nobody else; `None` where nothing is encrypted.
    fn binding(&self) -> Option<[u8; 32]>;

    /// The socket, for facts and options.
    fn tcp(&self) -> &Tcp;

    /// Ends both directions: waiting calls return, later ones fail.
    fn shutdown(&self) {
        self.tcp().shutdown();
    }
}

#[cfg(test)]
pub(crate) mod process_tests;
