// SPDX-License-Identifier: Apache-2.0
//! The rule that joins neighbouring ranges of an object into one read.
//!
//! It is separate from the queue because it is pure arithmetic on ranges: grow right, then left, within the
//! limits on the gap, the target size and the fraction of unwanted bytes. The caller decides by urgency which
//! ranges it offers.

use crate::config::CoalesceConfig;

/// Maximum fraction of gaps in a span: one part in ten.
const OVER_READ: u64 = 10;

/// A span that is being built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// First byte.
    pub(crate) start: u64,
    /// The byte after the last.
    pub(crate) end: u64,
    /// Bytes that requests want.
    pub(crate) wanted: u64,
}

impl Extent {
    /// A single range.
    pub(crate) const fn new(start: u64, end: u64) -> Self {
        Self { start, end, wanted: end - start }
    }

    /// Bytes from first to last.
    pub(crate) const fn len(self) -> u64 {
        self.end - self.start
    }

    /// Return this extent with `start..end` added. Ranges are offered outwards, nearest first, so no request wants the
    /// bytes between the extent and a range beyond it.
    pub(crate) fn around(self, start: u64, end: u64) -> Self {
        let gap = self.gap(start, end);
        let grown = Self { start: self.start.min(start), end: self.end.max(end), wanted: 0 };
        Self { wanted: self.wanted + (grown.len() - self.len() - gap), ..grown }
    }

    fn gap(self, start: u64, end: u64) -> u64 {
        start.saturating_sub(self.end).max(self.start.saturating_sub(end))
    }

    /// As [`Self::around`], if the limits allow it.
    pub(crate) fn with(self, start: u64, end: u64, config: &CoalesceConfig) -> Option<Self> {
        let (gap, grown) = (self.gap(start, end), self.around(start, end));
        let unwanted = grown.len() - grown.wanted;
        let fits = gap <= config.gap.get()
            && (grown.len() <= config.target.get() || grown.len() == self.len())
            && unwanted <= grown.len() / OVER_READ;
        fits.then_some(grown)
    }
}

#[cfg(test)]
mod tests {
    use foresee_units::Bytes;

    use super::*;

    const CONFIG: CoalesceConfig =
        CoalesceConfig { gap: Bytes::new(50), target: Bytes::new(1000), max_parts: 16 };

    #[test]
    fn touching_and_overlapping_ranges_join_without_over_read() {
        let joined = Extent::new(100, 200).with(200, 300, &CONFIG).unwrap();
        assert_eq!(joined, Extent { start: 100, end: 300, wanted: 200 });
        let joined = joined.with(50, 150, &CONFIG).unwrap();
        assert_eq!(joined, Extent { start: 50, end: 300, wanted: 250 });
        assert_eq!(joined.with(60, 70, &CONFIG), Some(joined));
    }

    #[test]
    fn gaps_join_up_to_a_tenth_of_the_span() {
        assert!(Extent::new(0, 450).with(500, 950, &CONFIG).is_some());
        assert_eq!(Extent::new(0, 200).with(250, 400, &CONFIG), None, "50 of 400 bytes are unwanted");
        assert_eq!(Extent::new(0, 450).with(501, 950, &CONFIG), None, "the gap is too wide");
    }

    #[test]
    fn a_span_stops_at_its_target_but_a_large_request_still_joins_ranges_inside_it() {
        assert_eq!(Extent::new(0, 900).with(900, 1001, &CONFIG), None);
        assert!(Extent::new(0, 5000).with(10, 20, &CONFIG).is_some());
    }
}
