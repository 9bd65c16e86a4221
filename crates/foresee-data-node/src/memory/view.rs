// SPDX-License-Identifier: Apache-2.0
//! The slab as a consumer sees it: read-only, with copies that detect a reused slot.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use foresee_units::Bytes;

use super::layout::SlabLayout;
use super::mapping::Mapping;
use super::sealed::{self, SLAB_SEALS};
use crate::error::NodeError;

/// A read-only view of the slab of a node's cache.
#[derive(Debug)]
pub struct SlabView {
    mapping: Mapping,
    layout: SlabLayout,
}

impl SlabView {
    /// Verify and map the slab of `slots` slots and `data` bytes behind `file`, which may be closed
    /// afterwards.
    ///
    /// # Errors
    /// [`NodeError::NotSealed`] if it is another file, has other seals, or another size; [`NodeError::SlabShape`];
    /// [`NodeError::NoMemory`].
    pub fn open(file: BorrowedFd<'_>, slots: u64, data: Bytes) -> Result<Self, NodeError> {
        let layout = SlabLayout::new(slots, data)?;
        sealed::verify(file, layout.len, SLAB_SEALS, "slab")?;
        let mapping = Mapping::new(file, SlabLayout::index(layout.len), false)?;
        mapping.prefer_huge_pages();
        Ok(Self { mapping, layout })
    }

    /// Number of slots.
    pub fn slots(&self) -> u64 {
        self.layout.slots
    }

    /// Bytes of data.
    pub fn data_bytes(&self) -> Bytes {
        Bytes::new(self.layout.data)
    }

    /// Copy the bytes at `offset` of the data into `dest`, if `slot` still has `generation` afterwards.
    ///
    /// On `false` the host has reused the slot, the content of `dest` is undefined, and the caller requests the sample
    /// again.
    ///
    /// # Errors
    /// [`NodeError::OutsideSlab`]: the host's answer is invalid, so the attachment must end. [`NodeError::Forked`].
    pub fn copy(&self, slot: u64, generation: u64, offset: u64, dest: &mut [u8]) -> Result<bool, NodeError> {
        let at = self.layout.locate(slot, offset, dest.len() as u64)?;
        let word = self.mapping.at(SlabLayout::word(slot))?;
        // SAFETY: in the table, aligned, and only accessed through atomics; a load works on read-only memory.
        let word = unsafe { word.cast::<AtomicU64>().as_ref() };
        if word.load(Ordering::Acquire) != generation {
            return Ok(false);
        }
        let from = self.mapping.at(at)?;
        // SAFETY: within the mapping, which `dest` is no part of. Another process may write there meanwhile: any
        // bytes are valid `u8`, and they are discarded if the generation has changed.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), dest.as_mut_ptr(), dest.len()) };
        // If one of the copied bytes is newer, the load below sees the newer generation.
        fence(Ordering::Acquire);
        Ok(word.load(Ordering::Relaxed) == generation)
    }
}
