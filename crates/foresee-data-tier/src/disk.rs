// SPDX-License-Identifier: Apache-2.0
//! Samples on a local disk: files of cells, kept from run to run.
//!
//! Owns one lane of the cache directory: `<dir>/<fingerprint>/lane-<k>/`, format in
//! `docs/formats/disk-cache.md`. A cell proves itself when it is read, so a crash, a torn write or a flipped bit
//! costs samples and never gives wrong ones. Refuses to evict, and to be more than a cache: whatever goes
//! wrong with the disk, the tier gets smaller and the run goes on.
//!
//! ```text
//! submit --> state (lock, no I/O) --> reads, writes --> work (threads, I/O without the lock) --> completions
//!              slab: what lies where                      cell: the format
//!              open chunk: small samples gathered         storage: the kernel, or a failing disk in tests
//! open:  lane (directories, locks) --> recover (manifest, or header by header) --> state
//! ```

mod cell;
mod error;
mod lane;
mod manifest;
mod recover;
mod segment;
mod state;
mod storage;
mod work;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use foresee_units::{Bytes, Nanos, SampleId};

use crate::completion::Completions;
use crate::op::{Fingerprint, Op, Outcome, SampleKey, TagHash, Ticket};
use crate::{Tier, TierFacts};
use cell::{LARGE, PAGE, layout};
pub use error::DiskError;
use lane::Lane;
use manifest::{Listed, Manifest, SegmentList};
use segment::Segment;
use state::{Source, State, Taken};
use storage::{Kernel, Storage};
use work::{Shared, Times};

/// How long a dropped tier waits for its threads: a write of a chunk, many times over.
const GRACE_ON_DROP: Nanos = Nanos::from_secs(2);

/// Where and how large.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// The cache directory, made if need be (mode 0700); others may use it at the same time.
    pub dir: PathBuf,
    /// Bytes on the disk, everything counted, 1 MiB or more. Never exceeded.
    pub capacity: Bytes,
    /// The one data set whose samples are kept; a write of another's is [`Outcome::Fatal`].
    pub fingerprint: Fingerprint,
    /// Ranks of this run that use `dir`, 1 or more. Lanes of this number and above that nobody uses are left
    /// from a larger run: what fits of them is taken over, the rest stays.
    pub ranks: u32,
    /// Samples of the data set: room for their list is set aside, up to a 64th of the capacity.
    pub samples: u64,
    /// Threads for I/O, 1 to 64; 2 to 8 suit one device.
    pub threads: usize,
}

/// A sample that was there when the tier was opened. It counts only if the tag is still the origin's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Held {
    /// The sample.
    pub id: SampleId,
    /// The version that is held.
    pub tag: TagHash,
    /// Its length.
    pub len: Bytes,
}

/// Samples of one data set in one lane of a cache directory.
pub struct DiskTier {
    shared: Arc<Shared>,
    fingerprint: Fingerprint,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl DiskTier {
    /// From this length on a write reads its payload until its `Done`; below, only during `submit`.
    pub const LARGE: Bytes = Bytes::new(LARGE);

    /// Opens a lane of its own and tells what it holds, in order of ids. Reads the lane's list, or after a
    /// crash the header of every cell. A lane that holds more than `capacity` is cut to it.
    pub fn open(config: &DiskConfig, completions: Completions) -> Result<(Self, Vec<Held>), DiskError> {
        Self::open_with(config, completions, Box::new(Kernel))
    }

    fn open_with(
        config: &DiskConfig,
        completions: Completions,
        storage: Box<dyn Storage>,
    ) -> Result<(Self, Vec<Held>), DiskError> {
        let &DiskConfig { ref dir, capacity, fingerprint, ranks, samples, threads } = config;
        check("threads", threads as u64, 1, 64)?;
        check("ranks", u64::from(ranks), 1, u64::from(u32::MAX))?;
        if capacity < LEAST {
            return Err(DiskError::TooSmall { capacity, least: LEAST });
        }
        let root = lane::open_root(dir, fingerprint)?;
        let lane = Lane::claim(&root)?;
        let orphans = Lane::claim_orphans(&root, ranks)?;
        let reserve = reserve(capacity.get(), samples);
        let limit = (capacity.get() - reserve) / PAGE * PAGE;
        let recovered = recover::recover(&lane, &orphans, fingerprint, limit, threads)?;
        drop(orphans);
        let mut held: Vec<Held> = recovered
            .slab
            .listed()
            .map(|(key, _, len)| Held { id: key.id, tag: key.tag, len: Bytes::new(len) })
            .collect();
        held.sort_unstable();
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(recovered, lane, limit, reserve, threads)),
            work: Condvar::new(),
            ended: Condvar::new(),
            completions,
            storage,
            bytes_written: AtomicU64::new(0),
            faults: AtomicU64::new(0),
        });
        let tier = Self { shared, fingerprint, threads: Mutex::default() };
        tier.start(threads)?;
        Ok((tier, held))
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
    fn end_now(&self, ticket: Ticket, outcome: Outcome, bytes: u64, since: Instant) {
        let bytes = if outcome == Outcome::Ok { bytes } else { 0 };
        self.shared.end(ticket, outcome, bytes, Times { since, began: since }, None);
    }

    /// Leaves the list of cells behind and gives the lane free. Only once all threads are gone.
    fn leave(&self) {
        let (lane, manifest, room) = {
            let mut state = self.shared.state();
            let Some(lane) = state.lane.take() else { return };
            (lane, state.manifest(self.fingerprint), state.reserve.saturating_sub(SMALL_FILES))
        };
        if manifest.leave(&lane, room).is_err() {
            // Without a list the next start goes from header to header: slower, not wrong.
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
                let source = if state.closed {
                    Source::Ended(Outcome::Cancelled, dest)
                } else {
                    state.read(ticket, key, offset, dest)
                };
                drop(state);
                match source {
                    Source::Queued => self.shared.work.notify_one(),
                    Source::Ended(outcome, dest) => {
                        drop(dest);
                        self.end_now(ticket, outcome, wanted, since);
                    }
                }
            }
            Op::Write { ticket, key, payload } => {
                let len = payload.as_slice().len() as u64;
                // A large payload's sum is taken by the thread that writes it.
                let crc = if len < LARGE { crc32c::crc32c(payload.as_slice()) } else { 0 };
                let mut state = self.shared.state();
                let waiting = state.writes.len();
                let taken = if state.closed {
                    Taken::Now(Outcome::Cancelled)
                } else if key.fingerprint == self.fingerprint {
                    state.write(ticket, key, payload, crc)
                } else {
                    Taken::Now(Outcome::Fatal)
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
            self.end_now(ticket, Outcome::Cancelled, 0, since);
        }
    }

    /// Of samples alone: `capacity` is [`Self::room`].
    fn facts(&self) -> TierFacts {
        let state = self.shared.state();
        TierFacts {
            place: "disk (buffered)".to_owned(),
            capacity: state.capacity(),
            used: state.used(),
            in_flight: state.in_flight,
        }
    }

    /// What is queued is cancelled, what has begun is finished, small samples still in memory are written, the
    /// list of cells is left behind. A disk that does not answer within `grace` is left to its threads.
    fn close(&self, grace: Nanos) {
        let ended = {
            let mut state = self.shared.state();
            state.closed = true;
            state.seal();
            state.withdraw(|_| true)
        };
        self.shared.work.notify_all();
        for (ticket, since) in ended {
            self.end_now(ticket, Outcome::Cancelled, 0, since);
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
    fn forget(&self, key: &SampleKey) -> Outcome {
        let mut state = self.shared.state();
        if state.closed {
            Outcome::Cancelled
        } else if state.slab.forget(key) {
            Outcome::Ok
        } else {
            Outcome::Absent
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

impl State {
    fn manifest(&self, fingerprint: Fingerprint) -> Manifest {
        let mut cells: Vec<_> = self.slab.listed().map(|(key, at, len)| (at, key.id, key.tag, len)).collect();
        cells.sort_unstable();
        let mut by_segment: BTreeMap<usize, Vec<Listed>> = BTreeMap::new();
        for (at, id, tag, len) in cells {
            let nth = Segment::nth_of(at);
            let at = at - self.segments[nth].base();
            by_segment.entry(nth).or_default().push(Listed { at, id, tag, len });
        }
        let lists = self.segments.iter().enumerate().map(|(nth, segment)| {
            SegmentList::new(segment.number(), by_segment.remove(&nth).unwrap_or_default())
        });
        Manifest::new(fingerprint, self.sequence, lists.collect())
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

/// What is kept for files other than segments: the list of cells takes some 14 bytes each. At most a 64th of the
/// capacity; a list that does not fit is not written.
const fn reserve(capacity: u64, samples: u64) -> u64 {
    const LISTED: u64 = 20;
    let wanted = samples.saturating_mul(LISTED);
    let most = capacity / 64;
    let list = if wanted < most { wanted } else { most };
    2 * SMALL_FILES + list
}

/// Room on the disk for a sample of `len` bytes, header and padding counted: what a planner has to add up.
pub const fn disk_footprint(len: Bytes) -> Bytes {
    Bytes::new(layout(len.get()).0.saturating_mul(cell::GRANULE))
}

/// The checksum that a sample on the disk is proved by: CRC-32C.
pub fn sample_checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

#[cfg(test)]
mod tests;
