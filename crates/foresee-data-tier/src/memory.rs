// SPDX-License-Identifier: Apache-2.0
//! Memory that an operation borrows from its caller while it is in flight.
//!
//! Batches are buffers that Python may hold indefinitely, and tiers fill them from their own threads, so a reference
//! cannot express the borrow. Each borrow has a reference-counted owner instead, which keeps the memory alive.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// Keeps borrowed memory alive.
pub type MemoryOwner = Arc<dyn Any + Send + Sync>;

/// Exclusive access to one range of memory, to fill it.
pub struct Dest {
    start: NonNull<u8>,
    len: usize,
    owner: MemoryOwner,
}

// SAFETY: a `Dest` is the only handle to its range (promised to `Dest::new`), and the owner is `Send`.
unsafe impl Send for Dest {}

impl Dest {
    /// Borrow `len` bytes from `start`.
    ///
    /// # Safety
    /// Until this value is dropped, the range is valid and initialised as long as `owner` lives, and no other code
    /// reads or writes it.
    pub unsafe fn new(start: NonNull<u8>, len: usize, owner: MemoryOwner) -> Self {
        Self { start, len, owner }
    }

    /// Create a range on the heap, which can be read after the `Dest` is dropped. For tests and temporary buffers.
    pub fn from_vec(mut bytes: Vec<u8>) -> (Self, Arc<Scratch>) {
        let start = NonNull::from(bytes.as_mut_slice()).cast();
        let len = bytes.len();
        let scratch = Arc::new(Scratch { bytes: std::cell::UnsafeCell::new(bytes) });
        // SAFETY: `Scratch` returns its bytes only without another owner, which is after this `Dest`.
        let dest = unsafe { Self::new(start, len, Arc::clone(&scratch) as MemoryOwner) };
        (dest, scratch)
    }

    /// Number of bytes to fill.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes to fill (a sample of zero bytes).
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The range.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: valid, initialised and exclusive, as required by `new`.
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
        // The owner is dropped after the last access to the range; named here because nothing else reads the field.
        let _ = &self.owner;
    }
}

/// Bytes to be stored: readable, and unchanged while they are borrowed.
#[derive(Clone)]
pub struct Payload {
    start: NonNull<u8>,
    len: usize,
    owner: MemoryOwner,
}

// SAFETY: the range is only read, and does not change while it is borrowed (required by `Payload::new`).
unsafe impl Send for Payload {}
// SAFETY: as above.
unsafe impl Sync for Payload {}

impl Payload {
    /// Borrow `len` bytes from `start`.
    ///
    /// # Safety
    /// Until the last clone is dropped, the range is valid as long as `owner` lives, and no code writes it.
    pub unsafe fn new(start: NonNull<u8>, len: usize, owner: MemoryOwner) -> Self {
        Self { start, len, owner }
    }

    /// Create a payload that owns its bytes.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        let owner = Arc::new(bytes);
        let start = NonNull::from(owner.as_slice()).cast();
        // SAFETY: the owner contains the Vec, which never changes.
        unsafe { Self::new(start, owner.len(), owner as MemoryOwner) }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        let _ = &self.owner;
        // SAFETY: valid and unchanged, as required by `new`.
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

// SAFETY: the bytes are accessed through the one `Dest`, or by value once the scratch has no other owner.
unsafe impl Send for Scratch {}
// SAFETY: as above.
unsafe impl Sync for Scratch {}

impl Scratch {
    /// The bytes, or the scratch itself while its `Dest` exists.
    pub fn into_bytes(self: Arc<Self>) -> Result<Vec<u8>, Arc<Self>> {
        Arc::try_unwrap(self).map(|scratch| scratch.bytes.into_inner())
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}
