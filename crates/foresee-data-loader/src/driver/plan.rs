// SPDX-License-Identifier: Apache-2.0
//! Opening batches and giving each sample its source, in the order in which the consumer will read them.

use std::sync::Arc;

use foresee_data_plan::{PlannedSource, TierIndex};
use foresee_data_tier::RamPin;
use foresee_ledger::{Entry, Op, Subject};
use foresee_units::{Bytes, Nanos, ReadOutcome, SampleId, Source, Step};

use super::Driver;
use crate::gather::{Gather, SHARED_FROM};
use crate::orders::RankEpoch;
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
    /// Hits in memory since the last entry: booked together, one by one they would cost more than the copy.
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
        if !self.end_gather() {
            return false;
        }
        let mut work = Work::default();
        while !work.enough() {
            if self.staging.planning().is_none() && !self.open_batch() {
                return false;
            }
            let begun = self.now();
            while !work.enough() && self.plan_sample(&mut work) {}
            let gathered = self.gather(&mut work);
            self.book_hits(&mut work, begun);
            if !gathered {
                return false;
            }
        }
        true
    }

    /// Copies what was put together, shared with the consumer if he waits; `false` while he is not done with his part.
    fn gather(&mut self, work: &mut Work) -> bool {
        if work.gather.is_empty() {
            return true;
        }
        let slot = self.staging.newest();
        let buffer = Arc::clone(&self.staging.get(slot).expect("the batch is being planned").buffer);
        // SAFETY: each span belongs to its sample alone, no read of it has begun, and the batch is not handed over
        // while copies are pending.
        let gather = Arc::new(unsafe { Gather::new(buffer, std::mem::take(&mut work.gather)) });
        work.copied += gather.bytes();
        self.shared.handover.share(&gather);
        gather.help();
        self.shared.handover.unshare();
        self.gathering = Some((slot, gather));
        self.end_gather()
    }

    /// Whether no copies are under way any more.
    fn end_gather(&mut self) -> bool {
        if let Some((slot, gather)) = self.gathering.take_if(|(_, gather)| gather.is_done())
            && let Some(stage) = self.staging.get(slot)
        {
            stage.pending -= gather.samples();
        }
        self.gathering.is_none()
    }

    /// Opens the next batch, or the end of an epoch; `false` where nothing can be opened now.
    fn open_batch(&mut self) -> bool {
        if !self.learn_epochs() {
            return false;
        }
        let Some(epoch) = self.known.front() else { return false };
        if self.step == epoch.steps() {
            let number = epoch.epoch;
            if !self.has_room(Bytes::ZERO) {
                return false;
            }
            self.staging.end_epoch(number);
            self.known.pop_front();
            self.step = 0;
            return true;
        }
        let (samples, ids, offsets) = self.measure(epoch);
        let (epoch, start, last) = (epoch.epoch, epoch.step(self.step).start, self.step + 1 == epoch.steps());
        let bytes = Bytes::new(*offsets.last().expect("offsets end with the length"));
        if !self.has_room(bytes) {
            return false;
        }
        let size = usize::try_from(bytes.get()).expect("a batch fits the address space");
        let buffer = self.shared.buffers.lend(size);
        let index = self.data.index();
        let labels = samples.iter().map(|&id| index.sample_label(id).unwrap_or(-1)).collect();
        let stage = Stage {
            epoch,
            step: Step(self.step),
            start,
            last,
            samples,
            ids,
            labels,
            offsets,
            buffer: Arc::clone(&buffer),
            faults: Vec::new(),
            planned: 0,
            pending: 0,
        };
        self.staging.open(stage);
        self.step += 1;
        // A batch without a byte has no first one to take its memory for.
        size > 0 || self.give_memory(&buffer)
    }

    /// Whether a batch of `bytes` may be opened. If not, the driver is called when the consumer gives memory back.
    fn has_room(&mut self, bytes: Bytes) -> bool {
        let near = self.all_in_memory();
        if self.staging.has_room(bytes, near) {
            return true;
        }
        // Asked for first, looked at again after: what comes back in between is not missed.
        self.shared.buffers.call_when_returned();
        self.staging.has_room(bytes, near)
    }

    /// Samples of the next step, their entries, and the place of each entry's bytes.
    fn measure(&self, epoch: &RankEpoch) -> (Vec<SampleId>, Vec<SampleId>, Vec<u64>) {
        let samples: Vec<SampleId> = epoch.range(epoch.step(self.step)).collect();
        let ids: Vec<SampleId> = samples.iter().flat_map(|&sample| epoch.entries_of(sample)).collect();
        let mut offsets = Vec::with_capacity(ids.len() + 1);
        let mut end = 0_u64;
        offsets.push(end);
        for &id in &ids {
            end += self.data.index().size(id).get();
            offsets.push(end);
        }
        (samples, ids, offsets)
    }

    /// Gives the next sample of the open batch its source; `false` where none is left in it.
    fn plan_sample(&mut self, work: &mut Work) -> bool {
        let slot = if self.staging.is_empty() { return false } else { self.staging.newest() };
        let Some(stage) = self.staging.planning() else { return false };
        let place = stage.planned;
        let sample = stage.ids[place];
        let (offset, len) = stage.span(place);
        stage.planned += 1;
        work.samples += 1;
        let mut access = std::mem::take(&mut self.access);
        let planned = self.planner.poll_access(&mut access);
        assert!(planned && access.sample == sample, "the planner and the batches follow one order");
        for (victim, tier) in access.evict.drain(..) {
            self.forget(victim, tier);
        }
        let (source, keep) = (access.source, access.keep);
        self.access = access;
        if len == 0 {
            return true;
        }
        let spot = Spot { slot, place };
        if let Some(read) = self.reads.of_sample(sample) {
            read.waiters.push(spot);
            work.shared.add(len);
            read.keep.add(keep);
            self.stage_of(spot).pending += 1;
            return true;
        }
        let want = Want { sample, spot, offset, len, keep };
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
            if self.copy_under_way(want) {
                work.copied += len;
                work.shared.add(len);
                return None;
            }
            return Some(self.disk_or_origin(spot.slot, len));
        }
        let buffer = Arc::clone(&self.stage_of(spot).buffer);
        if !self.give_memory(&buffer) {
            return None;
        }
        let (key, ram) = (self.data.key(sample), self.tiers.ram_at(tier)?);
        if len >= SHARED_FROM
            && self.all_in_memory()
            && let Some(pin) = ram.pin(&key).filter(|pin| pin.len() == len)
        {
            work.gather.push((pin, offset));
            work.hits.add(len);
            self.stage_of(spot).pending += 1;
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
        self.in_memory = self.in_memory.saturating_sub(1);
        self.planner.handle_lost(sample, tier);
        let on_disk = self.tiers.disk_index().is_some_and(|disk| self.planner.holds(sample, disk));
        Some(if on_disk { self.disk_or_origin(spot.slot, len) } else { From::Origin })
    }

    fn begin_read(&mut self, want: &Want, from: From) {
        let stage = self.stage_of(want.spot);
        stage.pending += 1;
        let read = Read::new(want, from, Arc::clone(&stage.buffer));
        let ticket = self.reads.begin(read);
        match from {
            From::Disk => self.ask_disk(ticket),
            From::Origin => self.ask_origin(ticket),
        }
    }

    fn stage_of(&mut self, spot: Spot) -> &mut Stage {
        self.staging.get(spot.slot).expect("the batch is being planned")
    }

    fn book_hits(&mut self, work: &mut Work, begun: Nanos) {
        let took = self.now().saturating_sub(begun);
        let number = self.staging.newest();
        let (epoch, step) = self.staging.get(number).map_or_else(Default::default, |s| (s.epoch, s.step));
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
