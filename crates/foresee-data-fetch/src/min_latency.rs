// SPDX-License-Identifier: Apache-2.0
//! The fastest answers of a source, which show whether answers queue there.

use foresee_units::Nanos;

use crate::float::as_f64;

/// The recent answers are the last ones up to this number, and up to as many before.
const RECENT: u32 = 16;
/// Answers queue if the fastest recent one takes more than this multiple of the fastest of all.
const QUEUEING: f64 = 1.5;

/// The fastest answers of a source: of all, and of the recent ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MinLatency {
    overall: Nanos,
    /// Of the answers that are being counted, and of the [`RECENT`] before these.
    recent: [Nanos; 2],
    counted: u32,
}

impl Default for MinLatency {
    fn default() -> Self {
        Self { overall: Nanos::MAX, recent: [Nanos::MAX; 2], counted: 0 }
    }
}

impl MinLatency {
    /// Add the duration of an answer.
    pub(crate) fn observe(&mut self, took: Nanos) {
        self.overall = self.overall.min(took);
        if self.counted == RECENT {
            self.counted = 0;
            self.recent = [Nanos::MAX, self.recent[0]];
        }
        self.counted += 1;
        self.recent[0] = self.recent[0].min(took);
    }

    /// The fastest of all answers; `Nanos::MAX` before the first.
    pub(crate) const fn overall(&self) -> Nanos {
        self.overall
    }

    /// Whether answers queue.
    pub(crate) fn is_queueing(&self) -> bool {
        let recent = self.recent[0].min(self.recent[1]);
        as_f64(recent.get()) > QUEUEING * as_f64(self.overall.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_queue_if_the_fastest_recent_one_is_slow() {
        let mut min_latency = MinLatency::default();
        assert!(!min_latency.is_queueing(), "nothing is known");
        min_latency.observe(Nanos::from_millis(10));
        for _ in 0..2 * RECENT - 1 {
            min_latency.observe(Nanos::from_millis(16));
            assert!(!min_latency.is_queueing());
        }
        min_latency.observe(Nanos::from_millis(16));
        assert!(min_latency.is_queueing(), "the fast one is no longer recent");
        min_latency.observe(Nanos::from_millis(15));
        assert!(!min_latency.is_queueing());
        assert_eq!(min_latency.overall(), Nanos::from_millis(10));
    }
}
