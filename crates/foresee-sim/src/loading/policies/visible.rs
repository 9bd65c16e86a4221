// SPDX-License-Identifier: Apache-2.0
//! Times at which copies become visible to peers.
//!
//! A copy that is stored during a step is visible from the next step on, so the order in which ranks are
//! simulated does not matter. With `Compat::Paper` it is visible at once. Times have 32 bits and are rounded up:
//! 4 bytes per copy, and a delay of less than one part in ten million.

use foresee_data_plan::hint;

use crate::loading::pipeline::TIE;

#[derive(Debug)]
pub(super) struct Visible {
    /// By slot; infinity means never.
    since: Vec<f32>,
    /// Slots and times of copies whose step has not ended.
    pending: Vec<(usize, f64)>,
    at_once: bool,
    /// The last step found; the next search starts near it.
    near: usize,
    /// Slots per sample, and the values that were looked up for a batch.
    width: usize,
    batch: Vec<f32>,
}

impl Visible {
    /// Reserve `width` slots per sample; memory is allocated by [`open`](Self::open).
    pub(super) fn new(width: usize, at_once: bool) -> Self {
        Self { since: Vec::new(), pending: Vec::new(), at_once, near: 0, width, batch: Vec::new() }
    }

    /// Allocate slots for `samples` without copies: while samples are placed, this memory is not needed.
    pub(super) fn open(&mut self, samples: u32) {
        self.since.resize(samples as usize * self.width, f32::INFINITY);
    }

    /// Prefetch the slots of a batch.
    pub(super) fn expect(&self, ids: &[u32]) {
        for &id in ids {
            hint::prefetch(&self.since, id as usize * self.width);
        }
    }

    /// Look up a batch at once, so that cache misses overlap. Copies that its own rank stores meanwhile are
    /// missing: the policy tracks a rank's own copies.
    pub(super) fn look_up(&mut self, ids: &[u32]) {
        let Self { since, batch, width, .. } = self;
        batch.clear();
        for &id in ids {
            let first = id as usize * *width;
            // One by one: for few slots a copy is faster than a call of memcpy.
            batch.extend((first..first + *width).map(|slot| since[slot]));
        }
    }

    /// Whether a copy of the batch's `nth` sample, in its `place`-th slot, is visible at `time`.
    pub(super) fn at(&self, nth: usize, place: usize, time: f64) -> bool {
        f64::from(self.batch[nth * self.width + place]) <= time + TIE
    }

    /// Store a copy at `at`.
    pub(super) fn hold(&mut self, slot: usize, at: f64) {
        if self.at_once {
            self.show(slot, at);
        } else {
            hint::prefetch(&self.since, slot);
            self.pending.push((slot, at));
        }
    }

    /// Make a copy visible from `at` on, unless it is visible already.
    pub(super) fn show(&mut self, slot: usize, at: f64) {
        #[expect(clippy::cast_possible_truncation, reason = "to the nearest, and up if that is below")]
        let nearest = at as f32;
        let since = if f64::from(nearest) < at { nearest.next_up() } else { nearest };
        self.since[slot] = self.since[slot].min(since);
    }

    /// End a step: copies stored by then become visible at the end of their step.
    pub(super) fn end_step(&mut self, ends: &[f64]) {
        let Some(&now) = ends.last() else { return };
        let mut pending = std::mem::take(&mut self.pending);
        pending.retain(|&(slot, at)| {
            let over = at <= now;
            if over {
                let step = self.step_of(at, ends);
                self.show(slot, ends[step]);
            }
            !over
        });
        self.pending = pending;
    }

    /// The first step that ends at `at` or later, which must exist. Copies arrive almost in order, so the search
    /// starts at the last step found.
    fn step_of(&mut self, at: f64, ends: &[f64]) -> usize {
        let mut step = self.near.min(ends.len() - 1);
        while step > 0 && ends[step - 1] >= at {
            step -= 1;
        }
        while ends[step] < at {
            step += 1;
        }
        self.near = step;
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_seen_from_the_next_step_on() {
        let mut visible = Visible::new(2, false);
        visible.open(1);
        visible.hold(0, 1.5);
        visible.hold(1, 3.5);
        visible.end_step(&[1.0, 2.0, 3.0]);
        visible.look_up(&[0]);
        assert!(!visible.at(0, 0, 1.9) && visible.at(0, 0, 2.0) && !visible.at(0, 1, 9.0));
        visible.end_step(&[1.0, 2.0, 3.0, 4.0]);
        visible.look_up(&[0]);
        assert!(!visible.at(0, 1, 3.9) && visible.at(0, 1, 4.0));
    }

    #[test]
    fn by_the_paper_a_copy_is_visible_at_once_but_never_too_early() {
        let mut visible = Visible::new(1, true);
        visible.open(2);
        visible.hold(1, 1.000_000_01);
        visible.look_up(&[0, 1]);
        assert!(!visible.at(0, 0, 9.0) && !visible.at(1, 0, 1.0) && visible.at(1, 0, 1.000_001));
        visible.hold(1, 5.0);
        visible.look_up(&[1]);
        assert!(visible.at(0, 0, 2.0));
    }
}
