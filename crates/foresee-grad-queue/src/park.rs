// SPDX-License-Identifier: Apache-2.0
//! How much may wait for its turn in a sum.
//!
//! Contributions that come too early are kept, within a budget that all packets of a server share, each
//! under its own lock. Room is taken before the payload is read, so the bound holds while readers are at
//! work. Refuses beyond the budget: the payload then stays in the connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foresee_units::Bytes;

/// The budget of one server.
#[derive(Debug)]
pub struct ParkBudget {
    limit: u64,
    taken: AtomicU64,
    peak: AtomicU64,
}

impl ParkBudget {
    /// At most `limit` bytes; 0 parks nothing, and sums still end.
    pub fn new(limit: Bytes) -> Arc<Self> {
        Arc::new(Self { limit: limit.get(), taken: AtomicU64::new(0), peak: AtomicU64::new(0) })
    }

    /// Bytes that may be parked.
    pub fn limit(&self) -> Bytes {
        Bytes::new(self.limit)
    }

    /// Bytes parked, or promised to a payload that is being read.
    pub fn parked(&self) -> Bytes {
        Bytes::new(self.taken.load(Ordering::Relaxed))
    }

    /// The most that was ever parked or promised.
    pub fn peak(&self) -> Bytes {
        Bytes::new(self.peak.load(Ordering::Relaxed))
    }

    /// Room for `bytes`, given back when the result is dropped.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: u64) -> Option<ParkRoom> {
        let fits = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= self.limit);
        let before = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        self.peak.fetch_max(before + bytes, Ordering::Relaxed);
        Some(ParkRoom { budget: Arc::clone(self), bytes })
    }
}

/// Room taken from a budget.
#[derive(Debug)]
pub(crate) struct ParkRoom {
    budget: Arc<ParkBudget>,
    bytes: u64,
}

impl Drop for ParkRoom {
    fn drop(&mut self) {
        self.budget.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_given_within_the_limit_and_comes_back() {
        let budget = ParkBudget::new(Bytes::new(100));
        let first = budget.reserve(60).unwrap();
        assert!(budget.reserve(41).is_none());
        let second = budget.reserve(40).unwrap();
        assert_eq!(budget.parked(), Bytes::new(100));
        drop((first, second));
        assert_eq!((budget.parked(), budget.peak()), (Bytes::ZERO, Bytes::new(100)));
        assert!(budget.reserve(u64::MAX).is_none());
    }
}
