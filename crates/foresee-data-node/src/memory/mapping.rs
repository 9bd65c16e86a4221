// SPDX-License-Identifier: Apache-2.0
//! A shared mapping of a memfd, which forked children do not have.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::error::NodeError;
use crate::fork::Creator;

/// A mapped range of memory, unmapped at drop.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    creator: Creator,
}

// SAFETY: a mapping belongs to the process, not to a thread; its users promise how they access the bytes.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Map the first `len` bytes of `file`.
    ///
    /// # Errors
    /// The system's error: no memory or address space, or seals that forbid writing.
    pub(super) fn new(file: BorrowedFd<'_>, len: usize, is_writable: bool) -> Result<Self, NodeError> {
        let creator = Creator::this_process()?;
        let refused = |why: rustix::io::Errno| NodeError::NoMemory {
            bytes: foresee_units::Bytes::new(len as u64),
            why: io::Error::from(why),
        };
        let protection = if is_writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address that the system chooses.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0) }
                .map_err(refused)?;
        let start = NonNull::new(start.cast()).expect("the system maps nothing at 0");
        let mapping = Self { start, len, creator };
        mapping.advise(0..len, Advice::LinuxDontFork).map_err(refused)?;
        Ok(mapping)
    }

    /// Ask for huge pages. Kernels that offer none for shared memory refuse or ignore it, and small pages remain.
    pub(super) fn prefer_huge_pages(&self) {
        let _ = self.advise(0..self.len, Advice::LinuxHugepage);
    }

    /// Map the allocated pages of a `range` for writing, which takes less than half the time of a page fault for each.
    /// Kernels before 5.14 refuse, and their pages fault.
    pub(super) fn populate(&self, range: Range<usize>) {
        let _ = self.advise(range, Advice::LinuxPopulateWrite);
    }

    fn advise(&self, range: Range<usize>, advice: Advice) -> rustix::io::Result<()> {
        assert!(range.end <= self.len, "ranges are checked by the layout");
        // SAFETY: within this mapping; no advice that is used here changes its bytes.
        unsafe { rustix::mm::madvise(self.start.as_ptr().add(range.start).cast(), range.len(), advice) }
    }

    /// A pointer to the byte at `offset`, which is at most the length.
    ///
    /// # Errors
    /// [`NodeError::Forked`]: a forked child does not have the mapping.
    pub(super) fn at(&self, offset: usize) -> Result<NonNull<u8>, NodeError> {
        assert!(offset <= self.len, "offsets are checked by the layout");
        if !self.creator.is_current() {
            return Err(NodeError::Forked);
        }
        // SAFETY: within the mapping, or its end.
        Ok(unsafe { self.start.add(offset) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a forked child the range is free or belongs to someone else.
        if self.creator.is_current() {
            // SAFETY: exactly this mapping, which nothing uses after its owner.
            let outcome = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
            debug_assert!(outcome.is_ok(), "an own mapping can be unmapped");
        }
    }
}
