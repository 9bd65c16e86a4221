// SPDX-License-Identifier: Apache-2.0
//! Extraction of arguments: a wrong one is a `ConfigError` that names and shows it.

use std::path::PathBuf;

use foresee_model::Compat;
use foresee_wire::Secret;
use pyo3::conversion::FromPyObjectOwned;
use pyo3::prelude::*;

use crate::errors::{config_error, of_wire};

/// Extract the argument `name` as a `T`. `expected` completes the error message.
pub(crate) fn extract<'py, T: FromPyObjectOwned<'py>>(
    value: &Bound<'py, PyAny>,
    name: &str,
    expected: &str,
) -> PyResult<T> {
    value.extract().or_else(|_| Err(config_error(format!("{name}={}; {expected}", value.repr()?))))
}

/// [`extract`] an argument that may be None.
pub(crate) fn extract_optional<'py, T: FromPyObjectOwned<'py>>(
    value: Option<&Bound<'py, PyAny>>,
    name: &str,
    expected: &str,
) -> PyResult<Option<T>> {
    value.map(|value| extract(value, name, expected)).transpose()
}

/// Extract the argument `name` as a path or URI, with `~` expanded.
pub(crate) fn extract_path(value: &Bound<'_, PyAny>, name: &str) -> PyResult<PathBuf> {
    value.py().import("foresee._schema.files")?.getattr("user_path")?.call1((value, name))?.extract()
}

/// The argument `compat` of models and simulations.
pub(crate) fn compat_of(name: &str) -> PyResult<Compat> {
    let known = Compat::ALL.map(Compat::name).join(" or ");
    Compat::named(name).ok_or_else(|| config_error(format!("compat={name:?}; {known} expected")))
}

/// The secret of a job: a text, else that of a file, else that of the environment.
pub(crate) fn secret_of(text: Option<&str>, file: Option<PathBuf>) -> PyResult<Secret> {
    let secret = match (text, file) {
        (Some(text), _) => Secret::from_text(text),
        (None, Some(file)) => Secret::from_file(file),
        (None, None) => Secret::from_env(),
    };
    secret.map_err(of_wire)
}
