// SPDX-License-Identifier: Apache-2.0
//! The queue itself: the state machine of requests, spans and attempts.
//!
//! Facts come in by `handle_*`, with the time; actions come out of [`Dispatch::poll_action`]. A driver calls it until
//! `None` after every fact and at [`Dispatch::poll_wakeup`].
//!
//! **Order.** Inside a class the smallest turn goes first, and among equals the earliest deadline. A class has slack
//! while all its waiting requests could be read before the deadline of its first; classes with slack share the source by
//! deadline, and below the first class without slack nothing starts. So a cache fill never delays a batch
//! that is nearly late, and a validation loader is not starved by a fill that has hours. Where answers queue, requests with
//! slack also leave the source to other ranks (see `ease`).
//!
//! **Bounds.** Each request ends exactly once: in `Ended::won`, as `Action::Fail`, or by `handle_withdraw`.
//! Attempts in flight, cancelled ones included, never exceed the limit that held when they started. Memory
//! is a few hundred bytes per request that has not ended; each operation takes O(log n) of these.

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
    /// What is being read, by the first attempt's number.
    spans: BTreeMap<u64, Span>,
    flights: BTreeMap<AttemptId, Flight>,
    /// When each span is next considered for a hedge.
    alarms: BTreeSet<(Nanos, u64)>,
    cancels: VecDeque<AttemptId>,
    failures: VecDeque<u64>,
    next_attempt: u64,
    counts: Counts,
}

/// The first of its class.
#[derive(Clone, Copy, Debug)]
struct First {
    class: Class,
    deadline: Nanos,
    ticket: u64,
}

impl Dispatch {
    /// An empty queue.
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

    /// A range is wanted.
    ///
    /// # Panics
    /// If a request with this ticket has not ended: its bytes could not be told apart.
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

    /// How the consumer of what is being staged goes on: as he has taken a turn, as his steps change; `None` if that is not
    /// known any more.
    pub const fn handle_pace(&mut self, pace: Option<Pace>) {
        self.pace = pace;
    }

    /// The consumer stands and waits for `ticket`: nothing goes before it, and its slack is over.
    /// A ticket that has ended is ignored.
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

    /// `ticket` is no longer wanted: it ends here. A read that served it alone is cancelled.
    /// A ticket that has ended is ignored.
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

    /// An attempt has ended. An attempt that is not under way is ignored.
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

    /// What to do next; to be called until it answers `None`.
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

    /// The next moment at which [`Self::poll_action`] may have something though nothing was handled, once it
    /// has answered `None`: a pause is over or a hedge is due. `None`: only a fact can change anything.
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

    /// Whether nothing is asked for at the moment because the source refused or failed.
    pub fn is_paused(&self, now: Nanos) -> bool {
        now < self.limiter.paused_until()
    }

    /// The figures as they stand.
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

    /// Attempts started and not ended, cancelled ones included.
    pub fn in_flight(&self) -> u32 {
        u32::try_from(self.flights.len()).unwrap_or(u32::MAX)
    }

    /// How many attempts there may be at once, as of now.
    pub const fn limit(&self) -> u32 {
        self.limiter.limit()
    }

    fn is_full(&self) -> bool {
        self.in_flight() >= self.limiter.limit()
    }

    /// What an end says about the source, whoever wanted it.
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

    /// The span has arrived: its tickets end, and so does the attempt that lost.
    fn win(&mut self, id: u64, by_hedge: bool) -> Ended {
        self.counts.hedge_wins += u64::from(by_hedge);
        let parts = self.close_span(id);
        for part in &parts {
            self.entries.remove(&part.ticket);
        }
        Ended { won: parts.into_iter().map(|part| part.ticket).collect() }
    }

    /// A permanent fault. Where one part may have caused it for all, each is tried by itself, once more.
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

    /// A passing fault or a refusal: every ticket tries again after a pause, or has tried enough.
    fn put_back(&mut self, id: u64, outcome: ReadOutcome, rest: Nanos, now: Nanos) {
        let parts = self.close_span(id);
        // One pause for all, so that what was read together comes back together.
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

    /// Forgets a span; whatever still reads it is cancelled.
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

    /// Whoever comes first in each class.
    fn firsts(&self) -> impl Iterator<Item = First> {
        self.queue.heads().map(|(class, ticket)| {
            let deadline = deadline_of(&self.entries[&ticket].request, self.pace);
            First { class, deadline, ticket }
        })
    }

    /// The ticket to start next: see the head of this file.
    fn choose(&self, now: Nanos) -> Option<u64> {
        let mut earliest: Option<First> = None;
        for first in self.firsts().filter(|first| self.eased_until(first) <= now) {
            let needs = self.needs(first.class, first.ticket);
            if earliest.is_none_or(|before| first.deadline < before.deadline) {
                earliest = Some(first);
            }
            if first.class == Class::Stalling || first.deadline <= now.saturating_add(needs) {
                // Classes above this one have time to spare: it yields to whichever of them comes sooner.
                break;
            }
        }
        earliest.map(|first| first.ticket)
    }

    /// Time in which all that waits in `class` can be had, if what waits is like its head. Without figures
    /// this is all the time there is: classes count from the start.
    fn needs(&self, class: Class, head: u64) -> Nanos {
        let usual = self.entries.get(&head).and_then(|entry| self.latency.p95(entry.request.len));
        let rounds = self.queue.ready(class) / u64::from(self.limiter.limit()) + 1;
        usual.map_or(Nanos::MAX, |usual| Nanos::new(usual.get().saturating_mul(rounds)))
    }

    /// Begins to read `seed`, and what is joined with it.
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
        // The seed was first, and its neighbours before and behind it followed.
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

/// When a request is wanted, as far as is known now.
fn deadline_of(request: &Request, pace: Option<Pace>) -> Nanos {
    match pace {
        Some(pace) if request.class <= Class::Staging => pace.wanted(request.turn),
        _ => request.deadline,
    }
}

/// Whether it is true of the whole object, whatever range of it was asked for.
const fn concerns_object(outcome: ReadOutcome) -> bool {
    matches!(outcome, ReadOutcome::Absent | ReadOutcome::Changed | ReadOutcome::Denied)
}
