// SPDX-License-Identifier: Apache-2.0
//! Class `SampleFiles`: encoded samples of a Python dataset under a key of the user, in a disk cache.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use foresee_data_tier::{OriginIdentity, SampleFiles as Core, SampleFilesConfig};
use foresee_units::{Bytes, SampleId};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors;
use crate::fork_guard::ForkGuard;

#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct SampleFiles {
    /// `None` once closed. A forked child cannot use the lock, which a thread of the parent may have held.
    core: ForkGuard<Mutex<Option<Arc<Core>>>>,
}

#[pymethods]
impl SampleFiles {
    #[new]
    #[pyo3(signature = (directory, *, capacity_bytes, key, variant, samples))]
    fn new(
        py: Python<'_>,
        directory: PathBuf,
        capacity_bytes: u64,
        key: &str,
        variant: &str,
        samples: u64,
    ) -> PyResult<Self> {
        let (identity, capacity) = (OriginIdentity::of_key(key, variant), Bytes::new(capacity_bytes));
        let config = SampleFilesConfig { dir: directory, capacity, identity, samples };
        let core = py.detach(|| Core::open(&config)).map_err(errors::of_disk)?;
        Ok(Self { core: ForkGuard::new(Mutex::new(Some(Arc::new(core)))) })
    }

    /// Whether the directory is read-only: nothing is added.
    #[getter]
    fn is_read_only(&self) -> PyResult<bool> {
        Ok(self.core()?.is_some_and(|core| core.is_read_only()))
    }

    /// The error after which nothing is added any more; None without one.
    #[getter]
    fn fault(&self) -> PyResult<Option<String>> {
        Ok(self.core()?.and_then(|core| core.fault().map(str::to_owned)))
    }

    /// Return the bytes of a sample; None if it is not there.
    fn get<'py>(&self, py: Python<'py>, sample: u64) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let Some(core) = self.core()? else { return Ok(None) };
        Ok(py.detach(|| core.get(SampleId(sample))).map(|bytes| PyBytes::new(py, &bytes)))
    }

    /// Add a sample that is not there, if there is space for it.
    fn insert(&self, py: Python<'_>, sample: u64, data: &[u8]) -> PyResult<()> {
        if let Some(core) = self.core()? {
            py.detach(|| core.insert(SampleId(sample), data));
        }
        Ok(())
    }

    /// End the use of the files, of which there are none from now on; without effect in a forked child.
    fn close(&self, py: Python<'_>) {
        if let Some(core) = self.core.get_in_owner() {
            py.detach(|| {
                let open = core.lock().unwrap_or_else(PoisonError::into_inner).take();
                drop(open);
            });
        }
    }
}

impl SampleFiles {
    /// The open files; `None` once closed.
    pub(crate) fn core(&self) -> PyResult<Option<Arc<Core>>> {
        Ok(self.core.get()?.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}
