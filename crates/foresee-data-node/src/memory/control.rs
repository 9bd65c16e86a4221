// SPDX-License-Identifier: Apache-2.0
//! Control memory of one consumer, which holds its two rings.
//!
//! Both sides write it, so each treats what it reads there as hostile (`ring`).

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use foresee_units::Bytes;
use rustix::fs::MemfdFlags;

use super::mapping::Mapping;
use super::sealed::{self, CONTROL_SEALS};
use crate::error::NodeError;
use crate::ring::{ControlLayout, RingMemory, RingPair};

/// The smallest ring, in bytes.
pub const RING_BYTES_MIN: u32 = 4 << 10;
/// The largest ring, in bytes.
pub const RING_BYTES_MAX: u32 = 16 << 20;

/// Create empty rings of these sizes, and return them with the descriptor of their memory for the consumer.
///
/// # Errors
/// [`NodeError::RingSize`] unless both are powers of two from [`RING_BYTES_MIN`] to [`RING_BYTES_MAX`];
/// [`NodeError::NoMemory`].
pub(crate) fn create(request_bytes: u32, answer_bytes: u32) -> Result<(RingPair, OwnedFd), NodeError> {
    let layout = layout(request_bytes, answer_bytes)?;
    let len = layout.bytes() as u64;
    let refused = |why: rustix::io::Errno| NodeError::NoMemory { bytes: Bytes::new(len), why: why.into() };
    let file = sealed::create("foresee-control", MemfdFlags::empty()).map_err(refused)?;
    rustix::fs::ftruncate(&file, len).map_err(refused)?;
    // Allocated now: charged to the host, and no later access can fail.
    sealed::allocate(file.as_fd(), 0, len)?;
    rustix::fs::fcntl_add_seals(&file, CONTROL_SEALS)
        .map_err(NodeError::io("sealing the control memory of a consumer"))?;
    Ok((RingPair::create(&map(file.as_fd(), &layout)?, &layout)?, file))
}

/// Verify the memory behind `file`, which may be closed afterwards, and attach to its rings.
///
/// # Errors
/// As [`SlabView::open`](super::SlabView::open); [`NodeError::RingSize`]; [`NodeError::Ring`].
pub(crate) fn open(
    file: BorrowedFd<'_>,
    request_bytes: u32,
    answer_bytes: u32,
) -> Result<RingPair, NodeError> {
    let layout = layout(request_bytes, answer_bytes)?;
    sealed::verify(file, layout.bytes() as u64, CONTROL_SEALS, "control memory")?;
    Ok(RingPair::attach(&map(file, &layout)?, &layout)?)
}

fn map(file: BorrowedFd<'_>, layout: &ControlLayout) -> Result<RingMemory, NodeError> {
    let len = layout.bytes();
    let mapping = Arc::new(Mapping::new(file, len, true)?);
    let start = mapping.at(0)?;
    // SAFETY: the range is this mapping, which only the rings access; whoever has them checks for a fork.
    Ok(unsafe { RingMemory::new(start, len, mapping) })
}

fn layout(request_bytes: u32, answer_bytes: u32) -> Result<ControlLayout, NodeError> {
    for bytes in [request_bytes, answer_bytes] {
        if !bytes.is_power_of_two() || !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&bytes) {
            return Err(NodeError::RingSize { bytes });
        }
    }
    Ok(ControlLayout::new(request_bytes.into(), answer_bytes.into())?)
}
