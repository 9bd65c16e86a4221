// SPDX-License-Identifier: Apache-2.0
//! Fair share: requests with slack yield a congested source to other ranks.
//!
//! Ranks of one job that read from one slow source each search their own concurrency, and one may end with
//! several times the requests in flight of another. All ranks take their steps together, so the read-ahead of the
//! fastest rank is useless while all wait for the slowest. A rank does not know the state of the others. It knows
//! its own lead over its consumer, and whether answers queue. While even the fastest of the recent answers takes
//! longer than without a queue, a rank with a lead of `lead` has at most this number of requests in flight:
//!
//! ```text
//! limit * 2 / (1 + lead / turn)        turn: the time of an answer with `limit` in flight
//! ```
//!
//! This is all of them with a lead of one turn, half with three, a quarter with seven: a larger lead yields more,
//! which equalizes the ranks. A rank retains at least twice the number that fills its share of the source if
//! every answer is as fast as the fastest. If there is enough capacity for all, buffers still fill.
//!
//! It does not apply to a consumer of unknown rate, to a source of fixed capacity, or without other ranks,
//! because a rank that yields stops its search.

use foresee_units::Nanos;

use super::{Dispatch, First};
use crate::float::as_f64;
use crate::request::Class;

/// Minimum in flight of a yielding rank, relative to the number that fills its share at the fastest.
const IN_FLIGHT_MIN: f64 = 2.0;

impl Dispatch {
    /// The time until which the first request of a class, and thus all behind it, yields; in the past if it may
    /// start.
    pub(super) fn yields_until(&self, first: &First) -> Nanos {
        let plateau = self.limiter.answers_per_nano().filter(|_| self.config.shared);
        let (Some(plateau), min_latency) = (plateau, self.limiter.min_latency()) else { return Nanos::ZERO };
        let in_flight = f64::from(self.in_flight());
        let enough = (IN_FLIGHT_MIN * plateau * as_f64(min_latency.overall().get())).ceil();
        if first.class == Class::Stalling
            || first.deadline == Nanos::MAX
            || in_flight < enough
            || !min_latency.is_queueing()
        {
            return Nanos::ZERO;
        }
        let limit = f64::from(self.limiter.limit());
        let turn = limit / plateau;
        let lead = turn * (2.0 * limit / in_flight - 1.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a float saturates, and is not negative"
        )]
        let lead = Nanos::new(lead as u64);
        first.deadline.saturating_sub(lead)
    }
}
