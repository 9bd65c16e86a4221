// SPDX-License-Identifier: Apache-2.0
//! Class `Index`: what a data set consists of.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use foresee_data_index as core;
use foresee_data_index::{Exclude, FolderOptions, Layout, LayoutOptions};
use foresee_data_loader::{build_index, open_index, save_index};
use foresee_data_tier::ListProgress;
use foresee_units::SampleId;
use numpy::PyArray1;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::arguments::{taken, taken_if_given, user_path};
use crate::errors;

/// Between two calls of a progress callback, and between two looks for Ctrl-C.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct Index {
    pub(crate) index: core::Index,
}

#[pymethods]
impl Index {
    #[staticmethod]
    fn open(path: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (py, path) = (path.py(), user_path(path, "path")?);
        let index = py.detach(|| open_index(&path)).map_err(|error| errors::of_opening(error, &path))?;
        Ok(Self { index })
    }

    #[staticmethod]
    #[pyo3(signature = (
        uri, *, layout, extensions=None, allow_empty=false, row_bytes=None, keys=None, exclude=None, options=None,
        progress=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of the Python signature")]
    fn build(
        uri: &Bound<'_, PyAny>,
        layout: &Bound<'_, PyAny>,
        extensions: Option<&Bound<'_, PyAny>>,
        allow_empty: bool,
        row_bytes: Option<&Bound<'_, PyAny>>,
        keys: Option<&Bound<'_, PyAny>>,
        exclude: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyAny>>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let py = uri.py();
        let uri = user_path(uri, "uri")?;
        let uri = uri.to_str().ok_or_else(|| {
            errors::of_setting(format!(
                "uri={} is not UTF-8; rename the directory, or link to it by another name",
                uri.display()
            ))
        })?;
        let layout = layout_of(
            &taken::<String>(layout, "layout", LAYOUTS)?,
            taken_if_given(extensions, "extensions", "a list of texts, such as [\".jpg\"]")?,
            allow_empty,
            taken_if_given(row_bytes, "row_bytes", "a whole number of 1 or more")?,
        )?;
        let keys: Option<Vec<Vec<u8>>> = taken_if_given(keys, "keys", "a list of bytes")?;
        let exclude: Option<Vec<Vec<u8>>> = taken_if_given(exclude, "exclude", "a list of bytes")?;
        let exclude = Exclude::new(exclude.unwrap_or_default())
            .map_err(|error| errors::of_setting(error.to_string()))?;
        let storage: Option<std::collections::BTreeMap<String, String>> = match options {
            // Credentials are among them.
            Some(options) => Some(options.extract().map_err(|_| {
                errors::of_setting(
                    "options: texts by name expected, such as {\"region\": \"eu-1\"}".to_owned(),
                )
            })?),
            None => None,
        };
        let storage = storage.unwrap_or_default().into_iter().collect();
        let listener = Arc::new(Listener::new(progress));
        let (uri, heard) = (uri.to_owned(), Arc::clone(&listener));
        let (done, listed) = sync_channel(1);
        Builder::new().name("foresee-index".to_owned()).spawn(move || {
            let hear = |now| heard.hear(now);
            let built = build_index(&uri, storage, layout, keys.as_deref(), &exclude, &hear, &heard.cancel);
            // After Ctrl-C nobody waits for it.
            let _ = done.send(built);
        })?;
        let built = py.detach(|| listener.wait_for(listed))?;
        let (index, _) = built.map_err(errors::of_indexing)?;
        Ok(Self { index })
    }

    fn save(&self, path: &Bound<'_, PyAny>) -> PyResult<()> {
        let (py, path) = (path.py(), user_path(path, "path")?);
        py.detach(|| save_index(&self.index, &path)).map_err(errors::of_indexing)
    }

    fn update(&self, other: &Bound<'_, PyAny>) -> PyResult<std::collections::BTreeMap<&'static str, u64>> {
        let py = other.py();
        let Ok(newer) = other.cast::<Self>() else {
            return Err(errors::of_setting(format!("other={}; an Index", other.repr()?)));
        };
        let other = newer.get();
        let diff = py.detach(|| self.index.diff(&other.index)).map_err(|error| errors::of_index(&error))?;
        Ok([("added", diff.added), ("removed", diff.removed), ("changed", diff.changed), ("kept", diff.same)]
            .into())
    }

    fn __len__(&self) -> usize {
        usize::try_from(self.index.len()).unwrap_or(usize::MAX)
    }

    #[getter]
    fn uri(&self) -> &str {
        self.index.base_uri()
    }

    #[getter]
    fn layout(&self) -> &'static str {
        match self.index.layout() {
            Layout::Folder(_) => "folder",
            Layout::Flat { .. } => "flat",
            Layout::Npy { .. } => "npy",
            Layout::Bin { .. } => "bin",
            _ => "other",
        }
    }

    #[getter]
    fn fingerprint(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.index.fingerprint()))
    }

    #[getter]
    fn classes(&self) -> Vec<OsString> {
        // As `os.fsdecode`: two names that are not UTF-8 stay two.
        self.index.classes().into_iter().map(|name| OsStr::from_bytes(name).to_owned()).collect()
    }

    #[getter]
    fn uniform_size(&self) -> Option<u64> {
        self.index.uniform_size().map(foresee_units::Bytes::get)
    }

    #[getter]
    fn max_size(&self) -> u64 {
        self.index.max_size().get()
    }

    #[getter]
    fn total_bytes(&self) -> u64 {
        self.index.total_bytes().get()
    }

    #[getter]
    fn row_dtype(&self) -> Option<&str> {
        match self.index.layout() {
            Layout::Npy { dtype, .. } => Some(dtype),
            _ => None,
        }
    }

    #[getter]
    fn row_shape<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        match self.index.layout() {
            Layout::Npy { shape, .. } => Ok(Some(PyTuple::new(py, shape)?)),
            _ => Ok(None),
        }
    }

    #[pyo3(signature = (sample, *, base=None))]
    fn sample_uri(&self, sample: &Bound<'_, PyAny>, base: Option<&str>) -> PyResult<String> {
        let sample = self.checked(sample)?;
        Ok(base.map_or_else(|| self.index.uri(sample), |base| self.index.uri_below(base, sample)))
    }

    fn key(&self, sample: &Bound<'_, PyAny>) -> PyResult<&[u8]> {
        Ok(self.index.key(self.checked(sample)?))
    }

    fn size(&self, sample: &Bound<'_, PyAny>) -> PyResult<u64> {
        Ok(self.index.size(self.checked(sample)?).get())
    }

    fn label(&self, sample: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
        Ok(self.index.label(self.checked(sample)?))
    }

    fn labels<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        let labels: Vec<i64> = py.detach(|| {
            (0..self.index.len()).map(|id| self.index.label(SampleId(id)).unwrap_or(-1)).collect()
        });
        PyArray1::from_vec(py, labels)
    }

    fn describe<'py>(&self, py: Python<'py>, limit: u64) -> PyResult<Bound<'py, PyAny>> {
        let text = serde_json::to_string(&self.index.dump(limit))
            .map_err(|error| errors::invalid_index(error.to_string()))?;
        py.import("json")?.call_method1("loads", (text,))
    }
}

impl Index {
    fn checked(&self, sample: &Bound<'_, PyAny>) -> PyResult<SampleId> {
        let id: i128 = taken(sample, "sample", "a whole number")?;
        match u64::try_from(id) {
            Ok(id) if id < self.index.len() => Ok(SampleId(id)),
            _ => Err(PyIndexError::new_err(format!(
                "sample {id} is outside the data set of {}",
                self.index.len()
            ))),
        }
    }
}

const LAYOUTS: &str = "use folder, flat, npy or bin";

fn layout_of(
    name: &str,
    extensions: Option<Vec<String>>,
    allow_empty: bool,
    row_bytes: Option<u64>,
) -> PyResult<LayoutOptions> {
    Ok(match name {
        "folder" => {
            let pictures = FolderOptions { allow_empty, ..FolderOptions::default() };
            LayoutOptions::Folder(match extensions {
                Some(extensions) => FolderOptions { extensions, ..pictures },
                None => pictures,
            })
        }
        "flat" => LayoutOptions::Flat { extensions: extensions.unwrap_or_default() },
        "npy" => LayoutOptions::Npy,
        "bin" => LayoutOptions::Bin {
            row_bytes: row_bytes.ok_or_else(|| {
                errors::of_setting("layout 'bin' needs row_bytes=, the size of one row".to_owned())
            })?,
            extensions: extensions.unwrap_or_default(),
        },
        other => {
            return Err(errors::of_setting(format!("layout={other:?}; {LAYOUTS}")));
        }
    })
}

/// Passes progress on to Python now and then, and an exception of Python's back to the listing.
struct Listener {
    callback: Option<Py<PyAny>>,
    cancel: AtomicBool,
    heard: Mutex<Heard>,
}

struct Heard {
    last: Instant,
    raised: Option<PyErr>,
}

impl Listener {
    fn new(callback: Option<Py<PyAny>>) -> Self {
        let heard = Heard { last: Instant::now(), raised: None };
        Self { callback, cancel: AtomicBool::new(false), heard: Mutex::new(heard) }
    }

    fn hear(&self, now: ListProgress) {
        // Threads that come while another is telling have nothing newer to say.
        let Ok(mut heard) = self.heard.try_lock() else { return };
        let Some(callback) = &self.callback else { return };
        if heard.last.elapsed() < PROGRESS_EVERY || self.cancel.load(Ordering::Relaxed) {
            return;
        }
        heard.last = Instant::now();
        let told = Python::attach(|py| callback.call1(py, (now.objects, now.bytes)).map(drop));
        if let Err(error) = told {
            heard.raised = Some(error);
            self.cancel.store(true, Ordering::Relaxed);
        }
    }

    /// What the listing comes to. Only the thread that Python called hears Ctrl-C, so the listing runs on another; an
    /// origin that hangs keeps that one, which ends by itself later.
    fn wait_for<T>(&self, listed: Receiver<T>) -> PyResult<T> {
        let built = loop {
            match listed.recv_timeout(PROGRESS_EVERY) {
                Ok(built) => break built,
                Err(RecvTimeoutError::Timeout) => Python::attach(|py| {
                    py.check_signals().inspect_err(|_| self.cancel.store(true, Ordering::Relaxed))
                })?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(errors::defect("the listing has failed"));
                }
            }
        };
        match self.heard.lock().unwrap_or_else(PoisonError::into_inner).raised.take() {
            Some(error) => Err(error),
            None => Ok(built),
        }
    }
}
