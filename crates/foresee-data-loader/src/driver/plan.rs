// SPDX-License-Identifier: Apache-2.0
//! Opens batches and assigns a source to each sample, in the consumer's order.

use std::sync::Arc;

use foresee_data_plan::{PlannedSource, TierIndex};
use foresee_data_tier::RamPin;
use foresee_ledger::{Entry, Op, Subject};
use foresee_units::{Bytes, Nanos, ReadOutcome, Source};

use super::{Driver, sink};
use crate::gather::SHARED_MIN_LEN;
use crate::reads::{BatchPosition, Read, ReadSource, ReadTarget};
use crate::staging::{Slot, StagedFrom};

/// Bytes copied from memory per turn: some hundred microseconds, so that other events are handled in between.
const COPY_PER_TURN: usize = 1 << 20;
/// Samples planned per turn, for the same reason.
const SAMPLES_PER_TURN: usize = 1024;

/// The work of a turn so far.
#[derive(Debug, Default)]
struct Work {
    samples: usize,
    copied: usize,
    /// Samples in memory that are copied together after planning, with their offsets.
    gather: Vec<(RamPin, usize)>,
    /// Hits in memory since the last entry. Single entries would cost more than the copies.
    hits: Hits,
    /// Samples that an earlier read or copy provides.
    shared: Hits,
}

#[derive(Clone, Copy, Debug, Default)]
struct Hits {
    samples: u32,
    bytes: usize,
}

impl Hits {
    const fn add(&mut self, bytes: usize) {
        self.samples += 1;
        self.bytes += bytes;
    }
}

impl Work {
    const fn is_enough(&self) -> bool {
        self.samples >= SAMPLES_PER_TURN || self.copied >= COPY_PER_TURN
    }
}

impl Driver {
    /// Plan one turn's work at most; return whether there is more.
    pub(super) fn plan_turn(&mut self) -> bool {
        if !self.delivery.end_gather() {
            return false;
        }
        let mut work = Work::default();
        while !work.is_enough() {
            if self.fetches.reads.is_full_ahead() {
                return false;
            }
            if self.delivery.staging.planning().is_none() && !self.open_batch() {
                return false;
            }
            let begun = self.now();
            while !work.is_enough() && self.plan_sample(&mut work) {}
            let mut is_gathered = true;
            if !work.gather.is_empty() {
                let (bytes, is_done) = self.delivery.gather(std::mem::take(&mut work.gather));
                work.copied += bytes;
                is_gathered = is_done;
            }
            self.record_hits(&mut work, begun);
            if !is_gathered {
                return false;
            }
        }
        true
    }

    /// Open the next batch, or the end of an epoch; `false` if nothing can be opened now.
    pub(super) fn open_batch(&mut self) -> bool {
        let Self { schedule, planner, node, .. } = self;
        let slot = schedule.next_slot(sink(planner, node), self.data.index(), &self.shared.buffers);
        let slot = match slot {
            Ok(Some(slot)) => slot,
            Ok(None) => return false,
            Err(error) => {
                self.shared.batches.fail(error);
                return false;
            }
        };
        let from = match &self.node {
            Some(_) => StagedFrom::Node,
            None if self.tiers.all_in_memory() => StagedFrom::Memory,
            None => StagedFrom::Storage,
        };
        if !self.delivery.has_capacity(slot.bytes(), from) {
            self.schedule.postpone(slot);
            return false;
        }
        // No read would map the memory of a batch without bytes.
        let is_mapped = match &slot {
            Slot::Batch(stage) if slot.bytes().is_zero() => self.delivery.ensure_mapped(&stage.batch.buffer),
            _ => true,
        };
        self.delivery.staging.open(slot);
        is_mapped
    }

    /// Assign a source to the next sample of the open batch; `false` if none is left, or it has to wait.
    fn plan_sample(&mut self, work: &mut Work) -> bool {
        if self.fetches.reads.is_full_ahead() {
            return false;
        }
        let Some(stage) = self.delivery.staging.planning() else { return false };
        let index = stage.planned;
        let sample = stage.entries[index];
        let (offset, len) = stage.span(index);
        stage.planned += 1;
        work.samples += 1;
        let mut access = std::mem::take(&mut self.access);
        let is_planned = self.planner.poll_access(&mut access);
        assert!(is_planned && access.sample == sample, "the planner and the batches have one order");
        for (victim, tier) in access.evict.drain(..) {
            self.evict(victim, tier);
        }
        let (source, fills, ahead) = (access.source, access.fills, std::mem::take(&mut access.ahead));
        self.access = access;
        if len == 0 {
            return true;
        }
        let position = BatchPosition { slot: self.delivery.staging.newest(), index };
        if self.wait_for_read(sample, position, fills) {
            work.shared.add(len);
            self.delivery.stage(position).pending += 1;
            self.read_ahead(&ahead, None, position);
            return true;
        }
        let target = ReadTarget { sample, position, offset, len, fills };
        let source = match source {
            PlannedSource::Tier(tier) => match self.copy_held(&target, tier, work) {
                Some(source) => source,
                None => return true,
            },
            PlannedSource::Origin => ReadSource::Origin,
        };
        let group = (!ahead.is_empty()).then(|| self.fetches.reads.next_ticket());
        self.begin_read(target, source, group);
        self.read_ahead(&ahead, group, position);
        true
    }

    /// Copy a sample from memory, or return the source of its read.
    fn copy_held(&mut self, target: &ReadTarget, tier: TierIndex, work: &mut Work) -> Option<ReadSource> {
        let &ReadTarget { sample, position, offset, len, .. } = target;
        if self.tiers.ram_at(tier).is_none() {
            if self.serve_from_disk_copy(target) {
                work.copied += len;
                work.shared.add(len);
                return None;
            }
            return Some(self.disk_or_origin(position.slot, len));
        }
        let buffer = Arc::clone(&self.delivery.stage(position).batch.buffer);
        if !self.delivery.ensure_mapped(&buffer) {
            return None;
        }
        let (key, ram) = (self.data.key(sample), self.tiers.ram_at(tier)?);
        if len >= SHARED_MIN_LEN
            && self.tiers.all_in_memory()
            && let Some(pin) = ram.pin(&key).filter(|pin| pin.len() == len)
        {
            work.gather.push((pin, offset));
            work.hits.add(len);
            self.delivery.stage(position).pending += 1;
            return None;
        }
        // SAFETY: the span belongs to this sample alone, and no read of it has begun.
        let dest = unsafe { buffer.slice_mut(offset, len) };
        if ram.read_into(&key, dest) == ReadOutcome::Ok {
            work.copied += len;
            work.hits.add(len);
            return None;
        }
        // Another loader of the same data set has dropped it.
        self.tiers.note_dropped();
        self.planner.handle_lost(sample, tier);
        let on_disk = self.tiers.disk_index().is_some_and(|disk| self.planner.holds(sample, disk));
        Some(if on_disk { self.disk_or_origin(position.slot, len) } else { ReadSource::Origin })
    }

    pub(super) fn begin_read(&mut self, target: ReadTarget, source: ReadSource, group: Option<u64>) {
        let stage = self.delivery.stage(target.position);
        stage.pending += 1;
        let read = Read { group, ..Read::new(target, source, Arc::clone(&stage.batch.buffer)) };
        let ticket = self.fetches.reads.begin(read);
        match source {
            ReadSource::Disk => self.read_disk(ticket),
            ReadSource::Origin => self.request_origin(ticket),
        }
    }

    fn record_hits(&mut self, work: &mut Work, begun: Nanos) {
        let took = self.now().saturating_sub(begun);
        let slot = self.delivery.staging.newest();
        // A sample that another read provides takes no time of its own.
        let groups = [(Source::Ram, &mut work.hits, took), (Source::Staging, &mut work.shared, Nanos::ZERO)];
        for (source, hits, duration) in groups {
            let Hits { samples, bytes } = std::mem::take(hits);
            if samples > 0 {
                self.record_batch(slot, source, (begun, duration), samples, Bytes::new(bytes as u64));
            }
        }
    }

    /// Add samples of a batch that were read together to the ledger, with start and duration.
    pub(super) fn record_batch(
        &mut self,
        slot: u64,
        source: Source,
        (start, duration): (Nanos, Nanos),
        samples: u32,
        bytes: Bytes,
    ) {
        let (epoch, step) = self.delivery.step(slot);
        self.shared.recorder.add(Entry {
            start,
            duration,
            rank: self.shared.recorder.rank(),
            epoch,
            step,
            subject: Subject::Batch,
            op: Op::Read,
            source,
            cause: None,
            bytes,
            samples,
            attempt: 1,
            outcome: ReadOutcome::Ok,
        });
    }
}
