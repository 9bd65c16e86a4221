// SPDX-License-Identifier: Apache-2.0
//! Delivery rate of one interface, measured while bytes are in flight.
//!
//! The kernel's own delivery rate covers one connection and its last segments. A window needs the sum over all
//! connections during a round trip. Idle time is not measured.

use std::collections::VecDeque;

use foresee_units::{BytesPerSecond, Nanos};

/// Minimum length of an interval; below it the granularity of acknowledgments dominates.
const INTERVAL_MIN: Nanos = Nanos::from_millis(5);
/// Number of intervals whose best rate counts, so that a thread that lost its core does not make the link look
/// slow.
const INTERVALS: usize = 8;
/// Number of stretches whose best rate is the capacity, and their minimum duration. A stretch joins intervals until
/// neither the granularity of acknowledgments nor a shaper's burst matters.
const STRETCHES: usize = 64;
const STRETCH_MIN: Nanos = Nanos::from_millis(50);

/// Measures one interface.
#[derive(Debug, Default)]
pub(super) struct RateMeter {
    /// Start of the current interval, and the bytes acknowledged by then; `None` while idle.
    began: Option<(Nanos, u64)>,
    /// The current interval is the first after a pause, in which a shaper lets a burst pass at line speed.
    after_pause: bool,
    recent: VecDeque<u64>,
    /// Bytes acknowledged in the intervals since the last stretch, and their total duration.
    stretch: (u64, Nanos),
    stretches: VecDeque<u64>,
}

impl RateMeter {
    /// At `now`, `acked` bytes were acknowledged since the start; `busy` is true if more are in flight.
    /// `round_trip`: the shortest one seen.
    ///
    /// Returns a new rate if an interval ended.
    pub(super) fn handle_progress(
        &mut self,
        now: Nanos,
        acked: u64,
        busy: bool,
        round_trip: Nanos,
    ) -> Option<BytesPerSecond> {
        if !busy {
            (self.began, self.after_pause) = (None, true);
            return None;
        }
        let (since, before) = *self.began.get_or_insert((now, acked));
        let time = now.saturating_sub(since);
        if time < INTERVAL_MIN.max(round_trip) {
            return None;
        }
        self.began = Some((now, acked));
        if std::mem::take(&mut self.after_pause) && !self.recent.is_empty() {
            return None;
        }
        let bytes = acked.saturating_sub(before);
        push_bounded(&mut self.recent, INTERVALS, per_second(bytes, time));
        self.stretch = (self.stretch.0 + bytes, self.stretch.1.saturating_add(time));
        if self.stretch.1 >= STRETCH_MIN {
            push_bounded(&mut self.stretches, STRETCHES, per_second(self.stretch.0, self.stretch.1));
            self.stretch = (0, Nanos::ZERO);
        }
        self.recent.iter().max().copied().map(BytesPerSecond::new)
    }

    /// The best rate of the last seconds; `None` before the first 50 ms.
    pub(super) fn capacity(&self) -> Option<BytesPerSecond> {
        self.stretches.iter().max().copied().map(BytesPerSecond::new)
    }
}

fn per_second(bytes: u64, time: Nanos) -> u64 {
    let rate = u128::from(bytes) * 1_000_000_000 / u128::from(time.get());
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// Append `rate`, and drop the oldest beyond `most`.
fn push_bounded(rates: &mut VecDeque<u64>, most: usize, rate: u64) {
    if rates.len() == most {
        rates.pop_front();
    }
    rates.push_back(rate);
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Nanos = Nanos::from_millis(1);

    fn at(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    #[test]
    fn a_steady_link_has_its_rate_after_one_interval() {
        let mut meter = RateMeter::default();
        assert_eq!(meter.handle_progress(at(0), 0, true, RTT), None);
        assert_eq!(meter.handle_progress(at(4), 400_000, true, RTT), None);
        assert_eq!(meter.handle_progress(at(5), 500_000, true, RTT), Some(BytesPerSecond::new(100_000_000)));
    }

    #[test]
    fn pauses_do_not_count_and_the_burst_after_one_does_not_either() {
        let mut meter = RateMeter::default();
        meter.handle_progress(at(0), 0, true, RTT);
        assert_eq!(meter.handle_progress(at(5), 5_000, true, RTT), Some(BytesPerSecond::new(1_000_000)));
        meter.handle_progress(at(6), 6_000, false, RTT);
        meter.handle_progress(at(1_000), 6_000, true, RTT);
        assert_eq!(meter.handle_progress(at(1_005), 900_000, true, RTT), None);
        assert_eq!(
            meter.handle_progress(at(1_010), 905_000, true, RTT),
            Some(BytesPerSecond::new(1_000_000))
        );
    }

    #[test]
    fn the_capacity_is_the_best_stretch_and_not_the_best_interval() {
        let mut meter = RateMeter::default();
        let mut acked = 0;
        for interval in 0..=40 {
            meter.handle_progress(at(5 * interval), acked, true, RTT);
            assert_eq!(meter.capacity().is_some(), interval >= 10, "a twentieth of a second");
            // Twice the rate in one interval, and a slower link from the 20th on.
            acked += match interval {
                4 => 10_000,
                0..20 => 5_000,
                _ => 1_000,
            };
        }
        assert_eq!(meter.capacity(), Some(BytesPerSecond::new(1_100_000)));
    }

    #[test]
    fn a_slower_link_is_detected_after_eight_intervals() {
        let mut meter = RateMeter::default();
        let mut acked = 0;
        let mut last = None;
        for interval in 0..=INTERVALS as u64 + 1 {
            last = meter.handle_progress(at(5 * interval), acked, true, RTT).or(last);
            acked += if interval == 0 { 50_000 } else { 5_000 };
        }
        assert_eq!(last, Some(BytesPerSecond::new(1_000_000)));
    }
}
