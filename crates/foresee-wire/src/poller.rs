// SPDX-License-Identifier: Apache-2.0
//! Where a sending thread waits: for buffer space, acknowledgments, a wake-up or a deadline.
//!
//! It is epoll on Linux. Elsewhere it is `poll(2)` without acknowledgments: there a small send buffer is the
//! window, and a sender waits for space in it. Both pass the same suite, `process_tests`, on Linux too.
//!
//! An acknowledgment is an entry in the socket's error queue, which epoll reports as an error until the queue is
//! empty. Therefore the poller empties the queue before the caller sees the event.
//!
//! The poller never reads data: a receiving thread blocks on its own connection.

#[cfg(target_os = "linux")]
mod epoll;
#[cfg(target_os = "linux")]
pub use epoll::Poller;

#[cfg(any(test, not(target_os = "linux")))]
#[cfg_attr(target_os = "linux", expect(unreachable_pub, reason = "only the tests use it there"))]
mod portable;
#[cfg(not(target_os = "linux"))]
pub use portable::Poller;

#[cfg(test)]
mod process_tests;

/// An event of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The caller's number of the connection.
    pub token: u32,
    /// It accepts bytes again. Reported only on request.
    pub writable: bool,
    /// The peer's system acknowledged bytes: [`crate::Link::queued`] has fallen.
    pub acked: bool,
    /// It is unusable. Reported once; the poller then drops the connection.
    pub broken: bool,
}
