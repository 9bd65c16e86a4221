// SPDX-License-Identifier: Apache-2.0
//! Samples in the cache, and the order of their eviction.

use std::collections::{BTreeMap, BTreeSet};

use foresee_units::Bytes;

/// Next use of a sample, on the scale of all accesses. Greater ones leave first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NextAccess {
    /// Announced by a consumer that moves: it is not evicted.
    Announced {
        at: u64,
    },
    /// Expected, or announced by a consumer that stands still.
    Expected {
        at: u64,
    },
    Unknown,
}

/// Rank of a sample: its next use, then the number of its latest request.
type Rank = (NextAccess, u64);

#[derive(Clone, Copy, Debug)]
struct Resident {
    size: Bytes,
    rank: Rank,
}

/// The cached samples.
#[derive(Debug)]
pub(super) struct Residents {
    capacity: Bytes,
    used: Bytes,
    /// Bytes of the samples that are not evicted.
    announced: Bytes,
    samples: BTreeMap<u32, Resident>,
    order: BTreeSet<(Rank, u32)>,
    /// Requests and insertions so far.
    touches: u64,
}

impl Residents {
    pub(super) fn new(capacity: Bytes) -> Self {
        Self {
            capacity,
            used: Bytes::ZERO,
            announced: Bytes::ZERO,
            samples: BTreeMap::new(),
            order: BTreeSet::new(),
            touches: 0,
        }
    }

    pub(super) const fn capacity(&self) -> Bytes {
        self.capacity
    }

    pub(super) const fn used(&self) -> Bytes {
        self.used
    }

    pub(super) const fn announced_bytes(&self) -> Bytes {
        self.announced
    }

    pub(super) fn len(&self) -> usize {
        self.samples.len()
    }

    pub(super) fn contains(&self, sample: u32) -> bool {
        self.samples.contains_key(&sample)
    }

    /// The next use by which a cached sample is ranked.
    pub(super) fn next(&self, sample: u32) -> Option<NextAccess> {
        self.samples.get(&sample).map(|one| one.rank.0)
    }

    /// Note a request of a cached sample, and rank it by its next use.
    pub(super) fn touch(&mut self, sample: u32, next: NextAccess) {
        self.touches += 1;
        self.set_rank(sample, (next, self.touches));
    }

    /// Rank a cached sample by its next use.
    pub(super) fn rank(&mut self, sample: u32, next: NextAccess) {
        if let Some(one) = self.samples.get(&sample)
            && one.rank.0 != next
        {
            self.set_rank(sample, (next, one.rank.1));
        }
    }

    /// The samples to evict so that one of `size` bytes with this next use fits; `None` if it may not enter.
    pub(super) fn victims_for(&self, size: Bytes, next: NextAccess) -> Option<Vec<u32>> {
        if size > self.capacity {
            return None;
        }
        let mut free = self.capacity.saturating_sub(self.used);
        let mut victims = Vec::new();
        let used_later = self.order.iter().rev().take_while(|((other, _), _)| {
            // Of samples without a known use, the one requested latest leaves: the new one.
            *other > next && !matches!(other, NextAccess::Announced { .. })
        });
        for &(_, sample) in used_later {
            if free >= size {
                break;
            }
            free += self.samples[&sample].size;
            victims.push(sample);
        }
        (free >= size).then_some(victims)
    }

    /// The cached sample that is used latest, if that is later than the cached sample `index` and it may leave.
    pub(super) fn used_after(&self, index: u32) -> Option<u32> {
        let next = self.next(index)?;
        let &((last, _), victim) = self.order.iter().rev().find(|&&(_, sample)| sample != index)?;
        (last > next && !matches!(last, NextAccess::Announced { .. })).then_some(victim)
    }

    /// Insert a sample that is not cached and fits.
    pub(super) fn insert(&mut self, sample: u32, size: Bytes, next: NextAccess) {
        self.touches += 1;
        let rank = (next, self.touches);
        self.used += size;
        debug_assert!(self.used <= self.capacity, "sample {sample} does not fit");
        self.samples.insert(sample, Resident { size, rank });
        self.order.insert((rank, sample));
        if matches!(next, NextAccess::Announced { .. }) {
            self.announced += size;
        }
    }

    pub(super) fn remove(&mut self, sample: u32) {
        if let Some(one) = self.samples.remove(&sample) {
            self.order.remove(&(one.rank, sample));
            self.used -= one.size;
            if matches!(one.rank.0, NextAccess::Announced { .. }) {
                self.announced -= one.size;
            }
        }
    }

    /// The sample with the nearest expected use, if that is before `time`.
    pub(super) fn expected_before(&self, time: u64) -> Option<u32> {
        let first = ((NextAccess::Expected { at: 0 }, 0), 0);
        let end = ((NextAccess::Expected { at: time }, 0), 0);
        self.order.range(first..end).next().map(|&(_, sample)| sample)
    }

    /// The announced samples.
    pub(super) fn announced(&self) -> Vec<u32> {
        let range = self.order.range(..((NextAccess::Expected { at: 0 }, 0), 0));
        range.map(|&(_, sample)| sample).collect()
    }

    fn set_rank(&mut self, sample: u32, rank: Rank) {
        let Some(one) = self.samples.get_mut(&sample) else { return };
        let before = std::mem::replace(&mut one.rank, rank);
        let size = one.size;
        self.order.remove(&(before, sample));
        self.order.insert((rank, sample));
        let was_announced = matches!(before.0, NextAccess::Announced { .. });
        match (was_announced, matches!(rank.0, NextAccess::Announced { .. })) {
            (false, true) => self.announced += size,
            (true, false) => self.announced -= size,
            _ => {}
        }
    }
}
