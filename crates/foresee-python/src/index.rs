// SPDX-License-Identifier: Apache-2.0
//! Class `Index`: the samples of a data set.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use foresee_data_index as core;
use foresee_data_index::{Exclude, FolderOptions, Layout, LayoutOptions, TableColumn, Windows};
use foresee_data_loader::{
    TableOptions, WindowOptions, build_index, build_table, build_windows, open_index, save_index,
};
use foresee_data_tier::ListProgress;
use foresee_units::SampleId;
use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};

use crate::arguments::{extract, extract_optional, extract_path};
use crate::errors::config_error;
use crate::{errors, interrupt};

#[pyclass(frozen, module = "foresee._native")]
pub(crate) struct Index {
    pub(crate) index: core::Index,
    /// Files outside class folders; 0 for an opened index.
    pub(crate) outside: u64,
}

#[pymethods]
impl Index {
    #[staticmethod]
    fn open(path: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (py, path) = (path.py(), extract_path(path, "path")?);
        let index = py.detach(|| open_index(&path)).map_err(|error| errors::of_opening(error, &path))?;
        Ok(Self { index, outside: 0 })
    }

    #[staticmethod]
    #[pyo3(signature = (
        uri, *, layout, or_flat=false, extensions=None, allow_empty=false, row_bytes=None, keys=None, exclude=None, options=None,
        progress=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of the Python signature")]
    fn build(
        uri: &Bound<'_, PyAny>,
        layout: &Bound<'_, PyAny>,
        or_flat: bool,
        extensions: Option<&Bound<'_, PyAny>>,
        allow_empty: bool,
        row_bytes: Option<&Bound<'_, PyAny>>,
        keys: Option<&Bound<'_, PyAny>>,
        exclude: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyAny>>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let py = uri.py();
        let uri = extract_path(uri, "uri")?;
        let uri = uri.to_str().ok_or_else(|| {
            config_error(format!(
                "uri={} is not UTF-8; rename the directory, or link to it by another name",
                uri.display()
            ))
        })?;
        let layout = layout_of(
            &extract::<String>(layout, "layout", LAYOUTS)?,
            extract_optional(extensions, "extensions", "a list of texts, such as [\".jpg\"]")?,
            allow_empty,
            extract_optional(row_bytes, "row_bytes", "a whole number of 1 or more")?,
        )?;
        let keys: Option<Vec<Vec<u8>>> = extract_optional(keys, "keys", "a list of bytes")?;
        let exclude: Option<Vec<Vec<u8>>> = extract_optional(exclude, "exclude", "a list of bytes")?;
        let exclude =
            Exclude::new(exclude.unwrap_or_default()).map_err(|error| config_error(error.to_string()))?;
        let (uri, storage) = (uri.to_owned(), storage_of(options)?);
        let built = run_build(py, progress, move |progress, cancel| {
            build_index(&uri, storage, layout, or_flat, keys.as_deref(), &exclude, progress, cancel)
        })?;
        let (index, summary) = built.map_err(errors::of_indexing)?;
        Ok(Self { index, outside: summary.outside })
    }

    #[staticmethod]
    #[pyo3(signature = (columns, *, root, sizes, allow_missing=false, options=None, progress=None))]
    fn table(
        columns: Vec<(String, Bound<'_, PyList>)>,
        root: String,
        sizes: Vec<Option<PyReadonlyArray1<'_, i64>>>,
        allow_missing: bool,
        options: Option<&Bound<'_, PyAny>>,
        progress: Option<Py<PyAny>>,
        py: Python<'_>,
    ) -> PyResult<Self> {
        let naturals = |sizes: PyReadonlyArray1<'_, i64>| {
            sizes.as_array().iter().map(|&size| u64::try_from(size)).collect::<Result<Vec<u64>, _>>()
        };
        let sizes: Result<Vec<_>, _> =
            sizes.into_iter().map(|sizes| sizes.map(naturals).transpose()).collect();
        let table = TableOptions {
            root,
            columns: columns.into_iter().map(column_of).collect::<PyResult<_>>()?,
            sizes: sizes.map_err(|_| config_error("a size is below 0; sizes are bytes".to_owned()))?,
            storage: storage_of(options)?,
            allow_missing,
        };
        let built = run_build(py, progress, move |progress, cancel| build_table(table, progress, cancel))?;
        Ok(Self { index: built.map_err(errors::of_indexing)?, outside: 0 })
    }

    #[staticmethod]
    #[pyo3(signature = (
        uri, files, *, root, dtype, item_bytes, length, stride, drop_tail, exclude=None, options=None, progress=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of the Python signature")]
    fn windows(
        uri: Option<String>,
        files: Option<(String, Bound<'_, PyList>)>,
        root: String,
        dtype: String,
        item_bytes: u64,
        length: u64,
        stride: u64,
        drop_tail: bool,
        exclude: Option<Vec<Vec<u8>>>,
        options: Option<&Bound<'_, PyAny>>,
        progress: Option<Py<PyAny>>,
        py: Python<'_>,
    ) -> PyResult<(Self, u64, u64)> {
        let files = match files {
            Some(files) => column_of(files)?,
            None => TableColumn { name: String::new(), rows: Vec::new() },
        };
        let options = WindowOptions {
            uri,
            files: (root, files),
            windows: Windows { dtype, item_bytes, length, stride, drop_tail },
            exclude: Exclude::new(exclude.unwrap_or_default())
                .map_err(|error| config_error(error.to_string()))?,
            storage: storage_of(options)?,
        };
        let built =
            run_build(py, progress, move |progress, cancel| build_windows(options, progress, cancel))?;
        let (index, summary) = built.map_err(errors::of_indexing)?;
        Ok((Self { index, outside: 0 }, summary.tail.elements, summary.tail.files))
    }

    fn save(&self, path: &Bound<'_, PyAny>) -> PyResult<()> {
        let (py, path) = (path.py(), extract_path(path, "path")?);
        py.detach(|| save_index(&self.index, &path)).map_err(errors::of_indexing)
    }

    fn select(&self, py: Python<'_>, samples: PyReadonlyArray1<'_, i64>) -> PyResult<Self> {
        let samples = samples.as_array().to_vec();
        let selected = py.detach(|| self.index.select(&samples)).map_err(errors::of_index)?;
        Ok(Self { index: selected, outside: self.outside })
    }

    fn update(&self, other: &Bound<'_, PyAny>) -> PyResult<std::collections::BTreeMap<&'static str, u64>> {
        let py = other.py();
        let Ok(newer) = other.cast::<Self>() else {
            return Err(config_error(format!("other={}; an Index", other.repr()?)));
        };
        let other = newer.get();
        let diff = py.detach(|| self.index.diff(&other.index)).map_err(errors::of_index)?;
        Ok([("added", diff.added), ("removed", diff.removed), ("changed", diff.changed), ("kept", diff.same)]
            .into())
    }

    fn __len__(&self) -> usize {
        usize::try_from(self.index.samples()).unwrap_or(usize::MAX)
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
            Layout::Table { .. } => "table",
            Layout::Windows(_) => "windows",
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
            Layout::Windows(windows) => Some(&windows.dtype),
            _ => None,
        }
    }

    #[getter]
    fn row_shape<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        match self.index.layout() {
            Layout::Npy { shape, .. } => Ok(Some(PyTuple::new(py, shape)?)),
            Layout::Windows(windows) => Ok(Some(PyTuple::new(py, [windows.length])?)),
            _ => Ok(None),
        }
    }

    #[getter]
    fn outside(&self) -> u64 {
        self.outside
    }

    #[getter]
    fn stride(&self) -> Option<u64> {
        match self.index.layout() {
            Layout::Windows(windows) => Some(windows.stride),
            _ => None,
        }
    }

    #[getter]
    fn drop_tail(&self) -> Option<bool> {
        match self.index.layout() {
            Layout::Windows(windows) => Some(windows.drop_tail),
            _ => None,
        }
    }

    #[getter]
    fn parts(&self) -> u64 {
        self.index.parts()
    }

    fn part_sizes<'py>(
        &self,
        py: Python<'py>,
        samples: PyReadonlyArray1<'py, i64>,
    ) -> PyResult<Bound<'py, PyArray2<i64>>> {
        let parts = self.index.parts();
        let mut sizes = Vec::new();
        for &sample in samples.as_array() {
            let sample = self.within(i128::from(sample))?;
            let size = |part| self.index.size(self.index.entry_of(sample, part)).get().cast_signed();
            sizes.extend((0..parts).map(size));
        }
        PyArray1::from_vec(py, sizes)
            .reshape([samples.as_array().len(), usize::try_from(parts).unwrap_or(usize::MAX)])
    }

    #[pyo3(signature = (sample, *, base=None, part=0))]
    fn sample_uri(&self, sample: &Bound<'_, PyAny>, base: Option<&str>, part: u64) -> PyResult<String> {
        let sample = self.entry_of(sample, part)?;
        Ok(base.map_or_else(|| self.index.uri(sample), |base| self.index.uri_below(base, sample)))
    }

    #[pyo3(signature = (sample, *, part=0))]
    fn key(&self, sample: &Bound<'_, PyAny>, part: u64) -> PyResult<&[u8]> {
        Ok(self.index.key(self.entry_of(sample, part)?))
    }

    fn size(&self, sample: &Bound<'_, PyAny>) -> PyResult<u64> {
        let sample = self.checked(sample)?;
        let parts = 0..self.index.parts();
        Ok(parts.map(|part| self.index.size(self.index.entry_of(sample, part)).get()).sum())
    }

    fn label(&self, sample: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
        Ok(self.index.sample_label(self.checked(sample)?))
    }

    fn labels<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        let labels: Vec<i64> = py.detach(|| {
            (0..self.index.samples()).map(|id| self.index.sample_label(SampleId(id)).unwrap_or(-1)).collect()
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
        self.within(extract(sample, "sample", "a whole number")?)
    }

    fn within(&self, id: i128) -> PyResult<SampleId> {
        match u64::try_from(id) {
            Ok(id) if id < self.index.samples() => Ok(SampleId(id)),
            _ => Err(PyIndexError::new_err(format!(
                "sample {id} is outside the data set of {}",
                self.index.samples()
            ))),
        }
    }

    fn entry_of(&self, sample: &Bound<'_, PyAny>, part: u64) -> PyResult<SampleId> {
        let (sample, parts) = (self.checked(sample)?, self.index.parts());
        if part >= parts {
            return Err(PyIndexError::new_err(format!("part {part} of samples of {parts}")));
        }
        Ok(self.index.entry_of(sample, part))
    }
}

/// Extract storage options. Errors never show them, since they contain credentials.
fn storage_of(options: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<(String, String)>> {
    let Some(options) = options else { return Ok(Vec::new()) };
    let known: std::collections::BTreeMap<String, String> = options.extract().map_err(|_| {
        config_error("options: texts by name expected, such as {\"region\": \"eu-1\"}".to_owned())
    })?;
    Ok(known.into_iter().collect())
}

/// Extract a column of paths: strings are encoded as by `os.fsencode`.
fn column_of((name, cells): (String, Bound<'_, PyList>)) -> PyResult<TableColumn> {
    let mut rows = Vec::with_capacity(cells.len());
    for (row, cell) in cells.iter().enumerate() {
        let Ok(text) = cell.cast::<PyString>() else {
            return Err(config_error(format!(
                "{name}, row {row}: {} is a {}; a path or URI expected",
                cell.repr()?,
                cell.get_type().name()?
            )));
        };
        rows.push(match text.to_str() {
            Ok(text) => text.as_bytes().to_vec(),
            Err(_) => cell.extract::<OsString>()?.into_vec(),
        });
    }
    Ok(TableColumn { name, rows })
}

/// Run `build` in a thread, and pass its progress on to the callback `progress`, whose exception ends it.
fn run_build<T: Send + 'static>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    build: impl FnOnce(&(dyn Fn(ListProgress) + Sync), &AtomicBool) -> T + Send + 'static,
) -> PyResult<T> {
    let latest = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&latest);
    let work = move |cancel: &AtomicBool| {
        let on_progress = |now| {
            if let Ok(mut latest) = latest.try_lock() {
                *latest = Some(now);
            }
        };
        build(&on_progress, cancel)
    };
    interrupt::run(py, "foresee-index", work, |py| {
        let now: Option<ListProgress> = seen.lock().unwrap_or_else(PoisonError::into_inner).take();
        progress
            .as_ref()
            .zip(now)
            .map_or(Ok(()), |(callback, now)| callback.call1(py, (now.objects, now.bytes)).map(drop))
    })
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
                config_error("layout 'bin' needs row_bytes=, the size of one row".to_owned())
            })?,
            extensions: extensions.unwrap_or_default(),
        },
        other => {
            return Err(config_error(format!("layout={other:?}; {LAYOUTS}")));
        }
    })
}
