// SPDX-License-Identifier: Apache-2.0
//! Since when a copy can be read by peers.
//!
//! A copy that is held during a step is visible from the next one on, so that it does not matter in which order ranks
//! are simulated; `Compat::Paper` sees it at once. Times are kept in 32 bits and rounded up: 4 bytes a copy, and a
//! peer sees it later by less than one part in ten million.

use crate::loading::lane::TIE;

#[derive(Debug)]
pub(super) struct Visible {
    /// By slot; infinity: never.
    since: Vec<f32>,
    /// Slots and times of copies whose step has not ended.
    pending: Vec<(usize, f64)>,
    at_once: bool,
}

impl Visible {
    pub(super) fn new(slots: usize, at_once: bool) -> Self {
        Self { since: vec![f32::INFINITY; slots], pending: Vec::new(), at_once }
    }

    /// A copy is held from `at` on.
    pub(super) fn hold(&mut self, slot: usize, at: f64) {
        if self.at_once {
            self.show(slot, at);
        } else {
            self.pending.push((slot, at));
        }
    }

    /// A copy is visible from `at` on, if it was not before.
    pub(super) fn show(&mut self, slot: usize, at: f64) {
        #[expect(clippy::cast_possible_truncation, reason = "to the nearest, and up if that is below")]
        let nearest = at as f32;
        let since = if f64::from(nearest) < at { nearest.next_up() } else { nearest };
        self.since[slot] = self.since[slot].min(since);
    }

    pub(super) fn at(&self, slot: usize, time: f64) -> bool {
        f64::from(self.since[slot]) <= time + TIE
    }

    /// A step has ended: what was held by then is visible from the end of the step in which it came to be.
    pub(super) fn end_step(&mut self, ends: &[f64]) {
        let Some(&now) = ends.last() else { return };
        let mut pending = std::mem::take(&mut self.pending);
        pending.retain(|&(slot, at)| {
            let over = at <= now;
            if over {
                self.show(slot, ends[ends.partition_point(|&end| end < at)]);
            }
            !over
        });
        self.pending = pending;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_seen_from_the_next_step_on() {
        let mut visible = Visible::new(2, false);
        visible.hold(0, 1.5);
        visible.hold(1, 3.5);
        visible.end_step(&[1.0, 2.0, 3.0]);
        assert!(!visible.at(0, 1.9) && visible.at(0, 2.0) && !visible.at(1, 9.0));
        visible.end_step(&[1.0, 2.0, 3.0, 4.0]);
        assert!(!visible.at(1, 3.9) && visible.at(1, 4.0));
    }

    #[test]
    fn to_the_letter_it_is_seen_at_once_but_never_too_early() {
        let mut visible = Visible::new(1, true);
        visible.hold(0, 1.000_000_01);
        assert!(!visible.at(0, 1.0) && visible.at(0, 1.000_001));
        visible.hold(0, 5.0);
        assert!(visible.at(0, 2.0));
    }
}
