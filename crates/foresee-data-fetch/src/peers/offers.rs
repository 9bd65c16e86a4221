// SPDX-License-Identifier: Apache-2.0
//! Samples that one node has read and another one should hold: those that this node offers, and those that it was offered.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use foresee_units::{Bytes, Nanos, NodeIndex, SampleId};

/// Time between two attempts to find memory for an offered sample.
const RETRY: Nanos = Nanos::from_millis(50);
/// Attempts before an offer is declined: memory becomes free with each batch.
const ATTEMPTS: u32 = 40;

/// Samples that this node offers and keeps until they are fetched or declined.
#[derive(Debug)]
pub(super) struct Offered {
    /// By sample: the nodes that it was offered to, and its size.
    samples: BTreeMap<SampleId, (BTreeSet<NodeIndex>, Bytes)>,
    bytes: Bytes,
    most: Bytes,
}

impl Offered {
    /// Create it for at most so many bytes at a time.
    pub(super) fn new(most: Bytes) -> Self {
        Self { samples: BTreeMap::new(), bytes: Bytes::ZERO, most }
    }

    /// Whether a sample is kept for another node.
    pub(super) fn contains(&self, sample: SampleId) -> bool {
        self.samples.contains_key(&sample)
    }

    /// Offer a sample; `false` if too much is offered already.
    pub(super) fn add(&mut self, sample: SampleId, size: Bytes, node: NodeIndex) -> bool {
        if !self.contains(sample) {
            if self.bytes + size > self.most && !self.samples.is_empty() {
                return false;
            }
            self.bytes += size;
        }
        self.samples.entry(sample).or_insert((BTreeSet::new(), size)).0.insert(node);
        true
    }

    /// A node has got or declined a sample. Returns whether it is no longer kept for anyone, and was before.
    pub(super) fn remove(&mut self, sample: SampleId, node: NodeIndex) -> bool {
        let Some((nodes, size)) = self.samples.get_mut(&sample) else { return false };
        nodes.remove(&node);
        if !nodes.is_empty() {
            return false;
        }
        self.bytes -= *size;
        self.samples.remove(&sample);
        true
    }

    /// The samples that are offered to a node.
    pub(super) fn samples_for(&self, node: NodeIndex) -> Vec<SampleId> {
        self.samples
            .iter()
            .filter(|(_, (nodes, _))| nodes.contains(&node))
            .map(|(&sample, _)| sample)
            .collect()
    }

    /// A node is gone. Returns the samples that are no longer kept for anyone.
    pub(super) fn remove_node(&mut self, node: NodeIndex) -> Vec<SampleId> {
        let all: Vec<_> = self.samples.keys().copied().collect();
        all.into_iter().filter(|&sample| self.remove(sample, node)).collect()
    }
}

/// Samples that this node was offered, and has not asked for because it had no memory.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// In order of the next attempt.
    offers: VecDeque<PendingOffer>,
}

/// An offer of another node.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingOffer {
    pub(super) node: NodeIndex,
    pub(super) sample: SampleId,
    next: Nanos,
    attempts: u32,
}

impl Pending {
    /// A node offers a sample.
    pub(super) fn add(&mut self, node: NodeIndex, sample: SampleId, now: Nanos) {
        self.offers.push_front(PendingOffer { node, sample, next: now, attempts: 0 });
    }

    /// An attempt has found no memory. Returns `false` if it was the last one.
    pub(super) fn try_again(&mut self, offer: PendingOffer, now: Nanos) -> bool {
        let attempts = offer.attempts + 1;
        if attempts < ATTEMPTS {
            self.offers.push_back(PendingOffer { next: now.saturating_add(RETRY), attempts, ..offer });
        }
        attempts < ATTEMPTS
    }

    /// The next offer to attempt now.
    pub(super) fn take(&mut self, now: Nanos) -> Option<PendingOffer> {
        let is_due = self.offers.front().is_some_and(|offer| offer.next <= now);
        if is_due { self.offers.pop_front() } else { None }
    }

    /// When to attempt the next one.
    pub(super) fn timeout(&self) -> Option<Nanos> {
        self.offers.front().map(|offer| offer.next)
    }

    /// A node is gone, and its offers with it.
    pub(super) fn remove_node(&mut self, node: NodeIndex) {
        self.offers.retain(|offer| offer.node != node);
    }
}
