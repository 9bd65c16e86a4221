// SPDX-License-Identifier: Apache-2.0
//! The epochs that the driver knows, and which batch of them is staged next.
//!
//! The planner learns of an epoch before any batch of it is opened, so plan and batches follow one order.

use std::collections::VecDeque;
use std::sync::Arc;

use foresee_data_index::Index;
use foresee_data_plan::PlannerStack;
use foresee_units::{Epoch, SampleId, Step};

use crate::errors::LoaderError;
use crate::orders::{Drawn, OrderAhead, RankEpoch, RunOrder};
use crate::waker::Waker;

/// Epochs from the run's order or from the caller, and the next step of the first of them.
#[derive(Debug)]
pub(super) struct EpochSchedule {
    /// `None` where each epoch begins with its samples.
    run: Option<RunOrder>,
    drawn: Option<OrderAhead>,
    /// Epochs that the planner knows and that are not fully opened as batches.
    epochs: VecDeque<RankEpoch>,
    /// Next step of the first of them.
    step: u64,
    /// No epoch follows them.
    run_ends: bool,
}

/// The next entry of the staging line.
#[derive(Debug)]
pub(super) enum Upcoming {
    Batch(UpcomingBatch),
    EpochEnd(Epoch),
}

/// A batch that is not opened yet.
#[derive(Debug)]
pub(super) struct UpcomingBatch {
    pub(super) epoch: Epoch,
    pub(super) step: Step,
    pub(super) start: u64,
    pub(super) last: bool,
    pub(super) samples: Vec<SampleId>,
    /// Entries of the samples.
    pub(super) ids: Vec<SampleId>,
    /// Place of each entry's bytes in the batch, and the end.
    pub(super) offsets: Vec<u64>,
}

impl EpochSchedule {
    pub(super) const fn new(run: Option<RunOrder>) -> Self {
        Self { run, drawn: None, epochs: VecDeque::new(), step: 0, run_ends: false }
    }

    /// Whether the run has an order.
    pub(super) const fn has_order(&self) -> bool {
        self.run.is_some()
    }

    /// Forgets all epochs, and starts to draw the run's order, if there is one, from `position` of `epoch` on.
    pub(super) fn restart(
        &mut self,
        epoch: Epoch,
        position: u64,
        waker: &Arc<Waker>,
    ) -> Result<(), LoaderError> {
        *self = Self::new(self.run.take());
        if let Some(run) = &self.run {
            self.drawn = Some(OrderAhead::start(run.clone(), epoch, position, Arc::clone(waker))?);
        }
        Ok(())
    }

    /// Appends `epoch`, and tells the planner of it.
    pub(super) fn add(&mut self, epoch: RankEpoch, planner: &mut PlannerStack) {
        planner.handle_epoch(&mut epoch.used());
        self.epochs.push_back(epoch);
    }

    /// Adds as many epochs of the run's order as the planner wants to know.
    ///
    /// `false` while they are still being drawn. A plan made before would depend on how fast they are drawn, and no two
    /// ranks or runs would plan alike.
    pub(super) fn add_drawn(&mut self, planner: &mut PlannerStack) -> Result<bool, LoaderError> {
        while !self.run_ends && !self.knows_enough(planner) {
            let Some(drawn) = &self.drawn else { return Ok(true) };
            match drawn.poll() {
                Drawn::Epoch(epoch) => self.add(epoch, planner),
                Drawn::NotYet => return Ok(false),
                Drawn::Failed(error) => return Err(error.into()),
                Drawn::End => {
                    planner.handle_end();
                    self.run_ends = true;
                }
            }
        }
        Ok(true)
    }

    fn knows_enough(&self, planner: &PlannerStack) -> bool {
        // A rank may have no samples at all (fewer samples than ranks): no number of such epochs is ever enough.
        let is_empty = self.epochs.back().is_some_and(|epoch| epoch.steps() == 0);
        is_empty || (!self.epochs.is_empty() && !planner.wants_epoch())
    }

    /// The next batch or end of an epoch; `None` where no epoch is known.
    pub(super) fn upcoming(&self, index: &Index) -> Option<Upcoming> {
        let epoch = self.epochs.front()?;
        if self.step == epoch.steps() {
            return Some(Upcoming::EpochEnd(epoch.epoch));
        }
        let places = epoch.step(self.step);
        let start = places.start;
        let samples: Vec<SampleId> = epoch.range(places).collect();
        let ids: Vec<SampleId> = samples.iter().flat_map(|&sample| epoch.entries_of(sample)).collect();
        let mut offsets = Vec::with_capacity(ids.len() + 1);
        let mut end = 0_u64;
        offsets.push(end);
        for &id in &ids {
            end += index.size(id).get();
            offsets.push(end);
        }
        Some(Upcoming::Batch(UpcomingBatch {
            epoch: epoch.epoch,
            step: Step(self.step),
            start,
            last: self.step + 1 == epoch.steps(),
            samples,
            ids,
            offsets,
        }))
    }

    /// Goes past the upcoming entry: it is in the staging line.
    pub(super) fn advance(&mut self) {
        if self.epochs.front().is_some_and(|epoch| self.step == epoch.steps()) {
            self.epochs.pop_front();
            self.step = 0;
        } else {
            self.step += 1;
        }
    }

    /// Whether the run has no further batch to stage.
    pub(super) fn is_over(&self) -> bool {
        self.run_ends && self.epochs.is_empty()
    }
}
