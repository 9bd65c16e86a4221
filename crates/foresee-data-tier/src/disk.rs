// SPDX-License-Identifier: Apache-2.0
//! Samples on a local disk: files of entries that outlive a run.
//!
//! A tier uses one partition of the cache directory: `<dir>/<source>/partition-<k>/`, format in
//! `docs/formats/disk-cache.md`. An entry is verified when it is read, so a crash, a torn write or a flipped bit
//! loses samples and never returns wrong ones. The tier never evicts samples that its data set needs. After a fault
//! of the disk it gets smaller, and the run continues.
//!
//! ```text
//! submit --> state (lock, no I/O) --> reads, writes --> work (threads, I/O without the lock) --> completions
//!              slab: addresses                         entry: the format
//!              open chunk: small samples together      storage: the kernel, or a failing disk in tests
//! open:  directory (budget) --> partition (locks) --> recover (manifest, or header by header) --> state
//!          cache_root, folder: no links, no files of others
//! tools: inspect, verify
//! ```
//! `sample_files` has samples under a key of the user, which several processes append to one partition.

mod cache_root;
mod directory;
mod entry;
mod error;
mod file_system;
mod folder;
mod inspect;
mod lock_holder;
mod manifest;
mod partition;
mod recover;
mod sample_files;
mod segment;
mod state;
mod storage;
mod verify;
mod version_one;
mod work;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use foresee_units::{Bytes, Nanos, ReadOutcome, SampleId};

use crate::completion::Completions;
use crate::identity::{EntryKey, OriginIdentity};
use crate::op::{Fingerprint, Op, SampleKey, Ticket};
use crate::{Tier, TierFacts};
use directory::Directory;
use entry::{LARGE, PAGE, layout};
pub use error::DiskError;
pub use file_system::is_on_nfs;
pub use inspect::{CacheContent, CacheDirectory, PartitionFacts, PartitionUser, Removal};
use manifest::{ENTRY_BYTES, Manifest, ManifestEntry, SegmentList};
use partition::Partition;
pub use sample_files::{SampleFiles, SampleFilesConfig};
use segment::Segment;
use state::{DiskState, ReadState, WriteState};
use storage::{Kernel, Storage};
pub use verify::{CorruptEntry, EntryFault, Verification};
use work::{DiskCore, Times};

/// Maximum wait of a dropped tier for its threads: several writes of a chunk.
const DROP_GRACE: Nanos = Nanos::from_secs(2);

/// The samples of one data set.
pub trait Entries: fmt::Debug + Send + Sync {
    /// Number of samples; their ids start at 0.
    fn count(&self) -> u64;

    /// The key of sample `id` in operations.
    fn key(&self, id: SampleId) -> SampleKey;

    /// Identity of the sample's bytes at the origin, equal in every run and data set.
    fn entry(&self, key: &SampleKey) -> EntryKey;
}

/// Location and size of a disk cache.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// The cache directory, created with mode 0700 if it is missing; other processes may use it at the same time.
    pub dir: PathBuf,
    /// Maximum bytes of this tier on the disk, including all overhead; 1 MiB or more.
    pub capacity: Bytes,
    /// Maximum bytes of the directory, with all partitions of all data sets and processes; `capacity` or more.
    pub directory_capacity: Bytes,
    /// Location of the data set; determines the name of its folder.
    pub origin: OriginIdentity,
    /// The data set's samples.
    pub entries: Arc<dyn Entries>,
    /// The data set whose samples are stored; a write for another one is [`ReadOutcome::Failed`].
    pub fingerprint: Fingerprint,
    /// Ranks of this run that use `dir`, 1 or more. Unused partitions of this number and above are from a larger run:
    /// the tier takes over the part of them that fits, and leaves the rest.
    pub ranks: u32,
    /// I/O threads, 1 to 64; 2 to 8 suit one device.
    pub threads: usize,
}

/// A sample that was in the cache when the tier was opened, in the current version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CachedSample {
    /// The sample.
    pub id: SampleId,
    /// Its length.
    pub len: Bytes,
}

/// Samples of one data set in one partition of a cache directory.
pub struct DiskTier {
    shared: Arc<DiskCore>,
    fingerprint: Fingerprint,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl DiskTier {
    /// From this length on, a write reads its payload until its `Done`; below, only during `submit`.
    pub const LARGE: Bytes = Bytes::new(LARGE);

    /// Claim a partition, and return its samples in order of ids. Reads the partition's manifest, or after a crash
    /// the header of every entry. A partition larger than `capacity` is cut. In a read-only directory, the tier
    /// serves existing samples and refuses every write; without samples of this data set that is an error.
    ///
    /// # Errors
    /// An unusable directory, files that another user may have planted, or numbers out of range.
    pub fn open(
        config: &DiskConfig,
        completions: Completions,
    ) -> Result<(Self, Vec<CachedSample>), DiskError> {
        Self::open_with(config, completions, Box::new(Kernel))
    }

    fn open_with(
        config: &DiskConfig,
        completions: Completions,
        storage: Box<dyn Storage>,
    ) -> Result<(Self, Vec<CachedSample>), DiskError> {
        let &DiskConfig {
            ref dir,
            capacity,
            directory_capacity,
            ref origin,
            ref entries,
            fingerprint,
            ranks,
            threads,
        } = config;
        check_range("threads", threads as u64, 1, 64)?;
        check_range("ranks", u64::from(ranks), 1, u64::from(u32::MAX))?;
        if capacity < CAPACITY_MIN {
            return Err(DiskError::TooSmall { capacity, least: CAPACITY_MIN });
        }
        let total = directory_capacity.max(capacity).get();
        let directory =
            Directory::open(dir, total, origin.folder(), |folder| storage.check_writable(folder))?;
        let state = if directory.is_read_only() {
            open_read_only(&directory, &**entries, threads)?
        } else {
            open_writable(&directory, config)?
        };
        let mut cached: Vec<CachedSample> = state
            .slab
            .entries()
            .map(|(key, _, len)| CachedSample { id: key.id, len: Bytes::new(len) })
            .collect();
        cached.sort_unstable();
        let shared = Arc::new(DiskCore {
            state: Mutex::new(state),
            work: Condvar::new(),
            ended: Condvar::new(),
            completions,
            storage,
            directory,
            entries: Arc::clone(entries),
            declared: capacity.get(),
            bytes_written: AtomicU64::new(0),
            faults: AtomicU64::new(0),
        });
        let tier = Self { shared, fingerprint, threads: Mutex::default() };
        tier.start(threads)?;
        Ok((tier, cached))
    }

    /// Whether the directory is read-only: every write is refused with [`ReadOutcome::Full`].
    pub fn is_read_only(&self) -> bool {
        self.shared.directory.is_read_only()
    }

    /// Bytes written to segments since the tier was opened, including headers and padding (wear of the device).
    pub fn bytes_written(&self) -> Bytes {
        Bytes::new(self.shared.bytes_written.load(Ordering::Relaxed))
    }

    /// Bytes for samples, used or free: the capacity without the reserve for other files, or the allocated bytes once
    /// the disk is full. A planner may fill it, counting [`disk_footprint`] per sample.
    pub fn usable_capacity(&self) -> Bytes {
        self.shared.state().capacity()
    }

    /// Number of entries that failed verification, and of failed calls to the kernel.
    pub fn faults(&self) -> u64 {
        self.shared.faults.load(Ordering::Relaxed)
    }

    fn start(&self, threads: usize) -> Result<(), DiskError> {
        for nth in 0..threads {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new()
                .name(format!("foresee-disk-{nth}"))
                .spawn(move || shared.serve(nth == 0));
            match thread {
                Ok(thread) => self.threads().push(thread),
                Err(source) => {
                    self.shared.state().running -= threads - nth;
                    self.close(DROP_GRACE);
                    return Err(DiskError::Thread { source });
                }
            }
        }
        Ok(())
    }

    fn threads(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Report a completion that needed no thread.
    fn report_now(&self, ticket: Ticket, outcome: ReadOutcome, bytes: u64, submitted: Instant) {
        let bytes = if outcome == ReadOutcome::Ok { bytes } else { 0 };
        self.shared.report(ticket, outcome, bytes, Times { submitted, started: submitted }, None);
    }

    /// Write the manifest and release the partition. Only after all threads have ended.
    fn release(&self) {
        let (partition, manifest, reserve) = {
            let mut state = self.shared.state();
            let Some(partition) = state.partition.take() else { return };
            (partition, state.manifest(&*self.shared.entries), state.reserve.saturating_sub(SMALL_FILES))
        };
        let bytes = manifest.encode();
        let size = bytes.len() as u64;
        if size > reserve {
            return;
        }
        // The lock is held until the file exists, because its bytes count.
        let written = self.shared.directory.lock().map_err(std::io::Error::other).and_then(|locked| {
            let fits = locked.evict_for(size.next_multiple_of(PAGE)) >= size;
            if fits { Manifest::write(&partition.folder, &bytes) } else { Ok(()) }
        });
        if written.is_err() {
            // Without a manifest the next start scans all headers, which is only slower.
            self.shared.faults.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Tier for DiskTier {
    fn submit(&self, op: Op) {
        let submitted = Instant::now();
        match op {
            Op::Read { ticket, key, offset, dest } => {
                let wanted = dest.len() as u64;
                let mut state = self.shared.state();
                let read = if state.is_closed {
                    ReadState::Ended(ReadOutcome::Cancelled, dest)
                } else {
                    state.read(ticket, key, offset, dest)
                };
                drop(state);
                match read {
                    ReadState::Queued => self.shared.work.notify_one(),
                    ReadState::Ended(outcome, dest) => {
                        drop(dest);
                        self.report_now(ticket, outcome, wanted, submitted);
                    }
                }
            }
            Op::Write { ticket, key, payload } => {
                let len = payload.as_slice().len() as u64;
                // The writing thread computes the checksum of a large payload.
                let crc = if len < LARGE { crc32c::crc32c(payload.as_slice()) } else { 0 };
                let entry = self.shared.entries.entry(&key);
                let mut state = self.shared.state();
                let waiting = state.writes.len();
                let written = if state.is_closed {
                    WriteState::Ended(ReadOutcome::Cancelled)
                } else if key.fingerprint == self.fingerprint {
                    state.write(ticket, key, entry, payload, crc)
                } else {
                    WriteState::Ended(ReadOutcome::Failed)
                };
                let is_queued = state.writes.len() > waiting;
                drop(state);
                if is_queued {
                    self.shared.work.notify_all();
                }
                if let WriteState::Ended(outcome) = written {
                    self.report_now(ticket, outcome, len, submitted);
                }
            }
            Op::Drop { ticket, key } => {
                let outcome = {
                    let mut state = self.shared.state();
                    if state.is_closed {
                        ReadOutcome::Cancelled
                    } else if state.slab.remove(&key) {
                        ReadOutcome::Ok
                    } else {
                        ReadOutcome::Absent
                    }
                };
                self.report_now(ticket, outcome, 0, submitted);
            }
        }
    }

    fn cancel(&self, ticket: Ticket) {
        let ended = self.shared.state().cancel_queued(|queued| queued == ticket);
        for (ticket, submitted) in ended {
            self.report_now(ticket, ReadOutcome::Cancelled, 0, submitted);
        }
    }

    /// For samples only: `capacity` is [`Self::usable_capacity`].
    fn facts(&self) -> TierFacts {
        let state = self.shared.state();
        TierFacts {
            place: if self.is_read_only() { "disk (read-only)" } else { "disk (buffered)" }.to_owned(),
            capacity: state.capacity(),
            used: state.used(),
            in_flight: state.in_flight,
        }
    }

    /// Cancels queued operations, finishes running ones, and writes buffered small samples and the manifest. If the
    /// disk does not answer within `grace`, its threads continue alone.
    fn close(&self, grace: Nanos) {
        let ended = {
            let mut state = self.shared.state();
            state.is_closed = true;
            state.seal();
            state.cancel_queued(|_| true)
        };
        self.shared.work.notify_all();
        for (ticket, submitted) in ended {
            self.report_now(ticket, ReadOutcome::Cancelled, 0, submitted);
        }
        let state = self.shared.state();
        let (state, waited) = self
            .shared
            .ended
            .wait_timeout_while(state, Duration::from(grace), |state| state.running > 0)
            .unwrap_or_else(PoisonError::into_inner);
        drop(state);
        if !waited.timed_out() {
            for thread in std::mem::take(&mut *self.threads()) {
                // A panic has been printed by its thread, and must not cause a second one here.
                drop(thread.join());
            }
            self.release();
        }
    }
}

impl Drop for DiskTier {
    fn drop(&mut self) {
        self.close(DROP_GRACE);
    }
}

impl fmt::Debug for DiskTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskTier").field("facts", &self.facts()).finish_non_exhaustive()
    }
}

/// Claim a partition and recover its content.
fn open_writable(directory: &Directory, config: &DiskConfig) -> Result<DiskState, DiskError> {
    let locked = directory.lock()?;
    let source = directory.make_source()?;
    let partition = Partition::claim(&source)?;
    partition.declare(config.capacity.get())?;
    let orphans = Partition::claim_orphans(&source, config.ranks)?;
    let share = locked.share(config.capacity.get());
    drop(locked);
    let reserve = reserve(share, config.entries.count());
    let limit = share.saturating_sub(reserve) / PAGE * PAGE;
    let recovered = recover::recover(&partition, &orphans, &*config.entries, limit, config.threads)?;
    drop(orphans);
    // The directory may exceed its capacity, if `disk_size` was larger in earlier runs.
    directory.lock()?.evict_for(0);
    Ok(DiskState::new(recovered, Some(partition), limit, reserve, config.threads))
}

/// Find the content of a read-only directory.
fn open_read_only(
    directory: &Directory,
    entries: &dyn Entries,
    threads: usize,
) -> Result<DiskState, DiskError> {
    let recovered = recover::recover_read_only(&directory.existing_source()?, entries, threads)?;
    let limit = recovered.allocated;
    Ok(DiskState::new(recovered, None, limit, 0, threads))
}

impl DiskState {
    fn manifest(&self, entries: &dyn Entries) -> Manifest {
        let mut all: Vec<_> =
            self.slab.entries().map(|(key, at, len)| (at, entries.entry(&key), len, 0)).collect();
        all.extend(
            self.others
                .iter()
                .map(|other| (other.at, other.key, other.len, other.unused_runs.saturating_add(1))),
        );
        all.sort_unstable();
        let mut by_segment: BTreeMap<usize, Vec<ManifestEntry>> = BTreeMap::new();
        for (at, key, len, unused_runs) in all {
            let nth = Segment::nth_of(at);
            let at = at - self.segments[nth].base();
            by_segment.entry(nth).or_default().push(ManifestEntry { at, key, len, unused_runs });
        }
        let lists = self.segments.iter().enumerate().map(|(nth, segment)| {
            SegmentList::new(segment.number(), by_segment.remove(&nth).unwrap_or_default())
        });
        Manifest::new(self.sequence, lists.collect())
    }
}

fn check_range(name: &'static str, value: u64, least: u64, most: u64) -> Result<(), DiskError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(DiskError::OutOfRange { name, value, least, most })
}

/// Enough for one segment and the reserve.
const CAPACITY_MIN: Bytes = Bytes::new(1 << 20);

/// The lock and the directories, in whole blocks of a usual file system.
const SMALL_FILES: u64 = 32 << 10;

/// Bytes reserved for files other than segments: folders, locks and the manifest. At most 1/64 of the capacity and 64
/// KiB; a manifest that does not fit is not written.
fn reserve(capacity: u64, samples: u64) -> u64 {
    let list = samples.saturating_mul(ENTRY_BYTES).min(capacity / 64);
    2 * SMALL_FILES + list.max(directory::margin(capacity).min(capacity / 64))
}

/// Bytes on the disk of a sample of `len` bytes, including header and padding, for a planner.
pub const fn disk_footprint(len: Bytes) -> Bytes {
    Bytes::new(layout(len.get()).0.saturating_mul(entry::GRANULE))
}

/// The checksum of a sample on the disk: CRC-32C.
pub fn sample_checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

#[cfg(test)]
mod tests;
