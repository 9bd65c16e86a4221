// SPDX-License-Identifier: Apache-2.0
//! Answers to other nodes: which of the requested samples is sent next.
//!
//! A reader gets its samples by deadline. Readers take turns, by bytes, so that one with many requests delays no other. What
//! is on its way to a reader is bounded: a request that becomes urgent waits for no more than that.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use foresee_units::{Bytes, Nanos, NodeIndex, SampleId};

use super::action::PeerAction;
use super::message::{PeerMessage, PeerRequest};

/// Settings of answers to other nodes.
#[derive(Clone, Copy, Debug)]
pub struct PeerSendsConfig {
    /// Bytes on their way to one reader, at most; one sample may exceed it.
    pub in_flight_max: Bytes,
    /// Requests of one reader that are not answered, at most.
    pub requests_max: usize,
}

/// Whether a node can send a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It has so many bytes.
    Here(Bytes),
    /// It is reading or receiving the sample.
    Soon,
    /// It does not have the sample.
    Missing,
}

/// What has to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendAction {
    /// Send a sample of so many bytes.
    Send(NodeIndex, SampleId, Bytes),
    /// Tell a reader that the sample is not here yet.
    Later(NodeIndex, SampleId),
    /// Tell a reader that the sample is not here.
    Missing(NodeIndex, SampleId),
}

impl From<SendAction> for PeerAction {
    fn from(action: SendAction) -> Self {
        let (node, message) = match action {
            SendAction::Send(node, sample, size) => return Self::SendSample { node, sample, size },
            SendAction::Later(node, sample) => (node, PeerMessage::Later(sample)),
            SendAction::Missing(node, sample) => (node, PeerMessage::Missing(sample)),
        };
        Self::Send { node, message }
    }
}

/// A reader requests more than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooManyRequests {
    pub(super) requests: usize,
}

/// Answers to other nodes.
#[derive(Debug)]
pub(super) struct PeerSends {
    config: PeerSendsConfig,
    readers: BTreeMap<NodeIndex, Reader>,
    /// Readers that wait for a sample that is not here yet.
    awaited: BTreeMap<SampleId, BTreeSet<NodeIndex>>,
    actions: VecDeque<SendAction>,
}

/// A connected reader.
#[derive(Debug, Default)]
struct Reader {
    /// By sample: its deadline, and its size if it can be sent.
    requests: BTreeMap<SampleId, (Nanos, Option<Bytes>)>,
    /// Samples that can be sent, by deadline.
    ready: BTreeSet<(Nanos, SampleId)>,
    in_flight: Bytes,
    /// Bytes sent so far, in the measure of turns.
    turn: u64,
}

impl PeerSends {
    pub(super) fn new(config: PeerSendsConfig) -> Self {
        Self { config, readers: BTreeMap::new(), awaited: BTreeMap::new(), actions: VecDeque::new() }
    }

    /// There is a connection to a reader now.
    pub(super) fn handle_connected(&mut self, node: NodeIndex) {
        self.handle_disconnected(node);
        self.readers.insert(node, Reader::default());
    }

    /// The connection to a reader has ended, and its requests with it.
    pub(super) fn handle_disconnected(&mut self, node: NodeIndex) {
        let Some(reader) = self.readers.remove(&node) else { return };
        for sample in reader.requests.into_keys() {
            self.stop_waiting(node, sample);
        }
        self.actions.retain(|action| {
            let (SendAction::Send(to, ..) | SendAction::Later(to, _) | SendAction::Missing(to, _)) = *action;
            to != node
        });
    }

    /// A reader requests a sample, or needs it at another time than it said.
    ///
    /// # Errors
    /// [`TooManyRequests`] without any effect. Requests of a node that is not connected have no effect.
    pub(super) fn handle_request(
        &mut self,
        node: NodeIndex,
        request: PeerRequest,
        presence: Presence,
    ) -> Result<(), TooManyRequests> {
        let PeerRequest { sample, deadline, .. } = request;
        let Some(reader) = self.readers.get_mut(&node) else { return Ok(()) };
        let is_new = !reader.requests.contains_key(&sample);
        if is_new && reader.requests.len() >= self.config.requests_max {
            return Err(TooManyRequests { requests: reader.requests.len() + 1 });
        }
        self.handle_withdrawn(node, sample);
        match presence {
            Presence::Here(size) => self.add_ready(node, sample, deadline, size),
            Presence::Soon => {
                self.awaited.entry(sample).or_default().insert(node);
                if let Some(reader) = self.readers.get_mut(&node) {
                    reader.requests.insert(sample, (deadline, None));
                }
                self.actions.push_back(SendAction::Later(node, sample));
            }
            Presence::Missing => self.actions.push_back(SendAction::Missing(node, sample)),
        }
        Ok(())
    }

    /// A reader withdraws a request. What is on its way stays on its way.
    pub(super) fn handle_withdrawn(&mut self, node: NodeIndex, sample: SampleId) {
        let Some(reader) = self.readers.get_mut(&node) else { return };
        if let Some((deadline, _)) = reader.requests.remove(&sample) {
            reader.ready.remove(&(deadline, sample));
            self.stop_waiting(node, sample);
        }
    }

    /// Whether a reader waits for a sample.
    pub(super) fn is_awaited(&self, sample: SampleId) -> bool {
        self.awaited.contains_key(&sample)
    }

    /// A sample that was [`Presence::Soon`] is here, or will not be (`None`).
    pub(super) fn handle_presence(&mut self, sample: SampleId, size: Option<Bytes>) {
        for node in self.awaited.remove(&sample).into_iter().flatten() {
            let Some(reader) = self.readers.get_mut(&node) else { continue };
            let Some((deadline, _)) = reader.requests.remove(&sample) else { continue };
            match size {
                Some(size) => self.add_ready(node, sample, deadline, size),
                None => self.actions.push_back(SendAction::Missing(node, sample)),
            }
        }
    }

    /// Bytes are no longer on their way to a reader.
    pub(super) fn handle_sent(&mut self, node: NodeIndex, bytes: Bytes) {
        if let Some(reader) = self.readers.get_mut(&node) {
            reader.in_flight = reader.in_flight.saturating_sub(bytes);
        }
    }

    /// A sample that was to be sent is not here any more.
    pub(super) fn handle_gone(&mut self, node: NodeIndex, sample: SampleId, size: Bytes) {
        self.handle_sent(node, size);
        self.actions.push_back(SendAction::Missing(node, sample));
    }

    /// The next action; `None` until a fact is reported.
    pub(super) fn poll_action(&mut self) -> Option<SendAction> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        let limit = self.config.in_flight_max;
        let may_send = |reader: &&mut Reader| {
            let next = reader.ready.first().and_then(|(_, sample)| reader.requests.get(sample));
            let size = next.and_then(|&(_, size)| size);
            size.is_some_and(|size| reader.in_flight.is_zero() || reader.in_flight + size <= limit)
        };
        let readers = self.readers.iter_mut().filter(|(_, reader)| may_send(reader));
        let (&node, reader) = readers.min_by_key(|(node, reader)| (reader.turn, **node))?;
        let (_, sample) = reader.ready.pop_first()?;
        let (_, size) = reader.requests.remove(&sample)?;
        let size = size?;
        reader.in_flight += size;
        reader.turn += size.get().max(1);
        Some(SendAction::Send(node, sample, size))
    }

    fn add_ready(&mut self, node: NodeIndex, sample: SampleId, deadline: Nanos, size: Bytes) {
        // A reader that had nothing to get is not owed the turns of that time.
        let active = self.readers.values().filter(|reader| !reader.ready.is_empty());
        let least = active.map(|reader| reader.turn).min().unwrap_or(0);
        let Some(reader) = self.readers.get_mut(&node) else { return };
        if reader.ready.is_empty() {
            reader.turn = reader.turn.max(least);
        }
        reader.requests.insert(sample, (deadline, Some(size)));
        reader.ready.insert((deadline, sample));
    }

    fn stop_waiting(&mut self, node: NodeIndex, sample: SampleId) {
        if let Some(nodes) = self.awaited.get_mut(&sample) {
            nodes.remove(&node);
            if nodes.is_empty() {
                self.awaited.remove(&sample);
            }
        }
    }
}

#[cfg(test)]
mod tests;
