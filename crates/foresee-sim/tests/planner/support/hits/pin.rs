// SPDX-License-Identifier: Apache-2.0
//! Pin: the first samples stay forever, the others bypass the cache. `MinIO` in `CoorDL` (Mohan et al.,
//! "Analyzing and mitigating data stalls in DNN training", VLDB 2021).
//!
//! It is as good as Belady for one node that reads a permutation of equal samples per epoch, and it never writes
//! twice. It is unsuitable for one of many ranks and for uneven access: it retains the first samples and not
//! those that return.

use std::sync::Arc;

use foresee_data_plan::SampleSizes;
use foresee_units::{Bytes, SampleId};

use super::{Held, HitPolicy, Outcome};

pub(super) struct Pin {
    held: Held,
}

impl Pin {
    pub(super) fn new(sizes: Arc<dyn SampleSizes>, capacity: Bytes) -> Self {
        Self { held: Held::new(sizes, capacity) }
    }
}

impl HitPolicy for Pin {
    fn access(&mut self, sample: SampleId) -> Outcome {
        let hit = self.held.contains(sample);
        let cached = !hit && self.held.size(sample) <= self.held.free;
        if cached {
            self.held.add(sample);
        }
        Outcome { hit, cached, evicted: 0 }
    }
}
