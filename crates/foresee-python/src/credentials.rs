// SPDX-License-Identifier: Apache-2.0
//! Credentials that Python obtains: AWS profiles, and functions of the caller.
//!
//! `foresee._loading.credentials` works in a thread of Python's own. A thread of the engine only starts it, because it
//! would not survive the end of the interpreter inside of Python.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use foresee_data_tier::{
    CredentialReply, CredentialRequest, CredentialResult, CredentialSource, ObtainedCredentials,
    set_credential_source,
};
use pyo3::prelude::*;

const MODULE: &str = "foresee._loading.credentials";

/// Let origins of this process use credentials of Python.
pub(crate) fn install() {
    set_credential_source(Arc::new(PythonCredentials));
}

/// Where one result of Python goes.
#[pyclass(frozen, name = "CredentialReply", module = "foresee._native")]
pub(crate) struct Reply {
    /// Taken by the first result.
    reply: Mutex<Option<CredentialReply>>,
}

#[pymethods]
impl Reply {
    /// `expires`: in seconds since 1970.
    #[pyo3(signature = (values, expires))]
    fn send(&self, py: Python<'_>, values: BTreeMap<String, String>, expires: Option<f64>) {
        let since = |seconds: f64| Duration::try_from_secs_f64(seconds.max(0.0)).ok();
        // A time that does not fit never comes.
        let expires = expires.and_then(since).and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since));
        self.finish(py, Ok(ObtainedCredentials { values, expires }));
    }

    fn fail(&self, py: Python<'_>, cause: String) {
        self.finish(py, Err(cause));
    }
}

impl Reply {
    fn finish(&self, py: Python<'_>, result: CredentialResult) {
        let reply = self.reply.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(reply) = reply {
            py.detach(|| reply.send(result));
        }
    }
}

#[derive(Debug)]
struct PythonCredentials;

impl CredentialSource for PythonCredentials {
    fn reads_profiles(&self) -> bool {
        let reads = |py: Python<'_>| py.import(MODULE)?.call_method0("reads_profiles")?.extract();
        Python::try_attach(reads).is_some_and(|reads: PyResult<bool>| reads.unwrap_or(false))
    }

    fn profile_settings(&self, profile: Option<&str>) -> Result<BTreeMap<String, String>, String> {
        let read =
            |py: Python<'_>| py.import(MODULE)?.call_method1("profile_settings", (profile,))?.extract();
        Python::try_attach(|py| read(py).map_err(|error| message(py, &error)))
            .unwrap_or_else(|| Err("the Python interpreter has ended".to_owned()))
    }

    fn obtain(&self, request: &CredentialRequest, reply: CredentialReply) {
        let (kind, name) = match request {
            CredentialRequest::Profile(name) => ("profile", name.as_deref()),
            CredentialRequest::Provider(name) => ("provider", Some(name.as_str())),
        };
        let start = |py: Python<'_>| {
            let reply = Py::new(py, Reply { reply: Mutex::new(Some(reply)) })?;
            let started = py.import(MODULE)?.call_method1("obtain", (kind, name, &reply));
            if let Err(error) = started {
                reply.get().finish(py, Err(message(py, &error)));
            }
            PyResult::Ok(())
        };
        // Without an interpreter, or memory for the object, the dropped reply reports a failure.
        drop(Python::try_attach(start));
    }
}

/// The text of an exception.
fn message(py: Python<'_>, error: &PyErr) -> String {
    error.value(py).to_string()
}
