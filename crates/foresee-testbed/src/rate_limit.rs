// SPDX-License-Identifier: Apache-2.0
//! A rate that all connections share.
//!
//! It stores the time until which the rate is reserved, instead of a count of tokens: a sender reserves the next
//! interval and sleeps until its end. Late wake-ups lose nothing while they are within the burst, so the long-run
//! rate is exact. `now` is an argument, and the caller sleeps.

use std::sync::{Mutex, PoisonError};

use foresee_units::Nanos;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// A token bucket in the form of its virtual clock (ITU-T I.371's generic cell rate algorithm).
#[derive(Debug)]
pub(crate) struct RateLimit {
    state: Mutex<LimitState>,
}

#[derive(Debug)]
struct LimitState {
    /// Units per second; 0 is no limit.
    rate: u64,
    /// Unused time that may be used later.
    burst: Nanos,
    /// The time up to which the rate is reserved.
    reserved_until: Nanos,
}

impl RateLimit {
    pub(crate) fn new(rate: u64, burst: Nanos) -> Self {
        Self { state: Mutex::new(LimitState { rate, burst, reserved_until: Nanos::ZERO }) }
    }

    /// Reserve `amount` units at `now`, and return the end of the reservation: `now`, or later.
    pub(crate) fn reserve(&self, now: Nanos, amount: u64) -> Nanos {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.rate == 0 {
            return now;
        }
        let cost = u128::from(amount) * NANOS_PER_SECOND / u128::from(state.rate);
        let from = state.reserved_until.max(now.saturating_sub(state.burst));
        state.reserved_until = from + Nanos::new(u64::try_from(cost).unwrap_or(u64::MAX));
        state.reserved_until.max(now)
    }

    /// Change the rate from `now` on; 0 removes the limit. Reservations at the old rate are dropped.
    pub(crate) fn set_rate(&self, now: Nanos, rate: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.rate = rate;
        state.reserved_until = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Nanos = Nanos::new(1_000_000);

    #[test]
    fn a_rate_of_zero_is_no_limit() {
        let limit = RateLimit::new(0, MILLISECOND);
        assert_eq!(limit.reserve(Nanos::new(7), u64::MAX), Nanos::new(7));
    }

    #[test]
    fn ten_thousand_draws_take_the_time_of_the_rate() {
        let limit = RateLimit::new(1_000_000, MILLISECOND);
        let mut end = Nanos::ZERO;
        for _ in 0..10_000 {
            end = limit.reserve(Nanos::ZERO, 100);
        }
        assert_eq!(end, Nanos::new(1_000_000_000));
    }

    #[test]
    fn a_late_wake_up_within_the_burst_loses_nothing() {
        let limit = RateLimit::new(1_000, Nanos::new(5_000_000));
        let mut now = Nanos::ZERO;
        for _ in 0..1_000 {
            // Each draw wakes 2 ms after the end of its reservation, and the next one follows only then.
            now = limit.reserve(now, 10) + Nanos::new(2_000_000);
        }
        assert_eq!(now, Nanos::new(10_000_000_000 + 2_000_000));
    }

    #[test]
    fn idle_time_yields_no_more_than_the_burst() {
        let limit = RateLimit::new(1_000, Nanos::new(5_000_000));
        let now = Nanos::new(60_000_000_000);
        assert_eq!(limit.reserve(now, 5), now);
        assert_eq!(limit.reserve(now, 1), now + MILLISECOND);
    }

    #[test]
    fn a_new_rate_holds_at_once() {
        let limit = RateLimit::new(1, Nanos::ZERO);
        limit.reserve(Nanos::ZERO, 3_600);
        limit.set_rate(MILLISECOND, 1_000);
        assert_eq!(limit.reserve(MILLISECOND, 1), MILLISECOND + MILLISECOND);
    }
}
