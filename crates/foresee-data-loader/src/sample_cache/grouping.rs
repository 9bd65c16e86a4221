// SPDX-License-Identifier: Apache-2.0
//! Which samples of a dataset are read together, and what the planner has to know about them.

use foresee_data_plan::{FetchGrouping, NeighbourGroups, ObjectRange, SampleSizes as _};
use foresee_units::{Bytes, SampleId};

use super::store::footprint;
use crate::data_set::DataSet;

/// Which samples of a dataset are read together.
#[derive(Debug)]
pub enum SampleGrouping {
    /// Each is read alone.
    Single,
    /// The dataset reads batches.
    InOrder,
    /// Small neighbours in an object of this data set.
    Neighbours {
        /// The data set.
        data: Box<DataSet>,
        /// Whether other processes read other samples of it, for example ranks.
        has_peers: bool,
    },
}

impl SampleGrouping {
    /// Call a planner with the grouping, for a cache of `capacity`.
    pub(super) fn with<T>(&self, capacity: Bytes, plan: impl FnOnce(FetchGrouping<'_>) -> T) -> T {
        let (data, has_peers) = match self {
            Self::Single => return plan(FetchGrouping::Single),
            Self::InOrder => return plan(FetchGrouping::InOrder),
            Self::Neighbours { data, has_peers } => (data, *has_peers),
        };
        let index = data.index();
        let range_of = |sample: SampleId| -> Option<ObjectRange> {
            // A sample of several objects is read alone.
            (index.parts() == 1 && sample.0 < index.samples())
                .then(|| data.grouped_range(index.entry_of(sample, 0)))
                .flatten()
        };
        let mean = footprint(usize::try_from(index.mean_size().get()).unwrap_or(usize::MAX / 2));
        let holds_all = mean.get().saturating_mul(index.samples()) <= capacity.get();
        plan(FetchGrouping::Neighbours(NeighbourGroups { range_of: &range_of, holds_all, has_peers }))
    }
}
