// SPDX-License-Identifier: Apache-2.0
//! The memory and disk that the loaders of one process share, and how it is divided between them.
//!
//! Memory is divided by the size of each loader's data set, after every loader's staging and tables have been
//! taken off; it is divided anew whenever a loader comes or goes. Disk goes to the loaders in the order in
//! which they start, each as much as its data set needs: a partition in use is not given to another data set.

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
    shared: Mutex<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    slab: Option<Arc<RamTier>>,
    members: Vec<Weak<Member>>,
}

/// One loader's part of the budget.
#[derive(Debug)]
pub(crate) struct Member {
    /// Bytes of its data set.
    data: Bytes,
    /// Bytes taken off the memory budget before it is divided.
    fixed: Bytes,
    capacity: AtomicU64,
    disk: Bytes,
}

impl Member {
    /// How much of the slab is this loader's now.
    pub(crate) fn capacity(&self) -> Bytes {
        Bytes::new(self.capacity.load(Ordering::Acquire))
    }

    /// How much disk is this loader's.
    pub(crate) const fn disk(&self) -> Bytes {
        self.disk
    }
}

impl Cache {
    /// A budget of `ram` and `disk` bytes, the latter below `disk_dir`. Nothing is allocated yet.
    pub fn new(ram: Bytes, disk_dir: Option<PathBuf>, disk: Bytes) -> Result<Self, LoaderError> {
        if let Some(limit) = foresee_data_tier::memory_limit().filter(|&limit| ram > limit) {
            let fault = format!(
                "ram={ram} is more than the {limit} that this process may use; set ram to at most three quarters of it"
            );
            return Err(LoaderError::Config { faults: vec![fault] });
        }
        Ok(Self { ram, disk_dir, disk, shared: Mutex::default() })
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

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a loader in: `data` bytes of samples, `fixed` bytes of staging and tables, one of `local` ranks of
    /// this machine. The parts of the others shrink; they learn of it from [`Member::capacity`].
    pub(crate) fn join(
        &self,
        data: Bytes,
        fixed: Bytes,
        local: u32,
    ) -> Result<(Arc<Member>, Option<Arc<RamTier>>), LoaderError> {
        let mut shared = self.lock();
        shared.members.retain(|member| member.strong_count() > 0);
        let others: Vec<_> = shared.members.iter().filter_map(Weak::upgrade).collect();
        let taken: Bytes = others.iter().map(|member| member.fixed).sum();
        if !self.ram.is_zero() && taken.saturating_add(fixed) > self.ram {
            let fault = format!(
                "ram={} does not hold the staging buffers, tables and listings of {} loaders ({}); set more ram, or smaller \
                 batches, or open an index file that `foresee index` has made",
                self.ram,
                others.len() + 1,
                taken.saturating_add(fixed)
            );
            return Err(LoaderError::Config { faults: vec![fault] });
        }
        let disk_taken: Bytes = others.iter().map(|member| member.disk).sum();
        let disk_share = Bytes::new(self.disk.get() / u64::from(local.max(1)));
        let member = Arc::new(Member {
            data,
            fixed,
            capacity: AtomicU64::new(0),
            disk: disk_share.saturating_sub(disk_taken).min(disk_need(data)),
        });
        let slab = if self.ram.is_zero() { None } else { Some(self.slab(&mut shared)?) };
        shared.members.push(Arc::downgrade(&member));
        divide(self.ram, &shared.members);
        Ok((member, slab))
    }

    /// Divides anew after a loader has left.
    pub(crate) fn leave(&self, member: Arc<Member>) {
        let mut shared = self.lock();
        let address = Arc::as_ptr(&member);
        shared.members.retain(|other| other.strong_count() > 0 && other.as_ptr() != address);
        drop(member);
        divide(self.ram, &shared.members);
    }

    fn slab(&self, shared: &mut Shared) -> Result<Arc<RamTier>, LoaderError> {
        if let Some(slab) = &shared.slab {
            return Ok(Arc::clone(slab));
        }
        // The driver asks the slab on its own thread; nothing is ever reported on this queue.
        let slab = RamTier::new(self.ram, Completions::new(|| ()))
            .map_err(|error| LoaderError::Ram { capacity: self.ram, why: error.to_string() })?;
        Ok(Arc::clone(shared.slab.insert(Arc::new(slab))))
    }
}

/// A partition on disk that can hold the whole data set, with headers, partly filled segments and the manifest.
fn disk_need(data: Bytes) -> Bytes {
    data.saturating_add(Bytes::new(data.get() / 8)).saturating_add(Bytes::new(512 << 20))
}

fn divide(ram: Bytes, members: &[Weak<Member>]) {
    let members: Vec<_> = members.iter().filter_map(Weak::upgrade).collect();
    let fixed: Bytes = members.iter().map(|member| member.fixed).sum();
    let data: Bytes = members.iter().map(|member| member.data).sum();
    let rest = u128::from(ram.saturating_sub(fixed).get());
    for member in &members {
        let share = rest * u128::from(member.data.get()) / u128::from(data.get().max(1));
        member.capacity.store(u64::try_from(share).unwrap_or(u64::MAX), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mb(n: u64) -> Bytes {
        Bytes::new(n * 1_000_000)
    }

    #[test]
    fn memory_is_divided_by_data_and_anew_when_a_loader_leaves() {
        let cache = Cache::new(mb(100), None, Bytes::ZERO).expect("below the limit");
        let (train, _) = cache.join(mb(300), mb(10), 1).expect("room");
        assert_eq!(train.capacity(), mb(90));
        let (validation, _) = cache.join(mb(100), mb(10), 1).expect("room");
        assert_eq!((train.capacity(), validation.capacity()), (mb(60), mb(20)));
        cache.leave(validation);
        assert_eq!(train.capacity(), mb(90));
    }

    #[test]
    fn a_loader_whose_staging_does_not_fit_is_refused_with_the_figures() {
        let cache = Cache::new(mb(10), None, Bytes::ZERO).expect("below the limit");
        let error = cache.join(mb(300), mb(11), 1).expect_err("too much");
        assert!(
            error.to_string().contains("ram=10.0 MB") && error.to_string().contains("11.0 MB"),
            "{error}"
        );
    }

    #[test]
    fn local_ranks_share_the_disk_evenly() {
        let cache = Cache::new(Bytes::ZERO, None, mb(8000)).expect("no memory at all");
        let (member, slab) = cache.join(mb(100_000), Bytes::ZERO, 4).expect("room");
        assert_eq!(member.disk(), mb(2000));
        assert!(slab.is_none());
    }

    #[test]
    fn a_memory_budget_beyond_the_machine_is_an_error_before_the_run() {
        let error = Cache::new(Bytes::new(1 << 60), None, Bytes::ZERO).expect_err("an exabyte");
        assert!(error.to_string().contains("may use"), "{error}");
    }
}
