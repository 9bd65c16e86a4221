// SPDX-License-Identifier: Apache-2.0
//! Jobs that share their data, played step by step: what `foresee-sim` answers.
//!
//! Separate from `network` because it is about jobs, not tensors. `foresee.stagger.model` is its face; every
//! `JobsError` is a `foresee.ConfigError`. The interpreter is released while jobs are played.

use foresee_model::Compat;
use foresee_sim::{Correction, Job, JobRun, JobState, SharedData, Storage, simulate_jobs};
use foresee_units::Nanos;
use pyo3::prelude::*;
use pyo3::types::PyDict;

pyo3::import_exception!(foresee.errors, ConfigError);

/// Adds what stands in this file to the native module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(jobs_simulate, module)?)
}

/// One job: compute, wait, cached wait, waits in company, batch, epochs, start; nanoseconds.
type Told = (u64, u64, u64, Vec<u64>, u64, u64, u64);

/// Plays jobs at storage that competes, or with `read` behind a cache that coalesces.
#[pyfunction]
#[pyo3(signature = (jobs, samples, cache, *, compat="physical", read=None, hold=None))]
fn jobs_simulate<'py>(
    py: Python<'py>,
    jobs: Vec<Told>,
    samples: u64,
    cache: u64,
    compat: &str,
    read: Option<u64>,
    hold: Option<u64>,
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let Some(compat) = Compat::named(compat) else {
        return Err(ConfigError::new_err(format!("compat={compat:?}; physical or paper expected")));
    };
    let correction = hold.map_or(Correction::None, |margin| Correction::Hold { margin });
    let storage = match read {
        None => Storage::Competing { compat, correction },
        Some(read) => Storage::Coalescing { read: Nanos::new(read) },
    };
    let data = SharedData { samples, cache, storage };
    let jobs: Vec<Job> = jobs.into_iter().map(job).collect();
    let report = py.detach(|| simulate_jobs(&jobs, &data));
    let report = report.map_err(|error| ConfigError::new_err(error.to_string()))?;
    report.jobs.iter().map(|run| told(py, run)).collect()
}

fn job(told: Told) -> Job {
    let (compute, wait, wait_cached, wait_conc, batch, epochs, start) = told;
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

fn told<'py>(py: Python<'py>, run: &JobRun) -> PyResult<Bound<'py, PyDict>> {
    let answer = PyDict::new(py);
    answer.set_item("start", run.start.get())?;
    answer.set_item("end", run.end.get())?;
    answer.set_item("first_epoch", run.first_epoch.get())?;
    answer.set_item("caught", run.caught.map(Nanos::get))?;
    for state in JobState::ALL {
        let span = run.state(state);
        answer.set_item(state.name(), (span.count, span.time.get()))?;
    }
    answer.set_item("held", (run.held.count, run.held.time.get()))?;
    answer.set_item("stall", run.stall.get())?;
    answer.set_item("hits", run.hits)?;
    answer.set_item("reads", run.reads)?;
    Ok(answer)
}
