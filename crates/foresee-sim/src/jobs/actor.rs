// SPDX-License-Identifier: Apache-2.0
//! State of one simulated job, and the begin and end of its steps.

use foresee_units::Nanos;

use super::{Job, JobRun, JobState, SharedData};

/// State of one job.
pub(super) struct Actor<'a> {
    pub(super) job: &'a Job,
    /// Counted from 0; `job.epochs` after the end.
    pub(super) epoch: u64,
    /// Samples of the epoch in completed steps.
    pub(super) done: u64,
    /// Completed steps of the epoch.
    pub(super) step: u64,
    /// Whether its current or last step reads from the storage.
    pub(super) reading: bool,
    pub(super) activity: Activity,
    pub(super) run: JobRun,
}

#[derive(Clone, Copy)]
pub(super) enum Activity {
    /// Not started, or between two steps.
    Idle,
    Step {
        until: u64,
    },
    Held {
        until: u64,
        since: Nanos,
    },
}

/// The next action of a job that is about to begin a step.
pub(super) enum StepDecision {
    /// Begin the step.
    Begin(StepStart),
    /// Wait until another job has completed this many samples of the epoch.
    Hold(u64),
}

/// A step that has begun.
pub(super) struct StepStart {
    pub(super) state: JobState,
    pub(super) end: Nanos,
    /// Samples requested from the storage.
    pub(super) reads: u64,
    /// Whether it has caught up with another job.
    pub(super) caught: bool,
}

impl Actor<'_> {
    /// Samples of the epoch at the end of the next step.
    pub(super) fn next(&self, samples: u64) -> u64 {
        self.done.saturating_add(self.job.batch).min(samples)
    }

    /// Duration of a step whose data are in the cache.
    pub(super) fn cached_step(&self) -> Nanos {
        self.job.compute + self.job.wait_cached
    }

    /// Whether the next step, in an epoch after the first, finds its data in a cache that holds a share of them.
    /// Such steps are evenly spread, so neither the beginning nor the end of an epoch is special.
    pub(super) fn is_cached(&self, data: &SharedData) -> bool {
        let missing = u128::from(data.samples.saturating_sub(data.cache));
        let before = |steps: u64| u128::from(steps) * missing / u128::from(data.samples);
        self.epoch > 0 && before(self.step + 1) == before(self.step)
    }
}

/// The progress of the job that is furthest in `epoch`, in samples of completed steps.
pub(super) fn frontier(actors: &[Actor<'_>], epoch: u64, samples: u64) -> u64 {
    let reached = |actor: &Actor<'_>| match actor.epoch.cmp(&epoch) {
        std::cmp::Ordering::Less => 0,
        std::cmp::Ordering::Equal => actor.done,
        std::cmp::Ordering::Greater => samples,
    };
    actors.iter().map(reached).max().unwrap_or(0)
}

impl<'a> Actor<'a> {
    pub(super) fn new(job: &'a Job) -> Self {
        let run = JobRun { start: job.start, ..JobRun::default() };
        Self { job, epoch: 0, done: 0, step: 0, reading: false, activity: Activity::Idle, run }
    }

    pub(super) fn begin_step(&mut self, start: &StepStart, samples: u64, now: Nanos) {
        let until = self.next(samples);
        let took = start.end - now;
        let span = &mut self.run.states[start.state as usize];
        span.count += 1;
        span.time += took;
        self.run.stall += took - self.job.compute;
        self.run.reads += start.reads;
        self.run.hits += until - self.done - start.reads;
        if start.caught && self.run.caught.is_none() {
            self.run.caught = Some(now);
        }
        self.reading = matches!(start.state, JobState::Alone | JobState::Together);
        self.activity = Activity::Step { until };
    }

    pub(super) fn end_step(&mut self, samples: u64, now: Nanos) {
        let Activity::Step { until } = self.activity else { return };
        self.activity = Activity::Idle;
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
