// SPDX-License-Identifier: Apache-2.0
//! Class `Recorder`: the clock and the waits of a loader whose samples Python produces.

use std::path::PathBuf;

use foresee_data_loader as core;
use foresee_units::Rank;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::PyDict;

use crate::loader::consumer_wait;
use crate::{errors, stats};

#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct Recorder {
    core: core::Recorder,
}

#[pymethods]
impl Recorder {
    #[new]
    fn new(rank: u32) -> Self {
        Self { core: core::Recorder::new(Rank(rank)) }
    }

    fn write_to(&self, run_dir: PathBuf) -> PyResult<()> {
        self.core.write_to(&run_dir, None).map_err(errors::of_loader)
    }

    fn now(&self) -> u64 {
        self.core.now().get()
    }

    fn record_wait(
        &self,
        epoch: u64,
        step: u64,
        samples: u32,
        start: u64,
        end: u64,
        turns: Vec<(PyBackedStr, u64)>,
    ) -> PyResult<()> {
        self.core.record_wait(&consumer_wait((epoch, step, samples), start, end, turns)?);
        Ok(())
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        stats::of_recorder(py, &self.core)
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.core.close());
    }
}
