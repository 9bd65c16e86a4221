// SPDX-License-Identifier: Apache-2.0
//! Decisions of the disk tier under its lock: positions of samples, jobs of threads, growth of files.
//!
//! The threads in `work` execute them, so the lock is never held during I/O: this file opens, reads and writes no
//! file.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use foresee_units::{Bytes, ReadOutcome};

use super::entry::{Entry, GRANULE, HEADER, LARGE, PAGE, layout};
use super::partition::Partition;
use super::recover::{OtherEntry, Recovered};
use super::segment::Segment;
use crate::identity::EntryKey;
use crate::memory::{Dest, Payload};
use crate::op::{SampleKey, Ticket};
use crate::slab::{Pinned, Slab, SlotId};

/// Small entries are combined into chunks of this size and written at once: a sample of 1 KiB then costs a thousandth
/// of a call.
const CHUNK: u64 = 1 << 20;

pub(super) struct DiskState {
    pub(super) slab: Slab,
    pub(super) segments: Vec<Arc<Segment>>,
    /// `None` in a read-only directory, and once the tier is closed.
    pub(super) partition: Option<Arc<Partition>>,
    /// Entries that this data set does not need, evicted when their bytes are needed; the oldest last.
    pub(super) others: Vec<OtherEntry>,
    is_read_only: bool,
    pub(super) reads: VecDeque<ReadJob>,
    pub(super) writes: VecDeque<WriteJob>,
    /// Chunks that are being written, by their first granule. Their entries are read from memory.
    sealed: BTreeMap<u64, Arc<Chunk>>,
    open: Option<Chunk>,
    spare: Vec<Vec<u8>>,
    /// Number of buffers that may still be created.
    buffers: usize,
    /// Number of large samples that may still be queued for the disk.
    direct_slots: usize,
    is_growing: bool,
    /// Bytes of all segments, at most `limit`.
    pub(super) allocated: u64,
    /// Maximum bytes of segments; decreases if the disk turns out to be smaller.
    limit: u64,
    /// Bytes reserved for other files.
    pub(super) reserve: u64,
    pub(super) next_number: u64,
    pub(super) sequence: u64,
    pub(super) in_flight: u32,
    pub(super) is_closed: bool,
    pub(super) running: usize,
}

/// A read for a thread.
pub(super) struct ReadJob {
    pub(super) ticket: Ticket,
    pub(super) key: SampleKey,
    pub(super) pinned: Pinned,
    pub(super) segment: Arc<Segment>,
    pub(super) offset: u64,
    pub(super) dest: Dest,
    pub(super) submitted: Instant,
}

/// A write for a thread.
pub(super) enum WriteJob {
    Chunk(Arc<Chunk>),
    Direct(Direct),
    /// A new segment for an entry of this many granules.
    Grow(u64),
}

/// A large sample, written from its owner's memory.
pub(super) struct Direct {
    pub(super) ticket: Ticket,
    pub(super) entry: Entry,
    pub(super) pinned: Pinned,
    pub(super) segment: Arc<Segment>,
    pub(super) payload: Payload,
    pub(super) submitted: Instant,
}

/// Consecutive small entries of a segment.
pub(super) struct Chunk {
    /// Address of the first byte.
    pub(super) start: u64,
    /// Allocated granules; the unused ones are released when the chunk is sealed.
    capacity: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) slots: Vec<SlotId>,
    pub(super) segment: Arc<Segment>,
}

/// Result of submitting a write.
pub(super) enum WriteState {
    /// The operation has ended.
    Ended(ReadOutcome),
    /// A thread will end it.
    Queued,
}

/// Result of submitting a read.
pub(super) enum ReadState {
    Ended(ReadOutcome, Dest),
    Queued,
}

impl DiskState {
    pub(super) fn new(
        recovered: Recovered,
        partition: Option<Partition>,
        limit: u64,
        reserve: u64,
        threads: usize,
    ) -> Self {
        Self {
            slab: recovered.slab,
            segments: recovered.segments,
            is_read_only: partition.is_none(),
            partition: partition.map(Arc::new),
            others: recovered.others,
            reads: VecDeque::new(),
            writes: VecDeque::new(),
            sealed: BTreeMap::new(),
            open: None,
            spare: Vec::new(),
            buffers: threads + 2,
            direct_slots: threads * 2,
            is_growing: false,
            allocated: recovered.allocated,
            limit,
            reserve,
            next_number: recovered.next_number,
            sequence: recovered.sequence,
            in_flight: 0,
            is_closed: false,
            running: threads,
        }
    }

    /// Maximum bytes of samples, including headers and padding: without the reserve, and without unusable positions.
    pub(super) fn capacity(&self) -> Bytes {
        let lost = self.allocated - self.slab.total() * GRANULE;
        Bytes::new(self.limit - lost.min(self.limit))
    }

    /// Bytes of the capacity that samples use.
    pub(super) fn used(&self) -> Bytes {
        Bytes::new(self.slab.used() * GRANULE)
    }

    /// Read a buffered sample, or queue the read.
    pub(super) fn read(&mut self, ticket: Ticket, key: SampleKey, offset: u64, mut dest: Dest) -> ReadState {
        let Some(pinned) = self.slab.pin(&key) else { return ReadState::Ended(ReadOutcome::Absent, dest) };
        if offset.checked_add(dest.len() as u64).is_none_or(|end| end > pinned.len) {
            self.slab.remove_slot(pinned.slot);
            self.slab.unpin(pinned.slot);
            return ReadState::Ended(ReadOutcome::Corrupt, dest);
        }
        if let Some(bytes) = self.buffered(pinned) {
            let from = usize::try_from(offset).expect("inside a chunk");
            let part = &bytes[from..from + dest.len()];
            dest.as_mut_slice().copy_from_slice(part);
            self.slab.unpin(pinned.slot);
            return ReadState::Ended(ReadOutcome::Ok, dest);
        }
        let segment = self.segment_of(pinned.at);
        self.in_flight += 1;
        self.reads.push_back(ReadJob {
            ticket,
            key,
            pinned,
            segment,
            offset,
            dest,
            submitted: Instant::now(),
        });
        ReadState::Queued
    }

    /// Store a sample under `entry`; `crc` is its payload's.
    pub(super) fn write(
        &mut self,
        ticket: Ticket,
        key: SampleKey,
        entry: EntryKey,
        payload: Payload,
        crc: u32,
    ) -> WriteState {
        let len = payload.as_slice().len() as u64;
        if let Some(pinned) = self.slab.pin(&key) {
            self.slab.unpin(pinned.slot);
            if pinned.len == len {
                return WriteState::Ended(ReadOutcome::Ok); // Equal keys mean equal bytes.
            }
        }
        if self.is_read_only {
            return WriteState::Ended(ReadOutcome::Full);
        }
        let entry = Entry { key: entry, len, sequence: self.sequence, payload_crc: crc };
        self.sequence += 1;
        if len < LARGE {
            return WriteState::Ended(self.append_small(key, entry, payload.as_slice()));
        }
        if self.direct_slots == 0 {
            return WriteState::Ended(ReadOutcome::Throttled { retry_after: None });
        }
        let mut placed = self.slab.allocate(key, len).or_else(|| {
            self.seal();
            self.slab.allocate(key, len)
        });
        while placed.is_none() && self.evict_other(layout(len).0) {
            placed = self.slab.allocate(key, len);
        }
        let Some(pinned) = placed else { return WriteState::Ended(self.handle_full(len)) };
        let segment = self.segment_of(pinned.at);
        self.direct_slots -= 1;
        self.in_flight += 1;
        let submitted = Instant::now();
        self.writes.push_back(WriteJob::Direct(Direct {
            ticket,
            entry,
            pinned,
            segment,
            payload,
            submitted,
        }));
        self.grow_ahead(layout(len).0);
        WriteState::Queued
    }

    /// Cancel the queued operations that `is_selected` accepts, and release their pins.
    pub(super) fn cancel_queued(&mut self, is_selected: impl Fn(Ticket) -> bool) -> Vec<(Ticket, Instant)> {
        let mut ended = Vec::new();
        for reading in std::mem::take(&mut self.reads) {
            if is_selected(reading.ticket) {
                self.slab.unpin(reading.pinned.slot);
                self.in_flight -= 1;
                ended.push((reading.ticket, reading.submitted));
            } else {
                self.reads.push_back(reading);
            }
        }
        for writing in std::mem::take(&mut self.writes) {
            match writing {
                WriteJob::Direct(direct) if is_selected(direct.ticket) => {
                    self.finish_direct(direct.pinned.slot, false, true);
                    ended.push((direct.ticket, direct.submitted));
                }
                other => self.writes.push_back(other),
            }
        }
        ended
    }

    /// End a large write.
    pub(super) fn finish_direct(&mut self, slot: SlotId, is_stored: bool, is_usable: bool) {
        if is_stored {
            self.slab.publish(slot);
        } else if !is_usable {
            self.slab.mark_unusable(slot);
        }
        self.slab.unpin(slot);
        self.direct_slots += 1;
        self.in_flight -= 1;
    }

    /// End a chunk's write. If it failed, its samples are lost, and so are their positions.
    pub(super) fn finish_chunk(&mut self, chunk: Arc<Chunk>, is_usable: bool) {
        self.sealed.remove(&chunk.start);
        for slot in &chunk.slots {
            if !is_usable {
                self.slab.mark_unusable(*slot);
            }
            self.slab.unpin(*slot);
        }
        self.buffers += 1;
        if let Some(Chunk { mut bytes, .. }) = Arc::into_inner(chunk) {
            bytes.clear();
            self.spare.push(bytes);
        }
    }

    /// Queue the open chunk, if any, for writing; release its unused granules.
    pub(super) fn seal(&mut self) {
        let Some(chunk) = self.open.take() else { return };
        let filled = chunk.bytes.len() as u64 / GRANULE;
        self.slab.release(chunk.start + filled, chunk.capacity - filled);
        let chunk = Arc::new(chunk);
        self.sealed.insert(chunk.start, Arc::clone(&chunk));
        self.writes.push_back(WriteJob::Chunk(chunk));
    }

    /// Bytes of the next segment for entries of this many granules, or `None` if it does not fit. Many equal entries
    /// fill it without a remainder.
    pub(super) fn next_segment_bytes(&self, granules: u64) -> Option<u64> {
        segment_bytes(self.limit, self.allocated, granules)
    }

    /// Add the new segment of `len` bytes.
    pub(super) fn extend(&mut self, segment: Segment, len: u64) {
        self.is_growing = false;
        self.allocated += len;
        // Another fault may have ended growth while this segment was created.
        self.limit = self.limit.max(self.allocated);
        self.slab.extend(segment.base(), segment.granules());
        self.segments.push(Arc::new(segment));
    }

    /// End a growth that failed, because the disk is full or a fault ended growth before.
    pub(super) fn cancel_growth(&mut self) {
        self.is_growing = false;
        self.stop_growing();
    }

    /// Do not grow past the allocated bytes.
    pub(super) fn stop_growing(&mut self) {
        self.limit = self.allocated;
    }

    fn segment_of(&self, at: u64) -> Arc<Segment> {
        Arc::clone(&self.segments[Segment::nth_of(at)])
    }

    /// The payload of an entry that is not on the disk yet.
    fn buffered(&self, Pinned { at, len, .. }: Pinned) -> Option<&[u8]> {
        let sealed = self.sealed.range(..=at).next_back().map(|(_, chunk)| &**chunk);
        [sealed, self.open.as_ref()].into_iter().flatten().find_map(|chunk| {
            let from = usize::try_from(at.checked_sub(chunk.start)? * GRANULE).ok()? + HEADER;
            chunk.bytes.get(from..)?.get(..usize::try_from(len).ok()?)
        })
    }

    fn append_small(&mut self, key: SampleKey, entry: Entry, payload: &[u8]) -> ReadOutcome {
        let granules = layout(entry.len).0;
        if self.open.as_ref().is_some_and(|chunk| chunk.free_granules() < granules) {
            self.seal();
        }
        let mut chunk = match self.open.take() {
            Some(chunk) => chunk,
            None if self.buffers == 0 => return ReadOutcome::Throttled { retry_after: None },
            None => {
                let mut run = self.slab.allocate_run(granules, CHUNK / GRANULE);
                while run.is_none() && self.evict_other(granules) {
                    run = self.slab.allocate_run(granules, CHUNK / GRANULE);
                }
                let Some((start, capacity)) = run else { return self.handle_full(entry.len) };
                self.buffers -= 1;
                self.grow_ahead(CHUNK / GRANULE);
                let bytes = self.spare.pop().unwrap_or_default();
                Chunk { start, capacity, bytes, slots: Vec::new(), segment: self.segment_of(start) }
            }
        };
        let at = chunk.start + chunk.bytes.len() as u64 / GRANULE;
        let entered = self.slab.insert(key, entry.len, at);
        if let Some(Pinned { slot, .. }) = entered {
            let end = chunk.bytes.len() + usize::try_from(granules * GRANULE).expect("a small entry");
            chunk.bytes.extend_from_slice(&entry.encode());
            chunk.bytes.extend_from_slice(payload);
            chunk.bytes.resize(end, 0);
            chunk.slots.push(slot);
            self.slab.publish(slot);
        }
        self.open = Some(chunk);
        if entered.is_some() { ReadOutcome::Ok } else { ReadOutcome::Full }
    }

    /// Free the oldest entry of another data set if the tier cannot grow for an entry of this many granules; return
    /// whether it did.
    fn evict_other(&mut self, granules: u64) -> bool {
        if self.is_growing || self.next_segment_bytes(granules).is_some() {
            return false;
        }
        let Some(other) = self.others.pop() else { return false };
        self.slab.release(other.at, layout(other.len).0);
        true
    }

    /// The outcome of a write that does not fit now: `Throttled` while a segment is added or pinned space is
    /// reclaimable, otherwise `Full`.
    fn handle_full(&mut self, len: u64) -> ReadOutcome {
        let granules = layout(len).0;
        self.seal();
        if self.is_growing {
            return ReadOutcome::Throttled { retry_after: None };
        }
        if self.next_segment_bytes(granules).is_some() {
            self.is_growing = true;
            self.writes.push_front(WriteJob::Grow(granules));
            return ReadOutcome::Throttled { retry_after: None };
        }
        if self.slab.reclaimable() > 0 {
            ReadOutcome::Throttled { retry_after: None }
        } else {
            ReadOutcome::Full
        }
    }

    /// Add a segment before the free space is used up, so that writers need not wait for it.
    fn grow_ahead(&mut self, granules: u64) {
        if !self.is_growing && self.slab.free() < 2 * granules && self.next_segment_bytes(granules).is_some()
        {
            self.is_growing = true;
            self.writes.push_back(WriteJob::Grow(granules));
        }
    }
}

impl Chunk {
    fn free_granules(&self) -> u64 {
        self.capacity - self.bytes.len() as u64 / GRANULE
    }
}

/// As [`DiskState::next_segment_bytes`], where `allocated` of `limit` bytes are segments.
pub(super) fn segment_bytes(limit: u64, allocated: u64, granules: u64) -> Option<u64> {
    let need = granules.checked_mul(GRANULE)?.checked_next_multiple_of(PAGE)?;
    let free = limit.saturating_sub(allocated) / PAGE * PAGE;
    if need > free {
        return None;
    }
    let target = segment_target(limit);
    let whole = if need >= target / 64 { (target / need).max(1) * need } else { target };
    Some(whole.min(free))
}

/// 128 MiB, so that a file's end wastes little even for samples of many megabytes; 1/8 of a small tier; 1/64, up to 1
/// GiB, of a tier so large that it would need thousands of files.
fn segment_target(limit: u64) -> u64 {
    const USUAL: u64 = 128 << 20;
    (limit / 8).clamp(1 << 20, USUAL).max((limit / 64).min(1 << 30)) / PAGE * PAGE
}
