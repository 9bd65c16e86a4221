// SPDX-License-Identifier: Apache-2.0
//! The planner of a node's cache, fed as its host feeds it: the ranks of a node announce their epochs, and request their
//! batches in turns. The tiers of these ranks are one.
//!
//! Plans are made in advance, node by node, like those of single ranks (`planned`). The planner's own clock advances by
//! a fixed time per access, and all ranks of a node are equally fast: reads and copies end at once there. So it decides
//! which samples are read once for all ranks, and the simulation how long this takes. A sample that two ranks need is
//! read by the first of them; the other has it from memory.

use std::collections::VecDeque;
use std::ops::Range;

use foresee_data_plan::{
    ConsumerId, EntryId, NodeAction, NodePlanner, NodePlannerConfig, SampleSizes as _, TierCapacity,
};
use foresee_units::{Bytes, Nanos, ReadOutcome, SampleId, Source};

use super::by_read::ByRead;
use crate::loading::prefetch::{Access, Caching, Supply};
use crate::loading::rates::{ORIGIN, Rates, SourceCode};
use crate::loading::report::Metrics;
use crate::loading::run::Setup;
use crate::loading::scenario::Tier;

/// Time per access on the planner's clock.
const INTERVAL: Nanos = Nanos::from_millis(1);
/// Longer than any run on that clock: no rank stands still, and copies are released at once.
const NEVER: Nanos = Nanos::new(u64::MAX / 4);
/// The tiers of a node's cache: memory, and a disk.
const TIERS_MAX: usize = 2;
/// Reads that are planned in one part: tens of milliseconds.
const PART: u64 = 1 << 20;

/// Sources of all reads, by node.
pub(super) struct NodePlannedCache {
    sources: ByRead,
    /// Reads that are planned.
    done: u64,
    ranks_per_node: usize,
    /// Those of the nodes that are not planned.
    waiting: Range<usize>,
    /// The plan of the first of them.
    planning: Option<NodePlanning>,
}

/// The planner of one node and its progress.
struct NodePlanning {
    planner: NodePlanner,
    now: Nanos,
    ranks: Range<usize>,
    /// By rank of the node, the epochs that its planner has not received.
    streams: Vec<VecDeque<Vec<u32>>>,
    /// By rank of the node, its accesses so far.
    accesses: Vec<u64>,
    /// Epochs that were appended to the streams.
    gathered: u32,
    epoch: u32,
    step: usize,
    /// By sample: the source of a read that no rank has used yet.
    read_from: Vec<Option<SourceCode>>,
    /// An epoch's list, reused for its memory.
    list: Vec<u32>,
}

impl NodePlannedCache {
    /// Create it for nodes of `ranks_per_node` ranks; an error if the scenario has no such cache.
    pub(super) fn new(setup: &Setup, ranks_per_node: usize) -> Result<Self, String> {
        let tiers = setup.scenario.cluster.tiers.len();
        if !(1..=TIERS_MAX).contains(&tiers) {
            return Err(format!(
                "a node's cache has memory and at most one disk, and this cluster {tiers} tiers"
            ));
        }
        // A planner that is complete shows that it accepts the sizes of all samples.
        NodePlanning::new(setup, 0..1)?;
        Ok(Self {
            sources: ByRead::new(setup, 1 + tiers)?,
            done: 0,
            ranks_per_node,
            waiting: 0..setup.epochs.ranks.div_ceil(ranks_per_node),
            planning: None,
        })
    }

    /// Plan the next step of a node; return its reads, or `None` if nothing is left.
    fn plan_step(&mut self, setup: &Setup) -> Option<u64> {
        if self.waiting.is_empty() {
            return None;
        }
        let first = self.waiting.start * self.ranks_per_node;
        let ranks = first..setup.epochs.ranks.min(first + self.ranks_per_node);
        let planning = self.planning.get_or_insert_with(|| {
            NodePlanning::new(setup, ranks).expect("the first planner has accepted the samples")
        });
        let reads = planning.plan_step(setup, &mut self.sources);
        if planning.epoch == setup.epochs.count {
            self.planning = None;
            self.waiting.start += 1;
        }
        self.done += reads;
        Some(reads)
    }
}

impl NodePlanning {
    fn new(setup: &Setup, ranks: Range<usize>) -> Result<Self, String> {
        let count = ranks.len();
        let tiers = &setup.scenario.cluster.tiers;
        let mut planner = NodePlanner::new(&planner_config(tiers, count as u64));
        for id in 0..setup.sizes.count() {
            planner.handle_entry(setup.sizes.size(SampleId(id))).map_err(|why| why.to_string())?;
        }
        for rank in 0..count {
            planner.handle_attach(consumer(rank), Nanos::ZERO);
        }
        Ok(Self {
            planner,
            now: Nanos::ZERO,
            ranks,
            streams: vec![VecDeque::new(); count],
            accesses: vec![0; count],
            gathered: 0,
            epoch: 0,
            step: 0,
            read_from: vec![None; setup.sizes.len() as usize],
            list: Vec::new(),
        })
    }

    /// Plan the next batch of each rank; return the number of reads.
    fn plan_step(&mut self, setup: &Setup, sources: &mut ByRead) -> u64 {
        let epochs = &setup.epochs;
        let before = self.epoch as usize * epochs.places;
        let mut reads = 0;
        for rank in 0..self.ranks.len() {
            let batch = epochs.batch(self.step, self.ranks.start + rank);
            for place in batch {
                self.announce(setup);
                let source = self.request(rank);
                sources.set(before + place, source);
                reads += 1;
            }
        }
        for rank in 0..self.ranks.len() {
            self.planner.handle_progress(consumer(rank), self.accesses[rank], Some(INTERVAL), self.now);
        }
        let accesses = u64::from(setup.scenario.training.batch);
        self.now += Nanos::new(INTERVAL.get() * accesses);
        self.step += 1;
        if self.step >= epochs.steps {
            (self.epoch, self.step) = (self.epoch + 1, 0);
        }
        reads
    }

    /// Announce the epochs that the planner wants, of all ranks.
    fn announce(&mut self, setup: &Setup) {
        for rank in 0..self.ranks.len() {
            while self.planner.wants_epoch(consumer(rank)) {
                if self.streams[rank].is_empty() {
                    if self.gathered == setup.epochs.count {
                        self.planner.handle_end(consumer(rank));
                        break;
                    }
                    self.gather(setup);
                }
                let Some(ids) = self.streams[rank].pop_front() else { break };
                self.planner.handle_epoch(consumer(rank), &mut ids.into_iter().map(EntryId), self.now);
            }
        }
    }

    /// Append the next epoch to all streams.
    fn gather(&mut self, setup: &Setup) {
        let mut parts = Vec::new();
        setup.epochs.begin_gather(self.ranks.clone(), 1, &mut parts);
        setup.epochs.gather_epoch(self.gathered, self.ranks.clone(), &mut self.list, &mut parts);
        for (stream, part) in self.streams.iter_mut().zip(parts) {
            stream.push_back(part);
        }
        self.gathered += 1;
    }

    /// Request the next access of a rank; return its source.
    fn request(&mut self, rank: usize) -> SourceCode {
        let access = self.accesses[rank];
        self.accesses[rank] += 1;
        self.planner
            .handle_request(consumer(rank), access, self.now, self.now)
            .expect("every access is announced before");
        let mut found = ORIGIN;
        while let Some(action) = self.planner.poll_action(self.now) {
            match action {
                NodeAction::Read { entry, from, .. } => {
                    self.read_from[entry.0 as usize] = Some(source_code(from));
                    self.planner.handle_read(entry, ReadOutcome::Ok, self.now);
                }
                NodeAction::Store { entry } => self.planner.handle_stored(entry, ReadOutcome::Ok, self.now),
                NodeAction::Answer { consumer, access, entry, source } => {
                    let read_from = self.read_from[entry.0 as usize].take();
                    found = read_from.unwrap_or_else(|| source_code(source));
                    self.planner.handle_release(consumer, access);
                }
                // A sample that is larger than the memory, which the rank reads itself.
                NodeAction::Fail { .. } => found = ORIGIN,
                NodeAction::Evict { .. } | NodeAction::Prioritize { .. } | NodeAction::TakeBack { .. } => {}
            }
        }
        found
    }
}

impl Caching for NodePlannedCache {
    /// The host's single driver thread issues all requests.
    fn has_single_requester(&self) -> bool {
        true
    }

    fn prepare(&mut self, setup: &Setup, _: &Rates, _: &mut Metrics) -> (u64, u64) {
        let mut left = PART;
        while left > 0
            && let Some(reads) = self.plan_step(setup)
        {
            // A step of a node without samples is work, too.
            left = left.saturating_sub(reads.max(1));
        }
        (self.done, setup.epochs.places as u64 * u64::from(setup.epochs.count))
    }

    fn supply(&mut self, access: Access, _: f64, _: &Rates) -> Supply {
        Supply::From(self.sources.get(access.place))
    }
}

/// The tiers of `ranks` ranks together.
fn planner_config(tiers: &[Tier], ranks: u64) -> NodePlannerConfig {
    let capacity = |tier: usize| {
        let bytes = tiers.get(tier).map_or(0, |tier| tier.capacity.get().saturating_mul(ranks));
        TierCapacity { capacity: Bytes::new(bytes), align: 1, overhead: Bytes::ZERO }
    };
    NodePlannerConfig {
        memory: capacity(0),
        disk: capacity(1),
        table_budget: Bytes::MAX,
        // Requests of the simulated ranks are ahead of their steps.
        read_ahead: Bytes::ZERO,
        initial_interval: INTERVAL,
        stall_grace: NEVER,
        stalled_bytes_max: Bytes::ZERO,
        pin_timeout: NEVER,
    }
}

fn consumer(rank: usize) -> ConsumerId {
    ConsumerId(u32::try_from(rank).expect("ranks are counted in 32 bits"))
}

/// The simulator's number of a source of the host.
fn source_code(source: Source) -> SourceCode {
    match source {
        Source::Ram => Rates::local(0),
        Source::Disk => Rates::local(1),
        _ => ORIGIN,
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::super::planned::tests::scenario;
    use crate::loading::{Place, Policy, Progress, Report, Run, RunError, Scenario};
    use foresee_units::Bytes;

    const SAMPLES: u64 = 600;
    const SIZE: u64 = 100;

    /// A run of `ranks` ranks that share `memory` and `disk` samples, each rank its part.
    fn run(ranks: u32, epochs: u32, (memory, disk): (u64, u64)) -> Report {
        let mut run = Run::new(&shared(ranks, epochs, (memory, disk)), Policy::Foresee).unwrap();
        while run.advance(1000) != Progress::Finished {}
        run.report()
    }

    fn shared(ranks: u32, epochs: u32, (memory, disk): (u64, u64)) -> Scenario {
        let mut scenario = scenario(SAMPLES, ranks, epochs, 1);
        let part = |samples: u64| Bytes::new(samples * SIZE / u64::from(ranks));
        scenario.cluster.tiers[0].capacity = part(memory);
        scenario.cluster.tiers[1].capacity = part(disk);
        if disk == 0 {
            scenario.cluster.tiers.truncate(1);
        }
        scenario.options.node_cache = NonZeroU32::new(ranks);
        scenario
    }

    fn origin_samples(report: &Report) -> Vec<u64> {
        report.epochs.iter().map(|epoch| epoch.origin_samples).collect()
    }

    #[test]
    fn ranks_with_space_for_all_data_read_it_once_for_their_node() {
        for ranks in [1, 2, 4, 6] {
            let report = run(ranks, 3, (SAMPLES, 0));
            assert_eq!(origin_samples(&report), [SAMPLES, 0, 0], "{ranks} ranks");
            assert_eq!(report.origin_bytes, SAMPLES * SIZE);
            assert_eq!(report.from(Place::Tier(0)).samples, 2 * SAMPLES);
        }
    }

    #[test]
    fn ranks_with_a_disk_for_all_data_read_it_once_for_their_node() {
        let report = run(4, 3, (SAMPLES / 10, SAMPLES));
        assert_eq!(origin_samples(&report), [SAMPLES, 0, 0]);
        assert!(report.from(Place::Tier(1)).samples > SAMPLES, "{:?}", report.reads);
    }

    #[test]
    fn memory_for_half_of_the_data_misses_as_often_as_the_optimal_cache() {
        let (ranks, epochs, capacity) = (4, 6, SAMPLES / 2);
        let report = run(ranks, epochs, (capacity, 0));
        let optimal = misses_of_belady(&requests(&shared(ranks, epochs, (capacity, 0))), capacity);
        let found = report.origin_bytes / SIZE;
        assert!((optimal..=optimal + optimal / 20).contains(&found), "{found} misses, optimal {optimal}");
        assert_eq!(origin_samples(&report)[0], SAMPLES);
    }

    /// The samples in the order in which the ranks of the node request them.
    fn requests(scenario: &Scenario) -> Vec<u32> {
        let setup = super::super::planned::tests::setup(scenario.clone());
        let (mut all, mut list) = (Vec::new(), Vec::new());
        for epoch in 0..scenario.training.epochs {
            setup.epochs.fill(epoch, &mut list);
            all.extend_from_slice(&list);
        }
        all
    }

    /// Misses of the cache that evicts the sample of the latest next use. Every sample is admitted.
    fn misses_of_belady(requests: &[u32], capacity: u64) -> u64 {
        let mut cached = std::collections::BTreeSet::new();
        let mut misses = 0;
        for (at, sample) in requests.iter().enumerate() {
            if cached.contains(sample) {
                continue;
            }
            misses += 1;
            if cached.len() as u64 == capacity {
                let next =
                    |one: &u32| requests[at..].iter().position(|other| other == one).unwrap_or(usize::MAX);
                let victim = *cached.iter().max_by_key(|one| next(one)).unwrap();
                cached.remove(&victim);
            }
            cached.insert(*sample);
        }
        misses
    }

    #[test]
    fn each_node_reads_the_data_for_itself() {
        let mut scenario = shared(4, 3, (2 * SAMPLES, 0));
        scenario.options.node_cache = NonZeroU32::new(2);
        let mut run = Run::new(&scenario, Policy::Foresee).unwrap();
        while run.advance(1000) != Progress::Finished {}
        let report = run.report();
        let all = origin_samples(&report);
        assert_eq!(all[0], SAMPLES, "a first epoch reads each sample on one node");
        assert!(report.origin_bytes <= 2 * SAMPLES * SIZE && all[1] > 0, "{all:?}");
    }

    #[test]
    fn other_caching_policies_and_other_tiers_are_unsupported() {
        let mut scenario = shared(2, 2, (SAMPLES, 0));
        let reason = |scenario: &Scenario, policy| match Run::new(scenario, policy) {
            Err(RunError::Unsupported(why)) => why.reason,
            other => panic!("{other:?}"),
        };
        assert!(reason(&scenario, Policy::Nopfs).contains("cache per node"));
        assert!(Run::new(&scenario, Policy::StagingBuffer).is_ok());
        scenario.cluster.tiers.clear();
        assert!(reason(&scenario, Policy::Foresee).contains("0 tiers"));
    }
}
