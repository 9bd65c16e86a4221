// SPDX-License-Identifier: Apache-2.0
//! A hash of the decisions of a plan.

use foresee_units::GAMMA;

/// Equal for equal decisions on every host and in every build; not resistant to forgery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlanHash(u64);

impl PlanHash {
    /// The hash of a plan without decisions: any value but 0, with which a first word of 0 would leave it at 0.
    pub(crate) const fn new() -> Self {
        Self(0x666f_7265_7365_6521)
    }

    pub(crate) fn add(&mut self, word: u64) {
        // Multiply and fold the upper half back: each word changes all bits of the following state.
        let mixed = (self.0 ^ word).wrapping_mul(GAMMA);
        self.0 = mixed ^ (mixed >> 32);
    }

    pub(crate) const fn value(self) -> u64 {
        self.0
    }
}
