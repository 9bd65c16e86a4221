// SPDX-License-Identifier: Apache-2.0
//! One private anonymous mapping: the bytes of the RAM tier. The `unsafe` code of the tier is here.
//!
//! It is plain memory instead of a memory file, because kernels give huge pages to plain memory and, with usual
//! settings, not to memory files (`docs/notes/008`). It has no name that could remain, and a forked child neither
//! copies nor sees it.

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::pages::Kind;

/// A mapping of fixed length; pages cost memory once they are touched.
#[derive(Debug)]
pub(super) struct MemoryMap {
    start: NonNull<u8>,
    len: usize,
    /// Who mapped it: in a forked child the range belongs to nobody, or to whatever was mapped there since.
    process: u32,
}

// SAFETY: plain memory without thread affinity; access to its bytes is regulated by `bytes` and `fill`.
unsafe impl Send for MemoryMap {}
// SAFETY: as above.
unsafe impl Sync for MemoryMap {}

impl MemoryMap {
    /// Maps `len` bytes of zeros, 1 or more.
    pub(super) fn new(len: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // A budget is not a promise of the kernel's: pages are taken as they are touched.
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of anybody.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, flags)? };
        let start = NonNull::new(start.cast()).expect("a mapping never starts at address zero");
        let map = Self { start, len, process: std::process::id() };
        // SAFETY: the range is this mapping; a forked child has no business in it.
        unsafe { madvise(map.address(), len, Advice::LinuxDontFork)? };
        Ok(map)
    }

    /// Asks for a kind of pages where nothing has been touched yet. Advice only: a kernel without huge pages refuses,
    /// which costs speed and nothing else.
    ///
    /// # Panics
    /// If the range is not inside.
    pub(super) fn advise(&self, range: &Range<usize>, kind: Kind) {
        assert!(range.start <= range.end && range.end <= self.len, "inside the mapping");
        let advice = match kind {
            Kind::Huge => Advice::LinuxHugepage,
            Kind::Small => Advice::LinuxNoHugepage,
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

impl Drop for MemoryMap {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        // SAFETY: exactly what `new` mapped; nobody borrows from `self` any more.
        let unmapped = unsafe { munmap(self.address(), self.len) };
        debug_assert!(unmapped.is_ok(), "unmapping one's own mapping");
    }
}
