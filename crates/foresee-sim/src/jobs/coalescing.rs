// SPDX-License-Identifier: Apache-2.0
//! Storage behind a cache that coalesces: one read per sample while the cache holds what is read.
//!
//! One transfer at a time. Whoever begins a step first has its data read; who comes while they are under way waits
//! for the same transfer. A follower that has fallen out of the cache has its own, which queue among the others.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use foresee_units::Nanos;

use super::actor::{Actor, Begun};
use super::{JobState, SharedData};

pub(super) struct Coalescing {
    /// Of the whole data set.
    read: Nanos,
    /// When the storage has delivered all that it was asked for.
    free: Nanos,
    epochs: BTreeMap<u64, Fetched>,
}

/// How far the storage was asked in an epoch.
#[derive(Default)]
struct Fetched {
    /// Samples.
    until: u64,
    /// Transfers that may be under way: which samples, and when they are there.
    transfers: VecDeque<(Range<u64>, Nanos)>,
}

impl Coalescing {
    pub(super) fn new(read: Nanos) -> Self {
        Self { read, free: Nanos::ZERO, epochs: BTreeMap::new() }
    }

    pub(super) fn begin(&mut self, actors: &[Actor<'_>], who: usize, data: &SharedData, now: Nanos) -> Begun {
        let me = &actors[who];
        let computed = now + me.cached_step();
        if me.kept(data) {
            return Begun { state: JobState::Cached, end: computed, reads: 0, caught: false };
        }
        self.forget(actors);
        let (from, until) = (me.done, me.next(data.samples));
        let company = (0..actors.len()).any(|other| other != who && actors[other].reading);
        let state = if company { JobState::Together } else { JobState::Alone };
        let fetched = self.epochs.entry(me.epoch).or_default();
        while fetched.transfers.front().is_some_and(|(_, end)| *end <= now) {
            fetched.transfers.pop_front();
        }
        if until > fetched.until {
            let asked = from.max(fetched.until);
            let end = transfer(&mut self.free, self.read, data.samples, asked..until, now);
            fetched.until = until;
            fetched.transfers.push_back((asked..until, end));
            return Begun { state, end: computed.max(end), reads: until - asked, caught: false };
        }
        if fetched.until - from > data.cache {
            let end = transfer(&mut self.free, self.read, data.samples, from..until, now);
            return Begun { state, end: computed.max(end), reads: until - from, caught: false };
        }
        let under_way = fetched.transfers.iter().find(|(part, _)| part.contains(&(until - 1)));
        if let Some(&(_, end)) = under_way {
            return Begun { state: JobState::Together, end: computed.max(end), reads: 0, caught: true };
        }
        let complete = fetched.until == data.samples;
        let state = if complete { JobState::Cached } else { JobState::Behind };
        Begun { state, end: computed, reads: 0, caught: false }
    }

    /// Drops epochs in which nobody is any more.
    fn forget(&mut self, actors: &[Actor<'_>]) {
        let live = actors.iter().filter(|actor| actor.epoch < actor.job.epochs);
        let first = live.map(|actor| actor.epoch).min().unwrap_or(0);
        while self.epochs.first_key_value().is_some_and(|(&epoch, _)| epoch < first) {
            self.epochs.pop_first();
        }
    }
}

/// Has the storage read some samples after all that it was asked for before; when it has.
///
/// Parts of the data set take parts of its time, rounded so that all of them together take all of it.
fn transfer(free: &mut Nanos, read: Nanos, samples: u64, part: Range<u64>, now: Nanos) -> Nanos {
    let at = |sample: u64| {
        let nanos = u128::from(read.get()) * u128::from(sample) / u128::from(samples);
        u64::try_from(nanos).expect("a part of a time is no longer than all of it")
    };
    *free = now.max(*free) + Nanos::new(at(part.end) - at(part.start));
    *free
}
