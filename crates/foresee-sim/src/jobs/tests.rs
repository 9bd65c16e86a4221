// SPDX-License-Identifier: Apache-2.0
//! The simulation against closed forms within their limits, and its own invariants beyond them.

use std::slice::from_ref;

use foresee_model::Compat;
use foresee_testkit::property;
use foresee_units::Nanos;
use proptest::prelude::*;

use super::{Correction, Job, JobState, JobsError, JobsReport, SharedData, Storage, simulate_jobs};

const FREE: Correction = Correction::None;

/// Nanoseconds of compute, wait, cached wait and wait in company; one sample per step.
fn job(times: [u64; 4], epochs: u64, start: u64) -> Job {
    let [compute, wait, wait_cached, conc] = times.map(Nanos::new);
    Job { compute, wait, wait_cached, wait_conc: vec![conc], batch: 1, epochs, start: Nanos::new(start) }
}

fn competing(samples: u64, compat: Compat, correction: Correction) -> SharedData {
    SharedData { samples, cache: samples, storage: Storage::Competing { compat, correction } }
}

fn coalescing(samples: u64, cache: u64, read: u64) -> SharedData {
    SharedData { samples, cache, storage: Storage::Coalescing { read: Nanos::new(read) } }
}

fn play(jobs: &[Job], data: &SharedData) -> JobsReport {
    simulate_jobs(jobs, data).unwrap()
}

/// Ends of leader and follower by the closed forms, in nanoseconds.
#[expect(clippy::cast_precision_loss, reason = "small values")]
fn closed(leader: &Job, follower: &Job, samples: u64, compat: Compat) -> [f64; 2] {
    let sum = |compute: Nanos, wait: Nanos| (compute.get() + wait.get()) as f64;
    let n = samples as f64;
    let a = sum(leader.compute, leader.wait);
    let ac = sum(leader.compute, leader.wait_cached);
    let a1 = sum(leader.compute, leader.wait_conc[0]);
    let b = sum(follower.compute, follower.wait_cached);
    let b1 = sum(follower.compute, follower.wait_conc[0]);
    let start = follower.start.get() as f64;
    let (mut first_a, mut first_b) = (n * a, n * b);
    if b < a && start < n * (a - b) {
        let caught = start / (1.0 - b / a);
        let left = n - start / (a - b);
        (first_a, first_b) = match compat {
            Compat::Paper => (left * a1, left * b1),
            Compat::Physical if a1 > b1 => (left * b1 + (left - left * b1 / a1) * ac, left * b1),
            Compat::Physical => (left * a1, left * a1 + (left - left * a1 / b1) * b),
        };
        (first_a, first_b) = (first_a + caught, first_b + caught - start);
    }
    let later = |epochs: u64| (epochs - 1) as f64 * n;
    [first_a + later(leader.epochs) * ac, start + first_b + later(follower.epochs) * b]
}

#[test]
fn a_job_alone_reads_once_and_then_finds_all_data_in_the_cache() {
    let report = play(&[job([10, 5, 1, 9], 3, 7)], &competing(100, Compat::Physical, FREE));
    let run = report.jobs[0];
    assert_eq!((run.start, run.first_epoch), (Nanos::new(7), Nanos::new(7 + 1_500)));
    assert_eq!(run.end, Nanos::new(7 + 1_500 + 2 * 1_100));
    assert_eq!((run.state(JobState::Alone).count, run.state(JobState::Cached).count), (100, 200));
    assert_eq!((run.reads, run.hits, run.caught), (100, 200, None));
    assert_eq!(run.stall, Nanos::new(500 + 200));
    assert_eq!((report.makespan, report.gpu_time), (run.end, run.time()));
}

#[test]
fn a_follower_that_catches_up_goes_through_all_states() {
    let jobs = [job([10, 10, 0, 20], 2, 0), job([8, 10, 0, 30], 2, 600)];
    let report = play(&jobs, &competing(100, Compat::Physical, FREE));
    let [leader, follower] = [report.jobs[0], report.jobs[1]];
    // It starts 30 steps behind and gains 12 ns per step; each of its steps takes 8 ns of the other's 20.
    let caught = follower.caught.unwrap();
    assert!(Nanos::new(960) <= caught && caught <= Nanos::new(1_000), "{caught:?}");
    for state in [JobState::Behind, JobState::Together, JobState::Cached] {
        assert!(follower.state(state).count > 0, "{}", state.name());
    }
    assert_eq!(follower.state(JobState::Alone).count, 0);
    assert_eq!(leader.state(JobState::Behind).count, 0);
    assert_eq!(leader.caught, None);
    assert!(leader.first_epoch < follower.first_epoch);
}

#[test]
fn a_follower_as_fast_as_the_leader_stays_behind_even_from_the_same_start() {
    let jobs = [job([10, 10, 0, 30], 1, 0), job([20, 5, 0, 30], 1, 0)];
    let report = play(&jobs, &competing(50, Compat::Physical, FREE));
    assert_eq!(report.jobs[1].state(JobState::Behind).count, 50);
    assert_eq!(report.jobs[0].state(JobState::Alone).count, 50);
    assert_eq!((report.jobs[1].reads, report.jobs[1].caught), (0, None));
}

#[test]
fn a_job_that_starts_after_the_end_of_another_reads_nothing() {
    let jobs = [job([10, 10, 0, 30], 1, 0), job([20, 5, 1, 30], 1, 5_000)];
    let report = play(&jobs, &competing(50, Compat::Physical, FREE));
    assert_eq!(report.jobs[1].state(JobState::Cached).count, 50);
    assert_eq!(report.makespan, Nanos::new(5_000 + 50 * 21));
}

#[test]
fn three_jobs_at_once_have_the_wait_of_three() {
    let mut jobs = vec![job([10, 10, 0, 0], 1, 0); 3];
    for job in &mut jobs {
        job.wait_conc = vec![Nanos::new(30), Nanos::new(50)];
    }
    let report = play(&jobs, &competing(100, Compat::Physical, FREE));
    // All steps but the first.
    assert!(report.makespan.get().abs_diff(100 * 60) <= 100, "{:?}", report.makespan);
    jobs.push(jobs[0].clone());
    let report = play(&jobs, &competing(100, Compat::Physical, FREE));
    assert!(report.makespan.get().abs_diff(100 * 60) <= 100, "the last value holds for more");
}

#[test]
fn a_cache_smaller_than_the_lag_makes_the_follower_read_by_itself() {
    let jobs = [job([10, 10, 0, 20], 1, 0), job([15, 5, 0, 20], 1, 1_000)];
    let whole = competing(100, Compat::Physical, FREE);
    assert_eq!(play(&jobs, &whole).jobs[1].reads, 0);
    // It starts 50 samples behind.
    let report = play(&jobs, &SharedData { cache: 60, ..whole });
    assert_eq!(report.jobs[1].reads, 0);
    let report = play(&jobs, &SharedData { cache: 40, ..whole });
    let [leader, follower] = [report.jobs[0], report.jobs[1]];
    assert!(follower.reads > 50);
    assert!(leader.state(JobState::Together).count > 0, "the leader is slowed");
    assert_eq!(follower.caught, None);

    let apart = coalescing(100, 40, 2_000);
    let report = play(&jobs, &apart);
    // When it has read 60, the other has ended, and the last 40 are in the cache.
    assert_eq!((report.jobs[0].reads, report.jobs[1].reads), (100, 60));
    let report = play(&jobs, &coalescing(100, 100, 2_000));
    assert_eq!((report.jobs[0].reads, report.jobs[1].reads), (100, 0));
}

#[test]
fn in_later_epochs_a_small_cache_has_its_share_of_the_steps() {
    let data = SharedData { cache: 30, ..competing(100, Compat::Physical, FREE) };
    let run = play(&[job([10, 10, 1, 20], 3, 0)], &data).jobs[0];
    assert_eq!((run.reads, run.hits), (100 + 2 * 70, 2 * 30));
    assert_eq!(run.end, Nanos::new(240 * 20 + 60 * 11));
    let run = play(&[job([10, 10, 1, 20], 3, 0)], &coalescing(100, 30, 2_000)).jobs[0];
    assert_eq!(run.end, Nanos::new(240 * 20 + 60 * 11));
}

#[test]
fn a_held_follower_leaves_the_leader_alone() {
    let jobs = [job([10, 10, 0, 20], 1, 0), job([5, 10, 0, 30], 1, 100)];
    let free = play(&jobs, &competing(1_000, Compat::Physical, FREE));
    let hold = Correction::Hold { margin: 20 };
    let held = play(&jobs, &competing(1_000, Compat::Physical, hold));
    assert_eq!(held.jobs[0].time(), Nanos::new(1_000 * 20));
    assert_eq!(held.jobs[0].state(JobState::Together).count, 0);
    let follower = held.jobs[1];
    assert_eq!((follower.reads, follower.caught), (0, None));
    assert!(follower.held.count > 10, "once per margin: {:?}", follower.held);
    assert!(held.makespan < free.makespan);
    // It ends at most a margin and a step behind the leader.
    assert!(held.makespan.get() <= 1_000 * 20 + 21 * 5);
}

#[test]
fn no_job_is_held_behind_one_that_is_slower_than_company() {
    // The first job computes so long that the second is faster in company.
    let jobs = [job([100, 0, 0, 5], 1, 0), job([5, 10, 0, 30], 1, 0)];
    let hold = Correction::Hold { margin: 2 };
    let report = play(&jobs, &competing(100, Compat::Physical, hold));
    assert_eq!(report.jobs[1].held.count, 0);
    assert!(report.jobs[1].end < report.jobs[0].end);
}

#[test]
fn a_leader_that_computes_longer_than_it_reads_is_overtaken() {
    let jobs = [job([100, 0, 0, 0], 1, 0), job([5, 0, 0, 0], 1, 50)];
    let report = play(&jobs, &coalescing(100, 100, 2_000));
    assert_eq!(report.jobs[0].time(), Nanos::new(100 * 100));
    assert!(report.jobs[1].end <= Nanos::new(2_000 + 100));
    assert_eq!(report.jobs[0].reads + report.jobs[1].reads, 100);
}

#[test]
fn unequal_batches_share_one_frontier() {
    let batch = |batch, step| Job { batch, ..job([step, 0, 0, 0], 1, 0) };
    let report = play(&[batch(30, 10), batch(7, 3)], &coalescing(100, 100, 5_000));
    let reads: u64 = report.jobs.iter().map(|run| run.reads).sum();
    assert_eq!(reads, 100);
    for (run, steps) in report.jobs.iter().zip([4, 15]) {
        assert_eq!(run.states.iter().map(|span| span.count).sum::<u64>(), steps);
        // The storage may idle while all jobs compute.
        assert!((5_000..=5_000 + 5 * 10).contains(&run.end.get()), "{:?}", run.end);
    }
}

#[test]
fn errors_name_invalid_inputs() {
    let data = competing(10, Compat::Physical, FREE);
    let fine = job([1, 1, 0, 1], 1, 0);
    let error = |jobs: &[Job], data: &SharedData| simulate_jobs(jobs, data).unwrap_err().to_string();
    assert_eq!(simulate_jobs(&[], &data), Err(JobsError::NoJob));
    assert_eq!(error(&[], &data), "there is no job; give at least one");
    let none = SharedData { samples: 0, ..data };
    assert_eq!(error(from_ref(&fine), &none), "samples is 0; it must be 1 or more");
    let wrong = |change: fn(&mut Job)| {
        let mut job = fine.clone();
        change(&mut job);
        error(&[fine.clone(), job], &data)
    };
    assert_eq!(wrong(|job| job.compute = Nanos::ZERO), "job 1: compute is 0; it must be 1 or more");
    assert_eq!(wrong(|job| job.batch = 0), "job 1: batch is 0; it must be 1 or more");
    assert_eq!(wrong(|job| job.epochs = 0), "job 1: epochs is 0; it must be 1 or more");
    let missing = wrong(|job| job.wait_conc.clear());
    assert!(missing.starts_with("job 1: wait_conc is not measured"), "{missing}");
    let long = wrong(|job| job.epochs = u64::MAX);
    assert!(long.contains("the clock has room for"), "{long}");
    let long = wrong(|job| (job.epochs, job.compute) = (u64::MAX, Nanos::MAX));
    assert!(long.contains("the clock has room for"), "{long}");
    let hold = competing(10, Compat::Physical, Correction::Hold { margin: 5 });
    let margin = error(from_ref(&fine), &SharedData { cache: 5, ..hold });
    assert!(
        margin.starts_with("margin is 5; it must be at most the samples that the cache holds"),
        "{margin}"
    );
    let alone = Job { wait_conc: vec![], ..fine };
    assert!(simulate_jobs(from_ref(&alone), &data).is_ok());
    assert!(simulate_jobs(&[alone.clone(), alone], &coalescing(10, 10, 5)).is_ok());
}

/// Compute, wait, cached wait and wait in company: a warm cache helps, company does not.
fn times() -> impl Strategy<Value = [u64; 4]> {
    (1_u64..400, 0_u64..400, 0..=100_u64, 0_u64..400)
        .prop_map(|(compute, wait, share, more)| [compute, wait, wait * share / 100, wait + more])
}

fn any_data() -> impl Strategy<Value = SharedData> {
    let correction = prop_oneof![Just(FREE), (0_u64..4).prop_map(|margin| Correction::Hold { margin })];
    let compat = prop_oneof![Just(Compat::Physical), Just(Compat::Paper)];
    let competes =
        (compat, correction).prop_map(|(compat, correction)| Storage::Competing { compat, correction });
    let coalesces = (0_u64..40_000).prop_map(|read| Storage::Coalescing { read: Nanos::new(read) });
    (1_u64..80, 20_u64..120, prop_oneof![competes, coalesces])
        .prop_map(|(samples, cache, storage)| SharedData { samples, cache, storage })
}

fn any_jobs() -> impl Strategy<Value = Vec<Job>> {
    let one = (times(), 1_u64..4, 0_u64..40_000, 1_u64..9);
    let one = one.prop_map(|(times, epochs, start, batch)| Job { batch, ..job(times, epochs, start) });
    prop::collection::vec(one, 1..6)
}

proptest! {
    #![proptest_config(property(1_500))]

    #[test]
    fn two_jobs_end_within_some_steps_of_the_closed_forms(
        leader in times(), follower in times(),
        epochs in (1_u64..4, 1_u64..4), share in 0.0_f64..1.3, samples in 200_u64..900,
        paper: bool,
    ) {
        let compat = if paper { Compat::Paper } else { Compat::Physical };
        let cold = leader[0] + leader[1];
        let warm = follower[0] + follower[2];
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss,
            reason = "a start within some epochs")]
        let start = (share * (samples * cold) as f64) as u64;
        let jobs = [job(leader, epochs.0, 0), job(follower, epochs.1, start)];
        // Steps are whole: a step in progress makes the follower meet the leader a step early, and each step
        // brings it closer by the difference of the two.
        #[expect(clippy::cast_precision_loss, reason = "small values")]
        let early = if warm < cold { cold as f64 / (cold - warm) as f64 } else { 0.0 };
        prop_assume!(early < 20.0);
        let [a, b] = closed(&jobs[0], &jobs[1], samples, compat);
        let report = play(&jobs, &competing(samples, compat, FREE));
        let longest = [leader, follower].map(|job| job[0] + job[3]).into_iter().max().unwrap();
        #[expect(clippy::cast_precision_loss, reason = "small values")]
        let allowed = (4.0 + 2.0 * early) * longest as f64;
        for (run, expected) in report.jobs.iter().zip([a, b]) {
            #[expect(clippy::cast_precision_loss, reason = "small values")]
            let end = run.end.get() as f64;
            prop_assert!((end - expected).abs() <= allowed, "{end} for {expected}, allowed {allowed}");
        }
    }

    #[test]
    fn every_job_does_its_steps_and_its_times_add_up(jobs in any_jobs(), data in any_data()) {
        let Ok(report) = simulate_jobs(&jobs, &data) else {
            prop_assert!(data.cache < data.samples, "a margin beyond the cache");
            return Ok(());
        };
        for (run, job) in report.jobs.iter().zip(&jobs) {
            let steps: u64 = run.states.iter().map(|span| span.count).sum();
            prop_assert_eq!(steps, job.epochs * data.samples.div_ceil(job.batch));
            let time: Nanos = run.states.iter().map(|span| span.time).sum();
            prop_assert_eq!(run.start + time + run.held.time, run.end);
            let computed = Nanos::new(job.compute.get() * steps);
            prop_assert_eq!(computed + run.stall, run.time());
            prop_assert_eq!(run.hits + run.reads, job.epochs * data.samples);
            prop_assert_eq!(run.start, job.start);
            prop_assert!(run.start < run.first_epoch && run.first_epoch <= run.end);
        }
        let reads: u64 = report.jobs.iter().map(|run| run.reads).sum();
        prop_assert!(reads >= data.samples);
        if data.cache >= data.samples && matches!(data.storage, Storage::Coalescing { .. }) {
            prop_assert_eq!(reads, data.samples, "each sample is read once");
        }
        prop_assert_eq!(play(&jobs, &data), report);
    }

    #[test]
    fn behind_one_frontier_the_latest_free_starts_reach_the_bound_exactly(
        steps in prop::collection::vec((1_u64..900, 1_u64..4), 1..6), transfer in 1_u64..900,
        samples in 1_u64..60,
    ) {
        let read = samples * transfer;
        let first = |step: u64| samples * step;
        let whole = |step: u64, epochs: u64| samples * step * epochs;
        let bound = steps.iter().map(|&(step, epochs)| first(step.max(transfer)) + whole(step, epochs - 1));
        let bound = bound.max().unwrap();
        let keeps_up = steps.iter().filter(|&&(step, _)| step <= transfer).map(|&(step, _)| step).max();
        let leader_step = keeps_up.unwrap_or_else(|| steps.iter().map(|&(step, _)| step).min().unwrap());
        let leader = steps.iter().position(|&(step, _)| step == leader_step).unwrap();
        let starts = steps.iter().enumerate().map(|(at, &(step, epochs))| {
            let start = if at == leader { 0 } else { bound - whole(step, epochs) };
            job([step, 0, 0, 0], epochs, start)
        });
        let jobs: Vec<Job> = starts.collect();
        let report = play(&jobs, &coalescing(samples, samples, read));
        prop_assert_eq!(report.makespan, Nanos::new(bound));
        for (at, run) in report.jobs.iter().enumerate() {
            if at != leader {
                let (step, epochs) = steps[at];
                prop_assert_eq!(run.time(), Nanos::new(whole(step, epochs)), "no follower waits");
            }
        }
        // All at once: the makespan is not longer, and the total time is not shorter.
        let at_once: Vec<Job> =
            jobs.iter().map(|job| Job { start: Nanos::ZERO, ..job.clone() }).collect();
        let together = play(&at_once, &coalescing(samples, samples, read));
        prop_assert_eq!(together.makespan, Nanos::new(bound));
        prop_assert!(together.gpu_time >= report.gpu_time);
    }

    #[test]
    fn no_start_beats_the_bound_of_the_frontier(
        steps in prop::collection::vec((1_u64..900, 1_u64..4, 0_u64..60_000), 1..6), transfer in 1_u64..900,
        samples in 1_u64..60,
    ) {
        let jobs: Vec<Job> =
            steps.iter().map(|&(step, epochs, start)| job([step, 0, 0, 0], epochs, start)).collect();
        let first = jobs.iter().map(|job| job.start).min().unwrap();
        let bound = steps.iter().map(|&(step, epochs, _)| samples * (step.max(transfer) + step * (epochs - 1)));
        let report = play(&jobs, &coalescing(samples, samples, samples * transfer));
        prop_assert!(report.makespan - first >= Nanos::new(bound.max().unwrap()));
    }

    #[test]
    fn held_followers_cost_the_leader_nothing(
        leader in times(), followers in prop::collection::vec((times(), 0_u64..60_000), 1..4),
        samples in 20_u64..120, margin in 0_u64..8,
    ) {
        // No job is faster than the leader in company.
        let cold = leader[0] + leader[1];
        let mut jobs = vec![job(leader, 1, 0)];
        for (mut times, start) in followers {
            times[3] = times[3].max(cold);
            jobs.push(job(times, 2, start));
        }
        let hold = competing(samples, Compat::Physical, Correction::Hold { margin });
        let report = play(&jobs, &hold);
        prop_assert_eq!(report.jobs[0].time(), Nanos::new(samples * cold));
        prop_assert!(report.jobs[1..].iter().all(|run| run.reads == 0));
    }
}
