// SPDX-License-Identifier: Apache-2.0
//! Options of a loader, and their check, which reports all faults at once.

use std::path::PathBuf;

use foresee_data_index::Index;
use foresee_data_order::{Avoid, Order};
use foresee_units::{Bytes, SampleId, World};

use crate::engine::loader_identity;
use crate::errors::LoaderError;
use crate::node::NodeIdentity;
use crate::orders::{Batching, RunOrder};

/// Maximum size of a staging buffer by default.
const STAGING_MAX: Bytes = Bytes::new(2_000_000_000);
/// Staged batches by default.
const STAGING_BATCHES: u64 = 8;
/// Minimum of staged samples by default. They keep a distant origin busy even with tiny batches, and the driver is
/// woken once for many of them.
const STAGING_SAMPLES: u64 = 4096;
/// Maximum size of that minimum.
const STAGING_SAMPLES_BYTES: Bytes = Bytes::new(64 << 20);

/// Options from the Python side; optional if a default exists.
#[derive(Clone, Debug)]
pub struct LoaderOptions {
    /// The present location of the index's objects.
    pub uri: String,
    /// Storage options of the origin; never shown and never saved.
    pub storage: Vec<(String, String)>,
    /// Samples per batch, at least 1.
    pub batch_size: u64,
    /// Whether to drop a short last batch.
    pub drop_last: bool,
    /// The run's order; `None` if each epoch begins with its samples.
    pub order: Option<Order>,
    /// Samples that the order replaces by substitutes. Epochs with their own samples are used unchanged.
    pub avoid: Vec<SampleId>,
    /// Epochs of the run, at least 1; `None` if unknown.
    pub epochs: Option<u64>,
    /// This rank among all.
    pub world: World,
    /// This rank among those of its node.
    pub local_world: World,
    /// Maximum of bytes that are staged or held by the consumer; at least three batches.
    pub staging: Option<Bytes>,
    /// Threads that read the origin, 1 to 256.
    pub threads: Option<usize>,
    /// The folder of the ledger.
    pub run_dir: Option<PathBuf>,
    /// Who the loader is for the cache of its node; `None` uses its own caches in any case.
    pub node: Option<NodeIdentity>,
    /// Whether the nodes of the job exchange samples; without effect for a run without an order.
    pub peers: bool,
    /// Whether the origin was just listed with the same options: it is not probed again.
    pub listed: bool,
}

/// A checked configuration.
#[derive(Clone, Debug)]
pub(crate) struct LoaderConfig {
    pub(crate) options: LoaderOptions,
    pub(crate) run: Option<RunOrder>,
    pub(crate) batching: Batching,
    pub(crate) staging: Bytes,
    /// See [`loader_identity`].
    pub(crate) identity: [u8; 16],
}

impl LoaderConfig {
    /// Check `options` against the data and the memory budget.
    pub(crate) fn check(options: LoaderOptions, index: &Index, ram: Bytes) -> Result<Self, LoaderError> {
        let mut faults = Vec::new();
        if options.batch_size == 0 {
            faults.push("batch_size is 0; use 1 or more".to_owned());
        }
        if options.epochs == Some(0) {
            faults.push("epochs is 0; use 1 or more, or leave it out".to_owned());
        }
        if let Some(threads) = options.threads.filter(|threads| !(1..=256).contains(threads)) {
            faults.push(format!("threads is {threads}; use 1 to 256"));
        }
        let batch_size = options.batch_size.max(1);
        let batch = batch_bytes_max(index, batch_size);
        let least = least_staging(batch);
        if let Some(staging) = options.staging.filter(|&staging| staging < least) {
            faults.push(format!(
                "the staging buffer of {staging} does not hold three batches ({least}); use smaller batches or more staging"
            ));
        }
        let staging = options.staging.unwrap_or_else(|| default_staging(index, batch_size, ram));
        if !ram.is_zero() && staging > ram {
            faults.push(format!(
                "ram={ram} does not hold three batches of up to {batch}; use smaller batches, or ram={} or more",
                least.saturating_add(batch)
            ));
        }
        let avoid = Avoid::new(index.len(), options.avoid.iter().copied())
            .map_err(|error| faults.push(error.to_string()));
        let (Ok(avoid), true) = (avoid, faults.is_empty()) else {
            return Err(LoaderError::Config { faults });
        };
        let batching = Batching { batch_size, drop_last: options.drop_last };
        let run = options.order.map(|order| RunOrder {
            order,
            avoid,
            world: options.world,
            batching,
            epochs: options.epochs,
            index: index.clone(),
        });
        let mut config = Self { options, run, batching, staging, identity: [0; 16] };
        config.identity = loader_identity(&config);
        Ok(config)
    }
}

/// An upper bound of a batch's bytes: at most those of the data set, unless samples may share entries.
fn batch_bytes_max(index: &Index, batch_size: u64) -> Bytes {
    let entries = batch_size.saturating_mul(index.parts());
    let largest = Bytes::new(index.max_size().get().saturating_mul(entries));
    if index.shares_entries() { largest } else { largest.min(index.total_bytes()) }
}

/// Three of the largest batches: one in use, one ready, one in flight.
const fn least_staging(batch: Bytes) -> Bytes {
    batch.saturating_add(batch).saturating_add(batch)
}

/// Eight batches of mean size, or 4096 samples if that is more (and at most 64 MiB); at most 2 GB; at most a quarter
/// of a RAM budget; but never less than [`least_staging`].
fn default_staging(index: &Index, batch_size: u64, ram: Bytes) -> Bytes {
    let mean = index.mean_size().get().saturating_mul(index.parts());
    let of_samples = |samples: u64| Bytes::new(mean.saturating_mul(samples));
    let ahead = of_samples(STAGING_SAMPLES).min(STAGING_SAMPLES_BYTES);
    let mut staging = of_samples(batch_size.saturating_mul(STAGING_BATCHES)).max(ahead).min(STAGING_MAX);
    if !ram.is_zero() {
        staging = staging.min(Bytes::new(ram.get() / 4));
    }
    staging.max(least_staging(batch_bytes_max(index, batch_size)))
}
