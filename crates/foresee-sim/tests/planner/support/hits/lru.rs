// SPDX-License-Identifier: Apache-2.0
//! Least recently used, as approximated by the page cache and used by `MosaicML` Streaming, Mountpoint and the
//! cache of `WebDataset`.
//!
//! It is unsuitable for epochs of permutations: the least recently used sample returns soonest, so a cache of
//! half the data hits a sixth of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use foresee_data_plan::SampleSizes;
use foresee_units::{Bytes, SampleId};

use super::{Held, HitPolicy, Outcome, index};

pub(super) struct Lru {
    held: Held,
    capacity: Bytes,
    /// The latest use of each sample; times are numbers of accesses.
    used: Vec<u64>,
    by_use: BTreeMap<u64, SampleId>,
    now: u64,
}

impl Lru {
    pub(super) fn new(sizes: Arc<dyn SampleSizes>, capacity: Bytes) -> Self {
        let held = Held::new(sizes, capacity);
        Self { used: vec![0; held.here.len()], held, capacity, by_use: BTreeMap::new(), now: 0 }
    }
}

impl HitPolicy for Lru {
    fn access(&mut self, sample: SampleId) -> Outcome {
        self.now += 1;
        let mut outcome = Outcome { hit: self.held.contains(sample), ..Outcome::default() };
        if outcome.hit {
            self.by_use.remove(&self.used[index(sample)]);
        } else {
            if self.held.size(sample) > self.capacity {
                return outcome;
            }
            while self.held.free < self.held.size(sample) {
                let (_, oldest) = self.by_use.pop_first().expect("a full cache holds a sample");
                self.held.remove(oldest);
                outcome.evicted += 1;
            }
            self.held.add(sample);
            outcome.cached = true;
        }
        self.used[index(sample)] = self.now;
        self.by_use.insert(self.now, sample);
        outcome
    }
}
