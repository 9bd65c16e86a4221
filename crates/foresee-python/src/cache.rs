// SPDX-License-Identifier: Apache-2.0
//! Class `Cache`: the memory and disk space that loaders share.

use std::path::PathBuf;
use std::sync::Arc;

use foresee_data_loader as core;
use foresee_units::Bytes;
use pyo3::prelude::*;

use crate::errors;

#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct Cache {
    pub(crate) shared: Arc<core::Cache>,
}

#[pymethods]
impl Cache {
    #[new]
    #[pyo3(signature = (*, ram_bytes, disk_dir, disk_bytes))]
    fn new(ram_bytes: u64, disk_dir: Option<PathBuf>, disk_bytes: u64) -> PyResult<Self> {
        let cache = core::Cache::new(Bytes::new(ram_bytes), disk_dir, Bytes::new(disk_bytes));
        Ok(Self { shared: Arc::new(cache.map_err(errors::of_loader)?) })
    }
}
