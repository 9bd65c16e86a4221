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

use super::{Class, Dispatch, First};

/// Recent answers are the last so many, and up to as many before.
const RECENT: u32 = 16;
/// Answers queue where the quickest recent one takes longer than so many times the quickest of all.
const QUEUES: f64 = 1.5;
/// What a rank at ease keeps: so many times what its part of the source takes at the quickest.
const KEEPS: f64 = 2.0;

/// The quickest answers of a source: of all, and of the recent past.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quickest {
    ever: Nanos,
    /// Of the answers that are being counted, and of the [`RECENT`] before these.
    recent: [Nanos; 2],
    counted: u32,
}

impl Default for Quickest {
    fn default() -> Self {
        Self { ever: Nanos::MAX, recent: [Nanos::MAX; 2], counted: 0 }
    }
}

impl Quickest {
    /// An answer took so long.
    pub(super) fn observe(&mut self, took: Nanos) {
        self.ever = self.ever.min(took);
        if self.counted == RECENT {
            self.counted = 0;
            self.recent = [Nanos::MAX, self.recent[0]];
        }
        self.counted += 1;
        self.recent[0] = self.recent[0].min(took);
    }

    /// Of all answers; `Nanos::MAX` before the first.
    pub(super) const fn ever(&self) -> Nanos {
        self.ever
    }

    /// Whether answers wait for others.
    pub(super) fn is_crowded(&self) -> bool {
        let recent = self.recent[0].min(self.recent[1]);
        as_f64(recent) > QUEUES * as_f64(self.ever)
    }
}

impl Dispatch {
    /// Until when the first of a class, and so all behind it, waits for others' sake: in the past if it may start.
    pub(super) fn eased_until(&self, first: &First) -> Nanos {
        let plateau = self.limiter.answers_per_nano().filter(|_| self.config.shared);
        let (Some(plateau), quickest) = (plateau, self.limiter.quickest()) else { return Nanos::ZERO };
        let flying = f64::from(self.in_flight());
        let enough = (KEEPS * plateau * as_f64(quickest.ever())).ceil();
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

#[expect(clippy::cast_precision_loss, reason = "times are compared within a half: 53 bits are plenty")]
const fn as_f64(time: Nanos) -> f64 {
    time.get() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_queue_where_the_quickest_recent_one_is_slow() {
        let mut quickest = Quickest::default();
        assert!(!quickest.is_crowded(), "nothing is known");
        quickest.observe(Nanos::from_millis(10));
        for _ in 0..2 * RECENT - 1 {
            quickest.observe(Nanos::from_millis(16));
            assert!(!quickest.is_crowded());
        }
        quickest.observe(Nanos::from_millis(16));
        assert!(quickest.is_crowded(), "the quick one is no longer recent");
        quickest.observe(Nanos::from_millis(15));
        assert!(!quickest.is_crowded());
        assert_eq!(quickest.ever(), Nanos::from_millis(10));
    }
}
