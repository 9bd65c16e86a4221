// SPDX-License-Identifier: Apache-2.0
//! The Rust core as `foresee._native`: convert, release the interpreter, convert back; no logic.
//!
//! One file per concern, mirrored by a class in `python/foresee/_native.pyi`. Defaults, retries and the form of errors
//! are decided in Python or in the core.

#![expect(clippy::needless_pass_by_value, reason = "arguments are extracted from Python objects, by value")]

mod arguments;
mod batch;
mod cache;
mod calibrate;
mod errors;
mod gradients;
mod index;
mod jobs;
mod ledger;
mod loader;
mod network;
mod order;
mod own;
mod recorder;
mod simulation;
mod stats;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("IS_CHECKED", cfg!(debug_assertions))?;
    module.add_class::<index::Index>()?;
    module.add_class::<cache::Cache>()?;
    module.add_class::<batch::Batch>()?;
    module.add_class::<loader::Loader>()?;
    module.add_class::<recorder::Recorder>()?;
    module.add_class::<ledger::LedgerFile>()?;
    module.add_class::<gradients::GradientExchange>()?;
    #[cfg(target_os = "linux")]
    module.add_class::<gradients::GradientNode>()?;
    #[cfg(target_os = "linux")]
    module.add_class::<gradients::GradientLeader>()?;
    module.add_class::<gradients::GradientServer>()?;
    module.add("TIMELINE_KINDS", gradients::timeline_kinds())?;
    module.add_function(wrap_pyfunction!(gradients::gradient_packet_bytes, module)?)?;
    module.add_class::<calibrate::Trial>()?;
    module.add_function(wrap_pyfunction!(calibrate::links_answer, module)?)?;
    module.add_function(wrap_pyfunction!(calibrate::links_measure, module)?)?;
    jobs::register(module)?;
    network::register(module)?;
    simulation::register(module)?;
    order::register(module)
}
