// SPDX-License-Identifier: Apache-2.0
//! Simulation of jobs that share their data, step by step, by `foresee-sim`.
//!
//! `foresee.stagger.model` is its public module. The interpreter is released during a simulation.

use foresee_sim::{Correction, Job, JobRun, JobState, SharedData, Storage, simulate_jobs};
use foresee_units::Nanos;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arguments::compat_of;
use crate::errors::config_error;

/// One job: compute, wait, cached wait, concurrent waits, batch, epochs, start; times in nanoseconds.
type JobArguments = (u64, u64, u64, Vec<u64>, u64, u64, u64);

/// Simulate jobs on storage that they compete for, or with `read` behind a cache that coalesces reads.
#[pyfunction]
#[pyo3(signature = (jobs, samples, cache, *, compat="physical", read=None, hold=None))]
pub(crate) fn jobs_simulate<'py>(
    py: Python<'py>,
    jobs: Vec<JobArguments>,
    samples: u64,
    cache: u64,
    compat: &str,
    read: Option<u64>,
    hold: Option<u64>,
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let compat = compat_of(compat)?;
    let correction = hold.map_or(Correction::None, |margin| Correction::Hold { margin });
    let storage = match read {
        None => Storage::Competing { compat, correction },
        Some(read) => Storage::Coalescing { read: Nanos::new(read) },
    };
    let data = SharedData { samples, cache, storage };
    let jobs: Vec<Job> = jobs.into_iter().map(job_of).collect();
    let report = py.detach(|| simulate_jobs(&jobs, &data));
    let report = report.map_err(|error| config_error(error.to_string()))?;
    report.jobs.iter().map(|run| to_dict(py, run)).collect()
}

fn job_of((compute, wait, wait_cached, wait_conc, batch, epochs, start): JobArguments) -> Job {
    Job {
        compute: Nanos::new(compute),
        wait: Nanos::new(wait),
        wait_cached: Nanos::new(wait_cached),
        wait_conc: wait_conc.into_iter().map(Nanos::new).collect(),
        batch,
        epochs,
        start: Nanos::new(start),
    }
}

fn to_dict<'py>(py: Python<'py>, run: &JobRun) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("start", run.start.get())?;
    dict.set_item("end", run.end.get())?;
    dict.set_item("first_epoch", run.first_epoch.get())?;
    dict.set_item("caught", run.caught.map(Nanos::get))?;
    for state in JobState::ALL {
        let span = run.state(state);
        dict.set_item(state.name(), (span.count, span.time.get()))?;
    }
    dict.set_item("held", (run.held.count, run.held.time.get()))?;
    dict.set_item("stall", run.stall.get())?;
    dict.set_item("hits", run.hits)?;
    dict.set_item("reads", run.reads)?;
    Ok(dict)
}
