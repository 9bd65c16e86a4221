// SPDX-License-Identifier: Apache-2.0
//! Measured rate of a node: bytes received, over the time in which something was requested of it.

use foresee_units::{Bytes, BytesPerSecond, Nanos};

/// A measurement covers at least this time.
const INTERVAL: Nanos = Nanos::from_millis(50);
/// A new measurement is one part in so many of the rate.
const SMOOTHING: u64 = 4;

/// The rate of one node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    per_second: u64,
    /// Bytes of the measurement that is going on, and its time so far.
    bytes: u64,
    busy: Nanos,
    /// Since when something is requested; `None` if nothing is.
    since: Option<Nanos>,
}

impl Rate {
    pub(super) fn new(initial: BytesPerSecond) -> Self {
        Self { per_second: initial.get().max(1), bytes: 0, busy: Nanos::ZERO, since: None }
    }

    /// Something is requested from now on, or nothing.
    pub(super) fn set_busy(&mut self, is_busy: bool, now: Nanos) {
        if let Some(since) = self.since {
            self.busy += now.saturating_sub(since);
        }
        self.since = is_busy.then_some(now);
    }

    /// Bytes have arrived.
    pub(super) fn add(&mut self, bytes: Bytes, now: Nanos) {
        self.bytes += bytes.get();
        self.set_busy(self.since.is_some(), now);
        if self.busy < INTERVAL {
            return;
        }
        let measured = u128::from(self.bytes) * 1_000_000_000 / u128::from(self.busy.get());
        let measured = u64::try_from(measured).unwrap_or(u64::MAX);
        self.per_second = (self.per_second - self.per_second / SMOOTHING + measured / SMOOTHING).max(1);
        (self.bytes, self.busy) = (0, Nanos::ZERO);
    }

    /// Time that so many bytes take.
    pub(super) fn time_of(&self, bytes: Bytes) -> Nanos {
        let nanos = u128::from(bytes.get()) * 1_000_000_000 / u128::from(self.per_second);
        Nanos::new(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_time_with_requests_counts() {
        let mut rate = Rate::new(BytesPerSecond::new(1000));
        let at = Nanos::from_millis;
        rate.set_busy(true, at(0));
        rate.add(Bytes::new(100), at(20));
        rate.set_busy(false, at(40));
        rate.set_busy(true, at(5000));
        // 200 bytes in 40 + 10 ms.
        rate.add(Bytes::new(100), at(5010));
        assert_eq!(rate.time_of(Bytes::new(1750)), Nanos::from_secs(1));
        assert_eq!(rate.time_of(Bytes::ZERO), Nanos::ZERO);
    }
}
