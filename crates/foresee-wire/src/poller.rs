// SPDX-License-Identifier: Apache-2.0
//! Where a sending thread waits: for room, for acknowledgments, for a bell, for a moment; never in a sleep.
//!
//! epoll on Linux. Elsewhere `poll(2)`, without acknowledgments: there a small send buffer is the window, and room in
//! it is what a sender waits for. Both keep the same law, `process_tests`, on Linux too.
//!
//! An acknowledgment shows as an entry in the socket's error queue, which epoll reports as an error, again and again
//! until the queue is empty. So the queue is emptied here, before the caller sees the event, and cannot be forgotten.
//!
//! Refuses to read: a receiving thread blocks in its own connection.

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

/// What happened to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The caller's number for it.
    pub token: u32,
    /// It takes bytes again. Reported only while asked for.
    pub writable: bool,
    /// The peer's system acknowledged bytes: [`crate::Link::queued`] has fallen.
    pub acked: bool,
    /// It is of no more use. Reported once; the connection is no longer watched.
    pub broken: bool,
}
