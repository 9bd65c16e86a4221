// SPDX-License-Identifier: Apache-2.0
//! An origin on a mounted file system: a local disk, NFS, Lustre, a FUSE mount.
//!
//! Reads are blocking, on threads of its own, because no other way works on every file system and every kernel. One
//! read costs four system calls (openat, pread, fstat, close). Threads start when reads turn out to wait for a device:
//! a page cache is served by as many threads as there are cores, a disk by all of them.
//!
//! Keys that leave the root by name (`..`, absolute) are refused. Symbolic links are followed anywhere, as the loader
//! of a folder data set does.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use foresee_units::{Bytes, Nanos, ReadOutcome};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::flight::{Desk, Flight, deadline};
use super::tag::{WITH_INODE, posix_tag};
use super::{Locate, Location, OriginError, OriginOptions};
use crate::completion::Completions;
use crate::op::{Op, SampleKey, Ticket};
use crate::uri::Uri;
use crate::{Tier, TierFacts};

/// Below this mean time per read the page cache answers, and more threads than cores only get in the way.
/// A cached 1 KB file takes about 5 us, the fastest flash about 80 us.
const WAITS_FOR_DEVICE: Duration = Duration::from_micros(50);
/// A read that has waited this long for a thread gets one, whatever the mean says: the fast ones may be
/// stuck behind a file that hangs.
const TOO_LONG_IN_QUEUE: Duration = Duration::from_millis(1);

/// What is meant by EISDIR: a directory opens as a file does, and says what it is when it is read.
const A_DIRECTORY: &str = "it is a directory and was a file";

/// The tier of a directory.
#[derive(Debug)]
pub struct PosixOrigin {
    shared: Arc<Shared>,
}

struct Shared {
    root: OwnedFd,
    place: String,
    locate: Arc<dyn Locate>,
    desk: Arc<Desk>,
    queue: Mutex<Queue>,
    work: Condvar,
    threads_max: usize,
    cores: usize,
    /// Mean nanoseconds per read, recent ones weighing more.
    pace: AtomicU64,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    closed: bool,
    /// Started and not ended.
    threads: usize,
    /// Of those, asleep and not yet called.
    asleep: usize,
    /// Calls that no sleeper has answered yet.
    calls: usize,
}

struct Waiting {
    flight: Flight,
    key: SampleKey,
    offset: u64,
}

impl PosixOrigin {
    /// Opens the directory `root`; starts no thread yet.
    ///
    /// `threads`: 1 or more, the most reads under way at once.
    ///
    /// # Errors
    /// [`OriginError::NoFile`], [`OriginError::Denied`] or [`OriginError::Failed`] if `root` cannot be opened.
    pub fn new(
        root: &Path,
        locate: Arc<dyn Locate>,
        completions: Completions,
        threads: usize,
    ) -> Result<Self, OriginError> {
        Ok(Self {
            shared: Arc::new(Shared {
                root: open_root(root)?,
                place: root.display().to_string(),
                locate,
                desk: Desk::new(completions),
                queue: Mutex::default(),
                work: Condvar::new(),
                threads_max: threads.max(1),
                cores: std::thread::available_parallelism().map_or(1, usize::from),
                pace: AtomicU64::new(0),
            }),
        })
    }
}

impl Tier for PosixOrigin {
    fn submit(&self, op: Op) {
        self.submit_many(vec![op]);
    }

    fn submit_many(&self, ops: Vec<Op>) {
        let now = Instant::now();
        let desk = &self.shared.desk;
        let mut reads = Vec::with_capacity(ops.len());
        for op in ops {
            match op {
                Op::Read { ticket, key, offset, dest } => {
                    reads.push(Waiting { flight: Flight::new(desk, ticket, now, Some(dest)), key, offset });
                }
                Op::Write { ticket, .. } | Op::Drop { ticket, .. } => {
                    Flight::new(desk, ticket, now, None).fail(ReadOutcome::Failed, super::READ_ONLY);
                }
            }
        }
        let start = {
            let mut queue = self.shared.queue();
            if queue.closed {
                drop(queue);
                return; // dropped reads report themselves cancelled
            }
            queue.waiting.extend(reads);
            self.shared.call_threads(&mut queue)
        };
        self.shared.start_threads(start);
    }

    fn cancel(&self, ticket: Ticket) {
        let withdrawn = {
            let mut queue = self.shared.queue();
            let at = queue.waiting.iter().position(|waiting| waiting.flight.ticket() == ticket);
            at.and_then(|at| queue.waiting.remove(at))
        };
        drop(withdrawn); // outside the lock: it reports
    }

    fn facts(&self) -> TierFacts {
        TierFacts {
            place: self.shared.place.clone(),
            capacity: Bytes::MAX,
            used: Bytes::ZERO,
            in_flight: self.shared.desk.in_flight(),
        }
    }

    /// Cancels what waits, and gives reads under way `grace` to end. A read that the file system holds
    /// longer than that cannot be broken off: its `Done` comes when the kernel lets go of it.
    fn close(&self, grace: Nanos) {
        self.shared.close();
        self.shared.desk.wait_until(deadline(grace));
    }
}

impl Drop for PosixOrigin {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        self.desk.close();
        let waiting = {
            let mut queue = self.queue();
            queue.closed = true;
            std::mem::take(&mut queue.waiting)
        };
        self.work.notify_all();
        drop(waiting);
    }

    /// Wakes as many sleepers as the queue deserves and returns how many threads to start beyond them.
    fn call_threads(&self, queue: &mut Queue) -> usize {
        let Some(head) = queue.waiting.front() else { return 0 };
        let awake = queue.threads - queue.asleep;
        let slow = Duration::from_nanos(self.pace.load(Ordering::Relaxed)) >= WAITS_FOR_DEVICE;
        let mut wanted = if slow { self.threads_max } else { self.cores.min(self.threads_max) };
        if awake >= wanted && head.flight.submitted().elapsed() >= TOO_LONG_IN_QUEUE {
            wanted = (awake + 1).min(self.threads_max);
        }
        // Whoever is awake takes from the queue when done; each call brings one more for one more read.
        let more = wanted.saturating_sub(awake).min(queue.waiting.len());
        let woken = more.min(queue.asleep);
        queue.asleep -= woken;
        queue.calls += woken;
        for _ in 0..woken {
            self.work.notify_one();
        }
        let start = (more - woken).min(self.threads_max - queue.threads);
        queue.threads += start;
        start
    }

    fn start_threads(self: &Arc<Self>, count: usize) {
        for _ in 0..count {
            let shared = Arc::clone(self);
            let started =
                std::thread::Builder::new().name("foresee-reader".into()).spawn(move || shared.serve_all());
            if let Err(error) = started {
                let stranded = {
                    let mut queue = self.queue();
                    queue.threads -= 1;
                    if queue.threads == 0 { std::mem::take(&mut queue.waiting) } else { VecDeque::new() }
                };
                for waiting in stranded {
                    let message = format!("no reader thread could be started ({error}); raise ulimit -u");
                    waiting.flight.fail(ReadOutcome::Failed, message);
                }
            }
        }
    }

    fn serve_all(self: Arc<Self>) {
        while let Some((waiting, start)) = self.next() {
            self.start_threads(start);
            // A panic (of the locator) ends its own flight on the way out, and no more than that.
            let _ = catch_unwind(AssertUnwindSafe(|| self.serve(waiting)));
        }
    }

    /// The next read and how many threads to start before serving it; `None` when closed.
    fn next(&self) -> Option<(Waiting, usize)> {
        let mut queue = self.queue();
        loop {
            if let Some(waiting) = queue.waiting.pop_front() {
                let start = self.call_threads(&mut queue);
                return Some((waiting, start));
            }
            if queue.closed {
                queue.threads -= 1;
                return None;
            }
            queue.asleep += 1;
            while queue.calls == 0 && !queue.closed {
                queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            if queue.calls > 0 {
                queue.calls -= 1; // the caller has already counted us awake
            } else {
                queue.asleep -= 1;
            }
        }
    }

    fn serve(&self, Waiting { mut flight, key, offset }: Waiting) {
        let began = flight.begin();
        let Some(location) = self.locate.locate(key.id) else {
            return flight.fail(ReadOutcome::Absent, super::not_in_index(key.id));
        };
        let read = self.read(&mut flight, &location, offset, began);
        // The mean only steers the number of threads: a lost update does no harm.
        let nanos = u64::try_from(flight.service().as_nanos()).unwrap_or(u64::MAX);
        let pace = self.pace.load(Ordering::Relaxed);
        self.pace.store(pace - pace / 8 + nanos / 8, Ordering::Relaxed);
        match read {
            Ok(()) => flight.finish(ReadOutcome::Ok),
            Err((outcome, cause)) => {
                let name = String::from_utf8_lossy(&location.key);
                flight.fail(outcome, format!("{}/{name}: {cause}", self.place));
            }
        }
    }

    fn read(
        &self,
        flight: &mut Flight,
        location: &Location<'_>,
        offset: u64,
        began: Instant,
    ) -> Result<(), (ReadOutcome, String)> {
        let Some(dest) = flight.dest.as_mut() else { unreachable!("a read has its memory until it ends") };
        let first_byte = super::first_byte_of(location, offset, dest.len())?;
        if !safe_key(&location.key) {
            return Err((ReadOutcome::Failed, "the key leaves the origin's directory".into()));
        }
        let fault = |errno: Errno| match errno {
            Errno::ISDIR => (ReadOutcome::Changed, format!("{A_DIRECTORY}; index the data set again")),
            errno => (outcome_of(errno), std::io::Error::from(errno).to_string()),
        };
        let file = open_file(&self.root, &location.key).map_err(fault)?;
        let opened = Instant::now();
        flight.detail.open = Some(Nanos::from(opened.saturating_duration_since(began)));

        let (filled, ended) = fill(&file, dest.as_mut_slice(), first_byte);
        flight.bytes = filled as u64;
        let filled_whole = filled == dest.len();
        ended.map_err(fault)?;

        // After the read, so that a file rewritten meanwhile is noticed, too.
        if !location.tag.is_empty() {
            let asked = Instant::now();
            let stat = rustix::fs::fstat(&file).map_err(fault)?;
            flight.detail.stat = Some(Nanos::from(asked.elapsed()));
            if tag_of(&stat, location.tag.len() == WITH_INODE) != location.tag[..] {
                let cause = "the file has changed since it was indexed; index the data set again";
                return Err((ReadOutcome::Changed, cause.into()));
            }
        } else if location.start.is_none() {
            // Without a tag the size alone tells a version.
            let size = u64::try_from(rustix::fs::fstat(&file).map_err(fault)?.st_size).unwrap_or(0);
            if size != location.len {
                let cause = format!("{size} bytes instead of {}; index the data set again", location.len);
                return Err((ReadOutcome::Changed, cause));
            }
        }
        if filled_whole { Ok(()) } else { Err((ReadOutcome::Retryable, "the file ended early".into())) }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("place", &self.place).finish_non_exhaustive()
    }
}

/// The tag of a file as `stat` describes it; whether the inode number counts.
pub(crate) fn tag_of(stat: &rustix::fs::Stat, with_inode: bool) -> Vec<u8> {
    // The fields' types differ from platform to platform; what does not fit is clamped.
    let nanos = i64::try_from(stat.st_mtime_nsec).unwrap_or(0);
    let mtime_ns = i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(nanos);
    let mtime_ns = i64::try_from(mtime_ns).unwrap_or(i64::MAX);
    posix_tag(u64::try_from(stat.st_size).unwrap_or(0), mtime_ns, with_inode.then_some(stat.st_ino))
}

/// Whether the setting `file_tag` of a directory asks for inode numbers in tags.
pub(crate) fn wants_inode(uri: &Uri, options: &OriginOptions) -> Result<bool, OriginError> {
    match options.storage.get(FILE_TAG).map(String::as_str) {
        None | Some("mtime") => Ok(false),
        Some("inode") => Ok(true),
        Some(other) => Err(OriginError::BadOption {
            uri: uri.to_string(),
            name: FILE_TAG.to_owned(),
            cause: format!("{other:?} is neither \"mtime\" nor \"inode\""),
        }),
    }
}

/// The setting that says which facts tell one version of a file from the next.
const FILE_TAG: &str = "file_tag";

pub(super) fn open_root(root: &Path) -> Result<OwnedFd, OriginError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(root, flags, Mode::empty())
        .map_err(|errno| OriginError::from_io(root.display().to_string(), &errno.into()))
}

/// A key that stays below the root by name: relative, not empty, no `..`, no zero byte.
pub(crate) fn safe_key(key: &[u8]) -> bool {
    !key.is_empty()
        && !key.starts_with(b"/")
        && !key.contains(&0)
        && key.split(|&byte| byte == b'/').all(|part| part != b"..")
}

pub(super) fn read_whole(
    uri: &Uri,
    root: &Path,
    key: &[u8],
    range: Option<std::ops::Range<u64>>,
) -> Result<Vec<u8>, OriginError> {
    if !safe_key(key) {
        let key = String::from_utf8_lossy(key).into_owned();
        let cause = "it leaves the directory";
        return Err(OriginError::BadKey { uri: uri.to_string(), key, cause });
    }
    let failed = |errno: Errno| match errno {
        Errno::ISDIR => OriginError::Changed { uri: uri.join(key), cause: A_DIRECTORY },
        errno => OriginError::from_io(uri.join(key), &errno.into()),
    };
    let file = open_file(&open_root(root)?, key).map_err(failed)?;
    let size = u64::try_from(rustix::fs::fstat(&file).map_err(failed)?.st_size).unwrap_or(0);
    let range = range.unwrap_or(0..size);
    let end = range.end.min(size);
    let start = range.start.min(end);
    let len = usize::try_from(end - start).map_err(|_| failed(Errno::FBIG))?;
    let mut bytes = vec![0; len];
    let (filled, ended) = fill(&file, &mut bytes, start);
    ended.map_err(failed)?;
    bytes.truncate(filled);
    Ok(bytes)
}

/// Opens for reading. Not to wait at a pipe that nobody writes to: one found under a sample's name fails.
pub(super) fn open_file(root: &OwnedFd, key: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let key = std::ffi::OsStr::from_bytes(key);
    retry(|| rustix::fs::openat(root, key, flags, Mode::empty()))
}

/// Reads from `start` until `into` is full or the file ends: how many bytes came, and what stopped it.
fn fill(file: &OwnedFd, into: &mut [u8], start: u64) -> (usize, Result<(), Errno>) {
    let mut filled = 0;
    while filled < into.len() {
        match retry(|| rustix::io::pread(file, &mut into[filled..], start + filled as u64)) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(errno) => return (filled, Err(errno)),
        }
    }
    (filled, Ok(()))
}

fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

fn outcome_of(errno: Errno) -> ReadOutcome {
    match errno {
        Errno::NOENT | Errno::NOTDIR => ReadOutcome::Absent,
        Errno::ACCESS | Errno::PERM => ReadOutcome::Denied,
        Errno::LOOP | Errno::NAMETOOLONG | Errno::INVAL | Errno::SPIPE | Errno::NXIO => ReadOutcome::Failed,
        Errno::STALE => ReadOutcome::Changed,
        _ => ReadOutcome::Retryable,
    }
}

#[cfg(test)]
mod tests;
