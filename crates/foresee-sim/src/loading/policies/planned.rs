// SPDX-License-Identifier: Apache-2.0
//! The runtime's planner, fed as the engine feeds it: each rank plans its own tiers, and other samples come from
//! the origin.
//!
//! Plans depend on the order and not on time, so they are made in advance, rank by rank, in the memory of one
//! planner; the result is some bits per read of the run. A cached copy costs no time: the runtime writes it next
//! to the fetches.
//!
//! A planner receives an epoch when it requests one, and its look-ahead counts accesses and not epochs. Therefore
//! the memory besides those bits does not grow with the epochs. Short streams of several ranks are generated
//! together; for a long stream an epoch is generated on request. The bits stay until the last rank is planned:
//! before that no epoch could be simulated, and planning twice would need the planner's tables again.
//!
//! Planning takes as long as training, and is cut into parts of [`PART`] reads, so that a caller sees its
//! progress and can stop. Only an epoch of one rank, which the planner takes as a whole, cannot be cut.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use foresee_data_plan::{
    HierarchyAccess, HierarchyPlanner, PlannedSource, PlannerConfig, PolicyChoice, SampleSizes, SlowestTier,
    TierCapacity,
};
use foresee_units::{Bytes, SampleId};

use super::by_read::ByRead;
use crate::loading::prefetch::{Access, Caching, Supply};
use crate::loading::rates::{ORIGIN, Rates};
use crate::loading::report::Metrics;
use crate::loading::run::Setup;

pub(super) struct PlannedCache {
    /// By read of the run: its source.
    sources: ByRead,
    /// Reads that are planned.
    done: u64,
    /// The first rank whose stream is available.
    first: usize,
    /// By rank, the reads of the epochs that its planner has not received.
    streams: Vec<VecDeque<Vec<u32>>>,
    /// Epochs that were appended to the streams.
    gathered: u32,
    /// An epoch's list, reused for its memory.
    list: Vec<u32>,
    /// Those of the ranks that are not planned.
    waiting: Range<usize>,
    /// The planner of the first of them, within its run.
    planning: Option<Planning>,
    /// Upper bound of bytes per sample for streams that are generated together.
    stream_bytes: usize,
}

/// One rank's planner and its progress.
struct Planning {
    planner: HierarchyPlanner,
    access: HierarchyAccess,
    /// Reads of its stream that were announced.
    announced: usize,
    epoch: u32,
    step: usize,
    /// Reads of the step's batch that are planned.
    nth: usize,
}

/// Bytes per sample, for a large data set, of the streams of ranks that are planned after one pass over the
/// epochs.
const STREAM_BYTES: usize = 12;

/// Reads that are generated, announced or planned in one part: tens of milliseconds.
const PART: usize = 1 << 21;

impl PlannedCache {
    pub(super) fn new(setup: &Setup) -> Result<Self, String> {
        Ok(Self {
            // The origin, and each tier.
            sources: ByRead::new(setup, 1 + setup.scenario.cluster.tiers.len())?,
            done: 0,
            first: 0,
            streams: Vec::new(),
            gathered: 0,
            list: Vec::new(),
            waiting: 0..0,
            planning: None,
            stream_bytes: setup.epochs.stream_budget(STREAM_BYTES),
        })
    }

    /// Do the next work of about `left` reads; return its size, or `None` if nothing is left.
    fn plan_part(&mut self, left: usize, setup: &Setup) -> Option<usize> {
        let epochs = &setup.epochs;
        if self.waiting.is_empty() {
            self.first = self.waiting.end;
            if self.first == epochs.ranks {
                return None;
            }
            self.waiting = self.first..epochs.ranks.min(self.first + epochs.group(self.stream_bytes));
            self.streams.clear();
            self.streams.resize_with(self.waiting.len(), VecDeque::new);
            self.gathered = 0;
        }
        let together = epochs.stream_bytes() <= self.stream_bytes;
        let more = self.gathered < epochs.count;
        if more && (together || self.streams[0].is_empty()) {
            let mut parts = Vec::new();
            epochs.begin_gather(self.waiting.clone(), 1, &mut parts);
            epochs.gather_epoch(self.gathered, self.waiting.clone(), &mut self.list, &mut parts);
            for (stream, part) in self.streams.iter_mut().zip(parts) {
                stream.push_back(part);
            }
            self.gathered += 1;
            if !together || self.gathered == epochs.count {
                // Memory that planning needs meanwhile.
                self.list = Vec::new();
            }
            return Some(epochs.places);
        }
        let rank = self.waiting.start;
        let planning = self.planning.get_or_insert_with(|| Planning::new(setup));
        let stream = &mut self.streams[rank - self.first];
        let (planned, announced) = planning.plan_part(left, rank, (stream, more), setup, &mut self.sources);
        self.done += planned as u64;
        if planning.epoch == epochs.count {
            self.planning = None;
            self.waiting.start += 1;
        }
        Some(planned + announced)
    }
}

impl Planning {
    fn new(setup: &Setup) -> Self {
        let tier_capacity = |capacity| TierCapacity { capacity, align: 1, overhead: Bytes::ZERO };
        let tiers: Vec<_> =
            setup.scenario.cluster.tiers.iter().map(|tier| tier_capacity(tier.capacity)).collect();
        // A disk below memory outlives the run; memory alone does not.
        let slowest = if tiers.len() > 1 { SlowestTier::Durable } else { SlowestTier::OfThisRun };
        let config = PlannerConfig { tiers, policy: PolicyChoice::Auto, table_budget: Bytes::MAX };
        let sizes = Arc::clone(&setup.sizes) as Arc<dyn SampleSizes>;
        let planner = HierarchyPlanner::new(config, slowest, sizes).expect("tiers and samples were counted");
        Self { planner, access: HierarchyAccess::default(), announced: 0, epoch: 0, step: 0, nth: 0 }
    }

    /// Plan batches of `rank` until `left` reads were planned or announced, or none are left; return both
    /// numbers. It stops early if the planner requests an epoch that `stream` does not have yet and `more` are to
    /// come.
    fn plan_part(
        &mut self,
        left: usize,
        rank: usize,
        (stream, more): (&mut VecDeque<Vec<u32>>, bool),
        setup: &Setup,
        sources: &mut ByRead,
    ) -> (usize, usize) {
        let epochs = &setup.epochs;
        let (mut planned, announced_before) = (0, self.announced);
        while self.epoch < epochs.count && planned + self.announced - announced_before < left {
            if self.step == epochs.steps {
                (self.epoch, self.step) = (self.epoch + 1, 0);
                continue;
            }
            let batch = epochs.batch(self.step, rank);
            let first = self.epoch as usize * epochs.places + batch.start;
            while self.nth < batch.len() {
                while self.planner.wants_epoch() {
                    let Some(ids) = stream.pop_front() else { break };
                    self.planner.handle_epoch(&mut ids.iter().map(|&id| SampleId(u64::from(id))));
                    self.announced += ids.len();
                    if stream.is_empty() && !more {
                        self.planner.handle_end();
                    }
                }
                if more && self.planner.wants_epoch() {
                    return (planned, self.announced - announced_before);
                }
                assert!(self.planner.poll_access(&mut self.access), "every announced read is planned");
                let source = match self.access.source {
                    PlannedSource::Origin => ORIGIN,
                    PlannedSource::Tier(tier) => Rates::local(usize::from(tier.0)),
                };
                sources.set(first + self.nth, source);
                self.nth += 1;
                planned += 1;
            }
            (self.step, self.nth) = (self.step + 1, 0);
        }
        (planned, self.announced - announced_before)
    }
}

impl Caching for PlannedCache {
    /// The loader's single driver thread issues all requests.
    fn has_single_requester(&self) -> bool {
        true
    }

    fn prepare(&mut self, setup: &Setup, _: &Rates, _: &mut Metrics) -> (u64, u64) {
        let all = setup.epochs.places as u64 * u64::from(setup.epochs.count);
        let mut left = PART;
        while left > 0 {
            match self.plan_part(left, setup) {
                Some(done) => left = left.saturating_sub(done),
                None => break,
            }
        }
        if self.done == all {
            (self.streams, self.list, self.planning) = (Vec::new(), Vec::new(), None);
        }
        (self.done, all)
    }

    fn supply(&mut self, access: Access, _: f64, _: &Rates) -> Supply {
        Supply::From(self.sources.get(access.place))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::num::NonZeroU32;

    use foresee_model::{OriginCurve, ThreadCurve};
    use foresee_units::{BytesPerSecond, Nanos};

    use super::*;
    use crate::loading::order::Epochs;
    use crate::loading::{
        AccessOrder, Cluster, DataSet, Options, Policy, Progress, Run, Scenario, Tier, Training,
    };

    pub(in super::super) fn scenario(count: u64, ranks: u32, epochs: u32, tier_capacity: u64) -> Scenario {
        let tier = |capacity| Tier {
            capacity: Bytes::new(capacity),
            threads: NonZeroU32::new(1).unwrap(),
            read: ThreadCurve::new([(1, BytesPerSecond::new(10_000_000))]).unwrap(),
            write: None,
        };
        Scenario {
            cluster: Cluster {
                ranks,
                staging: tier(10_000),
                tiers: vec![tier(tier_capacity), tier(2 * tier_capacity)],
                origin: OriginCurve::new([(1, BytesPerSecond::new(1_000_000))]).unwrap(),
                origin_link: None,
                origin_latency: Nanos::ZERO,
                origin_requests: None,
                peer_link: None,
            },
            data: DataSet::Equal { count, size: Bytes::new(100) },
            training: Training {
                batch: 3,
                epochs,
                drop_last: false,
                compute: BytesPerSecond::new(1_000_000),
                preprocess: None,
            },
            options: Options { order: AccessOrder::Distributed { seed: 1 }, ..Options::default() },
            bucket: None,
        }
    }

    pub(in super::super) fn setup(scenario: Scenario) -> Setup {
        let sizes = scenario.data.sizes();
        let training = &scenario.training;
        let shape = (scenario.cluster.ranks as usize, training.batch as usize);
        let epochs =
            Epochs::new(scenario.options.order, sizes.len(), shape, training.epochs, training.drop_last);
        Setup { scenario, sizes: Arc::new(sizes), epochs, paper: false }
    }

    #[test]
    fn a_plan_in_parts_equals_the_plan_at_once() {
        for (count, ranks, epochs) in [(100, 1, 3), (101, 4, 5), (7, 3, 2), (64, 5, 1)] {
            let setup = setup(scenario(count, ranks, epochs, 900));
            let all = |left| {
                let mut planned = PlannedCache::new(&setup).unwrap();
                let mut parts = 0;
                while planned.plan_part(left, &setup).is_some() {
                    parts += 1;
                }
                assert_eq!(planned.done, setup.epochs.places as u64 * u64::from(epochs));
                (planned.sources, parts)
            };
            let (whole, few) = all(usize::MAX);
            let (bits, many) = all(1);
            assert_eq!(bits, whole);
            assert!(many > few);
            let mut all = 0..setup.epochs.places * epochs as usize;
            assert!(ranks > 1 || all.any(|place| whole.get(place) != ORIGIN));
        }
    }

    #[test]
    fn a_plan_does_not_depend_on_how_streams_are_generated() {
        for (count, ranks, epochs) in [(100, 1, 30), (101, 4, 40), (7, 3, 20), (2, 5, 9)] {
            let setup = setup(scenario(count, ranks, epochs, 900));
            let plan = |stream_bytes| {
                let mut planned = PlannedCache { stream_bytes, ..PlannedCache::new(&setup).unwrap() };
                while planned.plan_part(PART, &setup).is_some() {}
                planned.sources
            };
            assert_eq!(plan(0), plan(1 << 20), "{count} samples, {ranks} ranks");
        }
    }

    #[test]
    fn planning_takes_no_more_memory_for_more_epochs() {
        // The planner looks four accesses per sample ahead, which are 8 epochs of two ranks.
        let most = [20, 40, 160].map(|epochs| {
            let setup = setup(scenario(500, 2, epochs, 5_000));
            let mut planned =
                PlannedCache { stream_bytes: STREAM_BYTES, ..PlannedCache::new(&setup).unwrap() };
            let mut most = 0;
            while planned.plan_part(50, &setup).is_some() {
                let tables = planned.planning.as_ref().map_or(0, |rank| rank.planner.table_bytes().get());
                let ids: usize = planned.streams.iter().flatten().map(Vec::capacity).sum();
                most = most.max(tables + 4 * (ids + planned.list.capacity()) as u64);
            }
            most
        });
        assert!(most[0] > 0 && most[1] <= most[0] && most[2] <= most[0], "{most:?}");
    }

    #[test]
    fn planning_reports_its_progress() {
        let mut run = Run::new(&scenario(300_000, 2, 8, 75_000), Policy::Foresee).unwrap();
        let mut seen = Vec::new();
        while let Progress::Preparing { done, of } = run.advance(1) {
            assert!(done < of);
            seen.push(done);
        }
        assert!(seen.len() > 1 && seen.is_sorted(), "{seen:?}");
    }
}
