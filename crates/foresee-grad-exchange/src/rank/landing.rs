// SPDX-License-Identifier: Apache-2.0
//! Receive buffers of averages: one per tensor, in the model's dtype and memory order.
//!
//! Readers write here without the lock of the state: `Collect` hands out each packet of a round to one reader, and a
//! tensor's next round begins only when its last was taken over. The plan fixes the sizes.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::Arc;

/// A tensor's memory. It begins on a cache line.
pub(crate) struct Landing {
    start: NonNull<u8>,
    len: usize,
    /// Whose memory it is.
    _owner: Box<dyn Any + Send + Sync>,
}

/// Memory of this process.
struct Lines(Box<[UnsafeCell<Line>]>);

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; Self::BYTES]);

impl Line {
    const BYTES: usize = 64;
}

// SAFETY: nobody reaches the lines but through the pointer of a `Landing`.
unsafe impl Sync for Lines {}

// SAFETY: the bytes are shared as raw memory; whoever makes a slice of them promises that nobody else has one that
// overlaps while either writes (`slice_mut`).
unsafe impl Send for Landing {}
// SAFETY: as above.
unsafe impl Sync for Landing {}

impl Landing {
    pub(crate) fn new(len: usize) -> Arc<Self> {
        let lines = (0..len.div_ceil(Line::BYTES)).map(|_| UnsafeCell::new(Line([0; Line::BYTES])));
        let lines = Lines(lines.collect());
        let start = lines.0.first().map_or(NonNull::<Line>::dangling().as_ptr(), UnsafeCell::get).cast();
        // SAFETY: `len` bytes of the lines, which do not move while the box lives.
        unsafe { Self::over(start, len, lines) }
    }

    /// Over memory of `owner`.
    ///
    /// # Safety
    /// `len` initialized bytes from `start` on, which is on a cache line, are this landing's alone while `owner` lives.
    pub(crate) unsafe fn over(start: *mut u8, len: usize, owner: impl Any + Send + Sync) -> Arc<Self> {
        let start = NonNull::new(start).expect("memory does not begin at 0");
        Arc::new(Self { start, len, _owner: Box::new(owner) })
    }

    /// Bytes of the tensor.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first byte; valid for reads and writes of [`len`](Self::len) bytes for as long as `self` lives.
    pub(crate) fn pointer(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// `len` bytes from `offset` on.
    ///
    /// # Safety
    /// Nobody reads or writes any of them while the slice lives.
    ///
    /// # Panics
    /// If they lie outside: a defect of the caller.
    #[expect(clippy::mut_from_ref, reason = "disjoint packets are written by different threads at once")]
    pub(crate) unsafe fn slice_mut(&self, offset: usize, len: usize) -> &mut [u8] {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "a packet lies in its tensor");
        // SAFETY: the range lies within the memory, which is plain initialized bytes without padding; that nobody
        // else uses it is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.pointer().add(offset), len) }
    }
}

impl std::fmt::Debug for Landing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Landing").field("bytes", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_lie_side_by_side_and_the_last_may_be_short() {
        let landing = Landing::new(100);
        assert_eq!((landing.len(), landing.pointer() as usize % 64), (100, 0));
        // SAFETY: one thread, one slice at a time.
        unsafe {
            landing.slice_mut(0, 64).fill(1);
            landing.slice_mut(64, 36).fill(2);
            assert_eq!(landing.slice_mut(0, 100)[63..65], [1, 2]);
        }
        assert_eq!(Landing::new(0).len(), 0);
    }

    #[test]
    #[should_panic(expected = "a packet lies in its tensor")]
    fn a_packet_beyond_the_end_is_a_defect() {
        // SAFETY: it panics first.
        unsafe { Landing::new(10).slice_mut(8, 3) };
    }
}
