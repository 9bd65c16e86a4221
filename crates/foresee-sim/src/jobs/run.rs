// SPDX-License-Identifier: Apache-2.0
//! The event loop: when each job's steps begin and end.
//!
//! It is separate from the storage models, which determine the source and duration of a step.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use foresee_units::Nanos;

use super::actor::{Actor, Doing, Turn, frontier};
use super::coalescing::Coalescing;
use super::competing::Competing;
use super::{Job, JobRun, SharedData, Storage};

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

/// Simulate all jobs, which must be valid.
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
    /// Complete all steps that end at `now` before any step begins.
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

    /// Release a held job whose reason no longer applies.
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
