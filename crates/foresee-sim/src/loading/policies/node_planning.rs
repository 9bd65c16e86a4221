// SPDX-License-Identifier: Apache-2.0
//! The planner of a node's cache, fed as its host feeds it: the ranks of a node announce their epochs, and request their
//! batches in turns. The tiers of these ranks are one.
//!
//! Plans are made in advance, like those of single ranks (`planned`). The planner's own clock advances by a fixed time per
//! access, and all ranks of a node are equally fast: reads and copies end at once there. So it decides which samples are
//! read once for all ranks, and the simulation how long this takes. A sample that two ranks need is read by the first of
//! them; the other has it from memory.

use std::collections::VecDeque;
use std::ops::Range;

use foresee_data_plan::{
    ConsumerId, EntryId, NodeAction, NodePlanner, NodePlannerConfig, NodeTier, SampleSizes as _, TierCapacity,
};
use foresee_units::{Bytes, Nanos, ReadOutcome, SampleId, Source};

use crate::loading::rates::{ORIGIN, Rates, SourceCode};
use crate::loading::run::Setup;
use crate::loading::scenario::Tier;

/// Time per access on the planner's clock.
const INTERVAL: Nanos = Nanos::from_millis(1);
/// Longer than any run on that clock: no rank stands still, and copies are released at once.
const NEVER: Nanos = Nanos::new(u64::MAX / 4);
/// The tiers of a node's cache: memory, and a disk.
const TIERS_MAX: usize = 2;

/// Nodes that are planned together.
pub(super) struct NodeGroup {
    /// The first of them.
    pub(super) first: usize,
    nodes: Vec<NodePlanning>,
    /// Epochs that were appended to the streams of all their ranks.
    gathered: u32,
    ranks: Range<usize>,
    /// An epoch's list, reused for its memory.
    list: Vec<u32>,
}

/// The planner of one node and its progress.
struct NodePlanning {
    planner: NodePlanner,
    now: Nanos,
    first_rank: usize,
    /// By rank of the node, the epochs that its planner has not received.
    streams: Vec<VecDeque<Vec<u32>>>,
    /// By rank of the node, its accesses so far.
    accesses: Vec<u64>,
    /// By sample: the source of a read that no rank has used yet.
    read_from: Vec<Option<SourceCode>>,
}

impl NodeGroup {
    /// Create the planners of some nodes of `ranks_per_node` ranks.
    ///
    /// # Errors
    /// The tiers are not those of a node's cache, or a sample is too large for one.
    pub(super) fn new(setup: &Setup, nodes: Range<usize>, ranks_per_node: usize) -> Result<Self, String> {
        let tiers = setup.scenario.cluster.tiers.len();
        if !(1..=TIERS_MAX).contains(&tiers) {
            return Err(format!(
                "a node's cache has memory and at most one disk, and this cluster {tiers} tiers"
            ));
        }
        let ranks_of = |node: usize| ranks_of(setup, node, ranks_per_node);
        let ranks = ranks_of(nodes.start).start..ranks_of(nodes.end - 1).end;
        let first = nodes.start;
        let nodes = nodes.map(|node| NodePlanning::new(setup, ranks_of(node))).collect::<Result<_, _>>()?;
        Ok(Self { first, nodes, gathered: 0, ranks, list: Vec::new() })
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Request the next access of a rank of one of the nodes; return its source. The origin stands for all that is not in
    /// this node.
    pub(super) fn request(&mut self, node: usize, rank: usize, setup: &Setup) -> SourceCode {
        while self.nodes[node].announce(self.gathered == setup.epochs.count) {
            self.gather(setup);
        }
        self.nodes[node].request(rank)
    }

    /// The ranks have ended a step.
    pub(super) fn end_step(&mut self, setup: &Setup) {
        for node in &mut self.nodes {
            node.end_step(setup);
        }
    }

    /// Reserve an entry in one of the nodes, or end that.
    pub(super) fn reserve(&mut self, node: usize, id: u32, is_reserved: bool) {
        self.nodes[node].planner.handle_reserved(EntryId(id), is_reserved);
    }

    /// One of the nodes receives a sample from another one, if it has space for it.
    pub(super) fn receive(&mut self, node: usize, id: u32) {
        let node = &mut self.nodes[node];
        if node.planner.handle_offer(EntryId(id), node.now) {
            node.act();
            node.planner.handle_read(EntryId(id), ReadOutcome::Ok, node.now);
            node.act();
        }
    }

    /// The tier in which one of the nodes has a sample, the fastest first.
    pub(super) fn tier_of(&self, node: usize, id: u32) -> Option<usize> {
        let holds = |tier| self.nodes[node].planner.holds(EntryId(id), tier);
        [NodeTier::Memory, NodeTier::Disk].into_iter().position(holds)
    }

    /// Append the next epoch to all streams.
    fn gather(&mut self, setup: &Setup) {
        let mut parts = Vec::new();
        setup.epochs.begin_gather(self.ranks.clone(), 1, &mut parts);
        setup.epochs.gather_epoch(self.gathered, self.ranks.clone(), &mut self.list, &mut parts);
        let streams = self.nodes.iter_mut().flat_map(|node| &mut node.streams);
        for (stream, part) in streams.zip(parts) {
            stream.push_back(part);
        }
        self.gathered += 1;
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
            first_rank: ranks.start,
            streams: vec![VecDeque::new(); count],
            accesses: vec![0; count],
            read_from: vec![None; setup.sizes.len() as usize],
        })
    }

    /// Announce the epochs that the planner wants, as far as the streams have them. Returns whether it wants more;
    /// `has_all`: the streams have got all epochs.
    fn announce(&mut self, has_all: bool) -> bool {
        for rank in 0..self.streams.len() {
            while self.planner.wants_epoch(consumer(rank)) {
                if let Some(ids) = self.streams[rank].pop_front() {
                    self.planner.handle_epoch(consumer(rank), &mut ids.into_iter().map(EntryId), self.now);
                } else if has_all {
                    self.planner.handle_end(consumer(rank));
                } else {
                    return true;
                }
            }
        }
        false
    }

    fn request(&mut self, rank: usize) -> SourceCode {
        let rank = rank - self.first_rank;
        let access = self.accesses[rank];
        self.accesses[rank] += 1;
        self.planner
            .handle_request(consumer(rank), access, self.now, self.now)
            .expect("every access is announced before");
        // A sample that is larger than the memory is not answered: the rank reads it itself.
        self.act().unwrap_or(ORIGIN)
    }

    /// Execute what the planner decides, at once; return the source of the last answer.
    fn act(&mut self) -> Option<SourceCode> {
        let mut found = None;
        while let Some(action) = self.planner.poll_action(self.now) {
            match action {
                NodeAction::Read { entry, from, .. } => {
                    self.read_from[entry.0 as usize] = Some(source_code(from));
                    self.planner.handle_read(entry, ReadOutcome::Ok, self.now);
                }
                NodeAction::Store { entry } => self.planner.handle_stored(entry, ReadOutcome::Ok, self.now),
                NodeAction::Answer { consumer, access, entry, source } => {
                    let read_from = self.read_from[entry.0 as usize].take();
                    found = read_from.or(Some(source_code(source)));
                    self.planner.handle_release(consumer, access);
                }
                NodeAction::Fail { .. }
                | NodeAction::Evict { .. }
                | NodeAction::Prioritize { .. }
                | NodeAction::TakeBack { .. } => {}
            }
        }
        found
    }

    fn end_step(&mut self, setup: &Setup) {
        for rank in 0..self.accesses.len() {
            self.planner.handle_progress(consumer(rank), self.accesses[rank], Some(INTERVAL), self.now);
        }
        let accesses = u64::from(setup.scenario.training.batch);
        self.now += Nanos::new(INTERVAL.get() * accesses);
    }
}

/// The ranks of a node.
pub(super) fn ranks_of(setup: &Setup, node: usize, ranks_per_node: usize) -> Range<usize> {
    let first = node * ranks_per_node;
    first..setup.epochs.ranks.min(first + ranks_per_node)
}

/// The tiers of `ranks` ranks together.
pub(super) fn planner_config(tiers: &[Tier], ranks: u64) -> NodePlannerConfig {
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
        // What another node has sent ahead of its use is in memory.
        Source::Ram | Source::Peer => Rates::local(0),
        Source::Disk => Rates::local(1),
        _ => ORIGIN,
    }
}
