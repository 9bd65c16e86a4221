// SPDX-License-Identifier: Apache-2.0
//! Capacity of a tier with its rounding and overhead, and the sizes of samples.

use std::sync::Arc;

use foresee_units::{Bytes, SampleId};

use crate::read_group::ObjectRange;

/// A local tier, by its index in [`PlannerConfig::tiers`](crate::PlannerConfig::tiers): 0 is the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TierIndex(pub u8);

/// The capacity of one tier. A sample of `size` bytes takes `round_up(size + overhead, align)` of `capacity`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierCapacity {
    /// Maximum of bytes in the tier; 0 means that it holds nothing.
    pub capacity: Bytes,
    /// Every copy starts at a multiple of this number of bytes; 0 and 1 mean no alignment.
    pub align: u64,
    /// Bytes that the tier adds to each copy: a header, a checksum.
    pub overhead: Bytes,
}

impl TierCapacity {
    /// The bytes that a sample of `size` takes; saturates, so an invalid size never fits.
    pub fn cost(&self, size: Bytes) -> Bytes {
        (size + self.overhead).round_up(self.align)
    }
}

/// The sizes of a data set's samples. Equal calls must give equal results during the whole run.
pub trait SampleSizes: Send + Sync {
    /// The number of samples; their ids are `0..count`.
    fn count(&self) -> u64;

    /// Bytes of one sample. `id` must be below [`count`](Self::count).
    fn size(&self, id: SampleId) -> Bytes;

    /// [`size`](Self::size) follows soon: an implementation with a table may give a [hint](crate::hint) now.
    fn prefetch(&self, id: SampleId) {
        let _ = id;
    }

    /// The size of every sample, if they are all equal; saves a look-up per origin read.
    fn uniform(&self) -> Option<Bytes>;

    /// The bytes of a sample that the origin can send with those of its neighbours, which have the next and the previous
    /// ids; `None` for one that is read alone, and beyond the last id.
    fn grouped_range(&self, id: SampleId) -> Option<ObjectRange> {
        let _ = id;
        None
    }
}

/// Sizes by the planner's ids of 32 bits.
pub(crate) struct Sizes {
    each: Arc<dyn SampleSizes>,
    uniform: Option<Bytes>,
}

impl Sizes {
    pub(crate) fn new(each: Arc<dyn SampleSizes>) -> Self {
        Self { uniform: each.uniform(), each }
    }

    /// As [`SampleSizes::prefetch`].
    pub(crate) fn prefetch(&self, id: u32) {
        if self.uniform.is_none() {
            self.each.prefetch(SampleId(u64::from(id)));
        }
    }

    /// As [`SampleSizes::grouped_range`].
    pub(crate) fn grouped_range(&self, id: u64) -> Option<ObjectRange> {
        self.each.grouped_range(SampleId(id))
    }

    /// Bytes of a sample.
    pub(crate) fn of(&self, id: u32) -> Bytes {
        self.uniform.unwrap_or_else(|| self.each.size(SampleId(u64::from(id))))
    }
}

/// Bytes that the whole data set takes, from the cost of one sample. Queries every size once unless they are
/// uniform.
pub(crate) fn cost_of_all(sizes: &dyn SampleSizes, cost: impl Fn(Bytes) -> Bytes) -> Bytes {
    match sizes.uniform() {
        Some(size) => Bytes::new(cost(size).get().saturating_mul(sizes.count())),
        None => (0..sizes.count()).map(|id| cost(sizes.size(SampleId(id)))).sum(),
    }
}

/// Whether the whole data set fits into a tier. Queries sizes until it is full, unless they are uniform.
pub(crate) fn all_fit(sizes: &dyn SampleSizes, tier: TierCapacity) -> bool {
    if sizes.uniform().is_some() {
        return cost_of_all(sizes, |size| tier.cost(size)) <= tier.capacity;
    }
    let left = (0..sizes.count()).try_fold(tier.capacity.get(), |left, id| {
        left.checked_sub(tier.cost(sizes.size(SampleId(id))).get())
    });
    left.is_some()
}

/// A tier's capacity and its use. `used <= capacity`, except while a reduced tier is being emptied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TierUsage {
    pub(crate) limits: TierCapacity,
    pub(crate) used: Bytes,
    /// Number of copies, which bounds the tables of the tier.
    pub(crate) copies: usize,
}

impl TierUsage {
    pub(crate) fn new(limits: TierCapacity) -> Self {
        Self { limits, used: Bytes::ZERO, copies: 0 }
    }

    pub(crate) fn free(&self) -> Bytes {
        self.limits.capacity.saturating_sub(self.used)
    }

    pub(crate) fn add(&mut self, size: Bytes) {
        self.used += self.limits.cost(size);
        self.copies += 1;
    }

    pub(crate) fn remove(&mut self, size: Bytes) {
        self.used -= self.limits.cost(size);
        self.copies -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_costs_its_size_and_overhead_rounded_up() {
        let tier = TierCapacity { capacity: Bytes::new(4096), align: 64, overhead: Bytes::new(40) };
        assert_eq!(tier.cost(Bytes::ZERO), Bytes::new(64));
        assert_eq!(tier.cost(Bytes::new(24)), Bytes::new(64));
        assert_eq!(tier.cost(Bytes::new(25)), Bytes::new(128));
        assert_eq!(tier.cost(Bytes::MAX), Bytes::MAX);
    }
}
