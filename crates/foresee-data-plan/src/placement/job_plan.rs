// SPDX-License-Identifier: Apache-2.0
//! The placement of a job as one of its nodes follows it: where the node reads its samples, and what it reserves for the
//! others.
//!
//! The plan runs ahead of the accesses of this node by a bounded number. A sample is reserved as soon as the plan gives it to
//! the node. It is released when all nodes that are not silent have passed the access that gives it to another one: until then some
//! may still read it here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use foresee_units::{NodeIndex, Rank, SampleId};

use super::checkpoints::Checkpoints;
use super::shape::{EpochSpan, JobShape};
use super::{PlacedSource, Placement, PlacementConfig, PlacementPlanner, number};
use crate::capacity::SampleSizes;
use crate::error::PlanError;

/// Accesses that are planned in one call: a millisecond at most.
const ACCESSES_PER_CALL: u64 = 1024;
/// Accesses between two checkpoints.
const CHECKPOINT_INTERVAL: u64 = 1 << 14;

/// What determines a [`JobPlan`], together with the order and the sizes of the samples.
#[derive(Clone, Debug)]
pub struct JobPlanConfig {
    /// The node that follows the plan.
    pub own: NodeIndex,
    /// See [`JobShape`].
    pub shape: JobShape,
    /// See [`PlacementConfig`]; a node of the shape is an index of its capacities.
    pub placement: PlacementConfig,
    /// Accesses of all nodes for which the plan runs ahead of those that this node has fetched. It runs on for up to two epochs
    /// while the node [waits](JobPlan::handle_awaited) for the plan of an access.
    pub ahead: u64,
}

/// An epoch that the plan can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedEpoch {
    /// For [`JobPlan::handle_epoch`]: the epoch of this number, from 0, is planned next.
    Accesses(u64),
    /// For [`JobPlan::handle_later_epoch`]: the plan looks ahead to the epoch of this number.
    Later(u64),
}

/// Where a node reads a sample for its next access to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextSource {
    /// The position of the access in the order of all accesses.
    pub position: u64,
    /// Where it reads the sample then.
    pub source: PlacedSource,
}

/// What changes for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobPlanAction {
    /// Other nodes read the sample here from now on, or soon.
    Reserve(SampleId),
    /// No other node reads it here any more.
    Release(SampleId),
    /// The next access to a sample is planned for which the node [waits](JobPlan::handle_awaited).
    Planned(SampleId),
    /// The node reads the sample from the origin, or has it, and the plan gives it to another one.
    Offer {
        /// The sample.
        sample: SampleId,
        /// The node that will hold it.
        node: NodeIndex,
    },
    /// If the sample is not here by now, it was not given to the node as planned.
    Settled(SampleId),
    /// Tell the other nodes that the plan before `position` has this hash.
    Checkpoint {
        /// Position in the order of all accesses.
        position: u64,
        /// Hash of the plan of the accesses before it.
        hash: u64,
    },
    /// The plan of this node is another one before `position`: nodes with different plans must not use each other.
    Differs {
        /// The other node.
        node: NodeIndex,
        /// Position in the order of all accesses.
        position: u64,
    },
}

/// Follows the placement of a job as one of its nodes.
///
/// Accesses of all nodes have one order, in which they are numbered from 0: by epoch, step and rank, then by place in the batch.
/// Each rank reads in this order. An epoch is planned when all later epochs of the horizon are known, or the last one is.
#[derive(Debug)]
pub struct JobPlan {
    planner: PlacementPlanner,
    own: NodeIndex,
    shape: JobShape,
    ahead: u64,
    /// Epochs that this node has not fetched completely, the planned one last.
    epochs: VecDeque<EpochSpan>,
    /// Epochs given to be planned, and to look ahead.
    epochs_given: u64,
    epochs_known: u64,
    is_end_known: bool,
    /// Samples of the last epoch in `epochs`.
    list: Vec<u32>,
    planned: u64,
    /// By rank of this node: its accesses that are fetched.
    fetched: BTreeMap<u32, u64>,
    fetched_through: u64,
    /// Accesses of this node that are planned and not fetched.
    upcoming: VecDeque<(u64, u32)>,
    /// Those, by sample and position.
    sources: BTreeMap<(u32, u64), OwnAccess>,
    /// Samples for whose next access the node waits.
    awaited: BTreeSet<u32>,
    /// Samples that the plan has given to this node, with the access by which it gets them.
    expected: BTreeSet<(u32, u64)>,
    /// Those that another node reads first, by access.
    expected_offers: BTreeSet<(u64, u32)>,
    /// Reserved samples that the plan gives to others or to nobody, with the access: by access, and by sample.
    ends: BTreeSet<(u64, u32)>,
    end_of: BTreeMap<u32, u64>,
    /// By node: the accesses that it has passed, while it is not silent; `None` for this node.
    passed: Vec<Option<u64>>,
    checkpoints: Checkpoints,
    actions: VecDeque<JobPlanAction>,
}

/// A planned access of this node.
#[derive(Clone, Copy, Debug)]
struct OwnAccess {
    source: PlacedSource,
    /// The node to which the sample is offered when it was read from the origin.
    offer: Option<NodeIndex>,
}

impl JobPlan {
    /// Create a plan before the first access of a run.
    ///
    /// # Errors
    /// See [`PlacementPlanner::new`].
    ///
    /// # Panics
    /// If a batch is empty, or a node has no capacity.
    pub fn new(config: JobPlanConfig, sizes: Arc<dyn SampleSizes>) -> Result<Self, PlanError> {
        let JobPlanConfig { own, shape, placement, ahead } = config;
        let nodes = placement.capacities.len();
        assert!(shape.batch > 0, "a batch has samples");
        let all = shape.nodes.iter().chain([&own]);
        assert!(all.into_iter().all(|node| usize::from(node.0) < nodes), "each node has a capacity");
        let own_ranks = (0_u32..).zip(&shape.nodes).filter(|&(_, &node)| node == own);
        Ok(Self {
            planner: PlacementPlanner::new(placement, sizes)?,
            own,
            fetched: own_ranks.map(|(rank, _)| (rank, 0)).collect(),
            shape,
            ahead,
            epochs: VecDeque::new(),
            epochs_given: 0,
            epochs_known: 1,
            is_end_known: false,
            list: Vec::new(),
            planned: 0,
            fetched_through: 0,
            upcoming: VecDeque::new(),
            sources: BTreeMap::new(),
            awaited: BTreeSet::new(),
            expected: BTreeSet::new(),
            expected_offers: BTreeSet::new(),
            ends: BTreeSet::new(),
            end_of: BTreeMap::new(),
            passed: (0..nodes).map(|node| (node != usize::from(own.0)).then_some(0)).collect(),
            checkpoints: Checkpoints::new(nodes),
            actions: VecDeque::new(),
        })
    }

    /// Report before the first epoch that a node has a sample; see [`PlacementPlanner::handle_contents`].
    pub fn handle_contents(&mut self, node: NodeIndex, sample: SampleId) -> bool {
        let is_held = self.planner.handle_contents(node, sample);
        if is_held && node == self.own {
            self.actions.push_back(JobPlanAction::Reserve(sample));
        }
        is_held
    }

    /// The epoch that can be given now, if the run has it.
    pub fn wanted_epoch(&self) -> Option<WantedEpoch> {
        let is_last = self.is_end_known && self.epochs_given == self.epochs_known;
        if self.epochs_given > 0 && self.planner.wants_epoch() {
            Some(WantedEpoch::Later(self.epochs_known))
        } else {
            (self.planned == self.end() && !is_last).then_some(WantedEpoch::Accesses(self.epochs_given))
        }
    }

    /// Give the samples of the epoch that is planned next, in the order of all accesses.
    ///
    /// # Panics
    /// If it is not [wanted](Self::wanted_epoch), or its length is no multiple of the number of ranks.
    pub fn handle_epoch(&mut self, samples: &mut dyn Iterator<Item = SampleId>) {
        assert!(self.planned == self.end(), "the epoch before is planned");
        if self.epochs_given > 0 {
            self.planner.handle_next_epoch();
        }
        self.epochs_given += 1;
        self.epochs_known = self.epochs_known.max(self.epochs_given);
        self.list.clear();
        self.list.extend(samples.map(number));
        let (len, ranks) = (self.list.len() as u64, self.shape.nodes.len() as u64);
        assert!(len.is_multiple_of(ranks), "{len} samples for {ranks} ranks");
        let before = self.epochs.back().map_or(0, |last| last.before + last.per_rank);
        self.epochs.push_back(EpochSpan { first: self.planned, per_rank: len / ranks, before, ranks });
        self.note_fetched();
    }

    /// Give the samples of the first later epoch that is not known, in the order of all accesses.
    ///
    /// # Panics
    /// If it is not [wanted](Self::wanted_epoch).
    pub fn handle_later_epoch(&mut self, samples: &mut dyn ExactSizeIterator<Item = SampleId>) {
        self.epochs_known += 1;
        let per_rank = (samples.len() / self.shape.nodes.len().max(1)) as u64;
        let shape = &self.shape;
        let accesses = (0_u64..).zip(samples);
        self.planner.handle_epoch(
            &mut accesses.map(|(position, sample)| (shape.node_at(position, per_rank), sample)),
        );
    }

    /// No epoch follows those that are known.
    pub fn handle_end(&mut self) {
        self.is_end_known = true;
        self.planner.handle_end();
    }

    /// A rank of this node has got the samples of its first `accesses` accesses, from the start of the plan.
    pub fn handle_fetched(&mut self, rank: Rank, accesses: u64) {
        if let Some(before) = self.fetched.get_mut(&rank.0) {
            *before = accesses.max(*before);
            self.note_fetched();
        }
    }

    /// A node is no longer silent: what it reads here is kept. No node is silent at the start.
    pub fn handle_alive(&mut self, node: NodeIndex) {
        self.passed[usize::from(node.0)].get_or_insert(0);
        self.checkpoints.forget(node);
    }

    /// A node is silent: nothing is kept for it.
    pub fn handle_silent(&mut self, node: NodeIndex) {
        self.passed[usize::from(node.0)] = None;
        self.note_passed();
    }

    /// Whether a node is silent.
    pub fn is_silent(&self, node: NodeIndex) -> bool {
        node != self.own && self.passed[usize::from(node.0)].is_none()
    }

    /// A node has passed all accesses before `position`: see [`fetched_through`](Self::fetched_through).
    pub fn handle_passed(&mut self, node: NodeIndex, position: u64) {
        if let Some(before) = &mut self.passed[usize::from(node.0)] {
            *before = position.max(*before);
            self.note_passed();
        }
    }

    /// A node has reached a [checkpoint](JobPlanAction::Checkpoint).
    pub fn handle_checkpoint(&mut self, node: NodeIndex, position: u64, hash: u64) {
        if self.checkpoints.differs(node, position, hash, self.planned) {
            self.actions.push_back(JobPlanAction::Differs { node, position });
        }
    }

    /// The node that follows the plan.
    pub const fn own(&self) -> NodeIndex {
        self.own
    }

    /// The other nodes of the job.
    pub fn others(&self) -> impl Iterator<Item = NodeIndex> + use<> {
        let own = self.own;
        (0..self.passed.len()).map(super::node_index).filter(move |&node| node != own)
    }

    /// All accesses of this node before this position are fetched.
    pub const fn fetched_through(&self) -> u64 {
        self.fetched_through
    }

    /// All accesses before this position are planned.
    pub const fn planned(&self) -> u64 {
        self.planned
    }

    /// Where this node reads a sample for its next access to it; `None` if that is not planned.
    ///
    /// # Panics
    /// If there is no such sample.
    pub fn next_source(&self, sample: SampleId) -> Option<NextSource> {
        let index = number(sample);
        let (&(_, position), access) = self.sources.range((index, 0)..=(index, u64::MAX)).next()?;
        Some(NextSource { position, source: access.source })
    }

    /// The node waits for the plan of its next access to a sample, which is [not planned](Self::next_source), or does so no
    /// longer.
    ///
    /// # Panics
    /// If there is no such sample.
    pub fn handle_awaited(&mut self, sample: SampleId, is_awaited: bool) {
        if is_awaited {
            self.awaited.insert(number(sample));
        } else {
            self.awaited.remove(&number(sample));
        }
    }

    /// The node to which this one offers a sample when it has read it from the origin.
    ///
    /// # Panics
    /// If there is no such sample.
    pub fn offer_to(&self, sample: SampleId) -> Option<NodeIndex> {
        let index = number(sample);
        let (_, access) = self.sources.range((index, 0)..=(index, u64::MAX)).next()?;
        access.offer
    }

    /// Whether other nodes read a sample here, by what is planned.
    ///
    /// # Panics
    /// If there is no such sample.
    pub fn is_reserved(&self, sample: SampleId) -> bool {
        self.planner.holder_of(sample) == Some(self.own) || self.end_of.contains_key(&number(sample))
    }

    /// Whether a sample that is not here will be, for another node's access at `position`.
    ///
    /// # Panics
    /// If there is no such sample.
    pub fn expects(&self, sample: SampleId, position: u64) -> bool {
        self.expected_before(number(sample), position).is_some() || self.planned < position
    }

    /// Whether another node will offer a sample that is not here, for an access of this node at `position`.
    ///
    /// # Panics
    /// If there is no such sample.
    pub fn expects_offer(&self, sample: SampleId, position: u64) -> bool {
        let index = number(sample);
        self.expected_before(index, position).is_some_and(|at| self.expected_offers.contains(&(at, index)))
    }

    /// The next change. The plan is extended by some accesses if there is none, so a caller that polls until `None` has all.
    pub fn poll_action(&mut self) -> Option<JobPlanAction> {
        while self.actions.is_empty() && self.plan_some() {}
        self.actions.pop_front()
    }

    /// The plan of all nodes.
    pub const fn placement(&self) -> &PlacementPlanner {
        &self.planner
    }

    /// The position after all epochs that are given.
    fn end(&self) -> u64 {
        self.epochs.back().map_or(self.planned, EpochSpan::end)
    }

    /// Plan a bounded number of accesses; `false` if none is left that may be planned.
    fn plan_some(&mut self) -> bool {
        let Some(&EpochSpan { first, per_rank, .. }) = self.epochs.back() else { return false };
        if self.planner.wants_epoch() {
            return false;
        }
        let further = if self.awaited.is_empty() { 0 } else { 2 * self.list.len() as u64 };
        let limit = self.end().min(self.fetched_through.saturating_add(self.ahead).saturating_add(further));
        let limit = limit.min(self.planned + ACCESSES_PER_CALL);
        if limit <= self.planned {
            return false;
        }
        for position in self.planned..limit {
            let place = position - first;
            let sample = self.list[usize::try_from(place).expect("a place in the list")];
            let node = self.shape.node_at(place, per_rank);
            let placement = self.planner.handle_access(node, SampleId(sample.into()));
            self.follow(position, node, sample, &placement);
            self.planned = position + 1;
            if self.planned.is_multiple_of(CHECKPOINT_INTERVAL) || self.planned == self.end() {
                self.reach_checkpoint();
            }
        }
        true
    }

    /// Draw the consequences of an access for this node.
    fn follow(&mut self, position: u64, node: NodeIndex, sample: u32, placement: &Placement) {
        let Placement { source, holder, ref dropped } = *placement;
        let before = match source {
            PlacedSource::Own => Some(node),
            PlacedSource::Peer(holder) => Some(holder),
            PlacedSource::Origin => None,
        };
        let (was_own, is_own) = (before == Some(self.own), holder == Some(self.own));
        if node == self.own {
            let offer = holder.filter(|_| source == PlacedSource::Origin && !is_own);
            self.upcoming.push_back((position, sample));
            self.sources.insert((sample, position), OwnAccess { source, offer });
            if let Some(node) = offer {
                self.actions.push_back(JobPlanAction::Offer { sample: SampleId(sample.into()), node });
            }
            if self.awaited.remove(&sample) {
                self.actions.push_back(JobPlanAction::Planned(SampleId(sample.into())));
            }
        }
        if is_own && !was_own {
            if node != self.own {
                self.expected_offers.insert((position, sample));
            }
            self.expected.insert((sample, position));
            match self.end_of.remove(&sample) {
                Some(end) => {
                    self.ends.remove(&(end, sample));
                }
                None => self.actions.push_back(JobPlanAction::Reserve(SampleId(sample.into()))),
            }
        }
        if was_own && !is_own {
            self.end_reservation(position, sample);
        }
        if is_own {
            for &dropped in dropped {
                self.end_reservation(position, number(dropped));
            }
        }
    }

    /// A reserved sample is given away by the access at `position`.
    fn end_reservation(&mut self, position: u64, sample: u32) {
        self.ends.insert((position, sample));
        self.end_of.insert(sample, position);
    }

    fn note_fetched(&mut self) {
        let end = self.end();
        let position = |(&rank, &accesses): (&u32, &u64)| {
            let epoch = self.epochs.iter().find(|epoch| accesses < epoch.before + epoch.per_rank);
            epoch.map_or(end, |epoch| {
                epoch.first + self.shape.place_of(rank, accesses - epoch.before, epoch.per_rank)
            })
        };
        let through = self.fetched.iter().map(position).min().unwrap_or(end);
        self.fetched_through = through.max(self.fetched_through);
        while self.epochs.len() > 1 && self.epochs[0].end() <= self.fetched_through {
            self.epochs.pop_front();
        }
        while let Some(&(position, sample)) = self.upcoming.front()
            && position < self.fetched_through
        {
            self.upcoming.pop_front();
            self.sources.remove(&(sample, position));
            self.settle(sample, position);
        }
        self.note_passed();
    }

    /// Draw the consequences of the accesses that all nodes have passed.
    fn note_passed(&mut self) {
        let others = self.passed.iter().flatten().copied();
        let all = others.chain([self.fetched_through]).min().unwrap_or(0);
        while let Some(&(position, sample)) = self.expected_offers.first()
            && position < all
        {
            self.expected_offers.pop_first();
            self.settle(sample, position);
        }
        while let Some(&(position, sample)) = self.ends.first()
            && position < all
        {
            self.ends.pop_first();
            self.end_of.remove(&sample);
            self.actions.push_back(JobPlanAction::Release(SampleId(sample.into())));
        }
    }

    /// The first access by which this node gets a sample, if that is before `position`.
    fn expected_before(&self, sample: u32, position: u64) -> Option<u64> {
        self.expected.range((sample, 0)..(sample, position)).next().map(|&(_, at)| at)
    }

    /// This node should have got a sample by the access at `position`.
    fn settle(&mut self, sample: u32, position: u64) {
        let is_removed = self.expected.remove(&(sample, position));
        if is_removed && self.expected_before(sample, u64::MAX).is_none() {
            self.actions.push_back(JobPlanAction::Settled(SampleId(sample.into())));
        }
    }

    fn reach_checkpoint(&mut self) {
        let (position, hash) = (self.planned, self.planner.plan_hash());
        self.actions.push_back(JobPlanAction::Checkpoint { position, hash });
        let different = self.checkpoints.reach(position, hash);
        let differs = different.into_iter().map(|(node, position)| JobPlanAction::Differs { node, position });
        self.actions.extend(differs);
    }
}
