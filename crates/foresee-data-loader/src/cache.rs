// SPDX-License-Identifier: Apache-2.0
//! The memory and disk that the loaders of one process share, and their division.
//!
//! Memory is divided by the size of each loader's data set, after the staging buffers and tables of all loaders are
//! subtracted, and again whenever a loader joins or leaves. Disk is assigned in the order in which loaders start,
//! each as much as its data set needs: a partition in use is not given to another data set.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use foresee_data_tier::{Completions, RamTier};
use foresee_units::Bytes;

use crate::errors::LoaderError;

/// A budget for memory and disk.
#[derive(Debug)]
pub struct Cache {
    ram: Bytes,
    disk_dir: Option<PathBuf>,
    disk: Bytes,
    members: Mutex<CacheMembers>,
}

#[derive(Debug, Default)]
struct CacheMembers {
    ram: Option<Arc<RamTier>>,
    shares: Vec<Weak<CacheShare>>,
}

/// One loader's share of the budget.
#[derive(Debug)]
pub(crate) struct CacheShare {
    /// Bytes of its data set.
    data: Bytes,
    /// Bytes of staging and tables, which are not divided.
    fixed: Bytes,
    capacity: AtomicU64,
    disk: Bytes,
}

impl CacheShare {
    /// The share of a loader that uses the cache of its node instead.
    pub(crate) const fn empty() -> Self {
        let capacity = AtomicU64::new(0);
        Self { data: Bytes::ZERO, fixed: Bytes::ZERO, capacity, disk: Bytes::ZERO }
    }

    /// This loader's present share of memory.
    pub(crate) fn capacity(&self) -> Bytes {
        Bytes::new(self.capacity.load(Ordering::Acquire))
    }

    /// This loader's share of the disk.
    pub(crate) const fn disk(&self) -> Bytes {
        self.disk
    }
}

impl Cache {
    /// Create a budget of `ram` bytes, and of `disk` bytes in `disk_dir`. Nothing is allocated.
    pub fn new(ram: Bytes, disk_dir: Option<PathBuf>, disk: Bytes) -> Result<Self, LoaderError> {
        if let Some(limit) = foresee_data_tier::memory_limit().filter(|&limit| ram > limit) {
            let fault = format!(
                "ram={ram} is more than the {limit} that this process may use; set ram to at most three quarters of it"
            );
            return Err(LoaderError::Config { faults: vec![fault] });
        }
        Ok(Self { ram, disk_dir, disk, members: Mutex::default() })
    }

    /// The memory budget.
    pub const fn ram(&self) -> Bytes {
        self.ram
    }

    pub(crate) const fn disk(&self) -> Bytes {
        self.disk
    }

    pub(crate) const fn disk_dir(&self) -> Option<&PathBuf> {
        self.disk_dir.as_ref()
    }

    fn lock(&self) -> MutexGuard<'_, CacheMembers> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Add a loader with `data` bytes of samples and `fixed` bytes of staging and tables, one of `node_ranks` ranks of
    /// this node. The shares of the others shrink, see [`CacheShare::capacity`].
    pub(crate) fn join(
        &self,
        data: Bytes,
        fixed: Bytes,
        node_ranks: u32,
    ) -> Result<(Arc<CacheShare>, Option<Arc<RamTier>>), LoaderError> {
        let mut members = self.lock();
        members.shares.retain(|share| share.strong_count() > 0);
        let others: Vec<_> = members.shares.iter().filter_map(Weak::upgrade).collect();
        let fixed_total = others.iter().map(|share| share.fixed).sum::<Bytes>().saturating_add(fixed);
        if !self.ram.is_zero() && fixed_total > self.ram {
            let fault = format!(
                "ram={} does not hold the staging buffers, tables and listings of {} loaders ({fixed_total}); set more ram, \
                 or smaller batches, or open an index file that `foresee index` has made",
                self.ram,
                others.len() + 1,
            );
            return Err(LoaderError::Config { faults: vec![fault] });
        }
        let disk_used: Bytes = others.iter().map(|share| share.disk).sum();
        let node_share = Bytes::new(self.disk.get() / u64::from(node_ranks.max(1)));
        let share = Arc::new(CacheShare {
            data,
            fixed,
            capacity: AtomicU64::new(0),
            disk: node_share.saturating_sub(disk_used).min(disk_need(data)),
        });
        let tier = if self.ram.is_zero() { None } else { Some(self.ram_tier(&mut members)?) };
        members.shares.push(Arc::downgrade(&share));
        divide(self.ram, &members.shares);
        Ok((share, tier))
    }

    /// Remove a loader, and divide its share.
    pub(crate) fn leave(&self, share: Arc<CacheShare>) {
        let mut members = self.lock();
        let address = Arc::as_ptr(&share);
        members.shares.retain(|other| other.strong_count() > 0 && other.as_ptr() != address);
        drop(share);
        divide(self.ram, &members.shares);
    }

    fn ram_tier(&self, members: &mut CacheMembers) -> Result<Arc<RamTier>, LoaderError> {
        if let Some(tier) = &members.ram {
            return Ok(Arc::clone(tier));
        }
        // Drivers use the memory tier on their own threads, and nothing is reported on this queue.
        let tier = RamTier::new(self.ram, Completions::new(|| ()))
            .map_err(|error| LoaderError::Ram { capacity: self.ram, why: error.to_string() })?;
        Ok(Arc::clone(members.ram.insert(Arc::new(tier))))
    }
}

/// Size of a partition for the whole data set, with headers, partly filled segments and the manifest.
pub(crate) fn disk_need(data: Bytes) -> Bytes {
    data.saturating_add(Bytes::new(data.get() / 8)).saturating_add(Bytes::new(512 << 20))
}

fn divide(ram: Bytes, shares: &[Weak<CacheShare>]) {
    let shares: Vec<_> = shares.iter().filter_map(Weak::upgrade).collect();
    let fixed: Bytes = shares.iter().map(|share| share.fixed).sum();
    let data: Bytes = shares.iter().map(|share| share.data).sum();
    let rest = u128::from(ram.saturating_sub(fixed).get());
    for share in &shares {
        let capacity = rest * u128::from(share.data.get()) / u128::from(data.get().max(1));
        share.capacity.store(u64::try_from(capacity).unwrap_or(u64::MAX), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mb(n: u64) -> Bytes {
        Bytes::new(n * 1_000_000)
    }

    #[test]
    fn memory_is_divided_by_data_and_again_when_a_loader_leaves() {
        let cache = Cache::new(mb(100), None, Bytes::ZERO).expect("below the limit");
        let (train, _) = cache.join(mb(300), mb(10), 1).expect("it fits");
        assert_eq!(train.capacity(), mb(90));
        let (validation, _) = cache.join(mb(100), mb(10), 1).expect("it fits");
        assert_eq!((train.capacity(), validation.capacity()), (mb(60), mb(20)));
        cache.leave(validation);
        assert_eq!(train.capacity(), mb(90));
    }

    #[test]
    fn a_loader_whose_staging_does_not_fit_is_refused_with_the_numbers() {
        let cache = Cache::new(mb(10), None, Bytes::ZERO).expect("below the limit");
        let error = cache.join(mb(300), mb(11), 1).expect_err("too much");
        assert!(
            error.to_string().contains("ram=10.0 MB") && error.to_string().contains("11.0 MB"),
            "{error}"
        );
    }

    #[test]
    fn ranks_of_a_node_share_the_disk_evenly() {
        let cache = Cache::new(Bytes::ZERO, None, mb(8000)).expect("no memory budget");
        let (share, tier) = cache.join(mb(100_000), Bytes::ZERO, 4).expect("it fits");
        assert_eq!(share.disk(), mb(2000));
        assert!(tier.is_none());
    }

    #[test]
    fn a_memory_budget_beyond_the_host_is_an_error_before_the_run() {
        let error = Cache::new(Bytes::new(1 << 60), None, Bytes::ZERO).expect_err("an exabyte");
        assert!(error.to_string().contains("may use"), "{error}");
    }
}
