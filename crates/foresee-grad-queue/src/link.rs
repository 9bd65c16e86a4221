// SPDX-License-Identifier: Apache-2.0
//! What the link of one interface delivers, and for how long it had nothing to carry.
//!
//! The sending thread reports bytes and times: what was granted, what is in flight, and when it looked. The answers set
//! the window of a [`Schedule`](crate::Schedule). An interface whose traffic stays on its node has a meter of its own.
//!
//! | file | what it decides |
//! |---|---|
//! | `rate` | what the link delivers, over the last round trips and at its best |
//! | `late` | how much longer a window lasts, because what opens it again comes late |

mod late;
mod rate;
#[cfg(test)]
mod tests;

use foresee_units::{Bytes, BytesPerSecond, Nanos};

use late::Lateness;
use rate::RateMeter;

/// Measures the link of one interface.
///
/// The sending thread runs in turns: it asks how much is in flight ([`LinkMeter::handle_progress`]), writes packets
/// ([`LinkMeter::handle_granted`] for each), and reports whether any still wait ([`LinkMeter::handle_sent`]).
#[derive(Debug, Default)]
pub struct LinkMeter {
    rate: RateMeter,
    lateness: Lateness,
    /// Payload that was granted since the start, and that which was in flight on connections that are gone.
    granted: u64,
    gone: u64,
    /// Payload that was granted since the last report of what was sent.
    given: u64,
    /// When the link will have carried what it was given; `None` while its capacity is not known.
    carried: Option<Nanos>,
    /// Since when something waits that the window does not allow, as far as it is not accounted for.
    held: Option<Nanos>,
}

/// What one turn of the sending thread shows of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkProgress {
    /// What the link delivers; `None` if this turn ended no interval of measurement.
    pub rate: Option<BytesPerSecond>,
    /// How much longer the window has to last than link and packets ask for.
    pub late: Nanos,
}

impl LinkMeter {
    /// `bytes` of payload may be written.
    pub fn handle_granted(&mut self, bytes: Bytes) {
        self.granted += bytes.get();
        self.given += bytes.get();
    }

    /// A connection is gone, and `in_flight` bytes with it: neither acknowledged nor in flight any more.
    pub fn handle_closed(&mut self, in_flight: Bytes) {
        self.gone += in_flight.get();
    }

    /// At `now`, `in_flight` bytes are in flight over all connections, and `waits` says whether more wait to be sent.
    /// `min_rtt`: the shortest round trip seen.
    pub fn handle_progress(
        &mut self,
        now: Nanos,
        in_flight: Bytes,
        waits: bool,
        min_rtt: Nanos,
    ) -> LinkProgress {
        let acked = self.granted.saturating_sub(in_flight.get() + self.gone);
        // What waits goes next: that nothing is in flight is then the thread's doing and no pause.
        let busy = in_flight > Bytes::ZERO || waits;
        let rate = self.rate.handle_progress(now, acked, busy, min_rtt);
        // The link has been dry since it carried all it was given, although more waited.
        let held = self.held.take();
        let dry = held.zip(self.carried).map_or(Nanos::ZERO, |(since, at)| now.saturating_sub(since.max(at)));
        let waited = held.map_or(Nanos::ZERO, |since| now.saturating_sub(since));
        LinkProgress { rate, late: self.lateness.handle_wait(waited, dry) }
    }

    /// At `now` the thread has written what it may; `waits` says whether more wait until the window opens.
    pub fn handle_sent(&mut self, now: Nanos, waits: bool) {
        let given = Bytes::new(std::mem::take(&mut self.given));
        let time = self.rate.capacity().and_then(|capacity| capacity.time_for(given));
        self.carried = time.map(|time| self.carried.unwrap_or(now).max(now).saturating_add(time));
        self.held = waits.then_some(now);
    }
}
