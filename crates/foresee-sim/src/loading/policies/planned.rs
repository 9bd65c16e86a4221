// SPDX-License-Identifier: Apache-2.0
//! The planner that the runtime follows, the very crate, fed as the engine feeds it: each rank plans its own tiers,
//! and what they do not hold comes from the origin.
//!
//! Plans depend on the order alone and not on time, so they are made beforehand, rank by rank, in the memory of one;
//! a byte per read of the run is what remains of them. A kept copy costs no time of its own: the runtime writes it
//! beside the fetches.

use std::sync::Arc;

use foresee_data_plan::{
    PlannerConfig, PlannerStack, PolicyChoice, SampleSizes, Source, StackAccess, TierRoom,
};
use foresee_units::{Bytes, SampleId};

use super::byte_per_read;
use crate::loading::prefetch::{Access, Caching, Supply};
use crate::loading::rates::{ORIGIN, Rates, SourceCode};
use crate::loading::report::Book;
use crate::loading::run::Setup;

pub(super) struct Planned {
    /// By read of the run: its source.
    sources: Vec<SourceCode>,
    /// Ranks whose reads are planned.
    done: usize,
    streams: Vec<Vec<u32>>,
}

/// Bytes per sample for the streams of ranks that are planned after one pass over the epochs.
const STREAM_BYTES: usize = 8;

impl Planned {
    pub(super) fn new(setup: &Setup) -> Result<Self, String> {
        Ok(Self { sources: byte_per_read(setup)?, done: 0, streams: Vec::new() })
    }

    fn plan(&mut self, rank: usize, stream: &[u32], setup: &Setup) {
        let room = |capacity| TierRoom { capacity, align: 1, overhead: Bytes::ZERO };
        let tiers: Vec<_> = setup.scenario.cluster.tiers.iter().map(|tier| room(tier.capacity)).collect();
        // A disk below memory outlives the run; memory alone does not.
        let lasting = tiers.len() > 1;
        let config = PlannerConfig { tiers, policy: PolicyChoice::Auto, table_budget: Bytes::MAX };
        let sizes = Arc::clone(&setup.sizes) as Arc<dyn SampleSizes>;
        let mut planner = PlannerStack::new(config, lasting, sizes).expect("tiers and samples were counted");
        let epochs = &setup.epochs;
        let reads = epochs.reads(rank);
        let mut announced = 0;
        let mut access = StackAccess::default();
        for epoch in 0..epochs.count as usize {
            for step in 0..epochs.steps {
                let batch = epochs.batch(step, rank);
                let before = epoch * epochs.places;
                for source in &mut self.sources[before + batch.start..before + batch.end] {
                    while announced < stream.len() && planner.wants_epoch() {
                        let ids = &stream[announced..announced + reads];
                        planner.handle_epoch(&mut ids.iter().map(|&id| SampleId(u64::from(id))));
                        announced += reads;
                        if announced == stream.len() {
                            planner.handle_end();
                        }
                    }
                    assert!(planner.poll_access(&mut access), "every announced read is planned");
                    *source = match access.source {
                        Source::Origin => ORIGIN,
                        Source::Tier(tier) => Rates::local(usize::from(tier.0)),
                    };
                }
            }
        }
    }
}

impl Caching for Planned {
    fn prepare(&mut self, setup: &Setup, _: &Rates, _: &mut Book) -> (u64, u64) {
        let ranks = setup.epochs.ranks;
        let group = self.done..ranks.min(self.done + setup.epochs.group(STREAM_BYTES));
        let mut streams = std::mem::take(&mut self.streams);
        setup.epochs.gather(group.clone(), &mut streams);
        for (rank, stream) in group.clone().zip(&streams) {
            self.plan(rank, stream, setup);
        }
        self.done = group.end;
        if self.done < ranks {
            self.streams = streams;
        }
        (self.done as u64, ranks as u64)
    }

    fn supply(&mut self, access: Access, _: f64, _: &Rates) -> Supply {
        Supply::From(self.sources[access.place])
    }
}
