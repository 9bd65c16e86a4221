// SPDX-License-Identifier: Apache-2.0
//! Recent delivery rate in bytes, for reports.
//!
//! It includes idle time, unlike the measurements of `round`, which decisions use.

use foresee_units::{Bytes, BytesPerSecond, Nanos};

/// Minimum duration of a measurement.
const INTERVAL_MIN: Nanos = Nanos::from_millis(250);

/// A delivery rate over intervals of at least a quarter of a second; the newest has a weight of a third.
#[derive(Clone, Debug, Default)]
pub(crate) struct RateMeter {
    since: Option<Nanos>,
    bytes: u64,
    rate: Option<u64>,
}

impl RateMeter {
    /// Add a delivery.
    pub(crate) fn add(&mut self, bytes: Bytes, now: Nanos) {
        let since = *self.since.get_or_insert(now);
        self.bytes = self.bytes.saturating_add(bytes.get());
        let took = now.saturating_sub(since);
        if took < INTERVAL_MIN {
            return;
        }
        let fresh = u128::from(self.bytes) * 1_000_000_000 / u128::from(took.get());
        let fresh = u64::try_from(fresh).unwrap_or(u64::MAX);
        self.rate = Some(self.rate.map_or(fresh, |old| old - old / 3 + fresh / 3));
        (self.since, self.bytes) = (Some(now), 0);
    }

    /// The rate at the end of the last complete interval.
    pub(crate) fn rate(&self) -> Option<BytesPerSecond> {
        self.rate.map(BytesPerSecond::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_delivery_is_measured_after_a_quarter_of_a_second() {
        let mut meter = RateMeter::default();
        meter.add(Bytes::ZERO, Nanos::ZERO);
        assert_eq!(meter.rate(), None);
        for tick in 1..=3000 {
            meter.add(Bytes::new(1000), Nanos::from_millis(tick));
        }
        let rate = meter.rate().unwrap().get();
        assert!((999_990..=1_000_010).contains(&rate), "{rate}");
    }
}
