// SPDX-License-Identifier: Apache-2.0
//! When a rank's consumer takes the samples of a batch, and how long it waits: one by one, or as a whole batch.
//!
//! `pipeline` stages the samples, and `report` accounts for the waits.

use super::rates::{ORIGIN, SourceCode};
use super::scenario::HandOver;

/// The state within a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Consumer {
    hand_over: HandOver,
    requested: f64,
    /// When it becomes idle; for whole batches: when it took the previous one.
    free: f64,
    compute: f64,
    stall: f64,
    /// When the whole batch is staged, and the source of its last sample.
    whole: (f64, SourceCode),
}

/// A consumed sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SampleTimes {
    /// When it was wanted.
    pub(super) wanted: f64,
    /// When its consumption began or, for whole batches, could have begun.
    pub(super) consumed: f64,
    /// The wait for this sample alone; 0 for whole batches.
    pub(super) waited: f64,
}

/// A consumed batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BatchTimes {
    /// When it was wanted.
    pub(super) requested: f64,
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
        Self { hand_over, requested: free, free, compute: 0.0, stall: 0.0, whole: (free, ORIGIN) }
    }

    /// Take the next sample, in order. It is staged at `available` and takes `computing` seconds.
    pub(super) fn consume(&mut self, available: f64, source: SourceCode, computing: f64) -> SampleTimes {
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
        SampleTimes { wanted, consumed, waited }
    }

    /// End the batch after its last sample.
    pub(super) fn finish(self) -> BatchTimes {
        let Self { hand_over, requested, free, compute, stall, whole: (staged, source) } = self;
        match hand_over {
            HandOver::Sample => BatchTimes { requested, free, compute, stall, waited: (ORIGIN, 0.0) },
            HandOver::Batch => {
                let stall = staged - free;
                BatchTimes { requested, free: staged + compute, compute, stall, waited: (source, stall) }
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
        assert_eq!(one_by_one.consume(2.0, 1, 5.0), SampleTimes { wanted: 1.0, consumed: 2.0, waited: 1.0 });
        assert_eq!(one_by_one.consume(6.0, 2, 5.0), SampleTimes { wanted: 7.0, consumed: 7.0, waited: 0.0 });
        let batch_times = one_by_one.finish();
        assert_eq!(
            (batch_times.requested, batch_times.free, batch_times.compute, batch_times.stall),
            (1.0, 12.0, 10.0, 1.0)
        );
        let mut whole = Consumer::new(HandOver::Batch, 1.0);
        assert_eq!(whole.consume(2.0, 1, 5.0), SampleTimes { wanted: 1.0, consumed: 2.0, waited: 0.0 });
        assert_eq!(whole.consume(6.0, 2, 5.0), SampleTimes { wanted: 1.0, consumed: 6.0, waited: 0.0 });
        let batch_times = whole.finish();
        assert_eq!(
            (batch_times.requested, batch_times.free, batch_times.stall, batch_times.waited),
            (1.0, 16.0, 5.0, (2, 5.0))
        );
    }

    #[test]
    fn an_empty_batch_is_staged_at_once() {
        for hand_over in HandOver::ALL {
            let batch_times = Consumer::new(hand_over, 3.0).finish();
            assert_eq!((batch_times.free, batch_times.stall), (3.0, 0.0));
        }
    }
}
