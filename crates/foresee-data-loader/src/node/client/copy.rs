// SPDX-License-Identifier: Apache-2.0
//! Copies from the host's memory into that of a batch, which the thread fills and the driver may withdraw at any time.

use std::sync::{Arc, Mutex, PoisonError};

use foresee_data_node::{LocationView, NodeError, SlabLocation, SlabView};
use foresee_units::SampleId;

use crate::buffer::Buffer;

/// The buffer of a batch until it is withdrawn. The lock is held during the copy of each sample.
#[derive(Debug)]
pub(super) struct BatchMemory(Mutex<Option<Arc<Buffer>>>);

/// The end of the copy of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyOutcome {
    Copied,
    /// The host withdrew the sample; the bytes of the span are undefined.
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
        shared: &SharedSamples,
        (sample, from): (SampleId, SlabLocation),
        span: (usize, usize),
    ) -> Result<CopyOutcome, NodeError> {
        let buffer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(buffer) = &*buffer else { return Ok(CopyOutcome::Withdrawn) };
        // SAFETY: the driver does not access the span before it is reported or withdrawn, which the lock excludes.
        let is_copied = unsafe { shared.copy(sample, from, buffer, span) }?;
        Ok(if is_copied { CopyOutcome::Copied } else { CopyOutcome::TakenBack })
    }
}

/// The samples of the host that this process can read.
#[derive(Debug)]
pub(super) struct SharedSamples {
    pub(super) slab: Arc<SlabView>,
    pub(super) locations: LocationView,
}

impl SharedSamples {
    /// Copy all of these samples to their spans, if each is in the slab. On `false` the bytes of the spans are undefined.
    ///
    /// # Errors
    /// The table of locations is invalid, or this is a forked child.
    ///
    /// # Safety
    /// Nothing else accesses the spans.
    pub(super) unsafe fn copy_all(
        &self,
        samples: &[SampleId],
        buffer: &Buffer,
        spans: &[(usize, usize)],
    ) -> Result<bool, NodeError> {
        let needed = || samples.iter().zip(spans).filter(|(_, (_, len))| *len > 0);
        // A batch that is not there as a whole is requested as a whole: most of the first epoch.
        for (&sample, _) in needed() {
            if !self.locations.get(sample)?.is_valid() {
                return Ok(false);
            }
        }
        for (&sample, &span) in needed() {
            // SAFETY: as the caller promises.
            if !unsafe { self.copy(sample, self.locations.get(sample)?, buffer, span) }? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Copy a sample to its span of a buffer; `false` if it is not there any more.
    ///
    /// # Safety
    /// Nothing else accesses the span.
    unsafe fn copy(
        &self,
        sample: SampleId,
        from: SlabLocation,
        buffer: &Buffer,
        (offset, len): (usize, usize),
    ) -> Result<bool, NodeError> {
        if len == 0 {
            return Ok(true);
        }
        // SAFETY: as the caller promises.
        let dest = unsafe { buffer.slice_mut(offset, len) };
        self.locations.copy(&self.slab, sample, from, dest)
    }
}
