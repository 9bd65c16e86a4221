// SPDX-License-Identifier: Apache-2.0
//! The caches of nodes whose ranks share one each, without peers: planned in advance, node by node (`node_planning`).

use super::by_read::ByRead;
use super::node_planning::{NodeGroup, ranks_of};
use crate::loading::prefetch::{Access, Caching, Supply};
use crate::loading::rates::Rates;
use crate::loading::report::Metrics;
use crate::loading::run::Setup;

/// Reads that are planned in one part: tens of milliseconds.
const PART: u64 = 1 << 20;

/// Sources of all reads, by node.
pub(super) struct NodePlannedCache {
    sources: ByRead,
    /// Reads that are planned.
    done: u64,
    ranks_per_node: usize,
    nodes: usize,
    /// The node that is planned now; `None` after the last one.
    node: Option<NodeGroup>,
    epoch: u32,
    step: usize,
}

impl NodePlannedCache {
    /// Create it for nodes of `ranks_per_node` ranks; an error if the scenario has no such cache.
    pub(super) fn new(setup: &Setup, ranks_per_node: usize) -> Result<Self, String> {
        Ok(Self {
            node: Some(NodeGroup::new(setup, 0..1, ranks_per_node)?),
            sources: ByRead::new(setup, 1 + setup.scenario.cluster.tiers.len())?,
            done: 0,
            ranks_per_node,
            nodes: setup.epochs.ranks.div_ceil(ranks_per_node),
            epoch: 0,
            step: 0,
        })
    }

    /// Plan the next step of a node; return its reads, or `None` if nothing is left.
    fn plan_step(&mut self, setup: &Setup) -> Option<u64> {
        let epochs = &setup.epochs;
        let node = self.node.as_mut()?;
        let before = self.epoch as usize * epochs.places;
        let mut reads = 0;
        for rank in ranks_of(setup, node.first, self.ranks_per_node) {
            for place in epochs.batch(self.step, rank) {
                self.sources.set(before + place, node.request(0, rank, setup));
                reads += 1;
            }
        }
        node.end_step(setup);
        self.step += 1;
        if self.step >= epochs.steps {
            (self.epoch, self.step) = (self.epoch + 1, 0);
        }
        if self.epoch == epochs.count {
            let next = node.first + 1;
            self.node = (next < self.nodes).then(|| {
                NodeGroup::new(setup, next..next + 1, self.ranks_per_node)
                    .expect("the planner of the first node has accepted the samples")
            });
            self.epoch = 0;
        }
        self.done += reads;
        Some(reads)
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
