// SPDX-License-Identifier: Apache-2.0
//! Bytes that begin on a cache line.
//!
//! Apart from the slots, so that the one place with `unsafe` is a page. Refuses to grow: a packet's size is
//! known from the plan.

/// Zeroed bytes at a multiple of 64.
#[derive(Debug)]
pub(crate) struct Buffer {
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
    pub(crate) fn zeroed(len: usize) -> Self {
        Self { lines: vec![Line([0; Line::BYTES]); len.div_ceil(Line::BYTES)].into(), len }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the lines are that many plain, initialized bytes without padding (size 64, alignment 64), one
        // after another; `len` does not exceed them, and they are borrowed for as long as the slice.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and the lines are borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
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
}
