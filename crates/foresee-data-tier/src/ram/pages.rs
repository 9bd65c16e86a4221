// SPDX-License-Identifier: Apache-2.0
//! The page size of fresh memory of the slab, chosen by measurement for each stretch.
//!
//! A huge page costs one fault where small ones cost 512, and random reads find its address at once. But a virtual
//! machine may have returned its free huge pages to the host; it then gets each of them again at many times the price
//! of small ones, and nothing reports this to the guest. So both kinds are tried on the first stretches, huge pages
//! stay unless small ones are far cheaper, and the other kind is tried again now and then.
//!
//! The choice is separate from the mapping so that it can be tested without memory.

use std::ops::Range;

use foresee_units::Nanos;

/// Memory that gets one kind of pages: enough to measure, little to lose.
pub(super) const STRETCH: usize = 8 << 20;
/// Small pages are taken only where they cost no more than this share: they make later reads dearer.
const FAR_CHEAPER: f64 = 0.5;
/// After so many stretches the other kind is tried again; each time after twice as many as before.
const FIRST_PATIENCE: u32 = 32;

/// A kind of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Huge,
    Small,
}

impl Kind {
    const fn other(self) -> Self {
        match self {
            Self::Huge => Self::Small,
            Self::Small => Self::Huge,
        }
    }
}

/// The choice so far.
#[derive(Debug)]
pub(super) struct Pages {
    /// Memory below this has been filled at least once.
    touched: usize,
    /// Memory below this has its kind.
    settled: usize,
    /// The kind of the last stretch, and what filling it has cost so far.
    kind: Kind,
    bytes: u64,
    cost: Nanos,
    /// Nanoseconds per byte of the last stretch of each kind: huge, small.
    price: [Option<f64>; 2],
    /// Stretches since both kinds were last known.
    since: u32,
    patience: u32,
}

/// What to do about a range that is about to be filled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    /// Memory that gets this kind of pages before it is touched.
    pub(super) advise: Option<(Range<usize>, Kind)>,
    /// Whether the fill touches fresh memory, so that its cost says something.
    pub(super) is_fresh: bool,
}

impl Pages {
    pub(super) const fn new() -> Self {
        Self {
            touched: 0,
            settled: 0,
            kind: Kind::Huge,
            bytes: 0,
            cost: Nanos::ZERO,
            price: [None; 2],
            since: 0,
            patience: FIRST_PATIENCE,
        }
    }

    /// A range, not empty, is about to be filled in a slab of `len` bytes.
    pub(super) fn enter(&mut self, range: &Range<usize>, len: usize) -> Entry {
        if range.end <= self.touched {
            return Entry::default();
        }
        self.touched = range.end;
        let mut advise = None;
        if range.end > self.settled {
            self.settle_price();
            self.kind = self.choose();
            let end = range.end.next_multiple_of(STRETCH).min(len);
            advise = Some((self.settled..end, self.kind));
            self.settled = end;
        }
        Entry { advise, is_fresh: true }
    }

    /// What filling fresh memory has cost.
    pub(super) fn observe(&mut self, bytes: usize, cost: Nanos) {
        self.bytes += bytes as u64;
        self.cost += cost;
    }

    #[expect(clippy::cast_precision_loss, reason = "a price: 53 bits are plenty")]
    fn settle_price(&mut self) {
        let (bytes, cost) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.cost));
        if bytes > 0 {
            self.price[self.kind as usize] = Some(cost.get() as f64 / bytes as f64);
        }
    }

    fn choose(&mut self) -> Kind {
        let [huge, small] = self.price;
        let Some(huge) = huge else { return Kind::Huge };
        let Some(small) = small else { return Kind::Small };
        let best = if small <= huge * FAR_CHEAPER { Kind::Small } else { Kind::Huge };
        self.since += 1;
        if self.since <= self.patience {
            return best;
        }
        self.since = 0;
        self.patience = self.patience.saturating_mul(2);
        best.other()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills `stretches` whole ones, each at its kind's price per byte; the kinds they got.
    fn fill(pages: &mut Pages, stretches: usize, huge: u64, small: u64) -> Vec<Kind> {
        let from = pages.settled;
        let mut kinds = Vec::new();
        for start in (from..from + stretches * STRETCH).step_by(STRETCH / 4) {
            let entry = pages.enter(&(start..start + STRETCH / 4), usize::MAX);
            assert!(entry.is_fresh);
            if let Some((range, kind)) = entry.advise {
                assert_eq!(range, start..start + STRETCH);
                kinds.push(kind);
            }
            let price = if *kinds.last().expect("the first is advised") == Kind::Huge { huge } else { small };
            pages.observe(STRETCH / 4, Nanos::new(price * STRETCH as u64 / 4));
        }
        kinds
    }

    #[test]
    fn both_kinds_are_tried_and_huge_pages_stay_unless_small_ones_are_far_cheaper() {
        use Kind::{Huge, Small};
        assert_eq!(fill(&mut Pages::new(), 5, 10, 6), [Huge, Small, Huge, Huge, Huge]);
        assert_eq!(fill(&mut Pages::new(), 5, 10, 5), [Huge, Small, Small, Small, Small]);
    }

    #[test]
    fn the_other_kind_is_tried_again_ever_more_rarely_and_taken_once_it_is_better() {
        let mut pages = Pages::new();
        let kinds = fill(&mut pages, 200, 10, 1);
        let again: Vec<_> = (2..200).filter(|&at| kinds[at] == Kind::Huge).collect();
        assert_eq!(again, [34, 99]);
        let kinds = fill(&mut pages, 100, 1, 1);
        let first = kinds.iter().position(|&kind| kind == Kind::Huge).expect("tried again");
        assert!(kinds[first..].iter().all(|&kind| kind == Kind::Huge));
    }

    #[test]
    fn memory_that_was_filled_before_is_not_fresh_and_a_large_sample_settles_all_it_covers() {
        let mut pages = Pages::new();
        let len = 5 * STRETCH / 2;
        let entry = pages.enter(&(0..STRETCH + 1), len);
        assert_eq!(entry.advise, Some((0..2 * STRETCH, Kind::Huge)));
        assert_eq!(pages.enter(&(64..128), len), Entry::default());
        let entry = pages.enter(&(STRETCH + 1..STRETCH + 2), len);
        assert_eq!(entry, Entry { advise: None, is_fresh: true });
        assert_eq!(
            pages.enter(&(2 * STRETCH..len), len).advise.map(|(range, _)| range),
            Some(2 * STRETCH..len)
        );
    }
}
