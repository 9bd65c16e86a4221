// SPDX-License-Identifier: Apache-2.0
//! First in, first out: DELI's capped collection (cake-lab/DELI).
//!
//! It is unsuitable for any order with reuse: the time that a sample stays does not depend on its next use.

use std::collections::VecDeque;
use std::sync::Arc;

use foresee_data_plan::SampleSizes;
use foresee_units::{Bytes, SampleId};

use super::{Held, HitPolicy, Outcome};

pub(super) struct Fifo {
    held: Held,
    capacity: Bytes,
    queue: VecDeque<SampleId>,
}

impl Fifo {
    pub(super) fn new(sizes: Arc<dyn SampleSizes>, capacity: Bytes) -> Self {
        Self { held: Held::new(sizes, capacity), capacity, queue: VecDeque::new() }
    }
}

impl HitPolicy for Fifo {
    fn access(&mut self, sample: SampleId) -> Outcome {
        let mut outcome = Outcome { hit: self.held.contains(sample), ..Outcome::default() };
        if outcome.hit || self.held.size(sample) > self.capacity {
            return outcome;
        }
        while self.held.free < self.held.size(sample) {
            let first = self.queue.pop_front().expect("a full cache holds a sample");
            self.held.remove(first);
            outcome.evicted += 1;
        }
        self.held.add(sample);
        self.queue.push_back(sample);
        outcome.cached = true;
        outcome
    }
}
