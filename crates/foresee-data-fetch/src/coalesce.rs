// SPDX-License-Identifier: Apache-2.0
//! The rule that joins neighbouring ranges of an object into one read.
//!
//! It is separate from the queue because it is pure arithmetic on ranges: grow right, then left, within the
//! limits on the gap, the target size and the fraction of unwanted bytes. The caller decides by urgency which
//! ranges it offers.

use foresee_units::Extent;

use crate::config::CoalesceConfig;

/// Maximum fraction of gaps in a span: one part in ten.
const OVER_READ: u64 = 10;

/// Return `extent` with `start..end` added, if the limits allow it.
pub(crate) fn join(extent: Extent, start: u64, end: u64, config: &CoalesceConfig) -> Option<Extent> {
    let grown = extent.with(start, end);
    let fits = extent.gap(start, end) <= config.gap.get()
        && (grown.len() <= config.target.get() || grown.len() == extent.len())
        && grown.unwanted() <= grown.len() / OVER_READ;
    fits.then_some(grown)
}

#[cfg(test)]
mod tests {
    use foresee_units::Bytes;

    use super::*;

    const CONFIG: CoalesceConfig =
        CoalesceConfig { gap: Bytes::new(50), target: Bytes::new(1000), max_parts: 16 };

    #[test]
    fn touching_and_overlapping_ranges_join_without_over_read() {
        let joined = join(Extent::new(100, 200), 200, 300, &CONFIG).unwrap();
        assert_eq!(joined, Extent { start: 100, end: 300, wanted: 200 });
        let joined = join(joined, 50, 150, &CONFIG).unwrap();
        assert_eq!(joined, Extent { start: 50, end: 300, wanted: 250 });
        assert_eq!(join(joined, 60, 70, &CONFIG), Some(joined));
    }

    #[test]
    fn gaps_join_up_to_a_tenth_of_the_span() {
        assert!(join(Extent::new(0, 450), 500, 950, &CONFIG).is_some());
        assert_eq!(join(Extent::new(0, 200), 250, 400, &CONFIG), None, "50 of 400 bytes are unwanted");
        assert_eq!(join(Extent::new(0, 450), 501, 950, &CONFIG), None, "the gap is too wide");
    }

    #[test]
    fn a_span_stops_at_its_target_but_a_large_request_still_joins_ranges_inside_it() {
        assert_eq!(join(Extent::new(0, 900), 900, 1001, &CONFIG), None);
        assert!(join(Extent::new(0, 5000), 10, 20, &CONFIG).is_some());
    }
}
