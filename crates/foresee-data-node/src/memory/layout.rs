// SPDX-License-Identifier: Apache-2.0
//! Offsets within a slab: the table of generations, then the data.

use std::ops::Range;

use foresee_units::Bytes;

use crate::error::NodeError;

/// Unit of allocation, and of the size of a slab: a huge page of x86-64 and of arm64 with pages of 4 KiB.
pub(super) const CHUNK: u64 = 2 << 20;
/// Alignment of the data, which direct reads from disks need.
const PAGE: u64 = 4096;
const WORD: u64 = size_of::<u64>() as u64;

/// The layout of a slab; equal numbers give both ends equal offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlabLayout {
    pub(super) slots: u64,
    /// Bytes of data.
    pub(super) data: u64,
    /// Offset of the data.
    pub(super) start: u64,
    /// Bytes of the whole slab, a multiple of [`CHUNK`].
    pub(super) len: u64,
}

impl SlabLayout {
    pub(super) fn new(slots: u64, data: Bytes) -> Result<Self, NodeError> {
        let shape = || {
            let start = slots.checked_mul(WORD)?.checked_next_multiple_of(PAGE)?;
            let len = start.checked_add(data.get())?.checked_next_multiple_of(CHUNK)?;
            let fits = slots > 0 && data.get() > 0 && isize::try_from(len).is_ok();
            fits.then_some(Self { slots, data: data.get(), start, len })
        };
        shape().ok_or(NodeError::SlabShape { slots, data })
    }

    /// The offset in the mapping of `length` bytes at `offset` of the data.
    pub(super) fn locate(&self, slot: u64, offset: u64, length: u64) -> Result<usize, NodeError> {
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= self.data);
        if slot >= self.slots || !is_inside {
            let (slots, data) = (self.slots, Bytes::new(self.data));
            return Err(NodeError::OutsideSlab { slot, offset, length, slots, data });
        }
        Ok(Self::index(self.start + offset))
    }

    /// The offset in the mapping of the generation of `slot`, which is in the table.
    pub(super) fn word(slot: u64) -> usize {
        Self::index(slot * WORD)
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
