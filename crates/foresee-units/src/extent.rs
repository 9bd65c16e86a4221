// SPDX-License-Identifier: Apache-2.0
//! Bytes of an object that one read includes to get several ranges of it.

/// The bytes from the first to the last of some ranges of one object, and how many of them the ranges want.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
    /// Bytes that a range wants, at most [`len`](Self::len).
    pub wanted: u64,
}

impl Extent {
    /// A single range of the bytes from `start` to `end`, which is not before it.
    pub const fn new(start: u64, end: u64) -> Self {
        Self { start, end, wanted: end - start }
    }

    /// Bytes from first to last.
    #[expect(clippy::len_without_is_empty, reason = "an extent of no bytes is as good as any other")]
    pub const fn len(self) -> u64 {
        self.end - self.start
    }

    /// Bytes that no range wants.
    pub const fn unwanted(self) -> u64 {
        self.len() - self.wanted
    }

    /// Bytes between this extent and the range from `start` to `end`; 0 if they touch or overlap.
    pub const fn gap(self, start: u64, end: u64) -> u64 {
        let (behind, before) = (start.saturating_sub(self.end), self.start.saturating_sub(end));
        if behind > before { behind } else { before }
    }

    /// Return this extent with the range from `start` to `end`. Ranges are offered outwards, nearest first, so none wants the
    /// bytes between the extent and a range beyond it.
    #[must_use]
    pub fn with(self, start: u64, end: u64) -> Self {
        let grown = Self { start: self.start.min(start), end: self.end.max(end), wanted: self.wanted };
        Self { wanted: self.wanted + (grown.len() - self.len() - self.gap(start, end)), ..grown }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_behind_before_and_inside_are_added_with_their_gaps() {
        let extent = Extent::new(100, 200);
        assert_eq!(extent.with(250, 300), Extent { start: 100, end: 300, wanted: 150 });
        assert_eq!(extent.with(50, 80), Extent { start: 50, end: 200, wanted: 130 });
        assert_eq!(extent.with(150, 220), Extent { start: 100, end: 220, wanted: 120 });
        assert_eq!(extent.with(120, 130), extent);
        assert_eq!((extent.gap(250, 300), extent.gap(50, 80), extent.gap(150, 220)), (50, 20, 0));
        assert_eq!((extent.len(), extent.with(250, 300).unwanted()), (100, 50));
    }
}
