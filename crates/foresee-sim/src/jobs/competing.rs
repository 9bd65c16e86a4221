// SPDX-License-Identifier: Apache-2.0
//! Storage with competing cold reads: the state machine of the paper's figure 5, for any number of jobs.
//!
//! A job that catches up stays together with the other job until one of them ends the epoch. The step time in
//! company was measured over many steps with alternating leaders.

use foresee_model::Compat;
use foresee_units::Nanos;

use super::actor::{Actor, StepDecision, StepStart, frontier};
use super::{Correction, JobState, SharedData};

pub(super) struct Competing {
    compat: Compat,
    correction: Correction,
    /// The last epoch in which each job caught up, or was caught.
    met: Vec<Option<u64>>,
}

impl Competing {
    pub(super) fn new(compat: Compat, correction: Correction, jobs: usize) -> Self {
        Self { compat, correction, met: vec![None; jobs] }
    }

    pub(super) fn begin(
        &mut self,
        actors: &[Actor<'_>],
        index: usize,
        data: &SharedData,
        now: Nanos,
    ) -> StepDecision {
        let actor = &actors[index];
        let until = actor.next(data.samples);
        let cached = |state| {
            StepDecision::Begin(StepStart { state, end: now + actor.cached_step(), reads: 0, caught: false })
        };
        if actor.is_cached(data) {
            return cached(JobState::Cached);
        }
        let frontier = frontier(actors, actor.epoch, data.samples);
        let complete = frontier == data.samples;
        let met = self.met[index] == Some(actor.epoch) && (self.compat == Compat::Paper || !complete);
        let is_read = frontier >= until;
        if is_read && !met && frontier - actor.done <= data.cache {
            return cached(if complete { JobState::Cached } else { JobState::Behind });
        }
        let mut caught = false;
        if !is_read && !met {
            let rivals = Self::rivals(actors, index);
            if rivals.iter().any(|&rival| !faster(actor, &actors[rival])) {
                return cached(JobState::Behind); // it drops behind at once
            }
            if let Some(decision) = self.hold(actors, index, &rivals, data) {
                return decision;
            }
            caught = !rivals.is_empty();
            for rival in rivals {
                self.met[rival] = Some(actor.epoch);
                self.met[index] = Some(actor.epoch);
            }
        }
        let others = self.others(actors, index);
        let state = if others == 0 { JobState::Alone } else { JobState::Together };
        StepDecision::Begin(StepStart {
            state,
            end: now + uncached_step(actor, others),
            reads: until - actor.done,
            caught,
        })
    }

    /// The jobs that read the same part of the same epoch from the storage.
    fn rivals(actors: &[Actor<'_>], index: usize) -> Vec<usize> {
        let actor = &actors[index];
        let rival = |&other: &usize| {
            let other = &actors[other];
            other.reading && other.epoch == actor.epoch && other.done >= actor.done
        };
        (0..actors.len()).filter(|&other| other != index).filter(rival).collect()
    }

    /// The number of jobs next to `index` that read from the storage. The paper also counts those that it met in
    /// this epoch and that have ended it.
    fn others(&self, actors: &[Actor<'_>], index: usize) -> usize {
        let counts = |&other: &usize| {
            let met = self.met[index] == Some(actors[index].epoch) && self.met[other] == self.met[index];
            actors[other].reading || (met && self.compat == Compat::Paper)
        };
        (0..actors.len()).filter(|&other| other != index).filter(counts).count()
    }

    fn hold(
        &self,
        actors: &[Actor<'_>],
        index: usize,
        rivals: &[usize],
        data: &SharedData,
    ) -> Option<StepDecision> {
        let Correction::Hold { margin } = self.correction else { return None };
        let actor = &actors[index];
        let together = per_sample(uncached_step(actor, rivals.len()), actor);
        let behind = |&rival: &usize| {
            let rival = &actors[rival];
            not_slower(per_sample(uncached_step(rival, 0), rival), together)
        };
        let until = actor.next(data.samples).saturating_add(margin).min(data.samples);
        rivals.iter().any(behind).then_some(StepDecision::Hold(until))
    }
}

/// Duration of a step from the storage while `others` read from it too.
fn uncached_step(actor: &Actor<'_>, others: usize) -> Nanos {
    let conc = &actor.job.wait_conc;
    let wait = match others.min(conc.len()).checked_sub(1) {
        None => actor.job.wait,
        Some(at) => conc[at],
    };
    actor.job.compute + wait
}

/// Whether a follower's cached step is faster per sample than the other's step alone.
fn faster(follower: &Actor<'_>, other: &Actor<'_>) -> bool {
    !not_slower(per_sample(uncached_step(other, 0), other), per_sample(follower.cached_step(), follower))
}

/// Time and samples of a step, as a fraction.
fn per_sample(step: Nanos, actor: &Actor<'_>) -> (u64, u64) {
    (step.get(), actor.job.batch)
}

fn not_slower(one: (u64, u64), other: (u64, u64)) -> bool {
    u128::from(one.0) * u128::from(other.1) <= u128::from(other.0) * u128::from(one.1)
}
