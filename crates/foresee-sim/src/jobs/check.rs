// SPDX-License-Identifier: Apache-2.0
//! Validation of jobs.
//!
//! It is separate from the simulation, which therefore handles valid jobs only. Invalid values are errors and are
//! never clamped.

use foresee_units::Nanos;
use thiserror::Error;

use super::{Correction, Job, SharedData, Storage};

/// An invalid input of a simulation of jobs.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "the messages show the fields by their names")]
#[non_exhaustive]
pub enum JobsError {
    /// No job was given.
    #[error("there is no job; give at least one")]
    NoJob,
    /// A value of all jobs is out of range.
    #[error("{field} is {value}; it must be {rule}")]
    Invalid {
        field: &'static str,
        value: u64,
        /// The allowed range.
        rule: &'static str,
    },
    /// A value of one job is out of range.
    #[error("job {job}: {field} is {value}; it must be {rule}")]
    InvalidJob {
        /// The index of the job, from 0.
        job: usize,
        field: &'static str,
        value: u64,
        /// The allowed range.
        rule: &'static str,
    },
    /// A required value is missing.
    #[error("job {job}: {field} is not measured; run it with another job and a cold cache")]
    NotMeasured {
        /// The index of the job, from 0.
        job: usize,
        field: &'static str,
    },
    /// The total time exceeds the clock's range.
    #[error("all jobs together may take {0} s or more; the clock has room for 9,223,372,036 s")]
    TooLong(u128),
}

const AT_LEAST_ONE: &str = "1 or more";

pub(super) fn check(jobs: &[Job], data: &SharedData) -> Result<(), JobsError> {
    if jobs.is_empty() {
        return Err(JobsError::NoJob);
    }
    if data.samples == 0 {
        return Err(JobsError::Invalid { field: "samples", value: 0, rule: AT_LEAST_ONE });
    }
    let mut longest = u128::from(jobs.iter().map(|job| job.start).max().unwrap_or_default().get());
    for (at, job) in jobs.iter().enumerate() {
        for (field, value) in [("compute", job.compute.get()), ("batch", job.batch), ("epochs", job.epochs)] {
            if value == 0 {
                return Err(JobsError::InvalidJob { job: at, field, value, rule: AT_LEAST_ONE });
            }
        }
        if let Storage::Competing { correction, .. } = data.storage {
            if jobs.len() > 1 && job.wait_conc.is_empty() {
                return Err(JobsError::NotMeasured { job: at, field: "wait_conc" });
            }
            check_margin(correction, job, data)?;
        }
        longest += longest_run(job, data);
    }
    if longest >= 1 << 63 {
        return Err(JobsError::TooLong(longest / 1_000_000_000));
    }
    Ok(())
}

/// Check that a follower is not held beyond the cache, where it would lose its data.
fn check_margin(correction: Correction, job: &Job, data: &SharedData) -> Result<(), JobsError> {
    let Correction::Hold { margin } = correction else { return Ok(()) };
    if data.cache < data.samples && margin.saturating_add(job.batch) > data.cache {
        let rule = "at most the samples that the cache holds, less a batch";
        return Err(JobsError::Invalid { field: "margin", value: margin, rule });
    }
    Ok(())
}

/// Upper bound of a job's compute and read time; its waits for others are part of their times.
fn longest_run(job: &Job, data: &SharedData) -> u128 {
    let waits = [job.wait, job.wait_cached].into_iter().chain(job.wait_conc.iter().copied());
    let step = u128::from(job.compute.get()) + u128::from(waits.max().unwrap_or_default().get());
    let read = match data.storage {
        Storage::Competing { .. } => Nanos::ZERO,
        Storage::Coalescing { read } => read,
    };
    let steps = u128::from(data.samples.div_ceil(job.batch));
    // A saturated result still exceeds the clock's range.
    u128::from(job.epochs).saturating_mul((steps * step).saturating_add(u128::from(read.get()))).min(1 << 100)
}
