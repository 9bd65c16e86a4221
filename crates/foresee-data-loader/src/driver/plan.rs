// SPDX-License-Identifier: Apache-2.0
//! Opening batches and giving each sample its source, in the order in which the consumer will read them.

use std::sync::Arc;

use foresee_data_plan::{PlannedSource, TierIndex};
use foresee_data_tier::RamPin;
use foresee_ledger::{Entry, Op, Subject};
use foresee_units::{Bytes, Nanos, ReadOutcome, Source};

use super::Driver;
use super::schedule::Upcoming;
use crate::gather::SHARED_FROM;
use crate::reads::{From, Read, Spot, Want};
use crate::staging::Stage;

/// Bytes copied out of memory in one turn: some hundred microseconds, then whatever has come in is looked at.
const COPY_PER_TURN: usize = 1 << 20;
/// Samples planned in one turn, for the same reason.
const SAMPLES_PER_TURN: usize = 1024;

/// What a turn has done so far.
#[derive(Debug, Default)]
struct Work {
    samples: usize,
    copied: usize,
    /// Samples in memory that are copied together once the batch is planned, with their places.
    gather: Vec<(RamPin, usize)>,
    /// Hits in memory since the last entry: recorded together, one by one they would cost more than the copy.
    hits: Hits,
    /// Samples whose bytes were already on their way for an earlier place.
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
    const fn enough(&self) -> bool {
        self.samples >= SAMPLES_PER_TURN || self.copied >= COPY_PER_TURN
    }
}

impl Driver {
    /// Plans until a turn's worth is done or there is nothing to plan; whether there is more.
    pub(super) fn plan_some(&mut self) -> bool {
        if !self.delivery.end_gather() {
            return false;
        }
        let mut work = Work::default();
        while !work.enough() {
            if self.delivery.staging.planning().is_none() && !self.open_batch() {
                return false;
            }
            let begun = self.now();
            while !work.enough() && self.plan_sample(&mut work) {}
            let gathered = self.gather(&mut work);
            self.record_hits(&mut work, begun);
            if !gathered {
                return false;
            }
        }
        true
    }

    /// Copies the samples in memory that were put together; `false` while the consumer is still at its part of them.
    fn gather(&mut self, work: &mut Work) -> bool {
        if work.gather.is_empty() {
            return true;
        }
        let (bytes, is_done) = self.delivery.gather(std::mem::take(&mut work.gather));
        work.copied += bytes;
        is_done
    }

    /// Opens the next batch, or the end of an epoch; `false` where nothing can be opened now.
    fn open_batch(&mut self) -> bool {
        match self.schedule.add_drawn(&mut self.planner) {
            Ok(true) => {}
            Ok(false) => return false,
            Err(error) => {
                self.shared.batches.break_with(error);
                return false;
            }
        }
        let near = self.tiers.hold_all_in_memory();
        let batch = match self.schedule.upcoming(self.data.index()) {
            Some(Upcoming::Batch(batch)) => batch,
            Some(Upcoming::EpochEnd(epoch)) if self.delivery.has_capacity(Bytes::ZERO, near) => {
                self.delivery.staging.end_epoch(epoch);
                self.schedule.advance();
                return true;
            }
            Some(Upcoming::EpochEnd(_)) | None => return false,
        };
        let bytes = Bytes::new(*batch.offsets.last().expect("offsets end with the length"));
        if !self.delivery.has_capacity(bytes, near) {
            return false;
        }
        let size = usize::try_from(bytes.get()).expect("a batch fits the address space");
        let buffer = self.shared.buffers.lend(size);
        let index = self.data.index();
        let labels = batch.samples.iter().map(|&id| index.sample_label(id).unwrap_or(-1)).collect();
        self.delivery.staging.open(Stage {
            epoch: batch.epoch,
            step: batch.step,
            start: batch.start,
            last: batch.last,
            samples: batch.samples,
            ids: batch.ids,
            labels,
            offsets: batch.offsets,
            buffer: Arc::clone(&buffer),
            faults: Vec::new(),
            planned: 0,
            pending: 0,
        });
        self.schedule.advance();
        // A batch without a byte has no first one to take its memory for.
        size > 0 || self.delivery.take_memory(&buffer)
    }

    /// Gives the next sample of the open batch its source; `false` where none is left in it.
    fn plan_sample(&mut self, work: &mut Work) -> bool {
        let slot =
            if self.delivery.staging.is_empty() { return false } else { self.delivery.staging.newest() };
        let Some(stage) = self.delivery.staging.planning() else { return false };
        let place = stage.planned;
        let sample = stage.ids[place];
        let (offset, len) = stage.span(place);
        stage.planned += 1;
        work.samples += 1;
        let mut access = std::mem::take(&mut self.access);
        let planned = self.planner.poll_access(&mut access);
        assert!(planned && access.sample == sample, "the planner and the batches follow one order");
        for (victim, tier) in access.evict.drain(..) {
            self.evict(victim, tier);
        }
        let (source, fills) = (access.source, access.keep);
        self.access = access;
        if len == 0 {
            return true;
        }
        let spot = Spot { slot, place };
        if let Some(read) = self.fetches.reads.of_sample(sample) {
            read.waiters.push(spot);
            work.shared.add(len);
            read.fills.add(fills);
            self.delivery.stage(spot).pending += 1;
            return true;
        }
        let want = Want { sample, spot, offset, len, fills };
        let from = match source {
            PlannedSource::Tier(tier) => match self.fetch_held(&want, tier, work) {
                Some(from) => from,
                None => return true,
            },
            PlannedSource::Origin => From::Origin,
        };
        self.begin_read(&want, from);
        true
    }

    /// Copies a sample out of memory (`None`), or says who is to bring it.
    fn fetch_held(&mut self, want: &Want, tier: TierIndex, work: &mut Work) -> Option<From> {
        let &Want { sample, spot, offset, len, .. } = want;
        if self.tiers.ram_at(tier).is_none() {
            if self.serve_from_copy(want) {
                work.copied += len;
                work.shared.add(len);
                return None;
            }
            return Some(self.disk_or_origin(spot.slot, len));
        }
        let buffer = Arc::clone(&self.delivery.stage(spot).buffer);
        if !self.delivery.take_memory(&buffer) {
            return None;
        }
        let (key, ram) = (self.data.key(sample), self.tiers.ram_at(tier)?);
        if len >= SHARED_FROM
            && self.tiers.hold_all_in_memory()
            && let Some(pin) = ram.pin(&key).filter(|pin| pin.len() == len)
        {
            work.gather.push((pin, offset));
            work.hits.add(len);
            self.delivery.stage(spot).pending += 1;
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
        Some(if on_disk { self.disk_or_origin(spot.slot, len) } else { From::Origin })
    }

    fn begin_read(&mut self, want: &Want, from: From) {
        let stage = self.delivery.stage(want.spot);
        stage.pending += 1;
        let read = Read::new(want, from, Arc::clone(&stage.buffer));
        let ticket = self.fetches.reads.begin(read);
        match from {
            From::Disk => self.read_disk(ticket),
            From::Origin => self.request_origin(ticket),
        }
    }

    fn record_hits(&mut self, work: &mut Work, begun: Nanos) {
        let took = self.now().saturating_sub(begun);
        let number = self.delivery.staging.newest();
        let (epoch, step) = self.delivery.step(number);
        // What comes with another sample takes no time of its own.
        let found = [(Source::Ram, &mut work.hits, took), (Source::Staging, &mut work.shared, Nanos::ZERO)];
        for (source, hits, duration) in found {
            let Hits { samples, bytes } = std::mem::take(hits);
            if samples == 0 {
                continue;
            }
            self.shared.metrics.add(Entry {
                start: begun,
                duration,
                rank: self.shared.metrics.rank(),
                epoch,
                step,
                subject: Subject::Batch,
                op: Op::Read,
                source,
                cause: None,
                bytes: Bytes::new(bytes as u64),
                samples,
                attempt: 1,
                outcome: ReadOutcome::Ok,
            });
        }
    }
}
