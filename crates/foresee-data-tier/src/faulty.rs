// SPDX-License-Identifier: Apache-2.0
//! A tier that fails on purpose, by a schedule that follows from a seed.
//!
//! Tests repeat a driver's answer to each failure with it. Whether an attempt fails, and how, is a function of the
//! seed, the sample and the attempt's number; threads and clocks have no influence. Writes fail only with refusals and
//! throttling.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use foresee_units::{Bytes, Nanos, ReadOutcome, SampleId, SplitMix64};

use crate::completion::Completions;
use crate::memory::{Dest, Scratch};
use crate::op::{Done, Op, SampleKey, Ticket};
use crate::relay::{Relay, end};
use crate::{Tier, TierFacts};

/// How often each fault comes, in attempts out of 1000. More than 1000 in sum: always one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Decides which attempts.
    pub seed: u64,
    /// Ends [`ReadOutcome::Retryable`] with nothing moved.
    pub retryable: u32,
    /// Ends [`ReadOutcome::Throttled`] with `retry_after`.
    pub throttled: u32,
    /// A read that moves half its bytes and ends [`ReadOutcome::Retryable`].
    pub short: u32,
    /// A read that ends [`ReadOutcome::Ok`] with one byte wrong, as only a checksum notices.
    pub corrupt: u32,
    /// A read that does not end until it is cancelled or the place is closed.
    pub stall: u32,
    /// What a throttled attempt is told.
    pub retry_after: Option<Nanos>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Retryable,
    Throttled,
    Short,
    Corrupt,
    Stall,
}

/// The wrapper.
pub struct Faulty {
    inner: Arc<dyn Tier>,
    relay: Relay,
    faults: Faults,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Attempts so far at each sample.
    attempts: HashMap<SampleId, u64>,
    stalled: HashMap<Ticket, (Dest, Instant)>,
    /// Reads that go to memory of ours first, to be spoilt on the way.
    spoiling: HashMap<Ticket, Spoiling>,
    closed: bool,
}

struct Spoiling {
    fault: Fault,
    dest: Dest,
    scratch: Arc<Scratch>,
}

impl Faulty {
    /// Wraps the place that `open` makes; its ends go to `completions`.
    pub fn new(
        completions: Completions,
        faults: Faults,
        open: impl FnOnce(Completions) -> Arc<dyn Tier>,
    ) -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let spoilt = Arc::clone(&state);
        let (relay, queue) = Relay::new(completions, move |done| {
            let spoiling = lock(&spoilt).spoiling.remove(&done.ticket);
            spoiling.map_or_else(|| done.clone(), |spoiling| spoiling.spoil(done.clone()))
        });
        Self { inner: open(queue), relay, faults, state }
    }

    /// The operation as it goes inside, or `None` if it has met its fault here.
    fn spoil(&self, op: Op) -> Option<Op> {
        let submitted = Instant::now();
        let (ticket, key) = match &op {
            Op::Read { ticket, key, .. } | Op::Write { ticket, key, .. } | Op::Drop { ticket, key } => {
                (*ticket, *key)
            }
        };
        let mut state = lock(&self.state);
        if state.closed {
            return Some(op); // the place inside refuses it
        }
        let attempt = state.attempts.entry(key.id).or_default();
        *attempt += 1;
        let fault = self.faults.at(key, *attempt);
        let outcome = match (fault, op) {
            (None, op) => return Some(op),
            (Some(Fault::Stall), Op::Read { dest, .. }) => {
                state.stalled.insert(ticket, (dest, submitted));
                return None;
            }
            (Some(fault @ (Fault::Short | Fault::Corrupt)), Op::Read { offset, dest, .. }) => {
                let (instead, scratch) = Dest::from_vec(vec![0; dest.len()]);
                state.spoiling.insert(ticket, Spoiling { fault, dest, scratch });
                return Some(Op::Read { ticket, key, offset, dest: instead });
            }
            (Some(Fault::Throttled), _) => ReadOutcome::Throttled { retry_after: self.faults.retry_after },
            (Some(_), _) => ReadOutcome::Retryable,
        };
        drop(state);
        self.relay.desk().land(end(ticket, submitted, outcome, Some("a fault on purpose")));
        None
    }

    fn end_stalled(&self, ticket: Ticket, (dest, submitted): (Dest, Instant)) {
        drop(dest);
        self.relay.desk().land(end(ticket, submitted, ReadOutcome::Cancelled, None));
    }
}

#[deny(clippy::missing_trait_methods, reason = "a forgotten method would silently bypass the wrapper")]
impl Tier for Faulty {
    fn submit(&self, op: Op) {
        self.submit_many(vec![op]);
    }

    fn submit_many(&self, ops: Vec<Op>) {
        let mut inside = Vec::with_capacity(ops.len());
        for op in ops {
            self.relay.desk().admit();
            if let Some(op) = self.spoil(op) {
                self.relay.send_inside();
                inside.push(op);
            }
        }
        self.inner.submit_many(inside);
    }

    fn cancel(&self, ticket: Ticket) {
        let stalled = lock(&self.state).stalled.remove(&ticket);
        match stalled {
            Some(stalled) => self.end_stalled(ticket, stalled),
            None => self.inner.cancel(ticket),
        }
    }

    fn facts(&self) -> TierFacts {
        TierFacts { in_flight: self.relay.desk().in_flight(), ..self.inner.facts() }
    }

    fn close(&self, grace: Nanos) {
        let stalled = {
            let mut state = lock(&self.state);
            state.closed = true;
            std::mem::take(&mut state.stalled)
        };
        for (ticket, stalled) in stalled {
            self.end_stalled(ticket, stalled);
        }
        self.inner.close(grace);
        self.relay.close(grace);
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Faulty");
        shown.field("inner", &self.inner).field("faults", &self.faults).finish_non_exhaustive()
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        let stalled = std::mem::take(&mut lock(&self.state).stalled);
        for (ticket, stalled) in stalled {
            self.end_stalled(ticket, stalled);
        }
    }
}

impl Faults {
    /// The fault of the `attempt`-th try at a sample, counted from 1.
    fn at(&self, key: SampleKey, attempt: u64) -> Option<Fault> {
        let hash = |value: u64| SplitMix64::new(value).next();
        let drawn = hash(self.seed ^ hash(key.id.0 ^ hash(attempt))) % 1000;
        let mut border = 0;
        [
            (self.retryable, Fault::Retryable),
            (self.throttled, Fault::Throttled),
            (self.short, Fault::Short),
            (self.corrupt, Fault::Corrupt),
            (self.stall, Fault::Stall),
        ]
        .into_iter()
        .find_map(|(often, fault)| {
            border += u64::from(often);
            (drawn < border).then_some(fault)
        })
    }
}

impl Spoiling {
    fn spoil(self, mut done: Done) -> Done {
        let Self { fault, mut dest, scratch } = self;
        if done.outcome == ReadOutcome::Ok
            && let Ok(mut bytes) = scratch.into_bytes()
        {
            let into = dest.as_mut_slice();
            if fault == Fault::Short {
                let half = bytes.len() / 2;
                into[..half].copy_from_slice(&bytes[..half]);
                done.bytes = Bytes::new(half as u64);
                done.outcome = ReadOutcome::Retryable;
            } else {
                let middle = bytes.len() / 2;
                if let Some(byte) = bytes.get_mut(middle) {
                    *byte ^= 1;
                }
                into.copy_from_slice(&bytes);
            }
        }
        done
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance;
    use crate::origin::shelf::{Queue, key, open_directory, queued, read};

    fn open(faults: Faults) -> (Faulty, Queue) {
        let sample = vec![7; 10];
        queued(|completions| {
            Faulty::new(completions, faults, |queue| open_directory(queue, &[sample], 2).tier)
        })
    }

    fn stocked(plan: Faults, completions: Completions, samples: &[Vec<u8>]) -> conformance::Stocked {
        let mut inside = None;
        let faulty = Faulty::new(completions, plan, |queue| {
            let stocked = open_directory(queue, samples, 4);
            let tier = Arc::clone(&stocked.tier);
            inside = Some(stocked);
            tier
        });
        conformance::Stocked { tier: Arc::new(faulty), ..inside.expect("it was opened") }
    }

    #[test]
    fn without_faults_it_keeps_the_reading_promises() {
        conformance::read_half(|completions, samples| stocked(Faults::default(), completions, samples));
    }

    #[test]
    fn with_faults_each_ticket_still_ends_once() {
        let faults = Faults { seed: 3, retryable: 200, throttled: 200, short: 200, ..Faults::default() };
        conformance::fault_half(|completions, samples| stocked(faults, completions, samples));
    }

    #[test]
    fn every_fault_is_what_it_says() {
        let always = |faults: Faults| {
            let (faulty, queue) = open(faults);
            read(&faulty, &queue, 0, 10)
        };
        let (done, _) = always(Faults { retryable: 1000, ..Faults::default() });
        assert_eq!((done.outcome, done.bytes.get()), (ReadOutcome::Retryable, 0));
        let retry_after = Some(Nanos::from_secs(2));
        let (done, _) = always(Faults { throttled: 1000, retry_after, ..Faults::default() });
        assert_eq!(done.outcome, ReadOutcome::Throttled { retry_after });
        let (done, bytes) = always(Faults { short: 1000, ..Faults::default() });
        assert_eq!((done.outcome, done.bytes.get()), (ReadOutcome::Retryable, 5));
        assert_eq!(bytes, [7, 7, 7, 7, 7, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE]);
        let (done, bytes) = always(Faults { corrupt: 1000, ..Faults::default() });
        assert_eq!(done.outcome, ReadOutcome::Ok);
        assert_eq!(bytes.iter().filter(|byte| **byte != 7).count(), 1);
    }

    #[test]
    fn a_stalled_read_ends_when_it_is_cancelled_or_the_place_closed() {
        let (faulty, queue) = open(Faults { stall: 1000, ..Faults::default() });
        for ticket in [1, 2] {
            let (dest, _) = Dest::from_vec(vec![0; 10]);
            faulty.submit(Op::Read { ticket: Ticket(ticket), key: key(0), offset: 0, dest });
        }
        faulty.cancel(Ticket(2));
        assert_eq!(queue.wait()[0].outcome, ReadOutcome::Cancelled);
        assert_eq!(faulty.facts().in_flight, 1);
        faulty.close(Nanos::ZERO);
        assert_eq!(queue.wait()[0].ticket, Ticket(1));
    }

    #[test]
    fn the_schedule_is_the_seeds_and_its_rates_hold() {
        let faults = Faults { seed: 9, retryable: 100, stall: 50, ..Faults::default() };
        let draw = |faults: Faults| (0..20_000).map(|id| faults.at(key(id), 1)).collect::<Vec<_>>();
        let drawn = draw(faults);
        assert_eq!(drawn, draw(faults));
        assert_ne!(drawn, draw(Faults { seed: 10, ..faults }));
        let often = |fault| drawn.iter().filter(|drawn| **drawn == Some(fault)).count();
        assert!((1800..2200).contains(&often(Fault::Retryable)), "{}", often(Fault::Retryable));
        assert!((850..1150).contains(&often(Fault::Stall)), "{}", often(Fault::Stall));
    }
}
