// SPDX-License-Identifier: Apache-2.0
//! Ranks, nodes and batches of a job, and the order of all accesses that they define.

use foresee_units::NodeIndex;

/// How the samples of an epoch belong to ranks, and ranks to nodes. In each step, each rank gets a batch; in the last step of
/// an epoch, all get the same smaller number if the samples of a rank are no multiple of the batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobShape {
    /// By rank: its node.
    pub nodes: Vec<NodeIndex>,
    /// Samples of a rank in a step, at least 1.
    pub batch: usize,
}

/// An epoch in the order of all accesses.
#[derive(Clone, Copy, Debug)]
pub(super) struct EpochSpan {
    /// Position of its first access.
    pub(super) first: u64,
    /// Accesses of each rank in it.
    pub(super) per_rank: u64,
    /// Accesses of each rank before it.
    pub(super) before: u64,
    pub(super) ranks: u64,
}

impl JobShape {
    /// The node of the access at a place of an epoch in which each rank has `per_rank` accesses.
    pub(super) fn node_at(&self, place: u64, per_rank: u64) -> NodeIndex {
        let (batch, ranks) = (self.batch as u64, self.nodes.len() as u64);
        let step = place / (batch * ranks);
        let len = batch.min(per_rank - step * batch).max(1);
        let rank = (place - step * batch * ranks) / len;
        self.nodes[usize::try_from(rank).expect("a rank")]
    }

    /// The place of an access of a rank in such an epoch.
    pub(super) fn place_of(&self, rank: u32, access: u64, per_rank: u64) -> u64 {
        let (batch, ranks) = (self.batch as u64, self.nodes.len() as u64);
        let step = access / batch;
        let len = batch.min(per_rank - step * batch);
        step * batch * ranks + u64::from(rank) * len + access % batch
    }
}

impl EpochSpan {
    pub(super) const fn end(&self) -> u64 {
        self.first + self.per_rank * self.ranks
    }
}
