// SPDX-License-Identifier: Apache-2.0
//! One cache directory, and the bytes that all processes and data sets together may take in it.
//!
//! A process adds bytes only while it holds the directory's lock, after it counted what is there. The kernel releases
//! the lock when its holder ends, however it ends. Bytes are freed in this order: folders of format version 1, partitions
//! of other data sets that no process uses, last used longest ago first, then unused partitions of the same data set.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::error::DiskError;
use super::folder::{Folder, allocated};
use super::partition::{
    LOCK, MANIFEST, NEW_MANIFEST, Partition, declared_by_user, number_of, segment_name, segments,
};
use super::version_one;
use crate::identity::is_origin_folder;

/// A holder of the lock lists files and deletes some; a stopped process must not stop all others.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
const LOCK_RETRY: Duration = Duration::from_millis(2);

/// A cache directory.
#[derive(Debug)]
pub(super) struct Directory {
    /// As the user named it.
    named: Folder,
    /// Where this user's folders are if other users can write to `named`.
    private: Option<Folder>,
    /// Why nothing can be written, if so.
    write_fault: Option<io::Error>,
    /// Bytes that everything in it may take.
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

/// A partition of any data set, as eviction sees it.
struct Holding {
    source: String,
    partition: String,
    folder: Folder,
    bytes: u64,
    /// Seconds and nanoseconds since 1970.
    last_used: (i64, i64),
}

impl Directory {
    /// Open the directory at `path`, created with mode 0700 if it is missing. In a directory that other users can write,
    /// a folder of this user of mode 0700 is used. `check_writable` fails if no file can be created.
    pub(super) fn open(
        path: &Path,
        capacity: u64,
        source: &str,
        check_writable: impl Fn(&Folder) -> io::Result<()>,
    ) -> Result<Self, DiskError> {
        let named = Folder::open(path)?;
        let write_fault = check_writable(&named).err();
        let private = if named.is_private()? {
            None
        } else {
            let name = format!("foresee-{}", rustix::process::geteuid().as_raw());
            let own = if write_fault.is_some() { named.enter(&name)? } else { Some(named.make(&name)?) };
            Some(own.ok_or_else(|| DiskError::at(path, Errno::ACCESS.into()))?)
        };
        Ok(Self { named, private, write_fault, capacity, source: source.to_owned() })
    }

    /// Whether it can only be read.
    pub(super) const fn is_read_only(&self) -> bool {
        self.write_fault.is_some()
    }

    /// Where this user's folders are.
    fn own(&self) -> &Folder {
        self.private.as_ref().unwrap_or(&self.named)
    }

    /// The folder of this run's data set, created if it is missing.
    pub(super) fn make_source(&self) -> Result<Folder, DiskError> {
        self.own().make(&self.source)
    }

    /// The folder of this run's data set in a directory that can only be read.
    ///
    /// # Errors
    /// There is none: such a cache would do nothing.
    pub(super) fn existing_source(&self) -> Result<Folder, DiskError> {
        let fault = self.write_fault.as_ref().map_or(io::ErrorKind::NotFound, io::Error::kind);
        self.own().enter(&self.source)?.ok_or_else(|| DiskError::at(self.named.path(), fault.into()))
    }

    /// Wait for the lock and take it.
    pub(super) fn lock(&self) -> Result<Locked<'_>, DiskError> {
        let path = self.own().path().join(LOCK);
        let lock = self.own().open_file(LOCK, OFlags::RDWR | OFlags::CREATE)?;
        let lock = lock.ok_or_else(|| DiskError::at(&path, Errno::NOENT.into()))?;
        let since = Instant::now();
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Locked { directory: self, lock, process: std::process::id() }),
                Err(Errno::WOULDBLOCK) if since.elapsed() < LOCK_TIMEOUT => std::thread::sleep(LOCK_RETRY),
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
    /// Bytes of `capacity` that a process may take: all of them, unless the processes that use the directory asked for
    /// more than it has; then each has its part in proportion.
    pub(super) fn share(&self, capacity: u64) -> u64 {
        let declared = self.holdings().into_iter().filter_map(|holding| declared_by_user(&holding.folder));
        let declared = declared.fold(0_u64, u64::saturating_add).max(capacity);
        let total = self.directory.capacity;
        if declared <= total {
            return capacity;
        }
        let share = u128::from(capacity) * u128::from(total) / u128::from(declared);
        u64::try_from(share).expect("a part of 64 bits")
    }

    /// As [`Self::make_room`], for a segment: the small files of processes that open the directory later still fit.
    pub(super) fn make_room_for_segment(&self, wanted: u64) -> u64 {
        let margin = margin(self.directory.capacity);
        self.make_room(wanted.saturating_add(margin)).saturating_sub(margin)
    }

    /// Evict until `wanted` more bytes fit the directory; return how many do, `wanted` at most.
    pub(super) fn make_room(&self, wanted: u64) -> u64 {
        let mut holdings = self.holdings();
        let mut used = self.directory.own().own_bytes() + version_one::bytes(&self.directory.named);
        used += holdings.iter().map(|holding| holding.bytes).sum::<u64>();
        let capacity = self.directory.capacity;
        let too_much = |used: u64| used.saturating_add(wanted) > capacity;
        if too_much(used) {
            used -= version_one::remove(&self.directory.named).min(used);
        }
        holdings.sort_by_key(|holding| (holding.source == self.directory.source, holding.last_used));
        for holding in holdings {
            if !too_much(used) {
                break;
            }
            used -= self.evict(holding, |freed| too_much(used.saturating_sub(freed))).min(used);
        }
        capacity.saturating_sub(used).min(wanted)
    }

    /// Delete segments of a partition that no process uses, while `wants_more` of the bytes freed so far; return them.
    fn evict(&self, holding: Holding, wants_more: impl Fn(u64) -> bool) -> u64 {
        let Holding { source, partition: name, folder, .. } = holding;
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
            // Claims happen under the directory's lock, so no process is about to lock the file that goes.
            for file in [MANIFEST, NEW_MANIFEST, LOCK] {
                freed += file_bytes(folder, file);
                let _ = folder.remove_file(file);
            }
            if let Ok(Some(parent)) = self.directory.own().enter(&source) {
                freed += folder.own_bytes();
                let _ = parent.remove_folder(&name);
                // It fails, as it should, while there are other partitions.
                let _ = self.directory.own().remove_folder(&source);
            }
        }
        freed
    }

    /// All partitions of this user. What cannot be used is left out: it is neither counted nor deleted.
    fn holdings(&self) -> Vec<Holding> {
        let mut holdings = Vec::new();
        let own = self.directory.own();
        for source in own.names().unwrap_or_default().into_iter().filter(|name| is_origin_folder(name)) {
            let Ok(Some(folder)) = own.enter(&source) else { continue };
            let partitions = folder.names().unwrap_or_default();
            for partition in partitions.into_iter().filter(|name| number_of(name).is_some()) {
                let Ok(Some(folder)) = folder.enter(&partition) else { continue };
                let last_used =
                    folder.stat(LOCK).ok().flatten().map_or((0, 0), |stat| {
                        (stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0))
                    });
                let bytes = folder_bytes(&folder);
                holdings.push(Holding { source: source.clone(), partition, folder, bytes, last_used });
            }
        }
        holdings
    }
}

/// Bytes of a directory that segments leave free: a partition that is opened takes about 12 KiB for its folders and lock.
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
