// SPDX-License-Identifier: Apache-2.0
//! The Rust core as `foresee._native`: convert, release the interpreter, convert back; no logic.
//!
//! One file per concern, mirrored by a class in `python/foresee/_native.pyi`. Python or the core decides about defaults,
//! retries and the form of errors.

#![expect(clippy::needless_pass_by_value, reason = "arguments are extracted from Python objects, by value")]

mod arguments;
mod batch;
mod cache;
mod cache_directory;
mod calibrate;
mod credentials;
mod errors;
mod fork_guard;
mod gradients;
mod index;
mod interrupt;
mod jobs;
mod ledger;
#[cfg(target_os = "linux")]
mod listing;
mod loader;
mod network;
#[cfg(target_os = "linux")]
mod node;
mod order;
mod recorder;
mod sample_cache;
mod sample_files;
mod simulation;
mod stats;

#[pyo3::pymodule(gil_used = false)]
mod _native {
    use pyo3::prelude::*;

    #[cfg(target_os = "linux")]
    #[pymodule_export]
    use crate::gradients::{GradientLeader, GradientNode};
    #[cfg(target_os = "linux")]
    #[pymodule_export]
    use crate::listing::{close_listings, share_listing};
    #[cfg(target_os = "linux")]
    #[pymodule_export]
    use crate::node::{NodeHost, node_status};
    #[pymodule_export]
    use crate::{
        batch::Batch,
        cache::Cache,
        cache_directory::{CacheDirectory, is_on_nfs},
        calibrate::{Trial, links_answer, links_measure},
        credentials::Reply,
        gradients::{GradientExchange, GradientServer, gradient_packet_bytes},
        index::Index,
        jobs::jobs_simulate,
        ledger::LedgerFile,
        loader::Loader,
        network::{NetworkStep, network_goodput, network_packet_delay, network_servers},
        order::{
            order_audit_expected, order_audit_sum, order_distributed, order_keyed, order_keyed_inverse,
            order_loader, order_random, order_randperm, order_seedable_shard, order_substitutes,
        },
        recorder::Recorder,
        sample_cache::SampleCache,
        sample_cache::SampleCacheClient,
        sample_files::SampleFiles,
        simulation::{LoadingRun, reads_above, reads_counted, reads_drawn, reads_expected},
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::credentials::install();
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("IS_CHECKED", cfg!(debug_assertions))?;
        module.add("TIMELINE_KINDS", foresee_grad_exchange::EventKind::NAMES)?;
        module.add(
            "LOADING_POLICIES",
            foresee_sim::loading::Policy::ALL.map(foresee_sim::loading::Policy::name),
        )
    }
}
