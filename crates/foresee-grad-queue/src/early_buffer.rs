// SPDX-License-Identifier: Apache-2.0
//! Memory budget for contributions that arrive before their turn in a sum.
//!
//! All packets of a server share one budget, although each has its own lock. Memory is reserved before the
//! payload is read, so the bound holds while readers are at work. When the budget is used up, the payload stays
//! in its connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foresee_units::Bytes;

/// The early buffer's budget of one server.
#[derive(Debug)]
pub struct EarlyBudget {
    limit: u64,
    reserved: AtomicU64,
    peak: AtomicU64,
}

impl EarlyBudget {
    /// A budget of `limit` bytes; with 0 nothing is buffered, and sums still complete.
    pub fn new(limit: Bytes) -> Arc<Self> {
        Arc::new(Self { limit: limit.get(), reserved: AtomicU64::new(0), peak: AtomicU64::new(0) })
    }

    /// Bytes buffered, or reserved for a payload that is being read.
    pub fn used(&self) -> Bytes {
        Bytes::new(self.reserved.load(Ordering::Relaxed))
    }

    /// The maximum of [`EarlyBudget::used`] so far.
    pub fn peak(&self) -> Bytes {
        Bytes::new(self.peak.load(Ordering::Relaxed))
    }

    /// Reserve `bytes`; the reservation is released when the result is dropped.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: u64) -> Option<Reservation> {
        let fits = |reserved: u64| reserved.checked_add(bytes).filter(|sum| *sum <= self.limit);
        let before = self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        self.peak.fetch_max(before + bytes, Ordering::Relaxed);
        Some(Reservation { budget: Arc::clone(self), bytes })
    }
}

/// A reservation of a budget.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<EarlyBudget>,
    bytes: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.reserved.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_stay_within_the_limit_and_are_released() {
        let budget = EarlyBudget::new(Bytes::new(100));
        let first = budget.reserve(60).unwrap();
        assert!(budget.reserve(41).is_none());
        let second = budget.reserve(40).unwrap();
        assert_eq!(budget.used(), Bytes::new(100));
        drop((first, second));
        assert_eq!((budget.used(), budget.peak()), (Bytes::ZERO, Bytes::new(100)));
        assert!(budget.reserve(u64::MAX).is_none());
    }
}
