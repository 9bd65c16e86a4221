// SPDX-License-Identifier: Apache-2.0
//! A rate that all connections share.
//!
//! It stores the time until which the rate is reserved, instead of a count of tokens: a sender reserves the next
//! interval and sleeps until its end. Late wake-ups lose nothing while they are within the burst, so the long-run
//! rate is exact. A sender that must not wait takes its interval only if it begins now. `now` is an argument, and the
//! caller sleeps.

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
        let from = state.reserved_until.max(now.saturating_sub(state.burst));
        state.reserved_until = from + state.cost(amount);
        state.reserved_until.max(now)
    }

    /// Take `amount` units at `now` if no earlier ones are due later, and return whether they were taken.
    ///
    /// Takes that follow one another with this alone have the long-run rate. After idle time, up to the burst's units
    /// and one take more follow at once.
    pub(crate) fn try_take(&self, now: Nanos, amount: u64) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.rate == 0 {
            return true;
        }
        let from = state.reserved_until.max(now.saturating_sub(state.burst));
        if from > now {
            return false;
        }
        state.reserved_until = from + state.cost(amount);
        true
    }

    /// Change the rate from `now` on; 0 removes the limit. Reservations at the old rate are dropped.
    pub(crate) fn set_rate(&self, now: Nanos, rate: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.rate = rate;
        state.reserved_until = now;
    }
}

impl LimitState {
    /// The time that `amount` units take at the rate, which must not be 0.
    fn cost(&self, amount: u64) -> Nanos {
        let cost = u128::from(amount) * NANOS_PER_SECOND / u128::from(self.rate);
        Nanos::new(u64::try_from(cost).unwrap_or(u64::MAX))
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

    #[test]
    fn takes_above_the_rate_fail_and_change_nothing() {
        let limit = RateLimit::new(200, Nanos::ZERO);
        // One attempt each millisecond for a second: five times the rate.
        let taken = (0..1_000).filter(|at| limit.try_take(Nanos::new(at * 1_000_000), 1)).count();
        assert_eq!(taken, 200);
    }

    #[test]
    fn idle_time_allows_the_burst_and_one_take_at_once() {
        let limit = RateLimit::new(200, Nanos::new(1_000_000_000));
        let now = Nanos::new(60_000_000_000);
        assert_eq!((0..1_000).filter(|_| limit.try_take(now, 1)).count(), 201);
        assert!(!limit.try_take(now, 1));
        assert!(limit.try_take(now + Nanos::new(5_000_000), 1));
    }

    #[test]
    fn the_first_take_at_a_new_rate_succeeds() {
        let limit = RateLimit::new(0, Nanos::ZERO);
        assert!(limit.try_take(MILLISECOND, u64::MAX));
        limit.set_rate(MILLISECOND, 1);
        assert!(limit.try_take(MILLISECOND, 1));
        assert!(!limit.try_take(MILLISECOND, 1));
    }
}
