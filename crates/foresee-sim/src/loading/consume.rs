// SPDX-License-Identifier: Apache-2.0
//! When a rank's consumer takes the samples of a batch, and how long it waits: one by one, or all of them at once.
//!
//! Owns that rule and nothing else: who stages samples, and who counts what was waited for, are others.

use super::rates::{ORIGIN, SourceCode};
use super::scenario::HandOver;

/// In the middle of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Consumer {
    hand_over: HandOver,
    asked: f64,
    /// When it has nothing to do any more; of whole batches: since it took the one before.
    free: f64,
    compute: f64,
    stall: f64,
    /// When all of the batch is there, and where the sample comes from that is there last.
    whole: (f64, SourceCode),
}

/// A sample that was taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Taken {
    /// When it was wanted.
    pub(super) wanted: f64,
    /// When its consumption began, by itself or, of whole batches, when it could have.
    pub(super) consumed: f64,
    /// What was waited for it alone; of whole batches nothing.
    pub(super) waited: f64,
}

/// A batch that was taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ended {
    /// When it was wanted.
    pub(super) asked: f64,
    /// When the consumer has nothing to do any more.
    pub(super) free: f64,
    pub(super) compute: f64,
    pub(super) stall: f64,
    /// Beyond what was waited for samples alone: of whole batches where the sample came from that was there last, and all of
    /// the stall.
    pub(super) waited: (SourceCode, f64),
}

impl Consumer {
    /// It wants a batch at `free`.
    pub(super) fn new(hand_over: HandOver, free: f64) -> Self {
        Self { hand_over, asked: free, free, compute: 0.0, stall: 0.0, whole: (free, ORIGIN) }
    }

    /// Takes the next sample, in their order: it is there from `available` on, and is computed on for so many seconds.
    pub(super) fn take(&mut self, available: f64, source: SourceCode, computing: f64) -> Taken {
        let wanted = self.free;
        let consumed = wanted.max(available);
        self.compute += computing;
        let waited = match self.hand_over {
            HandOver::Batch => {
                if consumed > self.whole.0 {
                    self.whole = (consumed, source);
                }
                0.0
            }
            HandOver::Sample => {
                self.free = consumed + computing;
                consumed - wanted
            }
        };
        self.stall += waited;
        Taken { wanted, consumed, waited }
    }

    /// All of them are taken.
    pub(super) fn end(self) -> Ended {
        let Self { hand_over, asked, free, compute, stall, whole: (there, last) } = self;
        match hand_over {
            HandOver::Sample => Ended { asked, free, compute, stall, waited: (ORIGIN, 0.0) },
            HandOver::Batch => {
                let stall = there - free;
                Ended { asked, free: there + compute, compute, stall, waited: (last, stall) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_computed_on_as_they_come_or_when_all_are_there() {
        let mut one_by_one = Consumer::new(HandOver::Sample, 1.0);
        assert_eq!(one_by_one.take(2.0, 1, 5.0), Taken { wanted: 1.0, consumed: 2.0, waited: 1.0 });
        assert_eq!(one_by_one.take(6.0, 2, 5.0), Taken { wanted: 7.0, consumed: 7.0, waited: 0.0 });
        let ended = one_by_one.end();
        assert_eq!((ended.asked, ended.free, ended.compute, ended.stall), (1.0, 12.0, 10.0, 1.0));
        let mut whole = Consumer::new(HandOver::Batch, 1.0);
        assert_eq!(whole.take(2.0, 1, 5.0), Taken { wanted: 1.0, consumed: 2.0, waited: 0.0 });
        assert_eq!(whole.take(6.0, 2, 5.0), Taken { wanted: 1.0, consumed: 6.0, waited: 0.0 });
        let ended = whole.end();
        assert_eq!((ended.asked, ended.free, ended.stall, ended.waited), (1.0, 16.0, 5.0, (2, 5.0)));
    }

    #[test]
    fn a_batch_of_nothing_is_there_at_once() {
        for hand_over in HandOver::ALL {
            let ended = Consumer::new(hand_over, 3.0).end();
            assert_eq!((ended.free, ended.stall), (3.0, 0.0));
        }
    }
}
