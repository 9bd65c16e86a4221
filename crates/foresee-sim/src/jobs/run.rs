// SPDX-License-Identifier: Apache-2.0
//! Jobs, their steps, and the clock.
//!
//! Apart from what a step finds, which is the storage's rule: here is when it begins and ends, and what it counts as.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use foresee_units::Nanos;

use super::coalescing::Coalescing;
use super::competing::Competing;
use super::{Job, JobRun, JobState, SharedData, Storage};

/// Where a job stands.
pub(super) struct Actor<'a> {
    pub(super) job: &'a Job,
    /// From 0; `job.epochs` when it has ended.
    pub(super) epoch: u64,
    /// Samples of the epoch whose steps have ended.
    pub(super) done: u64,
    /// Steps of the epoch that have ended.
    pub(super) step: u64,
    /// Whether its step, or the one that has just ended, reads from the storage.
    pub(super) reading: bool,
    doing: Doing,
    run: JobRun,
}

#[derive(Clone, Copy)]
enum Doing {
    /// Not started, or between two steps.
    Nothing,
    Step {
        until: u64,
    },
    Held {
        until: u64,
        since: Nanos,
    },
}

/// What a job that is about to begin a step does.
pub(super) enum Turn {
    /// It begins.
    Begin(Begun),
    /// It waits until somebody has done so many samples of its epoch.
    Hold(u64),
}

/// A step that has begun.
pub(super) struct Begun {
    pub(super) state: JobState,
    pub(super) end: Nanos,
    /// Samples that the storage is asked for.
    pub(super) reads: u64,
    /// Whether it has caught up with another job.
    pub(super) caught: bool,
}

impl Actor<'_> {
    /// Samples of the epoch that its next step ends with.
    pub(super) fn next(&self, samples: u64) -> u64 {
        self.done.saturating_add(self.job.batch).min(samples)
    }

    /// A step whose data are in the cache.
    pub(super) fn cached_step(&self) -> Nanos {
        self.job.compute + self.job.wait_cached
    }

    /// Whether its next step, of an epoch after its first, finds its data in a cache that keeps a share of them.
    /// Such steps are evenly spread, so that neither the beginning nor the end of an epoch is special.
    pub(super) fn kept(&self, data: &SharedData) -> bool {
        let missing = u128::from(data.samples.saturating_sub(data.cache));
        let before = |steps: u64| u128::from(steps) * missing / u128::from(data.samples);
        self.epoch > 0 && before(self.step + 1) == before(self.step)
    }
}

/// How far anybody has come in `epoch`, in samples of steps that have ended.
pub(super) fn frontier(actors: &[Actor<'_>], epoch: u64, samples: u64) -> u64 {
    let reached = |actor: &Actor<'_>| match actor.epoch.cmp(&epoch) {
        std::cmp::Ordering::Less => 0,
        std::cmp::Ordering::Equal => actor.done,
        std::cmp::Ordering::Greater => samples,
    };
    actors.iter().map(reached).max().unwrap_or(0)
}

enum Rule {
    Competing(Competing),
    Coalescing(Coalescing),
}

impl Rule {
    fn begin(&mut self, actors: &[Actor<'_>], who: usize, data: &SharedData, now: Nanos) -> Turn {
        match self {
            Self::Competing(rule) => rule.begin(actors, who, data, now),
            Self::Coalescing(rule) => Turn::Begin(rule.begin(actors, who, data, now)),
        }
    }
}

/// Plays all jobs, which have been checked.
pub(super) fn play(jobs: &[Job], data: &SharedData) -> Vec<JobRun> {
    let rule = match data.storage {
        Storage::Competing { compat, correction } => {
            Rule::Competing(Competing::new(compat, correction, jobs.len()))
        }
        Storage::Coalescing { read } => Rule::Coalescing(Coalescing::new(read)),
    };
    let mut play = Play { data, rule, actors: jobs.iter().map(Actor::new).collect(), due: BinaryHeap::new() };
    play.due.extend(jobs.iter().enumerate().map(|(who, job)| Reverse((job.start, who))));
    while let Some(&Reverse((now, _))) = play.due.peek() {
        play.instant(now);
    }
    assert!(play.actors.iter().all(|actor| actor.epoch == actor.job.epochs), "a job was held for ever");
    play.actors.into_iter().map(|actor| actor.run).collect()
}

struct Play<'a> {
    data: &'a SharedData,
    rule: Rule,
    actors: Vec<Actor<'a>>,
    due: BinaryHeap<Reverse<(Nanos, usize)>>,
}

impl Play<'_> {
    /// All that ends at an instant ends before anything begins.
    fn instant(&mut self, now: Nanos) {
        let mut ready = Vec::new();
        while let Some(&Reverse((time, who))) = self.due.peek() {
            if time > now {
                break;
            }
            self.due.pop();
            self.actors[who].end_step(self.data.samples, now);
            ready.push(who);
        }
        for who in 0..self.actors.len() {
            if self.is_free(who, now) {
                ready.push(who);
            }
        }
        ready.retain(|&who| self.actors[who].epoch < self.actors[who].job.epochs);
        let actors = &self.actors;
        ready.sort_by_key(|&who| (Reverse((actors[who].epoch, actors[who].done)), who));
        for who in ready {
            match self.rule.begin(&self.actors, who, self.data, now) {
                Turn::Begin(begun) => {
                    self.actors[who].begin_step(&begun, self.data.samples, now);
                    self.due.push(Reverse((begun.end, who)));
                }
                Turn::Hold(until) => {
                    self.actors[who].reading = false;
                    self.actors[who].doing = Doing::Held { until, since: now };
                }
            }
        }
    }

    /// Ends a hold whose reason is gone.
    fn is_free(&mut self, who: usize, now: Nanos) -> bool {
        let Doing::Held { until, since } = self.actors[who].doing else { return false };
        if frontier(&self.actors, self.actors[who].epoch, self.data.samples) < until {
            return false;
        }
        let actor = &mut self.actors[who];
        actor.doing = Doing::Nothing;
        actor.run.held.count += 1;
        actor.run.held.time += now - since;
        actor.run.stall += now - since;
        true
    }
}

impl<'a> Actor<'a> {
    fn new(job: &'a Job) -> Self {
        let run = JobRun { start: job.start, ..JobRun::default() };
        Self { job, epoch: 0, done: 0, step: 0, reading: false, doing: Doing::Nothing, run }
    }

    fn begin_step(&mut self, begun: &Begun, samples: u64, now: Nanos) {
        let until = self.next(samples);
        let took = begun.end - now;
        let span = &mut self.run.states[begun.state as usize];
        span.count += 1;
        span.time += took;
        self.run.stall += took - self.job.compute;
        self.run.reads += begun.reads;
        self.run.hits += until - self.done - begun.reads;
        if begun.caught && self.run.caught.is_none() {
            self.run.caught = Some(now);
        }
        self.reading = matches!(begun.state, JobState::Alone | JobState::Together);
        self.doing = Doing::Step { until };
    }

    fn end_step(&mut self, samples: u64, now: Nanos) {
        let Doing::Step { until } = self.doing else { return };
        self.doing = Doing::Nothing;
        (self.done, self.step) = (until, self.step + 1);
        if self.done < samples {
            return;
        }
        if self.epoch == 0 {
            self.run.first_epoch = now;
        }
        (self.epoch, self.done, self.step, self.reading) = (self.epoch + 1, 0, 0, false);
        if self.epoch == self.job.epochs {
            self.run.end = now;
        }
    }
}
