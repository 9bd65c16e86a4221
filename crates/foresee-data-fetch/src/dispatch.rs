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
//! queue, requests with slack also yield the source to other ranks (see `ease`).
//!
//! **Bounds.** Each request ends exactly once: in `Ended::won`, as `Action::Fail`, or by `handle_withdraw`.
//! Attempts in flight, including cancelled ones, never exceed the limit that held when they started. Memory is a
//! few hundred bytes per request that has not ended; each operation takes O(log n) of these.

mod ease;
mod hedge;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use foresee_units::{Bytes, Nanos, ReadOutcome};

use crate::coalesce::Extent;
use crate::config::{DispatchConfig, DispatchStats};
use crate::known::{Counts, Entry, Flight, Span, State};
use crate::latency::Latency;
use crate::limit::Limiter;
use crate::meter::Meter;
use crate::pace::Pace;
use crate::queue::Queue;
use crate::request::{Action, AttemptId, Class, End, Ended, Part, Request};
use crate::retry;

/// The fetch queue of one source.
#[derive(Clone, Debug)]
pub struct Dispatch {
    config: DispatchConfig,
    limiter: Limiter,
    latency: Latency,
    meter: Meter,
    entries: BTreeMap<u64, Entry>,
    queue: Queue,
    pace: Option<Pace>,
    /// Spans that are being read, by the number of the first attempt.
    spans: BTreeMap<u64, Span>,
    flights: BTreeMap<AttemptId, Flight>,
    /// When each span is next considered for a hedge.
    alarms: BTreeSet<(Nanos, u64)>,
    cancels: VecDeque<AttemptId>,
    failures: VecDeque<u64>,
    next_attempt: u64,
    counts: Counts,
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
            meter: Meter::default(),
            entries: BTreeMap::new(),
            queue: Queue::new(config.coalesce.is_some()),
            pace: None,
            spans: BTreeMap::new(),
            flights: BTreeMap::new(),
            alarms: BTreeSet::new(),
            cancels: VecDeque::new(),
            failures: VecDeque::new(),
            next_attempt: 0,
            counts: Counts::default(),
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
            setbacks: 0,
            faults: 0,
            alone: false,
            state: State::Ready,
        };
        let before = self.entries.insert(request.ticket, entry);
        assert!(before.is_none(), "ticket {} is in use", request.ticket);
        self.queue.insert(&request, false);
    }

    /// Set the progress of the consumer of the staged batches, after each turn and when its step time changes;
    /// `None` if it is unknown.
    pub const fn handle_pace(&mut self, pace: Option<Pace>) {
        self.pace = pace;
    }

    /// The consumer waits for `ticket`: nothing goes before it, and its slack is zero. A ticket that has ended is
    /// ignored.
    pub fn handle_urgent(&mut self, ticket: u64, now: Nanos) {
        let Some(entry) = self.entries.get_mut(&ticket) else { return };
        match entry.state {
            State::Ready => {
                self.queue.remove(&entry.request);
                entry.request.class = Class::Stalling;
                self.queue.insert(&entry.request, entry.alone);
            }
            State::Pausing { until, failed } => {
                entry.request.class = Class::Stalling;
                let pause = retry::pause(&self.config.retry, ticket, entry.setbacks, Nanos::ZERO);
                let sooner = until.min(failed.saturating_add(pause));
                self.queue.resume(ticket, until);
                self.queue.pause(ticket, sooner);
                entry.state = State::Pausing { until: sooner, failed };
            }
            State::Flying { span } => {
                entry.request.class = Class::Stalling;
                if let Some(span) = self.spans.get_mut(&span) {
                    span.deadline = Nanos::ZERO;
                }
                self.arm(span, now);
            }
            State::Failed { .. } => {}
        }
    }

    /// End `ticket`, which is no longer wanted. A read for it alone is cancelled. A ticket that has ended is
    /// ignored.
    pub fn handle_withdraw(&mut self, ticket: u64, _now: Nanos) {
        let Some(entry) = self.entries.remove(&ticket) else { return };
        match entry.state {
            State::Ready => self.queue.remove(&entry.request),
            State::Pausing { until, .. } => self.queue.resume(ticket, until),
            State::Failed { .. } => {}
            State::Flying { span: id } => {
                let Some(span) = self.spans.get_mut(&id) else { return };
                span.parts.retain(|part| part.ticket != ticket);
                if span.parts.is_empty() {
                    self.close_span(id);
                }
            }
        }
    }

    /// Handle the end of an attempt. An unknown attempt is ignored.
    pub fn handle_end(&mut self, attempt: AttemptId, end: End, now: Nanos) -> Ended {
        let Some(flight) = self.flights.remove(&attempt) else { return Ended::default() };
        self.counts.moved += end.bytes;
        self.learn(&flight, &end, now);
        let Some(id) = flight.span else { return Ended::default() };
        let Some(span) = self.spans.get_mut(&id) else { return Ended::default() };
        if flight.hedge {
            span.hedge = None;
        } else {
            span.first = None;
        }
        let twin = span.attempts().next().is_some();
        match end.outcome {
            ReadOutcome::Ok => return self.win(id, flight.hedge),
            ReadOutcome::Absent
            | ReadOutcome::Corrupt
            | ReadOutcome::Changed
            | ReadOutcome::Denied
            | ReadOutcome::Full
            | ReadOutcome::Failed => self.give_up(id, end.outcome, now),
            ReadOutcome::Throttled { .. } | ReadOutcome::Retryable | ReadOutcome::Cancelled if twin => {}
            ReadOutcome::Throttled { retry_after } => {
                self.put_back(id, end.outcome, retry_after.unwrap_or(Nanos::ZERO), now);
            }
            ReadOutcome::Retryable | ReadOutcome::Cancelled => {
                self.put_back(id, end.outcome, Nanos::ZERO, now);
            }
        }
        Ended::default()
    }

    /// Return the next action; call until it returns `None`.
    pub fn poll_action(&mut self, now: Nanos) -> Option<Action> {
        if let Some(action) = self.poll_cancel() {
            return Some(action);
        }
        while let Some(ticket) = self.failures.pop_front() {
            if let Some(State::Failed { outcome, elapsed }) =
                self.entries.get(&ticket).map(|entry| entry.state)
            {
                let tries = self.entries.remove(&ticket).map_or(0, |entry| entry.tries);
                return Some(Action::Fail { ticket, outcome, tries, elapsed });
            }
        }
        while let Some(ticket) = self.queue.pop_rested(now) {
            self.make_ready(ticket);
        }
        self.limiter.look(now);
        if now < self.limiter.paused_until() {
            return None;
        }
        if self.is_full() {
            return self.poll_renewal(now);
        }
        if let Some(action) = self.poll_hedge(now) {
            return Some(action);
        }
        let Some(ticket) = self.choose(now) else {
            self.limiter.dry(now);
            return None;
        };
        self.limiter.wet(now);
        Some(self.start(ticket, now))
    }

    /// The next time at which [`Self::poll_action`] may return an action without a further event, once it has
    /// returned `None`: the end of a pause, or a hedge. `None`: only an event can change anything.
    pub fn poll_wakeup(&self) -> Option<Nanos> {
        let paused = self.limiter.paused_until();
        let alarm = self.alarms.first();
        if self.is_full() {
            let renewal = alarm.map(|(at, id)| {
                let stalled = self.spans.get(id).and_then(|span| self.stalled_at(span)).unwrap_or(*at);
                stalled.max(*at)
            });
            return [renewal, self.limiter.probes_until()]
                .into_iter()
                .flatten()
                .min()
                .map(|at| at.max(paused));
        }
        let hedge = alarm.map(|(at, _)| *at);
        let ready = self.firsts().map(|first| self.eased_until(&first)).min();
        let rested = self.queue.next_rested();
        [ready, rested, hedge].into_iter().flatten().min().map(|at| at.max(paused))
    }

    /// Whether requests are paused because the source throttled or failed.
    pub fn is_paused(&self, now: Nanos) -> bool {
        now < self.limiter.paused_until()
    }

    /// The current metrics.
    pub fn stats(&self) -> DispatchStats {
        DispatchStats {
            in_flight: self.in_flight(),
            limit: self.limiter.limit(),
            queued: self.queue.len(),
            retries: self.counts.retries,
            hedges: self.counts.hedges,
            hedge_wins: self.counts.hedge_wins,
            hedged_bytes: Bytes::new(self.counts.hedged_bytes),
            throttles: self.counts.throttles,
            moved: self.counts.moved,
            over_read: Bytes::new(self.counts.over_read),
            goodput: self.meter.rate(),
            latency: self.latency.rows(),
        }
    }

    /// Attempts that were started and have not ended, including cancelled ones.
    pub fn in_flight(&self) -> u32 {
        u32::try_from(self.flights.len()).unwrap_or(u32::MAX)
    }

    /// The current limit of concurrent attempts.
    pub const fn limit(&self) -> u32 {
        self.limiter.limit()
    }

    fn is_full(&self) -> bool {
        self.in_flight() >= self.limiter.limit()
    }

    /// Update the statistics of the source from the end of any attempt.
    fn learn(&mut self, flight: &Flight, end: &End, now: Nanos) {
        match end.outcome {
            ReadOutcome::Ok => {
                self.latency.record(flight.len, end.queued.saturating_add(end.service));
                self.limiter.success(flight.began, flight.len, now);
                self.meter.add(Bytes::new(flight.len), now);
            }
            ReadOutcome::Absent
            | ReadOutcome::Corrupt
            | ReadOutcome::Changed
            | ReadOutcome::Denied
            | ReadOutcome::Full
            | ReadOutcome::Failed => self.limiter.answered(),
            ReadOutcome::Throttled { retry_after } => {
                self.counts.throttles += 1;
                let bounded = retry_after.map(|wait| wait.min(self.config.retry.patience));
                self.limiter.refused(flight.began, bounded, now);
            }
            ReadOutcome::Retryable => self.limiter.fault(flight.began, now),
            ReadOutcome::Cancelled => {}
        }
    }

    /// Complete the span: its tickets end, and so does the losing attempt.
    fn win(&mut self, id: u64, by_hedge: bool) -> Ended {
        self.counts.hedge_wins += u64::from(by_hedge);
        let parts = self.close_span(id);
        for part in &parts {
            self.entries.remove(&part.ticket);
        }
        Ended { won: parts.into_iter().map(|part| part.ticket).collect() }
    }

    /// Handle a permanent fault. If one part may have caused it for all, each is tried once more by itself.
    fn give_up(&mut self, id: u64, outcome: ReadOutcome, now: Nanos) {
        let parts = self.close_span(id);
        let shared = parts.len() > 1 && !concerns_object(outcome);
        for part in parts {
            let Some(entry) = self.entries.get_mut(&part.ticket) else { continue };
            if shared {
                self.counts.retries += 1;
                entry.alone = true;
                self.make_ready(part.ticket);
            } else {
                Self::fail(entry, &mut self.failures, outcome, now);
            }
        }
    }

    /// Handle a transient fault or throttling: every ticket is retried after a pause, or fails.
    fn put_back(&mut self, id: u64, outcome: ReadOutcome, rest: Nanos, now: Nanos) {
        let parts = self.close_span(id);
        // One pause for all, so that parts of one read are retried together.
        let lead = parts.first().map_or(id, |part| part.ticket);
        for part in parts {
            let Some(entry) = self.entries.get_mut(&part.ticket) else { continue };
            entry.setbacks += 1;
            entry.faults += u32::from(!matches!(outcome, ReadOutcome::Throttled { .. }));
            let spent = entry.faults >= self.config.retry.max_tries.max(1);
            let slack = if entry.request.class == Class::Stalling {
                Nanos::ZERO
            } else {
                deadline_of(&entry.request, self.pace).saturating_sub(now)
            };
            let pause = retry::pause(&self.config.retry, lead, entry.setbacks, slack).max(rest);
            let until = now.saturating_add(pause);
            if spent || until > entry.arrived.saturating_add(self.config.retry.patience) {
                Self::fail(entry, &mut self.failures, outcome, now);
                continue;
            }
            self.counts.retries += 1;
            entry.state = State::Pausing { until, failed: now };
            self.queue.pause(part.ticket, until);
        }
    }

    fn fail(entry: &mut Entry, failures: &mut VecDeque<u64>, outcome: ReadOutcome, now: Nanos) {
        entry.state = State::Failed { outcome, elapsed: now.saturating_sub(entry.arrived) };
        failures.push_back(entry.request.ticket);
    }

    fn make_ready(&mut self, ticket: u64) {
        if let Some(entry) = self.entries.get_mut(&ticket) {
            entry.state = State::Ready;
            self.queue.insert(&entry.request, entry.alone);
        }
    }

    /// Remove a span, and cancel its attempts.
    fn close_span(&mut self, id: u64) -> Vec<Part> {
        let Some(span) = self.spans.remove(&id) else { return Vec::new() };
        if let Some(at) = span.alarm {
            self.alarms.remove(&(at, id));
        }
        for attempt in span.attempts() {
            if let Some(flight) = self.flights.get_mut(&attempt) {
                flight.span = None;
                self.cancels.push_back(attempt);
            }
        }
        span.parts
    }

    /// The first request of each class.
    fn firsts(&self) -> impl Iterator<Item = First> {
        self.queue.heads().map(|(class, ticket)| {
            let deadline = deadline_of(&self.entries[&ticket].request, self.pace);
            First { class, deadline, ticket }
        })
    }

    /// The next ticket to start, by the order in the file's header.
    fn choose(&self, now: Nanos) -> Option<u64> {
        let mut earliest: Option<First> = None;
        for first in self.firsts().filter(|first| self.eased_until(first) <= now) {
            let needs = self.needs(first.class, first.ticket);
            if earliest.is_none_or(|before| first.deadline < before.deadline) {
                earliest = Some(first);
            }
            if first.class == Class::Stalling || first.deadline <= now.saturating_add(needs) {
                // Classes above this one have slack: it yields to the one with the earlier deadline.
                break;
            }
        }
        earliest.map(|first| first.ticket)
    }

    /// Time to read all waiting requests of `class`, if they are like its head. Without measurements it is
    /// infinite, so that classes are strict at the start.
    fn needs(&self, class: Class, head: u64) -> Nanos {
        let usual = self.entries.get(&head).and_then(|entry| self.latency.p95(entry.request.len));
        let rounds = self.queue.ready(class) / u64::from(self.limiter.limit()) + 1;
        usual.map_or(Nanos::MAX, |usual| Nanos::new(usual.get().saturating_mul(rounds)))
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
            entry.state = State::Flying { span: id };
            tries = tries.max(entry.tries);
            class = class.min(entry.request.class);
            deadline = deadline.min(deadline_of(&entry.request, self.pace));
            let offset_in_span = entry.request.start - extent.start;
            parts.push(Part { ticket, offset_in_span, len: entry.request.len });
        }
        // The seed was first, followed by its neighbours before and behind it.
        parts.sort_unstable_by_key(|part| (part.offset_in_span, part.ticket));
        if class == Class::Stalling {
            deadline = Nanos::ZERO;
        }
        self.counts.over_read += extent.len() - extent.wanted;
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
            alarm: None,
        };
        self.spans.insert(id, span);
        if class <= Class::Staging {
            self.arm(id, now);
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

    fn launch(&mut self, span: u64, len: u64, hedge: bool, now: Nanos) -> AttemptId {
        let attempt = AttemptId(self.next_attempt);
        self.next_attempt += 1;
        self.flights.insert(attempt, Flight { span: Some(span), began: now, len, hedge });
        attempt
    }

    fn poll_cancel(&mut self) -> Option<Action> {
        while let Some(attempt) = self.cancels.pop_front() {
            if self.flights.contains_key(&attempt) {
                return Some(Action::Cancel { attempt });
            }
        }
        None
    }
}

/// The deadline of a request, by current knowledge.
fn deadline_of(request: &Request, pace: Option<Pace>) -> Nanos {
    match pace {
        Some(pace) if request.class <= Class::Staging => pace.wanted(request.turn),
        _ => request.deadline,
    }
}

/// Whether the outcome holds for the whole object, for any range of it.
const fn concerns_object(outcome: ReadOutcome) -> bool {
    matches!(outcome, ReadOutcome::Absent | ReadOutcome::Changed | ReadOutcome::Denied)
}
