// SPDX-License-Identifier: Apache-2.0
//! Storage behind a coalescing cache: one read per sample while the cache holds the data that are read.
//!
//! There is one transfer at a time. The job that begins a step first starts the transfer of its data; a job that
//! arrives during the transfer waits for it. A follower that has fallen out of the cache starts its own
//! transfers, which queue with the others.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use foresee_units::Nanos;

use super::actor::{Actor, StepStart};
use super::{JobState, SharedData};

pub(super) struct Coalescing {
    /// Time to read the whole data set.
    read: Nanos,
    /// When the storage has completed all requests.
    free: Nanos,
    epochs: BTreeMap<u64, EpochRequests>,
}

/// Requests of one epoch.
#[derive(Default)]
struct EpochRequests {
    /// Samples requested so far.
    until: u64,
    /// Transfers that may be in progress: their samples and end times.
    transfers: VecDeque<(Range<u64>, Nanos)>,
}

impl Coalescing {
    pub(super) fn new(read: Nanos) -> Self {
        Self { read, free: Nanos::ZERO, epochs: BTreeMap::new() }
    }

    pub(super) fn begin(
        &mut self,
        actors: &[Actor<'_>],
        index: usize,
        data: &SharedData,
        now: Nanos,
    ) -> StepStart {
        let actor = &actors[index];
        let computed = now + actor.cached_step();
        if actor.is_cached(data) {
            return StepStart { state: JobState::Cached, end: computed, reads: 0, caught: false };
        }
        self.drop_finished_epochs(actors);
        let (from, until) = (actor.done, actor.next(data.samples));
        let has_company = (0..actors.len()).any(|other| other != index && actors[other].reading);
        let state = if has_company { JobState::Together } else { JobState::Alone };
        let requests = self.epochs.entry(actor.epoch).or_default();
        while requests.transfers.front().is_some_and(|(_, end)| *end <= now) {
            requests.transfers.pop_front();
        }
        if until > requests.until {
            let requested = from.max(requests.until);
            let end = transfer(&mut self.free, self.read, data.samples, requested..until, now);
            requests.until = until;
            requests.transfers.push_back((requested..until, end));
            return StepStart { state, end: computed.max(end), reads: until - requested, caught: false };
        }
        if requests.until - from > data.cache {
            let end = transfer(&mut self.free, self.read, data.samples, from..until, now);
            return StepStart { state, end: computed.max(end), reads: until - from, caught: false };
        }
        let in_flight = requests.transfers.iter().find(|(part, _)| part.contains(&(until - 1)));
        if let Some(&(_, end)) = in_flight {
            return StepStart { state: JobState::Together, end: computed.max(end), reads: 0, caught: true };
        }
        let complete = requests.until == data.samples;
        let state = if complete { JobState::Cached } else { JobState::Behind };
        StepStart { state, end: computed, reads: 0, caught: false }
    }

    /// Drop epochs that every job has left.
    fn drop_finished_epochs(&mut self, actors: &[Actor<'_>]) {
        let live = actors.iter().filter(|actor| actor.epoch < actor.job.epochs);
        let first = live.map(|actor| actor.epoch).min().unwrap_or(0);
        while self.epochs.first_key_value().is_some_and(|(&epoch, _)| epoch < first) {
            self.epochs.pop_first();
        }
    }
}

/// Append a read of some samples to all earlier requests; return its end.
///
/// Shares of the data set take shares of its read time, rounded such that all shares together take exactly that
/// time.
fn transfer(free: &mut Nanos, read: Nanos, samples: u64, part: Range<u64>, now: Nanos) -> Nanos {
    let at = |sample: u64| {
        let nanos = u128::from(read.get()) * u128::from(sample) / u128::from(samples);
        u64::try_from(nanos).expect("a part of a time is no longer than all of it")
    };
    *free = now.max(*free) + Nanos::new(at(part.end) - at(part.start));
    *free
}
