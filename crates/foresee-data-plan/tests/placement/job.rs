// SPDX-License-Identifier: Apache-2.0
//! A job: nodes that access each sample once per epoch, in orders that follow from a seed.

#![expect(clippy::unwrap_used, reason = "numbers of small jobs fit")]

use std::sync::Arc;

use foresee_data_plan::{Placement, PlacementConfig, PlacementPlanner, SampleSizes, TierCapacity};
use foresee_units::{Bytes, NodeIndex, SampleId, SplitMix64};

/// Sizes of samples, in a table.
pub(crate) struct Table(pub(crate) Vec<u64>);

impl SampleSizes for Table {
    fn count(&self) -> u64 {
        self.0.len() as u64
    }

    fn size(&self, id: SampleId) -> Bytes {
        Bytes::new(self.0[usize::try_from(id.0).unwrap()])
    }

    fn uniform(&self) -> Option<Bytes> {
        let first = *self.0.first()?;
        self.0.iter().all(|&size| size == first).then(|| Bytes::new(first))
    }
}

/// A job of which everything is known.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) sizes: Vec<u64>,
    /// By node.
    pub(crate) capacities: Vec<u64>,
    pub(crate) epochs: usize,
    pub(crate) horizon: usize,
    pub(crate) seed: u64,
}

impl Job {
    /// A job of equal samples of one byte, with `capacity` times the data in all nodes together.
    pub(crate) fn equal(samples: usize, nodes: usize, epochs: usize, capacity: f64) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "small counts"
        )]
        let each = (samples as f64 * capacity / nodes as f64).round() as u64;
        Self { sizes: vec![1; samples], capacities: vec![each; nodes], epochs, horizon: epochs, seed: 1 }
    }

    /// The accesses of an epoch: a permutation, dealt to the nodes in turn.
    pub(crate) fn epoch(&self, epoch: usize) -> Vec<(NodeIndex, SampleId)> {
        let mut numbers = SplitMix64::new(self.seed.wrapping_add((epoch as u64) << 32));
        let mut samples: Vec<u64> = (0..self.sizes.len() as u64).collect();
        for at in (1..samples.len()).rev() {
            samples.swap(at, usize::try_from(numbers.below(at as u64 + 1)).unwrap());
        }
        let nodes = self.capacities.len();
        let dealt = samples.into_iter().enumerate();
        dealt.map(|(at, sample)| (NodeIndex(u16::try_from(at % nodes).unwrap()), SampleId(sample))).collect()
    }

    /// Plan all accesses, and visit each with its epoch, node, sample and plan.
    pub(crate) fn run(
        &self,
        mut visit: impl FnMut(&PlacementPlanner, usize, NodeIndex, SampleId, &Placement),
    ) {
        let limits =
            |&bytes: &u64| TierCapacity { capacity: Bytes::new(bytes), align: 1, overhead: Bytes::ZERO };
        let config = PlacementConfig {
            capacities: self.capacities.iter().map(limits).collect(),
            horizon: self.horizon,
        };
        let mut planner = PlacementPlanner::new(config, Arc::new(Table(self.sizes.clone()))).unwrap();
        let mut known = 1;
        for epoch in 0..self.epochs {
            if epoch > 0 {
                planner.handle_next_epoch();
            }
            while known < self.epochs && planner.wants_epoch() {
                planner.handle_epoch(&mut self.epoch(known).into_iter());
                known += 1;
            }
            if known == self.epochs {
                planner.handle_end();
            }
            for (node, sample) in self.epoch(epoch) {
                let placement = planner.handle_access(node, sample);
                visit(&planner, epoch, node, sample, &placement);
            }
        }
    }
}
