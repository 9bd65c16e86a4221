// SPDX-License-Identifier: Apache-2.0
//! Reads in flight, by ticket and by sample: into which batch, what else waits for them, and which caches get a copy.
//!
//! A sample is read once however many batches of the staging buffer want it: later ones wait for the first.

use std::collections::HashMap;
use std::sync::Arc;

use foresee_data_plan::TierSet;
use foresee_units::{Nanos, ReadOutcome, SampleId};

use crate::buffer::Buffer;

/// A place in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    /// Number of the batch in the staging buffer.
    pub(crate) slot: u64,
    /// Place in it.
    pub(crate) place: usize,
}

/// A sample that a batch lacks: where its bytes go, and which tiers get a copy of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    pub(crate) sample: SampleId,
    pub(crate) spot: Spot,
    /// Its span of the batch's memory.
    pub(crate) offset: usize,
    pub(crate) len: usize,
    /// The tiers that get a copy.
    pub(crate) fills: TierSet,
}

/// Who brings the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    Disk,
    Origin,
}

/// How a read ended that another attempt is still filling memory for.
#[derive(Debug)]
pub(crate) enum Overtaken {
    Bytes(Vec<u8>),
    /// No source has the sample; how often it was asked for, and for how long.
    Fault(ReadOutcome, u32, Nanos),
}

/// One read.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) sample: SampleId,
    pub(crate) spot: Spot,
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) offset: usize,
    pub(crate) len: usize,
    pub(crate) from: From,
    /// The tiers that get a copy.
    pub(crate) fills: TierSet,
    pub(crate) waiters: Vec<Spot>,
    /// Attempts begun.
    pub(crate) tries: u32,
    /// Attempts under way.
    pub(crate) active: u32,
    /// Attempts that failed.
    pub(crate) failed: u32,
    /// An attempt is filling the batch's own memory.
    pub(crate) direct: bool,
    /// How a hedge ended, while the attempt that it overtook may still touch the batch's memory.
    pub(crate) overtaken_by: Option<Overtaken>,
    /// What the last failed attempt said.
    pub(crate) message: Option<Box<str>>,
}

impl Read {
    /// One that nobody has been asked for yet.
    pub(crate) const fn new(want: &Want, from: From, buffer: Arc<Buffer>) -> Self {
        Self {
            sample: want.sample,
            spot: want.spot,
            buffer,
            offset: want.offset,
            len: want.len,
            from,
            fills: want.fills,
            waiters: Vec::new(),
            tries: 0,
            active: 0,
            failed: 0,
            direct: false,
            overtaken_by: None,
            message: None,
        }
    }
}

/// The table.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    by_ticket: HashMap<u64, Read>,
    by_sample: HashMap<SampleId, u64>,
    next: u64,
}

impl Reads {
    pub(crate) fn begin(&mut self, read: Read) -> u64 {
        let ticket = self.next;
        self.next += 1;
        self.by_sample.insert(read.sample, ticket);
        self.by_ticket.insert(ticket, read);
        ticket
    }

    pub(crate) fn get(&mut self, ticket: u64) -> Option<&mut Read> {
        self.by_ticket.get_mut(&ticket)
    }

    pub(crate) fn of_sample(&mut self, sample: SampleId) -> Option<&mut Read> {
        // Nearly every sample of a warm epoch comes from memory, with nothing under way at all.
        if self.by_sample.is_empty() {
            return None;
        }
        self.by_ticket.get_mut(self.by_sample.get(&sample)?)
    }

    pub(crate) fn end(&mut self, ticket: u64) -> Option<Read> {
        let read = self.by_ticket.remove(&ticket)?;
        self.by_sample.remove(&read.sample);
        Some(read)
    }

    /// The earliest place of batch `slot` that still waits, with its ticket.
    pub(crate) fn first_missing(&self, slot: u64) -> Option<(u64, &Read)> {
        let place = |read: &Read| {
            let spots = std::iter::once(read.spot).chain(read.waiters.iter().copied());
            spots.filter(|spot| spot.slot == slot).map(|spot| spot.place).min()
        };
        self.by_ticket
            .iter()
            .filter_map(|(&ticket, read)| Some((place(read)?, ticket, read)))
            .min_by_key(|&(place, ticket, _)| (place, ticket))
            .map(|(_, ticket, read)| (ticket, read))
    }

    /// Tickets of all reads that batch `slot` waits for.
    pub(crate) fn for_slot(&self, slot: u64) -> Vec<u64> {
        self.by_ticket
            .iter()
            .filter(|(_, read)| read.spot.slot == slot || read.waiters.iter().any(|spot| spot.slot == slot))
            .map(|(&ticket, _)| ticket)
            .collect()
    }

    pub(crate) fn tickets(&self) -> Vec<u64> {
        self.by_ticket.keys().copied().collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_ticket.len()
    }
}
