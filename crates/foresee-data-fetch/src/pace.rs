// SPDX-License-Identifier: Apache-2.0
//! When a consumer will want what: he takes turn after turn, at a pace.
//!
//! Apart from the requests, because the pace becomes known, and changes, while they wait. Refuses to measure it:
//! whoever hands batches over sees the steps.

use foresee_units::Nanos;

/// How a consumer goes through his turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The turn that he takes next.
    pub next: u64,
    /// When he wants it, on the clock of every `now`.
    pub at: Nanos,
    /// From one turn to the next where nothing holds him up.
    pub step: Nanos,
}

impl Pace {
    /// When he wants `turn`.
    pub fn wanted(&self, turn: u64) -> Nanos {
        let ahead = self.step.get().saturating_mul(turn.saturating_sub(self.next));
        self.at.saturating_add(Nanos::new(ahead))
    }
}
