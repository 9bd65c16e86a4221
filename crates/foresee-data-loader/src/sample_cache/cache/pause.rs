// SPDX-License-Identifier: Apache-2.0
//! A short pause before samples are read ahead, so that these reads do not take the cores from the batch that the training
//! loop is assembling.
//!
//! A batch is assembled in milliseconds, and in the same moment further samples are announced and space becomes free for
//! them. If the announced samples still last for a while, their reads can begin after the batch.

use foresee_data_plan::ConsumerId;
use foresee_units::Nanos;
use rustc_hash::FxHashMap;

/// A pause takes this part of the time for which the announced samples last.
const PART: u64 = 10;
/// No pause is longer. It takes some tens of milliseconds to assemble a large batch.
const LONGEST: Nanos = Nanos::from_millis(50);

/// When reads ahead may begin.
#[derive(Debug, Default)]
pub(super) struct ReadPause {
    /// By consumer: time of its last announcement, and its progress then.
    announced: FxHashMap<ConsumerId, (Nanos, u64)>,
    /// Of the next pause.
    length: Nanos,
    until: Nanos,
    /// Whether a thread waits for the end of the pause.
    pub(super) is_awaited: bool,
}

impl ReadPause {
    /// A consumer announces samples: it has made `progress` accesses so far, and `left` of its announced ones are not
    /// requested. The following pauses depend on its pace since the last announcement.
    pub(super) fn note_announcement(&mut self, consumer: ConsumerId, progress: u64, left: u64, now: Nanos) {
        let last = self.announced.insert(consumer, (now, progress));
        self.length = match last {
            Some((then, before)) if progress > before => {
                let lasts = u128::from((now - then).get()) * u128::from(left) / u128::from(progress - before);
                Nanos::new(u64::try_from(lasts / u128::from(PART)).unwrap_or(u64::MAX)).min(LONGEST)
            }
            _ => Nanos::ZERO,
        };
    }

    /// A consumer has ended.
    pub(super) fn forget(&mut self, consumer: ConsumerId) {
        self.announced.remove(&consumer);
        self.length = Nanos::ZERO;
    }

    /// Reads have become possible in this moment.
    pub(super) fn begin(&mut self, now: Nanos) {
        self.until = now + self.length;
    }

    /// A sample is missing: reads begin now.
    pub(super) fn end(&mut self) {
        self.until = Nanos::ZERO;
    }

    /// Time to the end of the pause; `None` if there is none.
    pub(super) fn left(&self, now: Nanos) -> Option<Nanos> {
        (now < self.until).then(|| self.until - now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONSUMER: ConsumerId = ConsumerId(0);

    /// The pause after two announcements, 100 ms and `accesses` apart, when `left` announced samples are left.
    fn pause(accesses: u64, left: u64) -> Option<Nanos> {
        let mut pause = ReadPause::default();
        pause.note_announcement(CONSUMER, 0, left, Nanos::ZERO);
        pause.begin(Nanos::ZERO);
        assert_eq!(pause.left(Nanos::ZERO), None, "the pace is unknown");
        let now = Nanos::from_millis(100);
        pause.note_announcement(CONSUMER, accesses, left, now);
        pause.begin(now);
        pause.left(now)
    }

    #[test]
    fn a_pause_takes_a_tenth_of_the_time_for_which_samples_last() {
        assert_eq!(pause(100, 100), Some(Nanos::from_millis(10)));
        assert_eq!(pause(100, 50), Some(Nanos::from_millis(5)));
        assert_eq!(pause(10, 1000), Some(LONGEST));
    }

    #[test]
    fn without_samples_or_progress_there_is_no_pause() {
        assert_eq!(pause(100, 0), None);
        assert_eq!(pause(0, 100), None);
    }

    #[test]
    fn a_missing_sample_and_the_end_of_the_consumer_end_the_pause() {
        let mut pause = ReadPause::default();
        for progress in 0..2 {
            pause.note_announcement(CONSUMER, progress, 1, Nanos::from_millis(10 * progress));
        }
        let now = Nanos::from_millis(10);
        pause.begin(now);
        assert!(pause.left(now).is_some());
        pause.end();
        assert_eq!(pause.left(now), None);
        pause.forget(CONSUMER);
        pause.begin(now);
        assert_eq!(pause.left(now), None);
    }
}
