// SPDX-License-Identifier: Apache-2.0
//! Memory that an operation borrows from its caller while it is under way.
//!
//! Batches live in buffers that Python may hold for ever and tiers fill from threads of their own, so a
//! reference cannot describe the loan. Each loan carries a keeper instead: as long as it lives, the memory does.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// Whatever keeps a loan's memory alive.
pub type Keeper = Arc<dyn Any + Send + Sync>;

/// The sole right to fill one range of memory.
pub struct Dest {
    start: NonNull<u8>,
    len: usize,
    keeper: Keeper,
}

// SAFETY: a `Dest` is the only handle to its range (promised to `Dest::new`), and the keeper is `Send`.
unsafe impl Send for Dest {}

impl Dest {
    /// Lends `len` bytes from `start`.
    ///
    /// # Safety
    /// Until this value is dropped, the range stays valid and initialised as long as `keeper` lives, and
    /// nobody else reads or writes it.
    pub unsafe fn new(start: NonNull<u8>, len: usize, keeper: Keeper) -> Self {
        Self { start, len, keeper }
    }

    /// A range of its own on the heap, with the means to read it when the `Dest` is gone. For tests and scratch.
    pub fn from_vec(mut bytes: Vec<u8>) -> (Self, Arc<Scratch>) {
        let start = NonNull::from(bytes.as_mut_slice()).cast();
        let len = bytes.len();
        let scratch = Arc::new(Scratch { bytes: std::cell::UnsafeCell::new(bytes) });
        // SAFETY: `Scratch` gives its bytes out only once it has no other owner, that is after this `Dest`.
        let dest = unsafe { Self::new(start, len, Arc::clone(&scratch) as Keeper) };
        (dest, scratch)
    }

    /// How many bytes to fill.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing to fill (a sample of zero bytes).
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The range.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: valid, initialised and ours alone, as promised to `new`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Dest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dest").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Drop for Dest {
    fn drop(&mut self) {
        // The keeper goes after the last touch of the range; named here because nothing else reads the field.
        let _ = &self.keeper;
    }
}

/// Bytes to be kept: readable, unchanging while the loan lasts.
#[derive(Clone)]
pub struct Payload {
    start: NonNull<u8>,
    len: usize,
    keeper: Keeper,
}

// SAFETY: the range is only read, and does not change while the loan lasts (promised to `Payload::new`).
unsafe impl Send for Payload {}
// SAFETY: as above.
unsafe impl Sync for Payload {}

impl Payload {
    /// Lends `len` bytes from `start`.
    ///
    /// # Safety
    /// Until the last clone is dropped, the range stays valid as long as `keeper` lives, and nobody writes it.
    pub unsafe fn new(start: NonNull<u8>, len: usize, keeper: Keeper) -> Self {
        Self { start, len, keeper }
    }

    /// A payload that owns its bytes.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        let owner = Arc::new(bytes);
        let start = NonNull::from(owner.as_slice()).cast();
        // SAFETY: the Vec lives in the keeper and is never changed.
        unsafe { Self::new(start, owner.len(), owner as Keeper) }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        let _ = &self.keeper;
        // SAFETY: valid and unchanging, as promised to `new`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Payload").field("len", &self.len).finish_non_exhaustive()
    }
}

/// Heap memory behind [`Dest::from_vec`].
pub struct Scratch {
    bytes: std::cell::UnsafeCell<Vec<u8>>,
}

// SAFETY: the bytes are reached through the one `Dest`, or by value once nobody else owns the scratch.
unsafe impl Send for Scratch {}
// SAFETY: as above.
unsafe impl Sync for Scratch {}

impl Scratch {
    /// The bytes, or the scratch itself while its `Dest` still lives.
    pub fn into_bytes(self: Arc<Self>) -> Result<Vec<u8>, Arc<Self>> {
        Arc::try_unwrap(self).map(|scratch| scratch.bytes.into_inner())
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}
