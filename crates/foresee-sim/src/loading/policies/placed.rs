// SPDX-License-Identifier: Apache-2.0
//! Nodes that exchange samples: the placement that all nodes of a job plan, and the planner of each node's cache, which
//! keeps what the placement has reserved there.
//!
//! Plans are made in advance, as for nodes without peers (`node_planning`): first the placement of the whole run, then the
//! nodes, as many at a time as [`GROUP_BYTES`] allow. A sample that a reader of the origin sends to another node is counted,
//! and delays nothing here.
//!
//! Memory: some bits per read of the run. While it is planned, 2 more bytes per read, 26 bytes per sample, and the planners
//! of a group.

use std::ops::Range;
use std::sync::Arc;

use foresee_data_plan::{PlacedSource, PlacementConfig, PlacementPlanner, SampleSizes, TierCapacity};
use foresee_units::{Bytes, NodeIndex, SampleId};

use super::by_read::ByRead;
use super::node_planning::{NodeGroup, planner_config, ranks_of};
use super::peers_can_be_read;
use crate::loading::order::Epochs;
use crate::loading::prefetch::{Access, Caching, Supply};
use crate::loading::rates::{ORIGIN, Rates};
use crate::loading::report::{Metrics, Pushes};
use crate::loading::run::Setup;

/// Epochs that the placement knows: more of them change little.
const HORIZON: usize = 8;
/// Reads that are planned in one part: tens of milliseconds.
const PART: u64 = 1 << 20;
/// Memory for the planners of a group of nodes, and an estimate for each of its samples.
const GROUP_BYTES: usize = 1 << 30;
const SAMPLE_BYTES: usize = 80;
const NOBODY: u16 = u16::MAX;

/// Sources of all reads, and who holds which sample after each of them.
pub(super) struct PlacedCache {
    sources: ByRead,
    /// By read of the run.
    holders: Vec<u16>,
    /// Samples that no node holds any more, by read of the run.
    dropped: Vec<(usize, u32)>,
    /// By read of the run: whether the reader sends the sample to the node that holds it from then on.
    pushed: ByRead,
    ranks_per_node: usize,
    nodes: usize,
    /// Nodes of a group.
    together: usize,
    /// Planned reads: of the placement and of each group.
    done: u64,
    all: u64,
    /// The placement, until it is complete.
    placing: Option<Placing>,
    /// The nodes that are planned now; `None` before the first and after the last ones.
    group: Option<PlacedGroup>,
    pushes: Pushes,
}

/// The placement and its progress.
struct Placing {
    planner: PlacementPlanner,
    /// Epochs that the planner knows.
    known: u32,
    position: Position,
}

/// Some nodes and their progress.
struct PlacedGroup {
    nodes: NodeGroup,
    /// By sample.
    holders: Vec<u16>,
    /// The first of the dropped samples that is to come.
    next_dropped: usize,
    position: Position,
}

/// A step of the run.
#[derive(Default)]
struct Position {
    epoch: u32,
    step: usize,
    /// The epoch's list.
    list: Vec<u32>,
}

impl Position {
    /// Draw the epoch's list if it begins.
    fn begin_step(&mut self, epochs: &Epochs) {
        if self.step == 0 {
            epochs.fill(self.epoch, &mut self.list);
        }
    }

    fn end_step(&mut self, epochs: &Epochs) {
        self.step += 1;
        if self.step >= epochs.steps {
            (self.epoch, self.step) = (self.epoch + 1, 0);
        }
    }
}

impl PlacedCache {
    /// Create it for nodes of `ranks_per_node` ranks; an error if the scenario has no such caches or no network.
    pub(super) fn new(setup: &Setup, ranks_per_node: usize) -> Result<Self, String> {
        peers_can_be_read(setup)?;
        let tiers = setup.scenario.cluster.tiers.len();
        // A planner that is complete shows that it accepts the sizes of all samples.
        NodeGroup::new(setup, 0..1, ranks_per_node)?;
        let nodes = setup.epochs.ranks.div_ceil(ranks_per_node);
        let reads = setup.epochs.places * setup.epochs.count as usize;
        let mut holders = Vec::new();
        if holders.try_reserve_exact(reads).is_err() {
            return Err(format!("it stores 2 bytes per read, and {reads} reads do not fit into memory"));
        }
        let capacities =
            (0..nodes).map(|node| reserved(setup, ranks_of(setup, node, ranks_per_node))).collect();
        let sizes = Arc::clone(&setup.sizes) as Arc<dyn SampleSizes>;
        let planner = PlacementPlanner::new(PlacementConfig { capacities, horizon: HORIZON }, sizes)
            .map_err(|why| why.to_string())?;
        let together = nodes_together(setup, nodes);
        let passes = 1 + nodes.div_ceil(together);
        Ok(Self {
            sources: ByRead::new(setup, 1 + 2 * tiers)?,
            holders,
            dropped: Vec::new(),
            pushed: ByRead::new(setup, 2)?,
            ranks_per_node,
            nodes,
            together,
            done: 0,
            all: (reads * passes) as u64,
            placing: Some(Placing { planner, known: 1, position: Position::default() }),
            group: None,
            pushes: Pushes::default(),
        })
    }

    /// Plan a step; return its reads, or `None` if nothing is left.
    fn plan_step(&mut self, setup: &Setup, rates: &Rates) -> Option<u64> {
        let reads =
            if self.placing.is_some() { self.place_step(setup) } else { self.plan_nodes(setup, rates)? };
        self.done += reads;
        Some(reads)
    }

    fn place_step(&mut self, setup: &Setup) -> u64 {
        let epochs = &setup.epochs;
        let Some(Placing { planner, known, position }) = &mut self.placing else { return 0 };
        if position.step == 0 {
            let mut list = std::mem::take(&mut position.list);
            while *known < epochs.count && planner.wants_epoch() {
                epochs.fill(*known, &mut list);
                planner.handle_epoch(&mut accesses(epochs, &list, self.ranks_per_node, 0..epochs.steps));
                *known += 1;
            }
            if *known == epochs.count {
                planner.handle_end();
            }
            position.list = list;
        }
        position.begin_step(epochs);
        let before = self.holders.len();
        for (node, sample) in
            accesses(epochs, &position.list, self.ranks_per_node, position.step..position.step + 1)
        {
            let placement = planner.handle_access(node, sample);
            let place = self.holders.len();
            self.dropped.extend(placement.dropped.into_iter().map(|sample| (place, id_of(sample))));
            let is_pushed = placement.source == PlacedSource::Origin
                && placement.holder.is_some_and(|holder| holder != node);
            self.pushed.set(place, is_pushed.into());
            self.holders.push(placement.holder.map_or(NOBODY, |holder| holder.0));
        }
        position.end_step(epochs);
        if position.epoch == epochs.count {
            self.placing = None;
            self.group = Some(self.group_from(0, setup));
        } else if position.step == 0 {
            planner.handle_next_epoch();
        }
        (self.holders.len() - before) as u64
    }

    /// Plan the next step of the nodes of a group.
    fn plan_nodes(&mut self, setup: &Setup, rates: &Rates) -> Option<u64> {
        let epochs = &setup.epochs;
        let PlacedGroup { nodes, holders, next_dropped, position } = self.group.as_mut()?;
        position.begin_step(epochs);
        let before = position.epoch as usize * epochs.places;
        for rank in 0..epochs.ranks {
            let reader = u16::try_from(rank / self.ranks_per_node).expect("nodes are counted in 16 bits");
            for nth in epochs.batch(position.step, rank) {
                let (place, id) = (before + nth, position.list[nth]);
                while let Some(&(_, dropped)) =
                    self.dropped.get(*next_dropped).filter(|&&(at, _)| at == place)
                {
                    *next_dropped += 1;
                    let holder = std::mem::replace(&mut holders[dropped as usize], NOBODY);
                    if let Some(node) = within(nodes, holder) {
                        nodes.reserve(node, dropped, false);
                    }
                }
                let next = self.holders[place];
                let holder = std::mem::replace(&mut holders[id as usize], next);
                if let Some(node) = within(nodes, reader) {
                    let found = nodes.request(node, rank, setup);
                    if found != ORIGIN {
                        self.sources.set(place, found);
                    }
                }
                if holder != reader
                    && self.sources.get(place) == ORIGIN
                    && let Some(node) = within(nodes, holder)
                    && let Some(tier) = nodes.tier_of(node, id)
                {
                    self.sources.set(place, rates.faster(rates.peer(tier)));
                }
                if holder == next {
                    continue;
                }
                if let Some(node) = within(nodes, holder) {
                    nodes.reserve(node, id, false);
                }
                if let Some(node) = within(nodes, next) {
                    nodes.reserve(node, id, true);
                    if next != reader {
                        nodes.receive(node, id);
                    }
                }
            }
        }
        nodes.end_step(setup);
        let reads = epochs.step(position.step).len() as u64;
        position.end_step(epochs);
        if position.epoch == epochs.count {
            let next = nodes.first + nodes.len();
            self.group = (next < self.nodes).then(|| self.group_from(next, setup));
        }
        Some(reads)
    }

    /// The group of nodes from `first` on.
    fn group_from(&self, first: usize, setup: &Setup) -> PlacedGroup {
        let end = self.nodes.min(first + self.together);
        PlacedGroup {
            nodes: NodeGroup::new(setup, first..end, self.ranks_per_node)
                .expect("the planner of the first node has accepted the samples"),
            holders: vec![NOBODY; setup.sizes.len() as usize],
            next_dropped: 0,
            position: Position::default(),
        }
    }
}

impl Caching for PlacedCache {
    /// The host's single driver thread issues all requests.
    fn has_single_requester(&self) -> bool {
        true
    }

    fn prepare(&mut self, setup: &Setup, rates: &Rates, _: &mut Metrics) -> (u64, u64) {
        let mut left = PART;
        while left > 0
            && let Some(reads) = self.plan_step(setup, rates)
        {
            left = left.saturating_sub(reads.max(1));
        }
        if self.done == self.all {
            (self.holders, self.dropped) = (Vec::new(), Vec::new());
        }
        (self.done, self.all)
    }

    fn supply(&mut self, access: Access, _: f64, _: &Rates) -> Supply {
        Supply::From(self.sources.get(access.place))
    }

    fn fetched(&mut self, access: Access, size: f64, _: f64) {
        if self.pushed.get(access.place) == 1 {
            self.pushes.add(size);
        }
    }

    fn pushes(&self) -> Pushes {
        self.pushes
    }
}

/// The place of a node of the run in a group.
fn within(nodes: &NodeGroup, node: u16) -> Option<usize> {
    usize::from(node).checked_sub(nodes.first).filter(|&node| node < nodes.len())
}

/// The accesses of some steps of an epoch, in the order of its list, with the nodes that make them.
fn accesses(
    epochs: &Epochs,
    list: &[u32],
    ranks_per_node: usize,
    steps: Range<usize>,
) -> impl Iterator<Item = (NodeIndex, SampleId)> {
    steps.flat_map(move |step| {
        (0..epochs.ranks).flat_map(move |rank| {
            let node = NodeIndex(u16::try_from(rank / ranks_per_node).expect("nodes are counted in 16 bits"));
            list[epochs.batch(step, rank)].iter().map(move |&id| (node, SampleId(u64::from(id))))
        })
    })
}

/// What a node reserves for the placement: its tiers without the space for a sample in each.
fn reserved(setup: &Setup, ranks: Range<usize>) -> TierCapacity {
    let config = planner_config(&setup.scenario.cluster.tiers, ranks.len() as u64);
    let largest = setup
        .sizes
        .uniform()
        .or_else(|| (0..setup.sizes.count()).map(|id| setup.sizes.size(SampleId(id))).max());
    let tiers = [config.memory.capacity, config.disk.capacity];
    let reserved = tiers.map(|capacity| capacity.saturating_sub(largest.unwrap_or(Bytes::ZERO)));
    TierCapacity { capacity: reserved.into_iter().sum(), ..config.memory }
}

/// Number of nodes whose planners take no more than the memory for a group, at least one.
fn nodes_together(setup: &Setup, nodes: usize) -> usize {
    (GROUP_BYTES / SAMPLE_BYTES / setup.sizes.len() as usize).clamp(1, nodes)
}

fn id_of(sample: SampleId) -> u32 {
    u32::try_from(sample.0).expect("ids were counted in 32 bits")
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use foresee_units::BytesPerSecond;

    use super::super::planned::tests::{scenario, setup};
    use super::*;
    use crate::loading::{AccessOrder, DataSet, Place, Policy, Progress, Report, Run, Scenario};

    const SAMPLES: u64 = 600;
    const SIZE: u64 = 100;

    /// Nodes of `ranks_per_node` ranks that exchange samples, and have `memory` and `disk` samples each.
    fn exchanging(nodes: u32, ranks_per_node: u32, (memory, disk): (u64, u64)) -> Scenario {
        let mut scenario = scenario(SAMPLES, nodes * ranks_per_node, 5, 1);
        let part = |samples: u64| Bytes::new((samples * SIZE).div_ceil(u64::from(ranks_per_node)));
        scenario.cluster.tiers[0].capacity = part(memory);
        scenario.cluster.tiers[1].capacity = part(disk);
        if disk == 0 {
            scenario.cluster.tiers.truncate(1);
        }
        scenario.cluster.peer_link = Some(BytesPerSecond::new(100_000_000));
        scenario.options.node_cache = NonZeroU32::new(ranks_per_node).filter(|&ranks| ranks.get() > 1);
        scenario.options.peers = true;
        scenario
    }

    fn report(scenario: &Scenario) -> Report {
        let mut run = Run::new(scenario, Policy::Foresee).unwrap();
        while run.advance(1000) != Progress::Finished {}
        run.report()
    }

    fn origin_samples(report: &Report) -> Vec<u64> {
        report.epochs.iter().map(|epoch| epoch.origin_samples).collect()
    }

    #[test]
    fn nodes_with_space_for_all_data_together_read_it_once() {
        for (nodes, ranks_per_node) in [(2, 1), (4, 1), (3, 2), (2, 4)] {
            let each = SAMPLES / u64::from(nodes) + 20;
            let report = report(&exchanging(nodes, ranks_per_node, (each, 0)));
            assert_eq!(origin_samples(&report), [SAMPLES, 0, 0, 0, 0], "{nodes} nodes");
            assert_eq!(
                report.from(Place::Tier(0)).samples + report.from(Place::Peer(0)).samples,
                4 * SAMPLES
            );
            assert!(
                report.from(Place::Tier(0)).samples > 4 * SAMPLES / u64::from(nodes),
                "{:?}",
                report.reads
            );
        }
    }

    #[test]
    fn samples_on_the_disk_of_a_peer_are_read_there() {
        let report = report(&exchanging(3, 1, (SAMPLES / 30, SAMPLES / 3)));
        assert_eq!(origin_samples(&report), [SAMPLES, 0, 0, 0, 0]);
        assert!(report.from(Place::Peer(1)).samples > 0, "{:?}", report.reads);
    }

    #[test]
    fn space_for_half_of_the_data_halves_the_reads_of_the_origin() {
        // A sample of each tier is not reserved.
        let report = report(&exchanging(4, 1, (SAMPLES / 8 + 1, 0)));
        let later = SAMPLES / 2;
        assert_eq!(origin_samples(&report), [SAMPLES, later, later, later, later]);
    }

    #[test]
    fn a_reader_without_space_sends_the_sample_to_a_node_that_has_some() {
        let mut scenario = exchanging(2, 1, (SAMPLES, 0));
        assert_eq!(report(&scenario).pushed_samples, 0);
        // In this order, the first rank reads the first of each two samples.
        scenario.options.order = AccessOrder::Sequential;
        scenario.training.batch = 1;
        let sizes = (0..SAMPLES).map(|sample| if sample % 2 == 0 { SIZE } else { 1 }).collect();
        scenario.data = DataSet::Given(sizes);
        scenario.cluster.tiers[0].capacity = Bytes::new(SAMPLES / 3 * SIZE);
        let fast = report(&scenario);
        assert_eq!(origin_samples(&fast)[1..], [0; 4]);
        assert_eq!(fast.pushed_bytes, fast.pushed_samples * SIZE);
        assert!((SAMPLES / 6..SAMPLES / 6 + 8).contains(&fast.pushed_samples), "{}", fast.pushed_samples);
        // With a slow network samples are read from the origin again, and not sent again.
        scenario.cluster.peer_link = Some(BytesPerSecond::new(1));
        let slow = report(&scenario);
        assert!(slow.origin_requests > fast.origin_requests, "{:?}", slow.reads);
        assert_eq!(slow.pushed_samples, fast.pushed_samples);
    }

    #[test]
    fn the_plan_does_not_depend_on_the_size_of_the_groups() {
        let setup = setup(exchanging(5, 2, (SAMPLES / 20, SAMPLES / 8)));
        let rates = Rates::new(&setup.scenario).unwrap();
        let plan = |together| {
            let mut placed = PlacedCache { together, ..PlacedCache::new(&setup, 2).unwrap() };
            while placed.plan_step(&setup, &rates).is_some() {}
            placed.sources
        };
        let all = plan(5);
        assert_eq!(plan(1), all);
        assert_eq!(plan(2), all);
    }

    #[test]
    fn progress_is_reported() {
        let mut run = Run::new(&exchanging(2, 1, (SAMPLES, 0)), Policy::Foresee).unwrap();
        assert!(matches!(run.advance(1), Progress::Training { .. }), "a small plan is one part");
        let mut scenario = exchanging(2, 1, (SAMPLES, 0));
        scenario.cluster.peer_link = None;
        assert!(Run::new(&scenario, Policy::Foresee).is_err(), "without a network");
    }
}
