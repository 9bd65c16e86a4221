// SPDX-License-Identifier: Apache-2.0
//! The budget of one cache directory for all processes and data sets.
//!
//! A process adds bytes only while it holds the directory's lock, after it has counted the existing bytes. Bytes are
//! freed in this order: folders of format version 1; unused partitions of other data sets, least recently used first;
//! unused partitions of the same data set.

use std::io;
use std::path::Path;

use super::cache_root::{CacheRoot, PartitionUsage, RootLock};
use super::error::DiskError;
use super::folder::Folder;
use super::partition::{Partition, declared_by_user};
use super::version_one;

/// A cache directory and its budget.
#[derive(Debug)]
pub(super) struct Directory {
    root: CacheRoot,
    /// Why the directory is read-only, if it is.
    write_fault: Option<io::Error>,
    /// Maximum bytes of its content.
    capacity: u64,
    /// Name of the folder of this run's data set.
    source: String,
}

/// A directory whose lock this process holds.
#[derive(Debug)]
pub(super) struct Locked<'a> {
    directory: &'a Directory,
    _lock: RootLock,
}

impl Directory {
    /// Open the directory at `path`, created with mode 0700 if it is missing. In a directory that other users can
    /// write, use a folder of this user with mode 0700. `check_writable` fails if no file can be created.
    pub(super) fn open(
        path: &Path,
        capacity: u64,
        source: &str,
        check_writable: impl Fn(&Folder) -> io::Result<()>,
    ) -> Result<Self, DiskError> {
        let named = Folder::open(path)?;
        let write_fault = check_writable(&named).err();
        let root = CacheRoot::new(named, write_fault.is_none())?;
        let root = root.ok_or_else(|| DiskError::at(path, io::ErrorKind::PermissionDenied.into()))?;
        Ok(Self { root, write_fault, capacity, source: source.to_owned() })
    }

    /// Whether the directory is read-only.
    pub(super) const fn is_read_only(&self) -> bool {
        self.write_fault.is_some()
    }

    /// The folder of this run's data set, created if it is missing.
    pub(super) fn make_source(&self) -> Result<Folder, DiskError> {
        self.root.own().make(&self.source)
    }

    /// The folder of this run's data set in a read-only directory.
    ///
    /// # Errors
    /// The folder is missing: the cache would be useless.
    pub(super) fn existing_source(&self) -> Result<Folder, DiskError> {
        let fault = self.write_fault.as_ref().map_or(io::ErrorKind::NotFound, io::Error::kind);
        let source = self.root.own().enter(&self.source)?;
        source.ok_or_else(|| DiskError::at(self.root.named().path(), fault.into()))
    }

    /// Wait for the lock and acquire it.
    pub(super) fn lock(&self) -> Result<Locked<'_>, DiskError> {
        Ok(Locked { directory: self, _lock: self.root.lock()? })
    }
}

impl Locked<'_> {
    /// Bytes of `capacity` that a process may use: all, unless the processes of the directory declared more than its
    /// budget; then each gets its share in proportion.
    pub(super) fn share(&self, capacity: u64) -> u64 {
        let declared = self
            .directory
            .root
            .usages(|_| ())
            .into_iter()
            .filter_map(|usage| declared_by_user(&usage.folder));
        let declared = declared.fold(0_u64, u64::saturating_add).max(capacity);
        let total = self.directory.capacity;
        if declared <= total {
            return capacity;
        }
        let share = u128::from(capacity) * u128::from(total) / u128::from(declared);
        u64::try_from(share).expect("a part of 64 bits")
    }

    /// As [`Self::evict_for`], for a segment: leaves bytes for the small files of processes that open the directory
    /// later.
    pub(super) fn reserve_segment(&self, wanted: u64) -> u64 {
        let margin = margin(self.directory.capacity);
        self.evict_for(wanted.saturating_add(margin)).saturating_sub(margin)
    }

    /// Evict until `wanted` more bytes fit the directory; return the number that fits, at most `wanted`.
    pub(super) fn evict_for(&self, wanted: u64) -> u64 {
        let mut usages = self.directory.root.usages(|_| ());
        let mut used =
            self.directory.root.own().own_bytes() + version_one::bytes(self.directory.root.named());
        used += usages.iter().map(|usage| usage.bytes).sum::<u64>();
        let capacity = self.directory.capacity;
        let is_over = |used: u64| used.saturating_add(wanted) > capacity;
        if is_over(used) {
            used -= version_one::remove(self.directory.root.named()).min(used);
        }
        usages.sort_by_key(|usage| (usage.source == self.directory.source, usage.last_used));
        for usage in usages {
            if !is_over(used) {
                break;
            }
            used -= self.evict(usage, |freed| is_over(used.saturating_sub(freed))).min(used);
        }
        capacity.saturating_sub(used).min(wanted)
    }

    /// Delete segments of an unused partition while `wants_more` accepts the bytes freed so far; return these bytes.
    fn evict(&self, usage: PartitionUsage, wants_more: impl Fn(u64) -> bool) -> u64 {
        let PartitionUsage { source, partition: name, folder, .. } = usage;
        let Ok(Some(partition)) = Partition::try_lock(folder) else { return 0 };
        // A partition with a file that may be planted stays unchanged.
        self.directory.root.delete(&source, &name, &partition, wants_more).unwrap_or(0)
    }
}

/// Bytes of a directory that segments leave free: an opened partition takes about 12 KiB for its folders and lock.
pub(super) fn margin(capacity: u64) -> u64 {
    (capacity / 64).clamp(64 << 10, 1 << 20)
}
