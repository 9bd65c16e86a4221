// SPDX-License-Identifier: Apache-2.0
//! The slab as a consumer sees it: read-only.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use foresee_units::Bytes;

use super::layout::SlabLayout;
use super::mapping::Mapping;
use super::sealed::{self, SLAB_SEALS};
use crate::error::NodeError;

/// A read-only view of the slab of a node's cache. [`LocationView`](super::LocationView) copies from it.
#[derive(Debug)]
pub struct SlabView {
    mapping: Mapping,
    layout: SlabLayout,
}

impl SlabView {
    /// Verify and map the slab of `data` bytes behind `file`, which may be closed afterwards.
    ///
    /// # Errors
    /// [`NodeError::NotSealed`] if it is another file, has other seals, or another size; [`NodeError::SlabShape`];
    /// [`NodeError::NoMemory`].
    pub fn open(file: BorrowedFd<'_>, data: Bytes) -> Result<Self, NodeError> {
        let layout = SlabLayout::new(data)?;
        sealed::verify(file, layout.len, SLAB_SEALS, "slab")?;
        let mapping = Mapping::new(file, SlabLayout::index(layout.len), false)?;
        mapping.prefer_huge_pages();
        Ok(Self { mapping, layout })
    }

    /// Bytes of data.
    pub fn data_bytes(&self) -> Bytes {
        Bytes::new(self.layout.data)
    }

    /// A pointer to `length` bytes at `offset` of the data.
    pub(super) fn data(&self, offset: u64, length: u64) -> Result<NonNull<u8>, NodeError> {
        self.mapping.at(self.layout.locate(offset, length)?)
    }
}
