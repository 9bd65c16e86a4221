// SPDX-License-Identifier: Apache-2.0
//! Receive buffers of averages: one per tensor, in the model's dtype and memory order.
//!
//! Readers write here without the lock of the state: `Collector` hands out each packet of a round to one reader, and a
//! tensor's next round begins only when its last was consumed. The plan fixes the sizes.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::Arc;

use foresee_grad_queue::{Plan, TensorId};

/// Memory of one tensor's average. It begins on a cache line.
pub struct ReceiveBuffer {
    start: NonNull<u8>,
    len: usize,
    /// Owner of the memory.
    _owner: Box<dyn Any + Send + Sync>,
}

/// Memory of this process.
struct CacheLines(Box<[UnsafeCell<CacheLine>]>);

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct CacheLine([u8; Self::BYTES]);

impl CacheLine {
    const BYTES: usize = 64;
}

// SAFETY: the lines are reached only through the pointer of a `ReceiveBuffer`.
unsafe impl Sync for CacheLines {}

// SAFETY: the bytes are shared as raw memory; a caller that makes a slice of them promises that no other slice overlaps
// while either is written (`slice_mut`).
unsafe impl Send for ReceiveBuffer {}
// SAFETY: as above.
unsafe impl Sync for ReceiveBuffer {}

impl ReceiveBuffer {
    pub(crate) fn new(len: usize) -> Arc<Self> {
        let lines =
            (0..len.div_ceil(CacheLine::BYTES)).map(|_| UnsafeCell::new(CacheLine([0; CacheLine::BYTES])));
        let lines = CacheLines(lines.collect());
        let start = lines.0.first().map_or(NonNull::<CacheLine>::dangling().as_ptr(), UnsafeCell::get).cast();
        // SAFETY: `len` bytes of the lines, which do not move while the box lives.
        unsafe { Self::over(start, len, lines) }
    }

    /// A buffer over memory of `owner`.
    ///
    /// # Safety
    /// `len` initialized bytes from `start` on, which is on a cache line, belong to this buffer alone while `owner`
    /// lives.
    pub(crate) unsafe fn over(start: *mut u8, len: usize, owner: impl Any + Send + Sync) -> Arc<Self> {
        let start = NonNull::new(start).expect("memory does not begin at 0");
        Arc::new(Self { start, len, _owner: Box::new(owner) })
    }

    /// Bytes of the tensor.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the tensor has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first byte; valid for reads and writes of [`len`](Self::len) bytes as long as `self` lives.
    pub fn pointer(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// A copy of the average.
    pub fn to_vec(&self) -> Vec<u8> {
        // SAFETY: no packet of the tensor is in flight before its next push, which the caller makes.
        unsafe { self.slice_mut(0, self.len) }.to_vec()
    }

    /// `len` bytes from `offset` on.
    ///
    /// # Safety
    /// No other thread reads or writes any of them while the slice lives.
    ///
    /// # Panics
    /// If they lie outside: a defect of the caller.
    #[expect(clippy::mut_from_ref, reason = "disjoint packets are written by different threads at once")]
    pub(crate) unsafe fn slice_mut(&self, offset: usize, len: usize) -> &mut [u8] {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "a packet lies in its tensor");
        // SAFETY: the range lies within the memory, which is plain initialized bytes without padding; the caller
        // promises exclusive use.
        unsafe { std::slice::from_raw_parts_mut(self.pointer().add(offset), len) }
    }
}

impl std::fmt::Debug for ReceiveBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReceiveBuffer").field("bytes", &self.len).finish_non_exhaustive()
    }
}

/// Bytes of a tensor in the model's dtype; `None`: the plan has no such tensor, or memory cannot hold it.
pub(crate) fn tensor_bytes(plan: &Plan, tensor: TensorId) -> Option<usize> {
    usize::try_from(plan.elements(tensor)?).ok()?.checked_mul(plan.tensor(tensor)?.dtype.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_contiguous_and_the_last_may_be_short() {
        let buffer = ReceiveBuffer::new(100);
        assert_eq!((buffer.len(), buffer.pointer() as usize % 64), (100, 0));
        // SAFETY: one thread, one slice at a time.
        unsafe {
            buffer.slice_mut(0, 64).fill(1);
            buffer.slice_mut(64, 36).fill(2);
            assert_eq!(buffer.slice_mut(0, 100)[63..65], [1, 2]);
        }
        assert_eq!(ReceiveBuffer::new(0).len(), 0);
    }

    #[test]
    #[should_panic(expected = "a packet lies in its tensor")]
    fn a_packet_beyond_the_end_panics() {
        // SAFETY: it panics first.
        unsafe { ReceiveBuffer::new(10).slice_mut(8, 3) };
    }
}
