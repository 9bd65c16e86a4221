// SPDX-License-Identifier: Apache-2.0
//! A tier made slow: bytes per second, requests per second, latency.
//!
//! Tests, simulation and demos use it where a known speed is needed. One timer thread admits operations when they are
//! due. Benchmarks do not use it as an origin, because it slows only Foresee.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::num::NonZeroU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use foresee_units::{Nanos, ReadOutcome};

use crate::completion::Completions;
use crate::op::{Op, Ticket};
use crate::relay::{Relay, end};
use crate::{Tier, TierFacts};

/// What a throttled place allows; `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Payload bytes per second, over all operations.
    pub bytes_per_second: Option<NonZeroU64>,
    /// Operations per second.
    pub requests_per_second: Option<NonZeroU64>,
    /// Added to every operation; they overlap.
    pub latency: Nanos,
}

/// The wrapper.
pub struct Throttled {
    shared: Arc<Shared>,
}

struct Shared {
    inner: Arc<dyn Tier>,
    relay: Relay,
    born: Instant,
    held: Mutex<Held>,
    work: Condvar,
    /// How long each operation inside was held, to be added to its time in the queue.
    waits: Arc<Mutex<HashMap<Ticket, Nanos>>>,
}

struct Held {
    ops: VecDeque<HeldOp>,
    meter: Meter,
    closed: bool,
}

struct HeldOp {
    op: Op,
    submitted: Instant,
    release: Nanos,
}

impl Throttled {
    /// Wraps the place that `open` makes; its ends go to `completions`.
    ///
    /// # Panics
    /// If the machine refuses a thread.
    pub fn new(
        completions: Completions,
        limits: Limits,
        open: impl FnOnce(Completions) -> Arc<dyn Tier>,
    ) -> Self {
        let waits = Arc::new(Mutex::new(HashMap::<Ticket, Nanos>::new()));
        let added = Arc::clone(&waits);
        let (relay, queue) = Relay::new(completions, move |mut done| {
            let held = added.lock().unwrap_or_else(PoisonError::into_inner).remove(&done.ticket);
            done.queued += held.unwrap_or_default();
            done
        });
        let held = Held { ops: VecDeque::new(), meter: Meter::new(limits), closed: false };
        let shared = Arc::new(Shared {
            inner: open(queue),
            relay,
            born: Instant::now(),
            held: Mutex::new(held),
            work: Condvar::new(),
            waits,
        });
        let timer = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("foresee-throttle".into())
            .spawn(move || timer.let_in())
            .expect("the machine allows one more thread");
        Self { shared }
    }
}

#[deny(clippy::missing_trait_methods, reason = "a forgotten method would silently bypass the wrapper")]
impl Tier for Throttled {
    fn submit(&self, op: Op) {
        self.submit_many(vec![op]);
    }

    fn submit_many(&self, ops: Vec<Op>) {
        let submitted = Instant::now();
        let now = Nanos::from(submitted.saturating_duration_since(self.shared.born));
        for _ in &ops {
            self.shared.relay.desk().admit();
        }
        let refused = {
            let mut held = self.shared.held();
            if held.closed {
                ops
            } else {
                for op in ops {
                    let release = held.meter.charge(now, payload(&op));
                    held.ops.push_back(HeldOp { op, submitted, release });
                }
                Vec::new()
            }
        };
        self.shared.work.notify_one();
        for op in refused {
            self.shared.withdraw(HeldOp { op, submitted, release: now });
        }
    }

    fn cancel(&self, ticket: Ticket) {
        let withdrawn = {
            let mut held = self.shared.held();
            let at = held.ops.iter().position(|held| held.op.ticket() == ticket);
            at.and_then(|at| held.ops.remove(at))
        };
        match withdrawn {
            Some(held) => self.shared.withdraw(held),
            None => self.shared.inner.cancel(ticket),
        }
    }

    fn facts(&self) -> TierFacts {
        TierFacts { in_flight: self.shared.relay.desk().in_flight(), ..self.shared.inner.facts() }
    }

    fn close(&self, grace: Nanos) {
        self.shared.stop();
        self.shared.inner.close(grace);
        self.shared.relay.close(grace);
    }
}

impl Drop for Throttled {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl fmt::Debug for Throttled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Throttled").field("inner", &self.shared.inner).finish_non_exhaustive()
    }
}

impl Shared {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends an operation that was never let in.
    fn withdraw(&self, held: HeldOp) {
        let ticket = held.op.ticket();
        drop(held.op); // its memory goes back before its end is told
        self.relay.desk().land(end(ticket, held.submitted, ReadOutcome::Cancelled, None));
    }

    fn stop(&self) {
        let left = {
            let mut held = self.held();
            held.closed = true;
            std::mem::take(&mut held.ops)
        };
        self.work.notify_one();
        for held in left {
            self.withdraw(held);
        }
    }

    /// The timer thread: releases come in the order of submission.
    fn let_in(&self) {
        let mut held = self.held();
        loop {
            let now = Nanos::from(self.born.elapsed());
            let due = held.ops.iter().take_while(|held| held.release <= now).count();
            if due > 0 {
                let batch: Vec<HeldOp> = held.ops.drain(..due).collect();
                drop(held);
                let mut ops = Vec::with_capacity(batch.len());
                for HeldOp { op, submitted, .. } in batch {
                    self.relay.send_inside();
                    let wait = Nanos::from(submitted.elapsed());
                    self.waits.lock().unwrap_or_else(PoisonError::into_inner).insert(op.ticket(), wait);
                    ops.push(op);
                }
                self.inner.submit_many(ops);
                held = self.held();
                continue;
            }
            if held.closed {
                return;
            }
            held = match held.ops.front().map(|head| head.release.saturating_sub(now)) {
                None => self.work.wait(held).unwrap_or_else(PoisonError::into_inner),
                Some(left) => {
                    let left = Duration::from(left);
                    self.work.wait_timeout(held, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

fn payload(op: &Op) -> u64 {
    match op {
        Op::Read { dest, .. } => dest.len() as u64,
        Op::Write { payload, .. } => payload.as_slice().len() as u64,
        Op::Drop { .. } => 0,
    }
}

/// When each operation may begin, so that no limit is passed over any span longer than a burst.
#[derive(Debug)]
struct Meter {
    limits: Limits,
    /// Until when the operations so far use up the allowance.
    busy_until: Nanos,
}

impl Meter {
    /// An idle place saves up this much: enough for a timer's late wake-ups, too little to notice.
    const BURST: Nanos = Nanos::from_millis(5);

    const fn new(limits: Limits) -> Self {
        Self { limits, busy_until: Nanos::ZERO }
    }

    /// When an operation of `bytes`, submitted `now`, may begin.
    fn charge(&mut self, now: Nanos, bytes: u64) -> Nanos {
        let span = |amount: u64, rate: Option<NonZeroU64>| {
            let rate = rate.map_or(u128::MAX, |rate| u128::from(rate.get()));
            u64::try_from(u128::from(amount) * 1_000_000_000 / rate).unwrap_or(u64::MAX)
        };
        let cost = span(bytes, self.limits.bytes_per_second).max(span(1, self.limits.requests_per_second));
        self.busy_until = self.busy_until.max(now.saturating_sub(Self::BURST)) + Nanos::new(cost);
        // It ends no sooner than its last byte may pass.
        self.busy_until.max(now) + self.limits.latency
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance;
    use crate::origin::shelf::{key, open_directory, queued};
    use crate::{Dest, Done};

    fn limits(bytes: u64, requests: u64, latency: Nanos) -> Limits {
        Limits {
            bytes_per_second: NonZeroU64::new(bytes),
            requests_per_second: NonZeroU64::new(requests),
            latency,
        }
    }

    #[test]
    fn throttling_keeps_the_reading_promises() {
        conformance::read_half(|completions, samples| {
            let mut stocked = None;
            let limits = limits(1 << 30, 100_000, Nanos::new(100_000));
            let throttled = Throttled::new(completions, limits, |queue| {
                let inside = open_directory(queue, samples, 4);
                let tier = Arc::clone(&inside.tier);
                stocked = Some(inside);
                tier
            });
            conformance::Stocked { tier: Arc::new(throttled), ..stocked.expect("it was opened") }
        });
    }

    #[test]
    fn the_meter_passes_neither_limit_and_overlaps_latency() {
        let latency = Nanos::from_millis(20);
        let mut meter = Meter::new(limits(1_000_000, 100, latency));
        // 1000 B are 1 ms of bytes and 10 ms of requests: requests bind.
        let ends: Vec<_> = (0..10).map(|_| meter.charge(Nanos::ZERO, 1000)).collect();
        assert_eq!(ends[0], Nanos::from_millis(30));
        assert_eq!(ends[9], Nanos::from_millis(120));
        // 1 MB is a second of bytes.
        assert_eq!(meter.charge(Nanos::ZERO, 1_000_000), Nanos::from_millis(1120));
        // After a pause no more than a burst is saved up.
        let late = meter.charge(Nanos::from_secs(100), 1000);
        assert_eq!(late, Nanos::from_secs(100) + Nanos::from_millis(5) + latency);
    }

    #[test]
    fn without_limits_nothing_waits() {
        let mut meter = Meter::new(Limits::default());
        assert_eq!(meter.charge(Nanos::new(7), u64::MAX), Nanos::new(7));
    }

    #[test]
    fn what_is_still_held_can_be_cancelled_and_closed() {
        let (throttled, queue) = queued(|completions| {
            let hour = limits(0, 0, Nanos::from_secs(3600));
            Throttled::new(completions, hour, |queue| open_directory(queue, &[vec![1; 4]], 1).tier)
        });
        for ticket in [1, 2] {
            let (dest, _) = Dest::from_vec(vec![0; 4]);
            throttled.submit(Op::Read { ticket: Ticket(ticket), key: key(0), offset: 0, dest });
        }
        assert_eq!(throttled.facts().in_flight, 2);
        throttled.cancel(Ticket(1));
        let ends = |done: Vec<Done>| done.iter().map(|d| (d.ticket.0, d.outcome)).collect::<Vec<_>>();
        assert_eq!(ends(queue.wait()), [(1, ReadOutcome::Cancelled)]);
        throttled.close(Nanos::ZERO);
        assert_eq!(ends(queue.wait()), [(2, ReadOutcome::Cancelled)]);
    }
}
