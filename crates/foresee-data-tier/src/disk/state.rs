// SPDX-License-Identifier: Apache-2.0
//! Decisions of the disk tier under its lock: where a sample goes, which thread does what, when a file grows.
//!
//! The threads that carry them out are in `work`, so the lock is never held over I/O: nothing in this file opens, reads
//! or writes a file.

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

/// Small entries are gathered up to here and written at once: 1 KiB samples then cost a thousandth of a call.
const CHUNK: u64 = 1 << 20;

pub(super) struct State {
    pub(super) slab: Slab,
    pub(super) segments: Vec<Arc<Segment>>,
    /// `None` in a directory that can only be read, and once the tier is closed.
    pub(super) partition: Option<Arc<Partition>>,
    /// Entries that this data set does not need, taken out when their bytes are; the oldest last.
    pub(super) others: Vec<OtherEntry>,
    read_only: bool,
    pub(super) reads: VecDeque<Reading>,
    pub(super) writes: VecDeque<Writing>,
    /// Chunks on their way to the disk, by their first granule. Their entries are read from here.
    sealed: BTreeMap<u64, Arc<Chunk>>,
    open: Option<Chunk>,
    spare: Vec<Vec<u8>>,
    /// Buffers that may still be made.
    buffers: usize,
    /// Large samples that may still be under way to the disk.
    direct_room: usize,
    growing: bool,
    /// Bytes of all segments, never above `limit`.
    pub(super) allocated: u64,
    /// The most that segments may take; falls when the disk turns out smaller.
    limit: u64,
    /// Bytes kept for everything beside the segments.
    pub(super) reserve: u64,
    pub(super) next_number: u64,
    pub(super) sequence: u64,
    pub(super) in_flight: u32,
    pub(super) closed: bool,
    pub(super) running: usize,
}

/// A read for a thread.
pub(super) struct Reading {
    pub(super) ticket: Ticket,
    pub(super) key: SampleKey,
    pub(super) pinned: Pinned,
    pub(super) segment: Arc<Segment>,
    pub(super) offset: u64,
    pub(super) dest: Dest,
    pub(super) since: Instant,
}

/// Something to write, for a thread.
pub(super) enum Writing {
    Chunk(Arc<Chunk>),
    Direct(Direct),
    /// A new segment that has room for an entry of so many granules.
    Grow(u64),
}

/// A large sample, written from its owner's memory.
pub(super) struct Direct {
    pub(super) ticket: Ticket,
    pub(super) entry: Entry,
    pub(super) pinned: Pinned,
    pub(super) segment: Arc<Segment>,
    pub(super) payload: Payload,
    pub(super) since: Instant,
}

/// Small entries in a row, as they will lie in a segment.
pub(super) struct Chunk {
    /// Address of the first byte.
    pub(super) start: u64,
    /// Granules taken; what is not filled goes back when the chunk is sealed.
    room: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) slots: Vec<SlotId>,
    pub(super) segment: Arc<Segment>,
}

/// How a write went so far.
pub(super) enum Taken {
    /// It is over.
    Now(ReadOutcome),
    /// A thread will end it.
    Later,
}

/// What a read found.
pub(super) enum ReadState {
    Ended(ReadOutcome, Dest),
    Queued,
}

impl State {
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
            read_only: partition.is_none(),
            partition: partition.map(Arc::new),
            others: recovered.others,
            reads: VecDeque::new(),
            writes: VecDeque::new(),
            sealed: BTreeMap::new(),
            open: None,
            spare: Vec::new(),
            buffers: threads + 2,
            direct_room: threads * 2,
            growing: false,
            allocated: recovered.allocated,
            limit,
            reserve,
            next_number: recovered.next_number,
            sequence: recovered.sequence,
            in_flight: 0,
            closed: false,
            running: threads,
        }
    }

    /// The most that samples may take, headers and padding counted: without the reserve, and without places that
    /// turned out bad.
    pub(super) fn capacity(&self) -> Bytes {
        let lost = self.allocated - self.slab.total() * GRANULE;
        Bytes::new(self.limit - lost.min(self.limit))
    }

    /// Of tables and buffers, in bytes.
    pub(super) fn memory(&self) -> u64 {
        let buffers = self.spare.iter().chain(self.sealed.values().map(|chunk| &chunk.bytes));
        let buffers = buffers.chain(self.open.as_ref().map(|chunk| &chunk.bytes));
        let others = self.others.capacity() * size_of::<OtherEntry>();
        (self.slab.memory() + others + buffers.map(Vec::capacity).sum::<usize>()) as u64
    }

    /// What samples take of the capacity.
    pub(super) fn used(&self) -> Bytes {
        Bytes::new(self.slab.used() * GRANULE)
    }

    /// Reads what is still in memory, queues what is not.
    pub(super) fn read(&mut self, ticket: Ticket, key: SampleKey, offset: u64, mut dest: Dest) -> ReadState {
        let Some(pinned) = self.slab.pin(&key) else { return ReadState::Ended(ReadOutcome::Absent, dest) };
        if offset.checked_add(dest.len() as u64).is_none_or(|end| end > pinned.len) {
            self.slab.forget_slot(pinned.slot);
            self.slab.unpin(pinned.slot);
            return ReadState::Ended(ReadOutcome::Corrupt, dest);
        }
        if let Some(bytes) = self.in_memory(pinned) {
            let from = usize::try_from(offset).expect("inside a chunk");
            let part = &bytes[from..from + dest.len()];
            dest.as_mut_slice().copy_from_slice(part);
            self.slab.unpin(pinned.slot);
            return ReadState::Ended(ReadOutcome::Ok, dest);
        }
        let segment = self.segment_of(pinned.at);
        self.in_flight += 1;
        self.reads.push_back(Reading { ticket, key, pinned, segment, offset, dest, since: Instant::now() });
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
    ) -> Taken {
        let len = payload.as_slice().len() as u64;
        if let Some(pinned) = self.slab.pin(&key) {
            self.slab.unpin(pinned.slot);
            if pinned.len == len {
                return Taken::Now(ReadOutcome::Ok); // Equal keys mean equal bytes.
            }
        }
        if self.read_only {
            return Taken::Now(ReadOutcome::Full);
        }
        let entry = Entry { key: entry, len, sequence: self.sequence, payload_crc: crc };
        self.sequence += 1;
        if len < LARGE {
            return Taken::Now(self.gather(key, entry, payload.as_slice()));
        }
        if self.direct_room == 0 {
            return Taken::Now(ReadOutcome::Throttled { retry_after: None });
        }
        let mut placed = self.slab.place(key, len).or_else(|| {
            self.seal();
            self.slab.place(key, len)
        });
        while placed.is_none() && self.evict_other(layout(len).0) {
            placed = self.slab.place(key, len);
        }
        let Some(pinned) = placed else { return Taken::Now(self.no_room(len)) };
        let segment = self.segment_of(pinned.at);
        self.direct_room -= 1;
        self.in_flight += 1;
        let since = Instant::now();
        self.writes.push_back(Writing::Direct(Direct { ticket, entry, pinned, segment, payload, since }));
        self.grow_ahead(layout(len).0);
        Taken::Later
    }

    /// Takes queued operations out that `which` names, and gives back what they borrowed.
    pub(super) fn withdraw(&mut self, which: impl Fn(Ticket) -> bool) -> Vec<(Ticket, Instant)> {
        let mut ended = Vec::new();
        for reading in std::mem::take(&mut self.reads) {
            if which(reading.ticket) {
                self.slab.unpin(reading.pinned.slot);
                self.in_flight -= 1;
                ended.push((reading.ticket, reading.since));
            } else {
                self.reads.push_back(reading);
            }
        }
        for writing in std::mem::take(&mut self.writes) {
            match writing {
                Writing::Direct(direct) if which(direct.ticket) => {
                    self.direct_ended(direct.pinned.slot, false, true);
                    ended.push((direct.ticket, direct.since));
                }
                other => self.writes.push_back(other),
            }
        }
        ended
    }

    /// Ends a large write, whichever way.
    pub(super) fn direct_ended(&mut self, slot: SlotId, kept: bool, sound: bool) {
        if kept {
            self.slab.publish(slot);
        } else if !sound {
            self.slab.lose(slot);
        }
        self.slab.unpin(slot);
        self.direct_room += 1;
        self.in_flight -= 1;
    }

    /// Ends a chunk's write. If it failed its samples are gone, and so is the place they were to have.
    pub(super) fn chunk_ended(&mut self, chunk: Arc<Chunk>, sound: bool) {
        self.sealed.remove(&chunk.start);
        for slot in &chunk.slots {
            if !sound {
                self.slab.lose(*slot);
            }
            self.slab.unpin(*slot);
        }
        self.buffers += 1;
        if let Some(Chunk { mut bytes, .. }) = Arc::into_inner(chunk) {
            bytes.clear();
            self.spare.push(bytes);
        }
    }

    /// Sends the open chunk, if any, on its way; gives back the room that it did not use.
    pub(super) fn seal(&mut self) {
        let Some(chunk) = self.open.take() else { return };
        let filled = chunk.bytes.len() as u64 / GRANULE;
        self.slab.give(chunk.start + filled, chunk.room - filled);
        let chunk = Arc::new(chunk);
        self.sealed.insert(chunk.start, Arc::clone(&chunk));
        self.writes.push_back(Writing::Chunk(chunk));
    }

    /// Bytes of the next segment, to hold entries of so many granules, or `None` if there is no room for it. Many
    /// equal entries fill it without a rest.
    pub(super) fn growth(&self, granules: u64) -> Option<u64> {
        let need = granules.checked_mul(GRANULE)?.checked_next_multiple_of(PAGE)?;
        let room = (self.limit - self.allocated) / PAGE * PAGE;
        if need > room {
            return None;
        }
        let target = segment_target(self.limit);
        let whole = if need >= target / 64 { (target / need).max(1) * need } else { target };
        Some(whole.min(room))
    }

    /// Takes in the new segment of `len` bytes.
    pub(super) fn grown(&mut self, segment: Segment, len: u64) {
        self.growing = false;
        self.allocated += len;
        // A fault elsewhere may have ended growth while this was on its way.
        self.limit = self.limit.max(self.allocated);
        self.slab.extend(segment.base(), segment.granules());
        self.segments.push(Arc::new(segment));
    }

    /// There is no new segment: the disk has no room for it, or a fault ended growth before it began.
    pub(super) fn not_grown(&mut self) {
        self.growing = false;
        self.stop_growing();
    }

    /// The disk has no room beyond what is allocated.
    pub(super) fn stop_growing(&mut self) {
        self.limit = self.allocated;
    }

    fn segment_of(&self, at: u64) -> Arc<Segment> {
        Arc::clone(&self.segments[Segment::nth_of(at)])
    }

    /// The payload of an entry that is not on the disk yet.
    fn in_memory(&self, Pinned { at, len, .. }: Pinned) -> Option<&[u8]> {
        let sealed = self.sealed.range(..=at).next_back().map(|(_, chunk)| &**chunk);
        [sealed, self.open.as_ref()].into_iter().flatten().find_map(|chunk| {
            let from = usize::try_from(at.checked_sub(chunk.start)? * GRANULE).ok()? + HEADER;
            chunk.bytes.get(from..)?.get(..usize::try_from(len).ok()?)
        })
    }

    fn gather(&mut self, key: SampleKey, entry: Entry, payload: &[u8]) -> ReadOutcome {
        let granules = layout(entry.len).0;
        if self.open.as_ref().is_some_and(|chunk| chunk.left() < granules) {
            self.seal();
        }
        let mut chunk = match self.open.take() {
            Some(chunk) => chunk,
            None if self.buffers == 0 => return ReadOutcome::Throttled { retry_after: None },
            None => {
                let mut run = self.slab.take_run(granules, CHUNK / GRANULE);
                while run.is_none() && self.evict_other(granules) {
                    run = self.slab.take_run(granules, CHUNK / GRANULE);
                }
                let Some((start, room)) = run else { return self.no_room(entry.len) };
                self.buffers -= 1;
                self.grow_ahead(CHUNK / GRANULE);
                let bytes = self.spare.pop().unwrap_or_default();
                Chunk { start, room, bytes, slots: Vec::new(), segment: self.segment_of(start) }
            }
        };
        let at = chunk.start + chunk.bytes.len() as u64 / GRANULE;
        let entered = self.slab.enter(key, entry.len, at);
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

    /// Free the oldest entry of another data set if the tier cannot grow for an entry of so many granules; whether it did.
    fn evict_other(&mut self, granules: u64) -> bool {
        if self.growing || self.growth(granules).is_some() {
            return false;
        }
        let Some(other) = self.others.pop() else { return false };
        self.slab.give(other.at, layout(other.len).0);
        true
    }

    /// Whether there will be room: a segment can be added, or threads still use room that was given up.
    fn no_room(&mut self, len: u64) -> ReadOutcome {
        let granules = layout(len).0;
        self.seal();
        if self.growing {
            return ReadOutcome::Throttled { retry_after: None };
        }
        if self.growth(granules).is_some() {
            self.growing = true;
            self.writes.push_front(Writing::Grow(granules));
            return ReadOutcome::Throttled { retry_after: None };
        }
        if self.slab.lingering() > 0 {
            ReadOutcome::Throttled { retry_after: None }
        } else {
            ReadOutcome::Full
        }
    }

    /// Adds a segment before the room is out, so that writers need not wait for it.
    fn grow_ahead(&mut self, granules: u64) {
        if !self.growing && self.slab.free() < 2 * granules && self.growth(granules).is_some() {
            self.growing = true;
            self.writes.push_back(Writing::Grow(granules));
        }
    }
}

impl Chunk {
    fn left(&self) -> u64 {
        self.room - self.bytes.len() as u64 / GRANULE
    }
}

/// 128 MiB, so that a file's end wastes little even of samples of many megabytes; an eighth of a small tier; a
/// 64th, up to 1 GiB, of one so large that it would need thousands of files.
fn segment_target(limit: u64) -> u64 {
    const USUAL: u64 = 128 << 20;
    (limit / 8).clamp(1 << 20, USUAL).max((limit / 64).min(1 << 30)) / PAGE * PAGE
}
