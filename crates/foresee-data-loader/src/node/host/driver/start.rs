// SPDX-License-Identifier: Apache-2.0
//! The start of the consumers: until each has had a batch, nothing is read ahead.
//!
//! A read ahead of one rank would delay the first batches of the ranks that attach a moment later.

use foresee_units::Nanos;

/// Longest time for which a consumer that has attached, or ranks that have not, keep the host from reading ahead.
const START_MAX: Nanos = Nanos::from_secs(1);

/// Which ranks have attached.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConsumerStart {
    /// Ranks that will attach, as far as known.
    ranks: u32,
    attached: u32,
    /// When the first consumer attached.
    since: Nanos,
}

impl ConsumerStart {
    pub(super) const fn new(ranks: u32) -> Self {
        Self { ranks, attached: 0, since: Nanos::ZERO }
    }

    pub(super) fn note_attached(&mut self, now: Nanos) {
        if self.attached == 0 {
            self.since = now;
        }
        self.attached = self.attached.saturating_add(1);
    }

    /// Whether a first batch may still be needed. `without_batch`: when the consumers attached that have had none.
    pub(super) fn is_going_on(&self, mut without_batch: impl Iterator<Item = Nanos>, now: Nanos) -> bool {
        let is_recent = |since: Nanos| now.saturating_sub(since) < START_MAX;
        self.attached < self.ranks && is_recent(self.since) || without_batch.any(is_recent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn it_ends_with_the_first_batch_of_the_last_rank() {
        let mut start = ConsumerStart::new(2);
        let now = Nanos::new(7 * SECOND);
        start.note_attached(now);
        assert!(start.is_going_on([].into_iter(), now), "a rank is missing");
        start.note_attached(now);
        assert!(start.is_going_on([now].into_iter(), now), "a rank has no batch");
        assert!(!start.is_going_on([].into_iter(), now));
    }

    #[test]
    fn neither_an_absent_rank_nor_an_idle_one_delays_the_others_for_more_than_a_second() {
        let mut start = ConsumerStart::new(2);
        let (began, nearly, later) = (Nanos::new(SECOND), Nanos::new(2 * SECOND - 1), Nanos::new(2 * SECOND));
        start.note_attached(began);
        assert!(start.is_going_on([began].into_iter(), nearly));
        assert!(!start.is_going_on([began].into_iter(), later));
        // A job that comes later has a start of its own.
        start.note_attached(later);
        assert!(start.is_going_on([began, later].into_iter(), later));
    }
}
