// SPDX-License-Identifier: Apache-2.0
//! Shared memory as atomic words.
//!
//! The other process may write any word at any time. All accesses are atomic, so such a write is a wrong value and never
//! undefined behaviour. The traits let the models of `loom` run the same code over its own atomics.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A range of memory that another process maps too, and the owner that keeps it mapped.
#[derive(Clone)]
pub struct RingMemory {
    start: NonNull<u8>,
    len: usize,
    owner: Arc<dyn Any + Send + Sync>,
}

/// A word that both sides may read and write.
pub(super) trait SharedWord {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
}

/// The words of one ring: its head and its data.
pub(super) trait SharedWords {
    type Word: SharedWord;

    fn words(&self) -> &[Self::Word];
}

// SAFETY: the memory is accessed through atomics alone, and the owner is `Send` and `Sync`.
unsafe impl Send for RingMemory {}
// SAFETY: as above.
unsafe impl Sync for RingMemory {}

impl RingMemory {
    /// Use `len` bytes from `start`.
    ///
    /// # Safety
    /// As long as `owner` lives, the range is readable, writable and initialised, and code of this process accesses it
    /// only through values made from this one, or atomically with 4 or 8 bytes at multiples of their size. Other
    /// processes may do anything with their mappings.
    pub unsafe fn new(start: NonNull<u8>, len: usize, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self { start, len, owner }
    }

    /// Number of bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The address of the first byte.
    pub(super) fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    /// The range from `offset`, with the same owner.
    ///
    /// # Panics
    /// It exceeds this one.
    pub(super) fn part(&self, offset: usize, len: usize) -> Self {
        assert!(offset <= self.len && len <= self.len - offset, "a part of the memory is within it");
        // SAFETY: at most one past the end of the range.
        let start = unsafe { self.start.add(offset) };
        Self { start, len, owner: Arc::clone(&self.owner) }
    }

    /// The first 4 bytes as a wake word.
    ///
    /// # Panics
    /// They are not within the range, or not aligned.
    pub(super) fn wake_word(&self) -> &AtomicU32 {
        assert!(self.len >= size_of::<AtomicU32>(), "a wake word has 4 bytes");
        let start = self.start.cast::<AtomicU32>();
        assert!(start.is_aligned(), "a wake word is aligned");
        // SAFETY: within the range, aligned, and valid while the owner lives, which `self` keeps.
        unsafe { start.as_ref() }
    }
}

impl SharedWords for RingMemory {
    type Word = AtomicU64;

    fn words(&self) -> &[AtomicU64] {
        let start = self.start.cast::<AtomicU64>();
        assert!(start.is_aligned(), "a ring is aligned");
        // SAFETY: within the range, aligned, and valid while the owner lives, which `self` keeps.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.len / size_of::<AtomicU64>()) }
    }
}

impl SharedWord for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        Self::load(self, order)
    }

    fn store(&self, value: u64, order: Ordering) {
        Self::store(self, value, order);
    }
}

impl fmt::Debug for RingMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingMemory").field("len", &self.len).finish_non_exhaustive()
    }
}
