// SPDX-License-Identifier: Apache-2.0
//! Placement of the samples of a job over its nodes: at most one node holds each sample for all, and the accesses of the run
//! hand it on.

mod checkpoints;
mod job_plan;
mod next_users;
mod shape;

use std::fmt;
use std::sync::Arc;

use foresee_units::{Bytes, NodeIndex, SampleId};

pub use self::job_plan::{JobPlan, JobPlanAction, JobPlanConfig, NextSource, WantedEpoch};
use self::next_users::NextUsers;
pub use self::shape::JobShape;
use crate::capacity::{SampleSizes, Sizes, TierCapacity, TierUsage, cost_of_all};
use crate::error::PlanError;
use crate::next_use::narrow;
use crate::plan_hash::PlanHash;

/// A node in the tables that stands for none.
const NOBODY: u16 = u16::MAX;
/// The tables have a node in 16 bits.
const NODES_MAX: usize = NOBODY as usize;

/// What determines a placement, together with the order and the sizes of the samples.
#[derive(Clone, Debug)]
pub struct PlacementConfig {
    /// By node: the capacity that it has reserved for the samples of this job.
    pub capacities: Vec<TierCapacity>,
    /// Epochs after the current one whose order is known to the plan, 2 bytes per sample each.
    pub horizon: usize,
}

/// Where a sample is read for an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacedSource {
    /// The node holds it.
    Own,
    /// Another node holds it.
    Peer(NodeIndex),
    /// No node holds it.
    Origin,
}

/// The plan of one access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Where the node reads the sample.
    pub source: PlacedSource,
    /// The node that holds the sample from now on. If it is neither the reader nor the holder before, the reader sends it
    /// the sample.
    pub holder: Option<NodeIndex>,
    /// Samples that the holder held, and that no node holds from now on.
    pub dropped: Vec<SampleId>,
}

/// Plans which node holds which sample.
///
/// All nodes make this plan from the same inputs, so none asks another one. It has the accesses of all nodes in one order:
/// by epoch, then by position in the padded list of the epoch. It plans one copy of each sample, which is called held. Its
/// bytes count as used; further copies are each node's own matter, in the space that its held samples leave.
///
/// The rules, in their order:
/// 1. The first reader of a sample that nobody holds keeps it if it has space. Otherwise the node with the most free bytes
///    gets it. If none has space, nobody holds it.
/// 2. Without space, a reader that is also the sample's next user drops held samples for it that were used already in this
///    epoch and whose next user is another node. The origin is read as often, and one transfer between nodes is saved.
/// 3. A reader that uses the sample sooner again than its holder becomes the holder, if it has space: it has the bytes. So does
///    one with more free bytes, if neither is known to use the sample again.
/// 4. A sample that nobody will use again is no longer held.
///
/// With space for all samples, each is read from the origin once. Held samples are pinned otherwise, which reads the origin
/// least often for orders that are permutations.
///
/// Tables take 2 bytes per sample and 2 per epoch of the horizon; with too little space up to 8 more, for exchanges.
pub struct PlacementPlanner {
    usage: Vec<TierUsage>,
    sizes: Sizes,
    next_users: NextUsers,
    /// Whether the last epoch of the run was given.
    is_end_known: bool,
    /// By sample: the node that holds it.
    holders: Vec<u16>,
    /// By node: held samples that were used in this epoch and whose next user is another node, the latest last. Some are
    /// not held by it any more.
    exchangeable: Vec<Vec<u32>>,
    /// Whether the capacities of all nodes are smaller than the data.
    is_short: bool,
    hash: PlanHash,
}

impl PlacementPlanner {
    /// Create a plan without held samples, in the first epoch of a run.
    ///
    /// # Errors
    /// [`PlanError::TooManySamples`] from 2^32 - 1 on, and [`PlanError::TooManyNodes`] from 65,536 on.
    pub fn new(config: PlacementConfig, sizes: Arc<dyn SampleSizes>) -> Result<Self, PlanError> {
        let PlacementConfig { capacities, horizon } = config;
        let count = sizes.count();
        let samples = usize::try_from(count)
            .ok()
            .filter(|&count| count < u32::MAX as usize)
            .ok_or(PlanError::TooManySamples { count, most: u64::from(u32::MAX) - 1 })?;
        if capacities.len() > NODES_MAX {
            return Err(PlanError::TooManyNodes { count: capacities.len(), most: NODES_MAX });
        }
        let capacity: Bytes = capacities.iter().map(|limits| limits.capacity).sum();
        let cost = |size| capacities.iter().map(|limits| limits.cost(size)).max().unwrap_or(size);
        let is_short = cost_of_all(&*sizes, cost) > capacity;
        Ok(Self {
            exchangeable: vec![Vec::new(); capacities.len()],
            usage: capacities.into_iter().map(TierUsage::new).collect(),
            sizes: Sizes::new(sizes),
            next_users: NextUsers::new(samples, horizon),
            is_end_known: false,
            holders: vec![NOBODY; samples],
            is_short,
            hash: PlanHash::new(),
        })
    }

    /// Report before the first access that a node has a sample, from an earlier run or an earlier set of nodes. Returns
    /// whether it holds the sample from now on: the first node that reports it does, if it has space.
    ///
    /// # Panics
    /// If there is no such node or sample.
    pub fn handle_contents(&mut self, node: NodeIndex, sample: SampleId) -> bool {
        let index = number(sample);
        let is_held = self.holder(index).is_none() && self.fits(node, index);
        if is_held {
            self.hold(index, Some(node));
            self.hash.add(u64::from(index) << 16 | u64::from(node.0));
        }
        is_held
    }

    /// Whether the accesses of a further epoch can be given to [`handle_epoch`](Self::handle_epoch) now.
    pub fn wants_epoch(&self) -> bool {
        !self.is_end_known && self.next_users.wants_epoch()
    }

    /// Give the accesses of the first later epoch that is not known, in their order.
    ///
    /// # Panics
    /// If it is [not wanted](Self::wants_epoch), or if there is no such sample.
    pub fn handle_epoch(&mut self, accesses: &mut dyn Iterator<Item = (NodeIndex, SampleId)>) {
        assert!(!self.is_end_known, "no epoch follows the last one");
        self.next_users.add_epoch(&mut accesses.map(|(node, sample)| (number(sample), node)));
    }

    /// No epoch follows those that are known.
    pub fn handle_end(&mut self) {
        self.is_end_known = true;
    }

    /// The current epoch has ended, and the next one begins.
    pub fn handle_next_epoch(&mut self) {
        self.next_users.begin_epoch();
        self.exchangeable.iter_mut().for_each(Vec::clear);
    }

    /// Plan the next access of all nodes.
    ///
    /// # Panics
    /// If there is no such node or sample.
    pub fn handle_access(&mut self, node: NodeIndex, sample: SampleId) -> Placement {
        let index = number(sample);
        let before = self.holder(index);
        let next = self.next_users.next(index);
        let mut dropped = Vec::new();
        let holder = if next.is_none() && self.is_end_known {
            None
        } else {
            match before {
                None => self.place(node, index, next.map(|(_, user)| user), &mut dropped),
                Some(holder) => Some(self.hand_on(index, holder, node)),
            }
        };
        self.hold(index, holder);
        if let (Some(holder), Some((_, user))) = (holder, next)
            && self.is_short
            && holder != user
        {
            self.exchangeable[usize::from(holder.0)].push(index);
        }
        self.hash.add(u64::from(index) << 32 | u64::from(node.0) << 16 | u64::from(coded(holder)));
        for &SampleId(dropped) in &dropped {
            self.hash.add(dropped);
        }
        let source = match before {
            None => PlacedSource::Origin,
            Some(holder) if holder == node => PlacedSource::Own,
            Some(holder) => PlacedSource::Peer(holder),
        };
        Placement { source, holder, dropped }
    }

    /// The node that holds a sample.
    ///
    /// # Panics
    /// If there is no such sample.
    pub fn holder_of(&self, sample: SampleId) -> Option<NodeIndex> {
        self.holder(number(sample))
    }

    /// A hash of every decision so far. Equal for equal inputs on every host and in every build; not resistant to forgery.
    /// Nodes with different hashes at one access must not serve each other by this plan.
    pub fn plan_hash(&self) -> u64 {
        self.hash.value()
    }

    /// Bytes of all tables.
    pub fn table_bytes(&self) -> Bytes {
        let exchangeable: usize = self.exchangeable.iter().map(Vec::capacity).sum();
        let tables = self.holders.len() * size_of::<u16>() + exchangeable * size_of::<u32>();
        Bytes::new(tables as u64 + self.next_users.table_bytes())
    }

    /// Bytes that the samples which a node holds take of its capacity.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn held(&self, node: NodeIndex) -> Bytes {
        self.usage[usize::from(node.0)].used
    }

    /// The holder of a sample that was read from the origin.
    fn place(
        &mut self,
        reader: NodeIndex,
        sample: u32,
        next_user: Option<NodeIndex>,
        dropped: &mut Vec<SampleId>,
    ) -> Option<NodeIndex> {
        if self.fits(reader, sample) {
            return Some(reader);
        }
        let by_free = |node: &usize| (self.usage[*node].free(), std::cmp::Reverse(*node));
        let freest = (0..self.usage.len()).max_by_key(by_free).map(node_index);
        if let Some(node) = freest.filter(|&node| self.fits(node, sample)) {
            return Some(node);
        }
        (next_user == Some(reader) && self.exchange(reader, sample, dropped)).then_some(reader)
    }

    /// The holder of a sample after an access by `reader`.
    fn hand_on(&self, sample: u32, holder: NodeIndex, reader: NodeIndex) -> NodeIndex {
        let is_better = || match self.next_users.sooner(sample, [holder, reader]) {
            Some(node) => node == reader,
            None => self.usage[usize::from(reader.0)].free() > self.usage[usize::from(holder.0)].free(),
        };
        if reader != holder && self.fits(reader, sample) && is_better() { reader } else { holder }
    }

    /// Drop samples that `node` holds and need not, so that another one fits; none if they do not suffice.
    fn exchange(&mut self, node: NodeIndex, sample: u32, dropped: &mut Vec<SampleId>) -> bool {
        let place = usize::from(node.0);
        let usage = self.usage[place];
        let wanted = usage.limits.cost(self.sizes.of(sample));
        let mut free = usage.free();
        let candidates = &mut self.exchangeable[place];
        let mut at = candidates.len();
        let mut chosen = Vec::new();
        while free < wanted && at > 0 {
            at -= 1;
            let candidate = candidates[at];
            // A sample that was used twice in this epoch is among them twice.
            if self.holders[candidate as usize] == node.0 && !chosen.contains(&candidate) {
                free += usage.limits.cost(self.sizes.of(candidate));
                chosen.push(candidate);
            }
        }
        if free < wanted {
            return false;
        }
        candidates.truncate(at);
        for candidate in chosen {
            self.hold(candidate, None);
            dropped.push(SampleId(candidate.into()));
        }
        true
    }

    fn fits(&self, node: NodeIndex, sample: u32) -> bool {
        let usage = self.usage[usize::from(node.0)];
        usage.limits.cost(self.sizes.of(sample)) <= usage.free()
    }

    fn holder(&self, sample: u32) -> Option<NodeIndex> {
        let holder = self.holders[sample as usize];
        (holder != NOBODY).then_some(NodeIndex(holder))
    }

    fn hold(&mut self, sample: u32, holder: Option<NodeIndex>) {
        let before = self.holder(sample);
        if before == holder {
            return;
        }
        let size = self.sizes.of(sample);
        if let Some(before) = before {
            self.usage[usize::from(before.0)].remove(size);
        }
        if let Some(holder) = holder {
            self.usage[usize::from(holder.0)].add(size);
        }
        self.holders[sample as usize] = coded(holder);
    }
}

impl fmt::Debug for PlacementPlanner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlacementPlanner")
            .field("samples", &self.holders.len())
            .field("usage", &self.usage)
            .field("wants_epoch", &self.wants_epoch())
            .field("is_short", &self.is_short)
            .field("hash", &self.hash)
            .finish_non_exhaustive()
    }
}

/// A holder in the tables.
fn coded(holder: Option<NodeIndex>) -> u16 {
    holder.map_or(NOBODY, |holder| holder.0)
}

fn node_index(node: usize) -> NodeIndex {
    NodeIndex(u16::try_from(node).expect("see NODES_MAX"))
}

/// The number of a sample in the tables.
fn number(sample: SampleId) -> u32 {
    narrow(usize::try_from(sample.0).unwrap_or(usize::MAX))
}
