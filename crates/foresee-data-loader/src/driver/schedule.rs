// SPDX-License-Identifier: Apache-2.0
//! The epochs that the driver knows, and the next slot of the staging buffer.
//!
//! Who plans, this loader's planner or the host of the node's cache, receives an epoch before any batch of it is opened,
//! so plan and batches have one order.

use std::collections::VecDeque;
use std::sync::Arc;

use foresee_data_index::Index;
use foresee_units::{Epoch, SampleId, Step};

use crate::batch::Batch;
use crate::buffer::BufferPool;
use crate::errors::LoaderError;
use crate::orders::{DrawnEpoch, OrderThread, RankEpoch, RunOrder};
use crate::staging::{Slot, Stage};
use crate::waker::Waker;

/// Who plans the accesses of the epochs.
pub(super) trait EpochSink {
    /// Announce the entries of the next epoch, in order.
    fn handle_epoch(&mut self, entries: &mut dyn Iterator<Item = SampleId>);

    /// Whether a further epoch is useful.
    fn wants_epoch(&self) -> bool;

    /// No epoch follows.
    fn handle_end(&mut self);
}

/// Epochs from the run's order or from the caller, and the next step of the first of them.
#[derive(Debug)]
pub(super) struct EpochSchedule {
    /// `None` if each epoch begins with its samples.
    run: Option<RunOrder>,
    drawn: Option<OrderThread>,
    /// Epochs that the planner knows and that are not fully opened as batches.
    epochs: VecDeque<RankEpoch>,
    /// Next step of the first of them.
    step: u64,
    /// A slot that did not fit into the staging buffer.
    postponed: Option<Slot>,
    /// Whether no further epoch follows.
    has_ended: bool,
}

impl EpochSchedule {
    pub(super) const fn new(run: Option<RunOrder>) -> Self {
        Self { run, drawn: None, epochs: VecDeque::new(), step: 0, postponed: None, has_ended: false }
    }

    /// Whether the run has an order.
    pub(super) const fn has_order(&self) -> bool {
        self.run.is_some()
    }

    /// Drop all epochs, and start to draw the run's order, if there is one, from `position` of `epoch` on.
    pub(super) fn restart(
        &mut self,
        epoch: Epoch,
        position: u64,
        waker: &Arc<Waker>,
    ) -> Result<(), LoaderError> {
        *self = Self::new(self.run.take());
        if let Some(run) = &self.run {
            self.drawn = Some(OrderThread::start(run.clone(), epoch, position, Arc::clone(waker))?);
        }
        Ok(())
    }

    /// Announce the known epochs from the next step on: another one plans them from now on.
    pub(super) fn announce_again(&self, sink: &mut dyn EpochSink) {
        let postponed = match &self.postponed {
            Some(Slot::Batch(stage)) => stage.entries.as_slice(),
            _ => &[],
        };
        let mut rest = postponed
            .iter()
            .copied()
            .chain(self.epochs.front().into_iter().flat_map(|epoch| epoch.used_from(self.step)));
        sink.handle_epoch(&mut rest);
        for epoch in self.epochs.iter().skip(1) {
            sink.handle_epoch(&mut epoch.used());
        }
        if self.has_ended {
            sink.handle_end();
        }
    }

    /// Append `epoch`, and announce it.
    pub(super) fn add(&mut self, epoch: RankEpoch, sink: &mut dyn EpochSink) {
        sink.handle_epoch(&mut epoch.used());
        self.epochs.push_back(epoch);
    }

    /// Return the next batch or end of an epoch; `None` if no epoch is known.
    pub(super) fn next_slot(
        &mut self,
        sink: &mut dyn EpochSink,
        index: &Index,
        buffers: &Arc<BufferPool>,
    ) -> Result<Option<Slot>, LoaderError> {
        if let Some(slot) = self.postponed.take() {
            return Ok(Some(slot));
        }
        if !self.add_drawn(sink)? {
            return Ok(None);
        }
        let Some(epoch) = self.epochs.front() else { return Ok(None) };
        if self.step == epoch.steps() {
            let epoch = epoch.epoch;
            self.epochs.pop_front();
            self.step = 0;
            return Ok(Some(Slot::EpochEnd(epoch)));
        }
        let slot = Slot::Batch(stage(epoch, self.step, index, buffers));
        self.step += 1;
        Ok(Some(slot))
    }

    /// Take back a slot that did not fit.
    pub(super) fn postpone(&mut self, slot: Slot) {
        self.postponed = Some(slot);
    }

    /// Whether the run has no further slot.
    pub(super) fn is_over(&self) -> bool {
        self.has_ended && self.epochs.is_empty() && self.postponed.is_none()
    }

    /// Add as many epochs of the run's order as the planner wants.
    ///
    /// Returns `false` while they are being drawn. An earlier plan would depend on the speed of drawing, and two
    /// ranks or runs would have different plans.
    fn add_drawn(&mut self, sink: &mut dyn EpochSink) -> Result<bool, LoaderError> {
        while !self.has_ended && !self.knows_enough(sink) {
            let Some(drawn) = &self.drawn else { return Ok(true) };
            match drawn.poll() {
                DrawnEpoch::Epoch(epoch) => self.add(epoch, sink),
                DrawnEpoch::Pending => return Ok(false),
                DrawnEpoch::Failed(error) => return Err(error.into()),
                DrawnEpoch::End => {
                    sink.handle_end();
                    self.has_ended = true;
                }
            }
        }
        Ok(true)
    }

    fn knows_enough(&self, sink: &dyn EpochSink) -> bool {
        // A rank may have no samples (fewer samples than ranks): the planner would want empty epochs without end.
        let is_empty = self.epochs.back().is_some_and(|epoch| epoch.steps() == 0);
        is_empty || (!self.epochs.is_empty() && !sink.wants_epoch())
    }
}

fn stage(epoch: &RankEpoch, step: u64, index: &Index, buffers: &Arc<BufferPool>) -> Stage {
    let positions = epoch.step(step);
    let start = positions.start;
    let ids: Vec<SampleId> = epoch.range(positions).collect();
    let entries: Vec<SampleId> = ids.iter().flat_map(|&sample| epoch.entries_of(sample)).collect();
    let mut offsets = Vec::with_capacity(entries.len() + 1);
    let mut end = 0_u64;
    offsets.push(end);
    for &entry in &entries {
        end += index.size(entry).get();
        offsets.push(end);
    }
    let batch = Batch {
        epoch: epoch.epoch,
        step: Step(step),
        start,
        last: step + 1 == epoch.steps(),
        labels: ids.iter().map(|&id| index.sample_label(id).unwrap_or(-1)).collect(),
        ids,
        offsets,
        faults: Vec::new(),
        stages: Vec::new(),
        buffer: buffers.lend(usize::try_from(end).expect("a batch fits the address space")),
    };
    Stage { batch, entries, planned: 0, pending: 0 }
}
