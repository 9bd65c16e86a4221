// SPDX-License-Identifier: Apache-2.0
//! Predicted times at which a consumer wants its batches, turn after turn.
//!
//! It is separate from the requests because the pace becomes known, and changes, while they wait. The caller,
//! which hands over the batches, measures it.

use foresee_units::Nanos;

/// Progress of a consumer through its turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The next turn.
    pub next: u64,
    /// When it is wanted, on the clock of every `now`.
    pub at: Nanos,
    /// Time between two turns without a stall.
    pub step: Nanos,
}

impl Pace {
    /// When `turn` is wanted.
    pub fn wanted(&self, turn: u64) -> Nanos {
        let ahead = self.step.get().saturating_mul(turn.saturating_sub(self.next));
        self.at.saturating_add(Nanos::new(ahead))
    }
}
