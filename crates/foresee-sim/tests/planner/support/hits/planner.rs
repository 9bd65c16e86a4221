// SPDX-License-Identifier: Apache-2.0
//! The engine's planner, fed as the engine feeds it, by its own crate.
//!
//! It is suitable for every order. A short look-ahead shows the loss for runs with an unknown order.

use std::sync::Arc;

use foresee_data_plan::{
    Access, PlannedSource, Planner, PlannerConfig, PolicyChoice, SampleSizes, TierCapacity,
};
use foresee_units::{Bytes, SampleId};

use super::{HitPolicy, Outcome};

pub(super) struct Planned {
    planner: Planner,
    accesses: Vec<SampleId>,
    announced: usize,
    ahead: usize,
    access: Access,
}

impl Planned {
    pub(super) fn new(
        epochs: &[Vec<SampleId>],
        sizes: Arc<dyn SampleSizes>,
        capacity: Bytes,
        policy: PolicyChoice,
        ahead: usize,
    ) -> Self {
        let tiers = vec![TierCapacity { capacity, align: 1, overhead: Bytes::ZERO }];
        let config = PlannerConfig { tiers, policy, table_budget: Bytes::MAX };
        let planner = Planner::new(config, sizes).expect("a simulated data set fits the planner");
        let accesses = epochs.iter().flatten().copied().collect();
        Self { planner, accesses, announced: 0, ahead, access: Access::default() }
    }

    /// Announce the configured number of accesses ahead, in pieces of that size.
    fn announce(&mut self) {
        let left = &self.accesses[self.announced..];
        if left.is_empty() || self.planner.announced() > self.ahead as u64 {
            return;
        }
        let piece = &left[..left.len().min(self.ahead.max(1))];
        self.planner.handle_epoch(&mut piece.iter().copied());
        self.announced += piece.len();
        if self.announced == self.accesses.len() {
            self.planner.handle_end();
        }
    }
}

impl HitPolicy for Planned {
    fn access(&mut self, sample: SampleId) -> Outcome {
        self.announce();
        let planned = self.planner.poll_access(&mut self.access);
        assert!(planned && self.access.sample == sample, "accesses are planned once, in order");
        Outcome {
            hit: self.access.source != PlannedSource::Origin,
            cached: self.access.fill.is_some(),
            evicted: self.access.evict.len() as u64,
        }
    }
}
