// SPDX-License-Identifier: Apache-2.0
//! Predicted times at which a consumer wants its batches.
//!
//! The caller, which delivers the batches, measures the rate. It becomes known, and changes, while requests wait.

use foresee_units::Nanos;

/// The rate at which a consumer takes batches, and the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsumerRate {
    /// The next turn.
    pub next: u64,
    /// When it is wanted, on the clock of every `now`.
    pub at: Nanos,
    /// Time between two turns without a stall.
    pub step: Nanos,
}

impl ConsumerRate {
    /// When `turn` is wanted.
    pub fn wanted(&self, turn: u64) -> Nanos {
        let ahead = self.step.get().saturating_mul(turn.saturating_sub(self.next));
        self.at.saturating_add(Nanos::new(ahead))
    }
}
