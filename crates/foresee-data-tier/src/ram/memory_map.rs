// SPDX-License-Identifier: Apache-2.0
//! One anonymous shared mapping: the bytes of the RAM tier.
//!
//! Apart from the tier, because this is where its `unsafe` lives. A memory file instead of plain anonymous
//! memory: it has no name to go stale, can be handed to another process by its descriptor, and a forked child
//! neither copies nor sees it. Refuses to know what lies where.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

/// A mapping of fixed length; pages cost memory once they are touched.
#[derive(Debug)]
pub(super) struct MemoryMap {
    start: NonNull<u8>,
    len: usize,
    file: OwnedFd,
}

// SAFETY: plain memory without thread affinity; access to its bytes is regulated by `bytes` and `fill`.
unsafe impl Send for MemoryMap {}
// SAFETY: as above.
unsafe impl Sync for MemoryMap {}

impl MemoryMap {
    /// Maps `len` bytes of zeros, 1 or more.
    pub(super) fn new(len: usize) -> io::Result<Self> {
        let file = memfd_create("foresee-ram", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, len as u64)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of anybody.
        let start = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, &file, 0)? };
        let start = NonNull::new(start.cast()).expect("a mapping never starts at address zero");
        let map = Self { start, len, file };
        // SAFETY: the range is this mapping; a forked child has no business in it.
        unsafe { madvise(map.address(), len, Advice::LinuxDontFork)? };
        // SAFETY: as above. Kernels without huge pages for shared memory refuse, which costs speed only.
        let _ = unsafe { madvise(map.address(), len, Advice::LinuxHugepage) };
        Ok(map)
    }

    /// The bytes from `at` on.
    ///
    /// # Safety
    /// The range is inside, and nobody fills any of it while the slice lives.
    pub(super) unsafe fn bytes(&self, at: usize, len: usize) -> &[u8] {
        debug_assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "inside the mapping");
        // SAFETY: mapped and readable for as long as `self`; the rest is promised by the caller.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(at), len) }
    }

    /// Copies `bytes` to `at`.
    ///
    /// # Safety
    /// The range is inside, and nobody else reads or fills any of it meanwhile.
    pub(super) unsafe fn fill(&self, at: usize, bytes: &[u8]) {
        debug_assert!(at.checked_add(bytes.len()).is_some_and(|end| end <= self.len), "inside the mapping");
        // SAFETY: mapped and writable; ours alone as promised, so the two ranges do not overlap either.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(at), bytes.len());
        }
    }

    const fn address(&self) -> *mut c_void {
        self.start.as_ptr().cast()
    }
}

impl AsFd for MemoryMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for MemoryMap {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped; nobody borrows from `self` any more.
        let unmapped = unsafe { munmap(self.address(), self.len) };
        debug_assert!(unmapped.is_ok(), "unmapping one's own mapping");
    }
}
