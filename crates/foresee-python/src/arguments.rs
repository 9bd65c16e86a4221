// SPDX-License-Identifier: Apache-2.0
//! Arguments of classes that users call themselves: a wrong one is a `ConfigError` that names and shows it.

use std::path::PathBuf;

use pyo3::conversion::FromPyObjectOwned;
use pyo3::prelude::*;

use crate::errors;

/// The argument `name` as a `T`. `expected`: what a message says it has to be.
pub(crate) fn taken<'py, T: FromPyObjectOwned<'py>>(
    value: &Bound<'py, PyAny>,
    name: &str,
    expected: &str,
) -> PyResult<T> {
    match value.extract::<T>() {
        Ok(taken) => Ok(taken),
        Err(_) => Err(errors::of_setting(format!("{name}={}; {expected}", value.repr()?))),
    }
}

/// As [`taken`], without an argument that is None.
pub(crate) fn taken_if_given<'py, T: FromPyObjectOwned<'py>>(
    value: Option<&Bound<'py, PyAny>>,
    name: &str,
    expected: &str,
) -> PyResult<Option<T>> {
    value.map(|value| taken(value, name, expected)).transpose()
}

/// The path or URI that the argument `name` is, with `~` expanded.
pub(crate) fn user_path(value: &Bound<'_, PyAny>, name: &str) -> PyResult<PathBuf> {
    value.py().import("foresee._schema.files")?.getattr("user_path")?.call1((value, name))?.extract()
}
