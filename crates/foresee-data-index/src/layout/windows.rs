// SPDX-License-Identifier: Apache-2.0
//! Windows: samples of one length over arrays of one axis, a stride apart, so that they may overlap.
//!
//! They are separate from rows, which follow one another. A window never crosses the end of its file: the rest at
//! a file's end is dropped, or is the end of one further window that begins earlier. All lengths are in elements.

use serde::{Deserialize, Serialize};

use super::rows::RowLayout;
use crate::error::IndexError;

/// How files are cut into windows.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Windows {
    /// Type of an element as NumPy writes it: `<u2`.
    pub dtype: String,
    /// Bytes of an element, 1 or more.
    pub item_bytes: u64,
    /// Elements of a window, 1 or more.
    pub length: u64,
    /// Elements from the start of a window to the start of the next one, 1 or more.
    pub stride: u64,
    /// Whether elements at a file's end that no window contains are dropped.
    pub drop_tail: bool,
}

impl Windows {
    /// Bytes of a window.
    pub(crate) const fn bytes(&self) -> u64 {
        self.item_bytes.saturating_mul(self.length)
    }

    pub(crate) fn check(&self) -> Result<(), IndexError> {
        let bytes = self.item_bytes.checked_mul(self.length.max(self.stride));
        if self.item_bytes == 0 || self.length == 0 || self.stride == 0 || bytes.is_none() {
            return Err(IndexError::NoWindow { length: self.length, stride: self.stride });
        }
        Ok(())
    }

    /// The number of windows of a file of `elements`.
    pub(crate) const fn count(&self, elements: u64) -> u64 {
        let Some(last) = elements.checked_sub(self.length) else { return 0 };
        if self.drop_tail { last / self.stride + 1 } else { last.div_ceil(self.stride) + 1 }
    }

    /// The number of elements at the end of a file of `elements` that no window contains.
    pub(crate) const fn tail(&self, elements: u64) -> u64 {
        match self.count(elements) {
            0 => elements,
            count if self.drop_tail => elements - (count - 1) * self.stride - self.length,
            _ => 0,
        }
    }

    /// First byte of window `number` of an object of `size` bytes whose elements begin at `start`; `None` if it
    /// does not exist.
    pub(crate) fn offset(&self, number: u64, start: u64, size: u64) -> Option<u64> {
        let last = size.checked_sub(start)?.checked_sub(self.bytes())?;
        let first = number.checked_mul(self.stride)?.checked_mul(self.item_bytes)?;
        start.checked_add(first.min(last))
    }

    /// The windows of an object of `size` bytes whose elements begin at `start`; also return the number of elements that no
    /// window contains.
    pub(crate) fn rows(
        &self,
        start: u64,
        size: u64,
        uri: impl FnOnce() -> String,
    ) -> Result<(RowLayout, u64), IndexError> {
        let bytes = size.saturating_sub(start);
        match bytes % self.item_bytes {
            0 => {
                let elements = bytes / self.item_bytes;
                Ok((RowLayout { start, rows: self.count(elements) }, self.tail(elements)))
            }
            rest => {
                Err(IndexError::PartOfElement { uri: uri(), size: bytes, item_bytes: self.item_bytes, rest })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use foresee_testkit::property;
    use proptest::prelude::*;

    use super::*;

    fn windows(length: u64, stride: u64, drop_tail: bool) -> Windows {
        Windows { dtype: "<u2".to_owned(), item_bytes: 2, length, stride, drop_tail }
    }

    #[test]
    fn a_hundred_billion_tokens_are_addressed_to_the_last() {
        let windows = windows(1025, 1024, true);
        let (rows, tail) = windows.rows(128, 128 + 200_000_000_000, String::new).expect("whole elements");
        assert_eq!((rows.rows, tail), (97_656_249, 1_023));
        let last = windows.offset(rows.rows - 1, 128, 128 + 200_000_000_000).expect("inside");
        assert_eq!(last, 128 + 2 * 1024 * 97_656_248);
    }

    #[test]
    fn windows_beyond_64_bits_are_refused() {
        for (length, stride) in [(0, 1), (1, 0), (1 << 63, 1), (1, 1 << 63)] {
            assert!(windows(length, stride, true).check().is_err(), "{length} {stride}");
        }
        assert!(windows(1 << 62, 1 << 62, true).check().is_ok());
    }

    proptest! {
        #![proptest_config(property(256))]

        #[test]
        fn windows_match_a_simple_loop(elements in 0_u64..60, length in 1_u64..20, stride in 1_u64..25, drop_tail: bool) {
            let windows = windows(length, stride, drop_tail);
            let mut starts: Vec<u64> = (0..elements).map(|n| n * stride).filter(|start| start + length <= elements).collect();
            let covered = starts.last().map_or(0, |last| last + length);
            if !drop_tail && covered < elements && !starts.is_empty() {
                starts.push(elements - length);
            }
            let size = 128 + 2 * elements;
            let (rows, tail) = windows.rows(128, size, String::new).expect("whole elements");
            prop_assert_eq!(rows.rows, starts.len() as u64);
            let end = starts.last().map_or(0, |last| last + length);
            prop_assert_eq!(tail, elements - end);
            for (number, start) in (0..).zip(starts) {
                prop_assert_eq!(windows.offset(number, 128, size), Some(128 + 2 * start));
            }
        }
    }
}
