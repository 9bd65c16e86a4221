// SPDX-License-Identifier: Apache-2.0
//! Partitions of the cache, `<source>/partition-<k>/`, each used by one process at a time, and their files. Samples under a key
//! of the user are in a partition that processes share.
//!
//! A partition belongs to the process that holds the lock of its file `lock`. The kernel releases the lock when that
//! process ends, so no stale lock exists. This file never reads the content of a segment.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use rustix::fs::{FlockOperation, OFlags, flock, ftruncate};
use rustix::io::Errno;

use super::error::DiskError;
use super::folder::{Folder, check_file};

/// File names of a partition.
pub(super) const LOCK: &str = "lock";
pub(super) const MANIFEST: &str = "manifest";
/// A manifest that is being written.
pub(super) const NEW_MANIFEST: &str = "manifest.tmp";
/// Locked while a process appends entries to a partition that several processes share; only such a partition has it.
pub(super) const APPEND: &str = "append";
const PREFIX: &str = "partition-";
const SEGMENT: &str = ".seg";
/// Far more than the ranks of any node: more partitions mean that locks fail for another reason.
const PARTITIONS: u32 = 4096;

/// A folder that belongs to this process until the value is dropped.
#[derive(Debug)]
pub(super) struct Partition {
    pub(super) folder: Folder,
    lock: File,
    /// The claiming process: a forked child has the file too, and must not release the lock.
    process: u32,
}

impl Partition {
    /// Claim a partition: one with segments that no process uses, else the first free number.
    pub(super) fn claim(source: &Folder) -> Result<Self, DiskError> {
        for number in filled_partitions(source)? {
            if let Some(partition) = Self::try_lock(source.make(&partition_name(number))?)? {
                return Ok(partition);
            }
        }
        for number in 0..PARTITIONS {
            if let Some(partition) = Self::try_lock(source.make(&partition_name(number))?)? {
                return Ok(partition);
            }
        }
        Err(DiskError::NoPartition { path: source.path().to_owned(), partitions: PARTITIONS })
    }

    /// Use the one partition of a source whose processes share it. The directory's lock must be held.
    ///
    /// # Errors
    /// A process is deleting the partition, which it does only while it holds the directory's lock.
    pub(super) fn join(source: &Folder) -> Result<Self, DiskError> {
        let folder = source.make(&partition_name(0))?;
        let joined = Self::try_lock_as(folder, OFlags::RDWR, FlockOperation::NonBlockingLockShared)?;
        joined.ok_or_else(|| DiskError::NoPartition { path: source.path().to_owned(), partitions: 1 })
    }

    /// Claim the unused, filled partitions that no rank of this run will claim (number `ranks` and above).
    pub(super) fn claim_orphans(source: &Folder, ranks: u32) -> Result<Vec<Self>, DiskError> {
        let mut orphans = Vec::new();
        for number in filled_partitions(source)?.into_iter().filter(|&number| number >= ranks) {
            orphans.extend(Self::try_lock(source.make(&partition_name(number))?)?);
        }
        Ok(orphans)
    }

    /// Lock a partition's folder; `None` if another process holds the lock.
    pub(super) fn try_lock(folder: Folder) -> Result<Option<Self>, DiskError> {
        Self::try_lock_as(folder, OFlags::RDWR, FlockOperation::NonBlockingLockExclusive)
    }

    /// As [`Self::try_lock`], for reading only: until the value is dropped, no process claims or deletes the partition.
    pub(super) fn try_lock_shared(folder: Folder) -> Result<Option<Self>, DiskError> {
        Self::try_lock_as(folder, OFlags::RDONLY, FlockOperation::NonBlockingLockShared)
    }

    fn try_lock_as(folder: Folder, access: OFlags, how: FlockOperation) -> Result<Option<Self>, DiskError> {
        let path = folder.path().join(LOCK);
        let lock = folder.open_file(LOCK, access | OFlags::CREATE)?;
        let lock = lock.ok_or_else(|| DiskError::at(&path, Errno::NOENT.into()))?;
        match flock(&lock, how) {
            Ok(()) => Ok(Some(Self { folder, lock, process: std::process::id() })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(DiskError::at(&path, errno.into())),
        }
    }

    /// Write the capacity that the user requested, so that other processes can compute their share. It also sets the
    /// time of last use, for eviction.
    pub(super) fn declare(&self, capacity: u64) -> Result<(), DiskError> {
        let write = || {
            ftruncate(&self.lock, 0)?;
            self.lock.write_all_at(format!("{capacity}\n").as_bytes(), 0)
        };
        write().map_err(|source| DiskError::at(&self.folder.path().join(LOCK), source))
    }
}

impl Drop for Partition {
    /// Release the lock explicitly. Closing the file would leave the lock to children that were forked meanwhile,
    /// until they exec or exit, and the next start would find the partition in use.
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // A lock that cannot be released ends with the file.
            let _ = flock(&self.lock, FlockOperation::Unlock);
        }
    }
}

/// The capacity in bytes that the last process of a partition declared; `None` if it is not known.
pub(super) fn last_declared(folder: &Folder) -> Option<u64> {
    let mut text = String::new();
    folder.open_file(LOCK, OFlags::RDONLY).ok()??.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// The declared capacity of a partition in use; `None` if no process uses it.
pub(super) fn declared_by_user(folder: &Folder) -> Option<u64> {
    let lock = folder.open_file(LOCK, OFlags::RDONLY).ok()??;
    // Processes that share a partition hold a shared lock.
    let how = if is_shared(folder) {
        FlockOperation::NonBlockingLockExclusive
    } else {
        FlockOperation::NonBlockingLockShared
    };
    match flock(&lock, how) {
        Err(Errno::WOULDBLOCK) => Some(last_declared(folder).unwrap_or(0)),
        locked => {
            if locked.is_ok() {
                let _ = flock(&lock, FlockOperation::Unlock);
            }
            None
        }
    }
}

/// Whether several processes may append to a partition at a time.
pub(super) fn is_shared(folder: &Folder) -> bool {
    matches!(folder.stat(APPEND), Ok(Some(_)))
}

/// Numbers and sizes in bytes of a partition's segments, by number. Anything but a regular file with one name is
/// refused.
pub(super) fn segments(folder: &Folder) -> Result<Vec<(u64, u64)>, DiskError> {
    let mut segments = Vec::new();
    for name in folder.names()? {
        if let Some(number) = segment_number(&name)
            && let Some(stat) = folder.stat(&name)?
        {
            check_file(&folder.path().join(&name), &stat)?;
            segments.push((number, u64::try_from(stat.st_size).unwrap_or(0)));
        }
    }
    segments.sort_unstable();
    Ok(segments)
}

/// Name of a partition's folder.
pub(super) fn partition_name(number: u32) -> String {
    format!("{PREFIX}{number}")
}

/// The number of a partition, from the name of its folder.
pub(super) fn partition_number(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

/// Name of a segment's file.
pub(super) fn segment_name(number: u64) -> String {
    format!("{number:08}{SEGMENT}")
}

/// The number of a segment, from the name of its file.
pub(super) fn segment_number(name: &str) -> Option<u64> {
    name.strip_suffix(SEGMENT)?.parse().ok()
}

/// Open a segment, for reading only if `read_only`.
pub(super) fn open_segment(folder: &Folder, number: u64, read_only: bool) -> Result<File, DiskError> {
    let name = segment_name(number);
    let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let file = folder.open_file(&name, access)?;
    file.ok_or_else(|| DiskError::at(&folder.path().join(name), io::ErrorKind::NotFound.into()))
}

/// Numbers of the partitions that have segments.
pub(super) fn filled_partitions(source: &Folder) -> Result<Vec<u32>, DiskError> {
    let mut numbers = Vec::new();
    for name in source.names()? {
        if let Some(number) = partition_number(&name)
            && let Some(folder) = source.enter(&name)?
            && folder.names()?.iter().any(|name| segment_number(name).is_some())
        {
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_free_though_a_forked_child_still_has_its_lock_file() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let source = Folder::open(root.path()).expect("a folder");
        let partition = Partition::claim(&source).expect("a partition");
        // As a fork does it: another descriptor of the same open file.
        let inherited = partition.lock.try_clone().expect("a descriptor");
        let path = partition.folder.path().to_owned();
        drop(partition);
        assert_eq!(Partition::claim(&source).expect("a partition").folder.path(), path);
        drop(inherited);
    }

    #[test]
    fn a_forked_child_does_not_release_its_parents_lock() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let source = Folder::open(root.path()).expect("a folder");
        let partition = Partition::claim(&source).expect("a partition");
        let lock = partition.lock.try_clone().expect("a descriptor");
        let folder = source.make(&partition_name(0)).expect("a folder");
        // A child drops a value that names its parent as the owner.
        drop(Partition { folder, lock, process: partition.process + 1 });
        assert_ne!(Partition::claim(&source).expect("a partition").folder.path(), partition.folder.path());
    }

    #[test]
    fn the_declared_capacity_is_read_only_while_a_process_uses_the_partition() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let source = Folder::open(root.path()).expect("a folder");
        let partition = Partition::claim(&source).expect("a partition");
        partition.declare(123_456).expect("a writable lock file");
        partition.declare(78).expect("a writable lock file");
        assert_eq!(declared_by_user(&partition.folder), Some(78));
        let again = source.enter("partition-0").expect("a folder").expect("it exists");
        drop(partition);
        assert_eq!(declared_by_user(&again), None);
    }
}
