// SPDX-License-Identifier: Apache-2.0
//! Samples on a local disk: files of entries that outlive a run.
//!
//! A tier uses one partition of the cache directory: `<dir>/<source>/partition-<k>/`, format in
//! `docs/formats/disk-cache.md`. An entry proves itself when it is read, so a crash, a torn write or a flipped bit
//! costs samples and never gives wrong ones. It decides no eviction of samples that its data set needs. Whatever fails
//! on the disk, the tier gets smaller and the run continues.
//!
//! ```text
//! submit --> state (lock, no I/O) --> reads, writes --> work (threads, I/O without the lock) --> completions
//!              slab: addresses                         entry: the format
//!              open chunk: small samples together      storage: the kernel, or a failing disk in tests
//! open:  directory (budget) --> partition (locks) --> recover (manifest, or header by header) --> state
//!          folder: no links, no files of others
//! ```

mod directory;
mod entry;
mod error;
mod folder;
mod manifest;
mod partition;
mod recover;
mod segment;
mod state;
mod storage;
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
use manifest::{LINE_BYTES, Manifest, ManifestEntry, SegmentList};
use partition::Partition;
use segment::Segment;
use state::{ReadState, State, Taken};
use storage::{Kernel, Storage};
use work::{Shared, Times};

/// How long a dropped tier waits for its threads: a write of a chunk, many times over.
const GRACE_ON_DROP: Nanos = Nanos::from_secs(2);

/// The samples of one data set, as the disk tier names them.
pub trait Entries: fmt::Debug + Send + Sync {
    /// Number of samples; their ids are 0 and up.
    fn count(&self) -> u64;

    /// The sample `id` as operations name it.
    fn key(&self, id: SampleId) -> SampleKey;

    /// Identity of the sample's bytes at the origin, the same in every run and data set.
    fn entry(&self, key: &SampleKey) -> EntryKey;
}

/// Where and how large.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// The cache directory, made if need be (mode 0700); others may use it at the same time.
    pub dir: PathBuf,
    /// Bytes on the disk that this tier may take, everything counted, 1 MiB or more. Never exceeded.
    pub capacity: Bytes,
    /// Bytes that the directory may take, with all partitions of all data sets and processes; `capacity` or more.
    pub directory_capacity: Bytes,
    /// Where the data set is stored; names its folder.
    pub origin: OriginIdentity,
    /// The data set's samples.
    pub entries: Arc<dyn Entries>,
    /// The one data set whose samples are stored; a write of another's is [`ReadOutcome::Failed`].
    pub fingerprint: Fingerprint,
    /// Ranks of this run that use `dir`, 1 or more. Partitions of this number and above that no process uses are left
    /// from a larger run: what fits of them is taken over, the rest stays.
    pub ranks: u32,
    /// Threads for I/O, 1 to 64; 2 to 8 suit one device.
    pub threads: usize,
}

/// A sample that was there when the tier was opened, in the version that the origin has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Held {
    /// The sample.
    pub id: SampleId,
    /// Its length.
    pub len: Bytes,
}

/// Samples of one data set in one partition of a cache directory.
pub struct DiskTier {
    shared: Arc<Shared>,
    fingerprint: Fingerprint,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl DiskTier {
    /// From this length on a write reads its payload until its `Done`; below, only during `submit`.
    pub const LARGE: Bytes = Bytes::new(LARGE);

    /// Open a partition of its own and return what it holds, in order of ids. Reads the partition's manifest, or after a
    /// crash the header of every entry. A partition that holds more than `capacity` is cut to it. In a directory that
    /// can only be read, the tier holds what is there and refuses every write; without anything of this data set that is
    /// an error.
    ///
    /// # Errors
    /// A directory that cannot be used, or holds files that another user may have planted; numbers out of range.
    pub fn open(config: &DiskConfig, completions: Completions) -> Result<(Self, Vec<Held>), DiskError> {
        Self::open_with(config, completions, Box::new(Kernel))
    }

    fn open_with(
        config: &DiskConfig,
        completions: Completions,
        storage: Box<dyn Storage>,
    ) -> Result<(Self, Vec<Held>), DiskError> {
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
        check("threads", threads as u64, 1, 64)?;
        check("ranks", u64::from(ranks), 1, u64::from(u32::MAX))?;
        if capacity < LEAST {
            return Err(DiskError::TooSmall { capacity, least: LEAST });
        }
        let total = directory_capacity.max(capacity).get();
        let directory =
            Directory::open(dir, total, origin.folder(), |folder| storage.check_writable(folder))?;
        let state = if directory.is_read_only() {
            open_read_only(&directory, &**entries, threads)?
        } else {
            open_writable(&directory, config)?
        };
        let mut held: Vec<Held> =
            state.slab.listed().map(|(key, _, len)| Held { id: key.id, len: Bytes::new(len) }).collect();
        held.sort_unstable();
        let shared = Arc::new(Shared {
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
        Ok((tier, held))
    }

    /// Whether the directory can only be read: every write is refused with [`ReadOutcome::Full`].
    pub fn is_read_only(&self) -> bool {
        self.shared.directory.is_read_only()
    }

    /// Bytes written to segments since the tier was opened, headers and padding counted (wear of the device).
    pub fn bytes_written(&self) -> Bytes {
        Bytes::new(self.shared.bytes_written.load(Ordering::Relaxed))
    }

    /// Room for samples, taken or not: the capacity without what is set aside for other files, and what is
    /// allocated once the disk is full. What a planner may fill, by [`disk_footprint`].
    pub fn room(&self) -> Bytes {
        self.shared.state().capacity()
    }

    /// Bytes of the segments on the disk, used or not.
    pub fn allocated(&self) -> Bytes {
        Bytes::new(self.shared.state().allocated)
    }

    /// Cells that failed their proof, and calls to the kernel that failed.
    pub fn faults(&self) -> u64 {
        self.shared.faults.load(Ordering::Relaxed)
    }

    /// The share of the free room in segments that its longest stretch cannot serve.
    pub fn fragmentation(&self) -> f64 {
        self.shared.state().slab.fragmentation()
    }

    /// How many samples are held.
    pub fn samples(&self) -> u64 {
        self.shared.state().slab.samples()
    }

    /// Memory of the tables and of the chunks under way, in bytes.
    pub fn table_bytes(&self) -> Bytes {
        Bytes::new(self.shared.state().memory())
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
                    self.close(GRACE_ON_DROP);
                    return Err(DiskError::Thread { source });
                }
            }
        }
        Ok(())
    }

    fn threads(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An end that needed no thread.
    fn end_now(&self, ticket: Ticket, outcome: ReadOutcome, bytes: u64, since: Instant) {
        let bytes = if outcome == ReadOutcome::Ok { bytes } else { 0 };
        self.shared.end(ticket, outcome, bytes, Times { since, began: since }, None);
    }

    /// Write the manifest and release the partition. Only once all threads have ended.
    fn leave(&self) {
        let (partition, manifest, room) = {
            let mut state = self.shared.state();
            let Some(partition) = state.partition.take() else { return };
            (partition, state.manifest(&*self.shared.entries), state.reserve.saturating_sub(SMALL_FILES))
        };
        let bytes = manifest.encode();
        let size = bytes.len() as u64;
        if size > room {
            return;
        }
        // The lock is held until the file is there: its bytes count.
        let written = self.shared.directory.lock().map_err(std::io::Error::other).and_then(|locked| {
            let fits = locked.make_room(size.next_multiple_of(PAGE)) >= size;
            if fits { Manifest::write(&partition.folder, &bytes) } else { Ok(()) }
        });
        if written.is_err() {
            // Without a manifest the next start goes from header to header: slower, not wrong.
            self.shared.faults.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Tier for DiskTier {
    fn submit(&self, op: Op) {
        let since = Instant::now();
        match op {
            Op::Read { ticket, key, offset, dest } => {
                let wanted = dest.len() as u64;
                let mut state = self.shared.state();
                let read = if state.closed {
                    ReadState::Ended(ReadOutcome::Cancelled, dest)
                } else {
                    state.read(ticket, key, offset, dest)
                };
                drop(state);
                match read {
                    ReadState::Queued => self.shared.work.notify_one(),
                    ReadState::Ended(outcome, dest) => {
                        drop(dest);
                        self.end_now(ticket, outcome, wanted, since);
                    }
                }
            }
            Op::Write { ticket, key, payload } => {
                let len = payload.as_slice().len() as u64;
                // A large payload's sum is taken by the thread that writes it.
                let crc = if len < LARGE { crc32c::crc32c(payload.as_slice()) } else { 0 };
                let entry = self.shared.entries.entry(&key);
                let mut state = self.shared.state();
                let waiting = state.writes.len();
                let taken = if state.closed {
                    Taken::Now(ReadOutcome::Cancelled)
                } else if key.fingerprint == self.fingerprint {
                    state.write(ticket, key, entry, payload, crc)
                } else {
                    Taken::Now(ReadOutcome::Failed)
                };
                let more = state.writes.len() > waiting;
                drop(state);
                if more {
                    self.shared.work.notify_all();
                }
                if let Taken::Now(outcome) = taken {
                    self.end_now(ticket, outcome, len, since);
                }
            }
            Op::Drop { ticket, key } => {
                let outcome = self.forget(&key);
                self.end_now(ticket, outcome, 0, since);
            }
        }
    }

    fn cancel(&self, ticket: Ticket) {
        let ended = self.shared.state().withdraw(|queued| queued == ticket);
        for (ticket, since) in ended {
            self.end_now(ticket, ReadOutcome::Cancelled, 0, since);
        }
    }

    /// Of samples alone: `capacity` is [`Self::room`].
    fn facts(&self) -> TierFacts {
        let state = self.shared.state();
        TierFacts {
            place: if self.is_read_only() { "disk (read-only)" } else { "disk (buffered)" }.to_owned(),
            capacity: state.capacity(),
            used: state.used(),
            in_flight: state.in_flight,
        }
    }

    /// What is queued is cancelled, what has begun is finished, small samples still in memory are written, the
    /// manifest is written. A disk that does not answer within `grace` is left to its threads.
    fn close(&self, grace: Nanos) {
        let ended = {
            let mut state = self.shared.state();
            state.closed = true;
            state.seal();
            state.withdraw(|_| true)
        };
        self.shared.work.notify_all();
        for (ticket, since) in ended {
            self.end_now(ticket, ReadOutcome::Cancelled, 0, since);
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
                // One that panicked has said so; its operations are not worth a second panic here.
                drop(thread.join());
            }
            self.leave();
        }
    }
}

impl DiskTier {
    fn forget(&self, key: &SampleKey) -> ReadOutcome {
        let mut state = self.shared.state();
        if state.closed {
            ReadOutcome::Cancelled
        } else if state.slab.forget(key) {
            ReadOutcome::Ok
        } else {
            ReadOutcome::Absent
        }
    }
}

impl Drop for DiskTier {
    fn drop(&mut self) {
        self.close(GRACE_ON_DROP);
    }
}

impl fmt::Debug for DiskTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskTier").field("facts", &self.facts()).finish_non_exhaustive()
    }
}

/// Claim a partition and recover its content.
fn open_writable(directory: &Directory, config: &DiskConfig) -> Result<State, DiskError> {
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
    // The directory may hold more than it may: `disk_size` was larger in earlier runs.
    directory.lock()?.make_room(0);
    Ok(State::new(recovered, Some(partition), limit, reserve, config.threads))
}

/// Find what a directory holds that can only be read.
fn open_read_only(directory: &Directory, entries: &dyn Entries, threads: usize) -> Result<State, DiskError> {
    let recovered = recover::recover_read_only(&directory.existing_source()?, entries, threads)?;
    let limit = recovered.allocated;
    Ok(State::new(recovered, None, limit, 0, threads))
}

impl State {
    fn manifest(&self, entries: &dyn Entries) -> Manifest {
        let mut all: Vec<_> =
            self.slab.listed().map(|(key, at, len)| (at, entries.entry(&key), len, 0)).collect();
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

fn check(name: &'static str, value: u64, least: u64, most: u64) -> Result<(), DiskError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(DiskError::OutOfRange { name, value, least, most })
}

/// Enough for one segment and the reserve.
const LEAST: Bytes = Bytes::new(1 << 20);

/// The lock and the directories, in whole blocks of any usual file system.
const SMALL_FILES: u64 = 32 << 10;

/// Bytes set aside for files other than segments: folders, locks and the manifest. Of the capacity at most a 64th and
/// 64 KiB; a manifest that does not fit is not written.
fn reserve(capacity: u64, samples: u64) -> u64 {
    let list = samples.saturating_mul(LINE_BYTES).min(capacity / 64);
    2 * SMALL_FILES + list.max(directory::margin(capacity).min(capacity / 64))
}

/// Room on the disk for a sample of `len` bytes, header and padding counted: what a planner has to add up.
pub const fn disk_footprint(len: Bytes) -> Bytes {
    Bytes::new(layout(len.get()).0.saturating_mul(entry::GRANULE))
}

/// The checksum that a sample on the disk is proved by: CRC-32C.
pub fn sample_checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

#[cfg(test)]
mod tests;
