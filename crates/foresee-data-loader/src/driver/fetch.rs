// SPDX-License-Identifier: Apache-2.0
//! Reads from disk and origin: begun as the fetch queue says, ended as the tiers report.
//!
//! An attempt fills the batch's own memory where it is the only one for its sample; a hedge, and a read that
//! serves several samples at once, fill memory of their own, which is copied once nobody else may touch the batch's.

use std::collections::HashMap;
use std::sync::Arc;

use foresee_data_fetch::{Action, AttemptId, Class, Dispatch, End, Part, Request};
use foresee_data_tier::{Dest, Done, Op, Scratch, Tier};
use foresee_ledger::{Entry, Subject};
use foresee_units::{Bytes, Nanos, ReadOutcome, SampleId, Source};

use super::Driver;
use super::fault::fault_message;
use super::tickets::TicketOwner;
use crate::batch::Fault;
use crate::reads::{From, Overtaken, Read, Reads};

/// One attempt at the origin.
#[derive(Debug)]
struct Attempt {
    parts: Vec<Part>,
    /// Memory of its own; `None`: it fills the batch's.
    scratch: Option<Arc<Scratch>>,
    tries: u32,
    hedge: bool,
}

/// Subject of an entry of the metrics.
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

/// Reads from disk and origin, and who performs them.
#[derive(Debug)]
pub(super) struct Fetches {
    origin: Arc<dyn Tier>,
    pub(super) dispatch: Dispatch,
    pub(super) reads: Reads,
    attempts: HashMap<u64, Attempt>,
    /// Reads that the disk tier has not ended.
    disk_reads: u32,
}

impl Fetches {
    pub(super) fn new(origin: Arc<dyn Tier>, dispatch: Dispatch) -> Self {
        Self { origin, dispatch, reads: Reads::default(), attempts: HashMap::new(), disk_reads: 0 }
    }

    /// Reads that disk and origin have in flight.
    fn in_flight(&self) -> [u32; 2] {
        [self.disk_reads, self.dispatch.in_flight()]
    }

    /// The consumer waits for batch `slot`: its reads of the origin go first.
    fn prioritize(&mut self, slot: u64, now: Nanos) {
        for number in self.reads.for_slot(slot) {
            if self.reads.get(number).is_some_and(|read| read.from == From::Origin) {
                self.dispatch.handle_urgent(number, now);
            }
        }
    }
}

impl Driver {
    // ---- begin

    pub(super) fn read_disk(&mut self, number: u64) {
        let Some(buffer) = self.fetches.reads.get(number).map(|read| Arc::clone(&read.buffer)) else {
            return;
        };
        if !self.delivery.take_memory(&buffer) {
            return;
        }
        let Some(read) = self.fetches.reads.get(number) else { return };
        read.active = 1;
        read.tries += 1;
        let key = self.data.key(read.sample);
        // SAFETY: the span belongs to this read alone until its end is handled.
        let dest = unsafe { read.buffer.dest(read.offset, read.len) };
        let Some(disk) = &self.tiers.disk else { return };
        self.fetches.disk_reads += 1;
        disk.submit(Op::Read { ticket: TicketOwner::DiskRead.ticket(number), key, offset: 0, dest });
    }

    pub(super) fn request_origin(&mut self, number: u64) {
        let now = self.now();
        let Some(read) = self.fetches.reads.get(number) else { return };
        read.from = From::Origin;
        let (slot, sample) = (read.spot.slot, read.sample);
        let range = self.data.index().range(sample);
        let request = Request {
            ticket: number,
            object: self.data.index().object(sample),
            start: range.start,
            len: range.len,
            class: Class::Staging,
            turn: slot,
            deadline: Nanos::MAX,
        };
        self.fetches.dispatch.handle_request(request, now);
    }

    /// Who reads a sample that the disk tier holds.
    pub(super) fn disk_or_origin(&self, slot: u64, len: usize) -> From {
        self.rates.disk_or_origin(slot, Bytes::new(len as u64), self.fetches.in_flight(), self.now())
    }

    /// The consumer waits for the first batch in line: its reads go first.
    pub(super) fn prioritize_head(&mut self) {
        let now = self.now();
        if let Some((slot, _)) = self.delivery.staging.head() {
            self.fetches.prioritize(slot, now);
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
                    // A tier knows only what it was given.
                    self.fetches.origin.submit_many(std::mem::take(&mut ops));
                    self.fetches.origin.cancel(TicketOwner::OriginRead.ticket(attempt.0));
                }
                Action::Fail { ticket, outcome, tries, elapsed } => {
                    self.give_up(ticket, outcome, tries, elapsed);
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
        hedge: bool,
    ) -> Option<Op> {
        let first = parts[0].ticket;
        for part in &parts {
            if let Some(read) = self.fetches.reads.get(part.ticket) {
                read.tries = tries;
                read.active += 1;
                let buffer = Arc::clone(&read.buffer);
                if !self.delivery.take_memory(&buffer) {
                    return None;
                }
            }
        }
        let read = self.fetches.reads.get(first)?;
        let alone = parts.len() == 1 && read.active == 1 && read.len as u64 == len;
        let (dest, scratch) = if alone {
            read.direct = true;
            // SAFETY: no other attempt for this span is under way, and none begins while `direct` stands.
            (unsafe { read.buffer.dest(read.offset, read.len) }, None)
        } else {
            let len = usize::try_from(len).expect("a span fits the address space");
            let (dest, scratch) = Dest::from_vec(vec![0; len]);
            (dest, Some(scratch))
        };
        let key = self.data.key(read.sample);
        let offset = start - self.data.index().range(read.sample).start;
        self.fetches.attempts.insert(id.0, Attempt { parts, scratch, tries, hedge });
        Some(Op::Read { ticket: TicketOwner::OriginRead.ticket(id.0), key, offset, dest })
    }

    // ---- end

    pub(super) fn handle_done(&mut self, done: &Done) {
        match TicketOwner::of(done.ticket) {
            (TicketOwner::DiskRead, number) => self.disk_read_ended(number, done),
            (TicketOwner::OriginRead, number) => self.attempt_ended(number, done),
            (TicketOwner::DiskWrite, number) => self.write_ended(number, done),
            (TicketOwner::Removal, _) => {}
        }
    }

    fn disk_read_ended(&mut self, number: u64, done: &Done) {
        self.tiers.copies.note_moved();
        let Some(read) = self.fetches.reads.get(number) else {
            self.fetches.disk_reads -= 1;
            return;
        };
        read.active = 0;
        let (sample, spot, fills) = (read.sample, read.spot, read.fills);
        let (took, now) = (done.queued + done.service, self.now());
        self.rates.sources.observe(Source::Disk, done.bytes, self.fetches.disk_reads, took, now);
        self.fetches.disk_reads -= 1;
        self.record(foresee_ledger::Op::Read, Source::Disk, EntrySubject::one(sample, spot.slot), done);
        if done.outcome == ReadOutcome::Ok {
            self.arrived(number);
            return;
        }
        // The copy is gone or bad: the origin has the sample, and the plan learns of the hole. Unless it has dropped
        // that copy meanwhile and counts on this read for a new one.
        if let Some(tier) = self.tiers.disk_index().filter(|&disk| !fills.contains(disk)) {
            self.planner.handle_lost(sample, tier);
        }
        self.request_origin(number);
    }

    fn attempt_ended(&mut self, id: u64, done: &Done) {
        let Some(attempt) = self.fetches.attempts.remove(&id) else { return };
        let now = self.now();
        self.note_attempt(&attempt, done);
        if done.outcome == ReadOutcome::Ok {
            let took = done.queued + done.service;
            self.rates.sources.observe(
                Source::Origin,
                done.bytes,
                self.fetches.dispatch.in_flight(),
                took,
                now,
            );
        }
        let end =
            End { outcome: done.outcome, bytes: done.bytes, queued: done.queued, service: done.service };
        let won = self.fetches.dispatch.handle_end(AttemptId(id), end, now).won;
        match attempt.scratch {
            None => self.direct_ended(attempt.parts[0].ticket, !won.is_empty()),
            Some(scratch) => {
                let Ok(bytes) = scratch.into_bytes() else { return };
                for part in attempt.parts.iter().filter(|part| won.contains(&part.ticket)) {
                    self.scratch_won(part, &bytes);
                }
            }
        }
    }

    /// Adds an attempt to the metrics and remembers what it said.
    fn note_attempt(&mut self, attempt: &Attempt, done: &Done) {
        let mut first = None;
        for part in &attempt.parts {
            if let Some(read) = self.fetches.reads.get(part.ticket) {
                read.active = read.active.saturating_sub(1);
                if done.outcome != ReadOutcome::Ok {
                    // One that lost against its twin was called off.
                    read.failed += u32::from(done.outcome != ReadOutcome::Cancelled);
                    read.message.clone_from(&done.detail.message);
                }
                first.get_or_insert((read.sample, read.spot.slot));
            }
        }
        if let Some((sample, slot)) = first {
            let about = EntrySubject {
                sample,
                samples: u32::try_from(attempt.parts.len()).unwrap_or(u32::MAX),
                slot,
                attempt: attempt.tries + u32::from(attempt.hedge),
            };
            if let Some(open) = done.detail.open {
                let opened = Done { service: open, bytes: Bytes::ZERO, ..done.clone() };
                self.record(foresee_ledger::Op::Open, Source::Origin, about, &opened);
            }
            let rest = done.service.saturating_sub(done.detail.open.unwrap_or(Nanos::ZERO));
            let read = Done { service: rest, ..done.clone() };
            self.record(foresee_ledger::Op::Read, Source::Origin, about, &read);
        }
    }

    /// The attempt that was filling the batch's own memory has ended.
    fn direct_ended(&mut self, number: u64, won: bool) {
        let Some(read) = self.fetches.reads.get(number) else { return };
        read.direct = false;
        match read.overtaken_by.take() {
            Some(Overtaken::Bytes(bytes)) => {
                fill(read, &bytes);
                self.arrived(number);
            }
            Some(Overtaken::Fault(outcome, tries, elapsed)) => self.give_up(number, outcome, tries, elapsed),
            None if won => self.arrived(number),
            None => {}
        }
    }

    fn scratch_won(&mut self, part: &Part, bytes: &[u8]) {
        let Some(read) = self.fetches.reads.get(part.ticket) else { return };
        let start = usize::try_from(part.offset_in_span).expect("inside the span");
        let bytes = &bytes[start..start + read.len];
        if read.direct {
            read.overtaken_by = Some(Overtaken::Bytes(bytes.to_vec()));
            return;
        }
        fill(read, bytes);
        self.arrived(part.ticket);
    }

    /// A read's bytes are in its batch: serve the other batches that wait for it, and fill the caches as planned.
    fn arrived(&mut self, number: u64) {
        let Some(read) = self.fetches.reads.end(number) else { return };
        // SAFETY: no attempt touches the span any more, and the batch has not been handed over.
        let bytes: &[u8] = unsafe { read.buffer.slice_mut(read.offset, read.len) };
        for spot in &read.waiters {
            if let Some(stage) = self.delivery.staging.get(spot.slot) {
                stage.pending -= 1;
                let ((offset, len), buffer) = (stage.span(spot.place), Arc::clone(&stage.buffer));
                if self.delivery.take_memory(&buffer) {
                    // SAFETY: the waiter's span is its own and nothing else fills it.
                    unsafe { buffer.slice_mut(offset, len) }.copy_from_slice(bytes);
                }
            }
        }
        for tier in read.fills.iter() {
            self.fill_cache(&read, tier);
        }
        if let Some(stage) = self.delivery.staging.get(read.spot.slot) {
            stage.pending -= 1;
        }
    }

    /// No source has the sample: its place stays zero, and the batch says why.
    fn give_up(&mut self, number: u64, outcome: ReadOutcome, tries: u32, elapsed: Nanos) {
        if let Some(read) = self.fetches.reads.get(number).filter(|read| read.direct) {
            read.overtaken_by = Some(Overtaken::Fault(outcome, tries, elapsed));
            return;
        }
        let Some(read) = self.fetches.reads.end(number) else { return };
        self.cancel_fills(&read);
        let mut message = fault_message(&read, outcome, tries, elapsed);
        if self.data.index().parts() > 1 {
            message = format!("{}: {message}", self.data.uri(read.sample));
        }
        for spot in std::iter::once(read.spot).chain(read.waiters.iter().copied()) {
            if let Some(stage) = self.delivery.staging.get(spot.slot) {
                stage.faults.push(Fault { place: spot.place, outcome, message: message.clone() });
                stage.pending -= 1;
                let ((offset, len), buffer) = (stage.span(spot.place), Arc::clone(&stage.buffer));
                if self.delivery.take_memory(&buffer) {
                    // SAFETY: every attempt for the span has ended.
                    unsafe { buffer.slice_mut(offset, len) }.fill(0);
                }
            }
        }
    }

    /// No batch waits for a read any more: those for a cache continue, the others are withdrawn.
    pub(super) fn abandon_reads(&mut self) {
        let now = self.now();
        for number in self.fetches.reads.tickets() {
            let Some(read) = self.fetches.reads.get(number) else { continue };
            read.waiters.clear();
            let begun = read.active > 0;
            if begun && (!read.fills.is_empty() || read.from == From::Disk) {
                continue;
            }
            if read.from == From::Origin {
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
        self.shared.metrics.add(Entry {
            start: now.saturating_sub(done.service),
            duration: done.service,
            rank: self.shared.metrics.rank(),
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
    // SAFETY: no attempt fills the batch's own memory now, and the batch has not been handed over.
    unsafe { read.buffer.slice_mut(read.offset, read.len) }.copy_from_slice(bytes);
}
