// SPDX-License-Identifier: Apache-2.0
//! Reads from disk and origin: what the driver requests, and the effect of each end on batches and caches.

use std::sync::Arc;

use foresee_data_fetch::{Class, Dispatch, Request};
use foresee_data_tier::{Done, Op, Tier};
use foresee_ledger::{Entry, Subject};
use foresee_units::{Bytes, Nanos, ReadOutcome, SampleId, Source};

use super::Driver;
use super::tickets::TicketOwner;
use crate::batch::{Fault, fault_message};
use crate::buffer::BufferRange;
use crate::origin_reads::{
    AttemptSummary, OriginEnd, OriginRead, OriginReads, OriginResult, ReadFailure, ReadMemory,
    ledger_operations,
};
use crate::reads::{BatchPosition, ReadSource, ReadTarget, Reads};

/// Subject of a ledger entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntrySubject {
    /// The sample, or the first of several.
    sample: SampleId,
    samples: u32,
    /// The batch that it is for.
    slot: u64,
    attempt: u32,
}

impl EntrySubject {
    /// One sample at the first attempt.
    pub(super) const fn one(sample: SampleId, slot: u64) -> Self {
        Self { sample, samples: 1, slot, attempt: 1 }
    }
}

/// Reads from disk and origin.
#[derive(Debug)]
pub(super) struct Fetches {
    origin: Arc<dyn Tier>,
    pub(super) origin_reads: OriginReads<BufferRange>,
    pub(super) reads: Reads,
    /// Reads in flight from the disk tier.
    disk_reads: u32,
}

impl Fetches {
    pub(super) fn new(origin: Arc<dyn Tier>, queue: Dispatch) -> Self {
        let origin_reads = OriginReads::new(queue, |attempt| TicketOwner::OriginRead.ticket(attempt));
        Self { origin, origin_reads, reads: Reads::default(), disk_reads: 0 }
    }
}

impl Driver {
    // ---- begin

    pub(super) fn read_disk(&mut self, number: u64) {
        let Some(read) = self.fetches.reads.get(number) else { return };
        let (sample, memory) = (read.target.sample, read.memory());
        if !self.delivery.ensure_mapped(&memory.buffer) {
            return;
        }
        let Some(disk) = &self.tiers.disk else { return };
        // SAFETY: the span belongs to this read alone until its end is handled.
        let dest = unsafe { memory.dest() };
        self.fetches.disk_reads += 1;
        let (ticket, key) = (TicketOwner::DiskRead.ticket(number), self.data.key(sample));
        disk.submit(Op::Read { ticket, key, offset: 0, dest });
    }

    pub(super) fn request_origin(&mut self, number: u64) {
        let now = self.now();
        let Some(read) = self.fetches.reads.get(number) else { return };
        read.source = ReadSource::Origin;
        let (ReadTarget { sample, position, .. }, group) = (read.target, read.group);
        let class = if read.is_ahead { Class::Fill } else { Class::Staging };
        let range = self.data.index().range(sample);
        let request = Request {
            ticket: number,
            object: self.data.index().object(sample),
            start: range.start,
            len: range.len,
            class,
            turn: position.slot,
            deadline: Nanos::MAX,
            group,
        };
        let (origin, key) = (Arc::clone(&self.fetches.origin), self.data.key(sample));
        let read = OriginRead { origin, key, request, memory: read.memory() };
        self.fetches.origin_reads.handle_request(read, now);
    }

    /// The source of a sample that the disk tier holds.
    pub(super) fn disk_or_origin(&self, slot: u64, len: usize) -> ReadSource {
        let in_flight = [self.fetches.disk_reads, self.fetches.origin_reads.queue().in_flight()];
        self.rates.disk_or_origin(slot, Bytes::new(len as u64), in_flight, self.now())
    }

    /// The consumer waits for the first staged batch: prioritize its reads of the origin.
    pub(super) fn prioritize_head(&mut self) {
        let now = self.now();
        let Some((slot, _)) = self.delivery.staging.head() else { return };
        for number in self.fetches.reads.of_slot(slot) {
            self.fetches.origin_reads.handle_urgent(number, now);
        }
    }

    pub(super) fn start_fetches(&mut self) {
        let now = self.now();
        self.fetches.origin_reads.start_attempts(now);
        self.end_origin_reads();
    }

    // ---- end

    pub(super) fn handle_done(&mut self, done: &Done) {
        match TicketOwner::of(done.ticket) {
            (TicketOwner::DiskRead, number) => self.handle_disk_read_end(number, done),
            (TicketOwner::OriginRead, number) => self.handle_attempt_end(number, done),
            (TicketOwner::DiskWrite, number) => self.handle_write_end(number, done),
            (TicketOwner::Removal | TicketOwner::PeerRead, _) => {}
        }
    }

    fn handle_disk_read_end(&mut self, number: u64, done: &Done) {
        self.tiers.copies.has_progress = true;
        let Some(read) = self.fetches.reads.get(number) else {
            self.fetches.disk_reads -= 1;
            return;
        };
        let (ReadTarget { sample, position, fills, .. }, memory) = (read.target, read.memory());
        let (took, now) = (done.queued + done.service, self.now());
        self.rates.sources.observe(Source::Disk, done.bytes, self.fetches.disk_reads, took, now);
        self.fetches.disk_reads -= 1;
        self.record(foresee_ledger::Op::Read, Source::Disk, EntrySubject::one(sample, position.slot), done);
        if done.outcome == ReadOutcome::Ok {
            self.complete_read(number, &memory);
            return;
        }
        // The copy is missing or corrupt: the planner is notified, unless it has evicted that copy already and expects
        // a new one from this read.
        if let Some(tier) = self.tiers.disk_index().filter(|&disk| !fills.contains(disk)) {
            self.planner.handle_lost(sample, tier);
        }
        self.request_origin(number);
    }

    fn handle_attempt_end(&mut self, attempt: u64, done: &Done) {
        let (now, in_flight) = (self.now(), self.fetches.origin_reads.queue().in_flight());
        if done.outcome == ReadOutcome::Ok {
            let took = done.queued + done.service;
            self.rates.sources.observe(Source::Origin, done.bytes, in_flight, took, now);
        }
        if let Some(summary) = self.fetches.origin_reads.handle_done(attempt, done, now) {
            self.record_attempt(summary, done);
        }
        self.end_origin_reads();
    }

    /// Add an attempt to the ledger.
    fn record_attempt(&mut self, AttemptSummary { first, samples, attempt }: AttemptSummary, done: &Done) {
        let Some(read) = self.fetches.reads.get(first) else { return };
        let ReadTarget { sample, position, .. } = read.target;
        let subject = EntrySubject { sample, samples, slot: position.slot, attempt };
        for (op, done) in ledger_operations(done) {
            self.record(op, Source::Origin, subject, &done);
        }
    }

    /// Apply the ends of reads of the origin to their batches.
    fn end_origin_reads(&mut self) {
        while let Some(OriginEnd { number, memory, result }) = self.fetches.origin_reads.poll_end() {
            match result {
                OriginResult::Complete => self.complete_read(number, &memory),
                OriginResult::Failed(failure) => self.fail_read(number, &failure),
                OriginResult::NoMemory(error) => self.delivery.fail(error),
                OriginResult::Withdrawn => {}
            }
        }
    }

    /// End a read whose bytes are in its batch: serve the other batches that wait for it, and fill the caches as
    /// planned.
    fn complete_read(&mut self, number: u64, memory: &BufferRange) {
        let Some(read) = self.fetches.reads.end(number) else { return };
        let ReadTarget { position, fills, .. } = read.target;
        // SAFETY: no attempt writes to the span, and the batch has not been delivered.
        let bytes = unsafe { memory.bytes() };
        for &waiter in &read.waiters {
            self.write_span(waiter, |span| span.copy_from_slice(bytes));
        }
        for tier in fills.iter() {
            self.fill_cache(&read, tier);
        }
        if !read.is_ahead
            && let Some(stage) = self.delivery.staging.get(position.slot)
        {
            stage.pending -= 1;
        }
    }

    /// Write the bytes of a pending entry, unless its batch was discarded.
    fn write_span(&mut self, position: BatchPosition, write: impl FnOnce(&mut [u8])) {
        let Some(stage) = self.delivery.staging.get(position.slot) else { return };
        stage.pending -= 1;
        let ((offset, len), buffer) = (stage.span(position.index), Arc::clone(&stage.batch.buffer));
        if self.delivery.ensure_mapped(&buffer) {
            // SAFETY: the span belongs to this entry alone, and no attempt writes to it.
            write(unsafe { buffer.slice_mut(offset, len) });
        }
    }

    /// End a read that no source can serve: its bytes are zero, and the batch has the fault.
    fn fail_read(&mut self, number: u64, failure: &ReadFailure) {
        let Some(read) = self.fetches.reads.end(number) else { return };
        self.cancel_fills(&read);
        let &ReadFailure { outcome, tries, elapsed, ref message } = failure;
        let mut message = fault_message(outcome, message.as_deref(), tries, elapsed);
        if self.data.index().parts() > 1 {
            message = format!("{}: {message}", self.data.uri(read.target.sample));
        }
        for position in read.positions() {
            if let Some(stage) = self.delivery.staging.get(position.slot) {
                let fault = Fault { index: position.index, outcome, message: message.clone() };
                stage.batch.faults.push(fault);
            }
            self.write_span(position, |span| span.fill(0));
        }
    }

    /// Abandon all reads after a seek: those for a cache continue, the others are withdrawn.
    pub(super) fn abandon_reads(&mut self) {
        let now = self.now();
        for number in self.fetches.reads.tickets() {
            let Some(read) = self.fetches.reads.get(number) else { continue };
            read.waiters.clear();
            let is_continued = match read.source {
                // It is in flight from its begin on.
                ReadSource::Disk => true,
                ReadSource::Origin => {
                    let status = self.fetches.origin_reads.status(number).unwrap_or_default();
                    status.is_in_flight && !read.target.fills.is_empty()
                }
            };
            if is_continued {
                continue;
            }
            self.fetches.origin_reads.handle_withdraw(number, now);
            if let Some(read) = self.fetches.reads.end(number) {
                self.cancel_fills(&read);
            }
        }
        self.start_fetches();
    }

    pub(super) fn record(
        &mut self,
        op: foresee_ledger::Op,
        source: Source,
        EntrySubject { sample, samples, slot, attempt }: EntrySubject,
        done: &Done,
    ) {
        let now = self.now();
        let (epoch, step) = self.delivery.step(slot);
        self.shared.recorder.add(Entry {
            start: now.saturating_sub(done.service),
            duration: done.service,
            rank: self.shared.recorder.rank(),
            epoch,
            step,
            subject: Subject::Sample(sample),
            op,
            source,
            cause: None,
            bytes: done.bytes,
            samples,
            attempt,
            outcome: done.outcome,
        });
    }
}
