// SPDX-License-Identifier: Apache-2.0
//! Byte buffers that begin on a cache line.
//!
//! The only `unsafe` code of the slots is here. A packet is read into a buffer, and the memory of the first
//! packet of a sum becomes the sum's memory without a copy. A buffer that is stored with a packet is no larger
//! than its bytes need, because budgets count bytes.

/// Bytes aligned to 64, initially zero. The default is empty and allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct Buffer {
    lines: Box<[Line]>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; Self::BYTES]);

impl Line {
    const BYTES: usize = 64;
}

impl Buffer {
    /// Return a buffer of `len` zeros.
    pub fn zeroed(len: usize) -> Self {
        Self { lines: vec![Line([0; Line::BYTES]); len.div_ceil(Line::BYTES)].into(), len }
    }

    /// Set the length to `len`; the content is unspecified. Reuses memory that is large enough, and never shrinks
    /// it.
    pub fn resize(&mut self, len: usize) {
        if len > self.lines.len() * Line::BYTES {
            *self = Self::zeroed(len);
        }
        self.len = len;
    }

    /// Swap memory with `other` if both lengths are equal and neither buffer has too much memory; return whether
    /// it did.
    pub(crate) fn swap_memory(&mut self, other: &mut Self) -> bool {
        let is_alike = (self.len, self.lines.len()) == (other.len, other.lines.len());
        if is_alike {
            std::mem::swap(self, other);
        }
        is_alike
    }

    /// Return the content in memory that is no larger than needed: either this buffer's own memory or a copy.
    pub(crate) fn take_exact(&mut self) -> Self {
        if self.lines.len() == self.len.div_ceil(Line::BYTES) {
            std::mem::take(self)
        } else {
            Self::from(self.bytes())
        }
    }

    /// The content.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the lines are that many plain, initialized bytes without padding (size 64, alignment 64), one
        // after another; `len` does not exceed them, and they are borrowed for as long as the slice.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }

    /// The content, mutable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and the lines are borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

impl From<&[u8]> for Buffer {
    fn from(bytes: &[u8]) -> Self {
        let mut buffer = Self::zeroed(bytes.len());
        buffer.bytes_mut().copy_from_slice(bytes);
        buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_begin_on_a_cache_line_and_have_the_length_asked_for() {
        for len in [0, 1, 63, 64, 65, 1000] {
            let mut buffer = Buffer::zeroed(len);
            assert_eq!(buffer.bytes(), vec![0; len]);
            assert!((buffer.bytes().as_ptr() as usize).is_multiple_of(64));
            buffer.bytes_mut().fill(7);
            assert_eq!(buffer.bytes(), vec![7; len]);
        }
    }

    #[test]
    fn memory_that_is_large_enough_is_reused() {
        let mut buffer = Buffer::default();
        for (len, lines) in [(0, 0), (100, 2), (7, 2), (128, 2), (129, 3)] {
            buffer.resize(len);
            assert_eq!((buffer.bytes().len(), buffer.lines.len()), (len, lines));
        }
    }

    #[test]
    fn memory_is_swapped_between_buffers_of_equal_length() {
        let mut one = Buffer::from(&[1; 65][..]);
        for (other, traded) in [(65, true), (64, false), (66, false), (129, false)] {
            let mut other = Buffer::zeroed(other);
            let places = (one.bytes().as_ptr(), other.bytes().as_ptr());
            assert_eq!(one.swap_memory(&mut other), traded);
            let (first, second) = if traded { (places.1, places.0) } else { places };
            assert_eq!((one.bytes().as_ptr(), other.bytes().as_ptr()), (first, second));
        }
        let mut large = Buffer::zeroed(500);
        large.resize(65);
        assert!(!one.swap_memory(&mut large), "a packet does not keep more memory than it needs");
    }

    #[test]
    fn a_stored_buffer_has_no_more_memory_than_it_needs() {
        let mut buffer = Buffer::from(&[3; 130][..]);
        buffer.resize(65);
        let (given, place) = (buffer.take_exact(), buffer.bytes().as_ptr());
        assert_eq!((given.bytes(), given.lines.len(), buffer.lines.len()), (&[3; 65][..], 2, 3));
        buffer.resize(129);
        let given = buffer.take_exact();
        assert_eq!((given.bytes().as_ptr(), buffer.bytes(), buffer.lines.len()), (place, &[][..], 0));
    }
}
