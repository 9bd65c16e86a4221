// SPDX-License-Identifier: Apache-2.0
//! When a rank's consumer takes the samples of a batch, and how long it waits: one by one, or as a whole batch.
//!
//! Staging and the accounting of waits are elsewhere.

use super::rates::{ORIGIN, SourceCode};
use super::scenario::HandOver;

/// The state within a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Consumer {
    hand_over: HandOver,
    asked: f64,
    /// When it becomes idle; for whole batches: when it took the previous one.
    free: f64,
    compute: f64,
    stall: f64,
    /// When the whole batch is staged, and the source of its last sample.
    whole: (f64, SourceCode),
}

/// A consumed sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Taken {
    /// When it was wanted.
    pub(super) wanted: f64,
    /// When its consumption began or, for whole batches, could have begun.
    pub(super) consumed: f64,
    /// The wait for this sample alone; 0 for whole batches.
    pub(super) waited: f64,
}

/// A consumed batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ended {
    /// When it was wanted.
    pub(super) asked: f64,
    /// When the consumer becomes idle.
    pub(super) free: f64,
    pub(super) compute: f64,
    pub(super) stall: f64,
    /// The wait beyond that for single samples. For whole batches it is the whole stall, with the source of the
    /// last sample.
    pub(super) waited: (SourceCode, f64),
}

impl Consumer {
    /// Request a batch at `free`.
    pub(super) fn new(hand_over: HandOver, free: f64) -> Self {
        Self { hand_over, asked: free, free, compute: 0.0, stall: 0.0, whole: (free, ORIGIN) }
    }

    /// Take the next sample, in order. It is staged at `available` and takes `computing` seconds.
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

    /// End the batch after its last sample.
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
    fn computation_starts_per_sample_or_with_the_whole_batch() {
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
