// SPDX-License-Identifier: Apache-2.0
//! The memory of a batch, which the thread fills and the driver may withdraw at any time.

use std::sync::{Arc, Mutex, PoisonError};

use foresee_data_node::message::SampleLocation;
use foresee_data_node::{NodeError, SlabView};

use crate::buffer::Buffer;

/// The buffer of a batch until it is withdrawn. The lock is held during the copy of each sample.
#[derive(Debug)]
pub(super) struct BatchMemory(Mutex<Option<Arc<Buffer>>>);

/// The end of the copy of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyOutcome {
    Copied,
    /// The host took the slot back; the bytes of the span are undefined.
    TakenBack,
    /// The batch has no memory any more; nothing was written.
    Withdrawn,
}

impl BatchMemory {
    pub(super) fn new(buffer: Arc<Buffer>) -> Self {
        Self(Mutex::new(Some(buffer)))
    }

    /// Give the buffer up, after the copy in progress.
    pub(super) fn withdraw(&self) {
        let buffer = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(buffer);
    }

    pub(super) fn is_withdrawn(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Copy a sample to its span of the buffer, whose length is that of the sample.
    ///
    /// # Errors
    /// [`NodeError::OutsideSlab`]: the answer is invalid.
    pub(super) fn copy(
        &self,
        slab: &SlabView,
        from: &SampleLocation,
        (offset, len): (usize, usize),
    ) -> Result<CopyOutcome, NodeError> {
        let buffer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(buffer) = &*buffer else { return Ok(CopyOutcome::Withdrawn) };
        if len == 0 {
            return Ok(CopyOutcome::Copied);
        }
        // SAFETY: the driver does not access the span before it is reported or withdrawn, which the lock excludes.
        let dest = unsafe { buffer.slice_mut(offset, len) };
        let is_copied = slab.copy(from.slot.into(), from.generation, from.offset, dest)?;
        Ok(if is_copied { CopyOutcome::Copied } else { CopyOutcome::TakenBack })
    }
}
