// SPDX-License-Identifier: Apache-2.0
//! Next use: the copy needed last is evicted first, and a sample needed later than all of them bypasses the
//! cache. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 1966;
//! with bypass.
//!
//! It is optimal for samples of one size, and is an independent check of the planner. It is unsuitable for
//! unequal sizes, where it may be worse than pin, and for a run whose order is unknown.

use std::collections::BTreeSet;
use std::sync::Arc;

use foresee_data_plan::SampleSizes;
use foresee_units::{Bytes, SampleId};

use super::{Held, HitPolicy, Outcome, index};

/// A next use that never occurs.
const NEVER: usize = usize::MAX;

pub(super) struct NextUse {
    held: Held,
    /// Per access of the run: the number of the next access of its sample.
    next: Vec<usize>,
    now: usize,
    /// Copies by their next use, and by id among those never used again.
    order: BTreeSet<(usize, SampleId)>,
}

impl NextUse {
    pub(super) fn new(epochs: &[Vec<SampleId>], sizes: Arc<dyn SampleSizes>, capacity: Bytes) -> Self {
        let held = Held::new(sizes, capacity);
        let accesses: Vec<SampleId> = epochs.iter().flatten().copied().collect();
        let mut next = vec![NEVER; accesses.len()];
        let mut following = vec![NEVER; held.here.len()];
        for (number, &sample) in accesses.iter().enumerate().rev() {
            next[number] = std::mem::replace(&mut following[index(sample)], number);
        }
        Self { held, next, now: 0, order: BTreeSet::new() }
    }
}

impl HitPolicy for NextUse {
    fn access(&mut self, sample: SampleId) -> Outcome {
        let (now, next) = (self.now, self.next[self.now]);
        self.now += 1;
        if self.held.contains(sample) {
            self.order.remove(&(now, sample));
            self.order.insert((next, sample));
            return Outcome { hit: true, ..Outcome::default() };
        }
        let mut outcome = Outcome::default();
        if next == NEVER {
            return outcome;
        }
        let mut capacity = self.held.free;
        let mut victims = Vec::new();
        let later = self.order.iter().rev().take_while(|(use_of_copy, _)| *use_of_copy > next);
        for &(use_of_copy, copy) in later {
            if capacity >= self.held.size(sample) {
                break;
            }
            capacity += self.held.size(copy);
            victims.push((use_of_copy, copy));
        }
        if capacity < self.held.size(sample) {
            return outcome;
        }
        for (use_of_copy, copy) in victims {
            self.order.remove(&(use_of_copy, copy));
            self.held.remove(copy);
            outcome.evicted += 1;
        }
        self.held.add(sample);
        self.order.insert((next, sample));
        outcome.cached = true;
        outcome
    }
}
