// SPDX-License-Identifier: Apache-2.0
//! Reads in flight, by ticket and by sample: their batch, further batches that wait for them, and the caches to fill.
//!
//! A sample is read once for all batches of the staging buffer that want it: later ones wait for the first read.

use std::sync::Arc;

use foresee_data_plan::TierSet;
use foresee_units::SampleId;
use rustc_hash::FxHashMap;

use crate::buffer::{Buffer, BufferRange};

/// Bytes that are read only to fill caches from which on no further sample is planned: enough for a bucket at hundreds of
/// megabytes per second.
const AHEAD_BYTES_MAX: usize = 32 << 20;
/// Number of such reads, each with some hundred bytes of tables.
const AHEAD_MAX: usize = 1 << 16;

/// The position of a sample in a staged batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchPosition {
    /// Number of the batch in the staging buffer.
    pub(crate) slot: u64,
    /// Index in the batch.
    pub(crate) index: usize,
}

/// A missing sample of a batch, and the destination of its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadTarget {
    pub(crate) sample: SampleId,
    pub(crate) position: BatchPosition,
    /// Its span of the batch's memory.
    pub(crate) offset: usize,
    pub(crate) len: usize,
    /// The tiers that get a copy.
    pub(crate) fills: TierSet,
}

/// The source of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadSource {
    Disk,
    Origin,
}

/// One read.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) target: ReadTarget,
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) source: ReadSource,
    /// Other positions of the sample.
    pub(crate) waiters: Vec<BatchPosition>,
    /// Whether it only fills caches: its memory is not that of a batch, and `target.position` belongs to the read with which
    /// it began.
    pub(crate) is_ahead: bool,
    /// The reads with which it is joined.
    pub(crate) group: Option<u64>,
}

impl Read {
    /// A read for one batch.
    pub(crate) const fn new(target: ReadTarget, source: ReadSource, buffer: Arc<Buffer>) -> Self {
        Self { target, buffer, source, waiters: Vec::new(), is_ahead: false, group: None }
    }

    /// The memory that it fills.
    pub(crate) fn memory(&self) -> BufferRange {
        let ReadTarget { offset, len, .. } = self.target;
        BufferRange { buffer: Arc::clone(&self.buffer), offset, len }
    }

    /// All positions that wait for it.
    pub(crate) fn positions(&self) -> impl Iterator<Item = BatchPosition> {
        let own = (!self.is_ahead).then_some(self.target.position);
        own.into_iter().chain(self.waiters.iter().copied())
    }
}

/// All reads in flight.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    by_ticket: FxHashMap<u64, Read>,
    by_sample: FxHashMap<SampleId, u64>,
    next: u64,
    /// Number and bytes of the reads that only fill caches.
    ahead: usize,
    ahead_bytes: usize,
}

impl Reads {
    pub(crate) fn begin(&mut self, read: Read) -> u64 {
        let ticket = self.next;
        self.next += 1;
        self.by_sample.insert(read.target.sample, ticket);
        if read.is_ahead {
            self.ahead += 1;
            self.ahead_bytes += read.target.len;
        }
        self.by_ticket.insert(ticket, read);
        ticket
    }

    /// The ticket of the next read that begins.
    pub(crate) const fn next_ticket(&self) -> u64 {
        self.next
    }

    /// Whether further reads that only fill caches have to wait for earlier ones: of their memory, and of the queue.
    pub(crate) const fn is_full_ahead(&self) -> bool {
        self.ahead >= AHEAD_MAX || self.ahead_bytes >= AHEAD_BYTES_MAX
    }

    pub(crate) fn get(&mut self, ticket: u64) -> Option<&mut Read> {
        self.by_ticket.get_mut(&ticket)
    }

    /// The read of a sample, with its ticket.
    pub(crate) fn of_sample(&mut self, sample: SampleId) -> Option<(u64, &mut Read)> {
        // Nearly every sample of a warm epoch comes from memory, without any read in flight.
        if self.by_sample.is_empty() {
            return None;
        }
        let ticket = *self.by_sample.get(&sample)?;
        Some((ticket, self.by_ticket.get_mut(&ticket)?))
    }

    pub(crate) fn end(&mut self, ticket: u64) -> Option<Read> {
        let read = self.by_ticket.remove(&ticket)?;
        self.by_sample.remove(&read.target.sample);
        if read.is_ahead {
            self.ahead -= 1;
            self.ahead_bytes -= read.target.len;
        }
        Some(read)
    }

    /// The read of the first missing sample of batch `slot`, with its ticket.
    pub(crate) fn first_missing(&self, slot: u64) -> Option<(u64, &Read)> {
        let index = |read: &Read| {
            read.positions().filter(|position| position.slot == slot).map(|position| position.index).min()
        };
        self.by_ticket
            .iter()
            .filter_map(|(&ticket, read)| Some((index(read)?, ticket, read)))
            .min_by_key(|&(index, ticket, _)| (index, ticket))
            .map(|(_, ticket, read)| (ticket, read))
    }

    /// Tickets of all reads that batch `slot` waits for.
    pub(crate) fn of_slot(&self, slot: u64) -> Vec<u64> {
        let waits = |read: &Read| read.positions().any(|position| position.slot == slot);
        self.by_ticket.iter().filter(|(_, read)| waits(read)).map(|(&ticket, _)| ticket).collect()
    }

    pub(crate) fn tickets(&self) -> Vec<u64> {
        self.by_ticket.keys().copied().collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_ticket.len()
    }
}
