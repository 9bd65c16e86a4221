// SPDX-License-Identifier: Apache-2.0
//! Class `CacheDirectory`: list, verify and delete the content of a disk cache.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use foresee_data_tier as core;
use foresee_data_tier::{EntryFault, PartitionUser, Removal, Verification};
use foresee_units::Bytes;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::{errors, interrupt};

#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct CacheDirectory {
    directory: Arc<core::CacheDirectory>,
}

/// Whether a directory, or its nearest existing parent, is on NFS.
#[pyfunction]
pub(crate) fn is_on_nfs(py: Python<'_>, path: PathBuf) -> bool {
    py.detach(|| core::is_on_nfs(&path))
}

#[pymethods]
impl CacheDirectory {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let directory = py.detach(|| core::CacheDirectory::open(&path)).map_err(errors::of_disk)?;
        Ok(Self { directory: Arc::new(directory) })
    }

    fn content<'py>(&self, py: Python<'py>) -> PyResult<(Vec<Bound<'py, PyDict>>, Vec<String>)> {
        let content = py.detach(|| self.directory.content()).map_err(errors::of_disk)?;
        let partitions = content.partitions.into_iter().map(|facts| {
            let dict = PyDict::new(py);
            dict.set_item("source", facts.source)?;
            dict.set_item("partition", facts.partition)?;
            dict.set_item("version", facts.version)?;
            dict.set_item("disk_bytes", facts.disk_bytes.get())?;
            dict.set_item("last_used", facts.last_used)?;
            dict.set_item("declared_bytes", facts.declared.map(Bytes::get))?;
            dict.set_item("entries", facts.entries.map(|(entries, _)| entries))?;
            dict.set_item("entry_bytes", facts.entries.map(|(_, bytes)| bytes.get()))?;
            add_user(&dict, facts.user)?;
            Ok(dict)
        });
        Ok((partitions.collect::<PyResult<_>>()?, content.faults))
    }

    #[pyo3(signature = (source, partition, *, progress=None))]
    fn verify<'py>(
        &self,
        py: Python<'py>,
        source: String,
        partition: String,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let directory = Arc::clone(&self.directory);
        let seen = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let latest = Arc::clone(&seen);
        let work = move |cancel: &AtomicBool| {
            let on_progress = |entries, bytes| {
                latest.0.store(entries, Ordering::Relaxed);
                latest.1.store(bytes, Ordering::Relaxed);
            };
            directory.verify(&source, &partition, &on_progress, cancel)
        };
        let verification = interrupt::run(py, "foresee-verify", work, |py| {
            let (entries, bytes) = (seen.0.load(Ordering::Relaxed), seen.1.load(Ordering::Relaxed));
            progress.as_ref().map_or(Ok(()), |callback| callback.call1(py, (entries, bytes)).map(drop))
        })?;
        let dict = PyDict::new(py);
        match verification.map_err(errors::of_disk)? {
            Verification::Complete { entries, bytes, corrupt } => {
                dict.set_item("entries", entries)?;
                dict.set_item("entry_bytes", bytes.get())?;
                let corrupt = corrupt.into_iter().map(|entry| {
                    let fault = match entry.fault {
                        EntryFault::Header => "header".to_owned(),
                        EntryFault::Payload => "payload".to_owned(),
                        EntryFault::Unreadable(error) => error,
                    };
                    (entry.segment, entry.offset, entry.bytes.get(), fault)
                });
                dict.set_item("corrupt", corrupt.collect::<Vec<_>>())?;
                add_user(&dict, None)?;
            }
            Verification::InUse(user) => {
                dict.set_item("entries", 0)?;
                dict.set_item("entry_bytes", 0)?;
                dict.set_item("corrupt", Vec::<u64>::new())?;
                add_user(&dict, Some(user))?;
            }
            // Only an exception cancels, which interrupt::run raises.
            Verification::Cancelled => return Err(errors::defect("a verification ended early")),
        }
        Ok(dict)
    }

    fn remove<'py>(&self, py: Python<'py>, source: &str, partition: &str) -> PyResult<Bound<'py, PyDict>> {
        let removal = py.detach(|| self.directory.remove(source, partition)).map_err(errors::of_disk)?;
        let dict = PyDict::new(py);
        let (freed, user) = match removal {
            Removal::Freed(bytes) => (bytes.get(), None),
            Removal::InUse(user) => (0, Some(user)),
        };
        dict.set_item("freed_bytes", freed)?;
        add_user(&dict, user)?;
        Ok(dict)
    }
}

fn add_user(dict: &Bound<'_, PyDict>, user: Option<PartitionUser>) -> PyResult<()> {
    dict.set_item("in_use", user.is_some())?;
    dict.set_item("process", user.and_then(|user| user.process))
}
