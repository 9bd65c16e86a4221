// SPDX-License-Identifier: Apache-2.0
//! The event loop: when each job's steps begin and end.
//!
//! It is separate from the storage models, which determine the source and duration of a step.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use foresee_units::Nanos;

use super::actor::{Activity, Actor, StepDecision, frontier};
use super::coalescing::Coalescing;
use super::competing::Competing;
use super::{Job, JobRun, SharedData, Storage};

enum Rule {
    Competing(Competing),
    Coalescing(Coalescing),
}

impl Rule {
    fn begin(&mut self, actors: &[Actor<'_>], index: usize, data: &SharedData, now: Nanos) -> StepDecision {
        match self {
            Self::Competing(rule) => rule.begin(actors, index, data, now),
            Self::Coalescing(rule) => StepDecision::Begin(rule.begin(actors, index, data, now)),
        }
    }
}

/// Simulate all jobs, which must be valid.
pub(super) fn simulate(jobs: &[Job], data: &SharedData) -> Vec<JobRun> {
    let rule = match data.storage {
        Storage::Competing { compat, correction } => {
            Rule::Competing(Competing::new(compat, correction, jobs.len()))
        }
        Storage::Coalescing { read } => Rule::Coalescing(Coalescing::new(read)),
    };
    let mut simulation =
        Simulation { data, rule, actors: jobs.iter().map(Actor::new).collect(), due: BinaryHeap::new() };
    simulation.due.extend(jobs.iter().enumerate().map(|(index, job)| Reverse((job.start, index))));
    while let Some(&Reverse((now, _))) = simulation.due.peek() {
        simulation.process_instant(now);
    }
    assert!(simulation.actors.iter().all(|actor| actor.epoch == actor.job.epochs), "a job was held forever");
    simulation.actors.into_iter().map(|actor| actor.run).collect()
}

struct Simulation<'a> {
    data: &'a SharedData,
    rule: Rule,
    actors: Vec<Actor<'a>>,
    due: BinaryHeap<Reverse<(Nanos, usize)>>,
}

impl Simulation<'_> {
    /// Complete all steps that end at `now` before any step begins.
    fn process_instant(&mut self, now: Nanos) {
        let mut ready = Vec::new();
        while let Some(&Reverse((time, index))) = self.due.peek() {
            if time > now {
                break;
            }
            self.due.pop();
            self.actors[index].end_step(self.data.samples, now);
            ready.push(index);
        }
        for index in 0..self.actors.len() {
            if self.release(index, now) {
                ready.push(index);
            }
        }
        ready.retain(|&index| self.actors[index].epoch < self.actors[index].job.epochs);
        let actors = &self.actors;
        ready.sort_by_key(|&index| (Reverse((actors[index].epoch, actors[index].done)), index));
        for index in ready {
            match self.rule.begin(&self.actors, index, self.data, now) {
                StepDecision::Begin(start) => {
                    self.actors[index].begin_step(&start, self.data.samples, now);
                    self.due.push(Reverse((start.end, index)));
                }
                StepDecision::Hold(until) => {
                    self.actors[index].reading = false;
                    self.actors[index].activity = Activity::Held { until, since: now };
                }
            }
        }
    }

    /// Release a held job whose reason no longer applies.
    fn release(&mut self, index: usize, now: Nanos) -> bool {
        let Activity::Held { until, since } = self.actors[index].activity else { return false };
        if frontier(&self.actors, self.actors[index].epoch, self.data.samples) < until {
            return false;
        }
        let actor = &mut self.actors[index];
        actor.activity = Activity::Idle;
        actor.run.held.count += 1;
        actor.run.held.time += now - since;
        actor.run.stall += now - since;
        true
    }
}
