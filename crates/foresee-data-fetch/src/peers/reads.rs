// SPDX-License-Identifier: Apache-2.0
//! Reads from other nodes: what is requested of each at a time, and when a read is given up.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use foresee_units::{Bytes, BytesPerSecond, Nanos, NodeIndex, SampleId};

use super::message::PeerRequest;
use super::rate::Rate;

/// Settings of reads from other nodes.
#[derive(Clone, Copy, Debug)]
pub struct PeerReadsConfig {
    /// Bytes that are requested of one node at a time, at most; one sample may exceed it.
    pub requested_max: Bytes,
    /// Samples that are requested of one node at a time, at most.
    pub requests_max: usize,
    /// Rate of a node before it was measured.
    pub initial_rate: BytesPerSecond,
    /// Time without a message of a node, or without a connection to it, after which its reads are given up.
    pub patience: Nanos,
}

/// A read from another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerRead {
    pub(super) sample: SampleId,
    /// The node that has the sample, or will have it.
    pub(super) node: NodeIndex,
    /// The access for which it is read.
    pub(super) position: u64,
    pub(super) size: Bytes,
    /// When it is needed; [`Nanos::MAX`] if that is not known.
    pub(super) deadline: Nanos,
    /// When it is given up.
    pub(super) give_up: Nanos,
}

/// What has to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReadAction {
    /// Request these samples in one message.
    Request(NodeIndex, Vec<PeerRequest>),
    /// Withdraw a request.
    Withdraw(NodeIndex, SampleId),
    /// A node has sent nothing for the time of patience. Its reads are given up, and no others begin until it sends something.
    Silent(NodeIndex),
    /// The read has ended without the sample.
    GiveUp(PeerRead, GiveUp),
}

/// Why a read was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GiveUp {
    /// The node does not have the sample.
    Missing,
    /// It has not arrived in time.
    Late,
    /// The node has sent nothing for the time of patience.
    Silent,
}

/// Reads from other nodes, one per sample at a time.
#[derive(Debug)]
pub(super) struct PeerReads {
    config: PeerReadsConfig,
    nodes: BTreeMap<NodeIndex, Node>,
    reads: BTreeMap<SampleId, PeerRead>,
    /// Reads by the time at which they are given up.
    ends: BTreeSet<(Nanos, SampleId)>,
    /// Nodes that may have something to request.
    ready: BTreeSet<NodeIndex>,
    actions: VecDeque<ReadAction>,
}

/// Another node of the job.
#[derive(Debug)]
struct Node {
    is_connected: bool,
    /// When it last sent something, or when the connection began or ended.
    last_message: Nanos,
    is_silent: bool,
    /// Reads that are not requested, by deadline.
    waiting: BTreeSet<(Nanos, SampleId)>,
    requested: BTreeSet<SampleId>,
    /// Requested samples that the node does not have yet.
    later: BTreeSet<SampleId>,
    requested_bytes: Bytes,
    waiting_bytes: Bytes,
    rate: Rate,
}

impl PeerReads {
    /// Create it for connections to these nodes, for which reads wait from now on, for the time of patience.
    pub(super) fn new(config: PeerReadsConfig, nodes: impl Iterator<Item = NodeIndex>, now: Nanos) -> Self {
        let node = || Node {
            is_connected: false,
            last_message: now,
            is_silent: false,
            waiting: BTreeSet::new(),
            requested: BTreeSet::new(),
            later: BTreeSet::new(),
            requested_bytes: Bytes::ZERO,
            waiting_bytes: Bytes::ZERO,
            rate: Rate::new(config.initial_rate),
        };
        Self {
            nodes: nodes.map(|number| (number, node())).collect(),
            config,
            reads: BTreeMap::new(),
            ends: BTreeSet::new(),
            ready: BTreeSet::new(),
            actions: VecDeque::new(),
        }
    }

    /// There is a connection to a node now. What was not answered before is requested again.
    pub(super) fn handle_connected(&mut self, node: NodeIndex, now: Nanos) {
        if let Some(found) = self.nodes.get_mut(&node) {
            (found.is_connected, found.last_message, found.is_silent) = (true, now, false);
            self.ready.insert(node);
        }
    }

    /// The connection to a node has ended. Its reads wait for a new one, for the time of patience.
    pub(super) fn handle_disconnected(&mut self, node: NodeIndex, now: Nanos) {
        let Some(found) = self.nodes.get_mut(&node).filter(|found| found.is_connected) else { return };
        (found.is_connected, found.last_message) = (false, now);
        for sample in std::mem::take(&mut found.requested) {
            if let Some(read) = self.reads.get(&sample) {
                found.waiting.insert((read.deadline, sample));
                found.waiting_bytes += read.size;
            }
        }
        found.later.clear();
        found.requested_bytes = Bytes::ZERO;
        found.rate.set_busy(false, now);
    }

    /// A node was given up for good: its reads end.
    pub(super) fn handle_abandoned(&mut self, node: NodeIndex, now: Nanos) {
        self.handle_disconnected(node, now);
        self.give_up_all(node, now);
    }

    /// A node has sent something: `bytes` of samples, or another message. Returns whether it was silent before.
    pub(super) fn handle_alive(&mut self, node: NodeIndex, bytes: Bytes, now: Nanos) -> bool {
        let Some(found) = self.nodes.get_mut(&node).filter(|found| found.is_connected) else { return false };
        if !bytes.is_zero() {
            found.rate.add(bytes, now);
        }
        found.last_message = now;
        std::mem::take(&mut found.is_silent)
    }

    /// Whether a node can be asked: it is connected, or was shortly before, or may be soon.
    pub(super) fn is_usable(&self, node: NodeIndex, now: Nanos) -> bool {
        self.nodes.get(&node).is_some_and(|found| !found.is_silent && !found.is_late(&self.config, now))
    }

    /// When a sample of `size` bytes would arrive if it were requested of a node now, by the node's measured rate.
    pub(super) fn estimate(&self, node: NodeIndex, size: Bytes, now: Nanos) -> Nanos {
        let Some(found) = self.nodes.get(&node) else { return Nanos::MAX };
        now.saturating_add(found.rate.time_of(found.requested_bytes + found.waiting_bytes + size))
    }

    /// The read of a sample that is going on.
    pub(super) fn of(&self, sample: SampleId) -> Option<PeerRead> {
        self.reads.get(&sample).copied()
    }

    /// Begin a read. One of this sample must not be going on, and the node must be [usable](Self::is_usable).
    pub(super) fn handle_read(&mut self, read: PeerRead, now: Nanos) {
        self.withdraw(read.sample, now);
        let Some(node) = self.nodes.get_mut(&read.node) else {
            self.actions.push_back(ReadAction::GiveUp(read, GiveUp::Silent));
            return;
        };
        node.waiting.insert((read.deadline, read.sample));
        node.waiting_bytes += read.size;
        self.ends.insert((read.give_up, read.sample));
        self.ready.insert(read.node);
        self.reads.insert(read.sample, read);
    }

    /// A read is needed at another time.
    pub(super) fn handle_deadline(&mut self, sample: SampleId, deadline: Nanos, give_up: Nanos) {
        let Some(read) = self.reads.get_mut(&sample) else { return };
        let before = std::mem::replace(read, PeerRead { deadline, give_up, ..*read });
        self.ends.remove(&(before.give_up, sample));
        self.ends.insert((give_up, sample));
        if let Some(node) = self.nodes.get_mut(&before.node)
            && before.deadline != deadline
        {
            if node.waiting.remove(&(before.deadline, sample)) {
                node.waiting.insert((deadline, sample));
            } else if node.is_connected {
                let again = vec![PeerRequest { sample, position: before.position, deadline }];
                self.actions.push_back(ReadAction::Request(before.node, again));
            }
        }
    }

    /// A sample is complete. Returns the read that has ended, if it is one of this node.
    pub(super) fn handle_received(
        &mut self,
        node: NodeIndex,
        sample: SampleId,
        now: Nanos,
    ) -> Option<PeerRead> {
        self.reads.get(&sample).filter(|read| read.node == node)?;
        self.forget(sample, now)
    }

    /// A node does not have a sample yet: it is not slow. By the order of all accesses it gets the sample before this node
    /// needs it, so the read is given up only if it is needed already, or when [`handle_deadline`](Self::handle_deadline) says
    /// so: a predicted time may be too early.
    pub(super) fn handle_later(&mut self, node: NodeIndex, sample: SampleId, now: Nanos) {
        let Some(found) = self.nodes.get_mut(&node).filter(|found| found.requested.contains(&sample)) else {
            return;
        };
        found.later.insert(sample);
        found.note_busy(now);
        if let Some(read) = self.reads.get_mut(&sample).filter(|read| read.deadline > now) {
            self.ends.remove(&(read.give_up, sample));
            read.give_up = Nanos::MAX;
            self.ends.insert((Nanos::MAX, sample));
        }
    }

    /// A node does not have a sample.
    pub(super) fn handle_missing(&mut self, node: NodeIndex, sample: SampleId, now: Nanos) {
        if let Some(read) = self.handle_received(node, sample, now) {
            self.actions.push_back(ReadAction::GiveUp(read, GiveUp::Missing));
        }
    }

    /// End a read that is no longer wanted. Returns it if there was one.
    pub(super) fn withdraw(&mut self, sample: SampleId, now: Nanos) -> Option<PeerRead> {
        let read = *self.reads.get(&sample)?;
        let is_requested = self.nodes.get(&read.node).is_some_and(|node| node.requested.contains(&sample));
        if is_requested {
            self.actions.push_back(ReadAction::Withdraw(read.node, sample));
        }
        self.forget(sample, now)
    }

    /// The next action at time `now`; `None` until a fact is reported or the time of [`timeout`](Self::timeout) has come.
    pub(super) fn poll_action(&mut self, now: Nanos) -> Option<ReadAction> {
        if self.actions.is_empty() {
            self.give_up_late(now);
            self.give_up_silent(now);
            self.request(now);
        }
        self.actions.pop_front()
    }

    /// When to poll again if nothing is reported until then.
    pub(super) fn timeout(&self) -> Option<Nanos> {
        let late = self.ends.first().map(|&(time, _)| time).filter(|&time| time < Nanos::MAX);
        let last_message = self.nodes.values().filter(|node| !node.is_silent);
        let silent = last_message.map(|node| node.last_message.saturating_add(self.config.patience)).min();
        late.into_iter().chain(silent).min()
    }

    /// Request what fits into the windows, node by node.
    fn request(&mut self, now: Nanos) {
        let Self { config, nodes, reads, ready, actions, .. } = self;
        for number in std::mem::take(ready) {
            let Some(node) = nodes.get_mut(&number).filter(|node| node.is_connected) else { continue };
            let mut requests = Vec::new();
            while let Some(&(deadline, sample)) = node.waiting.first()
                && let Some(read) = reads.get(&sample)
            {
                let fits = node.requested.len() < config.requests_max
                    && node.requested_bytes + read.size <= config.requested_max;
                if !fits && !node.requested.is_empty() {
                    break;
                }
                node.waiting.pop_first();
                node.waiting_bytes -= read.size;
                node.requested.insert(sample);
                node.requested_bytes += read.size;
                requests.push(PeerRequest { sample, position: read.position, deadline });
            }
            if !requests.is_empty() {
                node.note_busy(now);
                actions.push_back(ReadAction::Request(number, requests));
            }
        }
    }

    fn give_up_late(&mut self, now: Nanos) {
        while let Some(&(time, sample)) = self.ends.first()
            && time <= now
            && time < Nanos::MAX
        {
            if let Some(read) = self.withdraw(sample, now) {
                self.actions.push_back(ReadAction::GiveUp(read, GiveUp::Late));
            }
        }
    }

    /// Give up all reads of nodes that have sent nothing for too long.
    fn give_up_silent(&mut self, now: Nanos) {
        let config = &self.config;
        let is_new = |node: &Node| !node.is_silent && node.is_late(config, now);
        let silent: Vec<_> =
            self.nodes.iter().filter(|(_, node)| is_new(node)).map(|(&number, _)| number).collect();
        for number in silent {
            self.give_up_all(number, now);
        }
    }

    fn give_up_all(&mut self, number: NodeIndex, now: Nanos) {
        let Some(node) = self.nodes.get_mut(&number) else { return };
        if !std::mem::replace(&mut node.is_silent, true) {
            self.actions.push_back(ReadAction::Silent(number));
        }
        let waiting = node.waiting.iter().map(|&(_, sample)| sample);
        let all: Vec<_> = node.requested.iter().copied().chain(waiting).collect();
        for sample in all {
            if let Some(read) = self.withdraw(sample, now) {
                self.actions.push_back(ReadAction::GiveUp(read, GiveUp::Silent));
            }
        }
    }

    fn forget(&mut self, sample: SampleId, now: Nanos) -> Option<PeerRead> {
        let read = self.reads.remove(&sample)?;
        self.ends.remove(&(read.give_up, sample));
        if let Some(node) = self.nodes.get_mut(&read.node) {
            if node.requested.remove(&sample) {
                node.requested_bytes -= read.size;
                node.later.remove(&sample);
                node.note_busy(now);
            } else if node.waiting.remove(&(read.deadline, sample)) {
                node.waiting_bytes -= read.size;
            }
            self.ready.insert(read.node);
        }
        Some(read)
    }
}

impl Node {
    /// Measure its rate only while it has something to send.
    fn note_busy(&mut self, now: Nanos) {
        self.rate.set_busy(self.requested.len() > self.later.len(), now);
    }

    fn is_late(&self, config: &PeerReadsConfig, now: Nanos) -> bool {
        self.last_message.saturating_add(config.patience) <= now
    }
}

#[cfg(test)]
mod tests;
