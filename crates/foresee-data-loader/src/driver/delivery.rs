// SPDX-License-Identifier: Apache-2.0
//! The consumer's side of the driver: the staging line, and batches on their way out of it.
//!
//! Once the system has refused memory for a batch nothing is handed over any more, and the consumer gets the reason.

use std::sync::Arc;

use foresee_data_tier::RamPin;
use foresee_units::{Bytes, Epoch, Step};

use super::Shared;
use crate::batch_queue::QueueEntry;
use crate::buffer::Buffer;
use crate::gather::Gather;
use crate::reads::Spot;
use crate::staging::{Stage, Staging};

/// See the module.
#[derive(Debug)]
pub(super) struct Delivery {
    shared: Arc<Shared>,
    pub(super) staging: Staging,
    /// Copies out of memory for a batch, by its slot, that the consumer has not finished.
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

    /// Discards everything staged: the consumer began an epoch elsewhere.
    pub(super) fn restart(&mut self, generation: u64) {
        self.generation = generation;
        self.ready.clear();
        self.gathering = None;
        self.staging.clear();
    }

    /// The batch of `spot`, which is being planned.
    pub(super) fn stage(&mut self, spot: Spot) -> &mut Stage {
        self.staging.get(spot.slot).expect("the batch is being planned")
    }

    /// Epoch and step of a batch, for the metrics; zero when it is gone.
    pub(super) fn step(&mut self, slot: u64) -> (Epoch, Step) {
        self.staging.get(slot).map_or_else(Default::default, |stage| (stage.epoch, stage.step))
    }

    /// Takes memory for a buffer before the first byte comes; `false`, and the run ends, where the system has none.
    pub(super) fn take_memory(&mut self, buffer: &Buffer) -> bool {
        if let Err(error) = buffer.take_memory() {
            self.shared.batches.break_with(error);
            self.is_out_of_memory = true;
        }
        !self.is_out_of_memory
    }

    /// Whether a batch of `bytes` may be opened. If not, the driver is woken when the consumer gives memory back.
    pub(super) fn has_capacity(&mut self, bytes: Bytes, near: bool) -> bool {
        if self.staging.has_capacity(bytes, near) {
            return true;
        }
        // Asked for first, checked again after: what comes back in between is not missed.
        self.shared.buffers.wake_when_returned();
        self.staging.has_capacity(bytes, near)
    }

    /// Copies samples out of memory into the newest batch, shared with the consumer if it waits. Returns the bytes, and
    /// whether all copies have ended.
    pub(super) fn gather(&mut self, copies: Vec<(RamPin, usize)>) -> (usize, bool) {
        let slot = self.staging.newest();
        let buffer = Arc::clone(&self.staging.get(slot).expect("the batch is being planned").buffer);
        // SAFETY: each span belongs to its sample alone, no read of it has begun, and the batch is not handed over
        // while copies are pending.
        let gather = Arc::new(unsafe { Gather::new(buffer, copies) });
        let bytes = gather.bytes();
        self.shared.batches.share(&gather);
        gather.help();
        self.shared.batches.unshare();
        self.gathering = Some((slot, gather));
        (bytes, self.end_gather())
    }

    /// Whether no copies are in progress any more.
    pub(super) fn end_gather(&mut self) -> bool {
        if let Some((slot, gather)) = self.gathering.take_if(|(_, gather)| gather.is_done())
            && let Some(stage) = self.staging.get(slot)
        {
            stage.pending -= gather.samples();
        }
        self.gathering.is_none()
    }

    /// Hands over what is complete. `near`: no sample has to be fetched from afar. `is_over`: no batch follows what is
    /// staged.
    pub(super) fn hand_over(&mut self, near: bool, is_over: bool) {
        if self.is_out_of_memory {
            return;
        }
        self.staging.take_ready(&mut self.ready);
        if !self.ready.is_empty() {
            self.shared.batches.push(self.generation, self.ready.drain(..), near);
        }
        if is_over && self.staging.is_empty() {
            self.shared.batches.finish(self.generation);
        }
    }
}
