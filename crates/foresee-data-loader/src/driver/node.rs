// SPDX-License-Identifier: Apache-2.0
//! A loader that is attached to the cache of its node: whole batches are requested from its host.
//!
//! While it is attached, nothing is planned here: the host plans for all its consumers. The loader announces its epochs
//! and reports its progress. A batch that is in the host's memory is copied from there at once, others are requested. What
//! the host cannot read, and what it has not answered when it ends, the loader reads at the origin itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use foresee_data_node::message::UNKNOWN_GENERATION;
use foresee_data_plan::{HierarchyPlanner, TierSet};
use foresee_units::{Bytes, Nanos, SampleId};

use super::Driver;
use super::progress::{Progress, ProgressReport};
use super::schedule::EpochSink;
use crate::batch_queue::ConsumerSnapshot;
use crate::node::{
    AttachRetry, Attached, CopyCount, CopyCounts, NodeAnnouncement, NodeBatch, NodeClient, NodeEvent,
};
use crate::reads::{BatchPosition, ReadSource, ReadTarget};

/// Batches that are requested per turn, so that other events are handled in between.
const BATCHES_PER_TURN: usize = 16;
/// Bytes copied from the host's memory per turn, for the same reason.
const COPY_PER_TURN: u64 = 1 << 20;

/// The attachment of a loader.
#[derive(Debug)]
pub(super) struct NodeLink {
    pub(super) client: NodeClient,
    retry: AttachRetry,
    pub(super) events: Vec<NodeEvent>,
    /// Whether the host asked for an epoch.
    is_epoch_wanted: bool,
    /// Whether the next announcement voids the earlier ones.
    is_restart: bool,
    /// See [`NodeAnnouncement::generation`].
    generation: u32,
    /// Whether a batch was not requested because the host had ended. Its last event follows.
    was_refused: bool,
    /// Requests in flight by their numbers: a large batch needs several.
    requests: BTreeMap<u64, NodeRequest>,
    next: u64,
    progress: Progress,
}

/// A request in flight: samples of a batch from a position on.
#[derive(Clone, Copy, Debug)]
struct NodeRequest {
    slot: u64,
    first: usize,
    missing: usize,
    begun: Nanos,
}

impl NodeLink {
    pub(super) fn new(Attached { client, retry, .. }: Attached, generation: u32) -> Self {
        Self {
            client,
            retry,
            events: Vec::new(),
            is_epoch_wanted: false,
            is_restart: false,
            generation,
            was_refused: false,
            requests: BTreeMap::new(),
            next: 0,
            progress: Progress::default(),
        }
    }

    /// Detach, and return how to attach again.
    pub(super) fn into_retry(self) -> AttachRetry {
        self.retry
    }

    /// The consumer continues elsewhere: nothing more is written for the staged batches.
    pub(super) fn restart(&mut self, generation: u64) {
        for (number, _) in std::mem::take(&mut self.requests) {
            self.client.withdraw(number);
        }
        self.is_restart = true;
        self.generation = u32::try_from(generation).unwrap_or(UNKNOWN_GENERATION);
        self.progress.restart();
    }

    /// Report the consumer's progress when that is due. Its next batch is that of slot `next`.
    fn report_progress(&mut self, next: u64, consumer: ConsumerSnapshot, now: Nanos) {
        let is_waiting = consumer.is_waiting && self.requests.values().any(|request| request.slot == next);
        let report = self.progress.poll_report(next, is_waiting, !self.requests.is_empty(), now);
        if let Some(ProgressReport { consumed, is_waiting }) = report {
            let interval = self.progress.interval(consumer.step.unwrap_or(Nanos::ZERO));
            self.client.progress(consumed, interval, is_waiting);
        }
    }

    /// When a report that was held back is due.
    pub(super) fn poll_wakeup(&self) -> Option<Nanos> {
        self.progress.poll_wakeup()
    }

    /// The request of an event, and whether it is complete with `samples` more.
    fn note(&mut self, number: u64, samples: usize) -> Option<NodeRequest> {
        let request = self.requests.get_mut(&number)?;
        request.missing -= samples;
        let noted = *request;
        if noted.missing == 0 {
            self.requests.remove(&number);
        }
        Some(noted)
    }

    fn announce(&mut self, samples: Vec<SampleId>, is_end: bool) {
        let (is_epoch_end, is_restart) = (!is_end, std::mem::take(&mut self.is_restart));
        let generation = self.generation;
        self.is_epoch_wanted = false;
        self.client.announce(NodeAnnouncement { samples, generation, is_restart, is_epoch_end, is_end });
    }
}

impl EpochSink for NodeLink {
    fn handle_epoch(&mut self, entries: &mut dyn Iterator<Item = SampleId>) {
        self.announce(entries.collect(), false);
    }

    fn wants_epoch(&self) -> bool {
        self.is_epoch_wanted
    }

    fn handle_end(&mut self) {
        self.announce(Vec::new(), true);
    }
}

impl EpochSink for HierarchyPlanner {
    fn handle_epoch(&mut self, entries: &mut dyn Iterator<Item = SampleId>) {
        Self::handle_epoch(self, entries);
    }

    fn wants_epoch(&self) -> bool {
        Self::wants_epoch(self)
    }

    fn handle_end(&mut self) {
        Self::handle_end(self);
    }
}

impl Driver {
    /// Copy or request batches while the staging buffer has capacity; return whether there is more to do.
    pub(super) fn request_turn(&mut self, consumer: ConsumerSnapshot) -> bool {
        let mut copied = 0;
        for _ in 0..BATCHES_PER_TURN {
            if copied >= COPY_PER_TURN {
                break;
            }
            if !self.open_batch() {
                return false;
            }
            copied += self.obtain_batch(consumer);
        }
        true
    }

    /// Copy the batch that was opened last from the host's memory, or request it. Returns the copied bytes.
    fn obtain_batch(&mut self, consumer: ConsumerSnapshot) -> u64 {
        let slot = self.delivery.staging.newest();
        let begun = self.now();
        let Some(stage) = self.delivery.staging.planning() else { return 0 };
        let count = stage.entries.len();
        stage.planned = count;
        stage.pending = count;
        let spans: Vec<_> = (0..count).map(|index| stage.span(index)).collect();
        let (samples, buffer) = (stage.entries.clone(), Arc::clone(&stage.batch.buffer));
        if !self.delivery.ensure_mapped(&buffer) {
            return 0;
        }
        let Some(node) = &mut self.node else { return 0 };
        node.progress.open(slot, count);
        // SAFETY: each span belongs to its sample alone, and no read of it has begun.
        if unsafe { node.client.copy_hits(&samples, &buffer, &spans) } {
            let bytes = spans.iter().map(|&(_, len)| len as u64).sum();
            let memory = CopyCount { samples: count as u64, bytes };
            self.note_copied(slot, begun, count, CopyCounts { memory, ..CopyCounts::default() });
            return bytes;
        }
        self.request_batch(slot, begun, &spans, consumer);
        0
    }

    /// Request the batch of `slot` from the host.
    fn request_batch(
        &mut self,
        slot: u64,
        begun: Nanos,
        spans: &[(usize, usize)],
        consumer: ConsumerSnapshot,
    ) {
        let deadline = self.deadline(slot, consumer);
        let (Some(stage), Some(node)) = (self.delivery.staging.get(slot), &mut self.node) else { return };
        let buffer = &stage.batch.buffer;
        let most = node.client.samples_max();
        let mut refused = None;
        for (nth, (samples, spans)) in stage.entries.chunks(most).zip(spans.chunks(most)).enumerate() {
            let (number, first) = (node.next, nth * most);
            node.next += 1;
            node.requests.insert(number, NodeRequest { slot, first, missing: samples.len(), begun });
            let buffer = Arc::clone(buffer);
            let batch = NodeBatch { number, deadline, samples: samples.into(), spans: spans.into(), buffer };
            if !node.client.request(batch) {
                node.requests.remove(&number);
                refused.get_or_insert(first);
            }
        }
        node.was_refused |= refused.is_some();
        if let Some(first) = refused {
            self.read_alone(slot, first..spans.len());
        }
    }

    /// When a batch is needed, on the clock of the node's processes.
    fn deadline(&self, slot: u64, consumer: ConsumerSnapshot) -> Nanos {
        let now = crate::node::now();
        if consumer.is_waiting && self.delivery.staging.next() == slot {
            return now;
        }
        let left = self.rates.wanted(slot).map(|at| at.saturating_sub(self.now()));
        left.map_or(Nanos::MAX, |left| now.saturating_add(left))
    }

    /// Handle what the host has sent, and report the consumer's progress to it.
    pub(super) fn handle_node(&mut self, consumer: ConsumerSnapshot) {
        let now = self.now();
        let Some(node) = &mut self.node else { return };
        let mut events = std::mem::take(&mut node.events);
        node.client.drain(&mut events);
        node.report_progress(self.delivery.staging.next(), consumer, now);
        for event in events.drain(..) {
            let Some(node) = &mut self.node else { return };
            match event {
                NodeEvent::Copied { batch, positions, by_source } => {
                    if let Some(NodeRequest { slot, begun, .. }) = node.note(batch, positions.len()) {
                        self.note_copied(slot, begun, positions.len(), by_source);
                    }
                }
                NodeEvent::Failed { batch, position } => {
                    if let Some(NodeRequest { slot, first, .. }) = node.note(batch, 1) {
                        self.read_alone(slot, [first + position as usize]);
                    }
                }
                NodeEvent::EpochWanted => node.is_epoch_wanted = true,
                NodeEvent::Ended { why, missing } => {
                    let requests = std::mem::take(&mut node.requests);
                    let is_needed = node.was_refused || !missing.is_empty() || !self.schedule.is_over();
                    self.leave_node(&why, is_needed);
                    for (batch, positions) in missing {
                        if let Some(&NodeRequest { slot, first, .. }) = requests.get(&batch) {
                            self.read_alone(slot, positions.into_iter().map(|one| first + one as usize));
                        }
                    }
                }
            }
        }
        if let Some(node) = &mut self.node {
            node.events = events;
        }
    }

    /// Samples of a batch are in its memory, which was requested at `begun`.
    fn note_copied(&mut self, slot: u64, begun: Nanos, samples: usize, by_source: CopyCounts) {
        if let Some(stage) = self.delivery.staging.get(slot) {
            stage.pending -= samples;
        }
        let now = self.now();
        let Some(copies) = &mut self.copies else { return };
        for (source, count, time) in copies.record((begun, now), by_source) {
            let samples = u32::try_from(count.samples).unwrap_or(u32::MAX);
            self.record_batch(slot, source, time, samples, Bytes::new(count.bytes));
        }
    }

    /// Read positions of a batch, which the host will not answer, at the origin.
    pub(super) fn read_alone(&mut self, slot: u64, positions: impl IntoIterator<Item = usize>) {
        for index in positions {
            let Some(stage) = self.delivery.staging.get(slot) else { return };
            let (offset, len) = stage.span(index);
            let sample = stage.entries[index];
            let position = BatchPosition { slot, index };
            if len > 0 && self.wait_for_read(sample, position, TierSet::default()) {
                continue;
            }
            self.delivery.stage(position).pending -= 1;
            if len > 0 {
                let target = ReadTarget { sample, position, offset, len, fills: TierSet::default() };
                self.begin_read(target, ReadSource::Origin, None);
            }
        }
    }
}
