// SPDX-License-Identifier: Apache-2.0
//! One cache directory, and its budget for all processes and data sets.
//!
//! A process adds bytes only while it holds the directory's lock, after it has counted the existing bytes. The kernel
//! releases the lock when its holder ends. Bytes are freed in this order: folders of format version 1; unused
//! partitions of other data sets, least recently used first; unused partitions of the same data set.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::error::DiskError;
use super::folder::{Folder, allocated};
use super::partition::{
    LOCK, MANIFEST, NEW_MANIFEST, Partition, declared_by_user, partition_number, segment_name, segments,
};
use super::version_one;
use crate::identity::is_origin_folder;

/// A holder of the lock lists and deletes files; a stopped process must not block all others.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
const LOCK_RETRY: Duration = Duration::from_millis(2);

/// A cache directory.
#[derive(Debug)]
pub(super) struct Directory {
    /// The directory that the user named.
    root: Folder,
    /// The parent of this user's folders, if other users can write to `root`.
    private_folder: Option<Folder>,
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
    lock: File,
    process: u32,
}

/// A partition of any data set, for eviction.
struct PartitionUsage {
    source: String,
    partition: String,
    folder: Folder,
    bytes: u64,
    /// Seconds and nanoseconds since 1970.
    last_used: (i64, i64),
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
        let root = Folder::open(path)?;
        let write_fault = check_writable(&root).err();
        let private_folder = if root.is_private()? {
            None
        } else {
            let name = format!("foresee-{}", rustix::process::geteuid().as_raw());
            let own = if write_fault.is_some() { root.enter(&name)? } else { Some(root.make(&name)?) };
            Some(own.ok_or_else(|| DiskError::at(path, Errno::ACCESS.into()))?)
        };
        Ok(Self { root, private_folder, write_fault, capacity, source: source.to_owned() })
    }

    /// Whether the directory is read-only.
    pub(super) const fn is_read_only(&self) -> bool {
        self.write_fault.is_some()
    }

    /// The parent of this user's folders.
    fn user_folder(&self) -> &Folder {
        self.private_folder.as_ref().unwrap_or(&self.root)
    }

    /// The folder of this run's data set, created if it is missing.
    pub(super) fn make_source(&self) -> Result<Folder, DiskError> {
        self.user_folder().make(&self.source)
    }

    /// The folder of this run's data set in a read-only directory.
    ///
    /// # Errors
    /// The folder is missing: the cache would be useless.
    pub(super) fn existing_source(&self) -> Result<Folder, DiskError> {
        let fault = self.write_fault.as_ref().map_or(io::ErrorKind::NotFound, io::Error::kind);
        self.user_folder().enter(&self.source)?.ok_or_else(|| DiskError::at(self.root.path(), fault.into()))
    }

    /// Wait for the lock and acquire it.
    pub(super) fn lock(&self) -> Result<Locked<'_>, DiskError> {
        let path = self.user_folder().path().join(LOCK);
        let lock = self.user_folder().open_file(LOCK, OFlags::RDWR | OFlags::CREATE)?;
        let lock = lock.ok_or_else(|| DiskError::at(&path, Errno::NOENT.into()))?;
        let started = Instant::now();
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Locked { directory: self, lock, process: std::process::id() }),
                Err(Errno::WOULDBLOCK) if started.elapsed() < LOCK_TIMEOUT => std::thread::sleep(LOCK_RETRY),
                Err(Errno::WOULDBLOCK) => return Err(DiskError::Locked { path }),
                Err(errno) => return Err(DiskError::at(&path, errno.into())),
            }
        }
    }
}

impl Drop for Locked<'_> {
    /// Release the lock explicitly: a child that was forked meanwhile has the file too.
    fn drop(&mut self) {
        if self.process == std::process::id() {
            let _ = flock(&self.lock, FlockOperation::Unlock);
        }
    }
}

impl Locked<'_> {
    /// Bytes of `capacity` that a process may use: all, unless the processes of the directory declared more than its
    /// budget; then each gets its share in proportion.
    pub(super) fn share(&self, capacity: u64) -> u64 {
        let declared = self.usages().into_iter().filter_map(|usage| declared_by_user(&usage.folder));
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
        let mut usages = self.usages();
        let mut used = self.directory.user_folder().own_bytes() + version_one::bytes(&self.directory.root);
        used += usages.iter().map(|usage| usage.bytes).sum::<u64>();
        let capacity = self.directory.capacity;
        let is_over = |used: u64| used.saturating_add(wanted) > capacity;
        if is_over(used) {
            used -= version_one::remove(&self.directory.root).min(used);
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
        let folder = &partition.folder;
        let mut freed = 0;
        let all = segments(folder).unwrap_or_default();
        let mut left = all.len();
        for (number, _) in all {
            if !wants_more(freed) {
                break;
            }
            let bytes = file_bytes(folder, &segment_name(number));
            if folder.remove_file(&segment_name(number)).is_ok() {
                (freed, left) = (freed + bytes, left - 1);
            }
        }
        if left == 0 {
            // Partitions are claimed under the directory's lock, so no process locks the file that is removed.
            for file in [MANIFEST, NEW_MANIFEST, LOCK] {
                freed += file_bytes(folder, file);
                let _ = folder.remove_file(file);
            }
            if let Ok(Some(parent)) = self.directory.user_folder().enter(&source) {
                freed += folder.own_bytes();
                let _ = parent.remove_folder(&name);
                // Fails, as intended, while there are other partitions.
                let _ = self.directory.user_folder().remove_folder(&source);
            }
        }
        freed
    }

    /// All partitions of this user, without unusable ones, which are neither counted nor deleted.
    fn usages(&self) -> Vec<PartitionUsage> {
        let mut usages = Vec::new();
        let own = self.directory.user_folder();
        for source in own.names().unwrap_or_default().into_iter().filter(|name| is_origin_folder(name)) {
            let Ok(Some(folder)) = own.enter(&source) else { continue };
            let partitions = folder.names().unwrap_or_default();
            for partition in partitions.into_iter().filter(|name| partition_number(name).is_some()) {
                let Ok(Some(folder)) = folder.enter(&partition) else { continue };
                let last_used =
                    folder.stat(LOCK).ok().flatten().map_or((0, 0), |stat| {
                        (stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0))
                    });
                let bytes = folder_bytes(&folder);
                usages.push(PartitionUsage { source: source.clone(), partition, folder, bytes, last_used });
            }
        }
        usages
    }
}

/// Bytes of a directory that segments leave free: an opened partition takes about 12 KiB for its folders and lock.
pub(super) fn margin(capacity: u64) -> u64 {
    (capacity / 64).clamp(64 << 10, 1 << 20)
}

/// Bytes of a folder and its files.
pub(super) fn folder_bytes(folder: &Folder) -> u64 {
    let names = folder.names().unwrap_or_default();
    names.iter().map(|name| file_bytes(folder, name)).sum::<u64>() + folder.own_bytes()
}

/// Bytes of one file; 0 if there is none.
pub(super) fn file_bytes(folder: &Folder, name: &str) -> u64 {
    folder.stat(name).ok().flatten().map_or(0, |stat| allocated(&stat))
}
