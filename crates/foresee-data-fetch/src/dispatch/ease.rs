// SPDX-License-Identifier: Apache-2.0
//! Reads that have time leave a crowded source to others.
//!
//! Ranks of one job that ask one slow source each search their own concurrency, and may end with several times as many
//! in flight as another. All take their steps together, so what the luckiest reads ahead is of no use, while all wait for the
//! unluckiest. Nobody sees the others; what each sees is how far it is ahead of its own consumer, and whether
//! answers queue. So while even the quickest of the recent answers takes longer than answers need, a rank that is ahead
//! by `lead` has no more in flight than
//!
//! ```text
//! limit * 2 / (1 + lead / turn)        turn: what an answer takes with `limit` in flight
//! ```
//!
//! all of them where it is ahead by one turn, half by three, a quarter by seven: whoever is further ahead yields more, which levels
//! the ranks. It keeps at least what fills its own part of the source twice over if every answer is as quick as the quickest: where there is
//! enough for all, buffers still fill.
//!
//! Refuses to act for a consumer whose pace is not known, at a source whose width is fixed, and where there are no other
//! ranks: whoever yields does not search on.

use foresee_units::Nanos;

use super::{Dispatch, First};
use crate::float::as_f64;
use crate::request::Class;

/// What a rank at ease keeps: so many times what its part of the source takes at the quickest.
const KEEPS: f64 = 2.0;

impl Dispatch {
    /// Until when the first of a class, and so all behind it, waits for others' sake: in the past if it may start.
    pub(super) fn eased_until(&self, first: &First) -> Nanos {
        let plateau = self.limiter.answers_per_nano().filter(|_| self.config.shared);
        let (Some(plateau), quickest) = (plateau, self.limiter.quickest()) else { return Nanos::ZERO };
        let flying = f64::from(self.in_flight());
        let enough = (KEEPS * plateau * as_f64(quickest.ever().get())).ceil();
        if first.class == Class::Stalling
            || first.deadline == Nanos::MAX
            || flying < enough
            || !quickest.is_crowded()
        {
            return Nanos::ZERO;
        }
        let limit = f64::from(self.limiter.limit());
        let turn = limit / plateau;
        let lead = turn * (2.0 * limit / flying - 1.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a float saturates, and is not negative"
        )]
        let lead = Nanos::new(lead as u64);
        first.deadline.saturating_sub(lead)
    }
}
