// SPDX-License-Identifier: Apache-2.0
//! The threads of the disk tier: each takes one job at a time and does its I/O without the lock.
//!
//! Nothing is retried: a failed write loses its position, a failed read its sample, and the tier continues with the
//! rest.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use foresee_units::{Bytes, ReadOutcome};

use super::Entries;
use super::directory::Directory;
use super::entry::{Entry, GRANULE, HEADER, PAGE};
use super::partition::{Partition, segment_name};
use super::segment::Segment;
use super::state::{Chunk, Direct, DiskState, ReadJob, WriteJob};
use super::storage::Storage;
use crate::completion::Completions;
use crate::op::{Detail, Done, Ticket};

/// Data shared by the tier and its threads.
pub(super) struct DiskCore {
    pub(super) state: Mutex<DiskState>,
    /// Signals new work, and the close.
    pub(super) work: Condvar,
    /// Signals the end of the last thread.
    pub(super) ended: Condvar,
    pub(super) completions: Completions,
    pub(super) storage: Box<dyn Storage>,
    pub(super) directory: Directory,
    pub(super) entries: Arc<dyn Entries>,
    /// The capacity of this process as declared to other processes.
    pub(super) declared: u64,
    pub(super) bytes_written: AtomicU64,
    pub(super) faults: AtomicU64,
}

enum Job {
    Read(ReadJob),
    Write(WriteJob),
}

impl DiskCore {
    pub(super) fn state(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Run one thread. The first one prefers writes, the others reads, so that neither starves.
    pub(super) fn serve(&self, writes_first: bool) {
        while let Some(job) = self.next_job(writes_first) {
            match job {
                Job::Read(reading) => self.read(reading),
                Job::Write(WriteJob::Chunk(chunk)) => self.write_chunk(chunk),
                Job::Write(WriteJob::Direct(direct)) => self.write_direct(direct),
                Job::Write(WriteJob::Grow(granules)) => self.grow(granules),
            }
        }
        self.state().running -= 1;
        self.ended.notify_all();
    }

    /// Report a completion, after the operation's memory was released.
    pub(super) fn report(
        &self,
        ticket: Ticket,
        outcome: ReadOutcome,
        bytes: u64,
        times: Times,
        fault: Option<&io::Error>,
    ) {
        let message = fault.map(|fault| fault.to_string().into_boxed_str());
        self.completions.push(Done {
            ticket,
            outcome,
            bytes: Bytes::new(bytes),
            queued: times.started.duration_since(times.submitted).into(),
            service: times.started.elapsed().into(),
            detail: Detail { message, ..Detail::default() },
        });
    }

    fn next_job(&self, writes_first: bool) -> Option<Job> {
        let mut state = self.state();
        loop {
            let DiskState { reads, writes, .. } = &mut *state;
            let job = if writes_first {
                writes.pop_front().map(Job::Write).or_else(|| reads.pop_front().map(Job::Read))
            } else {
                reads.pop_front().map(Job::Read).or_else(|| writes.pop_front().map(Job::Write))
            };
            if job.is_some() {
                return job;
            }
            if state.is_closed {
                return None;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn read(&self, reading: ReadJob) {
        let times = Times::from(reading.submitted);
        let ReadJob { ticket, key, pinned, segment, offset, mut dest, .. } = reading;
        let wanted = dest.len() as u64;
        let whole = wanted == pinned.len;
        // A part is verified like the whole, which requires all bytes.
        let mut scratch = Vec::new();
        let payload = if whole {
            dest.as_mut_slice()
        } else {
            scratch.resize(usize::try_from(pinned.len).expect("it fits the segment it is in"), 0);
            &mut scratch
        };
        let mut header = [0; HEADER];
        let mut parts = [IoSliceMut::new(&mut header), IoSliceMut::new(payload)];
        let read = self.storage.read(segment.file(), &mut parts, segment.offset(pinned.at));
        let is_valid = read.is_ok() && {
            let wanted = self.entries.entry(&key);
            Entry::decode(&header).is_some_and(|entry| entry.matches(&wanted, payload))
        };
        let outcome = if is_valid { ReadOutcome::Ok } else { ReadOutcome::Corrupt };
        if is_valid && !whole {
            let from = usize::try_from(offset).expect("inside the sample");
            let part = &scratch[from..from + dest.len()];
            dest.as_mut_slice().copy_from_slice(part);
        }
        drop(dest);
        {
            let mut state = self.state();
            match &read {
                Err(fault) if fault.kind() != io::ErrorKind::UnexpectedEof => {
                    state.slab.mark_unusable(pinned.slot);
                }
                _ if is_valid => {}
                _ => state.slab.remove_slot(pinned.slot),
            }
            state.slab.unpin(pinned.slot);
            state.in_flight -= 1;
        }
        if outcome != ReadOutcome::Ok {
            self.faults.fetch_add(1, Ordering::Relaxed);
        }
        self.report(
            ticket,
            outcome,
            if outcome == ReadOutcome::Ok { wanted } else { 0 },
            times,
            read.err().as_ref(),
        );
    }

    fn write_direct(&self, direct: Direct) {
        let times = Times::from(direct.submitted);
        let Direct { ticket, entry, pinned, segment, payload, .. } = direct;
        let header = Entry { payload_crc: crc32c::crc32c(payload.as_slice()), ..entry }.encode();
        let mut parts = [IoSlice::new(&header), IoSlice::new(payload.as_slice())];
        let written = self.write(&segment, &mut parts, pinned.at);
        drop(payload);
        let ok = written.is_ok();
        self.state().finish_direct(pinned.slot, ok, ok);
        let (outcome, bytes) = if ok { (ReadOutcome::Ok, entry.len) } else { (ReadOutcome::Full, 0) };
        self.report(ticket, outcome, bytes, times, written.err().as_ref());
    }

    fn write_chunk(&self, chunk: Arc<Chunk>) {
        let written = self.write(&chunk.segment, &mut [IoSlice::new(&chunk.bytes)], chunk.start);
        self.state().finish_chunk(chunk, written.is_ok());
        // Its samples were completed when they were combined; a write that was refused meanwhile may be repeated.
        self.completions.notify_writable();
    }

    fn write(&self, segment: &Segment, parts: &mut [IoSlice<'_>], at: u64) -> io::Result<()> {
        let bytes: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let mut written = self.storage.write(segment.file(), parts, segment.offset(at));
        if written.is_ok() {
            self.bytes_written.fetch_add(bytes, Ordering::Relaxed);
            if segment.count_written(bytes) {
                written = self.storage.flush(segment.file());
            }
        }
        written.inspect_err(|_| {
            self.faults.fetch_add(1, Ordering::Relaxed);
            self.state().stop_growing();
        })
    }

    /// Add a segment. Only one is added at a time, so these decisions hold until it exists.
    fn grow(&self, granules: u64) {
        let plan = {
            let mut state = self.state();
            let number = state.next_number;
            state.next_number += 1;
            let partition = state.partition.clone();
            partition.zip(state.next_segment_bytes(granules)).map(|(partition, len)| {
                let (nth, allocated) = (state.segments.len(), state.allocated);
                (partition, number, nth, len, allocated)
            })
        };
        let Some((partition, number, nth, len, allocated)) = plan else {
            return self.state().cancel_growth();
        };
        if let Ok((file, len)) = self.add_segment(&partition, number, len, allocated, granules * GRANULE) {
            self.state().extend(Segment::new(file, number, nth, len), len);
        } else {
            self.faults.fetch_add(1, Ordering::Relaxed);
            self.state().cancel_growth();
        }
        self.completions.notify_writable();
    }

    /// Create a segment of `len` bytes, or of as many as the directory has, at least `least`. This tier has
    /// `allocated` bytes already.
    fn add_segment(
        &self,
        partition: &Partition,
        number: u64,
        len: u64,
        allocated: u64,
        least: u64,
    ) -> io::Result<(File, u64)> {
        let locked = self.directory.lock().map_err(io::Error::other)?;
        let share = locked.share(self.declared).saturating_sub(allocated);
        let len = locked.reserve_segment(len.min(share)) / PAGE * PAGE;
        if len < least {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let name = segment_name(number);
        let file = partition.folder.create_file(&name)?;
        self.storage.allocate(&file, len).inspect_err(|_| drop(partition.folder.remove_file(&name)))?;
        Ok((file, len))
    }
}

/// Times of submission and start of an operation.
#[derive(Clone, Copy)]
pub(super) struct Times {
    pub(super) submitted: Instant,
    pub(super) started: Instant,
}

impl From<Instant> for Times {
    /// Started now.
    fn from(submitted: Instant) -> Self {
        Self { submitted, started: Instant::now() }
    }
}
