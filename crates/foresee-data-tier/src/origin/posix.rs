// SPDX-License-Identifier: Apache-2.0
//! An origin on a mounted file system: a local disk, NFS, Lustre, a FUSE mount.
//!
//! Reads block, on threads of the origin, because no other method works on every file system and kernel. One read
//! costs four system calls (openat, pread, fstat, close). Threads start when reads wait for a device: the page cache
//! is read by one thread per core, a disk by all threads.
//!
//! Keys that leave the root by name (`..`, absolute) are refused. Symbolic links are followed anywhere, as in
//! torchvision's loader of a folder data set.

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

use super::pending::{PendingOp, PendingOps, deadline};
use super::tag::{WITH_INODE, posix_tag};
use super::{Locate, Location, OriginError, OriginOptions};
use crate::completion::Completions;
use crate::op::{Op, SampleKey, Ticket};
use crate::uri::Uri;
use crate::{Tier, TierFacts};

/// Below this mean time per read, the page cache serves reads, and more threads than cores would slow them down. A
/// cached 1 KB file takes about 5 us, the fastest flash about 80 us.
const DEVICE_READ_MIN: Duration = Duration::from_micros(50);
/// A read that has waited this long gets a thread, whatever the mean is: the other threads may be blocked by a file
/// that hangs.
const QUEUE_TIME_MAX: Duration = Duration::from_millis(1);

/// The message for EISDIR: a directory can be opened like a file, and fails when it is read.
const A_DIRECTORY: &str = "it is a directory and was a file";

/// The tier of a directory.
#[derive(Debug)]
pub struct PosixOrigin {
    shared: Arc<ReaderPool>,
}

struct ReaderPool {
    root: OwnedFd,
    place: String,
    locate: Arc<dyn Locate>,
    pending_ops: Arc<PendingOps>,
    queue: Mutex<Queue>,
    work: Condvar,
    threads_max: usize,
    cores: usize,
    /// Moving mean of nanoseconds per read.
    mean_ns: AtomicU64,
}

#[derive(Default)]
struct Queue {
    reads: VecDeque<QueuedRead>,
    is_closed: bool,
    /// Running threads.
    threads: usize,
    /// Of these, asleep and not yet woken.
    asleep: usize,
    /// Wake-ups that no thread has consumed yet.
    wakeups: usize,
}

struct QueuedRead {
    pending: PendingOp,
    key: SampleKey,
    offset: u64,
}

impl PosixOrigin {
    /// Open the directory `root`, without starting a thread.
    ///
    /// `threads`: 1 or more, the maximum number of reads in flight.
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
            shared: Arc::new(ReaderPool {
                root: open_root(root)?,
                place: root.display().to_string(),
                locate,
                pending_ops: PendingOps::new(completions),
                queue: Mutex::default(),
                work: Condvar::new(),
                threads_max: threads.max(1),
                cores: std::thread::available_parallelism().map_or(1, usize::from),
                mean_ns: AtomicU64::new(0),
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
        let pending_ops = &self.shared.pending_ops;
        let mut reads = Vec::with_capacity(ops.len());
        for op in ops {
            match op {
                Op::Read { ticket, key, offset, dest } => {
                    reads.push(QueuedRead {
                        pending: PendingOp::new(pending_ops, ticket, now, Some(dest)),
                        key,
                        offset,
                    });
                }
                Op::Write { ticket, .. } | Op::Drop { ticket, .. } => {
                    PendingOp::new(pending_ops, ticket, now, None)
                        .fail(ReadOutcome::Failed, super::READ_ONLY);
                }
            }
        }
        let start = {
            let mut queue = self.shared.queue();
            if queue.is_closed {
                drop(queue);
                return; // dropped reads report themselves as cancelled
            }
            queue.reads.extend(reads);
            self.shared.wake_threads(&mut queue)
        };
        self.shared.start_threads(start);
    }

    fn cancel(&self, ticket: Ticket) {
        let withdrawn = {
            let mut queue = self.shared.queue();
            let at = queue.reads.iter().position(|queued| queued.pending.ticket() == ticket);
            at.and_then(|at| queue.reads.remove(at))
        };
        drop(withdrawn); // outside of the lock: it reports the completion
    }

    fn facts(&self) -> TierFacts {
        TierFacts {
            place: self.shared.place.clone(),
            capacity: Bytes::MAX,
            used: Bytes::ZERO,
            in_flight: self.shared.pending_ops.in_flight(),
        }
    }

    /// Cancels queued reads, and gives reads in flight `grace` to end. A read that the file system blocks for longer
    /// cannot be cancelled: its `Done` comes when the kernel returns.
    fn close(&self, grace: Nanos) {
        self.shared.close();
        self.shared.pending_ops.wait_idle(deadline(grace));
    }
}

impl Drop for PosixOrigin {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl ReaderPool {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        self.pending_ops.close();
        let queued = {
            let mut queue = self.queue();
            queue.is_closed = true;
            std::mem::take(&mut queue.reads)
        };
        self.work.notify_all();
        drop(queued);
    }

    /// Wake sleeping threads for the queue; return the number of further threads to start.
    fn wake_threads(&self, queue: &mut Queue) -> usize {
        let Some(head) = queue.reads.front() else { return 0 };
        let awake = queue.threads - queue.asleep;
        let slow = Duration::from_nanos(self.mean_ns.load(Ordering::Relaxed)) >= DEVICE_READ_MIN;
        let mut wanted = if slow { self.threads_max } else { self.cores.min(self.threads_max) };
        if awake >= wanted && head.pending.submitted().elapsed() >= QUEUE_TIME_MAX {
            wanted = (awake + 1).min(self.threads_max);
        }
        // Awake threads take the next read when they finish; each wake-up adds a thread for one more read.
        let more = wanted.saturating_sub(awake).min(queue.reads.len());
        let woken = more.min(queue.asleep);
        queue.asleep -= woken;
        queue.wakeups += woken;
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
                let unserved = {
                    let mut queue = self.queue();
                    queue.threads -= 1;
                    if queue.threads == 0 { std::mem::take(&mut queue.reads) } else { VecDeque::new() }
                };
                for queued in unserved {
                    let message = format!("no reader thread could be started ({error}); raise ulimit -u");
                    queued.pending.fail(ReadOutcome::Failed, message);
                }
            }
        }
    }

    fn serve_all(self: Arc<Self>) {
        while let Some((queued, start)) = self.next() {
            self.start_threads(start);
            // A panic (of the locator) only ends its own operation.
            let _ = catch_unwind(AssertUnwindSafe(|| self.serve(queued)));
        }
    }

    /// The next read, and the number of threads to start before it is served; `None` when closed.
    fn next(&self) -> Option<(QueuedRead, usize)> {
        let mut queue = self.queue();
        loop {
            if let Some(queued) = queue.reads.pop_front() {
                let start = self.wake_threads(&mut queue);
                return Some((queued, start));
            }
            if queue.is_closed {
                queue.threads -= 1;
                return None;
            }
            queue.asleep += 1;
            while queue.wakeups == 0 && !queue.is_closed {
                queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            if queue.wakeups > 0 {
                queue.wakeups -= 1; // the waker has already counted this thread as awake
            } else {
                queue.asleep -= 1;
            }
        }
    }

    fn serve(&self, QueuedRead { mut pending, key, offset }: QueuedRead) {
        let began = pending.begin();
        let Some(location) = self.locate.locate(key.id) else {
            return pending.fail(ReadOutcome::Absent, super::not_in_index(key.id));
        };
        let read = self.read(&mut pending, &location, offset, began);
        // The mean only determines the number of threads, so a lost update is harmless.
        let nanos = u64::try_from(pending.service().as_nanos()).unwrap_or(u64::MAX);
        let mean_ns = self.mean_ns.load(Ordering::Relaxed);
        self.mean_ns.store(mean_ns - mean_ns / 8 + nanos / 8, Ordering::Relaxed);
        match read {
            Ok(()) => pending.finish(ReadOutcome::Ok),
            Err((outcome, cause)) => {
                let name = String::from_utf8_lossy(&location.key);
                pending.fail(outcome, format!("{}/{name}: {cause}", self.place));
            }
        }
    }

    fn read(
        &self,
        pending: &mut PendingOp,
        location: &Location<'_>,
        offset: u64,
        began: Instant,
    ) -> Result<(), (ReadOutcome, String)> {
        let Some(dest) = pending.dest.as_mut() else { unreachable!("a read has its memory until it ends") };
        let first_byte = super::start_in_object(location, offset, dest.len())?;
        if !safe_key(&location.key) {
            return Err((ReadOutcome::Failed, "the key leaves the origin's directory".into()));
        }
        let fault = |errno: Errno| match errno {
            Errno::ISDIR => (ReadOutcome::Changed, format!("{A_DIRECTORY}; index the data set again")),
            errno => (outcome_of(errno), std::io::Error::from(errno).to_string()),
        };
        let file = open_file(&self.root, &location.key).map_err(fault)?;
        let opened = Instant::now();
        pending.detail.open = Some(Nanos::from(opened.saturating_duration_since(began)));

        let (filled, ended) = fill(&file, dest.as_mut_slice(), first_byte);
        pending.bytes = filled as u64;
        let filled_whole = filled == dest.len();
        ended.map_err(fault)?;

        // After the read, so that a file that was rewritten meanwhile is detected too.
        if !location.tag.is_empty() {
            let stat_began = Instant::now();
            let stat = rustix::fs::fstat(&file).map_err(fault)?;
            pending.detail.stat = Some(Nanos::from(stat_began.elapsed()));
            if tag_of(&stat, location.tag.len() == WITH_INODE) != location.tag[..] {
                let cause = "the file has changed since it was indexed; index the data set again";
                return Err((ReadOutcome::Changed, cause.into()));
            }
        } else if location.start.is_none() {
            // Without a tag, only the size identifies a version.
            let size = u64::try_from(rustix::fs::fstat(&file).map_err(fault)?.st_size).unwrap_or(0);
            if size != location.len {
                let cause = format!("{size} bytes instead of {}; index the data set again", location.len);
                return Err((ReadOutcome::Changed, cause));
            }
        }
        if filled_whole { Ok(()) } else { Err((ReadOutcome::Retryable, "the file ended early".into())) }
    }
}

impl std::fmt::Debug for ReaderPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReaderPool").field("place", &self.place).finish_non_exhaustive()
    }
}

/// The tag of a file from its `stat`, with or without the inode number.
pub(crate) fn tag_of(stat: &rustix::fs::Stat, with_inode: bool) -> Vec<u8> {
    // The fields' types differ between platforms; values that do not fit are clamped.
    let nanos = i64::try_from(stat.st_mtime_nsec).unwrap_or(0);
    let mtime_ns = i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(nanos);
    let mtime_ns = i64::try_from(mtime_ns).unwrap_or(i64::MAX);
    posix_tag(u64::try_from(stat.st_size).unwrap_or(0), mtime_ns, with_inode.then_some(stat.st_ino))
}

/// Whether the setting `file_tag` of a directory selects inode numbers.
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

/// The setting that selects the facts that identify a version of a file.
const FILE_TAG: &str = "file_tag";

pub(super) fn open_root(root: &Path) -> Result<OwnedFd, OriginError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(root, flags, Mode::empty())
        .map_err(|errno| OriginError::from_io(root.display().to_string(), &errno.into()))
}

/// Whether a key stays below the root by name: relative, not empty, no `..`, no zero byte.
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

/// Open a file for reading, without blocking at a pipe under a sample's name, which fails.
pub(super) fn open_file(root: &OwnedFd, key: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let key = std::ffi::OsStr::from_bytes(key);
    retry(|| rustix::fs::openat(root, key, flags, Mode::empty()))
}

/// Read from `start` until `into` is full or the file ends: the number of bytes, and the error that stopped it.
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
