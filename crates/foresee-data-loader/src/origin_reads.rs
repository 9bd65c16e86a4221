// SPDX-License-Identifier: Apache-2.0
//! Reads of an origin: a fetch queue, its attempts, and the memory that they fill.
//!
//! The only attempt for a read writes directly to the memory of the read. A hedge, and an attempt for several reads,
//! write to scratch memory, which is copied once no other attempt may write to the memory of the read. A read therefore
//! returns its memory only when no attempt can write to it, also after a failure or a withdrawal.

mod attempt;
mod read;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use foresee_data_fetch::{Action, AttemptId, ConsumerRate, Dispatch, End, Part, Request};
use foresee_data_tier::{Dest, Done, Op, SampleKey, Ticket, Tier};
use foresee_units::{Bytes, Nanos, ReadOutcome};
use rustc_hash::FxHashMap;

use attempt::{Attempt, AttemptStart, Submissions};
pub(crate) use attempt::{AttemptSummary, ledger_operations};
pub(crate) use read::{OriginEnd, OriginRead, OriginResult, ReadFailure, ReadMemory, ReadStatus};

/// The end of a read while a direct attempt may still write to its memory.
#[derive(Debug)]
enum PendingEnd {
    /// The bytes of a hedge.
    Complete(Vec<u8>),
    Failed {
        outcome: ReadOutcome,
        tries: u32,
        elapsed: Nanos,
    },
    Withdrawn,
}

/// A read that has not ended.
#[derive(Debug)]
struct ReadState<M> {
    origin: Arc<dyn Tier>,
    key: SampleKey,
    start: u64,
    len: u64,
    memory: M,
    /// Attempts in flight.
    active: u32,
    has_failed: bool,
    /// Whether an attempt writes to `memory`.
    is_direct: bool,
    pending_end: Option<PendingEnd>,
    /// The message of the last failed attempt.
    message: Option<Box<str>>,
}

/// Reads of one origin, or of several that share a fetch queue.
///
/// Facts come in by `handle_*` with the time. Each read ends exactly once, in [`OriginReads::poll_end`].
#[derive(Debug)]
pub(crate) struct OriginReads<M> {
    queue: Dispatch,
    /// The ticket of an attempt at its tier.
    ticket: fn(u64) -> Ticket,
    reads: FxHashMap<u64, ReadState<M>>,
    attempts: FxHashMap<u64, Attempt>,
    ended: VecDeque<OriginEnd<M>>,
}

impl<M: ReadMemory> OriginReads<M> {
    /// `ticket`: the ticket of an attempt, which differs from the tickets of all other operations of the origin.
    pub(crate) fn new(queue: Dispatch, ticket: fn(u64) -> Ticket) -> Self {
        Self {
            queue,
            ticket,
            reads: FxHashMap::default(),
            attempts: FxHashMap::default(),
            ended: VecDeque::new(),
        }
    }

    /// The fetch queue, for its getters.
    pub(crate) const fn queue(&self) -> &Dispatch {
        &self.queue
    }

    /// The state of a read; `None` after its end.
    pub(crate) fn status(&self, number: u64) -> Option<ReadStatus<'_>> {
        self.reads.get(&number).map(|read| ReadStatus {
            is_in_flight: read.active > 0,
            has_failed: read.has_failed,
            message: read.message.as_deref(),
        })
    }

    /// Add a read.
    ///
    /// # Panics
    /// If a read with this number has not ended.
    pub(crate) fn handle_request(&mut self, read: OriginRead<M>, now: Nanos) {
        let OriginRead { origin, key, request, memory } = read;
        let Request { ticket: number, start, len, .. } = request;
        let state = ReadState {
            origin,
            key,
            start,
            len,
            memory,
            active: 0,
            has_failed: false,
            is_direct: false,
            pending_end: None,
            message: None,
        };
        let before = self.reads.insert(number, state);
        assert!(before.is_none(), "read {number} has not ended");
        self.queue.handle_request(request, now);
    }

    /// Set the rate of the consumer; see [`Dispatch::handle_consumer_rate`].
    pub(crate) const fn handle_consumer_rate(&mut self, rate: Option<ConsumerRate>) {
        self.queue.handle_consumer_rate(rate);
    }

    /// Prioritize a read, for which the consumer waits. A read that has ended is ignored.
    pub(crate) fn handle_urgent(&mut self, number: u64, now: Nanos) {
        self.queue.handle_urgent(number, now);
    }

    /// A batch wants a read that only filled a cache until now; see [`Dispatch::handle_wanted`].
    pub(crate) fn handle_wanted(&mut self, number: u64, turn: u64, deadline: Nanos) {
        self.queue.handle_wanted(number, turn, deadline);
    }

    /// Withdraw a read. An attempt for it alone is cancelled by the next [`OriginReads::start_attempts`], and if it
    /// writes to the memory of the read, the read ends with the attempt. A read that has ended is ignored.
    pub(crate) fn handle_withdraw(&mut self, number: u64, now: Nanos) {
        self.queue.handle_withdraw(number, now);
        let Some(read) = self.reads.get_mut(&number) else { return };
        if read.is_direct {
            read.pending_end = Some(PendingEnd::Withdrawn);
        } else {
            self.end(number, OriginResult::Withdrawn);
        }
    }

    /// Execute the actions of the queue: submit attempts, cancel others, and end reads that have failed. Call it after
    /// each turn of the caller, and at [`Dispatch::poll_wakeup`].
    pub(crate) fn start_attempts(&mut self, now: Nanos) {
        let mut submissions = Submissions::default();
        while let Some(action) = self.queue.poll_action(now) {
            match action {
                Action::Start { attempt, start, len, parts, tries, hedge, .. } => {
                    let span = AttemptStart { id: attempt, start, len, parts, tries, is_hedge: hedge };
                    self.start_attempt(span, now, &mut submissions);
                }
                Action::Cancel { attempt } => {
                    // A tier can cancel only submitted operations.
                    submissions.submit();
                    if let Some(Attempt { origin, .. }) = self.attempts.get(&attempt.0) {
                        origin.cancel((self.ticket)(attempt.0));
                    }
                }
                Action::Fail { ticket, outcome, tries, elapsed } => {
                    self.fail(ticket, outcome, tries, elapsed);
                }
            }
        }
        submissions.submit();
    }

    /// Return the next read that has ended; call until it returns `None`.
    pub(crate) fn poll_end(&mut self) -> Option<OriginEnd<M>> {
        self.ended.pop_front()
    }

    fn start_attempt(&mut self, attempt: AttemptStart, now: Nanos, submissions: &mut Submissions) {
        let AttemptStart { id, start, len, mut parts, tries, is_hedge } = attempt;
        let first = self.read(parts[0].ticket);
        let (origin, key, offset) = (Arc::clone(&first.origin), first.key, start - first.start);
        parts.retain(|part| self.begin_part(part.ticket, now));
        let Some(part) = parts.first() else {
            // No read of the attempt has memory. It ends before it is submitted.
            let end = End {
                outcome: ReadOutcome::Cancelled,
                bytes: Bytes::ZERO,
                queued: Nanos::ZERO,
                service: Nanos::ZERO,
            };
            self.queue.handle_end(id, end, now);
            return;
        };
        let is_only = parts.len() == 1;
        let read = self.read(part.ticket);
        let (dest, scratch) = if is_only && read.active == 1 && read.len == len {
            read.is_direct = true;
            // SAFETY: no other attempt for this read is in flight, and none writes to its memory while `is_direct` is
            // set. The caller gets the memory back after the end of the attempt.
            (unsafe { read.memory.dest() }, None)
        } else {
            let len = usize::try_from(len).expect("a span fits the address space");
            let (dest, scratch) = Dest::from_vec(vec![0; len]);
            (dest, Some(scratch))
        };
        submissions.add(&origin, Op::Read { ticket: (self.ticket)(id.0), key, offset, dest });
        self.attempts.insert(id.0, Attempt { origin, parts, scratch, tries, is_hedge });
    }

    /// Count an attempt for a read; `false`, and the read ends, if it has no memory.
    fn begin_part(&mut self, number: u64, now: Nanos) -> bool {
        let read = self.read(number);
        // The memory that a direct attempt writes to is mapped.
        if !read.is_direct
            && let Err(error) = read.memory.ensure_mapped()
        {
            self.queue.handle_withdraw(number, now);
            self.end(number, OriginResult::NoMemory(error));
            return false;
        }
        read.active += 1;
        true
    }

    /// Handle the end of an attempt by its number, the argument of `ticket`. Return what the ledger needs; `None` if
    /// all of its reads have ended before, or were withdrawn. An unknown attempt is ignored.
    pub(crate) fn handle_done(&mut self, id: u64, done: &Done, now: Nanos) -> Option<AttemptSummary> {
        let attempt = self.attempts.remove(&id)?;
        let summary = self.note_end(&attempt, done);
        let end =
            End { outcome: done.outcome, bytes: done.bytes, queued: done.queued, service: done.service };
        let completed = self.queue.handle_end(AttemptId(id), end, now);
        match attempt.scratch {
            None => self.end_direct(attempt.parts[0].ticket, !completed.is_empty()),
            Some(_) if completed.is_empty() => {}
            Some(scratch) => {
                let bytes =
                    scratch.into_bytes().expect("a tier drops a destination before it reports the end");
                // Both are by position in the span, and there may be thousands.
                let mut completed = completed.into_iter().peekable();
                for part in &attempt.parts {
                    if completed.next_if_eq(&part.ticket).is_some() {
                        self.complete_part(part, &bytes);
                    }
                }
            }
        }
        summary
    }

    /// Update the reads of an ended attempt.
    fn note_end(&mut self, attempt: &Attempt, done: &Done) -> Option<AttemptSummary> {
        let mut first = None;
        for part in &attempt.parts {
            let Some(read) = self.reads.get_mut(&part.ticket) else { continue };
            read.active -= 1;
            if matches!(read.pending_end, Some(PendingEnd::Withdrawn)) {
                continue;
            }
            // A cancelled attempt, such as one that lost against its hedge, has no message of its own.
            if !matches!(done.outcome, ReadOutcome::Ok | ReadOutcome::Cancelled) {
                read.has_failed = true;
                read.message.clone_from(&done.detail.message);
            }
            first.get_or_insert(part.ticket);
        }
        first.map(|first| AttemptSummary {
            first,
            samples: u32::try_from(attempt.parts.len()).unwrap_or(u32::MAX),
            attempt: attempt.tries + u32::from(attempt.is_hedge),
        })
    }

    /// Handle the end of the attempt that wrote to the memory of a read.
    fn end_direct(&mut self, number: u64, is_complete: bool) {
        let read = self.read(number);
        read.is_direct = false;
        match read.pending_end.take() {
            Some(PendingEnd::Complete(bytes)) => {
                fill(&read.memory, &bytes);
                self.end(number, OriginResult::Complete);
            }
            Some(PendingEnd::Failed { outcome, tries, elapsed }) => {
                self.fail(number, outcome, tries, elapsed);
            }
            Some(PendingEnd::Withdrawn) => self.end(number, OriginResult::Withdrawn),
            None if is_complete => self.end(number, OriginResult::Complete),
            None => {}
        }
    }

    /// Copy a complete part of an attempt in scratch memory to the memory of its read.
    fn complete_part(&mut self, part: &Part, bytes: &[u8]) {
        let inside = |number: u64| usize::try_from(number).expect("inside the span");
        let start = inside(part.offset_in_span);
        let bytes = &bytes[start..start + inside(part.len)];
        let read = self.read(part.ticket);
        if read.is_direct {
            read.pending_end = Some(PendingEnd::Complete(bytes.to_vec()));
            return;
        }
        fill(&read.memory, bytes);
        self.end(part.ticket, OriginResult::Complete);
    }

    fn fail(&mut self, number: u64, outcome: ReadOutcome, tries: u32, elapsed: Nanos) {
        let read = self.read(number);
        if read.is_direct {
            read.pending_end = Some(PendingEnd::Failed { outcome, tries, elapsed });
            return;
        }
        let message = read.message.take();
        self.end(number, OriginResult::Failed(ReadFailure { outcome, tries, elapsed, message }));
    }

    /// A read that the queue knows, or that a direct attempt retains.
    fn read(&mut self, number: u64) -> &mut ReadState<M> {
        self.reads.get_mut(&number).expect("the read has not ended")
    }

    fn end(&mut self, number: u64, result: OriginResult) {
        if let Some(ReadState { memory, .. }) = self.reads.remove(&number) {
            self.ended.push_back(OriginEnd { number, memory, result });
        }
    }
}

/// Copy `bytes` to the memory of a read.
fn fill(memory: &impl ReadMemory, bytes: &[u8]) {
    // SAFETY: the read has not ended, and no attempt writes to its memory.
    unsafe { memory.dest() }.as_mut_slice().copy_from_slice(bytes);
}
