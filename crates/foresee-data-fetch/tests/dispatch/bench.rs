// SPDX-License-Identifier: Apache-2.0
//! A fetch queue, a modelled source and a virtual clock: no test of this folder waits in real time.
//!
//! The file has the sources (cost and end of each attempt) and the driver loop of a real engine: drain actions,
//! go to the next event or wake-up, report it.

use std::collections::{BTreeMap, BTreeSet};

use foresee_data_fetch::{Action, AttemptId, Class, Dispatch, DispatchConfig, End, Request};
use foresee_units::{Bytes, Nanos, ReadOutcome};

/// The end of one attempt, unless it is cancelled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    /// Its time; `Nanos::MAX` for a stalled connection.
    pub(crate) at: Nanos,
    /// Its kind.
    pub(crate) outcome: ReadOutcome,
}

/// The source behind the queue.
pub(crate) trait Source {
    /// Begin an attempt for `len` bytes, the `number`-th of the run, from 0.
    fn begin(&mut self, number: u64, len: u64, now: Nanos) -> Answer;
}

impl<F: FnMut(u64, u64, Nanos) -> Answer> Source for F {
    fn begin(&mut self, number: u64, len: u64, now: Nanos) -> Answer {
        self(number, len, now)
    }
}

/// A source with limits on requests and bytes per second; excess requests queue.
#[derive(Clone, Debug)]
pub(crate) struct Capped {
    latency: u64,
    per_request: u64,
    bytes_per_second: u64,
    free_at: u64,
}

impl Capped {
    /// The limits, and the latency in addition.
    pub(crate) fn new(latency: Nanos, requests_per_second: u64, bytes_per_second: u64) -> Self {
        let per_request = 1_000_000_000 / requests_per_second;
        Self { latency: latency.get(), per_request, bytes_per_second, free_at: 0 }
    }

    /// When an attempt that begins now is complete.
    pub(crate) fn serve(&mut self, len: u64, now: Nanos) -> Nanos {
        let moving = len * 1_000_000_000 / self.bytes_per_second;
        self.free_at = self.free_at.max(now.get()) + self.per_request.max(moving);
        Nanos::new(self.free_at + self.latency)
    }

    /// Serve no request for a while.
    pub(crate) fn stand_still(&mut self, stop: Nanos, now: Nanos) {
        self.free_at = self.free_at.max(now.get()) + stop.get();
    }
}

impl Source for Capped {
    fn begin(&mut self, _number: u64, len: u64, now: Nanos) -> Answer {
        Answer { at: self.serve(len, now), outcome: ReadOutcome::Ok }
    }
}

/// The log of a run of many requests.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// When each ticket was won.
    pub(crate) won: BTreeMap<u64, Nanos>,
    /// Last outcome and tries of each ticket that failed.
    pub(crate) failed: BTreeMap<u64, (ReadOutcome, u32)>,
    /// `(time, limit)` at each change of the limit.
    pub(crate) limits: Vec<(Nanos, u32)>,
    /// Tickets in the order of their first start.
    pub(crate) started: Vec<u64>,
    /// Attempts begun, including hedges.
    pub(crate) attempts: u64,
}

/// The driver.
#[derive(Debug)]
pub(crate) struct Bench<S> {
    /// The queue under test.
    pub(crate) dispatch: Dispatch,
    /// The source behind it.
    pub(crate) source: S,
    /// The virtual clock.
    pub(crate) now: Nanos,
    /// The events so far.
    pub(crate) log: Log,
    attempts: BTreeMap<AttemptId, (Nanos, Answer, u64)>,
    events: BTreeSet<(Nanos, AttemptId)>,
    seen: BTreeSet<u64>,
}

impl<S: Source> Bench<S> {
    /// An idle source behind an empty queue, at time zero.
    pub(crate) fn new(config: DispatchConfig, source: S) -> Self {
        Self {
            dispatch: Dispatch::new(config),
            source,
            now: Nanos::ZERO,
            log: Log::default(),
            attempts: BTreeMap::new(),
            events: BTreeSet::new(),
            seen: BTreeSet::new(),
        }
    }

    /// Request an object of its own.
    pub(crate) fn request(&mut self, ticket: u64, len: u64, class: Class, deadline: Nanos) {
        let request =
            Request { ticket, object: ticket, start: 0, len, class, turn: 0, deadline, group: None };
        self.dispatch.handle_request(request, self.now);
    }

    /// Execute all actions that the queue returns now.
    pub(crate) fn drain(&mut self) {
        while let Some(action) = self.dispatch.poll_action(self.now) {
            match action {
                Action::Start { attempt, len, parts, hedge, .. } => {
                    let answer = self.source.begin(self.log.attempts, len, self.now);
                    self.log.attempts += 1;
                    assert!(self.attempts.insert(attempt, (self.now, answer, len)).is_none());
                    self.events.insert((answer.at, attempt));
                    let (in_flight, limit) = (self.dispatch.in_flight(), self.dispatch.limit());
                    assert!(in_flight <= limit, "{in_flight} in flight at a limit of {limit}");
                    for part in parts {
                        if self.seen.insert(part.ticket) {
                            self.log.started.push(part.ticket);
                        }
                        assert!(!hedge || !self.log.won.contains_key(&part.ticket));
                    }
                }
                Action::Cancel { attempt } => {
                    let (began, answer, _) = self.attempts[&attempt];
                    self.events.remove(&(answer.at, attempt));
                    let cancelled = Answer { at: self.now, outcome: ReadOutcome::Cancelled };
                    self.attempts.insert(attempt, (began, cancelled, 0));
                    self.events.insert((self.now, attempt));
                }
                Action::Fail { ticket, outcome, tries, .. } => {
                    assert!(self.log.failed.insert(ticket, (outcome, tries)).is_none());
                    assert!(!self.log.won.contains_key(&ticket));
                }
            }
        }
        let limit = self.dispatch.limit();
        if self.log.limits.last().is_none_or(|(_, before)| *before != limit) {
            self.log.limits.push((self.now, limit));
        }
    }

    /// Go to the next event and report it; false if there is none.
    pub(crate) fn step(&mut self) -> bool {
        self.drain();
        let Some(at) = self.next() else { return false };
        self.now = at;
        self.end_one();
        true
    }

    /// The time of the next event or wake-up, after all actions.
    pub(crate) fn next(&self) -> Option<Nanos> {
        let event = self.events.first().map(|(at, _)| *at).filter(|at| *at < Nanos::MAX);
        let wake = self.dispatch.poll_wakeup();
        assert!(wake.is_none_or(|wake| wake > self.now), "a wake-up in the past would spin");
        event.into_iter().chain(wake).min()
    }

    /// Report one end that is due now; false if there is none.
    pub(crate) fn end_one(&mut self) -> bool {
        let Some((at, attempt)) = self.events.first().copied().filter(|(at, _)| *at <= self.now) else {
            return false;
        };
        self.events.remove(&(at, attempt));
        self.end(attempt);
        true
    }

    fn end(&mut self, attempt: AttemptId) {
        let Some((began, answer, len)) = self.attempts.remove(&attempt) else { return };
        let bytes = if answer.outcome == ReadOutcome::Ok { len } else { 0 };
        let end = End {
            outcome: answer.outcome,
            bytes: Bytes::new(bytes),
            queued: Nanos::ZERO,
            service: self.now.saturating_sub(began),
        };
        for ticket in self.dispatch.handle_end(attempt, end, self.now) {
            assert!(self.log.won.insert(ticket, self.now).is_none(), "ticket {ticket} won twice");
            assert!(!self.log.failed.contains_key(&ticket));
        }
    }

    /// Run `total` requests of `len` bytes through a window of `window`, each due 10 s after its request.
    pub(crate) fn stream(&mut self, total: u64, window: u64, len: impl Fn(u64) -> u64) {
        let mut requested = 0;
        loop {
            let ended = (self.log.won.len() + self.log.failed.len()) as u64;
            while requested < total && requested - ended < window {
                let deadline = self.now + Nanos::from_secs(10);
                self.request(requested, len(requested), Class::Staging, deadline);
                requested += 1;
            }
            if ended == total {
                return;
            }
            let moved = self.step();
            let after = (self.log.won.len() + self.log.failed.len()) as u64;
            assert!(
                moved || after > ended,
                "{ended} of {total} requests ended, and nothing more will happen"
            );
        }
    }

    /// Tickets won per second between two times.
    pub(crate) fn rate(&self, from: Nanos, to: Nanos) -> f64 {
        let won = self.log.won.values().filter(|at| **at > from && **at <= to).count();
        f64::from(u32::try_from(won).unwrap_or(u32::MAX)) / (to - from).as_secs_f64()
    }

    /// The time at which the `count`-th ticket was won.
    pub(crate) fn moment(&self, count: usize) -> Nanos {
        let mut moments: Vec<Nanos> = self.log.won.values().copied().collect();
        moments.sort_unstable();
        moments[count - 1]
    }
}
