// SPDX-License-Identifier: Apache-2.0
//! Causes of the consumer's present wait, as the driver names them one after another.
//!
//! Pure: the moment is an argument. The first cause reaches back to the beginning of the wait, because the driver looks
//! only once the consumer waits.

use foresee_ledger::Cause;
use foresee_units::Nanos;

/// Which causes a wait has had so far, and since when each.
#[derive(Debug, Default)]
pub(crate) struct WaitCauses {
    /// When the wait began; `None`: the consumer does not wait.
    began: Option<Nanos>,
    turns: Vec<Turn>,
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    cause: Cause,
    /// Number of the read that is waited for.
    read: Option<u64>,
    since: Nanos,
}

impl WaitCauses {
    /// The consumer begins to wait, unless it waits already.
    pub(crate) fn begin(&mut self, now: Nanos) {
        self.began.get_or_insert(now);
    }

    /// The loader was opened first, from `since` on.
    pub(crate) fn begin_opening(&mut self, since: Nanos) {
        self.began = Some(since);
        self.turns.push(Turn { cause: Cause::Plan, read: None, since });
    }

    /// What is waited for now. An attempt that turns out to have failed was no reading: its time belongs to the retry.
    pub(crate) fn set(&mut self, cause: Cause, read: Option<u64>, now: Nanos) {
        let Some(began) = self.began else { return };
        let Some(last) = self.turns.last_mut() else {
            return self.turns.push(Turn { cause, read, since: began });
        };
        if last.read == read && last.cause == Cause::OriginRead && cause == Cause::OriginRetry {
            last.cause = cause;
        } else if (last.cause, last.read) != (cause, read) {
            self.turns.push(Turn { cause, read, since: now });
        }
    }

    /// The causes so far, none of them twice in a row. Empty where there was no wait.
    pub(crate) fn turns(&self) -> Vec<(Cause, Nanos)> {
        let Some(began) = self.began else { return Vec::new() };
        let mut turns: Vec<(Cause, Nanos)> = Vec::new();
        for turn in &self.turns {
            if turns.last().is_none_or(|(cause, _)| *cause != turn.cause) {
                turns.push((turn.cause, turn.since));
            }
        }
        if turns.is_empty() {
            turns.push((Cause::Copy, began));
        }
        turns
    }

    /// The wait is over: its causes.
    pub(crate) fn end(&mut self) -> Vec<(Cause, Nanos)> {
        let turns = self.turns();
        self.clear();
        turns
    }

    /// The consumer has moved elsewhere.
    pub(crate) fn clear(&mut self) {
        self.began = None;
        self.turns.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    #[test]
    fn the_first_cause_reaches_back_to_the_beginning_of_the_wait() {
        let mut causes = WaitCauses::default();
        causes.begin(at(10));
        causes.begin(at(11));
        causes.set(Cause::OriginQueue, Some(1), at(12));
        causes.set(Cause::OriginRead, Some(1), at(15));
        causes.set(Cause::OriginRead, Some(2), at(18));
        assert_eq!(causes.end(), [(Cause::OriginQueue, at(10)), (Cause::OriginRead, at(15))]);
        assert!(causes.end().is_empty(), "the next batch is ready");
    }

    #[test]
    fn a_wait_that_ends_before_the_driver_looks_is_for_copies() {
        let mut causes = WaitCauses::default();
        causes.set(Cause::Plan, None, at(1));
        assert!(causes.turns().is_empty(), "nobody waits");
        causes.begin(at(2));
        assert_eq!(causes.end(), [(Cause::Copy, at(2))]);
    }

    #[test]
    fn an_attempt_that_failed_belongs_to_the_retry_of_its_own_read() {
        let mut causes = WaitCauses::default();
        causes.begin(at(0));
        causes.set(Cause::OriginRead, Some(1), at(0));
        causes.set(Cause::OriginRead, Some(2), at(5));
        causes.set(Cause::OriginRetry, Some(2), at(30));
        causes.set(Cause::OriginRetry, Some(2), at(40));
        assert_eq!(causes.turns(), [(Cause::OriginRead, at(0)), (Cause::OriginRetry, at(5))]);
        causes.set(Cause::OriginRead, Some(3), at(50));
        assert_eq!(causes.end().len(), 3);
    }

    #[test]
    fn opening_a_loader_comes_before_its_first_wait() {
        let mut causes = WaitCauses::default();
        causes.begin_opening(at(1));
        causes.begin(at(30));
        causes.set(Cause::OriginRead, Some(0), at(31));
        assert_eq!(causes.end(), [(Cause::Plan, at(1)), (Cause::OriginRead, at(31))]);
    }
}
