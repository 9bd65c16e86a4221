// SPDX-License-Identifier: Apache-2.0
//! Comparison of the plans of two nodes, at positions that both have reached.

use std::collections::BTreeMap;

use foresee_units::NodeIndex;

use super::node_index;

/// Positions that are remembered, of this node and of each other one.
const REMEMBERED: usize = 256;

/// Hashes of the plan by position.
#[derive(Debug)]
pub(super) struct Checkpoints {
    own: BTreeMap<u64, u64>,
    /// By node: those that this one has not reached.
    ahead: Vec<BTreeMap<u64, u64>>,
}

impl Checkpoints {
    pub(super) fn new(nodes: usize) -> Self {
        Self { own: BTreeMap::new(), ahead: vec![BTreeMap::new(); nodes] }
    }

    /// Forget what a node has reached.
    pub(super) fn forget(&mut self, node: NodeIndex) {
        self.ahead[usize::from(node.0)].clear();
    }

    /// Another node has this hash at a position, and this node has planned all accesses before `planned`. Returns whether the
    /// plans differ, as far as it is known.
    pub(super) fn differs(&mut self, node: NodeIndex, position: u64, hash: u64, planned: u64) -> bool {
        if position <= planned {
            return self.is_different(position, hash);
        }
        let ahead = &mut self.ahead[usize::from(node.0)];
        if ahead.len() < REMEMBERED {
            ahead.insert(position, hash);
        }
        false
    }

    /// This node has reached a position. Returns the nodes that have other plans, and where they differ.
    pub(super) fn reach(&mut self, position: u64, hash: u64) -> Vec<(NodeIndex, u64)> {
        self.own.insert(position, hash);
        if self.own.len() > REMEMBERED {
            self.own.pop_first();
        }
        let mut different = Vec::new();
        for node in 0..self.ahead.len() {
            let later = self.ahead[node].split_off(&(position + 1));
            let reached = std::mem::replace(&mut self.ahead[node], later);
            let first = reached.into_iter().find(|&(position, hash)| self.is_different(position, hash));
            different.extend(first.map(|(position, _)| (node_index(node), position)));
        }
        different
    }

    /// A position that was forgotten is not compared. One that this node has no checkpoint at is of another plan.
    fn is_different(&self, position: u64, hash: u64) -> bool {
        let is_forgotten = self.own.first_key_value().is_none_or(|(&first, _)| position < first);
        !is_forgotten && self.own.get(&position) != Some(&hash)
    }
}
