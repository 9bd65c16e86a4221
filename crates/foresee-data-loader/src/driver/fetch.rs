// SPDX-License-Identifier: Apache-2.0
//! Reads from disk and origin: started by the fetch queue, ended by the tiers.
//!
//! The only attempt for a sample writes to the batch's memory. A hedge, and a read that serves several samples, write
//! to scratch memory, which is copied once no other attempt may write to the batch's.

use std::collections::HashMap;
use std::sync::Arc;

use foresee_data_fetch::{Action, AttemptId, Class, Dispatch, End, Part, Request};
use foresee_data_tier::{Dest, Done, Op, Scratch, Tier};
use foresee_ledger::{Entry, Subject};
use foresee_units::{Bytes, Nanos, ReadOutcome, SampleId, Source};

use super::Driver;
use super::tickets::TicketOwner;
use crate::batch::{Fault, fault_message};
use crate::reads::{BatchPosition, HedgeResult, Read, ReadSource, ReadTarget, Reads};

/// One attempt at the origin.
#[derive(Debug)]
struct Attempt {
    parts: Vec<Part>,
    /// `None` if it writes to the batch's memory.
    scratch: Option<Arc<Scratch>>,
    tries: u32,
    is_hedge: bool,
}

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

/// Reads from disk and origin, and their attempts.
#[derive(Debug)]
pub(super) struct Fetches {
    origin: Arc<dyn Tier>,
    pub(super) dispatch: Dispatch,
    pub(super) reads: Reads,
    attempts: HashMap<u64, Attempt>,
    /// Reads in flight from the disk tier.
    disk_reads: u32,
}

impl Fetches {
    pub(super) fn new(origin: Arc<dyn Tier>, dispatch: Dispatch) -> Self {
        Self { origin, dispatch, reads: Reads::default(), attempts: HashMap::new(), disk_reads: 0 }
    }
}

impl Driver {
    // ---- begin

    pub(super) fn read_disk(&mut self, number: u64) {
        let Some(buffer) = self.fetches.reads.get(number).map(|read| Arc::clone(&read.buffer)) else {
            return;
        };
        if !self.delivery.ensure_mapped(&buffer) {
            return;
        }
        let Some(read) = self.fetches.reads.get(number) else { return };
        read.active = 1;
        read.tries += 1;
        let ReadTarget { sample, offset, len, .. } = read.target;
        // SAFETY: the span belongs to this read alone until its end is handled.
        let dest = unsafe { buffer.dest(offset, len) };
        let Some(disk) = &self.tiers.disk else { return };
        self.fetches.disk_reads += 1;
        let (ticket, key) = (TicketOwner::DiskRead.ticket(number), self.data.key(sample));
        disk.submit(Op::Read { ticket, key, offset: 0, dest });
    }

    pub(super) fn request_origin(&mut self, number: u64) {
        let now = self.now();
        let Some(read) = self.fetches.reads.get(number) else { return };
        read.source = ReadSource::Origin;
        let ReadTarget { sample, position, .. } = read.target;
        let range = self.data.index().range(sample);
        let request = Request {
            ticket: number,
            object: self.data.index().object(sample),
            start: range.start,
            len: range.len,
            class: Class::Staging,
            turn: position.slot,
            deadline: Nanos::MAX,
        };
        self.fetches.dispatch.handle_request(request, now);
    }

    /// The source of a sample that the disk tier holds.
    pub(super) fn disk_or_origin(&self, slot: u64, len: usize) -> ReadSource {
        let in_flight = [self.fetches.disk_reads, self.fetches.dispatch.in_flight()];
        self.rates.disk_or_origin(slot, Bytes::new(len as u64), in_flight, self.now())
    }

    /// The consumer waits for the first staged batch: prioritize its reads of the origin.
    pub(super) fn prioritize_head(&mut self) {
        let now = self.now();
        let Some((slot, _)) = self.delivery.staging.head() else { return };
        for number in self.fetches.reads.of_slot(slot) {
            if self.fetches.reads.get(number).is_some_and(|read| read.source == ReadSource::Origin) {
                self.fetches.dispatch.handle_urgent(number, now);
            }
        }
    }

    pub(super) fn start_fetches(&mut self) {
        let now = self.now();
        let mut ops = Vec::new();
        while let Some(action) = self.fetches.dispatch.poll_action(now) {
            match action {
                Action::Start { attempt, start, len, parts, tries, hedge, .. } => {
                    ops.extend(self.start_attempt(attempt, start, len, parts, tries, hedge));
                }
                Action::Cancel { attempt } => {
                    // A tier can cancel only submitted operations.
                    self.fetches.origin.submit_many(std::mem::take(&mut ops));
                    self.fetches.origin.cancel(TicketOwner::OriginRead.ticket(attempt.0));
                }
                Action::Fail { ticket, outcome, tries, elapsed } => {
                    self.fail_read(ticket, outcome, tries, elapsed);
                }
            }
        }
        if !ops.is_empty() {
            self.fetches.origin.submit_many(ops);
        }
    }

    fn start_attempt(
        &mut self,
        id: AttemptId,
        start: u64,
        len: u64,
        parts: Vec<Part>,
        tries: u32,
        is_hedge: bool,
    ) -> Option<Op> {
        let first = parts[0].ticket;
        for part in &parts {
            if let Some(read) = self.fetches.reads.get(part.ticket) {
                read.tries = tries;
                read.active += 1;
                let buffer = Arc::clone(&read.buffer);
                if !self.delivery.ensure_mapped(&buffer) {
                    return None;
                }
            }
        }
        let read = self.fetches.reads.get(first)?;
        let target = read.target;
        let (dest, scratch) = if parts.len() == 1 && read.active == 1 && target.len as u64 == len {
            read.is_direct = true;
            // SAFETY: no other attempt for this span is in flight, and none writes to it while `is_direct` is set.
            (unsafe { read.buffer.dest(target.offset, target.len) }, None)
        } else {
            let len = usize::try_from(len).expect("a span fits the address space");
            let (dest, scratch) = Dest::from_vec(vec![0; len]);
            (dest, Some(scratch))
        };
        let key = self.data.key(target.sample);
        let offset = start - self.data.index().range(target.sample).start;
        self.fetches.attempts.insert(id.0, Attempt { parts, scratch, tries, is_hedge });
        Some(Op::Read { ticket: TicketOwner::OriginRead.ticket(id.0), key, offset, dest })
    }

    // ---- end

    pub(super) fn handle_done(&mut self, done: &Done) {
        match TicketOwner::of(done.ticket) {
            (TicketOwner::DiskRead, number) => self.handle_disk_read_end(number, done),
            (TicketOwner::OriginRead, number) => self.handle_attempt_end(number, done),
            (TicketOwner::DiskWrite, number) => self.handle_write_end(number, done),
            (TicketOwner::Removal, _) => {}
        }
    }

    fn handle_disk_read_end(&mut self, number: u64, done: &Done) {
        self.tiers.copies.has_progress = true;
        let Some(read) = self.fetches.reads.get(number) else {
            self.fetches.disk_reads -= 1;
            return;
        };
        read.active = 0;
        let ReadTarget { sample, position, fills, .. } = read.target;
        let (took, now) = (done.queued + done.service, self.now());
        self.rates.sources.observe(Source::Disk, done.bytes, self.fetches.disk_reads, took, now);
        self.fetches.disk_reads -= 1;
        self.record(foresee_ledger::Op::Read, Source::Disk, EntrySubject::one(sample, position.slot), done);
        if done.outcome == ReadOutcome::Ok {
            self.complete_read(number);
            return;
        }
        // The copy is missing or corrupt: the planner is notified, unless it has evicted that copy already and expects
        // a new one from this read.
        if let Some(tier) = self.tiers.disk_index().filter(|&disk| !fills.contains(disk)) {
            self.planner.handle_lost(sample, tier);
        }
        self.request_origin(number);
    }

    fn handle_attempt_end(&mut self, id: u64, done: &Done) {
        let Some(attempt) = self.fetches.attempts.remove(&id) else { return };
        let now = self.now();
        self.record_attempt(&attempt, done);
        if done.outcome == ReadOutcome::Ok {
            let (took, in_flight) = (done.queued + done.service, self.fetches.dispatch.in_flight());
            self.rates.sources.observe(Source::Origin, done.bytes, in_flight, took, now);
        }
        let end =
            End { outcome: done.outcome, bytes: done.bytes, queued: done.queued, service: done.service };
        let completed = self.fetches.dispatch.handle_end(AttemptId(id), end, now);
        match attempt.scratch {
            None => self.handle_direct_end(attempt.parts[0].ticket, !completed.is_empty()),
            Some(scratch) => {
                let Ok(bytes) = scratch.into_bytes() else { return };
                for part in attempt.parts.iter().filter(|part| completed.contains(&part.ticket)) {
                    self.handle_scratch(part, &bytes);
                }
            }
        }
    }

    /// Add an attempt to the ledger, and store its message.
    fn record_attempt(&mut self, attempt: &Attempt, done: &Done) {
        let mut first = None;
        for part in &attempt.parts {
            if let Some(read) = self.fetches.reads.get(part.ticket) {
                read.active = read.active.saturating_sub(1);
                if done.outcome != ReadOutcome::Ok {
                    // An attempt that lost against its hedge was cancelled.
                    read.failed += u32::from(done.outcome != ReadOutcome::Cancelled);
                    read.message.clone_from(&done.detail.message);
                }
                first.get_or_insert((read.target.sample, read.target.position.slot));
            }
        }
        if let Some((sample, slot)) = first {
            let subject = EntrySubject {
                sample,
                samples: u32::try_from(attempt.parts.len()).unwrap_or(u32::MAX),
                slot,
                attempt: attempt.tries + u32::from(attempt.is_hedge),
            };
            if let Some(open) = done.detail.open {
                let opened = Done { service: open, bytes: Bytes::ZERO, ..done.clone() };
                self.record(foresee_ledger::Op::Open, Source::Origin, subject, &opened);
            }
            let rest = done.service.saturating_sub(done.detail.open.unwrap_or(Nanos::ZERO));
            let read = Done { service: rest, ..done.clone() };
            self.record(foresee_ledger::Op::Read, Source::Origin, subject, &read);
        }
    }

    /// Handle the end of the attempt that wrote to the batch's memory.
    fn handle_direct_end(&mut self, number: u64, is_complete: bool) {
        let Some(read) = self.fetches.reads.get(number) else { return };
        read.is_direct = false;
        match read.hedge_result.take() {
            Some(HedgeResult::Bytes(bytes)) => {
                fill(read, &bytes);
                self.complete_read(number);
            }
            Some(HedgeResult::Fault(outcome, tries, elapsed)) => {
                self.fail_read(number, outcome, tries, elapsed);
            }
            None if is_complete => self.complete_read(number),
            None => {}
        }
    }

    /// Copy a complete part of an attempt in scratch memory to its batch.
    fn handle_scratch(&mut self, part: &Part, bytes: &[u8]) {
        let Some(read) = self.fetches.reads.get(part.ticket) else { return };
        let start = usize::try_from(part.offset_in_span).expect("inside the span");
        let bytes = &bytes[start..start + read.target.len];
        if read.is_direct {
            read.hedge_result = Some(HedgeResult::Bytes(bytes.to_vec()));
            return;
        }
        fill(read, bytes);
        self.complete_read(part.ticket);
    }

    /// End a read whose bytes are in its batch: serve the other batches that wait for it, and fill the caches as
    /// planned.
    fn complete_read(&mut self, number: u64) {
        let Some(read) = self.fetches.reads.end(number) else { return };
        let ReadTarget { position, offset, len, fills, .. } = read.target;
        // SAFETY: no attempt writes to the span, and the batch has not been delivered.
        let bytes: &[u8] = unsafe { read.buffer.slice_mut(offset, len) };
        for &waiter in &read.waiters {
            self.write_span(waiter, |span| span.copy_from_slice(bytes));
        }
        for tier in fills.iter() {
            self.fill_cache(&read, tier);
        }
        if let Some(stage) = self.delivery.staging.get(position.slot) {
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
    fn fail_read(&mut self, number: u64, outcome: ReadOutcome, tries: u32, elapsed: Nanos) {
        if let Some(read) = self.fetches.reads.get(number).filter(|read| read.is_direct) {
            read.hedge_result = Some(HedgeResult::Fault(outcome, tries, elapsed));
            return;
        }
        let Some(read) = self.fetches.reads.end(number) else { return };
        self.cancel_fills(&read);
        let mut message = fault_message(outcome, read.message.as_deref(), tries, elapsed);
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
            let has_begun = read.active > 0;
            if has_begun && (!read.target.fills.is_empty() || read.source == ReadSource::Disk) {
                continue;
            }
            if read.source == ReadSource::Origin {
                self.fetches.dispatch.handle_withdraw(number, now);
            }
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

fn fill(read: &Read, bytes: &[u8]) {
    // SAFETY: no attempt writes to the batch's memory now, and the batch has not been delivered.
    unsafe { read.buffer.slice_mut(read.target.offset, read.target.len) }.copy_from_slice(bytes);
}
