// SPDX-License-Identifier: Apache-2.0
//! The page size of fresh memory, chosen by measurement for each block.
//!
//! A huge page costs one fault where small ones cost 512, and random reads translate its address faster. But a
//! virtual machine may have returned its free huge pages to the host; getting one back costs many times as much as
//! small pages, and the guest cannot detect this. So both sizes are measured on the first blocks. Huge pages stay
//! unless small ones are far cheaper, and the other size is measured again from time to time.

use std::ops::Range;

use foresee_units::Nanos;

/// Memory of one page size: large enough to measure, small enough to risk.
pub(super) const BLOCK: usize = 8 << 20;
/// Small pages are used only if they cost at most this share of huge ones, because they slow down later reads.
const FAR_CHEAPER: f64 = 0.5;
/// The other size is measured again after this many blocks, then after twice as many each time.
const RETRY_FIRST: u32 = 32;

/// A page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageSize {
    Huge,
    Small,
}

impl PageSize {
    const fn other(self) -> Self {
        match self {
            Self::Huge => Self::Small,
            Self::Small => Self::Huge,
        }
    }
}

/// The measurements and the current choice.
#[derive(Debug)]
pub(super) struct PageSizeChoice {
    /// Memory below this has been filled at least once.
    touched: usize,
    /// Memory below this has a page size.
    advised: usize,
    /// The page size of the last block, and the cost of filling it so far.
    size: PageSize,
    bytes: u64,
    cost: Nanos,
    /// Nanoseconds per byte of the last block of each size: huge, small.
    cost_per_byte: [Option<f64>; 2],
    /// Blocks since both sizes were measured.
    since_retry: u32,
    retry_interval: u32,
}

/// Advice for a range that is about to be filled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FillAdvice {
    /// Memory that gets this page size before it is touched.
    pub(super) advise: Option<(Range<usize>, PageSize)>,
    /// Whether the fill touches fresh memory, so that its cost is a measurement.
    pub(super) is_fresh: bool,
}

impl PageSizeChoice {
    pub(super) const fn new() -> Self {
        Self {
            touched: 0,
            advised: 0,
            size: PageSize::Huge,
            bytes: 0,
            cost: Nanos::ZERO,
            cost_per_byte: [None; 2],
            since_retry: 0,
            retry_interval: RETRY_FIRST,
        }
    }

    /// Advice for filling the non-empty `range` of a slab of `len` bytes.
    pub(super) fn prepare(&mut self, range: &Range<usize>, len: usize) -> FillAdvice {
        if range.end <= self.touched {
            return FillAdvice::default();
        }
        self.touched = range.end;
        let mut advise = None;
        if range.end > self.advised {
            self.update_cost();
            self.size = self.choose();
            let end = range.end.next_multiple_of(BLOCK).min(len);
            advise = Some((self.advised..end, self.size));
            self.advised = end;
        }
        FillAdvice { advise, is_fresh: true }
    }

    /// Add the cost of filling fresh memory.
    pub(super) fn observe(&mut self, bytes: usize, cost: Nanos) {
        self.bytes += bytes as u64;
        self.cost += cost;
    }

    #[expect(clippy::cast_precision_loss, reason = "a cost_per_byte: 53 bits are plenty")]
    fn update_cost(&mut self) {
        let (bytes, cost) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.cost));
        if bytes > 0 {
            self.cost_per_byte[self.size as usize] = Some(cost.get() as f64 / bytes as f64);
        }
    }

    fn choose(&mut self) -> PageSize {
        let [huge, small] = self.cost_per_byte;
        let Some(huge) = huge else { return PageSize::Huge };
        let Some(small) = small else { return PageSize::Small };
        let best = if small <= huge * FAR_CHEAPER { PageSize::Small } else { PageSize::Huge };
        self.since_retry += 1;
        if self.since_retry <= self.retry_interval {
            return best;
        }
        self.since_retry = 0;
        self.retry_interval = self.retry_interval.saturating_mul(2);
        best.other()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fill `blocks` whole blocks, each at the cost per byte of its page size; return their page sizes.
    fn fill(pages: &mut PageSizeChoice, blocks: usize, huge: u64, small: u64) -> Vec<PageSize> {
        let from = pages.advised;
        let mut sizes = Vec::new();
        for start in (from..from + blocks * BLOCK).step_by(BLOCK / 4) {
            let entry = pages.prepare(&(start..start + BLOCK / 4), usize::MAX);
            assert!(entry.is_fresh);
            if let Some((range, size)) = entry.advise {
                assert_eq!(range, start..start + BLOCK);
                sizes.push(size);
            }
            let cost_per_byte =
                if *sizes.last().expect("the first is advised") == PageSize::Huge { huge } else { small };
            pages.observe(BLOCK / 4, Nanos::new(cost_per_byte * BLOCK as u64 / 4));
        }
        sizes
    }

    #[test]
    fn both_page_sizes_are_measured_and_huge_pages_stay_unless_small_ones_are_far_cheaper() {
        use PageSize::{Huge, Small};
        assert_eq!(fill(&mut PageSizeChoice::new(), 5, 10, 6), [Huge, Small, Huge, Huge, Huge]);
        assert_eq!(fill(&mut PageSizeChoice::new(), 5, 10, 5), [Huge, Small, Small, Small, Small]);
    }

    #[test]
    fn the_other_page_size_is_measured_more_and_more_rarely_and_used_once_it_is_better() {
        let mut pages = PageSizeChoice::new();
        let sizes = fill(&mut pages, 200, 10, 1);
        let again: Vec<_> = (2..200).filter(|&at| sizes[at] == PageSize::Huge).collect();
        assert_eq!(again, [34, 99]);
        let sizes = fill(&mut pages, 100, 1, 1);
        let first = sizes.iter().position(|&size| size == PageSize::Huge).expect("tried again");
        assert!(sizes[first..].iter().all(|&size| size == PageSize::Huge));
    }

    #[test]
    fn memory_that_was_filled_before_is_not_fresh_and_a_large_sample_sets_the_page_size_of_all_its_blocks() {
        let mut pages = PageSizeChoice::new();
        let len = 5 * BLOCK / 2;
        let entry = pages.prepare(&(0..BLOCK + 1), len);
        assert_eq!(entry.advise, Some((0..2 * BLOCK, PageSize::Huge)));
        assert_eq!(pages.prepare(&(64..128), len), FillAdvice::default());
        let entry = pages.prepare(&(BLOCK + 1..BLOCK + 2), len);
        assert_eq!(entry, FillAdvice { advise: None, is_fresh: true });
        assert_eq!(
            pages.prepare(&(2 * BLOCK..len), len).advise.map(|(range, _)| range),
            Some(2 * BLOCK..len)
        );
    }
}
