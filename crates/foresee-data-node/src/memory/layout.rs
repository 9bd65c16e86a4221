// SPDX-License-Identifier: Apache-2.0
//! Sizes and offsets within a slab.

use std::ops::Range;

use foresee_units::Bytes;

use super::locations::SLAB_BYTES_MAX;
use crate::error::NodeError;

/// Unit of allocation, and of the size of a slab: a huge page of x86-64 and of arm64 with pages of 4 KiB.
pub(super) const CHUNK: u64 = 2 << 20;

/// The layout of a slab; equal numbers give both ends equal offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlabLayout {
    /// Bytes of data.
    pub(super) data: u64,
    /// Bytes of the whole slab, a multiple of [`CHUNK`].
    pub(super) len: u64,
}

impl SlabLayout {
    pub(super) fn new(data: Bytes) -> Result<Self, NodeError> {
        let fits = (1..=SLAB_BYTES_MAX).contains(&data.get());
        let len =
            data.get().checked_next_multiple_of(CHUNK).filter(|&len| fits && isize::try_from(len).is_ok());
        Ok(Self { data: data.get(), len: len.ok_or(NodeError::SlabShape { data })? })
    }

    /// The offset in the mapping of `length` bytes at `offset` of the data.
    pub(super) fn locate(&self, offset: u64, length: u64) -> Result<usize, NodeError> {
        if offset.checked_add(length).is_none_or(|end| end > self.data) {
            return Err(NodeError::OutsideSlab { offset, length, data: Bytes::new(self.data) });
        }
        Ok(Self::index(offset))
    }

    /// A number of bytes or chunks of a slab.
    pub(super) fn index(number: u64) -> usize {
        usize::try_from(number).expect("the slab fits into the address space")
    }

    /// The chunks that contain `range` of the mapping.
    pub(super) fn chunks(range: &Range<u64>) -> Range<u64> {
        if range.is_empty() { 0..0 } else { range.start / CHUNK..range.end.div_ceil(CHUNK) }
    }
}
