// SPDX-License-Identifier: Apache-2.0
//! The fetch queue: the state machine of requests, spans and attempts.
//!
//! Events come in by `handle_*`, with the time; actions come out of [`Dispatch::poll_action`]. A driver calls it
//! until `None` after every event and at [`Dispatch::poll_wakeup`].
//!
//! **Order.** Inside a class the smallest turn goes first, and among equals the earliest deadline. A class has
//! slack while all its waiting requests could be read before the deadline of its first. Classes with slack share
//! the source by deadline, and nothing below the first class without slack starts. So a cache fill never delays a
//! batch that is nearly late, and a validation loader is not starved by a fill that has hours. When answers
//! queue, requests with slack also yield the source to other ranks (see `fair_share`).
//!
//! **Bounds.** Each request ends exactly once: in the result of `handle_end`, as `Action::Fail`, or by
//! `handle_withdraw`.
//! Attempts in flight, including cancelled ones, never exceed the limit that held when they started. Memory is a
//! few hundred bytes per request that has not ended; each operation takes O(log n) of these.

mod failures;
mod fair_share;
mod first_batch;
mod hedge;
mod metrics;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use foresee_units::{Bytes, Extent, Nanos, ReadOutcome};

use self::first_batch::FirstBatch;
use crate::config::{DispatchConfig, DispatchStats};
use crate::consumer_rate::ConsumerRate;
use crate::latency::Latency;
use crate::limit::Limiter;
use crate::queue::Queue;
use crate::rate_meter::RateMeter;
use crate::request::{Action, AttemptId, Class, End, Part, Request};
use crate::retry;
use crate::state::{Attempt, Entry, RequestState, Span};

/// The fetch queue of one source.
#[derive(Clone, Debug)]
pub struct Dispatch {
    config: DispatchConfig,
    limiter: Limiter,
    latency: Latency,
    meter: RateMeter,
    entries: BTreeMap<u64, Entry>,
    queue: Queue,
    consumer_rate: Option<ConsumerRate>,
    /// Spans that are being read, by the number of the first attempt.
    spans: BTreeMap<u64, Span>,
    attempts: BTreeMap<AttemptId, Attempt>,
    /// When each span is next considered for a hedge.
    hedge_times: BTreeSet<(Nanos, u64)>,
    cancels: VecDeque<AttemptId>,
    failures: VecDeque<u64>,
    next_attempt: u64,
    first_batch: FirstBatch,
    /// Counters; the other metrics are set by `stats`.
    counters: DispatchStats,
}

/// The first request of its class.
#[derive(Clone, Copy, Debug)]
struct First {
    class: Class,
    deadline: Nanos,
    ticket: u64,
}

impl Dispatch {
    /// Create an empty queue.
    pub fn new(config: DispatchConfig) -> Self {
        Self {
            limiter: Limiter::new(config.limit, config.shared),
            latency: Latency::new(),
            meter: RateMeter::default(),
            entries: BTreeMap::new(),
            queue: Queue::new(config.coalesce.is_some()),
            consumer_rate: None,
            spans: BTreeMap::new(),
            attempts: BTreeMap::new(),
            hedge_times: BTreeSet::new(),
            cancels: VecDeque::new(),
            failures: VecDeque::new(),
            next_attempt: 0,
            first_batch: FirstBatch::Waiting,
            counters: DispatchStats::default(),
            config,
        }
    }

    /// Add a request for a range.
    ///
    /// # Panics
    /// If a request with this ticket has not ended, because their bytes could not be told apart.
    pub fn handle_request(&mut self, request: Request, now: Nanos) {
        let entry = Entry {
            request,
            arrived: now,
            tries: 0,
            failures_in_a_row: 0,
            faults: 0,
            is_single: false,
            state: RequestState::Ready,
        };
        let before = self.entries.insert(request.ticket, entry);
        assert!(before.is_none(), "ticket {} is in use", request.ticket);
        self.queue.insert(&request, false);
    }

    /// Set the rate of the consumer of the staged batches, after each turn and when its step time changes; `None` if
    /// it is unknown.
    pub const fn handle_consumer_rate(&mut self, rate: Option<ConsumerRate>) {
        self.consumer_rate = rate;
    }

    /// Prioritize `ticket`, for which a consumer waits: its slack is zero, and inside its turn only tickets go before it
    /// for which a consumer waits longer. So consumers that wait for one slow source take turns, whatever deadlines they
    /// expected before. A ticket that has ended is ignored.
    pub fn handle_urgent(&mut self, ticket: u64, now: Nanos) {
        let Some(entry) = self.entries.get_mut(&ticket) else { return };
        let mut request = entry.request;
        if request.class != Class::Stalling {
            (request.class, request.deadline) = (Class::Stalling, now);
        }
        match entry.state {
            RequestState::Ready => {
                self.queue.remove(&entry.request);
                self.queue.insert(&request, entry.is_single);
            }
            RequestState::Pausing { until, failed } => {
                let pause = retry::pause(&self.config.retry, ticket, entry.failures_in_a_row, Nanos::ZERO);
                let sooner = until.min(failed.saturating_add(pause));
                self.queue.resume(ticket, until);
                self.queue.pause(ticket, sooner);
                entry.state = RequestState::Pausing { until: sooner, failed };
            }
            RequestState::InFlight { span } => {
                if let Some(span) = self.spans.get_mut(&span) {
                    span.deadline = Nanos::ZERO;
                }
                self.schedule_hedge(span, now);
            }
            RequestState::Failed { .. } => {}
        }
        if let Some(entry) = self.entries.get_mut(&ticket) {
            entry.request = request;
        }
    }

    /// A batch wants `ticket`, which only filled a cache until now, in its `turn` and by its `deadline`: see [`Request`].
    /// Other tickets, and one that has ended, are ignored.
    pub fn handle_wanted(&mut self, ticket: u64, turn: u64, deadline: Nanos) {
        let Some(entry) = self.entries.get_mut(&ticket) else { return };
        if entry.request.class != Class::Fill {
            return;
        }
        let request = Request { class: Class::Staging, turn, deadline, ..entry.request };
        if matches!(entry.state, RequestState::Ready) {
            self.queue.remove(&entry.request);
            self.queue.insert(&request, entry.is_single);
        }
        entry.request = request;
    }

    /// End `ticket`, which is no longer wanted. A read for it alone is cancelled. A ticket that has ended is
    /// ignored.
    pub fn handle_withdraw(&mut self, ticket: u64, _now: Nanos) {
        let Some(entry) = self.entries.remove(&ticket) else { return };
        match entry.state {
            RequestState::Ready => self.queue.remove(&entry.request),
            RequestState::Pausing { until, .. } => self.queue.resume(ticket, until),
            RequestState::Failed { .. } => {}
            RequestState::InFlight { span: id } => {
                let Some(span) = self.spans.get_mut(&id) else { return };
                span.parts.retain(|part| part.ticket != ticket);
                if span.parts.is_empty() {
                    self.close_span(id);
                }
            }
        }
    }

    /// Handle the end of an attempt. Return the tickets that have their bytes now, by position in the span: none for a
    /// failed attempt, a lost hedge, and an attempt that is no longer wanted. An unknown attempt is ignored.
    pub fn handle_end(&mut self, id: AttemptId, end: End, now: Nanos) -> Vec<u64> {
        let Some(attempt) = self.attempts.remove(&id) else { return Vec::new() };
        self.counters.moved += end.bytes;
        if end.outcome != ReadOutcome::Cancelled {
            self.first_batch.handle_end(end.outcome == ReadOutcome::Ok, now);
        }
        self.update_statistics(&attempt, &end, now);
        let Some(id) = attempt.span else { return Vec::new() };
        let Some(span) = self.spans.get_mut(&id) else { return Vec::new() };
        if attempt.is_hedge {
            span.hedge = None;
        } else {
            span.first = None;
        }
        let has_other = span.attempts().next().is_some();
        match end.outcome {
            ReadOutcome::Ok => return self.complete_span(id, attempt.is_hedge),
            ReadOutcome::Absent
            | ReadOutcome::Corrupt
            | ReadOutcome::Changed
            | ReadOutcome::Denied
            | ReadOutcome::Full
            | ReadOutcome::Failed => self.fail_span(id, end.outcome, now),
            ReadOutcome::Throttled { .. } | ReadOutcome::Retryable | ReadOutcome::Cancelled if has_other => {}
            ReadOutcome::Throttled { retry_after } => {
                self.retry_span(id, end.outcome, retry_after.unwrap_or(Nanos::ZERO), now);
            }
            ReadOutcome::Retryable | ReadOutcome::Cancelled => {
                self.retry_span(id, end.outcome, Nanos::ZERO, now);
            }
        }
        Vec::new()
    }

    /// Return the next action; call until it returns `None`.
    pub fn poll_action(&mut self, now: Nanos) -> Option<Action> {
        if let Some(action) = self.poll_cancel() {
            return Some(action);
        }
        while let Some(ticket) = self.failures.pop_front() {
            if let Some(RequestState::Failed { outcome, elapsed }) =
                self.entries.get(&ticket).map(|entry| entry.state)
            {
                let tries = self.entries.remove(&ticket).map_or(0, |entry| entry.tries);
                return Some(Action::Fail { ticket, outcome, tries, elapsed });
            }
        }
        while let Some(ticket) = self.queue.pop_resumable(now) {
            self.make_ready(ticket);
        }
        self.limiter.handle_time(now);
        self.update_first_batch(now);
        if now < self.limiter.paused_until() {
            return None;
        }
        if self.is_full() {
            if self.queue.heads().next().is_some() {
                self.limiter.note_full();
            }
            return self.poll_replacement(now);
        }
        let is_rate_limited = now < self.limiter.starts().held_until();
        if !is_rate_limited && let Some(action) = self.poll_hedge(now) {
            return Some(action);
        }
        let Some(ticket) = self.choose(now) else {
            self.limiter.note_idle(self.in_flight(), now);
            return None;
        };
        if is_rate_limited {
            self.limiter.note_rate_limited(now);
            return None;
        }
        self.limiter.note_start(now);
        self.begin_first_batch(ticket, now);
        Some(self.start(ticket, now))
    }

    /// The next time at which [`Self::poll_action`] may return an action without a further event, once it has
    /// returned `None`: the end of a pause, or a hedge. `None`: only an event can change anything.
    pub fn poll_wakeup(&self) -> Option<Nanos> {
        let paused = self.limiter.paused_until();
        let hedge_at = self.hedge_times.first();
        if self.is_full() {
            let replacement = hedge_at.map(|(at, id)| {
                let stalled = self.spans.get(id).and_then(|span| self.stalled_at(span)).unwrap_or(*at);
                stalled.max(*at)
            });
            return [replacement, self.limiter.probes_until()]
                .into_iter()
                .flatten()
                .min()
                .map(|at| at.max(paused));
        }
        let hedge = hedge_at.map(|(at, _)| *at);
        let may_start = |first: First| self.yields_until(&first).max(self.held_until(&first));
        let ready = self.firsts().map(may_start).filter(|&at| at < Nanos::MAX).min();
        let held = self.limiter.starts().held_until();
        let started = [ready, hedge].into_iter().flatten().min().map(|at| at.max(held));
        let resumed = self.queue.next_resume();
        [started, resumed].into_iter().flatten().min().map(|at| at.max(paused))
    }

    fn is_full(&self) -> bool {
        self.in_flight() >= self.limiter.limit()
    }

    /// Update the statistics of the source from the end of any attempt.
    fn update_statistics(&mut self, attempt: &Attempt, end: &End, now: Nanos) {
        match end.outcome {
            ReadOutcome::Ok => {
                self.latency.record(attempt.len, end.queued.saturating_add(end.service));
                self.limiter.handle_success(attempt.began, attempt.len, now);
                self.meter.add(Bytes::new(attempt.len), now);
            }
            ReadOutcome::Absent
            | ReadOutcome::Corrupt
            | ReadOutcome::Changed
            | ReadOutcome::Denied
            | ReadOutcome::Full
            | ReadOutcome::Failed => self.limiter.handle_answer(now),
            ReadOutcome::Throttled { retry_after } => {
                self.counters.throttles += 1;
                let bounded = retry_after.map(|wait| wait.min(self.config.retry.patience));
                self.limiter.handle_throttled(attempt.began, bounded, now);
            }
            ReadOutcome::Retryable => self.limiter.handle_fault(attempt.began, now),
            ReadOutcome::Cancelled => {}
        }
    }

    /// Complete the span: its tickets end, and the other attempt is cancelled.
    fn complete_span(&mut self, id: u64, by_hedge: bool) -> Vec<u64> {
        self.counters.hedge_wins += u64::from(by_hedge);
        let parts = self.close_span(id);
        for part in &parts {
            self.entries.remove(&part.ticket);
        }
        parts.into_iter().map(|part| part.ticket).collect()
    }

    fn make_ready(&mut self, ticket: u64) {
        if let Some(entry) = self.entries.get_mut(&ticket) {
            entry.state = RequestState::Ready;
            self.queue.insert(&entry.request, entry.is_single);
        }
    }

    /// Remove a span, and cancel its attempts.
    fn close_span(&mut self, id: u64) -> Vec<Part> {
        let Some(span) = self.spans.remove(&id) else { return Vec::new() };
        if let Some(at) = span.hedge_at {
            self.hedge_times.remove(&(at, id));
        }
        for attempt in span.attempts() {
            if let Some(state) = self.attempts.get_mut(&attempt) {
                state.span = None;
                self.cancels.push_back(attempt);
            }
        }
        span.parts
    }

    /// The first request of each class.
    fn firsts(&self) -> impl Iterator<Item = First> {
        self.queue.heads().map(|(class, ticket)| {
            let deadline = deadline_of(&self.entries[&ticket].request, self.consumer_rate);
            First { class, deadline, ticket }
        })
    }

    /// The next ticket to start, by the order in the file's header.
    fn choose(&self, now: Nanos) -> Option<u64> {
        let mut earliest: Option<First> = None;
        for first in self.firsts().filter(|first| self.yields_until(first).max(self.held_until(first)) <= now)
        {
            let time = self.time_for(first.class, first.ticket);
            if earliest.is_none_or(|before| first.deadline < before.deadline) {
                earliest = Some(first);
            }
            if first.class == Class::Stalling || first.deadline <= now.saturating_add(time) {
                // Classes above this one have slack: it yields to the one with the earlier deadline.
                break;
            }
        }
        earliest.map(|first| first.ticket)
    }

    /// Time to read all waiting requests of `class`, if they are like its head. It is infinite without measurements,
    /// so that classes are strict at the start.
    fn time_for(&self, class: Class, head: u64) -> Nanos {
        let usual = self.entries.get(&head).and_then(|entry| self.latency.p95(entry.request.len));
        let rounds = self.queue.ready(class) / u64::from(self.limiter.limit()) + 1;
        let usual = usual.map_or(Nanos::MAX, |usual| Nanos::new(usual.get().saturating_mul(rounds)));
        usual.max(self.limiter.starts().time_for(self.queue.ready(class)))
    }

    /// Start to read `seed` and the ranges joined with it.
    fn start(&mut self, seed: u64, now: Nanos) -> Action {
        let (extent, tickets) = self.extent(seed);
        let (object, id) = (self.entries[&seed].request.object, self.next_attempt);
        let (mut parts, mut tries) = (Vec::with_capacity(tickets.len()), 0);
        let (mut deadline, mut class) = (Nanos::MAX, Class::Other);
        for ticket in tickets {
            let Some(entry) = self.entries.get_mut(&ticket) else { continue };
            self.queue.remove(&entry.request);
            entry.tries += 1;
            entry.state = RequestState::InFlight { span: id };
            tries = tries.max(entry.tries);
            class = class.min(entry.request.class);
            deadline = deadline.min(deadline_of(&entry.request, self.consumer_rate));
            let offset_in_span = entry.request.start - extent.start;
            parts.push(Part { ticket, offset_in_span, len: entry.request.len });
        }
        // The seed was first, followed by its neighbours before and behind it.
        parts.sort_unstable_by_key(|part| (part.offset_in_span, part.ticket));
        if class == Class::Stalling {
            deadline = Nanos::ZERO;
        }
        self.counters.over_read += Bytes::new(extent.len() - extent.wanted);
        let attempt = self.launch(id, extent.len(), false, now);
        let (start, len) = (extent.start, extent.len());
        let span = Span {
            object,
            start,
            len,
            parts: parts.clone(),
            tries,
            began: now,
            deadline,
            first: Some(attempt),
            hedge: None,
            hedge_at: None,
        };
        self.spans.insert(id, span);
        if class <= Class::Staging {
            self.schedule_hedge(id, now);
        }
        Action::Start { attempt, object, start, len, parts, tries, hedge: false }
    }

    fn extent(&self, seed: u64) -> (Extent, Vec<u64>) {
        let request = &self.entries[&seed].request;
        match &self.config.coalesce {
            Some(config) => self.queue.grow(request, config, |ticket| &self.entries[&ticket].request),
            None => (Extent::new(request.start, request.end()), vec![seed]),
        }
    }

    fn launch(&mut self, span: u64, len: u64, is_hedge: bool, now: Nanos) -> AttemptId {
        let attempt = AttemptId(self.next_attempt);
        self.next_attempt += 1;
        self.attempts.insert(attempt, Attempt { span: Some(span), began: now, len, is_hedge });
        attempt
    }

    fn poll_cancel(&mut self) -> Option<Action> {
        while let Some(attempt) = self.cancels.pop_front() {
            if self.attempts.contains_key(&attempt) {
                return Some(Action::Cancel { attempt });
            }
        }
        None
    }
}

/// The deadline of a request, by current knowledge.
fn deadline_of(request: &Request, rate: Option<ConsumerRate>) -> Nanos {
    match rate {
        Some(rate) if request.class <= Class::Staging => rate.wanted(request.turn),
        _ => request.deadline,
    }
}
