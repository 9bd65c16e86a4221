// SPDX-License-Identifier: Apache-2.0
//! The fastest answers of a source, which show whether answers queue there.

use foresee_units::Nanos;

use crate::float::as_f64;

/// The recent answers are the last ones up to this number, and up to as many before.
const RECENT: u32 = 16;
/// Answers queue if the fastest recent one takes more than this multiple of the fastest of all.
const QUEUES: f64 = 1.5;

/// The fastest answers of a source: of all, and of the recent ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quickest {
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
    /// Add the duration of an answer.
    pub(crate) fn observe(&mut self, took: Nanos) {
        self.ever = self.ever.min(took);
        if self.counted == RECENT {
            self.counted = 0;
            self.recent = [Nanos::MAX, self.recent[0]];
        }
        self.counted += 1;
        self.recent[0] = self.recent[0].min(took);
    }

    /// The fastest of all answers; `Nanos::MAX` before the first.
    pub(crate) const fn ever(&self) -> Nanos {
        self.ever
    }

    /// Whether answers queue.
    pub(crate) fn is_crowded(&self) -> bool {
        let recent = self.recent[0].min(self.recent[1]);
        as_f64(recent.get()) > QUEUES * as_f64(self.ever.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_queue_if_the_fastest_recent_one_is_slow() {
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
