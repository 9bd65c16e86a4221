// SPDX-License-Identifier: Apache-2.0
//! The folders of one cache directory that belong to this user, their partitions, and the directory's lock.
//!
//! The kernel releases the lock when its holder ends. Partitions are claimed and deleted only while it is held. Files
//! and folders that the format does not know are never counted and never deleted.

use std::fs::File;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::error::DiskError;
use super::folder::{Folder, allocated};
use super::partition::{
    APPEND, LOCK, MANIFEST, NEW_MANIFEST, Partition, partition_number, segment_name, segments,
};
use crate::identity::is_origin_folder;

/// A holder of the lock lists and deletes files; a stopped process must not block all others.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
const LOCK_RETRY: Duration = Duration::from_millis(2);

/// The directory that the user named, and the parent of this user's folders.
#[derive(Debug)]
pub(super) struct CacheRoot {
    named: Folder,
    /// The parent of this user's folders, if other users can write to `named`.
    private_folder: Option<Folder>,
}

/// The directory's lock, held until the value is dropped.
#[derive(Debug)]
pub(super) struct RootLock {
    lock: File,
    process: u32,
}

/// A partition of any data set.
pub(super) struct PartitionUsage {
    pub(super) source: String,
    pub(super) partition: String,
    pub(super) folder: Folder,
    pub(super) bytes: u64,
    /// Seconds and nanoseconds since 1970.
    pub(super) last_used: (i64, i64),
}

impl CacheRoot {
    /// The cache in the directory `named`. If other users can write to it, the cache is a folder of this user with
    /// mode 0700, created with `can_make`; `None` if that is missing.
    pub(super) fn new(named: Folder, can_make: bool) -> Result<Option<Self>, DiskError> {
        if named.is_private()? {
            return Ok(Some(Self { named, private_folder: None }));
        }
        let name = format!("foresee-{}", rustix::process::geteuid().as_raw());
        let own = if can_make { Some(named.make(&name)?) } else { named.enter(&name)? };
        Ok(own.map(|own| Self { named, private_folder: Some(own) }))
    }

    /// The directory that the user named.
    pub(super) const fn named(&self) -> &Folder {
        &self.named
    }

    /// The parent of this user's folders.
    pub(super) fn own(&self) -> &Folder {
        self.private_folder.as_ref().unwrap_or(&self.named)
    }

    /// Wait for the lock and acquire it. The file is created if it is missing.
    pub(super) fn lock(&self) -> Result<RootLock, DiskError> {
        let lock = self.own().open_file(LOCK, OFlags::RDWR | OFlags::CREATE)?;
        let path = self.own().path().join(LOCK);
        self.wait_for(lock.ok_or_else(|| DiskError::at(&path, Errno::NOENT.into()))?)
    }

    /// As [`Self::lock`], without creating the file; `None` if there is none, or in a read-only directory. No process
    /// claims a partition in either.
    pub(super) fn lock_existing(&self) -> Result<Option<RootLock>, DiskError> {
        if self.own().check_writable().is_err() {
            return Ok(None);
        }
        self.own().open_file(LOCK, OFlags::RDWR)?.map(|lock| self.wait_for(lock)).transpose()
    }

    fn wait_for(&self, lock: File) -> Result<RootLock, DiskError> {
        let path = self.own().path().join(LOCK);
        let started = Instant::now();
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(RootLock { lock, process: std::process::id() }),
                Err(Errno::WOULDBLOCK) if started.elapsed() < LOCK_TIMEOUT => std::thread::sleep(LOCK_RETRY),
                Err(Errno::WOULDBLOCK) => return Err(DiskError::Locked { path }),
                Err(errno) => return Err(DiskError::at(&path, errno.into())),
            }
        }
    }

    /// All partitions of this user. Unusable ones are left out and given to `on_fault`.
    pub(super) fn usages(&self, mut on_fault: impl FnMut(DiskError)) -> Vec<PartitionUsage> {
        let mut usages = Vec::new();
        for (source, folder) in below(self.own(), is_origin_folder, &mut on_fault) {
            let is_partition = |name: &str| partition_number(name).is_some();
            for (partition, folder) in below(&folder, is_partition, &mut on_fault) {
                usages.push(PartitionUsage::of(source.clone(), partition, folder));
            }
        }
        usages
    }

    /// Delete segments of a locked partition while `wants_more` accepts the bytes freed so far, and with the last
    /// segment its other files and empty folders; return the bytes freed. The directory's lock must be held.
    ///
    /// # Errors
    /// A segment is a link, or may belong to someone else. Then nothing is deleted.
    pub(super) fn delete(
        &self,
        source: &str,
        name: &str,
        partition: &Partition,
        wants_more: impl Fn(u64) -> bool,
    ) -> Result<u64, DiskError> {
        let folder = &partition.folder;
        let mut freed = 0;
        let all = segments(folder)?;
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
            for file in [MANIFEST, NEW_MANIFEST, APPEND, LOCK] {
                freed += file_bytes(folder, file);
                let _ = folder.remove_file(file);
            }
            if let Ok(Some(parent)) = self.own().enter(source) {
                freed += folder.own_bytes();
                // Both fail, as intended, while there are other files or partitions.
                let _ = parent.remove_folder(name);
                let _ = self.own().remove_folder(source);
            }
        }
        Ok(freed)
    }
}

impl Drop for RootLock {
    /// Release the lock explicitly: a child that was forked meanwhile has the file too.
    fn drop(&mut self) {
        if self.process == std::process::id() {
            let _ = flock(&self.lock, FlockOperation::Unlock);
        }
    }
}

impl PartitionUsage {
    pub(super) fn of(source: String, partition: String, folder: Folder) -> Self {
        let last_used = folder
            .stat(LOCK)
            .ok()
            .flatten()
            .map_or((0, 0), |stat| (stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0)));
        let bytes = folder_bytes(&folder);
        Self { source, partition, folder, bytes, last_used }
    }
}

/// The folders in `folder` whose name `is_wanted`. A link or a folder of another user is left out and given to
/// `on_fault`.
pub(super) fn below(
    folder: &Folder,
    is_wanted: impl Fn(&str) -> bool,
    mut on_fault: impl FnMut(DiskError),
) -> Vec<(String, Folder)> {
    let mut found = Vec::new();
    for name in folder.names().unwrap_or_default().into_iter().filter(|name| is_wanted(name)) {
        match folder.enter(&name) {
            Ok(Some(inner)) => found.push((name, inner)),
            Ok(None) => {}
            Err(error) => on_fault(error),
        }
    }
    found
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
