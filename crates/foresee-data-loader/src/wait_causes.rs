// SPDX-License-Identifier: Apache-2.0
//! Causes of the consumer's present wait, as the driver reports them one after another.
//!
//! The first cause covers the wait from its beginning, because the driver reports only once the consumer waits.

use foresee_ledger::Cause;
use foresee_units::Nanos;

/// The causes of a wait so far, each with its start.
#[derive(Debug, Default)]
pub(crate) struct WaitCauses {
    /// When the wait began; `None` while the consumer does not wait.
    began: Option<Nanos>,
    stages: Vec<WaitStage>,
}

#[derive(Clone, Copy, Debug)]
struct WaitStage {
    cause: Cause,
    /// Number of the awaited read.
    read: Option<u64>,
    since: Nanos,
}

impl WaitCauses {
    /// Begin a wait, unless one is in progress.
    pub(crate) fn begin(&mut self, now: Nanos) {
        self.began.get_or_insert(now);
    }

    /// Begin a wait that opens the loader first, from `since` on.
    pub(crate) fn begin_opening(&mut self, since: Nanos) {
        self.began = Some(since);
        self.stages.push(WaitStage { cause: Cause::Plan, read: None, since });
    }

    /// Set the present cause. The time of a failed attempt belongs to the retry.
    pub(crate) fn set(&mut self, cause: Cause, read: Option<u64>, now: Nanos) {
        let Some(began) = self.began else { return };
        let Some(last) = self.stages.last_mut() else {
            return self.stages.push(WaitStage { cause, read, since: began });
        };
        if last.read == read && last.cause == Cause::OriginRead && cause == Cause::OriginRetry {
            last.cause = cause;
        } else if (last.cause, last.read) != (cause, read) {
            self.stages.push(WaitStage { cause, read, since: now });
        }
    }

    /// The causes so far, none of them twice in a row; empty without a wait.
    pub(crate) fn stages(&self) -> Vec<(Cause, Nanos)> {
        let Some(began) = self.began else { return Vec::new() };
        let mut stages: Vec<_> = self.stages.iter().map(|stage| (stage.cause, stage.since)).collect();
        stages.dedup_by_key(|(cause, _)| *cause);
        if stages.is_empty() {
            stages.push((Cause::Copy, began));
        }
        stages
    }

    /// End the wait, and return its causes.
    pub(crate) fn end(&mut self) -> Vec<(Cause, Nanos)> {
        let stages = self.stages();
        self.clear();
        stages
    }

    /// Forget the wait.
    pub(crate) fn clear(&mut self) {
        self.began = None;
        self.stages.clear();
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
    fn a_wait_that_ends_before_the_driver_reports_is_for_copies() {
        let mut causes = WaitCauses::default();
        causes.set(Cause::Plan, None, at(1));
        assert!(causes.stages().is_empty(), "the consumer does not wait");
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
        assert_eq!(causes.stages(), [(Cause::OriginRead, at(0)), (Cause::OriginRetry, at(5))]);
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
