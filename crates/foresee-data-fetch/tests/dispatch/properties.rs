// SPDX-License-Identifier: Apache-2.0
//! Properties that hold for any sequence of requests, ends, withdrawals and waits.

use std::collections::{BTreeMap, BTreeSet};

use foresee_data_fetch::{
    Action, AttemptId, Class, CoalesceConfig, ConsumerRate, Dispatch, DispatchConfig, End, LimitConfig,
    Request,
};
use foresee_testkit::property;
use foresee_units::{Bytes, Nanos, ReadOutcome};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Event {
    Request { class: usize, object: u64, start: u64, len: u64, slack_ms: u64 },
    Urgent(usize),
    Withdraw(usize),
    End { which: usize, outcome: usize },
    Wait { ms: u64 },
    ConsumerRate { next: u64, slack_ms: u64, step_ms: u64 },
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..4usize, 0..3u64, 0..20u64, 0..5u64, 0..500u64).prop_map(|(class, object, start, len, slack_ms)| {
            Event::Request { class, object, start: start * 900, len: len * 400, slack_ms }
        }),
        1 => (0..50usize).prop_map(Event::Urgent),
        1 => (0..50usize).prop_map(Event::Withdraw),
        4 => (0..20usize, 0..12usize).prop_map(|(which, outcome)| Event::End { which, outcome }),
        2 => (0..400u64).prop_map(|ms| Event::Wait { ms }),
        1 => (0..3u64, 0..500u64, 0..500u64).prop_map(|(next, slack_ms, step_ms)| {
            Event::ConsumerRate { next, slack_ms, step_ms }
        }),
    ]
}

fn outcome(kind: usize) -> ReadOutcome {
    match kind {
        0 => ReadOutcome::Throttled { retry_after: None },
        1 => ReadOutcome::Throttled { retry_after: Some(Nanos::from_millis(700)) },
        2 | 3 => ReadOutcome::Retryable,
        4 => ReadOutcome::Absent,
        5 => ReadOutcome::Corrupt,
        6 => ReadOutcome::Cancelled,
        _ => ReadOutcome::Ok,
    }
}

/// The driver's own state, independent of the queue.
#[derive(Debug)]
struct Model {
    dispatch: Dispatch,
    now: Nanos,
    /// Live tickets and their tries.
    live: BTreeMap<u64, Request>,
    ended: BTreeSet<u64>,
    attempts: BTreeMap<AttemptId, (Vec<u64>, u64)>,
    cancelled: BTreeSet<AttemptId>,
    next: u64,
}

impl Model {
    fn new(config: DispatchConfig) -> Self {
        Self {
            dispatch: Dispatch::new(config),
            now: Nanos::ZERO,
            live: BTreeMap::new(),
            ended: BTreeSet::new(),
            attempts: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            next: 0,
        }
    }

    fn finish(&mut self, ticket: u64) {
        assert!(self.live.remove(&ticket).is_some(), "{ticket} ended twice, or after it was withdrawn");
        assert!(self.ended.insert(ticket));
    }

    fn drain(&mut self) {
        while let Some(action) = self.dispatch.poll_action(self.now) {
            match action {
                Action::Start { attempt, object, start, len, parts, tries, hedge } => {
                    assert!(!parts.is_empty() && tries >= 1);
                    for part in &parts {
                        let request = &self.live[&part.ticket];
                        assert_eq!((request.object, request.len), (object, part.len));
                        assert_eq!(start + part.offset_in_span, request.start);
                        assert!(part.offset_in_span + part.len <= len, "a part is inside its span");
                        let others = self.attempts.iter().filter(|(other, (tickets, _))| {
                            !self.cancelled.contains(other) && tickets.contains(&part.ticket)
                        });
                        assert_eq!(others.count(), usize::from(hedge), "one attempt, or a hedge");
                    }
                    let tickets = parts.iter().map(|part| part.ticket).collect();
                    assert!(self.attempts.insert(attempt, (tickets, len)).is_none());
                    assert!(self.dispatch.in_flight() <= self.dispatch.limit());
                }
                Action::Cancel { attempt } => {
                    assert!(self.attempts.contains_key(&attempt) && self.cancelled.insert(attempt));
                }
                Action::Fail { ticket, tries, .. } => {
                    assert!(tries >= 1);
                    self.finish(ticket);
                }
            }
        }
        assert_eq!(self.dispatch.in_flight() as usize, self.attempts.len());
        assert!(self.dispatch.poll_wakeup().is_none_or(|at| at > self.now), "a wake-up in the past spins");
    }

    fn end(&mut self, attempt: AttemptId, outcome: ReadOutcome) {
        let (tickets, len) = self.attempts.remove(&attempt).expect("it is in flight");
        let bytes = Bytes::new(if outcome == ReadOutcome::Ok { len } else { 0 });
        let service = Nanos::from_millis(20);
        let end = End { outcome, bytes, queued: Nanos::ZERO, service };
        let won = self.dispatch.handle_end(attempt, end, self.now);
        assert!(won.is_empty() || outcome == ReadOutcome::Ok && !self.cancelled.contains(&attempt));
        for ticket in won {
            assert!(tickets.contains(&ticket));
            self.finish(ticket);
        }
    }

    fn apply(&mut self, event: &Event) {
        match *event {
            Event::Request { class, object, start, len, slack_ms } => {
                let (ticket, class) = (self.next, Class::ALL[class]);
                let deadline = self.now + Nanos::from_millis(slack_ms);
                let request =
                    Request { ticket, object, start, len, class, turn: object % 2, deadline, group: None };
                self.next += 1;
                self.live.insert(ticket, request);
                self.dispatch.handle_request(request, self.now);
            }
            Event::Urgent(nth) => {
                if let Some(ticket) = self.live.keys().nth(nth).copied() {
                    self.dispatch.handle_urgent(ticket, self.now);
                }
            }
            Event::Withdraw(nth) => {
                if let Some(ticket) = self.live.keys().nth(nth).copied() {
                    self.live.remove(&ticket);
                    self.dispatch.handle_withdraw(ticket, self.now);
                }
            }
            Event::End { which, outcome: kind } => {
                if let Some(attempt) = self.attempts.keys().nth(which).copied() {
                    self.end(attempt, outcome(kind));
                }
            }
            Event::Wait { ms } => self.now += Nanos::from_millis(ms),
            Event::ConsumerRate { next, slack_ms, step_ms } => {
                let (at, step) = (self.now + Nanos::from_millis(slack_ms), Nanos::from_millis(step_ms));
                self.dispatch.handle_consumer_rate((step_ms > 0).then_some(ConsumerRate { next, at, step }));
            }
        }
        self.drain();
    }

    /// Answer all attempts until nothing is left.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            if let Some(attempt) = self.attempts.keys().next().copied() {
                let ended =
                    if self.cancelled.contains(&attempt) { ReadOutcome::Cancelled } else { ReadOutcome::Ok };
                self.now += Nanos::from_millis(1);
                self.end(attempt, ended);
            } else if let Some(at) = self.dispatch.poll_wakeup() {
                self.now = at;
            } else {
                break;
            }
            self.drain();
        }
        assert!(self.live.is_empty(), "never ended: {:?}", self.live);
        assert_eq!((self.dispatch.in_flight(), self.dispatch.stats().queued), (0, 0));
    }
}

proptest! {
    #![proptest_config(property(400))]

    #[test]
    fn every_request_ends_exactly_once_and_attempts_never_exceed_the_limit(
        events in prop::collection::vec(event(), 1..200),
        start in 1..6u32, join in any::<bool>(), share in 0..3u32, shared in any::<bool>(),
    ) {
        let coalesce = join.then_some(CoalesceConfig { gap: Bytes::new(600), target: Bytes::new(9000), max_parts: 5 });
        let limit = LimitConfig { start, max: 8, ..LimitConfig::default() };
        let hedge_share = f64::from(share) / 2.0;
        let config = DispatchConfig { limit, coalesce, hedge_share, shared, ..DispatchConfig::adaptive() };
        let mut model = Model::new(config);
        for event in &events {
            model.apply(event);
        }
        model.settle();
    }

    #[test]
    fn equal_events_give_equal_actions(events in prop::collection::vec(event(), 1..100)) {
        let run = || {
            let mut model = Model::new(DispatchConfig { hedge_share: 1.0, shared: true, ..DispatchConfig::adaptive() });
            for event in &events {
                model.apply(event);
            }
            format!("{model:?}")
        };
        prop_assert_eq!(run(), run());
    }

    #[test]
    fn inside_a_class_starts_follow_deadlines(deadlines in prop::collection::vec(0..1000u64, 1..100)) {
        let mut dispatch = Dispatch::new(DispatchConfig::fixed(1000));
        for (ticket, deadline) in (0..).zip(&deadlines) {
            let deadline = Nanos::from_millis(*deadline);
            dispatch.handle_request(
                Request { ticket, object: ticket, start: 0, len: 10, class: Class::Fill, turn: 0, deadline, group: None },
                Nanos::ZERO,
            );
        }
        let mut seen = Vec::new();
        while let Some(Action::Start { parts, .. }) = dispatch.poll_action(Nanos::ZERO) {
            seen.push(deadlines[usize::try_from(parts[0].ticket).unwrap()]);
        }
        prop_assert_eq!(seen.len(), deadlines.len());
        prop_assert!(seen.is_sorted());
    }
}
