// SPDX-License-Identifier: Apache-2.0
//! Jobs that read the same data through one cache, step by step in virtual time.
//!
//! Jobs share one order per epoch (one seed), so a follower finds in the cache what the first one has read, until it
//! catches up with it. What then happens is the storage's business: cold reads compete, each job by itself, at the
//! rates that were measured; or the cache coalesces them, and one transfer serves all that wait for it.
//!
//! | state | who | a step takes |
//! |---|---|---|
//! | [`Alone`](JobState::Alone) | reads cold data, nobody else does | compute and wait |
//! | [`Together`](JobState::Together) | reads cold data, so do others | compute and the wait in company |
//! | [`Behind`](JobState::Behind) | reads what another brought in, which is still at it | compute and the wait of a warm cache |
//! | [`Cached`](JobState::Cached) | all that it needs is there | the same |
//!
//! What a step takes is fixed when it starts. Apart from closed forms, which know no steps, two jobs or one frontier,
//! and a cache that reaches; they check this one within those limits.
//!
//! Refuses to measure and to choose starts: both are arguments. Left out: what a later epoch's order does to a cache
//! smaller than the data (a fixed share of its batches is there, as if pinned), and prefetching across steps.
//!
//! Source: Assogba et al., "Optimizing the Training of Co-Located Deep Learning Models Using Cache-Aware
//! Staggering", `HiPC` 2023, figure 5; more than two jobs, the cache's size, coalescing and holding are ours.
//!
//! | file | what it holds |
//! |---|---|
//! | `check` | what is refused, and why |
//! | `run` | jobs, steps and the clock |
//! | `competing`, `coalescing` | what a step finds, one storage per file |

mod actor;
mod check;
mod coalescing;
mod competing;
mod run;

#[cfg(test)]
mod tests;

use foresee_model::Compat;
use foresee_units::Nanos;

pub use check::JobsError;

/// What one job takes, and when it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Of a step without waiting for data; more than 0.
    pub compute: Nanos,
    /// How long a step waits for data, alone, with a cold cache. Coalescing storage has its own figure.
    pub wait: Nanos,
    /// The same with a warm cache.
    pub wait_cached: Nanos,
    /// The same with a cold cache and 2, 3, ... jobs that read cold data; the last one stands for more. Competing
    /// storage needs one where there are several jobs.
    pub wait_conc: Vec<Nanos>,
    /// Samples per step, 1 or more; the last step of an epoch may have fewer.
    pub batch: u64,
    /// 1 or more.
    pub epochs: u64,
    /// When it starts, on the clock that all share.
    pub start: Nanos,
}

/// The data that all jobs read, and what keeps and delivers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedData {
    /// Samples of an epoch, 1 or more.
    pub samples: u64,
    /// Samples that the cache keeps; as many as there are, or more: all of them. A follower further behind than
    /// that reads from the storage by itself, and of later epochs that share of the steps finds its data.
    pub cache: u64,
    /// What delivers the rest.
    pub storage: Storage,
}

/// What happens when several jobs want data that is not in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// Each reads by itself and slows the others down, by as much as was measured: a page cache.
    Competing {
        /// Whether a job beside one that has ended its epoch finds the rest in the cache (`Physical`), or keeps its
        /// rate in company until it has ended its own (`Paper`, equation 2).
        compat: Compat,
        /// What is done about it.
        correction: Correction,
    },
    /// One transfer at a time, in order of request; whoever needs what is under way waits for its end.
    Coalescing {
        /// Time in which the storage delivers the data set once.
        read: Nanos,
    },
}

/// What is done with a follower that comes near the one who reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Correction {
    /// Nothing: it catches up, and both wait for the storage.
    None,
    /// It is held until the other is far enough ahead, unless it would be faster beside it all the same.
    Hold {
        /// Samples that have to be in the cache beyond its next step, 0 or more.
        margin: u64,
    },
}

/// Where a step's data come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobState {
    /// From the storage, read by nobody else; the paper's SR.
    Alone,
    /// From the storage, beside others; the paper's CR.
    Together,
    /// From the cache, behind another job; the paper's CL.
    Behind,
    /// From the cache, which has what the epoch needs; the paper's L.
    Cached,
}

impl JobState {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Alone, Self::Together, Self::Behind, Self::Cached];

    /// `alone`, `together`, `behind` or `cached`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Together => "together",
            Self::Behind => "behind",
            Self::Cached => "cached",
        }
    }
}

/// Some of a job's run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// How many steps, or how often.
    pub count: u64,
    /// How long, all together.
    pub time: Nanos,
}

/// What one job came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobRun {
    /// When it started.
    pub start: Nanos,
    /// When its last step ended.
    pub end: Nanos,
    /// When its first epoch ended.
    pub first_epoch: Nanos,
    /// When it first caught up with another job.
    pub caught: Option<Nanos>,
    /// Its steps, by state in the order of [`JobState::ALL`].
    pub states: [Span; 4],
    /// What it was held for.
    pub held: Span,
    /// All that it did not compute, `held` included.
    pub stall: Nanos,
    /// Samples that it took from the cache, or from another's transfer.
    pub hits: u64,
    /// Samples that it had the storage read.
    pub reads: u64,
}

impl JobRun {
    /// Its steps in one state.
    pub const fn state(&self, state: JobState) -> Span {
        self.states[state as usize]
    }

    /// From start to end.
    pub fn time(&self) -> Nanos {
        self.end - self.start
    }
}

/// What all jobs came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobsReport {
    /// In the order given.
    pub jobs: Vec<JobRun>,
    /// When the last one ended.
    pub makespan: Nanos,
    /// The time of all of them together: what they occupy.
    pub gpu_time: Nanos,
}

/// Plays all jobs to their ends.
///
/// Of jobs that would do the same at the same moment, the one that is further goes first, then the one given first.
///
/// # Errors
/// [`JobsError`]: a figure outside its range, or absent.
///
/// # Examples
/// Three jobs behind one frontier: the starts that cost no time.
/// ```
/// # use foresee_sim::{Job, SharedData, Storage, simulate_jobs};
/// # use foresee_units::Nanos;
/// let job = |step: u64, epochs, start| Job {
///     compute: Nanos::from_millis(step),
///     wait: Nanos::ZERO,
///     wait_cached: Nanos::ZERO,
///     wait_conc: vec![],
///     batch: 1,
///     epochs,
///     start: Nanos::from_secs(start),
/// };
/// let storage = Storage::Coalescing { read: Nanos::from_secs(750) };
/// let data = SharedData { samples: 1000, cache: 1000, storage };
/// let report = simulate_jobs(&[job(300, 1, 950), job(250, 1, 1000), job(500, 2, 0)], &data)?;
/// assert_eq!(report.makespan, Nanos::from_secs(1250));
/// assert_eq!(report.gpu_time, Nanos::from_secs(1800));
/// let report = simulate_jobs(&[job(300, 1, 0), job(250, 1, 0), job(500, 2, 0)], &data)?;
/// assert_eq!(report.makespan, Nanos::from_secs(1250));
/// assert_eq!(report.gpu_time, Nanos::from_secs(2750));
/// # Ok::<(), foresee_sim::JobsError>(())
/// ```
pub fn simulate_jobs(jobs: &[Job], data: &SharedData) -> Result<JobsReport, JobsError> {
    check::check(jobs, data)?;
    let runs = run::play(jobs, data);
    let makespan = runs.iter().map(|run| run.end).max().unwrap_or_default();
    let gpu_time = runs.iter().map(JobRun::time).sum();
    Ok(JobsReport { jobs: runs, makespan, gpu_time })
}
