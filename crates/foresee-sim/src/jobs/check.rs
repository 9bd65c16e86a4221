// SPDX-License-Identifier: Apache-2.0
//! Which jobs cannot be played, and why.
//!
//! Apart from the play, which then has no case for them. Refuses to clamp.

use foresee_units::Nanos;
use thiserror::Error;

use super::{Correction, Job, SharedData, Storage};

/// What no simulation of jobs accepts.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum JobsError {
    /// Nobody to play.
    #[error("there is no job; give at least one")]
    NoJob,
    /// A figure of all jobs outside its range.
    #[error("{field} is {value}; it must be {rule}")]
    Invalid {
        /// Which figure.
        field: &'static str,
        /// As given.
        value: u64,
        /// What it has to be.
        rule: &'static str,
    },
    /// A figure of one job outside its range.
    #[error("job {job}: {field} is {value}; it must be {rule}")]
    InvalidJob {
        /// Which job, counted from 0.
        job: usize,
        /// Which figure.
        field: &'static str,
        /// As given.
        value: u64,
        /// What it has to be.
        rule: &'static str,
    },
    /// A figure that is needed and absent.
    #[error("job {job}: {field} is not measured; run it beside another job with a cold cache")]
    NotMeasured {
        /// Which job, counted from 0.
        job: usize,
        /// Which figure.
        field: &'static str,
    },
    /// Times beyond the clock.
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

/// A follower that is held for longer than the cache reaches would be left without its data.
fn check_margin(correction: Correction, job: &Job, data: &SharedData) -> Result<(), JobsError> {
    let Correction::Hold { margin } = correction else { return Ok(()) };
    if data.cache < data.samples && margin.saturating_add(job.batch) > data.cache {
        let rule = "at most the samples that the cache keeps, less a batch";
        return Err(JobsError::Invalid { field: "margin", value: margin, rule });
    }
    Ok(())
}

/// No run of the job computes and reads for longer; what it waits for others is in theirs.
fn longest_run(job: &Job, data: &SharedData) -> u128 {
    let waits = [job.wait, job.wait_cached].into_iter().chain(job.wait_conc.iter().copied());
    let step = u128::from(job.compute.get()) + u128::from(waits.max().unwrap_or_default().get());
    let read = match data.storage {
        Storage::Competing { .. } => Nanos::ZERO,
        Storage::Coalescing { read } => read,
    };
    let steps = u128::from(data.samples.div_ceil(job.batch));
    // Beyond the clock is beyond it, by however much.
    u128::from(job.epochs).saturating_mul((steps * step).saturating_add(u128::from(read.get()))).min(1 << 100)
}
