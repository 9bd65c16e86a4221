// SPDX-License-Identifier: Apache-2.0
//! Control memory of one consumer: words for futex waits, the request ring and the answer ring.
//!
//! ```text
//! request word, answer word (a cache line each) | request ring | answer ring
//! ```
//!
//! Both sides write it, so each treats what it reads there as hostile. The content of the rings is defined elsewhere.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use foresee_units::Bytes;
use rustix::fs::MemfdFlags;

use super::mapping::Mapping;
use super::sealed::{self, CONTROL_SEALS};
use crate::error::NodeError;

/// The smallest ring, in bytes.
pub const RING_BYTES_MIN: u32 = 4 << 10;
/// The largest ring, in bytes.
pub const RING_BYTES_MAX: u32 = 16 << 20;

const LINE: usize = 64;
const PAGE: usize = 4096;

/// The control memory of one consumer, mapped by one of its two sides.
#[derive(Debug)]
pub struct ControlMemory {
    mapping: Mapping,
    request_bytes: usize,
    answer_bytes: usize,
}

impl ControlMemory {
    /// Create zeroed memory for rings of these sizes, and return it with the descriptor for the consumer.
    ///
    /// # Errors
    /// [`NodeError::RingSize`] unless both are powers of two from [`RING_BYTES_MIN`] to [`RING_BYTES_MAX`];
    /// [`NodeError::NoMemory`].
    pub(crate) fn create(request_bytes: u32, answer_bytes: u32) -> Result<(Self, OwnedFd), NodeError> {
        let len = length(request_bytes, answer_bytes)?;
        let refused =
            |why: rustix::io::Errno| NodeError::NoMemory { bytes: Bytes::new(len), why: why.into() };
        let file = sealed::create("foresee-control", MemfdFlags::empty()).map_err(refused)?;
        rustix::fs::ftruncate(&file, len).map_err(refused)?;
        // Allocated now: charged to the host, and no later access can fail.
        sealed::allocate(file.as_fd(), 0, len)?;
        rustix::fs::fcntl_add_seals(&file, CONTROL_SEALS)
            .map_err(NodeError::io("sealing the control memory of a consumer"))?;
        Ok((Self::map(file.as_fd(), request_bytes, answer_bytes)?, file))
    }

    /// Verify and map the memory behind `file`, which may be closed afterwards.
    ///
    /// # Errors
    /// As [`SlabView::open`](super::SlabView::open); [`NodeError::RingSize`].
    pub(crate) fn open(
        file: BorrowedFd<'_>,
        request_bytes: u32,
        answer_bytes: u32,
    ) -> Result<Self, NodeError> {
        let len = length(request_bytes, answer_bytes)?;
        sealed::verify(file, len, CONTROL_SEALS, "control memory")?;
        Self::map(file, request_bytes, answer_bytes)
    }

    fn map(file: BorrowedFd<'_>, request_bytes: u32, answer_bytes: u32) -> Result<Self, NodeError> {
        let (request_bytes, answer_bytes) = (request_bytes as usize, answer_bytes as usize);
        let mapping = Mapping::new(file, PAGE + request_bytes + answer_bytes, true)?;
        Ok(Self { mapping, request_bytes, answer_bytes })
    }

    /// The word on which the host waits for requests.
    ///
    /// # Errors
    /// [`NodeError::Forked`], as for the other parts.
    pub fn request_word(&self) -> Result<&AtomicU32, NodeError> {
        self.word(0)
    }

    /// The word on which the consumer waits for answers.
    pub fn answer_word(&self) -> Result<&AtomicU32, NodeError> {
        self.word(LINE)
    }

    /// The memory of the request ring, which the consumer writes. It lives as long as this value.
    pub fn request_ring(&self) -> Result<NonNull<[u8]>, NodeError> {
        Ok(NonNull::slice_from_raw_parts(self.mapping.at(PAGE)?, self.request_bytes))
    }

    /// The memory of the answer ring, which the host writes. It lives as long as this value.
    pub fn answer_ring(&self) -> Result<NonNull<[u8]>, NodeError> {
        let start = self.mapping.at(PAGE + self.request_bytes)?;
        Ok(NonNull::slice_from_raw_parts(start, self.answer_bytes))
    }

    fn word(&self, offset: usize) -> Result<&AtomicU32, NodeError> {
        // SAFETY: in the first page, aligned, and only accessed through atomics.
        Ok(unsafe { self.mapping.at(offset)?.cast::<AtomicU32>().as_ref() })
    }
}

/// Bytes of the control memory for two rings.
fn length(request_bytes: u32, answer_bytes: u32) -> Result<u64, NodeError> {
    for bytes in [request_bytes, answer_bytes] {
        if !bytes.is_power_of_two() || !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&bytes) {
            return Err(NodeError::RingSize { bytes });
        }
    }
    Ok(PAGE as u64 + u64::from(request_bytes) + u64::from(answer_bytes))
}
