// SPDX-License-Identifier: Apache-2.0
//! The first batch of a loader at a link that its streams share equally.

use std::collections::BTreeMap;

use foresee_data_fetch::{Action, AttemptId, Class, Dispatch, DispatchConfig, End, LimitConfig, Request};
use foresee_testkit::property;
use foresee_units::{Bytes, Nanos, ReadOutcome};
use proptest::prelude::*;

/// A link of `rate` bytes per second behind a latency, at which the bytes of all streams arrive equally fast.
#[derive(Clone, Copy, Debug)]
struct Link {
    rate: f64,
    /// In s.
    latency: f64,
}

/// A stream: when its first byte arrives, its bytes that are missing, and all of them.
#[derive(Clone, Copy, Debug)]
struct Stream {
    first: f64,
    left: f64,
    len: u64,
}

/// Batches that a queue reads from a link; returns when each was complete, in s.
struct Run {
    dispatch: Dispatch,
    link: Link,
    now: f64,
    streams: BTreeMap<AttemptId, Stream>,
}

impl Run {
    fn new(config: DispatchConfig, link: Link) -> Self {
        Self { dispatch: Dispatch::new(config), link, now: 0.0, streams: BTreeMap::new() }
    }

    /// Read batches of objects of `len` bytes. The consumer waits for the first of them from the beginning.
    fn read(mut self, batches: u64, batch: u64, len: u64, is_urgent: bool) -> Vec<f64> {
        for ticket in 0..batches * batch {
            let class = if is_urgent && ticket < batch { Class::Stalling } else { Class::Staging };
            let (turn, deadline) = (ticket / batch, Nanos::MAX);
            let request =
                Request { ticket, object: ticket, start: 0, len, class, turn, deadline, group: None };
            self.dispatch.handle_request(request, Nanos::ZERO);
        }
        let mut missing = vec![batch; index(batches)];
        let mut complete = vec![0.0; missing.len()];
        while missing.iter().any(|&missing| missing > 0) {
            self.start();
            for ticket in self.advance() {
                let turn = index(ticket / batch);
                missing[turn] -= 1;
                complete[turn] = self.now;
            }
        }
        complete
    }

    fn at(&self) -> Nanos {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds of a short run")]
        Nanos::new((self.now * 1e9) as u64)
    }

    fn start(&mut self) {
        let now = self.at();
        while let Some(action) = self.dispatch.poll_action(now) {
            match action {
                Action::Start { attempt, len, .. } => {
                    let left = float(len);
                    let stream = Stream { first: self.now + self.link.latency, left, len };
                    self.streams.insert(attempt, stream);
                }
                // Streams of a hedge that lost share the link no longer.
                Action::Cancel { attempt } => {
                    self.streams.remove(&attempt);
                    self.end(attempt, 0, ReadOutcome::Cancelled);
                }
                Action::Fail { .. } => panic!("nothing fails"),
            }
        }
    }

    /// Go to the next event; returns the tickets that have ended.
    fn advance(&mut self) -> Vec<u64> {
        let active: Vec<AttemptId> =
            self.streams.iter().filter(|(_, one)| one.first <= self.now).map(|(&id, _)| id).collect();
        let share = self.link.rate / float(active.len().max(1) as u64);
        let ends = active.iter().map(|id| self.now + self.streams[id].left / share);
        let begins = self.streams.values().map(|one| one.first).filter(|&first| first > self.now);
        let wakeup = self.dispatch.poll_wakeup().map(|at| at.as_secs_f64().max(self.now) + 1e-9);
        let next = ends.chain(begins).chain(wakeup).fold(f64::INFINITY, f64::min);
        assert!(next.is_finite(), "nothing will happen");
        let moved = (next - self.now) * share;
        self.now = next;
        let mut won = Vec::new();
        for id in active {
            let stream = self.streams.get_mut(&id).expect("it is active");
            stream.left -= moved;
            if stream.left < 1e-3 {
                let len = stream.len;
                self.streams.remove(&id);
                won.extend(self.end(id, len, ReadOutcome::Ok));
            }
        }
        won
    }

    fn end(&mut self, id: AttemptId, bytes: u64, outcome: ReadOutcome) -> Vec<u64> {
        let (bytes, now) = (Bytes::new(bytes), self.at());
        self.dispatch.handle_end(id, End { outcome, bytes, queued: Nanos::ZERO, service: Nanos::ZERO }, now)
    }
}

fn float(number: u64) -> f64 {
    f64::from(u32::try_from(number).expect("it is small"))
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("it is small")
}

/// A queue as at a bucket.
fn bucket() -> DispatchConfig {
    let limit = LimitConfig { start: 32, ..LimitConfig::default() };
    DispatchConfig { limit, hedge_share: 0.0, ..DispatchConfig::adaptive() }
}

/// What a batch alone needs, in s.
fn alone(link: Link, batch: u64, len: u64) -> f64 {
    link.latency + float(batch) * float(len) / link.rate
}

#[test]
fn where_bandwidth_binds_the_first_batch_takes_as_long_as_alone() {
    let link = Link { rate: 8e6, latency: 0.02 };
    for is_urgent in [true, false] {
        let complete = Run::new(bucket(), link).read(64, 4, 900_000, is_urgent);
        let (first, last) = (complete[0], complete[63]);
        assert!(first <= 1.01 * alone(link, 4, 900_000), "{first} s");
        assert!(last <= 1.01 * (link.latency + alone(link, 256, 900_000)), "{last} s");
    }
}

#[test]
fn where_latency_binds_only_the_second_batch_waits_and_one_round_trip_at_most() {
    let link = Link { rate: 1e9, latency: 0.02 };
    let held = Run::new(bucket(), link).read(200, 4, 20_000, true);
    // A queue that began before.
    let mut begun = Run::new(bucket(), link);
    let request = Request {
        ticket: u64::MAX,
        object: u64::MAX,
        start: 0,
        len: 1,
        class: Class::Other,
        turn: 0,
        deadline: Nanos::MAX,
        group: None,
    };
    begun.dispatch.handle_request(request, Nanos::ZERO);
    begun.start();
    begun.dispatch.handle_withdraw(u64::MAX, Nanos::ZERO);
    let free = begun.read(200, 4, 20_000, true);
    assert!(held[0] <= 1.01 * free[0], "{} s instead of {}", held[0], free[0]);
    assert!(held.iter().zip(&free).all(|(held, free)| *held <= free + 1.1 * link.latency + 0.002));
}

proptest! {
    #![proptest_config(property(2_000))]

    #[test]
    fn the_first_batch_takes_at_most_1_3_times_as_long_as_alone(
        rate in 1e6..1e9_f64,
        latency in 0.001..0.2_f64,
        batch in 1_u64..32,
        len in 1_000_u64..4_000_000,
        is_urgent: bool,
    ) {
        let link = Link { rate, latency };
        let complete = Run::new(bucket(), link).read(40, batch, len, is_urgent);
        let (first, all) = (complete[0], complete[39]);
        prop_assert!(first <= 1.3 * alone(link, batch, len), "{first} s");
        // Batches of one reach 32 in flight once; the search may then try fewer and more.
        let rounds = (40.0 * float(batch) / 32.0).ceil() + 1.0;
        let needed = (40.0 * float(batch) * float(len) / rate).max(rounds * latency);
        prop_assert!(all <= 3.0 * (needed + latency), "{all} s instead of {needed}");
    }
}
