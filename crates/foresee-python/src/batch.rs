// SPDX-License-Identifier: Apache-2.0
//! Class `Batch`: arrays over the loader's memory, which they keep alive.

use std::any::Any;
use std::sync::Arc;

use foresee_data_loader as core;
use foresee_ledger::Cause;
use foresee_units::Nanos;
use numpy::PyArray1;
use numpy::ndarray::ArrayView1;
use pyo3::prelude::*;

/// Owner of the arrays' memory; its drop returns the memory to the loader.
#[pyclass(frozen, module = "foresee._native")]
struct Lease {
    _memory: Arc<dyn Any + Send + Sync>,
}

#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct Batch {
    batch: Box<core::Batch>,
}

impl Batch {
    pub(crate) fn new(batch: Box<core::Batch>) -> Self {
        Self { batch }
    }
}

#[pymethods]
impl Batch {
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<u8>>> {
        let (start, len, memory) = self.batch.memory();
        let lease = Bound::new(py, Lease { _memory: memory })?;
        // SAFETY: the range is initialised and stays mapped while the lease lives; the array holds the lease.
        // The batch was delivered: only its consumer accesses the bytes from now on.
        unsafe {
            let view = ArrayView1::from_shape_ptr(len, start.as_ptr().cast_const());
            Ok(PyArray1::borrow_from_array(&view, lease.into_any()))
        }
    }

    #[getter]
    fn offsets<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        PyArray1::from_iter(py, self.batch.offsets.iter().map(|offset| offset.cast_signed()))
    }

    #[getter]
    fn ids<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        PyArray1::from_iter(py, self.batch.ids.iter().map(|id| id.0.cast_signed()))
    }

    #[getter]
    fn labels<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        PyArray1::from_slice(py, &self.batch.labels)
    }

    #[getter]
    fn epoch(&self) -> u64 {
        self.batch.epoch.0
    }

    #[getter]
    fn step(&self) -> u64 {
        self.batch.step.0
    }

    #[getter]
    fn start(&self) -> u64 {
        self.batch.start
    }

    #[getter]
    fn last(&self) -> bool {
        self.batch.last
    }

    #[getter]
    fn faults(&self) -> Vec<(usize, &'static str, String, bool)> {
        let row =
            |fault: &core::Fault| (fault.index, fault.kind(), fault.message.clone(), fault.is_permanent());
        self.batch.faults.iter().map(row).collect()
    }

    #[getter]
    fn turns(&self) -> Vec<(&'static str, u64)> {
        cause_times(&self.batch.stages)
    }

    fn __len__(&self) -> usize {
        self.batch.ids.len()
    }
}

/// Causes of a wait, each with the nanosecond at which it began.
pub(crate) fn cause_times(stages: &[(Cause, Nanos)]) -> Vec<(&'static str, u64)> {
    stages.iter().map(|&(cause, since)| (cause.name(), since.get())).collect()
}
