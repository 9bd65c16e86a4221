// SPDX-License-Identifier: Apache-2.0
//! The progress of a consumer of a node's cache, and when its host is told.
//!
//! A report wakes a thread here and two at the host. While all batches are copied from the host's memory, nothing depends on
//! a single report, so they are sent at intervals.

use std::collections::VecDeque;

use foresee_units::Nanos;

/// Time between two reports while nothing is requested.
const REPORT_INTERVAL: Nanos = Nanos::from_millis(10);

/// See the module. Accesses count from the attachment.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Each slot that the consumer has not passed, with the number of accesses before it.
    slots: VecDeque<(u64, u64)>,
    /// Accesses that were requested or copied.
    accesses: u64,
    /// Accesses of the newest batch that has any.
    batch: u64,
    reported: ProgressReport,
    reported_at: Nanos,
    is_due: bool,
}

/// What the host is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ProgressReport {
    /// Accesses that the consumer has passed.
    pub(super) consumed: u64,
    /// Whether it waits for what it has requested.
    pub(super) is_waiting: bool,
}

impl Progress {
    /// The next batch is that of `slot`, with `count` accesses.
    pub(super) fn open(&mut self, slot: u64, count: usize) {
        self.slots.push_back((slot, self.accesses));
        self.accesses += count as u64;
        if count > 0 {
            self.batch = count as u64;
        }
    }

    /// The consumer continues elsewhere: it never passes the open slots.
    pub(super) fn restart(&mut self) {
        self.slots.clear();
    }

    /// The report that is due when the consumer's next batch is that of slot `next`; a wait is reported once. `is_waiting`: it
    /// waits for that batch, which is requested. `has_requests`: any batch is.
    pub(super) fn poll_report(
        &mut self,
        next: u64,
        is_waiting: bool,
        has_requests: bool,
        now: Nanos,
    ) -> Option<ProgressReport> {
        while self.slots.front().is_some_and(|&(slot, _)| slot < next) {
            self.slots.pop_front();
        }
        let consumed = self.slots.front().map_or(self.accesses, |&(_, before)| before);
        let is_waiting = is_waiting && self.slots.front().is_some_and(|&(slot, _)| slot == next);
        self.is_due = consumed > self.reported.consumed || (is_waiting && !self.reported.is_waiting);
        if !self.is_due || (!has_requests && now < self.reported_at + REPORT_INTERVAL) {
            return None;
        }
        self.reported = ProgressReport { consumed, is_waiting };
        (self.reported_at, self.is_due) = (now, false);
        Some(self.reported)
    }

    /// Time per access of a consumer that takes `step` per batch.
    pub(super) fn interval(&self, step: Nanos) -> Nanos {
        Nanos::new(step.get() / self.batch.max(1))
    }

    /// When a report that was held back is due.
    pub(super) fn poll_wakeup(&self) -> Option<Nanos> {
        self.is_due.then(|| self.reported_at + REPORT_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    const fn report(consumed: u64, is_waiting: bool) -> ProgressReport {
        ProgressReport { consumed, is_waiting }
    }

    #[test]
    fn with_requests_each_change_is_reported_at_once_and_a_wait_once() {
        let mut progress = Progress::default();
        for slot in 0..3 {
            progress.open(slot, 10);
        }
        assert_eq!(progress.poll_report(0, false, true, ms(0)), None);
        assert_eq!(progress.poll_report(0, true, true, ms(0)), Some(report(0, true)));
        assert_eq!(progress.poll_report(0, true, true, ms(0)), None);
        assert_eq!(progress.poll_report(1, false, true, ms(1)), Some(report(10, false)));
        assert_eq!(progress.poll_report(3, true, true, ms(1)), Some(report(30, false)), "slot 3 is not open");
        assert_eq!(progress.poll_wakeup(), None);
    }

    #[test]
    fn without_requests_reports_are_held_back_for_a_while() {
        let mut progress = Progress::default();
        for slot in 0..4 {
            progress.open(slot, 10);
        }
        assert_eq!(progress.poll_report(1, false, false, ms(100)), Some(report(10, false)));
        assert_eq!(
            (progress.poll_report(2, false, false, ms(101)), progress.poll_wakeup()),
            (None, Some(ms(110)))
        );
        assert_eq!(progress.poll_report(3, false, false, ms(110)), Some(report(30, false)));
        assert_eq!((progress.poll_report(3, false, false, ms(111)), progress.poll_wakeup()), (None, None));
        assert_eq!(
            progress.poll_report(4, false, true, ms(112)),
            Some(report(40, false)),
            "one is requested"
        );
    }

    #[test]
    fn the_time_per_access_follows_from_the_newest_batch() {
        let mut progress = Progress::default();
        assert_eq!(progress.interval(ms(1)), ms(1));
        progress.open(0, 10);
        progress.open(1, 0);
        assert_eq!(progress.interval(ms(1)), Nanos::new(100_000));
    }

    #[test]
    fn after_a_restart_only_new_slots_are_passed() {
        let mut progress = Progress::default();
        progress.open(0, 10);
        progress.restart();
        progress.open(1, 5);
        assert_eq!(progress.poll_report(1, false, true, ms(0)), Some(report(10, false)));
        assert_eq!(progress.poll_report(2, false, true, ms(0)), Some(report(15, false)));
    }
}
