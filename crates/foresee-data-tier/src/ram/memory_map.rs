// SPDX-License-Identifier: Apache-2.0
//! One private anonymous mapping: the bytes of the RAM tier, and its `unsafe` code.
//!
//! It is not a memory file, because kernels by default give huge pages to anonymous memory only (`docs/notes/008`).
//! It has no name that could remain, and a forked child neither copies nor sees it.

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::pages::PageSize;

/// A mapping of fixed length; pages take memory once they are touched.
#[derive(Debug)]
pub(super) struct MemoryMap {
    start: NonNull<u8>,
    len: usize,
    /// The process that created the mapping: in a forked child the range is unmapped, or mapped to something else.
    process: u32,
}

// SAFETY: plain memory without thread affinity; `bytes` and `fill` state the conditions of access.
unsafe impl Send for MemoryMap {}
// SAFETY: as above.
unsafe impl Sync for MemoryMap {}

impl MemoryMap {
    /// Map `len` bytes of zeros, 1 or more.
    pub(super) fn new(len: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // The kernel need not reserve the memory: pages are allocated when they are touched.
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps no other memory.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, flags)? };
        let start = NonNull::new(start.cast()).expect("a mapping never starts at address zero");
        let map = Self { start, len, process: std::process::id() };
        // SAFETY: the range is this mapping, which a forked child never uses.
        unsafe { madvise(map.address(), len, Advice::LinuxDontFork)? };
        Ok(map)
    }

    /// Request a page size for memory that has not been touched. A kernel without huge pages refuses, which only
    /// costs speed.
    ///
    /// # Panics
    /// If the range is not inside.
    pub(super) fn advise(&self, range: &Range<usize>, size: PageSize) {
        assert!(range.start <= range.end && range.end <= self.len, "inside the mapping");
        let advice = match size {
            PageSize::Huge => Advice::LinuxHugepage,
            PageSize::Small => Advice::LinuxNoHugepage,
        };
        // SAFETY: inside the mapping, as just checked; neither advice changes a byte.
        let _ = unsafe { madvise(self.address().byte_add(range.start), range.len(), advice) };
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// The bytes from `at` on.
    ///
    /// # Safety
    /// The range is inside, and no code fills any of it while the slice lives.
    pub(super) unsafe fn bytes(&self, at: usize, len: usize) -> &[u8] {
        debug_assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "inside the mapping");
        // SAFETY: mapped and readable while `self` lives; the caller guarantees the rest.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(at), len) }
    }

    /// Copy `bytes` to `at`.
    ///
    /// # Safety
    /// The range is inside, and no other code reads or fills any of it meanwhile.
    pub(super) unsafe fn fill(&self, at: usize, bytes: &[u8]) {
        debug_assert!(at.checked_add(bytes.len()).is_some_and(|end| end <= self.len), "inside the mapping");
        // SAFETY: mapped, writable and exclusive by the caller's guarantee, so the two ranges do not overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(at), bytes.len());
        }
    }

    const fn address(&self) -> *mut c_void {
        self.start.as_ptr().cast()
    }
}

impl Drop for MemoryMap {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        // SAFETY: exactly the range that `new` mapped; no borrow of `self` is left.
        let unmapped = unsafe { munmap(self.address(), self.len) };
        debug_assert!(unmapped.is_ok(), "unmapping one's own mapping");
    }
}
