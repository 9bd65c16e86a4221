// SPDX-License-Identifier: Apache-2.0
//! Batches that have not ended, and which of their positions the host may answer. Pure: it decides whether an answer is
//! valid, and copies nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use foresee_data_node::NodeError;
use foresee_units::SampleId;

use super::copy::BatchMemory;
use super::shared::QueuedBatch;

/// The batches of one attachment.
#[derive(Debug, Default)]
pub(super) struct Batches {
    active: BTreeMap<u64, ActiveBatch>,
    /// The greatest number.
    last: Option<u64>,
}

/// A batch that has not ended.
#[derive(Debug)]
pub(super) struct ActiveBatch {
    number: u64,
    samples: Box<[SampleId]>,
    spans: Box<[(usize, usize)]>,
    states: Box<[PositionState]>,
    /// Positions that are not done.
    missing: usize,
    pub(super) memory: Arc<BatchMemory>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PositionState {
    /// The request of the batch, or the repeated one of the position, is not in the ring yet.
    Unsent,
    /// The host answers it once.
    Requested,
    /// Copied or failed.
    Done,
}

impl Batches {
    /// Add a batch whose request is not sent yet.
    pub(super) fn insert(&mut self, batch: QueuedBatch) {
        let QueuedBatch { number, samples, spans, memory, .. } = batch;
        let states = vec![PositionState::Unsent; spans.len()].into_boxed_slice();
        let missing = spans.len();
        self.last = Some(number);
        self.active.insert(number, ActiveBatch { number, samples, spans, states, missing, memory });
    }

    /// The batch of an answer; `None` if it has ended: the host may answer before it reads the end.
    ///
    /// # Errors
    /// It was never requested.
    pub(super) fn answered(&mut self, number: u64) -> Result<Option<&mut ActiveBatch>, NodeError> {
        if self.last.is_none_or(|last| number > last) {
            return Err(invalid(format!("it answers batch {number}, which was not requested")));
        }
        Ok(self.active.get_mut(&number))
    }

    /// Record that the request of a batch is sent.
    pub(super) fn on_requested(&mut self, number: u64) {
        if let Some(batch) = self.active.get_mut(&number) {
            batch.states.fill(PositionState::Requested);
        }
    }

    /// Record that the repeated request of positions is sent.
    pub(super) fn on_repeated(&mut self, number: u64, positions: &[u32]) {
        if let Some(batch) = self.active.get_mut(&number) {
            for position in positions {
                batch.states[*position as usize] = PositionState::Requested;
            }
        }
    }

    /// Remove a batch. Returns whether it was active.
    pub(super) fn end(&mut self, number: u64) -> bool {
        self.active.remove(&number).is_some()
    }

    /// Positions that are not done, by batch, without batches that are withdrawn.
    pub(super) fn missing(&self) -> Vec<(u64, Vec<u32>)> {
        let is_wanted = |batch: &&ActiveBatch| !batch.memory.is_withdrawn();
        self.active
            .values()
            .filter(is_wanted)
            .map(|batch| (batch.number, batch.missing_positions()))
            .collect()
    }
}

impl ActiveBatch {
    /// The sample and the span of a position that the host may answer.
    ///
    /// # Errors
    /// The position is outside of the batch, or not to be answered now.
    pub(super) fn place(&self, position: u32) -> Result<(SampleId, (usize, usize)), NodeError> {
        self.check(position)?;
        let index = position as usize;
        Ok((self.samples[index], self.spans[index]))
    }

    /// Check that the host may answer a position.
    ///
    /// # Errors
    /// As [`place`](Self::place).
    pub(super) fn check(&self, position: u32) -> Result<(), NodeError> {
        let Self { number, states, .. } = self;
        let fault = match states.get(position as usize) {
            Some(PositionState::Requested) => return Ok(()),
            Some(PositionState::Done) => "was answered before",
            Some(PositionState::Unsent) => "is not requested yet",
            None => "does not exist",
        };
        Err(invalid(format!("it answers position {position} of batch {number}, which {fault}")))
    }

    /// Record that a position is copied or has failed.
    pub(super) fn on_done(&mut self, position: u32) {
        self.states[position as usize] = PositionState::Done;
        self.missing -= 1;
    }

    /// Record that the request of a position has to be repeated.
    pub(super) fn on_taken_back(&mut self, position: u32) {
        self.states[position as usize] = PositionState::Unsent;
    }

    pub(super) fn is_complete(&self) -> bool {
        self.missing == 0
    }

    fn missing_positions(&self) -> Vec<u32> {
        (0_u32..)
            .zip(&self.states)
            .filter(|(_, state)| **state != PositionState::Done)
            .map(|(position, _)| position)
            .collect()
    }
}

pub(super) fn invalid(why: String) -> NodeError {
    NodeError::Malformed { why }
}
