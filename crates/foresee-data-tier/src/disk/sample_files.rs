// SPDX-License-Identifier: Apache-2.0
//! Samples under a key of the user, in files that all processes of the node share.
//!
//! A [`DiskTier`](super::DiskTier) has a partition of its own and reuses its bytes, so no other process can follow what is
//! in it. Here all processes append to one partition, and what is there stays: an entry that a process has seen is
//! valid as long as it uses the partition. Samples have no known length before they are read. Entry, segment, manifest,
//! locks and budget are those of the tier.
//!
//! An entry's payload is written before its header. So a reader without a lock sees a whole entry or none, and after a
//! crash its checksum decides.

mod index;
#[cfg(test)]
mod process_tests;
#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use foresee_units::{Bytes, SampleId};
use rustix::fs::{FlockOperation, OFlags, flock};

use self::index::{SampleIndex, SamplePlace};
use super::directory::Directory;
use super::entry::{Entry, GRANULE, HEADER, PAGE, layout};
use super::error::DiskError;
use super::folder::Folder;
use super::manifest::Manifest;
use super::partition::{APPEND, MANIFEST, Partition, partition_name, segment_name};
use super::recover::read_partition;
use super::state::segment_bytes;
use super::storage::{Kernel, Storage};
use super::{CAPACITY_MIN, SMALL_FILES, reserve};
use crate::identity::{EntryKey, OriginIdentity};

/// Maximum wait for a process that appends: many times what an entry takes. A sample that comes in vain is not stored.
const APPEND_TIMEOUT: Duration = Duration::from_millis(100);
const APPEND_RETRY: Duration = Duration::from_micros(100);
/// Threads that scan segments without a manifest.
const THREADS: usize = 2;
/// Entries after which a manifest is written, in addition to a quarter of those that the last one lists. So a process that
/// starts scans few headers, and all manifests together have a few times the bytes of the last one.
const UNLISTED: u64 = 1024;
/// Bytes of most entries in a manifest.
const LISTED_BYTES: u64 = 20;

/// Location and size of the files.
#[derive(Clone, Debug)]
pub struct SampleFilesConfig {
    /// The cache directory, created with mode 0700 if it is missing.
    pub dir: PathBuf,
    /// Maximum bytes of the directory, with all that other data sets and processes have in it; 1 MiB or more.
    pub capacity: Bytes,
    /// Identity of the samples; see [`OriginIdentity::of_key`].
    pub identity: OriginIdentity,
    /// Number of samples.
    pub samples: u64,
}

/// Samples under a key of the user, shared by the threads of this process and by other processes.
///
/// Dropping it writes the manifest. A forked child must not use it, and must not drop it.
pub struct SampleFiles {
    identity: OriginIdentity,
    directory: Directory,
    access: FolderAccess,
    capacity: u64,
    samples: u64,
    storage: Box<dyn Storage>,
    index: Mutex<SampleIndex>,
    turn: Mutex<AppendState>,
    fault: OnceLock<String>,
}

/// The partition's folder.
#[derive(Debug)]
enum FolderAccess {
    /// Any process may append, with a lock of the file.
    Shared { partition: Partition, append: File },
    /// In a read-only directory.
    ReadOnly(Folder),
}

/// What the thread that appends knows.
#[derive(Debug)]
struct AppendState {
    /// Whether to wait for the lock: not after a wait in vain, until it is found free.
    is_patient: bool,
    /// Granules of the smallest entry for which the budget had no space. A smaller one may still fit.
    refused: u64,
}

/// The right to append: no other thread or process does.
struct AppendTurn<'a> {
    state: MutexGuard<'a, AppendState>,
    file: &'a File,
}

impl SampleFiles {
    /// Open the files of `config.identity`, with the samples of earlier and concurrent processes.
    ///
    /// # Errors
    /// An unusable directory, files that another user may have planted, a capacity that is too small, or a read-only
    /// directory without these samples.
    pub fn open(config: &SampleFilesConfig) -> Result<Self, DiskError> {
        Self::open_with(config, Box::new(Kernel))
    }

    fn open_with(config: &SampleFilesConfig, storage: Box<dyn Storage>) -> Result<Self, DiskError> {
        let SampleFilesConfig { dir, capacity, identity, samples } = config;
        if *capacity < CAPACITY_MIN {
            return Err(DiskError::TooSmall { capacity: *capacity, least: CAPACITY_MIN });
        }
        let check = |folder: &Folder| storage.check_writable(folder);
        let directory = Directory::open(dir, capacity.get(), identity.folder(), check)?;
        let access = if directory.is_read_only() {
            FolderAccess::read_only(&directory)?
        } else {
            FolderAccess::share(&directory, *capacity)?
        };
        let index = access.read_index()?;
        Ok(Self {
            identity: identity.clone(),
            directory,
            access,
            capacity: capacity.get(),
            samples: *samples,
            storage,
            index: Mutex::new(index),
            turn: Mutex::new(AppendState { is_patient: true, refused: u64::MAX }),
            fault: OnceLock::new(),
        })
    }

    /// Whether the directory is read-only: nothing is added.
    pub const fn is_read_only(&self) -> bool {
        matches!(self.access, FolderAccess::ReadOnly(_))
    }

    /// The error after which nothing is added any more. A budget without space is none.
    pub fn fault(&self) -> Option<&str> {
        self.fault.get().map(String::as_str)
    }

    /// The bytes of a sample; `None` if it is not there, or is damaged.
    pub fn get(&self, sample: SampleId) -> Option<Vec<u8>> {
        let key = self.identity.numbered_entry(sample);
        loop {
            let place = {
                let mut index = self.index();
                let place = index.get(&key);
                place.or_else(|| {
                    self.follow(&mut index, false);
                    index.get(&key)
                })?
            };
            let bytes = self.read(&key, &place);
            if bytes.is_some() {
                return bytes;
            }
            // Another process may have appended the sample again.
            self.index().remove(&key, place.at);
        }
    }

    /// Append a sample that is not there, if the budget has space for it. What cannot be stored is read again in a later
    /// run.
    pub fn insert(&self, sample: SampleId, bytes: &[u8]) {
        if self.fault.get().is_some() {
            return;
        }
        let Some(mut turn) = self.append_turn() else { return };
        if let Err(fault) = self.append(&mut turn, sample, bytes) {
            // Another thread cannot have set it: appending is exclusive.
            let _ = self.fault.set(format!("{}: {fault}", self.access.folder().path().display()));
        }
    }

    fn append(&self, turn: &mut AppendTurn<'_>, sample: SampleId, bytes: &[u8]) -> io::Result<()> {
        let (key, len) = (self.identity.numbered_entry(sample), bytes.len() as u64);
        let place = {
            let mut index = self.index();
            self.follow(&mut index, true);
            if index.get(&key).is_some() {
                return Ok(());
            }
            index.next_place(len)
        };
        let place = if let Some(place) = place {
            place
        } else {
            let granules = layout(len).0;
            if granules >= turn.state.refused {
                return Ok(());
            }
            if !self.grow(granules)? {
                turn.state.refused = granules;
                return Ok(());
            }
            let Some(place) = self.index().next_place(len) else { return Ok(()) };
            place
        };
        let entry = Entry { key, len, sequence: place.sequence, payload_crc: crc32c::crc32c(bytes) };
        let (file, at) = (place.segment.file(), place.segment.offset(place.at));
        self.storage.write(file, &mut [IoSlice::new(bytes)], at + HEADER as u64)?;
        self.storage.write(file, &mut [IoSlice::new(&entry.encode())], at)?;
        let is_due = {
            let mut index = self.index();
            index.enter(&entry, place.at);
            index.unlisted() > UNLISTED
        };
        if is_due && self.is_manifest_old() {
            self.write_manifest();
        }
        Ok(())
    }

    /// Add a segment for an entry of this many granules; return whether the budget has space.
    fn grow(&self, granules: u64) -> io::Result<bool> {
        let (allocated, number) = {
            let index = self.index();
            (index.allocated(), index.next_number())
        };
        let locked = self.directory.lock().map_err(io::Error::other)?;
        let share = locked.share(self.capacity);
        let limit = share.saturating_sub(reserve(share, self.samples)) / PAGE * PAGE;
        let Some(len) = segment_bytes(limit, allocated, granules) else { return Ok(false) };
        let len = locked.reserve_segment(len) / PAGE * PAGE;
        if len < granules * GRANULE {
            return Ok(false);
        }
        let (folder, name) = (self.access.folder(), segment_name(number));
        let file = folder.create_file(&name)?;
        self.storage.allocate(&file, len).inspect_err(|_| drop(folder.remove_file(&name)))?;
        self.index().adopt(file, len);
        Ok(true)
    }

    fn read(&self, key: &EntryKey, place: &SamplePlace) -> Option<Vec<u8>> {
        let mut header = [0; HEADER];
        let mut bytes = vec![0; usize::try_from(place.len).ok()?];
        let mut parts = [IoSliceMut::new(&mut header), IoSliceMut::new(&mut bytes)];
        self.storage.read(place.segment.file(), &mut parts, place.segment.offset(place.at)).ok()?;
        Entry::decode(&header)?.matches(key, &bytes).then_some(bytes)
    }

    /// Add the entries that other processes have appended. `has_turn`: whether this thread may append.
    fn follow(&self, index: &mut SampleIndex, has_turn: bool) {
        let FolderAccess::Shared { partition, .. } = &self.access else { return };
        loop {
            let name = segment_name(index.next_number());
            // Before its entries are read: a segment gets no further ones once there is the next.
            let has_next = matches!(partition.folder.stat(&name), Ok(Some(_)));
            index.follow_tail();
            if !has_next {
                return;
            }
            // A segment has its length when the process that creates it lets others append.
            let turn = if has_turn { None } else { self.try_append_turn() };
            if turn.is_none() && !has_turn {
                return;
            }
            let Ok(Some(file)) = partition.folder.open_file(&name, OFlags::RDWR) else { return };
            let Ok(metadata) = file.metadata() else { return };
            index.adopt(file, metadata.len());
        }
    }

    /// Whether the manifest lists so few entries that the next process would scan for many.
    fn is_manifest_old(&self) -> bool {
        let size = self.access.folder().stat(MANIFEST).ok().flatten().map_or(0, |stat| stat.st_size);
        let listed = u64::try_from(size).unwrap_or(0) / LISTED_BYTES;
        let mut index = self.index();
        index.set_listed(listed);
        index.unlisted() > UNLISTED + listed / 4
    }

    /// Write the manifest if its bytes are in the reserve. The caller may append.
    fn write_manifest(&self) {
        let bytes = self.index().manifest().encode();
        let size = bytes.len() as u64;
        if size > reserve(self.capacity, self.samples).saturating_sub(SMALL_FILES) {
            return;
        }
        // Without a manifest the next start scans for headers, which is only slower.
        let Ok(locked) = self.directory.lock() else { return };
        if locked.evict_for(size.next_multiple_of(PAGE)) >= size
            && Manifest::write(self.access.folder(), &bytes).is_ok()
        {
            self.index().note_manifest();
        }
    }

    /// Wait for the right to append; `None` in a read-only directory, and if another process does not stop appending.
    fn append_turn(&self) -> Option<AppendTurn<'_>> {
        let FolderAccess::Shared { append, .. } = &self.access else { return None };
        let mut state = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let timeout = if state.is_patient { APPEND_TIMEOUT } else { Duration::ZERO };
        state.is_patient = lock_within(append, FlockOperation::NonBlockingLockExclusive, timeout);
        state.is_patient.then_some(AppendTurn { state, file: append })
    }

    /// As [`Self::append_turn`], without waiting.
    fn try_append_turn(&self) -> Option<AppendTurn<'_>> {
        let FolderAccess::Shared { append, .. } = &self.access else { return None };
        let state = self.turn.try_lock().ok()?;
        let is_locked = flock(append, FlockOperation::NonBlockingLockExclusive).is_ok();
        is_locked.then_some(AppendTurn { state, file: append })
    }

    fn index(&self) -> MutexGuard<'_, SampleIndex> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SampleFiles {
    fn drop(&mut self) {
        if let Some(_turn) = self.append_turn() {
            self.follow(&mut self.index(), true);
            if self.index().has_changed() {
                self.write_manifest();
            }
        }
    }
}

impl fmt::Debug for SampleFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SampleFiles").field("source", &self.identity.folder()).finish_non_exhaustive()
    }
}

impl Drop for AppendTurn<'_> {
    /// Release the lock explicitly: a child that was forked meanwhile has the file too.
    fn drop(&mut self) {
        let _ = flock(self.file, FlockOperation::Unlock);
    }
}

impl FolderAccess {
    /// Use the partition together with other processes.
    fn share(directory: &Directory, capacity: Bytes) -> Result<Self, DiskError> {
        let locked = directory.lock()?;
        let partition = Partition::join(&directory.make_source()?)?;
        partition.declare(capacity.get())?;
        let append = partition.folder.open_file(APPEND, OFlags::RDWR | OFlags::CREATE)?;
        let path = partition.folder.path().join(APPEND);
        let append = append.ok_or_else(|| DiskError::at(&path, io::ErrorKind::NotFound.into()))?;
        // The directory may exceed its capacity, if `disk_size` was larger in earlier runs.
        locked.evict_for(0);
        Ok(Self::Shared { partition, append })
    }

    fn read_only(directory: &Directory) -> Result<Self, DiskError> {
        let source = directory.existing_source()?;
        let folder = source.enter(&partition_name(0))?;
        let missing = || DiskError::at(source.path(), io::ErrorKind::NotFound.into());
        Ok(Self::ReadOnly(folder.ok_or_else(missing)?))
    }

    /// Read the content. No process appends meanwhile, unless one does not stop; then the last segment may look shorter
    /// than it is.
    fn read_index(&self) -> Result<SampleIndex, DiskError> {
        let append = match self {
            Self::Shared { append, .. } => {
                lock_within(append, FlockOperation::NonBlockingLockShared, APPEND_TIMEOUT).then_some(append)
            }
            Self::ReadOnly(_) => None,
        };
        let recovered = read_partition(self.folder(), THREADS, matches!(self, Self::ReadOnly(_)));
        if let Some(append) = append {
            let _ = flock(append, FlockOperation::Unlock);
        }
        let has_manifest = matches!(self.folder().stat(MANIFEST), Ok(Some(_)));
        Ok(SampleIndex::new(recovered?, has_manifest))
    }

    const fn folder(&self) -> &Folder {
        match self {
            Self::Shared { partition, .. } => &partition.folder,
            Self::ReadOnly(folder) => folder,
        }
    }
}

/// Lock a file within `timeout`; `false` if it cannot be locked.
fn lock_within(file: &File, how: FlockOperation, timeout: Duration) -> bool {
    let started = Instant::now();
    loop {
        match flock(file, how) {
            Ok(()) => return true,
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) if started.elapsed() < timeout => {
                std::thread::sleep(APPEND_RETRY);
            }
            Err(_) => return false,
        }
    }
}
