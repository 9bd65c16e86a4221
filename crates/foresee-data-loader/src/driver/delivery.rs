// SPDX-License-Identifier: Apache-2.0
//! The driver's output: the staging buffer, and the delivery of complete batches.
//!
//! Once the system has refused memory for a batch, nothing more is delivered, and the consumer gets the error.

use std::sync::Arc;

use foresee_data_tier::RamPin;
use foresee_units::{Bytes, Epoch, Step};

use super::Shared;
use crate::batch_queue::QueueEntry;
use crate::buffer::Buffer;
use crate::errors::LoaderError;
use crate::gather::Gather;
use crate::reads::BatchPosition;
use crate::staging::{Stage, StagedFrom, Staging};

/// See the module.
#[derive(Debug)]
pub(super) struct Delivery {
    shared: Arc<Shared>,
    pub(super) staging: Staging,
    /// Copies from memory into the batch of a slot that the consumer has not finished.
    gathering: Option<(u64, Arc<Gather>)>,
    ready: Vec<QueueEntry>,
    generation: u64,
    is_out_of_memory: bool,
}

impl Delivery {
    /// `limit`: bytes of the staging buffer.
    pub(super) const fn new(shared: Arc<Shared>, limit: Bytes) -> Self {
        Self {
            shared,
            staging: Staging::new(limit),
            gathering: None,
            ready: Vec::new(),
            generation: 0,
            is_out_of_memory: false,
        }
    }

    /// Discard everything staged, after a seek of the consumer.
    pub(super) fn restart(&mut self, generation: u64) {
        self.generation = generation;
        self.ready.clear();
        self.gathering = None;
        self.staging.clear();
    }

    /// The batch of `position`, which is being planned.
    pub(super) fn stage(&mut self, position: BatchPosition) -> &mut Stage {
        self.staging.get(position.slot).expect("the batch is being planned")
    }

    /// Epoch and step of a batch for the ledger; zero after its delivery.
    pub(super) fn step(&mut self, slot: u64) -> (Epoch, Step) {
        self.staging.get(slot).map_or_else(Default::default, |stage| (stage.batch.epoch, stage.batch.step))
    }

    /// Ensure that a buffer has memory before its first byte arrives; `false`, and the run ends, if the system has
    /// none.
    pub(super) fn ensure_mapped(&mut self, buffer: &Buffer) -> bool {
        if let Err(error) = buffer.ensure_mapped() {
            self.fail(error);
        }
        !self.is_out_of_memory
    }

    /// End the run: the system has no memory for a buffer.
    pub(super) fn fail(&mut self, error: LoaderError) {
        self.shared.batches.fail(error);
        self.is_out_of_memory = true;
    }

    /// Whether a batch of `bytes` may be opened. If not, the driver is woken when the consumer returns memory.
    pub(super) fn has_capacity(&mut self, bytes: Bytes, from: StagedFrom) -> bool {
        if self.staging.has_capacity(bytes, from) {
            return true;
        }
        // The second check finds memory that was returned before the request for a wake-up.
        self.shared.buffers.wake_when_returned();
        self.staging.has_capacity(bytes, from)
    }

    /// Copy samples from memory into the newest batch, together with the consumer if it waits. Return the bytes, and
    /// whether all copies have ended.
    pub(super) fn gather(&mut self, copies: Vec<(RamPin, usize)>) -> (usize, bool) {
        let slot = self.staging.newest();
        let stage = self.staging.get(slot).expect("the batch is being planned");
        let buffer = Arc::clone(&stage.batch.buffer);
        // SAFETY: each span belongs to its sample alone, no read of it has begun, and the batch is not delivered while
        // copies are pending.
        let gather = Arc::new(unsafe { Gather::new(buffer, copies) });
        let bytes = gather.bytes();
        self.shared.batches.share(&gather);
        gather.help();
        self.shared.batches.unshare();
        self.gathering = Some((slot, gather));
        (bytes, self.end_gather())
    }

    /// Whether no copies are in progress.
    pub(super) fn end_gather(&mut self) -> bool {
        if let Some((slot, gather)) = self.gathering.take_if(|(_, gather)| gather.is_done())
            && let Some(stage) = self.staging.get(slot)
        {
            stage.pending -= gather.samples();
        }
        self.gathering.is_none()
    }

    /// Deliver complete batches. `in_memory`: all samples are in memory. `is_over`: no batch follows the staged ones.
    pub(super) fn deliver(&mut self, in_memory: bool, is_over: bool) {
        if self.is_out_of_memory {
            return;
        }
        self.staging.take_ready(&mut self.ready);
        if !self.ready.is_empty() {
            self.shared.batches.push(self.generation, self.ready.drain(..), in_memory);
        }
        if is_over && self.staging.is_empty() {
            self.shared.batches.finish(self.generation);
        }
    }
}
