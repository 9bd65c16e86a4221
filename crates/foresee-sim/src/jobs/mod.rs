// SPDX-License-Identifier: Apache-2.0
//! Jobs that read the same data through one cache, step by step in virtual time.
//!
//! Jobs share one order per epoch (one seed), so a follower finds in the cache the samples that the leader has
//! read, until it catches up. The storage determines what happens then: cold reads compete at the measured rates,
//! each job separately, or the cache coalesces them, and one transfer serves all waiting jobs.
//!
//! | state | meaning | a step takes |
//! |---|---|---|
//! | [`Alone`](JobState::Alone) | is the only reader of cold data | compute and wait |
//! | [`Together`](JobState::Together) | reads cold data with other jobs | compute and the wait in company |
//! | [`Behind`](JobState::Behind) | reads cached data behind a running leader | compute and the wait of a warm cache |
//! | [`Cached`](JobState::Cached) | finds all data in the cache | the same |
//!
//! The duration of a step is fixed when it starts. The closed forms are separate: they have no steps, are limited
//! to two jobs or one frontier and a sufficient cache, and check this simulation within those limits.
//!
//! Measurements and starts are arguments. The simulation omits two effects: the order of a later epoch in a cache
//! smaller than the data (a fixed share of its batches is cached, as if pinned), and prefetching across steps.
//!
//! Source: Assogba et al., "Optimizing the Training of Co-Located Deep Learning Models Using Cache-Aware
//! Staggering", `HiPC` 2023, figure 5. More than two jobs, the cache's size, coalescing and holding are
//! additions.
//!
//! | file | content |
//! |---|---|
//! | `check` | validation |
//! | `run` | jobs, steps and the clock |
//! | `competing`, `coalescing` | source and duration of a step, one storage per file |

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

use foresee_units::named_enum;

/// Times of one job, and its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Compute time of a step; more than 0.
    pub compute: Nanos,
    /// Time that a step waits for data, alone and with a cold cache. Coalescing storage uses
    /// [`Storage::Coalescing`] instead.
    pub wait: Nanos,
    /// The same with a warm cache.
    pub wait_cached: Nanos,
    /// The wait with a cold cache and 2, 3, ... jobs that read cold data; the last value holds for more.
    /// Competing storage needs at least one if there are several jobs.
    pub wait_conc: Vec<Nanos>,
    /// Samples per step, 1 or more; the last step of an epoch may have fewer.
    pub batch: u64,
    /// Epochs, 1 or more.
    pub epochs: u64,
    /// Start time on the common clock.
    pub start: Nanos,
}

/// The data that all jobs read, with their cache and storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedData {
    /// Samples of an epoch, 1 or more.
    pub samples: u64,
    /// Samples that the cache holds; values of at least `samples` mean all. A follower that lags further behind
    /// reads from the storage itself, and in later epochs this share of the steps finds its data.
    pub cache: u64,
    /// The storage of uncached samples.
    pub storage: Storage,
}

/// The behaviour when several jobs request uncached data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// Each job reads separately and slows the others down by the measured amount, as with a page cache.
    Competing {
        /// Whether a job next to one that has ended its epoch finds the rest in the cache (`Physical`), or keeps
        /// its rate in company until it has ended its own (`Paper`, equation 2).
        compat: Compat,
        /// The correction for followers.
        correction: Correction,
    },
    /// One transfer at a time, in order of request; a job that needs data of the current transfer waits for its
    /// end.
    Coalescing {
        /// Time in which the storage delivers the data set once.
        read: Nanos,
    },
}

/// The handling of a follower that approaches the reading job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Correction {
    /// None: it catches up, and both wait for the storage.
    None,
    /// Hold it until the other is far enough ahead, unless it would still be faster in company.
    Hold {
        /// Samples that must be in the cache beyond its next step, 0 or more.
        margin: u64,
    },
}

named_enum! {
    /// The source of a step's data.
    JobState {
        /// The storage, with no other reader; the paper's SR.
        Alone => "alone",
        /// The storage, with other readers; the paper's CR.
        Together => "together",
        /// The cache, behind another job; the paper's CL.
        Behind => "behind",
        /// The cache, which has all data of the epoch; the paper's L.
        Cached => "cached",
    }
}

/// A part of a job's run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The number of steps or events.
    pub count: u64,
    /// Their total time.
    pub time: Nanos,
}

/// The result of one job.
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
    /// The times for which it was held.
    pub held: Span,
    /// All time without compute, including `held`.
    pub stall: Nanos,
    /// Samples from the cache, or from another job's transfer.
    pub hits: u64,
    /// Samples that it read from the storage.
    pub reads: u64,
}

impl JobRun {
    /// Its steps in one state.
    pub const fn state(&self, state: JobState) -> Span {
        self.states[state as usize]
    }

    /// Time from start to end.
    pub fn time(&self) -> Nanos {
        self.end - self.start
    }
}

/// The result of all jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobsReport {
    /// In the order given.
    pub jobs: Vec<JobRun>,
    /// The end of the last job.
    pub makespan: Nanos,
    /// The sum of all jobs' times, which is the GPU time that they occupy.
    pub gpu_time: Nanos,
}

/// Simulate all jobs to their ends.
///
/// If several jobs would act at the same moment, the one with more progress goes first, then the one with the
/// lower index.
///
/// # Errors
/// [`JobsError`]: a value is out of range or missing.
///
/// # Examples
/// Three jobs behind one frontier, with the starts that cost no time.
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
    let runs = run::simulate(jobs, data);
    let makespan = runs.iter().map(|run| run.end).max().unwrap_or_default();
    let gpu_time = runs.iter().map(JobRun::time).sum();
    Ok(JobsReport { jobs: runs, makespan, gpu_time })
}
