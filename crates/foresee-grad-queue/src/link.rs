// SPDX-License-Identifier: Apache-2.0
//! Meter of one interface's link: its delivery rate, and how long it was idle while packets waited.
//!
//! The sending thread reports bytes granted, bytes in flight, and the time of each observation. The results set
//! the window of a [`Schedule`](crate::Schedule). An interface whose traffic stays on its node has a meter of its
//! own.
//!
//! | file | content |
//! |---|---|
//! | `rate` | delivery rate of the link: recent, and maximum |
//! | `late` | extra duration of a window for late acknowledgments |

mod late;
mod rate;
#[cfg(test)]
mod tests;

use foresee_units::{Bytes, BytesPerSecond, Nanos};

use late::Lateness;
use rate::RateMeter;

/// Measures the link of one interface.
///
/// The sending thread runs in turns. It reports the bytes in flight ([`LinkMeter::handle_progress`]), writes
/// packets ([`LinkMeter::handle_granted`] for each), and reports whether any still wait
/// ([`LinkMeter::handle_sent`]).
#[derive(Debug, Default)]
pub struct LinkMeter {
    rate: RateMeter,
    lateness: Lateness,
    /// Payload granted since the start, and the part of it that was in flight on connections when they closed.
    granted: u64,
    abandoned: u64,
    /// Payload granted since the last call of [`LinkMeter::handle_sent`].
    turn: u64,
    /// When the link will have delivered all granted bytes; `None` while its capacity is unknown.
    delivered_at: Option<Nanos>,
    /// Start of the unaccounted part of the current wait for the window.
    waiting_since: Option<Nanos>,
}

/// The result of one turn of the sending thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkProgress {
    /// The delivery rate; `None` if this turn ended no interval of measurement.
    pub rate: Option<BytesPerSecond>,
    /// Extra duration of the window beyond that for link and packets.
    pub late: Nanos,
}

impl LinkMeter {
    /// `bytes` of payload were granted.
    pub fn handle_granted(&mut self, bytes: Bytes) {
        self.granted += bytes.get();
        self.turn += bytes.get();
    }

    /// A connection closed with `in_flight` unacknowledged bytes, which no longer count as in flight.
    pub fn handle_closed(&mut self, in_flight: Bytes) {
        self.abandoned += in_flight.get();
    }

    /// At `now`, `in_flight` bytes are in flight over all connections; `waits`: more wait to be sent.
    /// `min_rtt`: the shortest round trip seen.
    pub fn handle_progress(
        &mut self,
        now: Nanos,
        in_flight: Bytes,
        waits: bool,
        min_rtt: Nanos,
    ) -> LinkProgress {
        let acked = self.granted.saturating_sub(in_flight.get() + self.abandoned);
        // Waiting packets go next, so an empty link is then a delay of the thread and not a pause.
        let busy = in_flight > Bytes::ZERO || waits;
        let rate = self.rate.handle_progress(now, acked, busy, min_rtt);
        // The link has been idle since it delivered all granted bytes, although packets waited.
        let since = self.waiting_since.take();
        let idle =
            since.zip(self.delivered_at).map_or(Nanos::ZERO, |(since, at)| now.saturating_sub(since.max(at)));
        let waited = since.map_or(Nanos::ZERO, |since| now.saturating_sub(since));
        LinkProgress { rate, late: self.lateness.handle_wait(waited, idle) }
    }

    /// At `now` the thread has written all that the window allows; `waits`: packets wait until it opens.
    pub fn handle_sent(&mut self, now: Nanos, waits: bool) {
        let granted = Bytes::new(std::mem::take(&mut self.turn));
        let time = self.rate.capacity().and_then(|capacity| capacity.time_for(granted));
        self.delivered_at = time.map(|time| self.delivered_at.unwrap_or(now).max(now).saturating_add(time));
        self.waiting_since = waits.then_some(now);
    }
}
